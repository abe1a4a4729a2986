"""Which GPU of one source is which of another.

Sources number GPUs in their own ways: HIP and CUDA count those that a process sees, HSA counts
processors among them, management tools count by PCI address. Two numbers are of one GPU if a
chain of sources says so (``amd-smi list`` tells index and PCI address, ``agent_info.csv`` tells
agent and ordinal); the user may say it; else it is assumed, and told as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeVar

    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

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
"""Fields of `Device` by which GPUs are told apart → for people, the surest first."""
HARDWARE = ("arch", "xccs", "cus", "simds_per_cu", "max_mhz")
"""Fields of `Device` that tell what it can do."""
_COUNT_GPUS = ("rocprofiler-sdk", "cuda", "cupti")
"""How facts begin that tell of a profiler that counts GPUs alone."""
_RULE = re.compile(
    r"(?:(?P<source>.+):)?(?P<first>\d{1,6})(?:-(?P<last>\d{1,6}))?"
    r"=(?P<rank>rank)?(?P<device>\d{1,6})"
)


@dataclass(frozen=True)
class Rule:
    """What the user says of a source's devices.

    Parameters
    ----------
    text
        As it was given.
    source
        Format of the source, or a pattern of its path or name.
    first, last
        Numbers by that source.
    target
        What `first` is: a device of the trace or, if `is_rank`, that of a rank. The others follow.
    is_rank
        Whether `target` is a rank.
    """

    text: str
    source: str
    first: int
    last: int
    target: int
    is_rank: bool

    def is_of(self, format_name: str, path: str) -> bool:
        """Whether it is about a source of this format and path."""
        patterns = (self.source, f"*/{self.source}")  # the summary shows the ends of paths
        return self.source == format_name or any(fnmatch(path, p) for p in patterns)

    def target_of(self, number: int) -> tuple[int, bool]:
        """The device, or the rank if the second is true, that a number of the source stands for."""
        return self.target + number - self.first, self.is_rank


def rule(text: str) -> Rule:
    """What ``[SOURCE:]N[-M]=DEVICE`` or ``…=rankR`` says.

    Raises
    ------
    UsageError
        It is nothing of this kind.
    """
    found = _RULE.fullmatch(text)
    first = int(found["first"]) if found else 0
    last = int(found["last"]) if found and found["last"] else first
    if found is None or last < first:
        raise UsageError(
            f"--map-device {text}: write it as [SOURCE:]NUMBER=DEVICE or [SOURCE:]NUMBER=rankR",
            hint="amd-smi:0-7=2 says that its GPUs 0 to 7 are the devices 2 to 9",
        )
    target, is_rank = int(found["device"]), bool(found["rank"])
    return Rule(text, found["source"] or ANY, first, last, target, is_rank)


def told(
    rules: Iterable[Rule], format_name: str, path: str, numbers: Iterable[int]
) -> dict[int, Rule]:
    """What the user says of the devices of a source, by their numbers.

    Raises
    ------
    UsageError
        Two different things are said of one.
    """
    found: dict[int, Rule] = {}
    about = [rule for rule in rules if rule.is_of(format_name, path)]
    for number in numbers:
        for rule in about:
            if not rule.first <= number <= rule.last:
                continue
            if found.setdefault(number, rule).target_of(number) != rule.target_of(number):
                raise UsageError(
                    f"--map-device {found[number].text} and {rule.text} say two things of GPU "
                    f"{number} of {path}"
                )
    return found


def owner(rule: Rule, number: int, ranks: dict[int, Rank]) -> tuple[int, int]:
    """The rank that a rule says computes on a source's GPU, and its number of the device.

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
        several = f"ranks {', '.join(map(str, owners))} compute" if owners else "no rank computes"
        raise UsageError(
            f"--map-device {rule.text}: {several} on a device {target}",
            hint="name the rank instead, as in amd-smi:0=rank3",
        )
    return owners[0], target


def numbers(trace: Trace) -> list[int]:
    """Numbers of the devices that a trace has work or series of."""
    of_series = np.unique(trace.array("device", "series")).tolist()
    return sorted({*used(trace), *of_series} - {-1})


def used(trace: Trace) -> list[int]:
    """Numbers of the devices on which a trace has work, -1 among them if it is not told."""
    work = is_any(trace.array("kind"), GPU_WORK)
    devices = trace.array("device", "lanes")[trace.array("lane")[work]]
    return [int(d) for d in np.unique(devices)]


