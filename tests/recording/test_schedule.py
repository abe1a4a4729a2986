"""Which calls of a vendor's library are made when, on a clock that only the calls move."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from slow import slow_from

from chopper_interop.recording import gpus, sampler, schedule


class FakeLibrary:
    """Calls on a clock that only they move: seconds that each takes, and the GPUs on which each fails."""

    def __init__(self, monkeypatch, took_s: dict[str, float], **failing_on: set[int]) -> None:
        self.now_s = 100.0
        self.took_s = took_s
        self.failing_on = failing_on
        self.counts = dict.fromkeys(took_s, 0)
        self.calls = [
            gpus.Call(name, self._reader(name), name == "clock", 1.0 if name == "memory" else 0.0)
            for name in took_s
        ]
        monkeypatch.setattr(schedule.time, "monotonic", lambda: self.now_s)

    def _reader(self, name: str) -> Callable[[int], dict]:
        def read(k: int) -> dict:
            self.now_s += self.took_s[name]
            self.counts[name] += 1
            if k in self.failing_on.get(name, ()):
                raise OSError(f"{name} fails")
            return {name: 1}

        return read

    def start(self, rate_hz: float, gpu_count: int) -> schedule.Schedule:
        result = schedule.Schedule(self.calls, gpu_count, 1 / rate_hz)
        for k in [*range(gpu_count)] * 2:
            result.read(k, result.all_calls)
        result.begin()
        self.counts = dict.fromkeys(self.counts, 0)
        return result

    def _read(self, tested: schedule.Schedule, k: int, due: list[int]) -> dict | None:
        try:
            return tested.read(k, due)
        except OSError:
            return None

    def run(
        self, tested: schedule.Schedule, rate_hz: float, seconds: float
    ) -> Iterator[tuple[int, dict | None]]:
        """Read what is due at each tick; yield what each GPU gives, None for one that is lost."""
        begin_s, tick = self.now_s, 0
        while self.now_s < begin_s + seconds:
            for k, due in tested.due(self.now_s).items():
                yield k, self._read(tested, k, due)
            tick = max(tick, int((self.now_s - begin_s) * rate_hz)) + 1
            self.now_s = max(self.now_s, begin_s + tick / rate_hz)


def simulated(rate_hz: float, gpu_count: int, seconds: float, monkeypatch, **took_s: float) -> dict:
    """Run a schedule; readings of each call a second and GPU."""
    library = FakeLibrary(monkeypatch, took_s)
    tested = library.start(rate_hz, gpu_count)
    assert all(values is not None for _, values in library.run(tested, rate_hz, seconds))
    return {name: count / gpu_count / seconds for name, count in library.counts.items()}


@pytest.mark.parametrize(
    ("rate", "count"), slow_from([(1000, 1), (100, 8), (10, 8), (10, 1), (1000, 8)], 4)
)
def test_slow_calls_leave_the_rate(rate: int, count: int, monkeypatch) -> None:
    took_s = {"clock": 1e-5, "power": 3e-5, "energy": 3e-3, "memory": 2e-3}
    reached = simulated(rate, count, 20, monkeypatch, **took_s)
    assert reached["clock"] > 0.93 * rate
    assert reached["power"] == reached["clock"]
    assert 0.9 < reached["memory"] < 1.1
    assert reached["energy"] > min(rate / 2, 10 / count)
    assert reached["energy"] * took_s["energy"] * count < 0.06


def test_a_clock_that_takes_longer_than_a_period_is_read_all_the_time(monkeypatch) -> None:
    """A GPU's metrics are one call of amdsmi, which nothing else waits for."""
    reached = simulated(1000, 1, 20, monkeypatch, clock=3e-3, memory=3e-3)
    assert reached["clock"] > 240
    assert 0.9 < reached["memory"] < 1.1


@pytest.mark.parametrize("gpu_count", [1, 2])
def test_a_gpu_without_a_clock_is_not_lost(gpu_count: int, monkeypatch) -> None:
    """Each call takes 3 ms, so that there are ticks at which nothing but the clock would be read."""
    took_s = dict.fromkeys(("clock", "power", "energy", "memory"), 3e-3)
    library = FakeLibrary(monkeypatch, took_s, clock={0})
    tested = library.start(100, gpu_count)
    rows = [values for k, values in library.run(tested, 100, 20) if k == 0]
    assert None not in rows
    for name in ("power", "energy"):
        assert sum(name in values for values in rows) > 20 * 0.9 * 0.025 / 3e-3 / gpu_count
    assert 18 <= sum("memory" in values for values in rows) <= 21
    clock_count = library.counts["clock"] - (gpu_count - 1) * 2000
    assert 18 <= clock_count <= 22, "tried again once a second"


