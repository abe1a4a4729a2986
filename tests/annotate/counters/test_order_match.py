"""Two runs are matched in order, by as many steps as there are, and by none that is uncertain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_from

from chopper_interop.annotate.counters import order_match
from chopper_interop.annotate.counters.order_match import match_order

SEQUENCES = st.lists(st.integers(0, 4), max_size=16)


def longest(a: list[int], b: list[int]) -> int:
    """Length of a longest common subsequence, the plain way."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b):
            here = row[j + 1]
            row[j + 1] = before + 1 if x == y else max(row[j + 1], row[j])
            before = here
    return row[-1]


def matched(a: object, b: object) -> order_match.OrderMatch:
    return match_order(np.array(a, np.int64), np.array(b, np.int64))


def letters(a: str, b: str) -> list[int]:
    return matched([ord(c) for c in a], [ord(c) for c in b]).position.tolist()


@given(SEQUENCES, SEQUENCES)
def test_as_many_as_brute_force_finds_and_in_order(a: list[int], b: list[int]) -> None:
    actual = matched(a, b)
    assert actual.pairs == longest(a, b)
    assert (np.diff(actual.position[actual.position >= 0]) > 0).all()
    assert all(a[i] == b[j] for i, j in enumerate(actual.position.tolist()) if j >= 0)


@given(st.integers(0, 40), st.data())
def test_never_a_wrong_pair_of_steps_that_are_unique(size: int, data: st.DataObject) -> None:
    steps = st.lists(st.booleans(), min_size=size, max_size=size)
    own, expected = data.draw(steps), data.draw(steps)
    a = [i for i in range(size) if own[i]]
    b = [i for i in range(size) if expected[i]]
    place = matched(a, b).position
    assert [b[j] if j >= 0 else None for j in place] == [x if expected[x] else None for x in a]


@given(st.lists(st.integers(0, 5), min_size=30, max_size=60), st.integers(0, 29), st.booleans())
def test_one_missing_step_shifts_none(steps: list[int], lost: int, is_timed_run: bool) -> None:  # noqa: FBT001 # drawn
    """Matched steps keep their position; equal neighbours of the lost one stay unmatched."""
    numbered = list(range(len(steps)))
    short, kept = steps[:lost] + steps[lost + 1 :], numbered[:lost] + numbered[lost + 1 :]
    place = matched(*((short, steps) if is_timed_run else (steps, short))).position
    for i, j in enumerate(place.tolist()):
        truth = (kept[i], j) if is_timed_run else (i, kept[j] if j >= 0 else -1)
        same_run = truth[0] != truth[1] and len(set(steps[min(truth) : max(truth) + 1])) > 1
        assert j < 0 or truth[0] == truth[1] or same_run
    assert np.count_nonzero(place >= 0) > 0


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [
        ("aab", "ab", [-1, -1, 1]),  # which a is uncertain
        ("aabaab", "aab", [-1, -1, -1, 0, 1, 2]),  # the last of two repetitions
        ("xaqay", "xay", [0, -1, -1, -1, 2]),  # q is of no kernel that both have
        ("xababy", "xaby", [0, -1, -1, 1, 2, 3]),
        ("aaaa", "aa", [-1, -1, 0, 1]),
        ("sabcabcabc", "sabcabc", [0, -1, -1, -1, 1, 2, 3, 4, 5, 6]),
        ("ngggn", "nggn", [0, -1, -1, -1, 3]),
        ("", "ab", []),
        ("ab", "", [-1, -1]),
        ("ab", "cd", [-1, -1]),
    ],
)
def test_only_certain_steps_are_matched(a: str, b: str, place: list[int]) -> None:
    assert letters(a, b) == place


def job(steps: int, layers: int = 12, of_layer: int = 25, other: int = 60) -> tuple[list[int], int]:
    """A training job's kernels: steps of equal layers and some more; and the length of a step."""
    draw = np.random.default_rng(3)
    layer = draw.integers(0, 15, of_layer).tolist()
    step = layer * layers + draw.integers(10, 20, other).tolist()
    return step * steps, len(step)


