"""The answer in a few lines: what a step consists of, what binds, who is late, and what to do first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from chopper_interop import number_ranges
from chopper_interop.analyses.methods import needs
from chopper_interop.analyses.methods.activity import pieces, step_times, warm_up, windows
from chopper_interop.analyses.methods.communication import instances
from chopper_interop.analyses.methods.findings import catalogue, finding
from chopper_interop.analyses.methods.findings.job import ExaminedJob, options_text, ranks_text
from chopper_interop.analyses.methods.findings.missing import missing, sentence
from chopper_interop.analyses.methods.findings.ranks import (
    certainty_of_link,
    is_sure,
    late_together,
)
from chopper_interop.analyses.methods.fleet.compared_job import GAIN_COLUMNS
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.analyses.methods.timing.paths import CLASS_GROUPS
from chopper_interop.annotate.counters.dispatches import base_name
from chopper_interop.grouping import by_key
from chopper_interop.issues import Severity
from chopper_interop.percents import percent
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.meta import ORDER
from chopper_interop.trace import Trace

__all__ = ["summary"]

_LONG_NS = 10**10
"""Time from which on seconds are read more easily than milliseconds."""
_MAX_FINDINGS = 5
_MAX_PARTS = 3
"""Gaps in the numbers of steps that are written. Chosen: of more the first and last say enough."""
_MAX_SHARES = 3
"""Causes and classes that a line names. Chosen: they fit a line, and the rest is small."""
_MIN_COMPUTE = 0.5
"""Share of the step from which on kernels are named where nothing was found. Chosen: then they are most of it."""
_MAX_NAME = 40
"""Letters of a kernel's name. Chosen: three fit two lines."""
_MIN_SHOWN = 0.0005
"""Smallest share that is written: less would read 0.0 %."""
_MIN_GAPS = 0.1
"""Share of the critical path from which on time of the host without a record is named. Chosen for gaps that may be waits: of 18 real jobs
15 have up to 8.3 %, one in which DeepEP waits for its kernels 60 %, two of torchrec 19 and 23 %."""
_NEARLY_ALL = 0.9
"""Share from which on time for no recorded reason is that before the first work. Chosen: the rest is too little to speak of."""
_CAUSES = {
    "host_late": "host late", "sync": "waits of the host", "launch": "launches",
    "kernel_to_kernel": "between kernels", "event": "other streams", "peer": "other ranks",
    "window": "before and after all work", "unknown": "unknown",
}  # fmt: skip
"""Causes of idle time as `idle` names them, in words."""
_CONVENTIONS = {
    "step": step_times.DEFINITION,
    "shares": "of the length of the job's steps that count, times the ranks with GPU work that have them: what a rank is "
    "without work within them is idle; compute, exposed communication, copies and idle time add up to 100 %",
    "findings": "see the analysis findings",
}


def summary(trace: Trace, *, steps: str = "", ranks: str = "") -> Result:
    """Answer in at most 15 lines why steps take as long as they do.

    Parameters
    ----------
    steps
        Training steps, ``10`` or ``10-12``; ``each`` for all of them, all but a warm-up if empty.
    ranks
        Ranks that count: ``0,4-7``; all by default. Steps are of these; late ranks are compared with all.

    Returns
    -------
    Result
        One row a line: `topic` (``read``, ``trust``, ``step``, ``idle``, ``binds``, ``late``,
        ``clock``, ``finding``, ``kernels``, ``more``, ``record``) and `text`. The summary has the figures of these
        lines, and under `findings` the rows of `findings`.
    """
    job, ranked = catalogue.find(trace, steps, ranks)
    findings = finding.to_table(ranked, job.step_ns).to_pylist()
    figures = _read(trace, job) | _step(job) | _late(job, ranked) | _clock(job)
    absent, first = missing(trace), warm_up.steps(trace)
    figures["not_recorded"] = [need.name for need in absent]
    lines = [
        *_lines(
            trace, job, figures, number_ranges.named("step", first) if first and not steps else ""
        )
    ]
    if job.has_times and not _is_apart(job):
        lines += _finding_lines(findings, options_text(steps, ranks), has_steps=job.has_steps)
        if not findings and figures.get("compute_share", 0) >= _MIN_COMPUTE:
            lines.append(("kernels", _kernels_text(job)))
        lines += [("record", sentence(absent))] if absent else []
    topic, text = zip(*lines, strict=True)
    rows = pa.table({"topic": pa.array(topic, pa.string()), "text": pa.array(text, pa.string())})
    notes = _of_input(trace) | ({} if steps else warm_up.left_out(trace))
    figures["findings"] = findings
    return Result("summary", rows, figures, _CONVENTIONS, notes=notes)


