"""Agents: the processors of a node as HSA numbers them, CPUs first, GPUs behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.rocprof_tables import AGENT_FACTS
from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NUMBERED = re.compile(r"\s*(?P<what>[A-Za-z]*)\s*(?P<number>\d+)\s*")
_MOST_DIGITS = 20
_BEYOND = 1 << 64
AGENT_COLUMNS = ("agent", "source_agent", "destination_agent")
"""Columns that name agents."""
ID_COLUMNS = ("node_id", "logical_node_id", "logical_node_type_id")
"""Columns of ``agent_info`` that number agents."""
LARGEST_ID = (1 << 31) - 1
"""The largest number that an agent, a process or a rank can have."""
_ALL_BITS_SET = ((1 << 32) - 1, (1 << 64) - 1)
_COUNT = re.compile(r"(\d{1,6})(?:\.0*)?")
_ARCH = re.compile(r"gfx[0-9a-f]{3,5}")
_COUNTS = {
    "num_xcc": "xccs",
    "cu_count": "cus",
    "simd_per_cu": "simds_per_cu",
    "max_engine_clk_mhz": "max_mhz",
}
UNKNOWN = -1
"""Device of what is on no GPU, or on one that is not told."""


@dataclass(frozen=True)
class Agent:
    """One processor.

    Parameters
    ----------
    node
        Its number among all agents of the node (``Node_Id``).
    logical
        Its number among the agents that the process may see (``Logical_Node_Id``).
    is_gpu
        Whether it is a GPU.
    name
        Product, or architecture where that is all that is known.
    ordinal
        Its number among the GPUs.
    host
        Node.
    facts
        What else is known: see `AGENT_FACTS`.
    pci, uuid
        Its PCI address and unique id, as `Device` has them.
    """

    node: int
    logical: int
    is_gpu: bool
    name: str = ""
    ordinal: int = -1
    host: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    pci: str = ""
    uuid: str = ""


def hardware(facts: Mapping[str, str]) -> dict[str, Any]:
    """What facts of a GPU tell of its hardware, as `Device` has it.

    Parameters
    ----------
    facts
        By the names that `AGENT_FACTS` gives them; what is no plausible number is not told.
    """
    found = {field: _count(facts.get(fact, "")) for fact, field in _COUNTS.items()}
    simds, cus = _count(facts.get("simd_count", "")), found["cus"]
    if found["simds_per_cu"] <= 0 < cus and simds > 0 and simds % cus == 0:
        found["simds_per_cu"] = simds // cus
    arch = facts.get("gfx", "").strip().lower().split(":")[0]
    told: dict[str, Any] = {"arch": arch} if _ARCH.fullmatch(arch) else {}
    return told | {field: count for field, count in found.items() if count > 0}


def _count(text: str) -> int:
    found = _COUNT.fullmatch(text.strip())
    return int(found[1]) if found else UNKNOWN


def pci_of(location: int, domain: int) -> str:
    """PCI address of what KFD calls the location of a GPU, and its domain."""
    if location <= 0 or domain < 0:
        return ""
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def agents_of(rows: Iterable[dict[str, Any]], host: str = "") -> list[Agent]:
    """Agents of the rows of ``agent_info.csv``, columns in lower case."""
    found = []
    for row in rows:
        is_gpu = str(row.get("agent_type", "")).strip().upper() == "GPU"
        node, logical = _number(row.get("node_id")), _number(row.get("logical_node_id"))
        found.append(
            Agent(
                node=node,
                logical=logical if logical >= 0 else node,
                is_gpu=is_gpu,
                name=str(row.get("product_name") or row.get("name") or ""),
                ordinal=_number(row.get("logical_node_type_id")) if is_gpu else -1,
                host=host,
                facts=tuple((fact, str(row[c])) for c, fact in AGENT_FACTS if row.get(c)),
            )
        )
    return with_ordinals(found)


def with_ordinals(agents: list[Agent]) -> list[Agent]:
    """Agents whose GPUs are numbered from 0 by node where no number is told."""
    from dataclasses import replace

    order = sorted((a for a in agents if a.is_gpu), key=lambda a: a.node)
    place = {id(a): i for i, a in enumerate(order)}
    return [replace(a, ordinal=place[id(a)]) if a.is_gpu and a.ordinal < 0 else a for a in agents]


def _number(value: Any) -> int:
    return id_of(number_in(str(value)))


def number_in(text: str) -> int:
    """The number of a text that is one or ends with one (``Agent 4``); `UNKNOWN` if none."""
    found = _NUMBERED.fullmatch(text)
    if found is None:
        return UNKNOWN
    return int(found["number"]) if len(found["number"]) <= _MOST_DIGITS else _BEYOND


def id_of(number: int) -> int:
    """A number of an agent, a process or a rank as it is; `UNKNOWN` if none has such a number."""
    return number if 0 <= number <= LARGEST_ID else UNKNOWN


def is_garbled(number: int) -> bool:
    """Whether it is no such number and does not stand for none either, as -1 without a sign does."""
    return id_of(number) == UNKNOWN and number not in (UNKNOWN, *_ALL_BITS_SET)


class Numbering:
    """How a source numbers devices, and which of its numbers are GPUs.

    Parameters
    ----------
    agents
        The agents that are known; may be empty.
    texts
        All texts that name agents in the source: ``4``, ``Agent 4`` or ``GPU 2``.
    used
        Numbers of the devices on which there is work.
    """

    def __init__(self, agents: Sequence[Agent], texts: Iterable[str], used: Iterable[int]) -> None:
        self.agents = agents
        plain = [text.strip().upper() for text in texts]
        self.by_type = any(text.startswith("GPU") for text in plain)
        self.used = sorted(set(used) - {UNKNOWN})
        gpus = [a for a in agents if a.is_gpu]
        bare = any(text.isdecimal() for text in plain)  # before ROCm 7.0, always Node_Id
        keys = ("node", "logical") if bare else ("logical", "node")
        fits = (k for k in keys if {getattr(a, k) for a in gpus} >= set(self.used))
        self.key = "ordinal" if self.by_type else next(fits, keys[0])
        self.cpus = {getattr(a, self.key) for a in agents if not a.is_gpu} if gpus else {0}
        self.cpus -= set(self.used)

    def is_host(self, number: int) -> bool:
        """Whether a number stands for a CPU."""
        return not self.by_type and number in self.cpus

    def devices(self) -> tuple[Device, ...]:
        """The GPUs, by the numbers that the source gives them."""
        gpus = [a for a in self.agents if a.is_gpu]
        if not gpus:
            return tuple(
                Device("", n, "", "rocprofv3", ordinal=n)
                if self.by_type
                else Device("", n, "", "rocprofv3", agent=n)
                for n in self.used
            )
        return tuple(
            Device(
                a.host,
                number,
                a.name,
                "rocprofv3",
                a.ordinal,
                agent=a.node,
                pci=a.pci,
                uuid=a.uuid,
                **hardware(dict(a.facts)),
            )
            for a in gpus
            if (number := int(getattr(a, self.key))) != UNKNOWN
        )

    def facts(self) -> dict[str, str]:
        """What all GPUs agree upon."""
        found = [dict(a.facts) for a in self.agents if a.is_gpu]
        first = found[0] if found else {}
        return {k: v for k, v in first.items() if all(f.get(k) == v for f in found)}


def device_of(text: str) -> int:
    """Number of the device that a text names; `UNKNOWN` for a CPU by type, or for none."""
    found = _NUMBERED.fullmatch(text)
    if found is None or found["what"].upper() == "CPU":
        return UNKNOWN
    return id_of(number_in(text))
