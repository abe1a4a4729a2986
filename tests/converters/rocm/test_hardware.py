"""Dies, units, SIMDs and clocks of GPUs, as each format states them."""

import json
from pathlib import Path

import pytest
import rocpd as databases
from read_once import read_once
from seeds.rocprof_old import V1_JSON
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.converters.rocm.agents import hardware_fields
from chopper_interop.schemas.meta import Device

MI300X = ("gfx942", 8, 304, 4, 2100)
AGENTS = (
    "Node_Id,Logical_Node_Id,Agent_Type,Simd_Count,Num_Xcc,Cu_Count,Simd_Per_Cu,"
    "Max_Engine_Clk_Ccompute,Max_Engine_Clk_Fcompute,Name,Product_Name\n"
    "0,0,CPU,0,1,192,0,2400,0,EPYC,EPYC\n"
    "1,1,GPU,1216,8,304,4,2400,2100,gfx942,AMD Instinct MI300X\n"
)
TRACE = (
    "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    'KERNEL_DISPATCH,1,1,1,"k",1,100,200\n'
)


def identity(device: Device) -> tuple[str, int, int, int, int]:
    return device.arch, device.xccs, device.cus, device.simds_per_cu, device.max_mhz


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "1_kernel_trace.csv").write_text(TRACE)
    (tmp_path / "1_agent_info.csv").write_text(AGENTS)
    (device,) = ci.read(tmp_path).meta.devices
    assert identity(device) == MI300X


@pytest.mark.parametrize("value", ["", "x", "-8", "0", "99999999999999999999", "8.5", "NaN"])
def test_what_is_no_number_is_left_out(tmp_path: Path, value: str) -> None:
    (tmp_path / "1_kernel_trace.csv").write_text(TRACE)
    (tmp_path / "1_agent_info.csv").write_text(AGENTS.replace(",8,304,", f",{value},304,"))
    (device,) = ci.read(tmp_path).meta.devices
    assert identity(device) == ("gfx942", -1, 304, 4, 2100)


def test_rocpd(tmp_path: Path) -> None:
    path = databases.small(tmp_path / "1_results.db")
    actual = {identity(d) for d in ci.read(path).meta.devices}
    assert actual == {MI300X}


def test_rocprof_v1(tmp_path: Path) -> None:
    gpu = {
        "Agent2.Name": "gfx906", "Agent2.Uuid": "GPU-d1e8396172e6269a", "Agent2.Node": "1",
        "Agent2.MarketingName": "Vega20", "Agent2.DeviceType": "GPU", "Agent2.BDFID": "1792",
        "Agent2.MaxClockFreq.(MHz)": "1800", "Agent2.ComputeUnit": "64", "Agent2.SIMDsperCU": "4",
        "Agent1.Name": "EPYC", "Agent1.Node": "0", "Agent1.DeviceType": "CPU",
    }  # fmt: skip
    more = "".join(f',\n    "{k}":"{v}"' for k, v in gpu.items())
    path = tmp_path / "results.json"
    path.write_text(V1_JSON.replace('"CMD": "rocminfo"', '"CMD": "rocminfo"' + more))
    (device,) = ci.read(path).meta.devices
    assert identity(device) == ("gfx906", -1, 64, 4, 1800)
    assert (device.pci, device.uuid) == ("0000:07:00.0", "GPU-d1e8396172e6269a")


@pytest.mark.parametrize(
    ("properties", "arch", "cus"),
    [
        ({"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304}, "", 304),
        ({"name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}, "sm_90", 132),
        ({"name": "NVIDIA H100", "computeMajor": "x", "computeMinor": None, "numSms": -1}, "", -1),
        ({"name": 7, "numSms": 1e300}, "", -1),
        ({}, "", -1),
    ],
)  # fmt: skip
def test_kineto(tmp_path: Path, properties: dict[str, object], arch: str, cus: int) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2,
             "args": {"device": 0, "stream": 7, "correlation": 3}}  # fmt: skip
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, **properties}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**header, "traceEvents": [event]}))
    (device,) = ci.read(path).meta.devices
    assert (device.arch, device.cus) == (arch, cus)


def test_simds_of_a_unit_follow_from_all() -> None:
    assert hardware_fields({"cu_count": "304", "simd_count": "1216"}) == {
        "cus": 304,
        "simds_per_cu": 4,
    }
    assert hardware_fields({"cu_count": "304", "simd_count": "1217"}) == {"cus": 304}
    assert hardware_fields({"gfx": "gfx90a:sramecc+:xnack-"}) == {"arch": "gfx90a"}
    assert hardware_fields({"gfx": "AMD EPYC"}) == {}


@pytest.mark.parametrize(
    ("path", "expected"),
    slow_from(
        [
            ("v1_old_gfx906", ("gfx906", -1, 64, 4, 1800)),
            ("rocprof_compute_pmc/vcopy_MI200", ("gfx90a", 1, 104, 4, 1700)),
            ("v3_json_mi350x", ("gfx950", 8, 256, 4, 2200)),
        ],
        2,
    ),
)
def test_real_files(path: str, expected: tuple[str, int, int, int, int]) -> None:
    assert identity(read_once(real(f"rocprof/{path}")).meta.devices[0]) == expected
