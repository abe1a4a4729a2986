"""The GPUs of a vendor's library as the sampler sees them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")
Values = dict[str, "int | float | str"]
"""Values of a GPU by column; those that it does not have are absent."""

_PCI = Path("/sys/bus/pci/devices")
PATIENCE_S = 30.0
"""Time that a library has for an answer. Chosen: calls take milliseconds, but drivers that are not kept loaded start each of
the 8 GPUs of a node in 1 to 3 s (NVIDIA's "Driver Persistence"); one to a GPU that fell off the bus may never return, and the
program must still be started, and its status passed on."""


@dataclass(frozen=True)
class GpuFacts:
    """Properties that identify a GPU and do not change.

    Parameters
    ----------
    gpu
        Its number in the rows.
    index
        Its number by the vendor's tools.
    name, pci, uuid, arch
        Texts; empty where unknown.
    cus
        Compute units, or streaming multiprocessors; -1 where unknown.
    max_mhz
        Highest clock of its shaders; -1 where unknown.
    power_limit_w
        Power limit; -1 where unknown.
    """

    gpu: int
    index: int
    vendor: str
    name: str = ""
    pci: str = ""
    uuid: str = ""
    arch: str = ""
    cus: int = -1
    max_mhz: int = -1
    power_limit_w: float = -1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the facts that are known."""
        return {name: value for name, value in asdict(self).items() if value not in ("", -1)}


@dataclass(frozen=True)
class Call:
    """A call of a vendor's library, which reads some values of a GPU.

    Parameters
    ----------
    name
        What it reads.
    read
        Reads it, of the GPU with an index.
    always
        Whether it is made at each tick, whatever it takes.
    every_s
        Time between two readings, for what changes slowly; 0: as often as it can be read.
    """

    name: str
    read: Callable[[int], Values]
    always: bool = False
    every_s: float = 0.0


SLOW_S = 1.0
"""Time between two readings of what changes slowly (chosen: memory in use, averages of a second)."""


class Gpus(Protocol):
    """The GPUs of one vendor; whatever a library raises passes through."""

    vendor: str
    library: str
    """The library and its version."""

    @property
    def calls(self) -> Sequence[Call]:
        """The calls that can be made, the most important first."""

    def facts(self, first: int) -> list[GpuFacts]:
        """Return the facts of each GPU, numbered from `first`."""

    def close(self) -> None:
        """Release the library."""


def is_asleep(pci: str) -> bool:
    """Return True if the GPU is powered down, so that reading its sensors would wake it."""
    with contextlib.suppress(OSError):
        return (_PCI / pci / "power/runtime_status").read_text().strip() == "suspended"
    return False


def may_sleep(pci: str) -> bool:
    """Return True if the driver powers the GPU down when it is idle."""
    with contextlib.suppress(OSError):
        return (_PCI / pci / "power/control").read_text().strip() == "auto"
    return False


class NoAnswerError(Exception):
    """A library has not returned from a call in time."""


def answer(call: Callable[[], Answer]) -> Answer:
    """Return what a call of a library returns.

    Raises
    ------
    NoAnswerError
        It has not returned after `PATIENCE_S`, and is left to itself.
    """
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 # raised below
            future.set_exception(error)

    threading.Thread(target=run, name="answer", daemon=True).start()
    wait([future], PATIENCE_S)
    if not future.done():
        raise NoAnswerError(f"its library has not answered for {PATIENCE_S:g} s")
    return future.result()


@contextlib.contextmanager
def quiet_stdout() -> Iterator[int]:
    """Drop what libraries print to stdout, in Python or in C: it belongs to the program, which gets what is returned."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield kept
    finally:
        sys.stdout.flush()  # also where a library fails, and has said why
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def known(value: object) -> bool:
    """Return True for a number that a sensor gave, False for "N/A" and other marks of absence."""
    return isinstance(value, int | float) and not isinstance(value, bool)
