"""Agents: the processors of a node as HSA numbers them, the CPUs first, then the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chopper_interop.converters.rocm.tables import AGENT_FACTS
from chopper_interop.schemas.meta import Device

_NUMBERED = re.compile(r"(?P<type>[A-Za-z]*)\s*(?P<number>\d+)")
_MAX_DIGITS = 20
"""Digits of the largest 64-bit number; longer ones are `_TOO_LARGE`."""
_TOO_LARGE = 1 << 64
AGENT_COLUMNS = ("agent", "source_agent", "destination_agent")
"""Columns that name agents."""
ID_COLUMNS = ("node_id", "logical_node_id", "logical_node_type_id")
"""Columns of ``agent_info`` that number agents."""
LARGEST_ID = (1 << 31) - 1
"""The largest number that an agent, a process or a rank can have."""
_ALL_BITS_SET = ((1 << 32) - 1, (1 << 64) - 1)
_COUNT = re.compile(r"(\d{1,6})(?:\.0*)?")
_ARCH = re.compile(r"gfx[0-9a-f]{3,5}")
_COUNT_FACTS = {
    "num_xcc": "xccs",
    "cu_count": "cus",
    "simd_per_cu": "simds_per_cu",
    "max_engine_clk_mhz": "max_mhz",
}
UNKNOWN = -1
"""Device of work on the host, or on an unknown GPU."""


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
        Further facts, by the names of `AGENT_FACTS`.
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


def hardware_fields(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a `Device` that facts of a GPU determine.

    Parameters
    ----------
    facts
        By the names of `AGENT_FACTS`; those that are no plausible numbers are left out.
    """
    counts = {field: _count(facts.get(fact, "")) for fact, field in _COUNT_FACTS.items()}
    simds, cus = _count(facts.get("simd_count", "")), counts["cus"]
    if counts["simds_per_cu"] <= 0 < cus and simds > 0 and simds % cus == 0:
        counts["simds_per_cu"] = simds // cus
    arch = facts.get("gfx", "").strip().lower().split(":")[0]
    fields: dict[str, Any] = {"arch": arch} if _ARCH.fullmatch(arch) else {}
    return fields | {field: count for field, count in counts.items() if count > 0}


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    return int(match[1]) if match else UNKNOWN


def pci_address(location: int, domain: int) -> str:
    """Return the PCI address of a GPU by its location id, as KFD has it, and its domain.

    The location id holds the bus in bits 8 to 15, the device in bits 3 to 7 and the function in
    bits 0 to 2.
    """
    if location <= 0 or domain < 0:
        return ""
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def agents_from_rows(rows: Iterable[dict[str, Any]], host: str = "") -> list[Agent]:
    """Return the agents of the rows of ``agent_info.csv``, whose columns are in lower case."""
    agents = []
    for row in rows:
        is_gpu = str(row.get("agent_type", "")).strip().upper() == "GPU"
        node, logical = _id_in(row.get("node_id")), _id_in(row.get("logical_node_id"))
        agents.append(
            Agent(
                node=node,
                logical=logical if logical >= 0 else node,
                is_gpu=is_gpu,
                name=str(row.get("product_name") or row.get("name") or ""),
                ordinal=_id_in(row.get("logical_node_type_id")) if is_gpu else -1,
                host=host,
                facts=tuple((fact, str(row[c])) for c, fact in AGENT_FACTS if row.get(c)),
            )
        )
    return with_ordinals(agents)


def with_ordinals(agents: list[Agent]) -> list[Agent]:
    """Return agents whose GPUs are numbered from 0 in order of node where they had no number."""
    gpus = sorted((a for a in agents if a.is_gpu), key=lambda a: a.node)
    ordinal = {id(a): i for i, a in enumerate(gpus)}
    return [replace(a, ordinal=ordinal[id(a)]) if a.is_gpu and a.ordinal < 0 else a for a in agents]


def _id_in(value: Any) -> int:
    return valid_id(number_in(str(value)))


def number_in(text: str) -> int:
    """Return the number that a text is or ends with (``Agent 4``); `UNKNOWN` if there is none."""
    match = _NUMBERED.fullmatch(text.strip())
    if match is None:
        return UNKNOWN
    return int(match["number"]) if len(match["number"]) <= _MAX_DIGITS else _TOO_LARGE


def valid_id(number: int) -> int:
    """Return a number that an agent, a process or a rank can have; `UNKNOWN` instead of others."""
    return number if 0 <= number <= LARGEST_ID else UNKNOWN


def is_garbled(number: int) -> bool:
    """True if a number is no valid id, and none of those that mean "no id": -1, all bits set."""
    return valid_id(number) == UNKNOWN and number not in (UNKNOWN, *_ALL_BITS_SET)


class DeviceNumbering:
    """The numbers of devices in a source, and which of them are GPUs.

    Parameters
    ----------
    agents
        The known agents; may be empty.
    texts
        All texts that name agents in the source: ``4``, ``Agent 4`` or ``GPU 2``.
    used
        Numbers of the devices that have work.
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
        """True if a number stands for a CPU."""
        return not self.by_type and number in self.cpus

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs, by their numbers in the source."""
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
                **hardware_fields(dict(a.facts)),
            )
            for a in gpus
            if (number := int(getattr(a, self.key))) != UNKNOWN
        )

    def facts(self) -> dict[str, str]:
        """Return the facts that are the same for all GPUs."""
        gpus = [dict(a.facts) for a in self.agents if a.is_gpu]
        first = gpus[0] if gpus else {}
        return {k: v for k, v in first.items() if all(facts.get(k) == v for facts in gpus)}


def device_number(text: str) -> int:
    """Return the number of the device that a text names; `UNKNOWN` for ``CPU 0`` or no device."""
    match = _NUMBERED.fullmatch(text.strip())
    if match is None or match["type"].upper() == "CPU":
        return UNKNOWN
    return valid_id(number_in(text))