def of_trace(trace: Trace, others: Iterable[Device]) -> list[Device]:
    """The devices that a trace has work on, under every name that it has for them.

    A number without another name is a HIP ordinal, or an HSA agent: PyTorch counts agents with
    roctracer, and GPUs alone with rocprofiler-sdk and on CUDA.

    Parameters
    ----------
    trace
        The trace.
    others
        Devices of other sources.
    """
    numbers = [d for d in used(trace) if d >= 0]
    known = {d.device: d for d in trace.meta.devices if _names(d)}
    if set(numbers) <= set(known):
        return [known[n] for n in numbers]
    hosts = {d.device: d.host for d in trace.meta.devices}
    field = "agent" if _are_agents(trace, set(numbers), list(others)) else "ordinal"
    return [known.get(n) or _numbered(hosts.get(n, ""), n, field) for n in numbers]


def _numbered(host: str, number: int, field: str) -> Device:
    names: dict[str, Any] = {field: number}
    return replace(Device(host, number), **names)


def _are_agents(trace: Trace, numbers: set[int], others: list[Device]) -> bool:
    agents = {d.agent for d in others if d.agent >= 0}
    ordinals = {d.ordinal for d in others if d.ordinal >= 0}
    fits = numbers <= agents if agents else 0 not in numbers
    counts_gpus = any(fact.startswith(_COUNT_GPUS) for fact in trace.meta.facts)
    return fits and not (counts_gpus and (numbers <= ordinals or not ordinals))


def match(
    theirs: Sequence[int],
    their_devices: Iterable[Device],
    ours: Sequence[Device],
    bridges: Iterable[Device],
) -> dict[int, tuple[int, str]]:
    """Number of a device by another source → ours, and what tells it; empty if nothing does.

    Parameters
    ----------
    theirs
        Numbers that the other source uses.
    their_devices
        What that source tells of its devices.
    ours
        The devices of the trace; their `device` is what comes out.
    bridges
        Devices of all sources, which may connect the two.
    """
    known = {d.device: d for d in their_devices}
    links = _Links([*bridges, *ours, *known.values()])
    found = {t: hit for t in theirs if t in known and (hit := links.first(known[t], ours))}
    if set(found) == set(theirs):
        return found
    return found or _by_tool(theirs, known, ours) or _assumed(theirs, known, ours, links)


def around_told(
    theirs: Sequence[int],
    told: dict[int, tuple[Target, str]],
    guessed: dict[int, tuple[Target, str]],
) -> dict[int, tuple[Target, str]]:
    """What the devices are of which the user says nothing: none of those that others are said to be.

    What the user says changes nothing else. If it was all assumed, devices whose places are taken
    get the places that are left, where there are as many.

    Parameters
    ----------
    theirs
        Numbers that the other source uses, ascending.
    told
        What the user says.
    guessed
        What all of them are if the user says nothing.
    """
    taken = {target for target, _ in told.values()}
    found = {t: hit for t, hit in guessed.items() if t not in told and hit[0] not in taken}
    if not all(by in (BY_COUNTING, BY_ORDER) for _, by in guessed.values()):
        return found
    taken |= {target for target, _ in found.values()}
    places = [guessed[t][0] for t in sorted(guessed) if guessed[t][0] not in taken]
    rest = [t for t in theirs if t not in told and t not in found]
    if len(rest) != len(places):
        return found
    return found | {t: (place, BY_ORDER) for t, place in zip(rest, places, strict=True)}


def with_all_names(ours: Sequence[Device], others: Iterable[Device]) -> tuple[Device, ...]:
    """Devices with the names that other sources have for them, where they have none of their own.

    Parameters
    ----------
    ours
        Devices of a trace.
    others
        Devices of all sources.
    """
    links = _Links([*others, *ours])
    fields = ("name", "host", *NAMES, *HARDWARE)
    made = []
    for device in ours:
        for same in links.chain(device):
            missing = [f for f in fields if getattr(device, f) in (-1, "")]
            device = replace(device, **{f: getattr(same, f) for f in missing})  # noqa: PLW2901
        made.append(device)
    return tuple(made)


def _by_tool(
    theirs: Sequence[int], known: dict[int, Device], ours: Sequence[Device]
) -> dict[int, tuple[int, str]]:
    """Devices that one tool numbered in both sources."""
    by_tool = {(d.source, d.device) for d in ours if d.source}
    if theirs and all(t in known and (known[t].source, t) in by_tool for t in theirs):
        return {t: (t, BY_TOOL) for t in theirs}
    return {}


def with_hardware(trace: Trace, others: Iterable[Device], found: dict[int, int]) -> Trace:
    """Trace with what another source tells of the hardware of its devices.

    Parameters
    ----------
    trace
        The trace.
    others
        Devices of the other source.
    found
        Number of a device by that source → the trace's.
    """
    told = [replace(d, device=found[d.device]) for d in others if d.device in found]
    made, used = [], []
    for device in trace.meta.devices:
        same = [d for d in told if d.device == device.device]
        other = next(iter(of_host(same, device.host)), device)
        used.append(other)
        missing = [f for f in HARDWARE if getattr(device, f) in (-1, "")]
        made.append(replace(device, **{f: getattr(other, f) for f in missing}))
    made += [d for d in told if d not in used and (d.arch or d.cus > 0)]
    return trace.with_meta(devices=tuple(made))


