"""Jobs as they would have been: ETs, what-if and stragglers on real jobs, a row for each case, as a Markdown table.

Usage: ``python tests/benchmarks/conditional.py [ROW …] [--astra-sim PATH] [--trace-diff PATH] [--list]``.
Real jobs are those of ``../shared/data``. Without ASTRA-sim (an analytical network) ETs are run by
`converters.chakra.run`; ``--trace-diff`` is the folder of that name of Holistic Trace Analysis's test data.
"Before" is what a reader measured of the state in which these cases were collected.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from typing import TYPE_CHECKING

import astra_sim
import numpy as np
import predictions
import scaled_ets
import schedule
import straggler_jobs
from et_reactions import Model, read_ets, roofline
from kineto_files import blocking_copies
from programs import families
from programs.program import NO_CHANGE, Change
from programs.simulation import simulate
from shared_data import SHARED

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.chakra import check
from chopper_interop.converters.chakra import run as simulator
from chopper_interop.schemas.chakra import NodeType

if TYPE_CHECKING:
    from collections.abc import Callable

BANDWIDTHS_GBS = (25, 50, 100)
MODES = ("gpu", "full")


@dataclass(frozen=True)
class Tools:
    """Needs of rows: ASTRA-sim or None, a fetched job or None, and a folder for files."""

    astra: Path | None
    trace_diff: Path | None
    work: Path

    def ets(self, trace: ci.Trace, mode: str) -> Path:
        """Prefix of the ETs of a trace."""
        folder = Path(tempfile.mkdtemp(dir=self.work))
        ci.write(trace, folder / "job.et", mode=mode)
        return folder / "job"

    def end_ns(
        self, prefix: Path, change: Change = NO_CHANGE, *, gbs: float | None = None
    ) -> float:
        """End of the last node with a change, where ranks wait for each other; replayed without `gbs`."""
        scaled = prefix.parent / "scaled" / "job"
        scaled_ets.write(prefix, scaled, change, replay=gbs is None)
        if self.astra is None:
            ets = read_ets(scaled)
            return float(simulator.run(ets.job, ets.npus).end_ns.max())
        ran = astra_sim.run(
            self.astra, scaled, prefix.parent / "run", replay=gbs is None, bandwidth_gbps=gbs or 100
        )
        return float(max(ran.ended_ns.values())) if ran.finished_ns else float("nan")


@cache
def read(*names: str) -> ci.Trace:
    """A job of the shared data."""
    return ci.read(*(SHARED / "pytorch" / name for name in names))


@cache
def torchrec_runs() -> dict[str, ci.Trace]:
    """Two jobs of four ranks whose files are in one folder, and the one of another folder."""
    paths = sorted((SHARED / "pytorch/torchrec_two_runs_v100").glob("*.json*"))
    by_run = {key: [p for p in paths if f"internal_{key}" in p.name] for key in ("240", "26")}
    runs = {f"run {key}": ci.read(*of_run) for key, of_run in by_run.items()}
    return runs | {"torchrec": read("torchrec_4rank_v100")}


def ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"


def what_if_ms(trace: ci.Trace, change: str) -> str:
    (row,) = ci.analyze(trace, "what_if", change=change).summary["changes"]
    return ms(row["after_ns"])


def blocking_copy(tools: Tools) -> str:
    trace = ci.read(blocking_copies(tools.work / "blocking"))
    slower = Change("compute", 0.1)
    ends = [ms(tools.end_ns(tools.ets(trace, mode), slower)) for mode in MODES]
    model = what_if_ms(trace, "scale=0.1 where kind == 'kernel'")
    return f"{' / '.join(ends)} ms ({' / '.join(MODES)}; `what_if` {model})"


def ddp_compute(tools: Tools) -> str:
    trace = read("ddp_resnet_4rank_amd")
    model = [what_if_ms(trace, f"scale={factor} where kind == 'kernel'") for factor in (0.5, 2)]
    cells = [f"`what_if` {' / '.join(model)}"]
    for mode in MODES:
        prefix = tools.ets(trace, mode)
        ends = [ms(tools.end_ns(prefix, Change("compute", f), gbs=100)) for f in (0.5, 2)]
        cells.append(f"{mode} {' / '.join(ends)}")
    return "; ".join(cells) + " ms"


def ddp_network(gbs: float, tools: Tools) -> str:
    trace, cells = read("ddp_resnet_4rank_amd"), []
    for mode in MODES:
        prefix = tools.ets(trace, mode)
        model = Model(trace, mode)
        usual, slower = f"bandwidth={BANDWIDTHS_GBS[-1]}GB/s", f"bandwidth={gbs}GB/s"
        predicted = model.end_ns(slower) - model.end_ns(usual)
        simulated = tools.end_ns(prefix, gbs=gbs) - tools.end_ns(prefix, gbs=BANDWIDTHS_GBS[-1])
        cells.append(f"{mode} {ms(simulated)} ({ms(predicted)})")
    return " / ".join(cells) + " ms later than at 100 GB/s (`what_if`)"


def unexplained(tools: Tools) -> str:
    cells = []
    for name, job in (
        ("DDP", read("ddp_resnet_4rank_amd")),
        ("DLRM", read("dlrm_8rank_v100/kineto", "dlrm_8rank_v100/host_et")),
        ("torchrec", read("torchrec_4rank_v100")),
    ):
        checked = check.check(tools.ets(job, "gpu"))
        cells.append(f"{name} {100 * max(checked.unexplained.values()):.1f} %")
    return ", ".join(cells) + " (worst rank)"


def deviations(tools: Tools) -> str:
    vllm = read("hip_graph_mi300x/vllm_graph_execution.json.gz")
    cells = [
        f"{name} {deviation(tools, trace, 'gpu'):+.3f} %" for name, trace in torchrec_runs().items()
    ]
    return (
        ", ".join([*cells, f"vLLM full {deviation(tools, vllm, 'full'):+.3f} %"]) + " (worst rank)"
    )


def deviation(tools: Tools, trace: ci.Trace, mode: str) -> float:
    """Deviation of the worst rank from its measured span, in percent, replayed."""
    prefix = tools.ets(trace, mode)
    ets = read_ets(prefix)
    if tools.astra is None:
        return ets.deviation()
    ended = astra_sim.run(tools.astra, prefix, tools.work / "run").ended_ns
    last = {r: max(ns for (rank, _), ns in ended.items() if rank == r) for r in ets.span_ns}
    return 100 * max((last[r] / ns - 1 for r, ns in ets.span_ns.items()), key=abs)


def last_message(tools: Tools) -> str:
    """Pipelines, of which ranks end with a send or receive, on seeds of the benchmark of changes."""
    ran = passed = 0
    for seed in range(3000, 3004):
        trace = predictions.read(simulate(families.pipeline(seed)), tools.work / f"pipeline{seed}")
        for mode in MODES:
            prefix = tools.ets(trace, mode)
            ran, passed = ran + 1, passed + check.check(prefix).runs
            passed -= bool(np.isnan(tools.end_ns(prefix, gbs=100)))
    return f"{passed} of {ran} ETs run to the end, as `chopper-check` says"


def starts(tools: Tools) -> str:
    cells = []
    for name, trace in torchrec_runs().items():
        prefix = tools.ets(trace, "gpu")
        off = np.abs(np.concatenate(_start_errors_ns(tools, prefix)))
        middle, outer, last = np.percentile(off, (50, 95, 100))
        cells.append(f"{name} {middle / 1e3:.0f} µs, {ms(outer)} ms, {ms(last)} ms")
    return "; ".join(cells) + " (median, 95 %, largest)"


def _start_errors_ns(tools: Tools, prefix: Path) -> list[np.ndarray]:
    """By how much later than measured GPU work of each NPU starts in a replay.

    A receive is none: where a stream has an NPU of its own, receives of others stand for its work.
    """
    ets = read_ets(prefix)
    if tools.astra is None:
        job = ets.job._replace(role=np.zeros_like(ets.job.role))
        start_ns = simulator.run(job, ets.npus).end_ns - job.duration
        issued = dict(zip(zip(job.rank, job.order, strict=True), start_ns, strict=True))
    else:
        issued = astra_sim.run(tools.astra, prefix, tools.work / "run").issued_ns
    errors = []
    for npu in range(ets.npus):
        _, nodes = schedule.messages(prefix.with_name(f"{prefix.name}.{npu}.et"))
        facts = {n.id: schedule.attributes(n) for n in nodes if n.type != NodeType.COMM_RECV}
        work = [i for i, f in facts.items() if not f["is_cpu_op"] and "cause" not in f]
        errors.append(np.array([issued[npu, i] - facts[i]["start_ns"] for i in work]))
    return errors


def concurrent_streams(tools: Tools) -> str:
    if tools.trace_diff is None:
        return "not run (needs `--trace-diff`)"
    cells = []
    for path in sorted(tools.trace_diff.rglob("*.json*")):
        trace = ci.read(path)
        deviations = [f"{deviation(tools, trace, mode):+.2f}" for mode in MODES]
        cells.append(f"{path.name.partition('.')[0]} {' / '.join(deviations)} %")
    return ", ".join(cells)


def qwen_paths(_: Tools) -> str:
    cells = []
    for gpu in ("h100", "mi300x"):
        summary = ci.analyze(
            read(f"{gpu}/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"), "critical_path"
        ).summary
        shares = [
            100 * summary[f"{part}_ns"] / summary["path_ns"] for part in ("compute", "runtime")
        ]
        cells.append(f"{gpu.upper()} {shares[0]:.1f} % compute, {shares[1]:.1f} % runtime")
    return "; ".join(cells)


@cache
def straggler_job(name: str) -> ci.Trace:
    """Operations of a production job, read by the tests' plug-in."""
    listed = registry.converters
    registry.converters = lambda: listed() | {straggler_jobs.JOBS.name: straggler_jobs.JOBS}
    try:
        path = SHARED / f"straggler_production/trace-{name}.parquet"
        return ci.read(path, from_format=straggler_jobs.JOBS.name)
    finally:
        registry.converters = listed