def _read(trace: Trace, job: ExaminedJob) -> dict[str, Any]:
    """Figures of what was read and how far it can be trusted."""
    losses: dict[str, int] = {}
    for issue in trace.meta.issues:
        if issue.severity is not Severity.INFO:
            losses[issue.code] = losses.get(issue.code, 0) + issue.count
    work = int(job.on_gpu.sum())
    comm_ns = trace.array("dur")[trace.array("kind") == Kind.COMM]
    uncertainty = instances.rank_uncertainties(trace)
    return {
        "formats": sorted({source.format for source in trace.meta.sources}),
        "ranks": len(trace.ranks),
        "world_size": parallelism.world_size(trace),
        "steps": job.steps if job.has_steps else 0,
        "operations": trace.nodes.num_rows,
        "gpu_work": work,
        "losses": losses,
        "launch_known_share": float((trace.launch[job.on_gpu] >= 0).mean()) if work else None,
        "comm_timed_share": float((comm_ns > 0).mean()) if comm_ns.size else None,
        "clock_uncertainty_ns": max(uncertainty.values(), default=0),
        "clock_unknown": instances.ranks_apart(trace),
    }


def _of_input(trace: Trace) -> dict[str, str]:
    """Notes on the input: each kind of fault with its number, what it means, and an example."""
    notes = {}
    for code, same in by_key(trace.meta.issues, lambda issue: issue.code).items():
        example = next((f" Example: {one.example}" for one in same if one.example), "")
        notes[f"input: {code}"] = f"{sum(one.count for one in same):,}: {same[0].meaning}{example}"
    return notes


def _step(job: ExaminedJob) -> dict[str, Any]:
    """Length of steps, and what they consist of."""
    figures: dict[str, Any] = {
        "step_ns": job.step_ns,
        "step_min_ns": int(job.of_steps_ns.min(initial=job.step_ns)),
        "step_max_ns": int(job.of_steps_ns.max(initial=job.step_ns)),
    }
    figures |= _parts(job)
    path = job.figures("critical_path")
    length = path.get("path_ns") or 0
    for name, classes in CLASS_GROUPS.items() if length else ():
        figures[f"path_{name}_share"] = sum(path[f"{c}_ns"] for c in classes) / length
    parts = ("unknown", "unknown_first", "unknown_busy", "host_first", "host_gap_busy")
    for name in parts if length else ():
        figures[f"path_{name}_share"] = path[f"{name}_ns"] / length
    return figures


def _parts(job: ExaminedJob) -> dict[str, float | None]:
    """Shares of the step over all ranks with GPU work; none without any."""
    selected = job.windows()
    whole = sum(window.span_ns for window in selected)
    if not whole:
        return {}
    work = pieces.pieces_in_windows(job.trace, selected)
    times = pieces.class_times(work.patterns(work.window, len(selected)))
    parts = {"compute": "compute", "exposed_comm": "exposed_comm", "copy": "memcpy_only"}
    figures = {f"{n}_share": int(times[part].sum()) / whole for n, part in parts.items()}
    each = "each" if job.has_steps and not job.chosen_steps else job.chosen_steps
    waits = job.figures("taxes", steps=each).get("exposed_wait_ns")
    idle_ns = whole - int(times["busy"].sum())
    causes = job.figures("idle", steps=each)
    known = {name: causes[f"{name}_ns"] for name in _CAUSES if name != "window"}
    # causes are of each rank's own steps; the host before and after them is the rest, and where its own begin
    # before the job's, there is less idle time than they have
    scale = min(1.0, idle_ns / max(sum(known.values()), 1))
    of_cause = {name: scale * ns for name, ns in known.items()}
    of_cause["window"] = idle_ns - sum(of_cause.values())
    return {
        **figures,
        "exposed_wait_share": None if waits is None else waits / whole,
        "idle_share": idle_ns / whole,
        **{f"idle_{name}_share": of_cause[name] / whole for name in _CAUSES},
    }


