"""Traces whose files do not state what their times count from, next to telemetry in real time."""

from pathlib import Path

import pytest
from kineto_files import call, kernel, span, write

import chopper_interop as ci
from chopper_interop.clocks.unstated_bases import candidate_bases
from chopper_interop.schemas.meta import BOOTTIME, Offset

MONTHS = 7_889_238
"""Seconds of the three months that PyTorch counts from, as `git log` of libkineto has them."""
START = 218 * MONTHS
"""1719853884, the base of PyTorch's files of July 2024."""
SINCE = 1_106_964
"""Seconds since the base, of a real trace whose merging tool left the base out."""


def job(folder: Path, **header: int) -> Path:
    """A rank whose kernel takes 4 s from `SINCE` on."""
    at = SINCE * 10**6
    events = [
        span("cpu_op", "aten::mm", at, 200),
        call("hipLaunchKernel", at + 100, 10, 7),
        kernel("gemm", at + 500, 4_000_000, 7),
    ]
    write(folder / "rank-0.json", events, **header)
    return folder


def sampled(path: Path, start: int, watts: int = 300) -> None:
    """Ten seconds of amd-smi from a second since 1970 on."""
    rows = [f"{start + second},0,{watts + second}" for second in range(10)]
    path.write_text("\n".join(["timestamp,gpu,socket_power", *rows, ""]))


def recorded(path: Path, start: int, boot: int) -> None:
    """Ten seconds of this project's recorder on a node that was booted at a second since 1970."""
    rows = ["realtime_ns,monotonic_ns,boottime_ns,gpu,average_socket_power"]
    for second in range(10):
        at = start + second
        rows.append(f"{at * 10**9},{(at - boot) * 10**9},{(at - boot) * 10**9},0,{300 + second}")
    path.write_text("\n".join([*rows, ""]))


def examples(trace: ci.Trace) -> dict[str, str]:
    return {issue.code: issue.example for issue in trace.meta.issues}


@pytest.mark.parametrize("header", [{}, {"baseTimeNanoseconds": 0}])
def test_the_only_start_of_three_months_with_which_both_overlap(
    tmp_path: Path, header: dict[str, int]
) -> None:
    """The values of kernels are those with the base stated."""
    sampled(tmp_path / "smi.csv", START + SINCE - 2)
    stated = ci.read(job(tmp_path, baseTimeNanoseconds=START * 10**9))
    trace = ci.read(job(tmp_path, **header))
    assert "start of three months" in examples(trace)["time-base-assumed"]
    assert not {"telemetry-apart", "clock-unrelated"} & examples(trace).keys()
    assert "time-base-assumed" not in examples(stated)
    assert trace.nodes["power_w"].equals(stated.nodes["power_w"])
    assert trace.nodes["power_w"].null_count < trace.nodes.num_rows
    (fit,) = (fit for fit in trace.meta.clocks if fit.of.endswith("smi.csv"))
    assert fit.offset_ns == -START * 10**9


def test_the_boot_of_the_node_that_a_recorder_states(tmp_path: Path) -> None:
    boot = START + 4_321_000
    recorded(tmp_path / "recorder.csv", boot + SINCE - 2, boot)
    trace = ci.read(job(tmp_path))
    assert examples(trace)["time-base-assumed"] == "the boot of the node"
    assert trace.nodes["power_w"].null_count < trace.nodes.num_rows


def test_without_such_a_base_one_line_says_what_is_missing_and_the_option(
    tmp_path: Path, run
) -> None:
    boot = START + 4_321_000
    folder, target = tmp_path / "run", tmp_path / "a.parquet"
    folder.mkdir()
    sampled(folder / "smi.csv", boot + SINCE - 2)
    status, _, output = run("convert", job(folder), "-o", target)
    text = " ".join(output.split())
    assert status == 0
    assert target.exists()
    assert "--clock-offset" in text
    reason = examples(ci.read(folder))["clock-unrelated"]
    assert "begins 1,106,964 s after a boot, or another base (baseTimeNanoseconds)" in reason
    stated = ci.read(folder, clock_offset=[f"-{boot}"])
    assert stated.nodes["power_w"].null_count < stated.nodes.num_rows
    assert not {"telemetry-apart", "clock-unrelated"} & examples(stated).keys()


def test_several_bases_are_not_chosen_between() -> None:
    trace = (SINCE * 10**9, (SINCE + 4) * 10**9)
    year = (START * 10**9, (START + 4 * MONTHS) * 10**9)
    assert len(candidate_bases(trace, year, ())) == 4
    hour = ((START + SINCE) * 10**9, (START + SINCE + 3600) * 10**9)
    assert len(candidate_bases(trace, hour, ())) == 1
    both = candidate_bases(trace, hour, [Offset(BOOTTIME, (START + 60) * 10**9)])
    assert len(both) == 2
