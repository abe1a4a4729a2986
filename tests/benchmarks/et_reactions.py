"""How ETs of real jobs react to changes, compared with the timing model, in percent of the measured time.

For each job and mode the deviation of the worst rank from its measured span; for each change by how much more the
ETs gain than the model predicts, and what it predicts. Usage:
``python tests/benchmarks/et_reactions.py JOB … [--mode gpu full] [--streams HOW] [--astra-sim PATH]``.
ETs are run by `converters.chakra.run`. With ASTRA-sim also there, replayed, and over networks of 25, 50 and 100 GB/s:
by how much more the time changes with the bandwidth than predicted; and with a roofline model, how many nodes do not last
as their operations and bytes demand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import astra_sim
import numpy as np
import schedule
from programs.program import Change

import chopper_interop as ci
from chopper_interop.analyses.methods.changes import changer, verbs
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import check, comms, host_chain
from chopper_interop.converters.chakra import run as simulator
from chopper_interop.converters.chakra.checks import findings, jobs
from chopper_interop.converters.chakra.decode import decode
from chopper_interop.converters.chakra.planning.build import planned
from chopper_interop.converters.chakra.planning.plan import Mode
from chopper_interop.errors import ChopperError
from chopper_interop.io.inputs import read
from chopper_interop.schemas.kinds import Kind
from chopper_interop.timing.model import takes_time, timing_of

if TYPE_CHECKING:
    from chopper_interop.arrays import Array

COMPUTE = ("kernel", "memcpy", "memset")
BANDWIDTHS = (100, 50, 25)
PEAK_TFLOPS = 100.0


@dataclass(frozen=True)
class Ets:
    """ETs of a job, as read back: nodes of all ranks one after the other.

    Parameters
    ----------
    job
        As `converters.chakra.run` takes them.
    kind, name
        Of each node; "" where an ET does not state it.
    span_ns
        Measured spans by rank.
    npus
        How many NPUs they are for: of ranks, and of streams.
    """

    job: simulator.JobNodes
    kind: Array
    name: Array
    span_ns: dict[int, int]
    npus: int

    def makespan_ns(self, duration: Array) -> int:
        """End of the last node of ranks that wait for each other."""
        outcome = simulator.run(self.job._replace(duration=duration), self.npus)
        return 1000 * outcome.makespan_us

    def deviation(self) -> float:
        """Deviation of the worst rank from its measured span, each rank by itself."""
        alone = self.job._replace(role=np.zeros_like(self.job.role))
        end_ns = simulator.run(alone, self.npus).end_ns
        off = [end_ns[self.job.rank == r].max() / ns - 1 for r, ns in self.span_ns.items()]
        return 100 * max(off, key=abs)

    def changed(self, change: Change) -> Array:
        """Durations with a change."""
        compute = np.isin(self.kind, COMPUTE)
        chosen = {
            "compute": compute,
            "kernel": (self.kind == "kernel") & (self.name == change.name),
            "rank": compute & (self.job.rank % len(self.span_ns) == change.rank),
            "communication": self.kind == "comm",
        }[change.of]
        scaled = np.maximum(np.rint(self.job.duration * change.factor).astype(np.int64), 1)
        return np.where(chosen, scaled, self.job.duration)


def read_ets(prefix: Path) -> Ets:
    """Read the ETs ``PREFIX.0.et`` and so on."""
    findings_of_ets = findings.Findings()
    ets = [et for _, et in check.read_files(prefix, findings_of_ets)]
    check.read_spans(ets, findings_of_ets)
    job = jobs.job_of(ets, check.read_groups(prefix, len(ets), findings_of_ets))
    # the check decodes what feeders read, and kinds are not of that
    paths = (prefix.with_name(f"{prefix.name}.{rank}.et") for rank in range(len(ets)))
    texts = [decode(read(path).copy(), ("kind",)).texts("kind") for path in paths]
    kinds = [np.array([*listed, ""], object)[codes] for codes, listed in texts]
    if not any((kind == "kernel").any() for kind in kinds):
        raise ValueError(f"{prefix}: no node is a kernel, so that changes would change nothing")
    names = [np.array([et.name(r) for r in range(len(et.id))], object) for et in ets]
    return Ets(job, np.concatenate(kinds), np.concatenate(names), findings_of_ets.span_ns, len(ets))


def changes_of(trace: ci.Trace) -> list[tuple[Change, str]]:
    """Changes, each also as `what_if` takes it."""
    kind, compute = trace.array("kind"), f"kind in {list(COMPUTE)}"
    listed = []
    if is_any(kind, (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)).any():
        listed = [(Change("compute", f), f"scale={f} where {compute}") for f in (0.1, 0.5, 2)]
    rows = np.flatnonzero(kind == Kind.KERNEL)
    if rows.size:
        spent = np.bincount(trace.array("name")[rows], weights=trace.array("dur")[rows])
        name = str(trace.names()[int(spent.argmax())])
        query = f"kind == 'kernel' and name == {name!r}"
        listed.append((Change("kernel", 2, name=name), f"scale=2 where {query}"))
    if len(trace.ranks) > 1:
        query = f"{compute} and rank == {trace.ranks[1]}"
        listed.append((Change("rank", 1.25, rank=1), f"scale=1.25 where {query}"))
    if (kind == Kind.COMM).any():
        query = "kind == 'comm'"
        listed += [(Change("communication", f), f"scale={f} where {query}") for f in (0.5, 2)]
    return listed


class Model:
    """Times of a job as its timing model predicts them, for the nodes that ETs of a mode have."""

    def __init__(self, trace: ci.Trace, mode: str) -> None:
        self.timing = timing_of(trace)
        self.changer = changer.Changer(self.timing)
        moves = takes_time(trace) & ~host_chain.watching_threads(trace)[trace.array("lane")]
        self.planned = np.repeat(planned(trace, Mode(mode)) & moves, 2)

    def end_ns(self, text: str) -> int:
        """End of the last node with a change, on the trace's axis."""
        now = verbs.apply_changes(self.changer, verbs.parse_changes(text))
        at = verbs.changed_job(self.changer, now).at_ns
        return int(at[: len(self.planned)][self.planned].max())


