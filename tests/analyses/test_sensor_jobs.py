"""The generator of jobs with sensors, against cases computed by hand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import telemetry as lanes_of
from sensor_jobs import cells, files
from sensor_jobs.clocks import TICK_NS, Clock, Constant
from sensor_jobs.programs import Kernel, Program
from sensor_jobs.sensors import Sensor
from sensor_jobs.signals import Steps
from sensor_jobs.simulation import Gpu, simulate
from slow import slow_from

import chopper_interop as ci

MS = 1_000_000
CLOCKS, POWER = {"gfx clock", "gfx clock XCD 0"}, "socket power"
STEP = Steps(np.array([0, 100 * MS, 200 * MS]), np.array([2000.0, 1000.0]))


@dataclass(frozen=True)
class Listed:
    shares: tuple[float, ...]

    def first(self):
        return self.shares[0]

    def next(self, share, heat, random):
        del share, heat, random
        return self.shares[min(1, len(self.shares) - 1)]


def gpu(*shares: float) -> Gpu:
    return Gpu(Clock(Listed(shares), 2000.0, np.random.default_rng(0), 0))


@pytest.mark.parametrize(("beta", "takes"), [(0.0, 1.0), (0.5, 1.5), (1.0, 2.0)])
def test_time_at_half_the_clock(beta, takes) -> None:
    assert gpu(0.5).proceed(0, 3_000_000, beta, 1.0) == pytest.approx(takes * 3_000_000)


@pytest.mark.parametrize(("beta", "end"), [(0.0, 750_000), (0.5, 875_000), (1.0, 1_000_000)])
def test_clock_changes_in_a_kernel(beta, end) -> None:
    """Two thirds of the work run at the highest clock, until the tick ends, and the rest at half of it."""
    assert TICK_NS == 500_000
    assert gpu(1.0, 0.5).proceed(0, 750_000, beta, 1.0) == pytest.approx(end)


def program(beta: float, *shares: float) -> Program:
    kernel = Kernel("kernel", "aten::mm", 64, 2e6, beta, 1.0, 0.01, matrix=True)
    return Program(
        seed=0, kind="mixed", vendor="amd", laws=tuple(Constant(s) for s in shares),
        forward=(kernel,) * 3, backward=(kernel,), optimizer=(kernel,), transfer_ns=1e6,
        steps=3, lead_steps=1, tail_steps=1, bubble_ns=100_000,
    )  # fmt: skip


def test_truth_by_hand() -> None:
    """The host adds the same to both; work that no clock matters to takes as long."""
    for beta, factor in ((0.0, 1.0), (1.0, 1.25)):
        run, fast = (
            simulate(p) for p in (program(beta, 0.8), program(beta, 0.8).at_highest_clock())
        )
        for a, b in zip(run.gpus[0].work, fast.gpus[0].work, strict=True):
            assert a.end_ns - a.start_ns == pytest.approx(factor * (b.end_ns - b.start_ns), abs=2)
        assert fast.step_ns == pytest.approx(5 * 2e6, rel=0.02)
        idle_ns = np.array([0, 100_000, 100_000])  # a step's length has the idle time before it
        worked_ns = fast.step_ns - idle_ns
        assert run.step_ns == pytest.approx(factor * worked_ns + idle_ns, rel=0.002)


def test_others_wait_for_the_slowest() -> None:
    run = simulate(program(1.0, 0.5, 1.0))
    ends = [{r.end_ns for r in g.work if r.kernel < 0} for g in run.gpus]
    assert ends[0] == ends[1]
    waits = [next(r for r in g.work if r.kernel < 0) for g in run.gpus]
    assert waits[0].start_ns - waits[1].start_ns == pytest.approx(4 * 2e6, rel=0.03)


def test_power_of_a_run() -> None:
    made = program(0.0, 0.5)
    run = simulate(made)
    watts, first = run.gpus[0].watts, run.gpus[0].work[0]
    during, before = np.array([first.start_ns + 1000]), np.array([first.start_ns - 1000])
    assert watts.at(before) == pytest.approx(130)
    assert watts.at(during) == pytest.approx(130 + 450 * 0.5**2.2 + 120)


@pytest.mark.parametrize(
    ("sensor", "reads"),
    [
        (Sensor(), {99: 2000, 100: 1000, 125: 1000}),
        (Sensor(mean_ns=100 * MS), {100: 2000, 125: 1750, 150: 1500, 200: 1000}),
        (Sensor(lag_ns=30 * MS), {129: 2000, 131: 1000}),
        (Sensor(hold_ns=50 * MS), {99: 2000, 101: 1000, 149: 1000}),
        (Sensor(hold_ns=70 * MS), {100: 2000, 139: 2000, 141: 1000}),
        (Sensor(mean_ns=20 * MS, lag_ns=5 * MS), {105: 2000, 115: 1500, 125: 1000}),
        (Sensor(mean_ns=100 * MS, quantum=15), {125: 1755}),
    ],
)
def test_sensor(sensor, reads) -> None:
    times = np.array([ms * MS for ms in reads])
    assert sensor.read(STEP, times).tolist() == list(reads.values())


def test_no_clock_reads_as_more_than_it_is() -> None:
    """Compared with the highest: kernels lack up to a sixth of that, and readings below it do not show so; but for 1 %."""
    (cell,) = cells.matching(["constant/1kHz/nvml"])
    run = cells.truth_of(cell.kind, cell.vendor, 0).run
    share = run.gpus[0].mhz.values[0] / run.program.max_mhz
    shown = np.unique(files.readings(run, cell.telemetry())[0].mhz) / run.program.max_mhz
    assert len(shown) == 1
    assert 0.83 * share - 1e-3 <= shown[0] <= min(1.01 * share + 1e-3, 1.0)


def test_phase_of_updates() -> None:
    sensor = Sensor(hold_ns=50 * MS)
    assert sensor.read(STEP, np.array([109 * MS, 111 * MS]), phase=0.2).tolist() == [2000, 1000]


@pytest.mark.parametrize(
    "name",
    slow_from(
        [
            "beta1/1kHz/all/counters",
            "few/1Hz/lag30",
            "few/100Hz/nvml",
            "groups/10Hz/mean20",
            "constant/1Hz/nvml",
        ],
        3,
    ),
)
def test_what_is_read_is_what_was_made(name, tmp_path) -> None:
    (cell,) = cells.matching([name])
    run = cells.truth_of(cell.kind, cell.vendor, 3).run
    run = replace(run, program=replace(run.program, steps=2))
    cells.write_job(run, cell, tmp_path / "job")
    trace = ci.read(tmp_path / "job")
    lanes = lanes_of.points_of(trace)
    made = files.readings(run, cell.telemetry())
    clocks = {d: [v for _, v in p] for (d, lane), p in lanes.items() if lane in CLOCKS}
    powers = {d: [v for _, v in p] for (d, lane), p in lanes.items() if lane == POWER}
    assert list(clocks.values()) == [m.mhz.round().tolist() for m in made], sorted(lanes)
    digits = {"nvidia-smi": 2, "recorder of NVML": 3}.get(cell.tool, 0)
    assert list(powers.values()) == [m.watts.round(digits).tolist() for m in made]
    if cell.tool != "amd-smi":
        times = next([t for t, _ in p] for (_, lane), p in lanes.items() if lane in CLOCKS)
        assert times == pytest.approx(made[0].times_ns + files.START_NS, abs=MS)
    frame = trace.to_pandas()
    frame = frame[frame["kind"].isin(["kernel", "comm"])]
    for rank, gpu_of in enumerate(run.gpus):
        ran = [r for r in gpu_of.work if r.step in run.recorded]
        of_rank = frame[frame["rank"] == rank].sort_values("ts")
        starts = (of_rank["ts"] + trace.meta.origin_ns).tolist()
        assert starts == pytest.approx([r.start_ns + files.START_NS for r in ran], abs=1)
        assert of_rank["dur"].tolist() == pytest.approx([r.end_ns - r.start_ns for r in ran], abs=2)
    if cell.counters:
        assert {"GRBM_GUI_ACTIVE", "SQ_VALU_MFMA_BUSY_CYCLES"} <= set(
            trace.counters["name"].to_pylist()
        )
        assert frame["gfxclk_mhz"].notna().all()


def test_counted_cycles_give_the_clock() -> None:
    made = program(1.0, 1.0)
    kernel = replace(made.forward[0], noise=0.0)
    length_ns, counted = files._counted(made, kernel, 0.9, np.random.default_rng(0))
    mhz = (counted["GRBM_GUI_ACTIVE"] / 8 - files.OVERHEAD_CYCLES) / length_ns * 1000
    assert mhz == pytest.approx(0.9 * 2100, rel=0.02)
    assert length_ns == pytest.approx(2e6 * 2100 / mhz, rel=1e-5)


def test_cells_by_pattern() -> None:
    assert len(cells.all_cells()) == 2 * 7 * 4 * 13 + 7 * 4
    assert len(cells.matching(["*/1kHz/*"])) == 98
    assert len(cells.matching(["few/*/all", "few/1kHz/all/counters", "few/1Hz/*"])) == 4 + 1 + 13


def test_unknown_cell() -> None:
    with pytest.raises(
        ValueError, match="no cell is called many; the first ones are beta0/1kHz/instant"
    ):
        cells.matching(["many"])