def _late(job: ExaminedJob, ranked: list[finding.Finding]) -> dict[str, Any]:
    """The ranks, the stage or the link that are late and not by chance, with the cause."""
    compared = job.compared
    if compared is None:
        return {}
    rows, link = compared.by_gain, compared.slow_link
    late = next((row for row in rows if row["cause"] and is_sure(job, row)), None)
    stage = next((one for one in ranked if one.code == "straggling-stage"), None)
    if stage and late and stage.ranks == str(late["rank"]):
        late = None
    several = late_together(job, compared) if compared.slow_stage is None else None
    return {
        "late_rank": late and late["rank"],
        "late_cause": late and late["cause"],
        "late_saves_ns": late and late[GAIN_COLUMNS[late["cause"]]] // job.steps,
        "late_stage": stage and f"{stage.where} of the pipeline (ranks {stage.ranks})",
        "late_stage_saves_ns": stage.saves_ns if stage else 0,
        "late_ranks": ",".join(str(rank) for rank in sorted(row["rank"] for row in several[0]))
        if several
        else None,
        "late_ranks_save_ns": several[1] // job.steps if several else 0,
        "late_link": link and link["ranks"],
        "late_link_saves_ns": link["gain_ns"] // job.steps if link else 0,
        "late_link_certainty": link and certainty_of_link(job.trace),
    }


def _clock(job: ExaminedJob) -> dict[str, Any]:
    """Cost of the clock, if it was recorded."""
    known = job.figures("dvfs") if job.trace.has("gfxclk_mhz") else {}
    if known.get("ideal_step_low_ns") is None:
        return {}
    measured, ideal = known["measured_step_ns"], known["ideal_step_ns"]
    return {
        "clock_loss_ns": None if ideal is None else measured - ideal,
        "clock_loss_low_ns": measured - known["ideal_step_high_ns"],
        "clock_loss_high_ns": measured - known["ideal_step_low_ns"],
    }


def _lines(
    trace: Trace, job: ExaminedJob, figures: dict[str, Any], without: str
) -> Iterator[tuple[str, str]]:
    """Lines on the job as a whole."""
    yield "read", _read_text(trace, figures)
    yield "trust", _trust_text(figures)
    if _is_apart(job):
        yield (
            "step",
            "unknown, as these ranks were not recorded at one time: give one recording alone",
        )
        return
    if not job.has_times:
        yield "step", _why_no_times(trace)
        if trace.series.num_rows:
            names = " ".join(needs.supported(needs.held(trace)))
            yield "more", f"chopper-analyze RUN/ {names}: of the telemetry alone"
        return
    why = "no step before it was recorded" if warm_up.is_lag(trace) else "warm-up"
    left_out = f", without {without} ({why})" if without else ""
    yield "step", _length_text(job, figures) + left_out
    if "compute_share" in figures:
        yield "step", _consists_text(figures)
        idle = _shares({f"idle_{name}_share": text for name, text in _CAUSES.items()}, figures)
        if idle:
            yield "idle", idle
    path = _path_text(figures)
    if path:
        known = "" if "compute_share" in figures else ", as no GPU work is known"
        yield "binds", f"critical path: {path}{known}"
    if "late_rank" in figures:
        yield "late", _late_text(figures, is_part=parallelism.is_part(trace))
    if "clock_loss_ns" in figures:
        low, high = figures["clock_loss_low_ns"], figures["clock_loss_high_ns"]
        loss = figures["clock_loss_ns"]
        cost = f"{_ms(high)} a step at most; nothing shows how much of that"
        if loss is not None:
            cost = f"{_ms(loss)} a step ({_ms(low)} to {_ms(high)})"
        yield "clock", f"below its highest, it costs {cost}"


