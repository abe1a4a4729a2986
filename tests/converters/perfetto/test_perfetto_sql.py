"""SQL modules that are shipped: the trace processor's answers are those of the tables and analyses."""

from pathlib import Path

import pytest
from read_once import read_once
from trace_processor import TraceProcessor

import chopper_interop as ci
from chopper_interop.converters.perfetto import opening


@pytest.fixture(scope="module")
def analysed(demo: Path) -> ci.Trace:
    trace = read_once(demo)
    for analysis in ("critical_path", "idle"):
        trace = ci.analyze(trace, analysis).annotate(trace)
    return trace


@pytest.fixture(scope="module")
def perfetto(analysed: ci.Trace, tmp_path_factory: pytest.TempPathFactory) -> TraceProcessor:
    path = tmp_path_factory.mktemp("sql") / "job.pftrace"
    ci.write(analysed, path)
    processor = TraceProcessor(path)
    for text in opening.sql_modules().values():
        processor.query(text)
    return processor


def test_every_file_is_a_module() -> None:
    folder = Path(opening.__file__).parent / "sql" / "chopper"
    assert {f"chopper.{p.stem}" for p in folder.glob("*")} == set(opening.sql_modules())


def test_gpu_work_is_that_of_the_tables(analysed: ci.Trace, perfetto: TraceProcessor) -> None:
    frame = analysed.to_pandas()
    work = frame[frame["kind"].isin(["kernel", "comm", "memcpy", "memset"])]
    rows = perfetto.query("select rank, count(*), sum(dur) from chopper_gpu_work group by rank")
    by_rank = work.groupby("rank")["dur"].agg(["count", "sum"])
    assert rows == [
        (rank, *row) for rank, row in zip(by_rank.index, by_rank.values.tolist(), strict=True)
    ]


def test_top_kernels(analysed: ci.Trace, perfetto: TraceProcessor) -> None:
    frame = analysed.to_pandas()
    kernels = frame[frame["kind"] == "kernel"]
    by_name = kernels.groupby("name")
    rows = perfetto.query(
        "select name, launches, dur_ns, time_percent, tflop_per_s, mfma_percent, energy_j "
        "from chopper_top_kernels"
    )
    assert [r[2] for r in rows] == sorted(by_name["dur"].sum(), reverse=True)
    assert sum(r[3] for r in rows) == pytest.approx(100)
    for name, launches, dur, _, rate, busy, energy in rows:
        own = by_name.get_group(name)
        assert (launches, dur) == (len(own), own["dur"].sum())
        flops = own["flops_counted"].fillna(own["flops"])
        counted = own.loc[flops.notna(), "dur"].sum()
        assert rate == (pytest.approx(flops.sum() / counted / 1000) if counted else None)
        known = own[own["mfma_util"].notna()]
        mean = (known["mfma_util"] * known["dur"]).sum() / max(known["dur"].sum(), 1)
        assert busy == (pytest.approx(mean) if len(known) else None)
        assert energy is None or energy == pytest.approx(own["energy_j"].sum())


def test_exposed_communication_and_idle_time_of_steps(
    analysed: ci.Trace, perfetto: TraceProcessor
) -> None:
    """Steps on a GPU begin with their first kernel; communication outside of all is in none."""
    rows = perfetto.query(
        "select iteration, exposed_ns, exposed_percent, kernels_ns from chopper_exposed_communication"
    )
    total = ci.analyze(analysed, "overlap").summary["exposed_comm_ns"]
    assert 0.9 * total < sum(exposed for _, exposed, _, _ in rows) <= total
    assert len(rows) == len(analysed.ranks) * len({iteration for iteration, *_ in rows})
    assert all(percent == pytest.approx(100 * e / step) for _, e, percent, step in rows)
    causes = dict(
        perfetto.query(
            "select cause, sum(dur_ns) from chopper_step_losses where lane = 'idle' group by 1"
        )
    )
    idle = ci.analyze(analysed, "idle").summary
    assert 0 < causes["host late"] <= idle["idle_ns"]


def test_the_critical_path(analysed: ci.Trace, perfetto: TraceProcessor) -> None:
    rows = perfetto.query("select ts, dur, name, share, longest from chopper_critical_path")
    assert sum(share for *_, share, _ in rows) == pytest.approx(1)
    assert all(longest in analysed.names() for *_, longest in rows)
    assert rows == sorted(rows)
