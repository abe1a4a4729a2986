"""rocprofv2: dispatches of XCCs, calls, copies and messages of one process are one source."""

from pathlib import Path

import pytest
from issue_counts import counts
from rocprof import assert_whole, counters, edges, nodes
from seeds import rocprof_old as seeds

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.rocm import sniff
from chopper_interop.converters.rocm.file_names import group_by_v2_name

FILES = {
    "results_77.csv": seeds.V2,
    "hip_api_trace_77.csv": seeds.V2_HIP,
    "hcc_ops_trace_77.csv": seeds.V2_OPS,
    "roctx_trace_77.csv": seeds.V2_ROCTX,
}


def read(folder: Path, *names: str) -> ci.Trace:
    for name in names:
        (folder / name).write_text(FILES[name])
    return ci.read(folder)


def test_a_dispatch_is_one_node_and_its_counters_are_sums_over_xccs(tmp_path: Path) -> None:
    trace = read(tmp_path, "results_77.csv")
    assert [n["name"] for n in nodes(trace)] == ["k(int, int) (.kd)"] * 3
    actual = counters(trace)
    for d in (1, 2, 3):
        assert actual[seeds.BOOT + d * 100, "SQ_WAVES"] == 20 * d + 1
        assert actual[seeds.BOOT + d * 100, "GRBM_COUNT"] == 3.0
    assert len(actual) == 6
    assert_whole(trace, 6)


def test_rows_of_xccs_without_counters_are_one_dispatch(tmp_path: Path) -> None:
    text = "\n".join(line.rsplit(",", 2)[0] if line else "" for line in seeds.V2.split("\n"))
    (tmp_path / "results_1.csv").write_text(text)
    trace = ci.read(tmp_path)
    assert trace.nodes.num_rows == 3
    assert counts(trace)["xcc-summed"] == 3
    assert_whole(trace, 6)


def test_all_files_of_a_process_are_one_source(tmp_path: Path) -> None:
    trace = read(tmp_path, *FILES)
    assert_whole(trace, 6 + 3 + 2 + 2)
    assert edges(trace) == [
        ("hipMemcpy", "CopyHostToDevice"),
        ("hipLaunchKernel", "k(int, int) (.kd)"),
    ]
    actual = {n["name"]: n for n in nodes(trace)}
    assert actual["hipLaunchKernel"]["args"]["kernel"] == "k(int, int)"
    assert actual['step, "one"']["kind"] == "INSTANT"
    assert [r.pid for r in trace.meta.ranks] == [77]


def test_kernels_of_a_trace_without_counters(tmp_path: Path) -> None:
    trace = read(tmp_path, "hip_api_trace_77.csv", "hcc_ops_trace_77.csv")
    actual = {n["name"]: n for n in nodes(trace)}
    assert (actual["k(int, int)"]["kind"], actual["k(int, int)"]["dur"]) == ("KERNEL", 50)
    assert actual["CopyHostToDevice"]["lane"] == ("COPY", 0)
    assert counts(trace)["device-unknown"] == 2
    assert [r.pid for r in trace.meta.ranks] == [77]
    assert_whole(trace, 5)


def test_processes_are_sources_of_their_own(tmp_path: Path) -> None:
    for pid in (77, 79):
        (tmp_path / f"hip_api_trace_{pid}.csv").write_text(seeds.V2_HIP)
        (tmp_path / f"results_{pid}.csv").write_text(seeds.V2)
    groups = group_by_v2_name(sorted(tmp_path.glob("*.csv")))
    assert [len(g) for g in groups] == [2, 2]


@pytest.mark.parametrize("name", FILES)
def test_no_other_tool_takes_its_tables(name: str) -> None:
    head = FILES[name].encode()
    assert [c.name for c in registry.sniffed(head)] == ["rocprofv2"]
    assert not sniff.is_v3_csv(head)


def test_tables_of_the_plugin_file_v1_are_recognised_as_v1() -> None:
    head = (
        b"Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,"
        b"accum_vgpr,sgpr,wave_size,SQ_WAVES,DispatchNs,BeginNs,EndNs,CompleteNs\n\n"
    )
    assert sniff.is_v1(head)
    assert len(registry.sniffed(head)) == 1