def of_host(found: Iterable[Device], host: str) -> list[Device]:
    """Those of a host; if there is none, those that may be, as a host is not known."""
    found = list(found)
    here = [d for d in found if host and d.host == host]
    return here or [d for d in found if not (host and d.host)]


def only_host(trace: Trace) -> str:
    """Name of the node of a trace of one node; empty if it has several, or none is named.

    Ranks tell it or, if none of them does, devices.
    """
    of_ranks = {r.host for r in trace.meta.ranks} - {""}
    names = of_ranks or {d.host for d in trace.meta.devices} - {""}
    return names.pop() if len(names) == 1 else ""


def named(trace: Trace, others: Iterable[Device]) -> tuple[Device, ...]:
    """The devices of a trace with all names that a chain of sources has for them.

    Devices that the trace has work on and does not describe are among them if a source does, as
    far as each is of one rank alone: processes that each see one GPU all call it 0.

    Parameters
    ----------
    trace
        The trace.
    others
        Devices of all sources.
    """
    others = list(others)
    told = list(trace.meta.devices)
    numbers = [r.device for r in trace.meta.ranks if r.device >= 0]
    one_each = len(set(numbers)) == len(numbers) and len({r.host for r in trace.meta.ranks}) < 2  # noqa: PLR2004
    counted = {d.device: d for d in of_trace(trace, others)} if one_each else {}
    made = []
    for device in told:
        by_number = counted.pop(device.device, device)
        if not _names(device):
            full = with_all_names([replace(by_number, name="", host=device.host)], others)[0]
            if _is_found(full):
                made.append(replace(full, name=device.name or full.name, source=device.source))
                continue
        made += with_all_names([device], others)
    return tuple(made) + tuple(filter(_is_found, with_all_names([*counted.values()], others)))


def _is_found(device: Device) -> bool:
    """Whether another source knows it: it has more than the number that it began with."""
    return bool(device.name or device.pci or device.uuid)


def _assumed(
    theirs: Sequence[int], known: dict[int, Device], ours: Sequence[Device], links: _Links
) -> dict[int, tuple[int, str]]:
    """Management tools count by PCI address, as HIP and CUDA mostly do; else by order."""
    ordinals = {d.ordinal: d for d in links.devices if d.ordinal >= 0}
    counted = {}
    for number in theirs:
        device = known.get(number)
        place = device.index if device is not None and device.index >= 0 else number
        hit = links.first(ordinals[place], ours) if place in ordinals else None
        if hit is not None:
            counted[number] = (hit[0], BY_COUNTING)
    targets = {d.device for d in ours}
    if counted and (targets <= {n for n, _ in counted.values()} or set(counted) == set(theirs)):
        return counted
    if len(theirs) == len(targets):
        return {t: (o, BY_ORDER) for t, o in zip(theirs, sorted(targets), strict=True)}
    return {}


def _names(device: Device) -> list[Name]:
    """The names that tell a device from others of its host."""
    values = ((field, getattr(device, field)) for field in NAMES)
    return [(field, value) for field, value in values if value not in (-1, "")]


class _Links:
    """Devices that have a name in common.

    A name that two different PCI addresses, UUIDs or agents have is none: processes that each see
    one GPU all call it 0.
    """

    def __init__(self, devices: list[Device]) -> None:
        self.devices = devices
        self.of: dict[Name, list[Device]] = {}
        for device in devices:
            for name in _names(device):
                self.of.setdefault(name, []).append(device)
        for name, same in list(self.of.items()):
            if any(len({_value(d, f) for d in same} - {-1, ""}) > 1 for f in _certain(name[0])):
                del self.of[name]

    def chain(self, device: Device) -> list[Device]:
        """All devices to which names lead, the nearest first."""
        found = [device]
        for one in found:
            for name in _names(one):
                found += [d for d in self.of.get(name, ()) if d not in found]
        return found

    def first(self, device: Device, targets: Sequence[Device]) -> tuple[int, str] | None:
        """The one of the targets to which names lead, and by which name it is reached."""
        wanted = {name: t.device for t in targets for name in _names(t) if name in self.of}
        for one in self.chain(device):
            for name in _names(one):
                if name in wanted:
                    return wanted[name], NAMES[name[0]]
        return None


def _certain(field: str) -> tuple[str, ...]:
    """Names of which a GPU has one alone, surer than this one."""
    order = list(NAMES)
    return tuple(order[: order.index(field)])


def _value(device: Device, field: str) -> Any:
    return getattr(device, field)
