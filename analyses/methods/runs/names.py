"""Names of runs: the parts that differ, and the settings in CharLLM-PPT's folder names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

_CHARLLM = re.compile(r"(?P<model>.+?)_(?P<index>\d+)_(?:(?P<bits>[01]{5})|mbs(?P<batch>\d+))")
"""A folder of CharLLM-PPT's results (dad5f278): model, strategy, and optimisations or microbatch."""
_OPTIMISATIONS = {"00000": "base", "10000": "cc", "01000": "act", "11000": "cc+act"}
"""Overlap of communication and compute; recomputation of activations."""
_STRATEGIES = {
    "gpt3-175b": ("TP2-PP16", "TP4-PP8", "TP8-PP4", "TP1-PP32"),
    "llama3-70b": ("TP8-PP2", "TP4-PP4", "TP2-PP8", "TP1-PP16"),
    "mixtral-8x7b": ("EP4-TP2-PP1", "EP8-TP1-PP1"),
    "mixtral-8x22b": ("EP8-TP1-PP4", "EP8-TP2-PP2", "EP8-TP4-PP1"),
}
"""Of each model what its strategies from 1 on are, as ``get_parallel_strategy`` has them."""
_FSDP = {"5": "TP8-FSDP"}
_SIZE = re.compile(r"(TP|PP|EP)(\d+)")
_TOKENS = re.compile(r"[^_/\\-]+|[_/\\-]")


def charllm(path: str) -> dict[str, Any]:
    """Parse the settings in the names of CharLLM-PPT's folders in a path; empty if it has none.

    Returns
    -------
    dict
        `model`, `strategy`, `optimisation` or `micro_batch`, and sizes as `tp`, `pp`, `ep`.
    """
    for part in reversed(PurePath(path).parts):
        named = _CHARLLM.fullmatch(part)
        if named is None:
            continue
        model, index, bits, batch = named.group("model", "index", "bits", "batch")
        result: dict[str, Any] = {"model": model}
        known = _STRATEGIES.get(model.removesuffix("-fsdp"), ())
        numbered = dict(enumerate(known, 1))
        strategy = _FSDP.get(index) or numbered.get(int(index[-9:]))
        if strategy:
            result["strategy"] = strategy
            result |= {name.lower(): int(size) for name, size in _SIZE.findall(strategy)}
        if bits:
            result["optimisation"] = _OPTIMISATIONS.get(bits, bits)
        else:
            result["micro_batch"] = int(batch[-9:])
        return result
    return {}


def distinct(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Make names of runs distinct: with folders before them, else numbered.

    Parameters
    ----------
    names, paths
        Of each run; a path may be empty.
    """
    result = list(names)
    for depth in range(2, 6):
        again = {name for name, count in Counter(result).items() if count > 1}
        if not again:
            return result
        result = [
            ("/".join(PurePath(path).parts[-depth:]) if name in again else "") or name
            for name, path in zip(result, paths, strict=True)
        ]
    seen: Counter[str] = Counter()
    for place, name in enumerate(result):
        seen[name] += 1
        if seen[name] > 1:
            result[place] = f"{name} ({seen[name]})"
    return result


def differing(names: Sequence[str]) -> list[str]:
    """The part of each name that not all have in common at its beginning and its end."""
    split = [_TOKENS.findall(name) for name in names]
    shortest = min((len(parts) for parts in split), default=0)
    if len(set(names)) < 2:  # noqa: PLR2004
        return list(names)
    first = 0
    while first < shortest and len({parts[first] for parts in split}) == 1:
        first += 1
    last = 0
    while last < shortest - first and len({parts[len(parts) - 1 - last] for parts in split}) == 1:
        last += 1
    middles = ("".join(parts[first : len(parts) - last]) for parts in split)
    return [part.strip("_/\\-") or name for part, name in zip(middles, names, strict=True)]
