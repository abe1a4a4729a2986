"""Tokens and samples of training steps, by the shapes that operators were called with.

Sources, of which the first that a rank has is used:

tokens
    Indices into the table of an embedding; of several tables that with most indices in all, so
    that positions and types of tokens do not count again. Else the targets of a loss, where these
    are of two dimensions, or the model has attention and no images.
samples
    Sequences of these indices (their first dimensions) or of the targets; else images that go into
    a convolution.

Calls in backward passes and recomputation do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.analyses.methods.communication import job_layout
from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.communication.job_layout import JobLayout, Replica

    Items = tuple[int, int]
    """Tokens and samples of a call, -1 where unknown."""
    Counts = dict[tuple[int, int], Items]
    """By rank and step."""
    Source = tuple[str, Counts]
    """Name of a source, and its counts."""

UNKNOWN = -1
_MAX_ITEMS = 1 << 48
"""Larger products of dimensions are damaged data; sums of these fit int64."""
_CHANNELS = 4
"""Channels that an image has at most: red, green, blue and alpha; later layers have more."""
_LOSSES = (
    "aten::cross_entropy_loss", "aten::nll_loss_nd", "aten::nll_loss_forward",
    "aten::nll_loss2d_forward",
)  # fmt: skip
_ATTENTION = re.compile(r"attention|flash_?attn|sdpa|fmha|\bflash", re.IGNORECASE)
_NOT_FORWARD = ("backward", "recompute", "optimizer")


@dataclass(frozen=True)
class Batches:
    """Tokens and samples of each step of the chosen ranks; None where not known.

    Parameters
    ----------
    tokens, samples
        By step, -1 for a trace without steps.
    tokens_from, samples_from
        Operators or options that they are taken from.
    layout
        The division of the job among ranks.
    share
        Share of the job's copies of the model that the chosen ranks are.
    """

    tokens: dict[int, float | None] = field(default_factory=dict)
    samples: dict[int, float | None] = field(default_factory=dict)
    tokens_from: str = "none"
    samples_from: str = "none"
    layout: JobLayout | None = None
    share: float = 1.0


def step_batches(trace: Trace, chosen: Collection[int], steps: Collection[int]) -> Batches:
    """Tokens and samples of steps.

    Parameters
    ----------
    chosen
        Ranks that count. Where they are but some of those that hold a copy of the model, they have
        so much of its tokens.
    steps
        Numbers of the steps; -1 for all of a trace without steps.
    """
    layout = job_layout.job_layout(trace)
    all_sources = _sources(trace)
    by_step: list[dict[int, float | None]] = []
    texts = []
    for unit in (_TOKENS, _SAMPLES):
        sources = [_source_of(all_sources, copy, unit) for copy in layout.replicas]
        numbers = {step: _of_step(layout, sources, unit, chosen, step) for step in steps}
        by_step.append(numbers)
        texts.append(
            _text(sources, layout) if any(numbers.values()) else "none: no shapes state them"
        )
    share = len(set(chosen)) / layout.world if layout.world else 1.0
    return Batches(by_step[0], by_step[1], texts[0], texts[1], layout, share)


def stated_batches(by_shape: Batches, tokens: int, samples: int, steps: Sequence[int]) -> Batches:
    """Batches by shapes, replaced by what the user states for a step of the whole job.

    Parameters
    ----------
    by_shape
        Batches by shapes.
    tokens, samples
        Of a step of the job, over all its ranks; 0 to take them from shapes.
    steps
        Numbers of the steps, as of `step_batches`.
    """
    numbers = [by_shape.tokens, by_shape.samples]
    texts = [by_shape.tokens_from, by_shape.samples_from]
    for unit, (name, value) in enumerate((("tokens", tokens), ("samples", samples))):
        if value:
            numbers[unit] = dict.fromkeys(steps, value * by_shape.share)
            texts[unit] = f"{name}={value} of a step of the job"
        elif not any(numbers[unit].values()):
            texts[unit] = f"{texts[unit]}; -O {name}=… says how many a step of the job has"
    return Batches(numbers[0], numbers[1], texts[0], texts[1], by_shape.layout, by_shape.share)


_TOKENS, _SAMPLES = range(2)


def _source_of(all_sources: list[Source], copy: Replica, unit: int) -> Source | None:
    """Return the first source that knows tokens or samples of a copy of the model."""
    members = set(copy.ranks)
    for text, counts in all_sources:
        if any(rank in members and items[unit] > 0 for (rank, _), items in counts.items()):
            return text, {key: items for key, items in counts.items() if key[0] in members}
    return None


def _of_step(
    layout: JobLayout, sources: list[Source | None], unit: int, chosen: Collection[int], step: int
) -> float | None:
    """Tokens or samples of a step; None unless they are known of all copies of the model."""
    total = 0.0
    for copy, source in zip(layout.replicas, sources, strict=True):
        share = len(set(copy.ranks) & set(chosen)) / len(copy.ranks)
        number = _of_replica(source, copy, layout, unit, step) if source else None
        if share and number is None:
            return None
        total += share * (number or 0.0)
    return total or None


def _of_replica(
    source: Source, copy: Replica, layout: JobLayout, unit: int, step: int
) -> float | None:
    """Tokens or samples of one copy of the model: of ranks that see the same, once."""
    total = 0.0
    for ranks in copy.same_data:
        known = [(rank, source[1][rank, step][unit]) for rank in ranks if (rank, step) in source[1]]
        if any(number < 0 for _, number in known):
            return None
        parts = [n / (layout.context.get(r, 1) if unit == _SAMPLES else 1) for r, n in known]
        total += max(parts, default=0.0)
    return total or None


def _text(sources: list[Source | None], layout: JobLayout) -> str:
    """Describe the sources of the numbers and the assumptions."""
    names = [source[0] for source in sources if source]
    parts = [
        f"{name} ({names.count(name)} copies of the model)" if len(set(names)) > 1 else name
        for name in dict.fromkeys(names)
    ]
    groups = (
        "process groups and pipelines say which ranks hold one copy of the model; all others have "
        "data of their own"
        if layout.is_stated
        else "no process group or pipeline says that ranks share a copy of the model, so each "
        "counts as having data of its own"
    )
    return f"shapes of {', '.join(parts)}; {groups}"


def _sources(trace: Trace) -> list[Source]:
    """List the sources of tokens and samples, the best first."""
    attends = any(_ATTENTION.search(name) for name in trace.names())
    images = _counted(trace, ("aten::conv2d", "aten::conv3d"), _image)
    sources = [("aten::embedding", _counted(trace, ("aten::embedding",), _indices))]

    def targets(dims: list[Any]) -> tuple[Any, Items] | None:
        return _targets(dims, is_text=attends and not images)

    if not images:
        sources += [(name, _counted(trace, (name,), targets)) for name in _LOSSES]
    return [*sources, ("convolutions of images", images)]


def _counted(
    trace: Trace, names: tuple[str, ...], items_of: Callable[[list[Any]], tuple[Any, Items] | None]
) -> Counts:
    """Tokens and samples by calls of operators, summed by rank and step.

    Parameters
    ----------
    names
        The operators.
    items_of
        Function from the dimensions of a call's inputs to what it is applied to, and its tokens
        and samples.
        Of several that it is applied to, on each rank that with most tokens or samples counts.
    """
    wanted = np.array([*(name in names for name in trace.names()), False])
    if not wanted.any():
        return {}
    rows = np.flatnonzero(wanted[trace.array("name")] & (trace.array("kind") == Kind.CPU_OP))
    rows = _innermost(trace, rows[~trace.is_text("phase", _NOT_FORWARD, rows)])
    if not rows.size:
        return {}
    code, values = arguments.values(trace, rows, "Input Dims")
    parsed = [_parsed(items_of, value) for value in values]
    known = np.array([*(one is not None for one in parsed), False])[code]
    rows, code = rows[known], code[known]
    if not rows.size:
        return {}
    tables = {repr(one[0]): n for n, one in enumerate(parsed) if one is not None}
    table = np.array([tables[repr(one[0])] if one else -1 for one in parsed])[code]
    items = np.array([one[1] if one else (-1, -1) for one in parsed], np.int64)[code]
    rank = trace.array("rank")[rows].astype(np.int64)
    largest = _largest(rank, table, items.max(axis=1))
    rank, rows, items = rank[largest], rows[largest], items[largest]
    step = trace.integers("iteration", rows)
    first, code = gather.distinct(rank, step)
    totals = []
    for column in items.T:
        total = gather.group_sums(code, column, len(first))
        unknown = gather.group_sums(code, column < 0, len(first)) > 0
        totals.append(np.where(unknown, UNKNOWN, total).tolist())
    keys = zip(rank[first].tolist(), step[first].tolist(), strict=True)
    return dict(zip(keys, zip(*totals, strict=True), strict=True))


def _largest(rank: Array, table: Array, size: Array) -> Array:
    """Mark calls on the table that has the most tokens or samples on their rank."""
    first, code = gather.distinct(rank, table)
    total = gather.group_sums(code, np.maximum(size, 0), len(first))
    order = np.lexsort((-total, rank[first]))
    best = order[np.flatnonzero(np.diff(rank[first][order], prepend=rank.min() - 1))]
    return np.asarray(np.isin(code, best))


def _parsed(items_of: Callable[[list[Any]], tuple[Any, Items] | None], dims: Any) -> Any:
    try:
        parsed = items_of([_shape(one) for one in dims])
    except (IndexError, TypeError, ValueError):
        return None
    return parsed if parsed is not None and max(parsed[1]) <= _MAX_ITEMS else None


def _shape(dims: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in dims) if all(isinstance(n, int) for n in dims) else ()


def _indices(dims: list[Any]) -> tuple[Any, Items] | None:
    table, index = dims[0], dims[1]
    if len(table) != 2 or not index or min(index) < 1:  # noqa: PLR2004 # rows and columns
        return None
    return table, (prod(index), prod(index[:-1]) if len(index) > 1 else UNKNOWN)


def _targets(dims: list[Any], *, is_text: bool) -> tuple[Any, Items] | None:
    logits, target = dims[0], dims[1]
    if not target or min(target) < 1 or target == logits:
        return None
    if len(target) == 2 and len(logits) == 3:  # noqa: PLR2004 # sequences, tokens, and choices
        return "loss", (prod(target), target[0])
    flat = len(target) == 1 and len(logits) == 2  # noqa: PLR2004 # tokens and choices
    return ("loss", (target[0], UNKNOWN)) if flat and is_text else None


def _image(dims: list[Any]) -> tuple[Any, Items] | None:
    image, weight = dims[0], dims[1]
    if len(image) < 4 or image[1] > _CHANNELS or image[0] < 1:  # noqa: PLR2004 # n, c, h, w
        return None
    return weight, (UNKNOWN, image[0])


def _innermost(trace: Trace, rows: Array) -> Array:
    """Calls that do not call another one of these: tensors in a wrapper call the same operator again."""
    parent = trace.array("parent")
    calls = np.zeros(trace.nodes.num_rows, np.bool_)
    at = parent[rows]
    while (at >= 0).any():
        at = at[at >= 0]
        calls[at] = True
        at = parent[at]
    return rows[~calls[rows]]
