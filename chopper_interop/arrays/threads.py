"""Threads that all of a process share, for loops that run without Python's lock."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

Result = TypeVar("Result")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "chopper-interop")


if hasattr(os, "register_at_fork"):  # a process that is forked has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def ahead(
    function: Callable[..., Result], arguments: Iterable[tuple[object, ...]]
) -> Iterator[Result]:
    """Yield the results of calls in order, while threads make the next ones.

    Parameters
    ----------
    function
        What is called. It must not itself wait for a result of such calls.
    arguments
        Its arguments in each call, taken as threads get free: two calls for each are under way.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for call in arguments:
            waiting.append(_pool().submit(function, *call))
            if len(waiting) > 2 * (os.cpu_count() or 1):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