def _path_text(figures: dict[str, Any]) -> str:
    """Shares of the critical path; without launches, also its gaps in which other work ran."""
    names = {"compute": "compute", "host": "host", "comm": "communication", "copy": "copies"}
    has_launches = figures["launch_known_share"] != 0
    names["wait"] = "launches and waits" if has_launches else "gaps of unknown cause"
    part, text = (
        ("unknown", "for no recorded reason")
        if has_launches
        else ("unknown_busy", "while other work runs")
    )
    share = figures.get(f"path_{part}_share", 0.0)
    if share >= _MIN_SHOWN:
        whole, part_text = f"{figures.get('path_wait_share', 0.0):.1%}", f"{share:.1%}"
        if has_launches and figures["path_unknown_first_share"] >= _NEARLY_ALL * share:
            text = "before the first GPU work, perhaps for what ran before the recording"
        names["wait"] += f" ({'all' if part_text == whole else part_text} {text})"
    parts = {
        "path_host_gap_busy_share": "between its operations while the GPU works: a wait may be missing",
        "path_host_first_share": "before its first record",
    }
    of_host = [
        f"{figures[name]:.1%} {text}"
        for name, text in parts.items()
        if figures.get(name, 0.0) >= _MIN_GAPS
    ]
    names["host"] += f" ({', '.join(of_host)})" if of_host else ""
    return _shares({f"path_{name}_share": text for name, text in names.items()}, figures)


def _is_apart(job: ExaminedJob) -> bool:
    """True if nothing says how long it all took: no steps, and recordings of different times."""
    return not job.has_steps and windows.are_apart(job.trace)


def _read_text(trace: Trace, figures: dict[str, Any]) -> str:
    names = {rank.host for rank in trace.meta.ranks if rank.host}
    if not trace.nodes.num_rows:
        parts = [f"{_count(trace.samples.num_rows, 'sample')} of telemetry"]
    else:
        is_part = parallelism.is_part(trace)
        of_job = f"{figures['ranks']:,} of " if is_part else ""
        parts = [of_job + _count(figures["world_size"] if is_part else figures["ranks"], "rank")]
        parts += [_count(len(names), "host")] if len(names) > 1 else []
        parts += [_count(figures["steps"], "step")] if figures["steps"] else []
        parts += [_count(figures["operations"], "operation")]
    return ": ".join(filter(None, (", ".join(parts), ", ".join(figures["formats"]))))


def _trust_text(figures: dict[str, Any]) -> str:
    losses, known = figures["losses"], figures["launch_known_share"]
    lost = ", ".join(f"{code} {count:,}" for code, count in losses.items())
    parts = [f"lost or wrong: {lost}" if losses else "nothing was lost"]
    if known is not None and known < 1:
        parts.append(
            f"launches of {percent(known)} of the GPU's work are known"
            if known
            else "no launch of the GPU's work is known"
        )
    if figures["comm_timed_share"] == 0:  # of ETs, whose simulator computes it
        parts.append("communication has no durations and takes no time here")
    if figures["clock_uncertainty_ns"]:
        parts.append(f"ranks' clocks agree within {figures['clock_uncertainty_ns'] / 1e3:,.1f} µs")
    if figures["clock_unknown"]:
        parts.append(f"nothing relates the clock of {figures['clock_unknown']} to the others")
    return "; ".join(parts)


def _why_no_times(trace: Trace) -> str:
    """Reason why there is no length of a step, and what would have one."""
    if not trace.nodes.num_rows:
        return "no operations were recorded: give profiles of the job too"
    if trace.meta.clock != ORDER:
        return "all operations were recorded without a duration and at one time"
    return "no times were recorded: give a profile of the same job too"


def _length_text(job: ExaminedJob, figures: dict[str, Any]) -> str:
    if not job.has_steps:
        return f"{_ms(figures['step_ns'])} in all, as no training steps were recorded"
    if job.steps == 1:
        return f"{_ms(figures['step_ns'])}, step {job.iterations[0]}"
    ends = dict.fromkeys(_ms(figures[name]) for name in ("step_min_ns", "step_max_ns"))
    spread = " to ".join(ends) if len(ends) > 1 else f"each {next(iter(ends))}"
    numbers = ranks_text(job.iterations.tolist())
    if numbers.count(",") > _MAX_PARTS:
        numbers = f"{job.iterations[0]} to {job.iterations[-1]}"
    return f"{_ms(figures['step_ns'])}, mean of {job.steps} steps, {numbers} ({spread})"


