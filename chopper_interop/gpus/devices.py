"""Match of the GPUs of one source with those of another.

Sources number GPUs in their own ways: HIP and CUDA count those that a process sees, HSA counts
processors among them, management tools count by PCI address. Two numbers are of one GPU if a
chain of sources states so (``amd-smi list`` has index and PCI address, ``agent_info.csv`` has agent
and ordinal), or if the user does; else it is assumed, and reported as an assumption.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from chopper_interop.arrays.gather import is_any, unique
from chopper_interop.errors import UsageError
from chopper_interop.grouping import grouped
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import Device, Rank
from chopper_interop.source_selectors import names_source
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    Target = TypeVar("Target")
    Name = tuple[str, Any]

ANY = "*"
"""Source of a rule that names none."""
BY_USER = "the user"
BY_TOOL = "the number, of the same tool"
BY_COUNTING = "assumed: all number the GPUs in one order"
BY_ORDER = "assumed: as many GPUs, in ascending order"

NAMES = {
    "uuid": "UUID",
    "pci": "PCI address",
    "agent": "HSA agent",
    "ordinal": "HIP or CUDA ordinal",
    "index": "index of the management tool",
}
"""Fields of `Device` that distinguish GPUs → human-readable, the most certain first."""
HARDWARE = ("arch", "xccs", "cus", "simds_per_cu", "max_mhz")
"""Fields of `Device` that describe what it can do."""
_COUNT_GPUS = ("rocprofiler-sdk", "cuda", "cupti")
"""Beginnings of facts that name a profiler which counts GPUs only, not CPUs among them."""
_RULE = re.compile(
    r"(?:(?P<source>.+):)?(?P<first>\d{1,6})(?:-(?P<last>\d{1,6}))?"
    r"=(?P<rank>rank)?(?P<device>\d{1,6})"
)


@dataclass(frozen=True)
class DeviceRule:
    """Devices of a source as the user states them.

    Parameters
    ----------
    text
        The option as it was written.
    source
        Format of the source, or a pattern of its path or name.
    first, last
        Numbers by that source.
    target
        Device of the trace that `first` is or, if `is_rank`, the rank whose device it is. The other
        numbers follow in order.
    is_rank
        True if `target` is a rank.
    """

    text: str
    source: str
    first: int
    last: int
    target: int
    is_rank: bool

    def applies_to(self, format_name: str, path: str) -> bool:
        """True if it names a source of this format and path."""
        return names_source(self.source, format_name, path)

    def target_of(self, number: int) -> tuple[int, bool]:
        """Device for a number of the source, or its rank if the second value is true."""
        return self.target + number - self.first, self.is_rank


def parse_device_rule(text: str) -> DeviceRule:
    """Parse ``[SOURCE:]N[-M]=DEVICE`` or ``…=rankR``.

    Raises
    ------
    UsageError
        The text is none of these.
    """
    match = _RULE.fullmatch(text)
    first = int(match["first"]) if match else 0
    last = int(match["last"]) if match and match["last"] else first
    if match is None or last < first:
        raise UsageError(
            f"--map-device {text}: write it as [SOURCE:]NUMBER=DEVICE or [SOURCE:]NUMBER=rankR",
            hint="amd-smi:0-7=2 says that its GPUs 0 to 7 are the devices 2 to 9",
        )
    target, is_rank = int(match["device"]), bool(match["rank"])
    return DeviceRule(text, match["source"] or ANY, first, last, target, is_rank)


def rules_by_number(
    rules: Iterable[DeviceRule], format_name: str, path: str, numbers: Iterable[int]
) -> dict[int, DeviceRule]:
    """Rule for each number of a source's devices for which there is one.

    Raises
    ------
    UsageError
        Two rules state different targets for one number.
    """
    rule_of: dict[int, DeviceRule] = {}
    applicable = [rule for rule in rules if rule.applies_to(format_name, path)]
    for number in numbers:
        for rule in applicable:
            if not rule.first <= number <= rule.last:
                continue
            if rule_of.setdefault(number, rule).target_of(number) != rule.target_of(number):
                raise UsageError(
                    f"--map-device {rule_of[number].text} and {rule.text} contradict each other for "
                    f"GPU {number} of {path}"
                )
    return rule_of


def owner_by_rule(rule: DeviceRule, number: int, ranks: dict[int, Rank]) -> tuple[int, int]:
    """Rank that a rule states for a source's GPU, and the rank's number of the device.

    Raises
    ------
    UsageError
        There is no such rank, or not one alone.
    """
    target, is_rank = rule.target_of(number)
    if is_rank:
        if target not in ranks:
            raise UsageError(f"--map-device {rule.text}: there is no rank {target}")
        return target, ranks[target].device
    owners = [r.rank for r in ranks.values() if r.device == target]
    if len(owners) != 1:
        subject = f"ranks {', '.join(map(str, owners))} compute" if owners else "no rank computes"
        raise UsageError(
            f"--map-device {rule.text}: {subject} on a device {target}",
            hint="name the rank instead, as in amd-smi:0=rank3",
        )
    return owners[0], target


def device_numbers(trace: Trace) -> list[int]:
    """Numbers of the devices with work or series in a trace, ascending."""
    of_series = np.unique(trace.array("device", "series")).tolist()
    return sorted({*devices_with_work(trace), *of_series} - {-1})


def devices_with_work(trace: Trace) -> list[int]:
    """Numbers of the devices with work in a trace, ascending, -1 among them if one is unknown."""
    work = is_any(trace.array("kind"), GPU_WORK)
    devices = trace.array("device", "lanes")[trace.array("lane")[work]]
    return [int(d) for d in unique(devices)]


def working_devices(trace: Trace, others: Iterable[Device]) -> list[Device]:
    """Devices with work in a trace, under every name that it has for them.

    A number without another name is a HIP ordinal, or an HSA agent: PyTorch counts agents with
    roctracer, and GPUs alone with rocprofiler-sdk and on CUDA.

    Parameters
    ----------
    others
        Devices of other sources.
    """
    numbers = [d for d in devices_with_work(trace) if d >= 0]
    known = {d.device: d for d in trace.meta.devices if _names(d)}
    if set(numbers) <= set(known):
        return [known[n] for n in numbers]
    hosts = {d.device: d.host for d in trace.meta.devices}
    field = "agent" if _are_agents(trace, set(numbers), list(others)) else "ordinal"
    return [known.get(n) or _numbered_device(hosts.get(n, ""), n, field) for n in numbers]


def _numbered_device(host: str, number: int, field: str) -> Device:
    names: dict[str, Any] = {field: number}
    return replace(Device(host, number), **names)


def _are_agents(trace: Trace, numbers: set[int], others: list[Device]) -> bool:
    """True if numbers count HSA agents, CPUs among them: then GPUs do not begin at 0."""
    agents = {d.agent for d in others if d.agent >= 0}
    ordinals = {d.ordinal for d in others if d.ordinal >= 0}
    fits = numbers <= agents if agents else 0 not in numbers
    counts_gpus = any(fact.startswith(_COUNT_GPUS) for fact in trace.meta.facts)
    return fits and not (counts_gpus and (numbers <= ordinals or not ordinals))


def match_devices(
    numbers: Sequence[int],
    described: Iterable[Device],
    targets: Sequence[Device],
    bridges: Iterable[Device],
) -> dict[int, tuple[int, str]]:
    """Match numbers that another source uses with devices of the trace.

    Parameters
    ----------
    numbers
        Numbers that the other source uses.
    described
        Devices as that source describes them.
    targets
        Devices of the trace; results are their `device`.
    bridges
        Devices of all sources, which may connect the two.

    Returns
    -------
    dict
        Number → device of the trace, and how it was matched; empty if nothing determines it. Devices
        of two architectures are not matched.
    """
    by_number = {d.device: d for d in described}
    links = _Links([*bridges, *targets, *by_number.values()])
    matched = {
        n: match
        for n in numbers
        if n in by_number and (match := links.first_target(by_number[n], targets))
    }
    matched = matched or _matched_by_tool(numbers, by_number, targets)
    matched = matched or _matched_by_assumption(numbers, by_number, targets, links)
    archs = grouped((target.device, target.arch) for target in targets)
    arch_of = {number: by_number[number].arch for number in matched if number in by_number}
    return {
        number: (device, method)
        for number, (device, method) in matched.items()
        if not arch_of.get(number) or {"", arch_of[number]} & {*archs.get(device, [""])}
    }


def match_remaining(
    numbers: Sequence[int],
    by_user: dict[int, tuple[Target, str]],
    guessed: dict[int, tuple[Target, str]],
) -> dict[int, tuple[Target, str]]:
    """Match the devices that the user does not state with targets that the user does not either.

    What the user states changes nothing else. If all guesses were assumptions, devices whose
    targets the user gave to others get the targets that are left, where there are as many.

    Parameters
    ----------
    numbers
        Numbers that the other source uses, ascending.
    by_user
        Targets that the user states.
    guessed
        Targets of all numbers if the user states none.
    """
    occupied = {target for target, _ in by_user.values()}
    matched = {
        n: guess for n, guess in guessed.items() if n not in by_user and guess[0] not in occupied
    }
    if not all(method in (BY_COUNTING, BY_ORDER) for _, method in guessed.values()):
        return matched
    occupied |= {target for target, _ in matched.values()}
    free = [guessed[n][0] for n in sorted(guessed) if guessed[n][0] not in occupied]
    unmatched = [n for n in numbers if n not in by_user and n not in matched]
    if len(unmatched) != len(free):
        return matched
    return matched | {n: (target, BY_ORDER) for n, target in zip(unmatched, free, strict=True)}


def _with_linked_names(device: Device, links: _Links) -> Device:
    """A device with the names and hardware that linked devices have, where it has none."""
    for linked in links.chain(device):
        device = _completed(device, linked, ("name", "host", *NAMES, *HARDWARE))
    return device


def _completed(device: Device, other: Device, fields: Iterable[str]) -> Device:
    """The device with the values of another one in fields that it lacks."""
    missing = [field for field in fields if getattr(device, field) in (-1, "")]
    return replace(device, **{field: getattr(other, field) for field in missing})


def _matched_by_tool(
    numbers: Sequence[int], by_number: dict[int, Device], targets: Sequence[Device]
) -> dict[int, tuple[int, str]]:
    """Match devices that one tool numbered in both sources."""
    by_tool = {(d.source, d.device) for d in targets if d.source}
    if numbers and all(n in by_number and (by_number[n].source, n) in by_tool for n in numbers):
        return {n: (n, BY_TOOL) for n in numbers}
    return {}


def with_hardware(trace: Trace, others: Iterable[Device], device_of: dict[int, int]) -> Trace:
    """Return the trace with the hardware of its devices as another source describes it.

    Parameters
    ----------
    others
        Devices of the other source.
    device_of
        Number of a device by that source → the trace's.
    """
    described = [replace(d, device=device_of[d.device]) for d in others if d.device in device_of]
    completed, used = [], []
    for device in trace.meta.devices:
        same_number = [d for d in described if d.device == device.device]
        other = next(iter(devices_on_host(same_number, device.host)), device)
        used.append(other)
        completed.append(_completed(device, other, HARDWARE))
    completed += [d for d in described if d not in used and (d.arch or d.cus > 0)]
    return trace.with_meta(devices=tuple(completed))


def devices_on_host(devices: Iterable[Device], host: str) -> list[Device]:
    """Devices of a host; if there are none, those that may be, as one of the hosts is unknown."""
    devices = list(devices)
    on_host = [d for d in devices if host and d.host == host]
    return on_host or [d for d in devices if not (host and d.host)]


def only_host(trace: Trace) -> str:
    """Name of the host of a trace of one host; empty if it has several, or none is named.

    Hosts of ranks count or, if none of them is known, those of devices.
    """
    of_ranks = {r.host for r in trace.meta.ranks} - {""}
    names = of_ranks or {d.host for d in trace.meta.devices} - {""}
    return names.pop() if len(names) == 1 else ""


def identified_devices(trace: Trace, others: Iterable[Device]) -> tuple[Device, ...]:
    """Devices of a trace with all names that a chain of sources has for them.

    Devices that the trace has work on and does not describe are included if a source describes
    them, as far as each is of one rank alone: processes that each see one GPU all call it 0.

    Parameters
    ----------
    others
        Devices of all sources.
    """
    others = list(others)
    numbers = [r.device for r in trace.meta.ranks if r.device >= 0]
    one_each = len(set(numbers)) == len(numbers) and len({r.host for r in trace.meta.ranks}) < 2  # noqa: PLR2004
    working = {d.device: d for d in working_devices(trace, others)} if one_each else {}
    links = _Links(others)
    identified = []
    for device in trace.meta.devices:
        by_number = working.pop(device.device, device)
        if not _names(device):
            unnamed = replace(by_number, name="", host=device.host)
            full = _with_linked_names(unnamed, links.and_device(unnamed))
            if _is_identified(full):
                name = device.name or full.name
                identified.append(replace(full, name=name, source=device.source))
                continue
        identified.append(_with_linked_names(device, links.and_device(device)))
    links = _Links([*others, *working.values()])
    completed = (_with_linked_names(device, links) for device in working.values())
    return (*identified, *filter(_is_identified, completed))


def _is_identified(device: Device) -> bool:
    """True if another source describes it: it has more than the number that it began with."""
    return bool(device.name or device.pci or device.uuid)


def _matched_by_assumption(
    numbers: Sequence[int], by_number: dict[int, Device], targets: Sequence[Device], links: _Links
) -> dict[int, tuple[int, str]]:
    """Match by counting, as management tools, HIP and CUDA mostly count by PCI address; or by order."""
    by_ordinal = {d.ordinal: d for d in links.devices if d.ordinal >= 0}
    counted = {}
    for number in numbers:
        device = by_number.get(number)
        ordinal = device.index if device is not None and device.index >= 0 else number
        match = links.first_target(by_ordinal[ordinal], targets) if ordinal in by_ordinal else None
        if match is not None:
            counted[number] = (match[0], BY_COUNTING)
    target_numbers = {d.device for d in targets}
    if counted and (
        target_numbers <= {n for n, _ in counted.values()} or set(counted) == set(numbers)
    ):
        return counted
    if len(numbers) == len(target_numbers):
        return {n: (t, BY_ORDER) for n, t in zip(numbers, sorted(target_numbers), strict=True)}
    return {}


def _names(device: Device) -> list[Name]:
    """Names that distinguish a device from others of its host."""
    values = ((field, getattr(device, field)) for field in NAMES)
    return [(field, value) for field, value in values if value not in (-1, "")]


def _is_ambiguous(name: Name, same: Iterable[Device]) -> bool:
    """True if devices of one name differ in a name that is more certain."""
    fields = _more_certain_fields(name[0])
    return any(len({getattr(d, field) for d in same} - {-1, ""}) > 1 for field in fields)


class _Links:
    """Devices connected by names that they have in common.

    A name that two different PCI addresses, UUIDs or agents have is ambiguous and connects nothing:
    processes that each see one GPU all call it 0.
    """

    def __init__(self, devices: list[Device]) -> None:
        self.devices = devices
        self._all = grouped((name, device) for device in devices for name in _names(device))
        self._by_name: Mapping[Name, list[Device]] = {
            name: same for name, same in self._all.items() if not _is_ambiguous(name, same)
        }

    def and_device(self, device: Device) -> _Links:
        """These links with one more device; only those of its own names are looked at again."""
        result = _Links([])
        result.devices = [*self.devices, device]
        named = {name: [*self._all.get(name, ()), device] for name in _names(device)}
        of_device = {n: [] if _is_ambiguous(n, same) else same for n, same in named.items()}
        result._by_name = ChainMap(of_device, self._by_name)  # type: ignore[arg-type] # it is read alone
        return result

    def chain(self, device: Device) -> list[Device]:
        """All devices connected to one, the nearest first."""
        connected = [device]
        for one in connected:  # grows meanwhile: a breadth-first search
            for name in _names(one):
                connected += [d for d in self._by_name.get(name, ()) if d not in connected]
        return connected

    def first_target(self, device: Device, targets: Sequence[Device]) -> tuple[int, str] | None:
        """Number of the nearest connected target, and the kind of name by which it is reached."""
        target_of = {
            name: target.device
            for target in targets
            for name in _names(target)
            if name in self._by_name
        }
        for one in self.chain(device):
            for name in _names(one):
                if name in target_of:
                    return target_of[name], NAMES[name[0]]
        return None


def _more_certain_fields(field: str) -> tuple[str, ...]:
    """Fields that are more certain than this one; a GPU has one value in each of them."""
    order = list(NAMES)
    return tuple(order[: order.index(field)])
