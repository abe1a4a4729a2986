"""Times come back on the clock that they were on, through every format that we write and read."""

from pathlib import Path

import numpy as np
import pytest
from seeds import perfetto as seeds

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import WriteError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, COMPUTED, LOCALTIME, ORDER, REALTIME, Meta

CLOCKS = (REALTIME, BOOTTIME, LOCALTIME, COMPUTED, "monotonic")
EPOCH = 1_767_189_312_000_000_000


def kernels(clock: str) -> ci.Trace:
    """Two kernels on a clock."""
    builder = TraceBuilder(Meta(clock=clock))
    lane = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    first = EPOCH if clock in (REALTIME, LOCALTIME) else 5_000
    ts = np.array([first, first + 2_000], np.int64)
    builder.nodes(kind=int(Kind.KERNEL), name=["a", "b"], rank=0, lane=lane, ts=ts, dur=[1000, 500])
    return builder.finish()


def times(trace: ci.Trace) -> list[int]:
    kernel = trace.array("kind") == Kind.KERNEL  # ETs gain nodes for gaps
    return (trace.array("ts")[kernel] + trace.meta.origin_ns).tolist()


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ["a.pftrace", "a.json", "job.et"])
def test_clock_comes_back(tmp_path: Path, clock: str, name: str) -> None:
    trace = kernels(clock)
    ci.write(trace, tmp_path / name)
    path = tmp_path / ("job.0.et" if name.endswith(".et") else name)
    again = ci.read(path)
    assert again.meta.clock == clock
    assert times(again) == times(trace)
    assert not {"clock", "chopper_clock"} & set(again.meta.facts)


def test_an_order_stays_an_order(tmp_path: Path) -> None:
    ci.write(kernels(ORDER), tmp_path / "a.pftrace")
    again = ci.read(tmp_path / "a.pftrace")
    assert again.meta.clock == ORDER
    assert [i.code for i in again.meta.issues if i.severity.value == "error"] == ["no-times"]
    for name in ("b.json", "b.et"):
        with pytest.raises(WriteError, match="no times"):
            ci.write(again, tmp_path / name)


def test_an_order_put_together_with_times_is_none(tmp_path: Path) -> None:
    for clock in (ORDER, BOOTTIME):
        ci.write(kernels(clock), tmp_path / f"{clock}.pftrace")
    both = b"".join((tmp_path / f"{c}.pftrace").read_bytes() for c in (BOOTTIME, ORDER))
    (tmp_path / "both.pftrace").write_bytes(both)
    assert ci.read(tmp_path / "both.pftrace").meta.clock == ORDER


def test_what_others_call_a_clock_is_not_heeded(tmp_path: Path) -> None:
    (tmp_path / "a.pftrace").write_bytes(seeds.ROCPROF)
    assert ci.read(tmp_path / "a.pftrace").meta.clock == BOOTTIME
    ci.write(kernels(COMPUTED), tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text(text.replace("chopper-interop", "somebody else"))
    assert ci.read(tmp_path / "b.json").meta.clock == REALTIME


@pytest.mark.parametrize("number", [b"1e400", b"-9e99", b'"abc"'])
def test_what_is_damaged_in_the_closing_packet_says_nothing(tmp_path: Path, number: bytes) -> None:
    path = tmp_path / "a.pftrace"
    ci.write(kernels(COMPUTED), path)
    raw = path.read_bytes()
    at = raw.index(b'"lanes"')
    digit = next(k for k in range(at, len(raw)) if raw[k : k + 5].isdigit())
    path.write_bytes(raw[:digit] + number + raw[digit + 5 :])
    assert ci.read(path).nodes.num_rows == 2