def _consists_text(figures: dict[str, Any]) -> str:
    waits = figures["exposed_wait_share"]
    of_it = f" ({waits:.1%} waits)" if waits and waits >= _MIN_SHOWN else ""
    names = {"compute": "compute", "exposed_comm": f"exposed communication{of_it}"}
    names |= {"copy": "copies", "idle": "idle"}
    return ", ".join(
        f"{figures[f'{name}_share']:.1%} {text}"
        for name, text in names.items()
        if figures[f"{name}_share"] >= _MIN_SHOWN
    )


def _late_text(figures: dict[str, Any], *, is_part: bool) -> str:
    rank, link = figures["late_rank"], figures["late_link"]
    causes = {"gpu": "its GPU", "host": "its host", "delays": "for an unknown reason"}
    parts = []
    threshold_ns = finding.MIN_SHARE * figures["step_ns"]
    if rank is not None and (figures["late_saves_ns"] or 0) >= threshold_ns:
        cause = causes[figures["late_cause"]]
        parts.append(f"rank {rank}, {cause}: {_ms(figures['late_saves_ns'])} a step")
    if figures["late_stage_saves_ns"] >= threshold_ns:
        parts.append(f"{figures['late_stage']}: {_ms(figures['late_stage_saves_ns'])} a step")
    if figures["late_ranks_save_ns"] >= threshold_ns:
        several = number_ranges.describe(sorted(map(int, figures["late_ranks"].split(","))))
        parts.append(f"ranks {several}, their GPUs: {_ms(figures['late_ranks_save_ns'])} a step")
    if link is not None and figures["late_link_saves_ns"] >= threshold_ns:
        sure = "likely " if figures["late_link_certainty"] == finding.LIKELY else ""
        parts.append(f"{sure}the link between ranks {link}")
    text = "; ".join(parts) or "no rank and no link"
    return f"{text} (of those that were read)" if is_part else text


def _finding_lines(
    findings: list[dict[str, Any]], options: str, *, has_steps: bool
) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(findings[:_MAX_FINDINGS], 1):
        of = catalogue.CATALOGUE[row["code"]].step
        sure = f" of {of}" * bool(of) + ", likely" * (row["certainty"] == finding.LIKELY)
        saves = f"{number}. {_ms(row['saves_ns'])} ({row['share']:.1%}{sure})"
        yield "finding", f"{saves}: {row['finding']}"
    if findings:
        yield "more", f"chopper-analyze RUN/ findings{options}: all of them"
    else:
        yield "finding", finding.nothing_text(has_steps=has_steps)


def _kernels_text(job: ExaminedJob) -> str:
    """The functions on which GPUs work most, with their shares of the time of all work."""
    known = job.result("kernels")
    share: Counter[str] = Counter()
    for row in known.rows.select(["kernel", "share"]).to_pylist() if known else ():
        share[base_name(row["kernel"])[:_MAX_NAME]] += row["share"]
    shown = ", ".join(f"{part:.1%} {name}" for name, part in share.most_common(_MAX_SHARES))
    return f"{shown}: {job.command('kernels')}"


def _shares(names: dict[str, str], figures: dict[str, Any]) -> str:
    """The largest shares, the largest first."""
    known = {text: figures.get(name) or 0.0 for name, text in names.items()}
    order = sorted(known, key=lambda text: -known[text])[:_MAX_SHARES]
    return ", ".join(f"{known[t]:.1%} {t}" for t in order if known[t] >= _MIN_SHOWN)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ms(ns: float) -> str:
    """A time in milliseconds, or seconds from ten on, with four significant digits, at most three of them decimals."""
    factor, unit = (1e9, "s") if abs(ns) >= _LONG_NS else (1e6, "ms")
    digits = max(0, 3 - int(np.floor(np.log10(max(abs(ns) / factor, 1e-3)))))
    return f"{ns / factor:,.{min(digits, 3)}f} {unit}"