def slowdowns(_: Tools) -> str:
    cells = []
    for name in ("AR", "ST"):
        summary = ci.analyze(straggler_job(name), "stragglers").summary
        kept = summary["job_slowdown_with_delays_factor"]
        cells.append(
            f"{name} {summary['job_slowdown_factor']:.5f} ({kept:.3f} with unexplained delays)"
        )
    return ", ".join(cells) + "; SE is held back"


def what_if_slowdowns(_: Tools) -> str:
    cells = []
    for name in ("AR", "ST"):
        rows = ci.analyze(straggler_job(name), "what_if", change="delays=0; ideal").rows.to_pylist()
        after = {row["change"]: row["after_ns"] for row in rows}
        cells.append(f"{name} {after['delays=0'] / rows[-1]['after_ns']:.5f}")
    return ", ".join(cells)


def late_rank(_: Tools) -> str:
    summary = ci.analyze(read("ddp_resnet_4rank_amd"), "stragglers")
    first = summary.rows.slice(0, 1).to_pylist()[0]
    figures = summary.summary
    return (
        f"rank {figures['slow_rank']}, {figures['cause']}, last at {first['times_last']} of 21, "
        f"gain {ms(figures['rank_gain_ns'])} ms"
    )


def rooflines(tools: Tools) -> str:
    if tools.astra is None:
        return "not run (needs `--astra-sim`)"
    jobs = {"DDP": read("ddp_resnet_4rank_amd"), "DLRM": read("dlrm_8rank_v100/kineto")}
    return ", ".join(f"{n} {roofline(tools.ets(t, 'gpu'), tools.astra)}" for n, t in jobs.items())


