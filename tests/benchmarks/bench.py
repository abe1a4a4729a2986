"""One table of what conversions and analyses cost, and its history.

Each row but the indented ones is a process of its own, so that its memory is its own; seconds are of processors,
as a busy machine changes them little. Indented rows are stages of the second run in one process, by the clock.
Ratios are of seconds to those of json.load, HTA (temporal, overlap, idle, kernels) and mlc-chakra's reader of ETs on
the same file, where these are installed; below 1 is faster.

Usage: ``python tests/benchmarks/bench.py [MILLIONS …] [--history FILE]``, by default 1 and 5 million events of the
sample job, after the 4-rank trace of ../shared/data if that is there; then a database, many small ranks, and a job that
is larger than the memory it may take. Each run is added to the history, a JSON file
that also says on which machine it was.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import beyond_memory
import scale
from stages import sample, timed

REAL = Path(__file__).resolve().parents[3] / "shared/data/pytorch/ddp_resnet_4rank_amd"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT.setdefault("OPENBLAS_NUM_THREADS", "1")
"""With modules compiled once, as they are after an installation, and one thread of linear algebra, as commands have it:
a second one looks for work for a while, 0.35 s of the 3.4 s of four analyses of 260 MB on a busy machine."""
ANALYSES = ("temporal", "overlap", "idle", "kernels")
JSON_LOAD, FOUR = "json.load", f"read, {', '.join(ANALYSES)}"
HTA, CHAKRA = f"HTA: {', '.join(ANALYSES)}", "mlc-chakra: read ETs"
READ_ETS = "read ETs"
DISPATCHES = 1_000_000
SMALL_RANKS = (256, 1024)
"""Ranks of ten events each: what a rank costs, whatever it holds. Chosen: half a minute in all."""
BEYOND_RANKS, BEYOND_MILLIONS, BEYOND_GB = 4, 0.1, 0.05
"""A job that is converted with less memory than it takes: ranks, millions of events of each (34 MB), and what is allowed."""
_COLUMNS = ("s", "MB/s", "events/s", "peak MB", "json.load", "HTA", "mlc-chakra")
"""Columns of the table behind the stage."""


def json_load(path: Path, _: Path) -> None:
    """Parse the files by the JSON library of Python."""
    import gzip

    for file in _files(path):
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            json.load(stream)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def _convert(target: str, **options: Any) -> Callable[[Path, Path], None]:
    def convert(path: Path, out: Path) -> None:
        from chopper_interop import pipeline

        pipeline.convert(path, out / target, **options)

    return convert


def _analyze(*names: str) -> Callable[[Path, Path], None]:
    def analyze(path: Path, _: Path) -> None:
        from chopper_interop import (
            cli,  # the command derives less than the library, which keeps the trace
        )

        if cli.analyze_main(["-q", str(path), *names]):
            sys.exit(1)

    return analyze


def read(path: Path, _: Path) -> None:
    """Read one job, and print its size for the rates of all rows."""
    from chopper_interop import pipeline

    trace = pipeline.read(path)
    events = sum(source.events for source in trace.meta.sources)
    print(json.dumps({"events": events, "bytes": _bytes(path)}))


def _bytes(path: Path) -> int:
    """Size of files, unpacked."""
    from chopper_interop.io import inputs

    return sum(map(inputs.expected_bytes, _files(path)))


def read_ets(_: Path, out: Path) -> None:
    """Read the ETs that an earlier stage wrote."""
    from chopper_interop import pipeline

    pipeline.read(out / "et")


def check_ets(_: Path, out: Path) -> None:
    """Check the ETs that an earlier stage wrote."""
    from chopper_interop import cli

    if cli.check_main(["-q", f"{out / 'et'}{os.sep}"]):
        sys.exit(1)


def chakra_reads(_: Path, out: Path) -> None:
    """Read the same ETs message by message, as the tools of mlc-chakra do."""
    from chakra.schema.protobuf import et_def_pb2
    from chakra.src.third_party.utils.protolib import decodeMessage

    for path in sorted((out / "et").glob("*.et")):
        with path.open("rb") as stream:
            decodeMessage(stream, et_def_pb2.GlobalMetadata())
            while decodeMessage(stream, et_def_pb2.Node()):
                pass


def hta(path: Path, _: Path) -> None:
    """Run the four analyses of Holistic Trace Analysis."""
    from hta.trace_analysis import TraceAnalysis

    files = {rank: str(file) for rank, file in enumerate(_files(path))}
    analysis = TraceAnalysis(trace_files=files)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_idle_time_breakdown(ranks=list(files), visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)


def rocpd(path: Path, _: Path) -> None:
    """Read a database."""
    read(path, path)


def warm(path: Path, out: Path) -> None:
    """Run everything twice, and print seconds of the stages of the second time."""
    from chopper_interop import pipeline, registry
    from chopper_interop.annotate import stages as annotate_stages
    from chopper_interop.edges import inference
    from chopper_interop.errors import MissingDataError
    from chopper_interop.io import json_events
    from chopper_interop.joining import job
    from chopper_interop.timing import model

    def once() -> dict[str, float]:
        spent: dict[str, float] = {}
        start = time.perf_counter()
        trace = pipeline.read(path)
        spent["read"] = time.perf_counter() - start
        steps: dict[str, Callable[[], object]] = {
            "node graph": trace.graph,
            "endpoint graph": trace.endpoints,
            "timing model": lambda: model.timing_of(trace),
            "write Perfetto": lambda: pipeline.write(trace, out / "warm.pftrace"),
        }
        analyses = registry.working_analyses()
        steps |= {f"analysis {name}": partial(run, trace) for name, run in analyses.items()}
        for name, step in steps.items():
            start = time.perf_counter()
            with suppress(MissingDataError):  # most traces have no telemetry and no counters
                step()
                spent[name] = time.perf_counter() - start
        return spent

    once()
    inner = dict.fromkeys(("scan", "join", "dependencies", "annotations"), 0.0)
    timed(inner, "scan", json_events, "scan")
    timed(inner, "join", job, "assemble")
    timed(inner, "dependencies", inference, "infer_edges")
    timed(inner, "annotations", annotate_stages, "annotate")
    spent = once()
    total = spent.pop("read")
    print(json.dumps({**inner, "other of reading": max(total - sum(inner.values()), 0.0), **spent}))


STAGES: dict[str, Callable[[Path, Path], None]] = {
    JSON_LOAD: json_load,
    "read": read,
    "read → Perfetto": _convert("a.pftrace"),
    "read → Parquet": _convert("a.parquet"),
    "read → ETs, mode full": _convert("et", to_format="chakra"),
    "check ETs": check_ets,
    READ_ETS: read_ets,
    CHAKRA: chakra_reads,
    FOUR: _analyze(*ANALYSES),
    "read, critical path, slack, drag": _analyze("critical_path"),
    HTA: hta,
}
"""Processes in their order: those of ETs need the files of the one that writes them."""
OF_SMALL_RANKS = ("read", "read → Perfetto", "read → Parquet", "read → ETs, mode full", FOUR)
"""Processes of jobs of many small ranks."""
PEERS = {HTA: "hta", CHAKRA: "chakra"}
"""Module that a stage of another tool needs."""
OTHERS = {"warm": warm, "rocpd": rocpd}


def measured(stage: str, path: Path, out: Path) -> dict[str, Any] | None:
    """Seconds of processors and by the clock, and peak of memory, of a stage; None if it fails."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "--stage", stage, str(path), str(out)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    output = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        print(f"{stage}: it failed", file=sys.stderr)
        return None
    lines = output.splitlines()
    figures = json.loads(lines[-1]) if lines and lines[-1].startswith(b"{") else {}
    return {
        "s": usage.ru_utime + usage.ru_stime,
        "wall s": time.perf_counter() - start,
        "peak MB": usage.ru_maxrss * 1024 / 1e6,
        "figures": figures,
    }


