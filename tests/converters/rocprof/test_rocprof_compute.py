"""rocprof-compute: workloads, counted by the csv library."""

from pathlib import Path

import pytest
from issue_counts import counts
from read_once import read_once
from rocprof import counters_by_node, csv_rows
from seeds import rocprof_old as seeds
from shared_data import SHARED, each, real
from slow import slow_from

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters import rocprof
from chopper_interop.io import inputs

WORKLOADS = ("omp_MI300A", "vcopy_MI200", "vcopy_MI300X_A1")


def workload(name: str) -> Path:
    return real(f"rocprof/rocprof_compute_pmc/{name}")


@pytest.mark.parametrize("name", slow_from(WORKLOADS, 1))
def test_each_dispatch_is_one_node(name: str) -> None:
    folder = workload(name)
    trace = ci.read(folder)
    timed = csv_rows(folder / "timestamps.csv")
    assert trace.nodes.num_rows == len(timed)
    names = trace.names()
    assert [names[n] for n in trace.array("name")] == [r["Kernel_Name"] for r in timed]
    starts = (trace.array("ts") + trace.meta.origin_ns).tolist()
    assert starts == [int(float(r["Start_Timestamp"])) for r in timed]


@pytest.mark.parametrize("name", slow_from(WORKLOADS, 1))
def test_counters_of_every_pass(name: str) -> None:
    folder = workload(name)
    actual = counters_by_node(ci.read(folder))
    for i, row in enumerate(csv_rows(folder / "pmc_perf.csv")):
        for title in ("SQ_INSTS_VALU", "TCP_TCC_READ_REQ_sum", "SQ_BUSY_CU_CYCLES"):
            if title in row:
                assert actual[i, title] == float(row[title])
        bases = {t.split("[")[0] for t in row if "[" in t}
        for base in bases:
            channels = [float(v) for t, v in row.items() if t.startswith(f"{base}[")]
            assert actual[i, base] == sum(channels)
        assert bases
    for level in ("SQ_IFETCH_LEVEL", "SQ_INST_LEVEL_LDS", "SQ_LEVEL_WAVES"):
        for i, row in enumerate(csv_rows(folder / f"{level}.csv")):
            if "SQ_ACCUM_PREV_HIRES_10" not in csv_rows(folder / "pmc_perf.csv")[0]:
                assert actual[i, f"{level}_ACCUM"] == float(row["SQ_ACCUM_PREV_HIRES"])


def test_accumulators_are_named_by_the_counter_that_they_accumulate() -> None:
    trace = read_once(workload("omp_MI300A/pmc_perf.csv"))
    names = {name for _, name in counters_by_node(trace)}
    assert {"SQ_IFETCH_LEVEL_ACCUM", "SQ_LEVEL_WAVES_ACCUM", "SQ_INST_LEVEL_VMEM_ACCUM"} <= names
    assert not any("SQ_ACCUM_PREV" in name or name.endswith("_13") for name in names)


def test_rounded_times_are_an_error() -> None:
    trace = read_once(workload("vcopy_MI300X_A1"))
    wrong = {
        i.code: (i.severity.value, i.count) for i in trace.meta.issues if "timestamps" in i.example
    }
    assert wrong == {"time-rounded": ("loss", 6), "dispatch-without-duration": ("error", 3)}


def test_a_machine_is_described() -> None:
    trace = read_once(workload("omp_MI300A"), keep_environment=True)
    assert trace.meta.facts["num_xcc"] == "6"
    assert trace.meta.facts["gfx"] == "gfx942"
    assert trace.meta.facts["cu_count"] == "228"
    (device,) = trace.meta.devices
    assert (device.device, device.agent, device.ordinal) == (4, 4, -1)
    assert (device.name, device.host) == ("MI300A_A1", "1dfeb1ac07e2")