@dataclass(frozen=True)
class Row:
    """A case: what it is, what should be, and what gives the figures."""

    case: str
    due: str
    now: Callable[[Tools], str]


ROWS = {
    "blocking-copy": Row(
        "a host that waits in blocking copies (made job), kernels x 0.1", "as `what_if`", blocking_copy,
    ),
    "ddp-compute": Row(
        "DDP ResNet, compute x 0.5 / x 2, network of 100 GB/s", "as `what_if`", ddp_compute,
    ),
    **{
        f"ddp-network-{gbs}": Row(
            f"DDP on a network of {gbs} GB/s", "as `what_if`", partial(ddp_network, gbs)
        )
        for gbs in (1, *BANDWIDTHS_GBS[:-1])
    },
    "unexplained": Row(
        "share of the critical path without a cause, mode gpu", "what the host itself does is work", unexplained,
    ),
    "replay": Row(
        "torchrec jobs in mode gpu, a vLLM graph in mode full, replayed", "within 0.5 %", deviations,
    ),
    "last-message": Row(
        "ranks that end with a send or receive", "run to the end", last_message,
    ),
    "starts": Row(
        "start of GPU work in a replay, mode gpu, torchrec", "as measured", starts,
    ),
    "streams": Row(
        "concurrent compute streams (HTA's `trace_diff`), gpu / full", "measured span", concurrent_streams,
    ),
    "path": Row(
        "critical path of Qwen, recorded from a busy GPU on", "88 % compute", qwen_paths,
    ),
    "slowdown": Row(
        "slow-down S of production jobs (OSDI'25)", "AR 1.973, ST 1.179", slowdowns,
    ),
    "what-if-slowdown": Row(
        'the same by `what_if "delays=0"` against `"delays=0; ideal"`', "the same", what_if_slowdowns,
    ),
    "late-rank": Row(
        "late rank of `ddp_resnet_4rank_amd`", "rank 3, its host, last at 21 of 21", late_rank,
    ),
    "roofline": Row(
        "compute nodes that do not last as a roofline of their figures demands", "none", rooflines,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("row", nargs="*", help="rows by name, by default all")
    parser.add_argument("--astra-sim", type=Path)
    parser.add_argument("--trace-diff", type=Path)
    parser.add_argument("--list", action="store_true", help="list the names of the rows")
    options = parser.parse_args()
    if options.list:
        print("\n".join(ROWS))
        return
    print("| row | case | should be | is |\n|---|---|---|---|", flush=True)
    for name in options.row or ROWS:
        row = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            now = row.now(Tools(options.astra_sim, options.trace_diff, Path(folder)))
        print(f"| `{name}` | {row.case} | {row.due} | {now} |", flush=True)


if __name__ == "__main__":
    main()
