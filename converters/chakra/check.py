"""Check that a simulator runs ETs to the end, and find why it does not.

ASTRA-sim ends with status 0 even if not all nodes ran: it drops a node that it cannot run, and a
rank that waits for another for ever just stops. The rules of `checks` are those of its feeder
and workload layer, and of MLCommons' own feeder where that is stricter.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

from chopper_interop.converters.chakra import files as chakra_files
from chopper_interop.converters.chakra.checks import communication, execution
from chopper_interop.converters.chakra.checks.findings import Findings
from chopper_interop.converters.chakra.checks.nodes import FEEDER_TYPES, check_nodes
from chopper_interop.converters.chakra.decode import EtFile, decode, decode_blocks
from chopper_interop.converters.chakra.reaction import (
    CONCURRENT,
    DEVIATIONS,
    NPUS_DEVIATION,
    Tried,
    is_far,
)
from chopper_interop.errors import ReadError
from chopper_interop.io import outputs
from chopper_interop.io.inputs import is_packed, opened
from chopper_interop.io.inputs import read as read_bytes

_GZIP = b"\x1f\x8b"
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))
_INT_MAX = 2**31 - 1
_HOW = "give the folder of ETs that chopper-convert wrote, or their path without .RANK.et"


def jobs_at(path: str) -> list[Path]:
    """Prefixes of the jobs to check: the path itself, that of one of its ETs, or those of a folder.

    Raises
    ------
    ReadError
        The folder can't be read, or has no ETs; or the path is that of another file.
    """
    prefix = Path(path)
    is_prefix = not path.endswith(_SEPARATORS) and _with_ending(prefix, ".0.et").exists()
    if is_prefix or not prefix.exists():
        return [prefix]
    if not prefix.is_dir():
        return [_prefix_of(prefix)]
    outputs.require_finished(prefix)
    try:
        jobs = chakra_files.prefixes(prefix)
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=prefix) from error
    if not jobs:
        as_json = (
            "; of ETs as JSON chopper-convert makes such" if any(prefix.glob("*.json*")) else ""
        )
        raise ReadError("it has no ETs (JOB.0.et, …)", path=prefix, hint=_HOW + as_json)
    return jobs


def _prefix_of(file: Path) -> Path:
    """Prefix of the job that a file belongs to; `ReadError` if it is no ET, by its name."""
    match = chakra_files.RANK_FILE.fullmatch(file.name)
    if match is None:
        raise ReadError("it is no ET", path=file, hint=_HOW)
    return file.with_name(match["job"])


def check(prefix: Path, tolerance: float = 0.005) -> Findings:
    """Check ``PREFIX.0.et``, ``PREFIX.1.et``, … and ``PREFIX.comm_groups.json``.

    Parameters
    ----------
    prefix
        Path without the ending ``.RANK.et``.
    tolerance
        Deviation of a rank from its measured span that counts as a fault, as a share of the span.

    Raises
    ------
    ReadError
        There are no such files.
    """
    findings = Findings()
    files = read_files(prefix, findings)
    groups = read_groups(prefix, len(files), findings)
    for rank, (path, et) in enumerate(files):
        check_nodes(path.name, et, findings)
        communication.check_communication(path.name, et, rank, len(files), findings)
    findings.nodes, findings.ranks = sum(len(et.id) for _, et in files), len(files)
    if len(files) == 1:
        text = "ASTRA-sim needs at least two ranks: give it the file twice"
        findings.add("all ranks", text, stops=False)
    ets = [et for _, et in files]
    communication.check_agreement(ets, groups, findings)
    read_spans(ets, findings)
    if findings.runs:
        execution.run_job(ets, groups, findings, tolerance)
    return findings


def read_spans(ets: list[EtFile], findings: Findings) -> None:
    """Read what the files state of their ranks: measured spans, and how accurate they are."""
    deviations: dict[int, tuple[float, Tried]] = {}
    concurrent: dict[int, float] = {}
    with_npus: dict[int, float] = {}
    hints: Counter[str] = Counter()
    for rank, et in enumerate(ets):
        facts = chakra_files.facts(et.metadata)
        findings.streams += chakra_files.STREAM_OF in facts
        span_ns = chakra_files.integer(facts, "span_ns")
        if span_ns <= 0:
            continue
        findings.span_ns[rank] = span_ns
        findings.unexplained[rank] = chakra_files.integer(facts, "unexplained_ns") / span_ns
        hints.update([str(facts["would_explain_more"])] if "would_explain_more" in facts else [])
        of_rank = [
            (chakra_files.integer(facts, name) / span_ns, tried)
            for name, tried in DEVIATIONS.items()
        ]
        deviations[rank] = max(of_rank, key=lambda entry: abs(entry[0]))
        concurrent[rank] = chakra_files.integer(facts, CONCURRENT) / span_ns
        if NPUS_DEVIATION in facts:
            with_npus[rank] = chakra_files.integer(facts, NPUS_DEVIATION) / span_ns
    for text, count in hints.items():
        hint = f"what would explain more of the critical path: {text}"
        findings.add("all ranks", hint, count, stops=False)
    _note_deviations(deviations, with_npus, findings)
    _note_concurrent(concurrent, findings)


_REMEDY = " (written with -O streams=npus, each stream is an NPU of its own)"


def _note_deviations(
    deviations: dict[int, tuple[float, Tried]], with_npus: dict[int, float], findings: Findings
) -> None:
    """Note the ranks whose ETs react otherwise than the timing model."""
    far = {r: entry for r, entry in deviations.items() if is_far(entry[0], findings.span_ns[r])}
    if not far:
        return
    worst = max(far, key=lambda rank: abs(far[rank][0]))
    share, tried = far[worst]
    text = (
        "its end differs from what the timing model predicts for kernels and copies of half or twice their time, "
        "or communication of twice its time, as one slot stands for several streams or threads"
    )
    if with_npus:
        text += f" (written with -O streams=npus, {max(with_npus.values()):.1%})"
    elif not findings.streams:
        text += _REMEDY
    example = f"{share:+.1%} of its span with {tried}"
    findings.add(f"rank {worst}", text, len(far), example, stops=False)


def _note_concurrent(concurrent: dict[int, float], findings: Findings) -> None:
    """Note the ranks whose collectives run at the same time."""
    shared = {r: share for r, share in concurrent.items() if is_far(share, findings.span_ns[r])}
    if not shared:
        return
    worst = max(shared, key=lambda rank: shared[rank])
    text = (
        "its collectives run at the same time, and one after the other in a simulated network: where "
        "communication limits it, it ends later by up to that, and by twice as much with half the bandwidth"
    )
    example = f"{shared[worst]:.1%} of its span"
    findings.add(f"rank {worst}", text + _REMEDY, len(shared), example, stops=False)


def _with_ending(prefix: Path, ending: str) -> Path:
    """Path of `prefix` and an ending; ``Path.with_name`` refuses ".", which has no name."""
    return prefix.parent / f"{prefix.name}{ending}"


def read_files(prefix: Path, findings: Findings) -> list[tuple[Path, EtFile]]:
    """Read what feeders read of the files of all ranks, up to the first that is missing."""
    files: list[tuple[Path, EtFile]] = []
    while (path := _with_ending(prefix, f".{len(files)}.et")).exists():
        files.append((path, _read_file(path, findings)))
    if not files:
        raise ReadError(
            "there is no such file",
            path=_with_ending(prefix, ".0.et"),
            hint=f"{_HOW}; ranks count from 0",
        )
    rank_file = re.compile(rf"{re.escape(prefix.name)}\.[0-9]+\.et")
    if sum(bool(rank_file.fullmatch(p.name)) for p in prefix.parent.glob("*.et")) > len(files):
        findings.add("all ranks", f"ranks have a hole: there is no {prefix.name}.{len(files)}.et")
    return files


def _read_file(path: Path, findings: Findings) -> EtFile:
    try:
        if _begins_with(path, _GZIP):
            findings.add(path.name, "it is gzipped, which the newer feeder does not read")
        if is_packed(path):
            return decode(np.require(read_bytes(path), requirements="W"), FEEDER_TYPES)
        with opened(path) as file:
            return decode_blocks(file, FEEDER_TYPES)
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=path) from error


def _begins_with(path: Path, magic: bytes) -> bool:
    with opened(path) as file:
        return file.read(len(magic)) == magic


def read_groups(prefix: Path, ranks: int, findings: Findings) -> dict[str, list[int]]:
    """Process groups by name: "" has all ranks, the others are in the file next to the ETs."""
    groups = {"": list(range(ranks))}
    path = _with_ending(prefix, ".comm_groups.json")
    if not path.exists():
        return groups
    try:
        listed = chakra_files.parsed_groups(read_bytes(path).tobytes())
    except chakra_files.NOT_GROUPS as error:
        findings.add(path.name, f"it is no object of lists of ranks: {error}")
        return groups
    invalid = [key for key in listed if not _is_group_number(key)]
    if invalid:
        text = "names that are no numbers from 1 on, at which ASTRA-sim aborts"
        findings.add(path.name, text, len(invalid), repr(invalid[0]))
    return groups | listed


def _is_group_number(key: str) -> bool:
    """True if a key of the file of groups begins with a number from 1 on, as it must."""
    number = re.match(r"\s*\+?0*([1-9][0-9]{0,9})(?![0-9])", key)
    return number is not None and int(number.group(1)) <= _INT_MAX