@pytest.mark.parametrize(
    "path",
    each(sorted(p for p in SHARED.glob("rocprof/rocprof_compute_pmc/*/*") if p.is_file())),
    ids=str,
)
def test_every_real_file_is_read_or_refused_for_a_reason(path: Path) -> None:
    (actual,) = registry.sniffed(inputs.head(path))
    if actual.read is None:
        assert actual is rocprof.ROCPROF_COMPUTE_OTHERS
        assert path.name in ("pmc_dispatch_info.csv", "pmc_kernel_top.csv", "roofline.csv")
        return
    assert actual.name in ("rocprof-compute", "rocprofv2")
    if path.name != "sysinfo.csv":
        assert ci.read(path).nodes.num_rows == len(csv_rows(path))


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_channels_passes_and_copies_of_columns(tmp_path: Path) -> None:
    trace = ci.read(write(tmp_path / "w", pmc_perf=seeds.COMPUTE))
    assert counters_by_node(trace) == {
        (i, name): value
        for i in range(4)
        for name, value in {
            "SQ_WAVES": 16384.0,
            "TCC_HIT": 10.0 + i,
            "SQ_IFETCH_LEVEL": 13592.0,
            "SQ_IFETCH_LEVEL_ACCUM": 1540604.0,
            "SQ_LEVEL_WAVES": 7.0,
            "SQ_LEVEL_WAVES_ACCUM": 44799316.0,
        }.items()
    }
    assert counts(trace)["counter-of-several-passes"] == 1
    assert counts(trace)["instances-summed"] == 2
    assert "kernel_object" in trace.args(0)


def test_passes_below_each_other_are_one_run(tmp_path: Path) -> None:
    machine = "ip_blocks,gpu_arch,cu_per_gpu,num_xcd,gpu_model\nSQ,gfx942,304,8,MI300X\n"
    trace = ci.read(write(tmp_path / "w", pmc_perf=seeds.PASSES, sysinfo=machine))
    expected = {"SQ_WAVES": 16384.0, "TCC_HIT": 11.0, "GRBM_GUI_ACTIVE": 8000.0}
    assert counters_by_node(trace) == {
        (i, name): value + (i + 1) * (2 if name == "TCC_HIT" else 1)
        for i in range(2)
        for name, value in expected.items()
    }
    # the times are those of the pass that counted cycles
    starts = (trace.array("ts") + trace.meta.origin_ns).tolist()
    assert starts == [seeds.BOOT + 7 + 1000, seeds.BOOT + 7 + 2000]
    assert trace.array("dur").tolist() == [307, 307]
    assert trace.meta.facts["num_xcc"] == "8"
    assert [d.device for d in trace.meta.devices] == [2]


def test_counters_of_another_architecture_are_not_joined(tmp_path: Path) -> None:
    """A workload's folder has one below it for each GPU on which it was counted."""
    for arch, counter in (("gfx942", "SQ_BUSY_CYCLES"), ("gfx950", "SQ_WAVE_CYCLES")):
        system = f"ip_blocks,gpu_arch,cu_per_gpu\nSQ,{arch},304\n"
        table = seeds.COMPUTE.replace("SQ_LEVEL_WAVES", counter)
        write(tmp_path / arch, pmc_perf=table, sysinfo=system)
    write(tmp_path / "gfx942", timestamps=seeds.TIMES)
    trace = ci.read(tmp_path)
    assert counts(trace)["counter-pass-without-device"] == 4
    names = {name for _, name in counters_by_node(trace)}
    assert ("SQ_BUSY_CYCLES" in names, "SQ_WAVE_CYCLES" in names) == (True, False)


def test_a_channel_that_is_missing_keeps_the_others_apart_in_passes(tmp_path: Path) -> None:
    text = seeds.PASSES.replace("TCC_HIT[1]", "TCC_HIT[7]")
    names = {n for _, n in counters_by_node(ci.read(write(tmp_path / "w", pmc_perf=text)))}
    assert names == {"SQ_WAVES", "GRBM_GUI_ACTIVE", "TCC_HIT[0]", "TCC_HIT[7]"}


def test_channels_that_are_not_all_there_keep_their_names(tmp_path: Path) -> None:
    text = seeds.COMPUTE.replace("TCC_HIT[1]", "TCC_HIT[7]")
    names = {n for _, n in counters_by_node(ci.read(write(tmp_path / "w", pmc_perf=text)))}
    assert {"TCC_HIT[0]", "TCC_HIT[7]"} <= names


