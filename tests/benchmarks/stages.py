"""Seconds of the stages of a program that runs within this process."""

import time


def timed(spent: dict[str, float], stage: str, owner: object, name: str) -> None:
    """Add the seconds of each call of a function to a stage, from now on."""
    function = getattr(owner, name)

    def measured(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[stage] += time.perf_counter() - start

    setattr(owner, name, measured)