def rows_of(name: str, path: Path, folder: Path) -> list[dict[str, Any]]:
    """Rows of one input."""
    out = folder / f"out-{name.replace(' ', '-')}"
    out.mkdir()
    measured("read", path, out)  # compiles, and fills the cache of files
    rows = []
    for stage in STAGES:
        if stage in PEERS and importlib.util.find_spec(PEERS[stage]) is None:
            continue
        result = measured(stage, path, out)
        if result is not None:
            rows.append({"input": name, "stage": stage, **result})
    size = next(row["figures"] for row in rows if row["stage"] == "read")
    seconds = {row["stage"]: row["s"] for row in rows}
    for row in rows:
        del row["figures"]
        row |= {"MB/s": size["bytes"] / 1e6 / row["s"], "events/s": size["events"] / row["s"]}
        row["events"] = size["events"]
        row["json.load"] = _ratio(row["s"], seconds.get(JSON_LOAD))
        row["HTA"] = _ratio(row["s"], seconds.get(HTA)) if row["stage"] == FOUR else None
        row["mlc-chakra"] = (
            _ratio(row["s"], seconds.get(CHAKRA)) if row["stage"] == READ_ETS else None
        )
    stages = measured("warm", path, out)
    for stage, spent in (stages or {"figures": {}})["figures"].items():
        if not spent:  # it was not called: a single file is not joined
            continue
        rates = {
            "MB/s": size["bytes"] / 1e6 / max(spent, 1e-9),
            "events/s": size["events"] / max(spent, 1e-9),
        }
        rows.append({"input": name, "stage": f"  {stage}", "s": spent, **rates})
    return rows


def _ratio(seconds: float, others: float | None) -> float | None:
    return seconds / others if others else None


def rocpd_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of a database of many dispatches, which SQLite reads."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    import rocpd as made

    path = folder / "large.db"
    made.large(path, DISPATCHES)
    measured("rocpd", path, folder)
    result = measured("rocpd", path, folder)
    if result is None:
        return []
    size = result.pop("figures")
    rates = {
        "MB/s": path.stat().st_size / 1e6 / result["s"],
        "events/s": size["events"] / result["s"],
    }
    return [{"input": "rocpd", "stage": "read", **result, **rates}]


