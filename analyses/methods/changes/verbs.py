"""All kinds of changes, as text and on a timing model.

A change names what is different, and on which nodes: ``"scale=0.5 where kind == 'kernel'"``. Several
changes are separated by ``;``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chopper_interop import pandas_view
from chopper_interop.analyses.methods.changes import (
    buckets,
    operations,
    own_times,
    pipelines,
    transfers,
    values,
)
from chopper_interop.analyses.methods.changes.changer import (
    Change,
    ChangedJob,
    ChangedTimes,
    Changer,
    Verb,
    total_ns,
)
from chopper_interop.analyses.methods.changes.overwriting import LastChanges
from chopper_interop.analyses.methods.dvfs import target_clocks
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.timing import variation

_CHANGE_PATTERN = re.compile(r"\s*(.*?)(?:\s*\bwhere\b\s*(.*?))?\s*", re.DOTALL)
_PART_PATTERN = re.compile(r"""((?:[^;'"]|'[^']*'|"[^"]*")*)(?:;|$)""")
_HINT = "as in scale=0.5 where kind == 'kernel'"
_OTHER_GPU = ("gpu", "device", "hardware")
_BY_OPERATION = (
    "say what is known of it, as in scale=0.6 where operation == 'aten::mm'; bandwidth=2; "
    "or convert to et/ for a simulator"
)
_PLANS = ("buckets", "pipeline")
"""Kinds of plans in the order in which they are carried out: the last ones state times alone."""


def _sets_time(time: values.Time) -> bool:
    return not time.is_added


VERBS = {
    "scale": Verb("scale=FACTOR", values.factor, {}, own_times.scale),
    "remove": Verb("remove", values.no_value, {}, own_times.remove),
    "median": Verb("median=both|ranks|iterations", values.across, {}, own_times.median),
    "ideal": Verb("ideal", values.no_value, {}, own_times.ideal_times),
    "launch": Verb("launch=0|5us|+2us", values.time, {}, operations.launch, _sets_time),
    "calls": Verb("calls=0|5us|+2us", values.time, {}, operations.calls, _sets_time),
    "bandwidth": Verb(
        "bandwidth=FACTOR|50GB/s|50GiB/s latency=5us ranks=16",
        values.speed,
        {"latency": values.latency, "ranks": values.group_size},
        transfers.bandwidth,
        lambda speed: not speed.is_factor,
    ),
    "clock": Verb(
        "clock=1900|0.9x|max1900 beta=0..1",
        target_clocks.parse_clock,
        {"beta": values.beta},
        own_times.clock,
    ),
    "delays": Verb("delays=FACTOR", values.factor, {}, own_times.delays),
    "ranks": Verb(
        "ranks=16 latency=5us",
        values.other_group_size,
        {"latency": values.optional_latency},
        transfers.ranks,
    ),
    "nowait": Verb("nowait", values.no_value, {}, own_times.nowait),
    "insert": Verb("insert=50us", values.length, {}, operations.insert),
    "fuse": Verb("fuse=FACTOR", values.fusion_factor, {}, operations.fuse),
    "buckets": Verb(
        "buckets=25MB|25MiB latency=5us first=1MB",
        values.size,
        {"latency": values.optional_latency, "first": values.optional_size},
        buckets.plan_buckets,
    ),
    "microbatches": Verb(
        "microbatches=16 stages=8",
        values.count,
        {"stages": values.optional_count},
        pipelines.pipeline,
    ),
    "stages": Verb(
        "stages=8 microbatches=16",
        values.count,
        {"microbatches": values.optional_count},
        pipelines.pipeline,
    ),
}
"""Kinds of changes by name.

``scale``: multiply the own time of nodes: of GPU work its duration, of collectives their transfer, of
host nodes the host's time within them. ``remove``: the same by 0, and launches by these calls reach
the GPU at once. ``median``: own time becomes the median of that of counterparts. ``ideal``:
the mean of all operations of a type, of transfers the median, as `stragglers` defines it. ``launch``: the
least time from a launching call to the start of its work. ``calls``: time of the host in launching
calls. ``bandwidth``: transfers become faster by that factor, except for a fixed latency; with a unit
they take what rings take over links of that bandwidth, with that latency a step
(`methods.communication.network`). ``clock``:
kernels run at another core clock (MHz, a factor to their own, or a limit), by their sensitivities to
the clock as the trace shows them, or by t (beta measured / new + 1 - beta). ``delays``: multiply waits
that have no known reason. ``nowait``: calls return without the GPU work that they waited for, and behind
calls that launched kernels for which their thread polled it goes on at once. ``insert``: an operation
of that time before each node, on its stream or thread, there with the usual gap behind it. ``fuse``: selected GPU work
that follows each other on a stream becomes one piece, with one launch and that factor to its durations. ``ranks``:
collectives of groups of another size, as for another number of data-parallel ranks like those of the trace, over the
network as measured; of ``bandwidth``, over the network that it states. ``buckets``: gradients are reduced in buckets of
that size, the first in one of another (`changes.buckets`); ``latency``, of each step of a ring, is taken from the trace
if not given.
``microbatches``, ``stages``: pipelines with other numbers of them (`changes.pipelines`).
"""


def parse_changes(text: str) -> list[Change]:
    """Parse changes such as ``"scale=0.5 where rank == 3; launch=0"``.

    Raises
    ------
    UsageError
        The text cannot be parsed, or has no change.
    """
    parts = _split(text)
    if not parts:
        raise OptionError(f"change={text}: it has no change", hint=_verbs_hint())
    return [_parse_change(part) for part in parts]


def apply_changes(changer: Changer, changes: Sequence[Change]) -> ChangedTimes:
    """Return lags and delays of a model under changes, each applied to the result of those before.

    Parameters
    ----------
    changer
        Of the model.
    changes
        Changes as `parse_changes` returns them.

    Raises
    ------
    OverwritingError
        One of them would undo another.
    """
    timing = changer.timing
    now = changer.as_measured()
    last = LastChanges(changes, VERBS, timing.trace.nodes.num_rows, len(now.lag_ns))
    limit = max(total_ns(now), paths.MAX_TOTAL_NS)
    for number, change in enumerate(changes):
        chosen = changer.chosen(change)
        now.notes["nodes chosen"] += int(np.count_nonzero(chosen))
        before_ns = now.lag_ns.copy()
        VERBS[change.verb].apply(changer, now, change, chosen)
        last.add(number, before_ns, now, chosen)
        if total_ns(now) > limit:
            raise UsageError(
                f"change={change.text}: all times together are too long to compute with",
                hint="choose smaller factors or times",
            )
    return now


def changed_job(changer: Changer, now: ChangedTimes) -> ChangedJob:
    """Re-time a job with these lags and delays, and with the plans that were made."""
    timing = changer.timing
    lag = variation.with_own_times(timing, now.lag_ns)
    lag, delay = variation.on_edges(timing, lag, now.delay_ns + now.inserted_ns)
    job = ChangedJob(timing, lag, delay, timing.retimed(lag, delay))
    for kind in _PLANS:
        if kind in now.plans:
            job = now.plans[kind](job)
    return job


def _split(text: str) -> list[str]:
    """Split at semicolons outside of quotes."""
    parts, start = [], 0
    while start < len(text):
        match = _PART_PATTERN.match(text, start)
        if match is None or match.end() == start:
            raise OptionError(f"change={text}: a quote is not closed")
        parts.append(match[1].strip())
        start = match.end()
    return [part for part in parts if part]


def _parse_change(text: str) -> Change:
    """Parse ``"verb=value option=value where query"``."""
    match = _CHANGE_PATTERN.fullmatch(text)
    head, query = (match[1], match[2]) if match else (text, None)
    if query is not None and not query:
        raise OptionError(f"change={text}: there is no condition behind where", hint=_HINT)
    words = [word.partition("=") for word in head.split()]
    if not words:
        raise OptionError(f"change={text}: it does not say what changes", hint=_verbs_hint())
    name, equals, value = words[0]
    if name not in VERBS:
        if name in _OTHER_GPU:
            raise OptionError(
                f"change={text}: times on another GPU are not predicted", hint=_BY_OPERATION
            )
        near = difflib.get_close_matches(name, VERBS, 1)
        hint = f"did you mean {VERBS[near[0]].syntax}?" if near else _verbs_hint()
        raise OptionError(f"change={text}: there is no {name!r}", hint=hint)
    verb = VERBS[name]
    options = {key: parse("") for key, parse in verb.options.items()}
    for key, _, option in words[1:]:
        if key not in options:
            near = difflib.get_close_matches(key, options, 1)
            takes = f"{name} takes {', '.join(options) or 'no options'}; {_HINT}"
            hint = f"did you mean {near[0]!r}?" if near else takes
            raise OptionError(f"change={text}: {name} has no option {key!r}", hint=hint)
        options[key] = _parse_value(verb.options[key], option, text, verb)
    if query:
        pandas_view.check_query(query, f"change={text}")
    if equals and not value:
        raise OptionError(f"change={text}: there is no value behind {name}=", hint=verb.syntax)
    return Change(
        name, _parse_value(verb.value, value, text, verb), query or "", options, text=text
    )


def _parse_value(parse: Callable[[str], Any], value: str, text: str, verb: Verb) -> Any:
    """Parse a value; the error of one that cannot be parsed names the change `text`."""
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(f"change={text}: {error}", hint=f"write {verb.syntax}") from error


def _verbs_hint() -> str:
    """Syntax of all changes, for messages."""
    return "there are " + "; ".join(verb.syntax for verb in VERBS.values())
