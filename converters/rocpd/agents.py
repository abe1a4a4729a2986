"""Agents of a rocpd database: the processors of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chopper_interop.converters.rocm.agents import Agent, pci_address, valid_id, with_ordinals
from chopper_interop.converters.rocm.tables import AGENT_FACTS
from chopper_interop.converters.rocpd.events import document
from chopper_interop.io.sqlite import INTEGER, TEXT

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.database_parts import Part

_UUID_BYTES, _BYTE = 8, 256


def agents(part: Part) -> list[Agent]:
    """The processors of a part's nodes."""
    numbers = ("id", "nid", "absolute_index", "type_index")
    texts = ("type", "name", "product_name", "extdata")
    table = part.read("info_agent", dict.fromkeys(numbers, INTEGER) | dict.fromkeys(texts, TEXT))
    nodes = part.read("info_node", {"id": INTEGER, "hostname": TEXT})
    hosts = dict(zip(nodes.number("id").tolist(), nodes.texts("hostname"), strict=True))
    columns = [table.number(c).tolist() for c in numbers] + [table.texts(c) for c in texts]
    made = []
    for row, node, absolute, ordinal, kind, name, product, more in zip(*columns, strict=True):
        number = valid_id(absolute if absolute >= 0 else row)
        details = document(more)
        is_gpu = kind.upper() == "GPU"
        made.append(
            Agent(
                node=number,
                logical=number,
                is_gpu=is_gpu,
                name=product or name,
                ordinal=valid_id(ordinal) if is_gpu else -1,
                host=hosts.get(node, ""),
                facts=tuple(
                    (f, str(v)) for c, f in AGENT_FACTS if (v := _fact({"name": name} | details, c))
                ),
                pci=pci_address(_whole(details, "location_id"), _whole(details, "domain"))
                if is_gpu
                else "",
                uuid=_uuid(details) if is_gpu else "",
            )
        )
    return with_ordinals(made)


def _whole(details: dict[str, Any], name: str) -> int:
    value = details.get(name)
    return value if isinstance(value, int) else -1


def _fact(details: dict[str, Any], name: str) -> str:
    value = details.get(name)
    return str(value) if isinstance(value, int | str) and value else ""


def _uuid(details: dict[str, Any]) -> str:
    """The unique id of a GPU as ``rocminfo`` writes it; the tool gives its bytes."""
    inner = details.get("uuid")
    octets = inner.get("bytes") if isinstance(inner, dict) else None
    values = list(octets.values()) if isinstance(octets, dict) else octets
    if not isinstance(values, list):
        return ""
    low = values[:_UUID_BYTES]
    if len(low) < _UUID_BYTES or not all(isinstance(v, int) and 0 <= v < _BYTE for v in low):
        return ""
    number = int.from_bytes(bytes(low), "little")
    return f"GPU-{number:016x}" if number else ""