def test_averaged_times_are_rounded_to_the_nanosecond(tmp_path: Path) -> None:
    exact = 9_007_199_254_740_993  # no float64 is this
    text = seeds.COMPUTE.replace(f"{seeds.BOOT},{seeds.BOOT + 300}", f"{exact}.2,{exact + 300}.4")
    trace = ci.read(write(tmp_path / "w", pmc_perf=text))
    assert exact in (trace.array("ts") + trace.meta.origin_ns).tolist()
    assert counts(trace)["time-rounded"] == 2


def test_omniperf_wrote_the_names_of_rocprof(tmp_path: Path) -> None:
    text = seeds.COMPUTE
    for new, old in (
        ("Dispatch_ID", "Index"),
        ("Kernel_Name", "KernelName"),
        ("GPU_ID", "gpu-id"),
        ("Grid_Size", "grd"),
        ("Workgroup_Size", "wgr"),
        ("LDS_Per_Workgroup", "lds"),
        ("Scratch_Per_Workitem", "scr"),
        ("Arch_VGPR", "arch_vgpr"),
        ("Start_Timestamp", "BeginNs"),
        ("End_Timestamp", "EndNs"),
    ):
        text = text.replace(new, old)
    folder = write(tmp_path / "w", pmc_perf=text, timestamps=seeds.V1.replace('",8,', '",2,'))
    assert [c.name for c in registry.sniffed(text.encode())] == ["rocprof-compute"]
    alone = ci.read(folder / "pmc_perf.csv")
    assert alone.nodes.num_rows == 4
    assert alone.array("dur").tolist() == [300] * 4
    formats = {s.format for s in ci.read(folder, run="all").meta.sources}
    assert formats == {"rocprof-compute", "rocprof-v1"}


def test_a_header_longer_than_the_limit(tmp_path: Path) -> None:
    head, *body = seeds.COMPUTE.splitlines()
    more = [f"TCC_A_VERY_LONG_NAME_OF_A_COUNTER[{i}]" for i in range(3000)]
    lines = [",".join([head, *more]), *(",".join([line, *["1"] * 3000]) for line in body)]
    assert len(lines[0]) > inputs.HEAD_BYTES
    trace = ci.read(write(tmp_path / "w", pmc_perf="\n".join(lines) + "\n"))
    assert counters_by_node(trace)[2, "TCC_A_VERY_LONG_NAME_OF_A_COUNTER"] == 3000


def test_cycles_are_those_of_the_pass_with_the_most_counters(tmp_path: Path) -> None:
    """SQ_IFETCH_LEVEL comes before pmc_perf by its name: on a real MI100 its cycles were 1.6 times those of pmc_perf."""
    perf = seeds.COMPUTE.replace(",SQ_WAVES,", ",GRBM_GUI_ACTIVE,", 1).replace(
        ",16384,0", ",9000,0"
    )
    level = seeds.TIMES.replace(
        "sig,obj,", "sig,obj,GRBM_GUI_ACTIVE,SQ_IFETCH_LEVEL,SQ_ACCUM_PREV_HIRES,"
    )
    level = level.replace("0x0,0x7f71,", "0x0,0x7f71,14000,5,99,")
    files = {"SQ_IFETCH_LEVEL": level, "pmc_perf": perf, "timestamps": seeds.TIMES}
    counted = counters_by_node(ci.read(write(tmp_path / "w", **files)))
    assert counted[0, "GRBM_GUI_ACTIVE"] == 9000
    assert counted[0, "SQ_IFETCH_LEVEL"] == 13592


def test_other_passes_join_the_run_without_counters(tmp_path: Path) -> None:
    level = seeds.TIMES.replace("sig,obj,", "sig,obj,SQ_WAVES,SQ_LEVEL_WAVES,SQ_ACCUM_PREV_HIRES,")
    level = level.replace("0x0,0x7f71,", "0x0,0x7f71,64,5,99,")
    folder = write(
        tmp_path / "w", pmc_perf=seeds.COMPUTE, timestamps=seeds.TIMES, SQ_LEVEL_WAVES=level
    )
    trace = ci.read(folder)
    assert trace.nodes.num_rows == 4
    assert counts(trace)["counter-of-several-runs"] > 0
    assert len(counters_by_node(trace)) == trace.counters.num_rows
