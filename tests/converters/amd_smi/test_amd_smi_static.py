"""One-time output of amd-smi gives names and facts of GPUs, in every form."""

import csv
import json
from pathlib import Path

import pytest
from issue_counts import counts
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop.converters.amd_smi import AMD_SMI_STATIC
from chopper_interop.io import inputs

AT_NS = 1_700_000_000_123_456_789
T = 1_786_553_852
VERSIONS = ["v6.1.2", "v6.2.4", "v6.3.0", "v6.3.3", "v6.4dev", "v7.1.0"]


def read(folder: Path, text: str | bytes, **options: object) -> ci.Trace:
    path = folder / "static.out"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert AMD_SMI_STATIC.sniff(inputs.head(path)), "not recognised"
    trace = AMD_SMI_STATIC.reader([path], **options)
    assert_all_rows_counted(trace)
    assert trace.nodes.num_rows == 0
    return trace


@pytest.mark.parametrize("version", VERSIONS)
def test_the_names_of_a_list(shared: Path, version: str) -> None:
    folder = shared / "telemetry/amd_smi_by_version" / version
    with (folder / "list.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"]]
    assert len(rows) == 2
    for name in ("list.csv", "list.json"):
        trace = AMD_SMI_STATIC.reader([folder / name])
        assert_all_rows_counted(trace)
        actual = [(d.index, d.pci, d.uuid, d.agent, d.ordinal) for d in trace.meta.devices]
        assert actual == [
            (int(r["gpu"]), r["gpu_bdf"], r["gpu_uuid"], int(r.get("node_id", -1)), -1)
            for r in rows
        ]
        assert counts(trace) == {"row-as-description": 2}


