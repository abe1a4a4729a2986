"""Several runs, or windows of one, among the sources: tied to groups, of which one is chosen.

A rank recorded twice, or profiles of ranks without a number that never ran at one time, are several
recordings. Sources belong to one group if they are of different ranks and overlap in time; where
clocks differ too much for that, if they are of the same steps or lie in the same folder. Counter
passes, programs and telemetry go with the profiles in or below the nearest folder around them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chopper_interop import number_ranges
from chopper_interop.errors import AmbiguousRunError, UsageError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import copies, processes, windows
from chopper_interop.schemas.meta import REALTIME

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment

ALL = "all"
"""Value of `run` that takes all windows of a run as one job."""
LEFT_OUT = Fault.info(
    "runs-left-out", "Files of other runs or windows than the chosen one were left out."
)
JOINED = Fault.info(
    "windows-joined",
    "Windows of one process that follow each other were joined; nothing is known of the time between "
    "them.",
)
_SHOWN = 12
"""Groups that an error names; more do not fit a line that anyone reads."""


@dataclass(eq=False)
class ProfileGroup:
    """Profiles that were recorded together: each rank once."""

    fragments: list[Fragment] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)
    """Numbers of its training steps."""
    folders: set[Path] = field(default_factory=set)
    by_rank: dict[int, list[Fragment]] = field(default_factory=dict)
    """Profiles that state a rank."""
    unnumbered: list[Fragment] = field(default_factory=list)
    """Profiles that state none."""

    def add(self, fragment: Fragment) -> None:
        """Add a profile."""
        self.fragments.append(fragment)
        for rank in fragment.stated_ranks:
            self.by_rank.setdefault(rank, []).append(fragment)
        if fragment.ranks_are_assumed:
            self.unnumbered.append(fragment)
        self.steps |= fragment.steps
        self.folders.add(fragment.path.parent)

    @property
    def window_ns(self) -> tuple[int, int]:
        """First start and last end, on the profiles' clocks."""
        bounds = [f.window_ns for f in self.fragments]
        return min(b[0] for b in bounds), max(b[1] for b in bounds)

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks that the profiles state."""
        return sorted({r for f in self.fragments for r in f.stated_ranks})

    def text(self, folder: str) -> str:
        """Ranks, processes, steps, time and first file, relative to a folder, in one line."""
        pids = {pid for f in self.fragments for _, pid in f.processes}
        start, stop = self.window_ns
        parts = [_numbers_text("rank", self.ranks), _numbers_text("process", pids)]
        parts += [_numbers_text("step", self.steps), _time_text(self.fragments[0], start, stop)]
        more = f" (+{len(self.fragments) - 1})" if len(self.fragments) > 1 else ""
        file = os.path.relpath(self.fragments[0].path.absolute(), folder)
        return ", ".join(part for part in (*parts, f"{file}{more}") if part)


def choose(
    fragments: list[Fragment],
    timing: Sequence[Fragment],
    run: int | str | None,
    issues: IssueLog,
    *,
    apart: bool = False,
) -> list[Fragment]:
    """Choose the sources of one run.

    Parameters
    ----------
    fragments
        All sources of the job.
    timing
        Those whose times become the trace's.
    run
        Number of a group, from 1 on in order of time; `ALL` for all windows of one run; None if
        there is only one.
    issues
        Gets the number of files that were left out.
    apart
        As of `split`.

    Raises
    ------
    AmbiguousRunError
        There are several groups and none was chosen, or they are no windows of one run.
    UsageError
        There is no such group.
    """
    groups = split(timing, apart=apart)
    if run is None:
        if len(groups) > 1:
            _refuse(groups)
        return fragments
    if run == ALL:
        return _all_windows(fragments, groups, issues)
    if not 1 <= int(run) <= len(groups):
        refuse_number(int(run), len(groups))
    chosen = groups[int(run) - 1]
    kept = [f for f in fragments if _goes_with(f, chosen, groups)]
    left_out = [f for f in fragments if f not in kept]
    issues.add(LEFT_OUT, len(left_out), left_out[0].files.label if left_out else "")
    return kept


def leave_out(
    fragment: Fragment,
    timing: Sequence[Fragment],
    reason: str,
    run: int | str | None,
    issues: IssueLog,
) -> None:
    """Leave out a source of another run than the profiles', if a run was chosen by its number.

    Raises
    ------
    AmbiguousRunError
        None was.
    """
    if run is None or run == ALL:
        raise AmbiguousRunError(
            f"{fragment.files.label} and {timing[0].files.label} are of two runs: {reason}",
            hint="give the files of one; --run 1 (in Python run=1) leaves out what is of another run "
            "than the profiles",
        )
    issues.add(LEFT_OUT, 1, f"{fragment.files.label}: {reason}")


def refuse_number(run: int, count: int) -> NoReturn:
    """Raise `UsageError` for a number of a run that is not there."""
    raise UsageError(f"--run {run}: there {_count_text(count)}")


def parsed(run: int | str | None) -> int | str | None:
    """Return which run was asked for: its number, `ALL`, or None.

    Raises
    ------
    UsageError
        It is neither.
    """
    if run is None or run == ALL:
        return run
    try:
        return int(run)
    except ValueError:
        raise UsageError(f"--run {run}: write the number of a run, or {ALL}") from None


def split(timing: Sequence[Fragment], *, apart: bool = False) -> list[ProfileGroup]:
    """Split profiles into groups in which each rank occurs once, in order of time.

    It is one group if no two of them contradict each other, whatever their times, unless those that nothing
    ties are to be `apart`.
    """
    order = sorted(
        processes.children_last(timing), key=lambda f: (f.ranks_are_assumed, f.window_ns)
    )
    together = ProfileGroup()
    for fragment in order:
        if apart or not _fits(fragment, together):
            break
        together.add(fragment)
    else:
        return [together]
    groups: list[ProfileGroup] = []
    for fragment in order:
        possible = [g for g in groups if _fits(fragment, g)]
        tied = max(possible, key=lambda g: _ties(fragment, g), default=None)
        if tied is None or not any(_ties(fragment, tied)):
            tied = ProfileGroup()
            groups.append(tied)
        tied.add(fragment)
    return sorted(groups, key=lambda g: g.window_ns)


def _fits(fragment: Fragment, group: ProfileGroup) -> bool:
    """True if nothing contradicts that a profile was recorded together with a group."""
    return all(
        _agree(fragment, other, rank)
        for rank in fragment.stated_ranks
        for other in group.by_rank.get(rank, ())
    ) and _overlaps_unnumbered(fragment, group)


def _agree(fragment: Fragment, other: Fragment, rank: int) -> bool:
    """True if a rank that two profiles have in common has the same events, or is of its children."""
    return copies.same_events(fragment, other, rank) or processes.are_of_one_rank(
        other, fragment, rank
    )


def _overlaps_unnumbered(fragment: Fragment, group: ProfileGroup) -> bool:
    """True if a profile without numbers of ranks overlaps another such one, if there is any.

    It must overlap all of its own process.
    """
    if not fragment.ranks_are_assumed:
        return True
    unnumbered = [f for f in group.unnumbered if _on_one_clock(fragment, f)]
    overlaps = [_overlap_ns(fragment, f) > 0 for f in unnumbered]
    apart = (f for f, overlap in zip(unnumbered, overlaps, strict=True) if not overlap)
    return not unnumbered or (
        any(overlaps) and all(fragment.processes.isdisjoint(f.processes) for f in apart)
    )


def _on_one_clock(a: Fragment, b: Fragment) -> bool:
    """True if times of two profiles can be compared: clocks that count from boot differ by host."""
    clock = a.trace.meta.clock
    return clock == b.trace.meta.clock and (clock == REALTIME or a.hosts == b.hosts)


def _ties(fragment: Fragment, group: ProfileGroup) -> tuple[int, bool, bool]:
    """Ties of a profile to a group, the strongest first: time, steps, folder.

    Windows of different steps are not tied by time: the clocks of their hosts differ.
    """
    steps, others = fragment.steps, group.steps
    if steps and others and not steps & others:
        return 0, False, False
    overlap_ns = max(_overlap_ns(fragment, f) for f in group.fragments)
    folder = fragment.path.parent in group.folders
    return max(overlap_ns, 0), bool(steps and steps == others and folder), folder


def _overlap_ns(a: Fragment, b: Fragment) -> int:
    """Time that two profiles have in common, negative if they are apart; of one run in two formats 1 ns."""
    (start, stop), (start_2, stop_2) = a.window_ns, b.window_ns
    overlap_ns = min(stop, stop_2) - max(start, start_2)
    if overlap_ns <= 0 and (copies.contains(a, b) or copies.contains(b, a)):
        return 1
    return overlap_ns


def _goes_with(fragment: Fragment, chosen: ProfileGroup, groups: list[ProfileGroup]) -> bool:
    """True if a source is one of a group, or nothing shows that it is of another one."""
    if any(f is fragment for g in groups for f in g.fragments):
        return any(f is fragment for f in chosen.fragments)
    nearest = _nearest(fragment.path, groups)
    if chosen not in nearest:
        return False
    window = _sampled_ns(fragment)
    if window is None or fragment.trace.meta.clock != REALTIME:
        return True
    overlapping = [g for g in nearest if _share(window, g.window_ns)]
    return chosen in overlapping or not overlapping


def _nearest(path: Path, groups: list[ProfileGroup]) -> list[ProfileGroup]:
    """Groups with profiles in or below the nearest folder around a file that has any."""
    for folder in path.resolve().parents:
        near = [
            g for g in groups if any(f.path.resolve().is_relative_to(folder) for f in g.fragments)
        ]
        if near:
            return near
    return groups


def _sampled_ns(fragment: Fragment) -> tuple[int, int] | None:
    """First and last time of telemetry; None for what has nodes."""
    trace = fragment.trace
    if trace.nodes.num_rows or not trace.samples.num_rows:
        return None
    ts = trace.array("ts", "samples")
    return int(ts.min()) + trace.meta.origin_ns, int(ts.max()) + trace.meta.origin_ns


def _share(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) <= min(a[1], b[1])


def _all_windows(
    fragments: list[Fragment], groups: list[ProfileGroup], issues: IssueLog
) -> list[Fragment]:
    """All sources, with the windows of each process joined to one profile.

    Raises
    ------
    AmbiguousRunError
        Two are not windows of one process, or they overlap.
    """
    if len(groups) == 1:
        return fragments
    tracks: list[list[Fragment]] = []
    for group in groups:
        for fragment in copies.kept(group.fragments, issues)[0]:
            track = next((t for t in tracks if windows.is_next(t[-1], fragment)), None)
            if track is None:
                track = []
                tracks.append(track)
            track.append(fragment)
    joined = [windows.join(track) for track in tracks]
    if len(split(joined)) > 1:
        _refuse(
            groups,
            f"--run {ALL}: these are not windows of the same processes, one after the other; ",
        )
    issues.add(JOINED, sum(len(t) for t in tracks if len(t) > 1), f"{len(groups)} windows")
    first = {id(track[0]): whole for track, whole in zip(tracks, joined, strict=True)}
    grouped = {id(f) for g in groups for f in g.fragments}
    return [first.get(id(f), f) for f in fragments if id(f) in first or id(f) not in grouped]


def _refuse(groups: list[ProfileGroup], prefix: str = "") -> None:
    folder = os.path.commonpath([f.path.absolute().parent for g in groups for f in g.fragments])
    shown = "; ".join(f"{k}: {g.text(folder)}" for k, g in enumerate(groups[:_SHOWN], 1))
    more = f"; and {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else ""
    raise AmbiguousRunError(
        f"{prefix}there {_count_text(len(groups))}: {shown}{more}",
        path=folder,
        hint=f"choose one with --run 1 to --run {len(groups)}"
        + ("" if prefix else f", or --run {ALL} for all windows of one run")
        + "; in Python run=1",
    )


def _count_text(count: int) -> str:
    return f"are {count} runs or windows" if count > 1 else "is one run"


def _numbers_text(noun: str, numbers: Iterable[int]) -> str:
    """Numbers as text: ``ranks 0-3``, ``process 812``; empty if there are none."""
    ordered = sorted(set(numbers))
    if not ordered:
        return ""
    texts = number_ranges.texts(ordered)
    plural = "" if len(ordered) == 1 else "es" if noun.endswith("s") else "s"
    more = ", …" if len(texts) > 4 else ""  # noqa: PLR2004 # as many as fit a line
    return f"{noun}{plural} {','.join(texts[:4])}{more}"


def _time_text(fragment: Fragment, start: int, stop: int) -> str:
    """Time of a window: its start, since 1970 or of its clock, and its length."""
    seconds = (stop - start) / 1e9
    if fragment.trace.meta.clock != REALTIME:
        return f"{start / 1e9:,.3f} s + {seconds:,.3f} s"
    at = datetime.fromtimestamp(start / 1e9, timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}.{start // 10**6 % 1000:03} + {seconds:,.3f} s"