def small_rank_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of jobs of many ranks of ten events each."""
    rows = []
    for ranks in SMALL_RANKS:
        name = f"{ranks} small ranks"
        job, out = scale.make_ranks(folder / f"ranks{ranks}", ranks), folder / f"out-ranks{ranks}"
        out.mkdir()
        size: dict[str, Any] = {}
        for stage in OF_SMALL_RANKS:
            result = measured(stage, job, out)
            if result is None:
                continue
            size = result.pop("figures") or size
            rows.append({"input": name, "stage": stage, "ranks": ranks, **result})
            rows[-1] |= {
                "MB/s": size["bytes"] / 1e6 / result["s"],
                "events/s": size["events"] / result["s"],
            }
    return rows


def beyond_memory_rows(folder: Path) -> list[dict[str, Any]]:
    """A row of a job that keeps its columns in files; its peak is of memory that the process could not give back."""
    job = sample(folder, BEYOND_MILLIONS, BEYOND_RANKS)
    command = [f"{Path(sys.executable).parent / 'chopper-convert'}", "-q", f"{job}"]
    target = ["-o", f"{folder / 'beyond.pftrace'}", "--max-memory", f"{BEYOND_GB:g}"]
    used = beyond_memory.measured([*command, *target])
    megabytes = _bytes(job) / 1e6
    return [
        {
            "input": f"{BEYOND_RANKS} ranks of {megabytes / BEYOND_RANKS:.0f} MB",
            "stage": f"convert → Perfetto, --max-memory {BEYOND_GB:g}",
            "s": used.cpu_s,
            "wall s": used.wall_s,
            "MB/s": megabytes / used.cpu_s,
            "peak MB": used.own_mib * 1.048576,
            "files GB": used.files_gb,
        }
    ]


def machine() -> dict[str, Any]:
    """Conditions that figures depend on, apart from the program."""
    import psutil

    names = ("chopper-interop", "numpy", "pyarrow", "numba")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory GB": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "commit": commit,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as a table."""
    forms = {"s": "{:,.2f}", "MB/s": "{:,.0f}", "events/s": "{:,.0f}", "peak MB": "{:,.0f}"}
    lines = [("input", "stage", *_COLUMNS)]
    for row in rows:
        cells = (row.get(column) for column in _COLUMNS)
        texts = (
            "" if cell is None else forms.get(column, "{:.2f}").format(cell)
            for column, cell in zip(_COLUMNS, cells, strict=True)
        )
        lines.append((row["input"], row["stage"], *texts))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if k < 2 else text.rjust(width)
            for k, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Time per event of each stage at the largest size of the sample job, over that at the smallest."""
    sizes = sorted(
        {row["events"] for row in rows if row["input"].endswith(" M") and "events" in row}
    )
    if len(sizes) < 2:
        return []
    of_size = [
        {row["stage"]: row["s"] for row in rows if row.get("events") == size} for size in sizes
    ]
    base = {stage: seconds / sizes[0] for stage, seconds in of_size[0].items()}
    last = {stage: seconds / sizes[-1] for stage, seconds in of_size[-1].items()}
    parts = [f"{stage} {last[stage] / base[stage]:.2f}" for stage in base if stage in last]
    head = f"time per event, {sizes[-1]:,} events / {sizes[0]:,} events"
    return ["", f"{head}: {'; '.join(parts)}"]


def time_of_ranks(rows: list[dict[str, Any]]) -> str:
    """Milliseconds of each stage for a further small rank."""
    few, many = SMALL_RANKS[0], SMALL_RANKS[-1]
    spent = {(row["stage"], row["ranks"]): row["s"] for row in rows if "ranks" in row}
    parts = [
        f"{stage} {1e3 * (spent[stage, many] - spent[stage, few]) / (many - few):.2f}"
        for stage in OF_SMALL_RANKS
        if {(stage, few), (stage, many)} <= spent.keys()
    ]
    return f"ms for each further rank, {few:,} to {many:,} ranks: {'; '.join(parts)}"


def main() -> None:
    """Print the table, and add it to the history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", nargs="*", type=float, default=[1.0, 5.0])
    parser.add_argument("--history", type=Path, default=Path("bench/history.json"))
    parser.add_argument("--stage", nargs=3)
    chosen = parser.parse_args()
    if chosen.stage:
        stage, path, out = chosen.stage
        (STAGES | OTHERS)[stage](Path(path), Path(out))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real = REAL / "merged_all_events.json.gz"
        if real.exists():
            rows += rows_of("4 ranks, real", real, folder)
        for millions in chosen.millions:
            rows += rows_of(f"{millions:g} M", sample(folder, millions), folder)
        rows += rocpd_rows(folder)
        rows += small_rank_rows(folder)
        rows += beyond_memory_rows(folder)
    print(table(rows))
    print("\n".join([*growth(rows), time_of_ranks(rows)]))
    history = json.loads(chosen.history.read_text()) if chosen.history.exists() else []
    run = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "rows": rows,
    }
    chosen.history.parent.mkdir(parents=True, exist_ok=True)
    chosen.history.write_text(json.dumps([*history, run], indent=1))


if __name__ == "__main__":
    main()