def test_a_gpu_is_lost_when_nothing_answers_any_more(monkeypatch) -> None:
    took_s = {"clock": 1e-5, "power": 3e-3, "energy": 3e-3, "memory": 3e-3}
    library = FakeLibrary(monkeypatch, took_s, energy={0, 1})
    tested = library.start(100, 2)
    library.failing_on |= {"clock": {1}}
    rows = list(library.run(tested, 100, 5))
    assert all(values is not None for _, values in rows), "power of GPU 1 answers"
    assert all("clock" in values for k, values in rows if k == 0)
    assert sum("power" in values for k, values in rows if k == 1) > 30
    library.failing_on |= {"power": {1}, "memory": {1}}
    rows = list(library.run(tested, 100, 5))
    assert all("clock" in values for k, values in rows if k == 0)
    lost = [values is None for k, values in rows if k == 1]
    assert sum(lost) > 0.9 * len(lost)
    library.failing_on.clear()
    rows = list(library.run(tested, 100, 5))
    assert all("clock" in (values or ()) for _, values in rows), "it comes back"


def test_a_lost_gpu_is_known_at_once(monkeypatch) -> None:
    took_s = {"clock": 1e-5, "power": 3e-5, "energy": 3e-3, "memory": 3e-3}
    library = FakeLibrary(monkeypatch, took_s)
    tested = library.start(100, 1)
    library.failing_on = {name: {0} for name in took_s}
    assert [values for _, values in library.run(tested, 100, 0.5)] == [None] * 50


@pytest.mark.parametrize("name", ["power", "energy"])
def test_a_call_that_fails_ever_after_is_a_problem_and_not_read_less_often(
    name: str, monkeypatch
) -> None:
    took_s = {"clock": 1e-5, "power": 3e-5, "energy": 3e-3, "memory": 1e-3}
    library = FakeLibrary(monkeypatch, took_s)
    tested = library.start(100, 1)
    library.failing_on[name] = {0}
    rows = sum(bool(values) for _, values in library.run(tested, 100, 5))
    less_often = {n for n, call in tested.summary(rows).items() if call["less_often"]}
    assert less_often == {"energy", "memory"} - {name}
    (problem,) = tested.problems()
    assert problem.startswith(f"{name}: ")


MICROSECONDS = (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 99)
"""Below the time from which a call counts as long."""
NAMES = ("clock", "power", "throttling", "temperature", "memory clock", "energy")


@pytest.mark.parametrize("gpu_count", slow_from([1, 8, 4], 1))
def test_rates_fall_little_by_little(gpu_count: int, monkeypatch) -> None:
    """Readings that do not fit into each tick have what is left of half of the period, and fall to no 5 % at once."""
    reached = [
        simulated(1000, gpu_count, 2, monkeypatch, **dict.fromkeys(NAMES, us * 1e-6))
        for us in MICROSECONDS
    ]
    for us, rates in zip(MICROSECONDS, reached, strict=True):
        cost_s = us * 1e-6 * gpu_count
        ticks = min(1000, 1 / cost_s)
        assert rates["clock"] > 0.93 * ticks
        others = [rates[name] for name in NAMES[1:]]
        part = max(0.5e-3 - cost_s, 0.05e-3) / len(others) / cost_s
        assert min(others) > 0.8 * min(1.0, part) * ticks
        assert max(others) <= 1.1 * min(others) + 2
    for before, after in itertools.pairwise(reached):
        assert all(after[name] <= 1.02 * before[name] + 1 for name in NAMES)


def test_a_call_that_nearly_fits_is_made_at_nearly_each_tick(monkeypatch) -> None:
    """One of 9 % more than there is time for is not made at each second tick."""
    reached = simulated(1000, 8, 5, monkeypatch, clock=30e-6, power=2e-6, energy=33e-6)
    assert reached["power"] == reached["clock"] > 990
    assert 880 < reached["energy"] < 940


def test_an_interruption_between_clocks_is_in_no_row(monkeypatch) -> None:
    now_ns = itertools.count(1_000, 1_000)  # the real clock; each look at a clock takes 1 µs
    interruptions_ns = iter([0, 12_000_000])
    late_ns = 0

    def clock() -> int:
        nonlocal late_ns
        late_ns += next(interruptions_ns, 0)
        return next(now_ns) + late_ns

    monkeypatch.setattr(sampler.time, "perf_counter_ns", clock)
    monkeypatch.setattr(sampler, "CLOCKS", {"realtime_ns": clock, "monotonic_ns": clock})
    first, second = sampler.clock_values()
    assert second - first == 1_000
    assert second > 12_000_000  # of the second try


def test_clocks_that_are_interrupted_each_time_are_read_all_the_same(monkeypatch) -> None:
    now_ns = itertools.count(0, 1_000_000)
    monkeypatch.setattr(sampler.time, "perf_counter_ns", now_ns.__next__)
    monkeypatch.setattr(sampler, "CLOCKS", {"realtime_ns": now_ns.__next__})
    assert len(sampler.clock_values()) == 1