def reactions(
    trace: ci.Trace, mode: str, streams: str, folder: Path, astra: Path | None
) -> list[str]:
    """Columns of one job, mode and way of running streams."""
    log = ci.write(trace, folder / "job.et", mode=mode, streams=streams)
    issues = {i.code: i.count for i in log}
    ets, model = read_ets(folder / "job"), Model(trace, mode)
    before, measured = ets.makespan_ns(ets.job.duration), model.end_ns("scale=1")
    step = max(ets.span_ns.values())
    cells = [f"{step / 1e6:.3f} ms", f"replay {ets.deviation():+.2f}"]
    for change, text in changes_of(trace):
        gain = measured - model.end_ns(text)
        off = before - ets.makespan_ns(ets.changed(change)) - gain
        label = f"{change.of} x {change.factor}"
        cells.append(f"{label} {100 * off / step:+.2f} ({-100 * gain / step:+.0f})")
    if astra:
        cells += simulated(
            folder / "job", astra, ets, model, assumed="comm-size-from-time" in issues
        )
    return [*cells, f"overlapped {issues.get('et-work-overlapped', 0)}"]


def simulated(prefix: Path, binary: Path, ets: Ets, model: Model, *, assumed: bool) -> list[str]:
    """Columns of ASTRA-sim; of assumed sizes `what_if` has none, and takes the ratio to the assumed bandwidth."""
    step = max(ets.span_ns.values())
    ran = astra_sim.run(binary, prefix, prefix.parent / "run")
    cells = [f"ASTRA-sim {_worst(ran, ets.span_ns):+.2f}", roofline(prefix, binary)]
    if not (ets.kind == "comm").any() or len(ets.span_ns) == 1:
        return cells
    times = {}
    for bandwidth in BANDWIDTHS:
        ran = astra_sim.run(
            binary,
            prefix,
            prefix.parent / "run",
            replay=False,
            bandwidth_gbps=bandwidth,
        )
        network = f"{bandwidth / comms.NOMINAL_GBS}" if assumed else f"{bandwidth}GB/s"
        times[bandwidth] = _end_ns(ran), model.end_ns(f"bandwidth={network}")
    (first, predicted), *_ = times.values()
    for bandwidth, (end, model_end) in times.items():
        off = (end - first) - (model_end - predicted)
        cells.append(
            f"{bandwidth} GB/s {100 * off / step:+.2f} ({100 * (model_end - predicted) / step:+.0f})"
        )
    return cells


def roofline(prefix: Path, binary: Path) -> str:
    """How many compute nodes of the first rank do not last as a roofline of their figures demands."""
    metadata, nodes = schedule.messages(prefix.with_name(f"{prefix.name}.0.et"))
    memory = next(a.int64_val for a in metadata.attr if a.name == "roofline_gbs")
    ran = astra_sim.run(
        binary, prefix, prefix.parent / "run", replay=False, roofline=(PEAK_TFLOPS, memory)
    )
    count = off = 0
    for node in nodes:
        facts = schedule.attributes(node)
        if "num_ops" in facts:
            due_ns = max(facts["num_ops"] / (1e3 * PEAK_TFLOPS), facts["tensor_size"] / memory)
            lasted_ns = ran.ended_ns[0, node.id] - ran.issued_ns[0, node.id]
            count, off = count + 1, off + (abs(lasted_ns - due_ns) > 1 + 0.001 * due_ns)
    return f"roofline {off} of {count} off"


def _worst(ran: astra_sim.Simulated, span_ns: dict[int, int]) -> float:
    """Deviation of the worst rank, with its streams' NPUs, from its measured span."""
    end_ns = dict.fromkeys(span_ns, 0 if ran.finished_ns else float("nan"))
    for (npu, _), ns in ran.ended_ns.items():
        rank = npu % len(span_ns)
        end_ns[rank] = max(end_ns[rank], ns)
    return 100 * max((end_ns[r] / ns - 1 for r, ns in span_ns.items()), key=abs)


def _end_ns(ran: astra_sim.Simulated) -> float:
    return max(ran.ended_ns.values(), default=0) if ran.finished_ns else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", nargs="+", type=Path)
    parser.add_argument("--mode", nargs="*", default=["gpu", "full"])
    parser.add_argument("--streams", default="auto", help="as the ET writer takes it")
    parser.add_argument("--astra-sim", type=Path)
    options = parser.parse_args()
    for path in options.job:
        for mode in options.mode:
            label = f"{path.parent.name}/{path.name}"[-44:]
            with tempfile.TemporaryDirectory() as folder:
                try:
                    cells = reactions(
                        ci.read(path), mode, options.streams, Path(folder), options.astra_sim
                    )
                except (ChopperError, ValueError) as error:
                    cells = [str(error)]
            print(f"{label:44} {mode:4}", "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