@pytest.mark.parametrize(
    ("timed_steps", "counted_steps", "lost"),
    [(10, 10, 0), (10, 9, 0), (10, 2, 0), (10, 2, 4), (9, 10, 6), (2, 10, 4), (40, 40, 900)],
)
def test_steps_of_a_job(timed_steps: int, counted_steps: int, lost: int) -> None:
    a, step = job(timed_steps)
    b, _ = job(counted_steps)
    gone = set(np.random.default_rng(lost).choice(len(b), lost, replace=False).tolist())
    kept = [i for i in range(len(b)) if i not in gone]
    actual = matched(a, [b[i] for i in kept])
    at = np.flatnonzero(actual.position >= 0)
    their = np.array(kept)[actual.position[at]]
    assert (at % step == their % step).mean() >= (1.0 if lost < 20 else 0.999)
    assert actual.pairs >= 0.95 * min(len(a), len(kept))
    if counted_steps == timed_steps:
        assert (at // step == their // step).mean() > 0.99
    elif counted_steps < timed_steps and not lost:
        assert set(at // step - their // step) == {timed_steps - counted_steps}


def test_many_differences_are_matched_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_match, "_MAX_EDITS", 100)
    monkeypatch.setattr(order_match, "_PIECE", 512)
    monkeypatch.setattr(order_match, "_KEPT_OF_PIECE", 384)
    a = np.random.default_rng(1).integers(0, 200, 8000)
    kept = np.flatnonzero(np.random.default_rng(2).random(8000) > 0.05)
    actual = match_order(a, a[kept])
    at = np.flatnonzero(actual.position >= 0)
    right = kept[actual.position[at]] == at
    assert right.mean() > 0.999
    assert len(at) > 0.98 * len(kept)


def missing(a: list[int], gone: object) -> tuple[np.ndarray, order_match.OrderMatch]:
    """By how much steps are moved that are matched if some are gone, and the matches."""
    kept = np.delete(np.arange(len(a)), gone)
    result = match_order(np.array(a), np.array(a)[kept])
    at = np.flatnonzero(result.position >= 0)
    return kept[result.position[at]] - at, result


@pytest.mark.parametrize("steps", slow_from([1000, 2000], 1))
def test_many_steps_missing_here_and_there_shift_none(steps: int) -> None:
    draw = np.random.default_rng(0)
    a = np.tile(draw.integers(0, 15, 200), steps)
    shift, _ = missing(a.tolist(), np.flatnonzero(draw.random(len(a)) < 0.02))
    assert len(shift) > 0.97 * len(a)
    assert np.count_nonzero(shift) <= 1  # of equal kernels next to a lost one


@pytest.mark.parametrize(
    ("period", "steps", "first", "stop"), [(6, 6, 14, 22), (200, 10, 700, 950)]
)
def test_a_hole_that_is_no_whole_step_moves_none(
    period: int, steps: int, first: int, stop: int
) -> None:
    shift, actual = missing(list(range(period)) * steps, np.arange(first, stop))
    assert shift.size
    assert not shift.any()
    assert actual.pairs == period * steps - (stop - first)


def test_holes_in_steps_move_none_unless_repetition_is_reported() -> None:
    draw = np.random.default_rng(5)
    matched_all = 0
    for _ in range(300):
        period, steps = int(draw.integers(5, 25)), int(draw.integers(5, 12))
        a = [99, *list(range(period)) * steps, 98][:: 1 if draw.random() < 0.5 else -1]
        sizes = draw.choice([1, 1, 2, period // 2 + 1, period, period + 2], draw.integers(0, 4))
        at = draw.integers(0, len(a) - 2 * period, len(sizes))
        gone = [np.arange(i, i + size) for i, size in zip(at, sizes, strict=True)]
        shift, actual = missing(a, np.unique(np.concatenate([np.empty(0, int), *gone])))
        matched_all += len(shift)
        assert actual.repeated or not shift.any()
        assert not (shift % period).any()
    assert matched_all > 20_000
