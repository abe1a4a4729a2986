"""Relations of sources' clocks: stated by users, recorded by sources, and estimated."""

import contextlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import rocprof
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import BASE, call, kernel, write
from read_once import read_once
from slow import slow_from
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.arrays import intervals
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import estimate as clock_estimate
from chopper_interop.clocks import relations
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.errors import UsageError
from chopper_interop.joining import telemetry_clocks
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.meta import BOOTTIME, LOCALTIME, REALTIME, ClockFit
from chopper_interop.testing import assert_trace_equal

SECOND = 10**9
BOOT = 88_000 * SECOND
"""Since boot, of the base."""


def profile(folder: Path, ranks: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        info = {"rank": rank, "world_size": ranks}
        events = [call("hipLaunchKernel", 100, 10, 7), kernel("k", 500, 2.5e6, 7, device=rank)]
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, distributedInfo=info)


def stamp(ns: int, minutes: int = 0) -> str:
    wall = datetime.fromtimestamp(ns // SECOND, timezone(timedelta(minutes=minutes)))
    return f"{wall:%Y/%m/%d %H:%M:%S}.{ns % SECOND // 1_000_000:03}"


def power_log(path: Path, at: list[int], watts: list[float], minutes: int = 0) -> Path:
    """A log of nvidia-smi of one GPU by a wall clock."""
    lines = ["timestamp, index, power.draw [W]"]
    pairs = zip(at, watts, strict=True)
    lines += [f"{stamp(ns, minutes)}, 0, {value:.2f} W" for ns, value in pairs]
    path.write_text("\n".join(lines) + "\n")
    return path


def recorder(path: Path, boot: int, gpu: int = 0) -> Path:
    """A log of a recorder that reads three clocks; `boot` is the time since boot at the base."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["realtime_ns,monotonic_ns,boottime_ns,gpu,current_socket_power"]
    for tick in range(20):
        at = tick * 10**8
        lines.append(f"{BASE + at},{boot + at - 50},{boot + at},{gpu},{300 + tick}")
    path.write_text("\n".join(lines) + "\n")
    return path


def bursts(seed: int, seconds: float = 40.0) -> tuple[np.ndarray, np.ndarray]:
    """Starts and durations of kernels, nanoseconds, that come irregularly."""
    random = np.random.default_rng(seed)
    gaps = random.uniform(0.1, 1.2, 200)
    runs = random.uniform(0.1, 2.0, 200)
    start = np.cumsum(gaps + runs) - runs
    keep = start + runs < seconds
    return (start[keep] * SECOND).astype(np.int64), (runs[keep] * SECOND).astype(np.int64)


def rocprof_run(folder: Path, seed: int, boot: int = BOOT) -> None:
    start, dur = bursts(seed)
    rows = [
        rocprof.row(
            rocprof.KERNELS,
            Start_Timestamp=boot + s,
            End_Timestamp=boot + s + d,
            Dispatch_Id=k + 1,
            Correlation_Id=k + 1,
        )
        for k, (s, d) in enumerate(zip(start.tolist(), dur.tolist(), strict=True))
    ]
    rocprof.write(folder / "700_kernel_trace.csv", rocprof.KERNELS, *rows)


def followed(seed: int, period: int, noise: float = 20.0) -> tuple[list[int], list[float]]:
    """Times since the base, and power that follows the bursts."""
    start, dur = bursts(seed)
    at = np.arange(-10 * SECOND, 50 * SECOND, period)
    which = np.searchsorted(start, at, "right") - 1
    busy = (which >= 0) & (at < (start + dur)[np.maximum(which, 0)])
    random = np.random.default_rng(seed)
    return at.tolist(), (140 + 500 * busy + random.normal(0, noise, len(at))).tolist()


def codes(trace: ci.Trace) -> dict[str, str]:
    return {issue.code: issue.example for issue in trace.meta.issues}


def first_sample(trace: ci.Trace) -> int:
    return int(trace.array("ts", "samples").min()) + trace.meta.origin_ns


# --- stated by the user ---


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0.5", SECOND // 2),
        ("-0.25s", -SECOND // 4),
        ("500ms", SECOND // 2),
        ("+3us", 3000),
        ("7ns", 7),
        ("1767243833.123456789", 1767243833123456789),
        ("1e-3", 1_000_000),
    ],
)
def test_offsets_are_exact(text: str, ns: int) -> None:
    assert clock_rules.parse_clock_rule(text) == clock_rules.ClockRule(text, "", ns)
    assert clock_rules.parse_clock_rule(f"a:b/*.csv:{text}").source == "a:b/*.csv"
    assert clock_rules.parse_clock_rule(f"a:b/*.csv:{text}").offset_ns == ns
    assert clock_rules.parse_clock_rule(f"rank12:{text}").rank == 12


def test_the_user_moves_telemetry(tmp_path: Path) -> None:
    profile(tmp_path)
    at = [BASE + k * SECOND // 10 for k in range(20)]
    power_log(tmp_path / "smi.csv", at, [300.0] * 20)
    plain = ci.read(tmp_path, tz="UTC")
    for rule in ("1.5", "nvidia-smi:1500ms", "smi.csv:1500000us", f"{tmp_path}/s*.csv:1.5"):
        trace = ci.read(tmp_path, tz="UTC", clock_offset=[rule])
        assert first_sample(trace) == first_sample(plain) + 3 * SECOND // 2
        (fit,) = trace.meta.clocks
        assert (fit.method, fit.offset_ns, fit.clock) == (relations.USER, 3 * SECOND // 2, REALTIME)
        assert trace.array("ts").tolist() == plain.array("ts").tolist()


def test_a_rule_of_a_source_takes_precedence_over_one_of_all(tmp_path: Path) -> None:
    profile(tmp_path)
    power_log(tmp_path / "smi.csv", [BASE], [300.0])
    trace = ci.read(tmp_path, tz="UTC", clock_offset=["1", "smi.csv:2"])
    assert trace.meta.clocks[0].offset_ns == 2 * SECOND


def test_the_user_can_state_the_zone_as_an_offset(tmp_path: Path) -> None:
    """A wall clock without a zone is moved from what it showed."""
    profile(tmp_path)
    at = [BASE + k * SECOND // 10 for k in range(20)]
    power_log(tmp_path / "smi.csv", at, [300.0] * 20, minutes=120)
    trace = ci.read(tmp_path, clock_offset=["-7200"])
    assert abs(first_sample(trace) - BASE) < 10**6
    assert trace.meta.clocks[0].clock == LOCALTIME


def test_the_user_moves_a_rank(tmp_path: Path) -> None:
    profile(tmp_path, ranks=3)
    plain = ci.read(tmp_path).to_pandas()
    trace = ci.read(tmp_path, clock_offset=["rank1:-40us"])
    moved = trace.to_pandas()
    since = moved["ts"] + trace.meta.origin_ns - plain["ts"] - (BASE + 100_000)
    assert since.groupby(moved["rank"]).unique().map(list).to_dict() == {
        0: [0], 1: [-40_000], 2: [0]
    }  # fmt: skip
    assert trace.array("ts").min() == 0
    assert trace.meta.clocks == (ClockFit("rank 1", REALTIME, relations.USER, -40_000),)
    assert relations.ranks_set_by_user(trace.meta) == {1}


def test_the_user_moves_one_of_a_job_s_profiles(tmp_path: Path) -> None:
    profile(tmp_path)
    trace = ci.read(tmp_path, clock_offset=["rank1.json:1"])
    first = {r: int(trace.rank(r).array("ts").min()) for r in trace.ranks}
    assert first == {0: 0, 1: SECOND}


@pytest.mark.parametrize("rule", ["rank7:1", "nothing*:1", "rocprofv3-csv:1", "1"])
def test_a_rule_that_applies_to_nothing_is_refused(tmp_path: Path, run, rule: str) -> None:
    profile(tmp_path)
    with pytest.raises(UsageError, match="clock-offset"):
        ci.read(tmp_path, clock_offset=[rule])
    out = tmp_path / "x.parquet"
    status, _, output = run("convert", tmp_path, "-o", out, f"--clock-offset={rule}")
    assert status == UsageError.exit_status
    assert rule in output
    assert not out.exists()


def test_contradicting_rules_are_refused(tmp_path: Path) -> None:
    profile(tmp_path)
    with pytest.raises(UsageError, match="contradict each other"):
        ci.read(tmp_path, clock_offset=["rank1:1", "rank1:2"])
    with pytest.raises(UsageError, match="before"):
        ci.read(tmp_path, clock_offset=["rank1:-2000000000"])


def test_commands_take_the_option(tmp_path: Path, run) -> None:
    profile(tmp_path / "run")
    power_log(tmp_path / "run" / "smi.csv", [BASE], [300.0])
    command = (tmp_path / "run", "--clock-offset", "nvidia-smi:-0.5", "-O", "tz=UTC")
    status, _, output = run("convert", *command, "-o", tmp_path / "x.parquet")
    assert status == 0
    (line,) = (line for line in output.splitlines() if "smi.csv" in line and "user" in line)
    assert "-500 ms" in line
    assert run("analyze", *command, "temporal")[0] == 0


# --- recorded by sources ---


@pytest.mark.parametrize("place", ["{}/telemetry/recorder.csv", "telemetry/{}.csv"])
def test_boot_clocks_of_two_hosts_are_related_to_real_time(tmp_path: Path, place: str) -> None:
    """Each host's recorder relates the clock of that host only."""
    for node, boot in (("node1", 5_000 * SECOND), ("node2", 99_000 * SECOND)):
        folder = tmp_path / node
        rocprof_run(folder / node, 3, boot)
        recorder(tmp_path / place.format(node), boot)
        rows = (folder / node / "700_kernel_trace.csv").read_text()
        (folder / node / "700_kernel_trace.csv").unlink()
        agent = "Agent 4" if node == "node1" else "Agent 5"
        path = folder / node / f"70{node[-1]}_kernel_trace.csv"
        path.write_text(rows.replace("Agent 4", agent))
    trace = ci.read(tmp_path)
    assert trace.meta.clock == REALTIME
    fits = [f for f in trace.meta.clocks if f.clock == BOOTTIME]
    assert {f.offset_ns for f in fits} == {BASE - 5_000 * SECOND, BASE - 99_000 * SECOND}
    assert {f.method for f in fits} == {relations.THREE_CLOCKS}
    assert {r.host for r in trace.meta.ranks} == {"host0", "host1"}
    starts = [int(trace.rank(r).array("ts").min()) for r in trace.ranks]
    assert len(set(starts)) == 1


def test_whole_seconds_have_an_uncertainty_of_half_a_second(demo: Path) -> None:
    actual = {f.method: f for f in read_once(demo).meta.clocks}
    assert abs(actual[relations.WHOLE_SECONDS].uncertainty_ns - SECOND // 2) <= SECOND // 50
    assert actual[relations.THREE_CLOCKS].uncertainty_ns < 1_000


@pytest.mark.parametrize(
    ("clock", "method", "off", "expected"),
    [
        (BOOTTIME, relations.THREE_CLOCKS, 50_000_000, 50_001_000),
        (BOOTTIME, relations.BUSY_AND_POWER, 50_000_000, 50_001_000),
        (BOOTTIME, relations.USER, 0, 1_000),
        (REALTIME, relations.STATED, 1_000, 1_000),
        (LOCALTIME, relations.WALL_CLOCK_ZONE, 1_000, 1_000),
    ],
)
def test_samples_have_the_uncertainty_of_their_clock_as_well(clock, method, off, expected) -> None:
    """Fits within a clock and between zones state the samples' own uncertainty."""
    builder = TraceBuilder()
    row = builder.series(0, "socket power", "W", "x", uncertainty_ns=1_000)
    builder.samples(row, np.array([BASE]), np.array([300.0]))
    fit = ClockFit("x.csv", clock, method, 5, uncertainty_ns=off)
    moved = telemetry_clocks.shift_telemetry(builder.finish().with_meta(clock=clock), fit, REALTIME)
    assert moved.array("uncertainty_ns", "series").tolist() == [expected]


# --- estimates ---


@pytest.mark.parametrize("seed", slow_from(range(4), 1))
@pytest.mark.parametrize("period", [SECOND // 50, SECOND // 10])
def test_power_on_an_unrelated_clock_is_aligned(tmp_path: Path, seed: int, period: int) -> None:
    rocprof_run(tmp_path, seed)
    at, watts = followed(seed, period)
    power_log(tmp_path / "smi.csv", [BASE + ns for ns in at], watts)
    trace = ci.read(tmp_path, tz="UTC")
    (fit,) = trace.meta.clocks
    assert (fit.method, fit.clock) == (relations.BUSY_AND_POWER, REALTIME)
    assert abs(fit.offset_ns - (BOOT - BASE)) <= fit.uncertainty_ns <= 2 * period
    assert fit.pairs > 100
    examples = codes(trace)
    assert "clock-estimated" in examples
    assert "clock-unrelated" not in examples
    assert trace.array("uncertainty_ns", "series").min() >= fit.uncertainty_ns
    work = trace.array("kind") == Kind.KERNEL
    power = trace.values("power_w")[work].astype(float)
    assert np.nanmedian(power) > 550


def test_power_that_follows_nothing_is_left_out(tmp_path: Path) -> None:
    rocprof_run(tmp_path, 1)
    at, watts = followed(2, SECOND // 10)
    power_log(tmp_path / "smi.csv", [BASE + ns for ns in at], watts)
    trace = ci.read(tmp_path, tz="UTC")
    assert trace.meta.clocks == ()
    assert "clock-unrelated" in codes(trace)
    assert not trace.samples.num_rows


def test_steps_that_repeat_are_refused() -> None:
    start = np.arange(40) * SECOND
    busy = intervals.union(start, start + SECOND // 2)
    at = np.arange(-5 * SECOND, 45 * SECOND, SECOND // 20)
    value = 100 + 400.0 * (at % SECOND < SECOND // 2)
    signal = clock_estimate.Signal(busy, at, value)
    assert "another offset" in clock_estimate.estimate_offset([signal], (0, 40 * SECOND))


def reason(signals: list[clock_estimate.Signal]) -> str:
    """Why no offset is certain."""
    estimate = clock_estimate.estimate_offset(signals, (0, 40 * SECOND))
    assert isinstance(estimate, str)
    return estimate


@given(st.integers(0, 2**32 - 1))
def test_noise_gives_no_estimate(seed: int) -> None:
    random = np.random.default_rng(seed)
    start, dur = bursts(seed % 1000)
    at = np.arange(0, 60 * SECOND, SECOND // 10)
    value = random.normal(300, 50, len(at))
    signal = clock_estimate.Signal(intervals.union(start, start + dur), at, value)
    assert reason([signal]).startswith(("samples follow busy by", "another offset"))


@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_constant_samples_give_no_estimate(n: int) -> None:
    busy = intervals.union(*bursts(1))
    signal = clock_estimate.Signal(busy, np.arange(n) * SECOND, np.full(n, 5.0))
    assert reason([signal]) == "no sample of activity or power varies"
    broken = clock_estimate.Signal(busy, np.arange(n) * SECOND, np.full(n, np.nan))
    assert reason([broken]) == "no sample of activity or power varies"


def test_an_offset_of_the_user_takes_precedence_over_the_estimate(tmp_path: Path) -> None:
    rocprof_run(tmp_path, 1)
    at, watts = followed(1, SECOND // 10)
    power_log(tmp_path / "smi.csv", [BASE + ns for ns in at], watts)
    offset = BOOT - BASE + 123
    trace = ci.read(tmp_path, tz="UTC", clock_offset=[f"{offset}ns"])
    (fit,) = trace.meta.clocks
    assert (fit.method, fit.offset_ns) == (relations.USER, offset)


# --- outputs ---

FITS = (
    ClockFit("rank 0", REALTIME, relations.COLLECTIVE_ENDS, 5, -40_000, BASE, 2_000, 812),
    ClockFit("x/rocprof.csv", BOOTTIME, relations.MATCHED_KERNELS, BASE - BOOT, reason="ü, 'x'"),
    ClockFit("x/smi.csv", REALTIME, relations.USER, applied=False, reason="it is another run"),
)


@pytest.mark.parametrize("name", ["a.parquet", "a.pftrace", "a.json", "et/"])
def test_fits_are_in_every_output(tmp_path: Path, name: str) -> None:
    profile(tmp_path, ranks=1)
    trace = ci.read(tmp_path / "rank0.json").with_meta(clocks=FITS)
    ci.write(trace, f"{tmp_path}/{name}")
    again = ci.read(tmp_path / name)
    assert again.meta.clocks == FITS
    assert not [fact for fact in again.meta.facts if "clock" in fact]
    if name == "a.parquet":
        assert_trace_equal(again, trace, ignore=["meta.issues", "meta.job"])


def test_perfetto_shows_the_fits(tmp_path: Path) -> None:
    profile(tmp_path, ranks=1)
    trace = ci.read(tmp_path / "rank0.json").with_meta(clocks=FITS)
    ci.write(trace, tmp_path / "a.pftrace")
    processor = TraceProcessor(tmp_path / "a.pftrace")
    rows = processor.query("select name, str_value from metadata where name glob '*clock of*'")
    (text,) = (text for name, text in rows if "rank 0" in name)
    assert "812 pairs" in text
    assert "-40.000 ppm" in text


@given(st.integers(1 - (1 << 62), (1 << 62) - 1))
def test_durations_read_back(ns: int) -> None:
    number, _, unit = relations.duration_text(ns).replace(",", "").partition(" ")
    assert clock_rules.parse_clock_rule(number + unit).offset_ns == ns


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"of": 1}]', '[{"of":"a"}]', None, "[" * 5000])
def test_damaged_fits_are_ignored(text: str | None) -> None:
    assert relations.from_text(text) == ()


@pytest.mark.parametrize("rank", slow_from([2, 0], 1))
def test_an_offset_of_the_user_takes_precedence_over_collectives(shared: Path, rank: int) -> None:
    """That rank has the offset that the user states; the others are compared with each other."""
    folder = shared / "pytorch" / "clock_skew_4rank_amd"
    files = [folder / f"rank{r}.json.gz" for r in range(4)]
    own = ci.read(files[rank])
    offset = 123_456_789
    trace = ci.read(*files, clock_offset=[f"rank{rank}:{offset}ns"])
    first = int(trace.rank(rank).array("ts").min()) + trace.meta.origin_ns
    assert first == own.meta.origin_ns + offset
    fits = [f for f in trace.meta.clocks if f.of == f"rank {rank}"]
    assert [f.method for f in fits if f.applied] == [relations.USER]
    assert sum(f.applied and f.method == relations.COLLECTIVE_ENDS for f in trace.meta.clocks) >= 1


@pytest.mark.parametrize("text", ["rank1:9e9", "-1e30", "amd-smi:1e20ms"])
def test_an_offset_beyond_all_clocks_is_said_to_be_out_of_range(text: str) -> None:
    with pytest.raises(UsageError, match="out of range"):
        clock_rules.parse_clock_rule(text)


@given(st.text(max_size=12) | st.from_regex(r"[a-z0-9.:+-]{0,12}", fullmatch=True))
def test_any_text_is_an_offset_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert abs(clock_rules.parse_clock_rule(text).offset_ns) < 1 << 62