def test_the_facts_of_an_mi210(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_real_mi210/amd-smi-static.json"
    (document,) = json.loads(path.read_text())["gpu_data"]
    trace = AMD_SMI_STATIC.reader([path])
    (device,) = trace.meta.devices
    assert device.name == document["asic"]["market_name"]
    facts = trace.meta.facts
    assert facts["max_power_w"] == str(document["limit"]["max_power"]["value"])
    assert facts["power_cap_w"] == str(document["limit"]["socket_power"]["value"])
    assert facts["cu_count"] == str(document["asic"]["num_compute_units"])
    assert facts["gfx"] == document["asic"]["target_graphics_version"]
    assert facts["driver_version"] == document["driver"]["version"]
    assert facts["vram_bytes"] == str(document["vram"]["size"]["value"] << 20)
    for clock, fact in (("sys", "gfx"), ("mem", "memory"), ("soc", "soc"), ("df", "fabric")):
        levels = document["clock"][clock]["frequency_levels"]
        mhz = [level.split()[0] for level in levels.values()]
        assert facts[f"{fact}_clock_levels_mhz"] == " ".join(mhz)
    assert facts["max_engine_clk_mhz"] == facts["gfx_clock_levels_mhz"].split()[-1]


@pytest.mark.parametrize(
    "name", ["xgmi-8xMI300X.json", "xgmi-8xMI300X.2024-07.json", "result2.txt"]
)
def test_the_traffic_between_eight_mi300x(shared: Path, name: str) -> None:
    """Samples where the time is given; else it is said what was left out."""
    path = shared / "telemetry/amd_smi_real_8xmi300x" / name
    raw = path.read_bytes()
    document = json.loads(raw.decode("utf-16" if raw[:2] == b"\xff\xfe" else "utf-8"))
    amounts = {
        (gpu["gpu"], f"XGMI {word} GPU {link['gpu']}"): [link[way]["value"] * 1024.0]
        for gpu in document
        for link in gpu["link_metrics"]["links"]
        for way, word in (("read", "read"), ("write", "written"))
        if isinstance(link[way], dict) and link[way]["value"] != "N/A"
    }
    assert len(amounts) == 112
    trace = AMD_SMI_STATIC.reader([path], at_ns=AT_NS)
    assert_all_rows_counted(trace)
    assert lanes(trace) == amounts
    assert set(units(trace).values()) == {"B"}
    untimed = AMD_SMI_STATIC.reader([path])
    assert untimed.samples.num_rows == 0
    assert counts(untimed)["count-without-time"] == 112
    assert [d.pci for d in untimed.meta.devices] == [gpu["bdf"] for gpu in document]


@pytest.mark.parametrize("version", ["v6.1.2", "v6.3.3", "v7.1.0"])
def test_the_memory_of_processes(shared: Path, version: str) -> None:
    folder = shared / "telemetry/amd_smi_by_version" / version
    actual = [
        points_of(AMD_SMI_STATIC.reader([folder / f"process.{suffix}"], at_ns=AT_NS))
        for suffix in ("csv", "json")
    ]
    assert actual[0] == actual[1]
    assert actual[0][1, "process 4242 VRAM"] == [(AT_NS, 2_000_000_000.0)]


def test_a_watch_of_processes_has_its_own_times(tmp_path: Path) -> None:
    head = "timestamp,gpu,name,pid,gtt_mem,cpu_mem,vram_mem,mem_usage\n"
    text = head + f"{T},0,python3,42,1,2,300,400\n{T},0,other,43,1,2,70,80\n"
    text += head + f"{T + 1},0,python3,42,1,2,301,400\n{T + 1},0,other,43,1,2,71,80\n"
    trace = read(tmp_path, text)
    assert lanes(trace)[0, "process 42 VRAM"] == [300, 301]
    assert lanes(trace)[0, "process 43 VRAM"] == [70, 71]
    assert counts(trace)["row-joined"] == 2
    assert counts(trace)["row-as-samples"] == 2


STATIC = """GPU: 0
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
        NUM_COMPUTE_UNITS: 304
        TARGET_GRAPHICS_VERSION: gfx942
    BUS:
        BDF: 0000:C1:00.0
    LIMIT:
        MAX_POWER: 750 W
        SOCKET_POWER: 750 W
    DRIVER:
        NAME: amdgpu
        VERSION: 6.12.12
    PARTITION:
        COMPUTE_PARTITION: SPX
        MEMORY_PARTITION: NPS1
    VRAM:
        TYPE: HBM
        SIZE: 196592 MB
    CLOCK:
        SYS:
            CURRENT LEVEL: 1
            FREQUENCY_LEVELS:
                LEVEL 0: 132 MHz
                LEVEL 1: 2100 MHz

"""


def test_the_form_for_people(tmp_path: Path) -> None:
    other = STATIC.replace("GPU: 0", "GPU: 1").replace("SOCKET_POWER: 750", "SOCKET_POWER: 600")
    trace = read(tmp_path, STATIC + other)
    assert [(d.index, d.name, d.pci) for d in trace.meta.devices] == [
        (0, "AMD Instinct MI300X", "0000:c1:00.0"),
        (1, "AMD Instinct MI300X", "0000:c1:00.0"),
    ]
    assert trace.meta.facts == {
        "cu_count": "304",
        "gfx": "gfx942",
        "max_power_w": "750",
        "power_cap_w[0]": "750",
        "power_cap_w[1]": "600",
        "driver_version": "6.12.12",
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "vram_type": "HBM",
        "vram_bytes": str(196592 << 20),
        "gfx_clock_levels_mhz": "132 2100",
        "max_engine_clk_mhz": "2100",
    }


def test_static_as_csv(tmp_path: Path) -> None:
    names = "gpu,market_name,num_compute_units,target_graphics_version,bdf,name,version,max_power,"
    names += "socket_power,model_number,type,size,sys_current level,sys_frequency_levels"
    cells = "0,AMD Instinct MI300X,304,gfx942,0000:c1:00.0,amdgpu,6.12.12,750,700,N/A,HBM,196592,1,"
    cells += "\"{'Level 0': '132 MHz', 'Level 1': '2100 MHz'}\""
    facts = read(tmp_path, f"{names}\r\n{cells}\r\n\r\n").meta.facts
    assert facts["power_cap_w"] == "700"
    assert facts["driver_version"] == "6.12.12"
    assert facts["vram_bytes"] == str(196592 << 20)
    assert facts["gfx_clock_levels_mhz"] == "132 2100"


def test_the_newest_limits_stand_one_level_deeper(tmp_path: Path) -> None:
    ppt0 = {"max_power_limit": {"value": 1400, "unit": "W"}, "socket_power_limit": "1000 W"}
    row = {"gpu": 0, "limit": {"ppt0": ppt0, "ppt1": {"socket_power_limit": "1 W"}}}
    trace = read(tmp_path, json.dumps({"gpu_data": [row]}))
    assert trace.meta.facts == {"max_power_w": "1400", "power_cap_w": "1000"}


BOX = """\
+------------------------------------------------------------------------------+
| AMD-SMI 26.0.2+39589fda      amdgpu version: 6.12.12  ROCm version: 7.0.2    |
| Platform: Linux Baremetal                                                    |
|-------------------------------------+----------------------------------------|
| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |
| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |
|=====================================+========================================|
| 0000:05:00.0    AMD Instinct MI300X | 0 %      40 °C   0           142/750 W |
|   0       1       7        DPX/NPS1 | 0 %        N/A           283/196592 MB |
|-------------------------------------+----------------------------------------|
| 0000:26:00.0    AMD Instinct MI300X | N/A        N/A   0                 N/A |
|   1       0     N/A        DPX/NPS1 | N/A        N/A            492/98296 MB |
+-------------------------------------+----------------------------------------+
"""


def test_the_box_that_states_the_ordinal(tmp_path: Path) -> None:
    trace = read(tmp_path, BOX)
    assert [(d.index, d.ordinal, d.pci) for d in trace.meta.devices] == [
        (0, 1, "0000:05:00.0"),
        (1, 0, "0000:26:00.0"),
    ]
    assert trace.meta.facts["compute_partition"] == "DPX"
    assert trace.meta.facts["rocm_version"] == "7.0.2"


def test_partitions_as_text(tmp_path: Path) -> None:
    text = "CURRENT_PARTITION:\n"
    text += "GPU_ID       MEMORY  ACCELERATOR_TYPE  ACCELERATOR_PROFILE_INDEX  PARTITION_ID  \n"
    text += "0            NPS1    CPX               3                          0\n"
    text += "\nACCELERATOR_PARTITION_PROFILES:\nGPU_ID       PROFILE_INDEX  ACCELERATOR_TYPE\n"
    text += "0            0              SPX\n"
    trace = read(tmp_path, text)
    assert trace.meta.facts == {"compute_partition": "CPX", "memory_partition": "NPS1"}


def test_a_matrix_of_links_gives_the_addresses(tmp_path: Path) -> None:
    text = "ACCESS TABLE:\n             0000:0c:00.0 0000:22:00.0 \n"
    text += "0000:0c:00.0 ENABLED      ENABLED      \n0000:22:00.0 ENABLED      ENABLED      \n"
    trace = read(tmp_path, text)
    assert [(d.index, d.pci) for d in trace.meta.devices] == [
        (0, "0000:0c:00.0"),
        (1, "0000:22:00.0"),
    ]


def test_a_document_that_breaks_off_keeps_its_whole_rows(tmp_path: Path) -> None:
    rows = [{"gpu": n, "bdf": f"0000:0{n}:00.0", "uuid": str(n)} for n in range(8)]
    text = json.dumps(rows, indent=4)
    trace = read(tmp_path, text[: int(len(text) * 0.6)])
    assert [d.index for d in trace.meta.devices] == [0, 1, 2, 3]
    assert counts(trace)["row-cut-short"] == 1


def test_rows_that_say_nothing_of_which_gpu_are_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, "gpu,gpu_bdf,gpu_uuid\r\n0,0000:0c:00.0,a\r\n99999999999,x,y\r\n")
    assert counts(trace) == {"row-as-description": 1, "row-without-gpu": 1}


def test_every_real_description_is_read_to_the_last_row(shared: Path) -> None:
    read_ones = 0
    for path in sorted(shared.glob("telemetry/amd_smi_*/**/*")):
        if path.is_file() and AMD_SMI_STATIC.sniff(inputs.head(path)):
            trace = AMD_SMI_STATIC.reader([path])
            assert_all_rows_counted(trace)
            assert trace.meta.devices, path
            lost = {i.code for i in trace.meta.issues if i.severity.value == "loss"}
            assert lost <= {"count-without-time"}, path
            read_ones += 1
    assert read_ones == 33
