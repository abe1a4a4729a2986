"""Items of any kind, put together by a key, keys and items in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound="Hashable")


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items with equal keys together.

    Examples
    --------
    >>> by_key(["aten::mm", "nccl:send", "aten::add"], lambda name: name.partition(":")[0])
    {'aten': ['aten::mm', 'aten::add'], 'nccl': ['nccl:send']}
    """
    return grouped((key(item), item) for item in items)


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Items of equal keys together, of pairs of a key and an item.

    Examples
    --------
    >>> grouped([(0, "a"), (1, "b"), (0, "c")])
    {0: ['a', 'c'], 1: ['b']}
    """
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
