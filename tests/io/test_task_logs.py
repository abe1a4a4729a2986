"""Logs of several processes in one file are read as the files that they would be without labels."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

import chopper_interop as ci
from chopper_interop import sources
from chopper_interop.errors import ReadError
from chopper_interop.io import archive_members

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "timestamp, index, power.draw [W]"
LABELS = {
    "srun": "{}: ",
    "srun, padded": "  {}: ",
    "Open MPI": "[1,{}]<stdout>:",
    "Open MPI 5": "[prterun-node1-77@1,{}]<stdout>: ",
    "torchrun": "[default{}]:",
    "pdsh": "node{}: ",
}


def lines(power: int) -> list[str]:
    rows = [
        f"2026/11/29 01:07:{s:02d}.000, {gpu}, {power + gpu}.50 W"
        for s in range(5)
        for gpu in (0, 1)
    ]
    return [HEADER, *rows]


def samples(path: Path, from_format: str | None = None) -> list[tuple[int, int, float]]:
    trace = ci.read(path, from_format=from_format)
    frame = trace.samples.to_pandas()
    devices = trace.array("device", "series")[frame["series"]]
    return sorted(zip(devices.tolist(), frame["ts"].tolist(), frame["value"].tolist(), strict=True))


@pytest.mark.parametrize("label", LABELS.values(), ids=list(LABELS))
def test_lines_are_read_without_their_labels(tmp_path: Path, label: str) -> None:
    plain, labelled = tmp_path / "plain.csv", tmp_path / "labelled.log"
    plain.write_text("\n".join(lines(100)) + "\n")
    labelled.write_text("".join(f"{label.format(3)}{line}\n" for line in lines(100)))
    assert samples(labelled) == samples(plain)
    assert samples(labelled, "nvidia-smi") == samples(plain)


def test_tasks_are_kept_apart_and_what_has_no_label_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    both = zip(lines(100), lines(300), strict=True)
    text = "".join(f"0: {a}\n1: {b}\n" for a, b in both)
    path.write_text("starting\n" + text + "srun: error: node1: task 1: Killed\n")
    assert [(n, power) for n, _, power in samples(path) if n % 2 == 0] == [
        *((0, 100.5) for _ in range(5)), *((2, 300.5) for _ in range(5)),
    ]  # fmt: skip
    skipped = [(p.name, why) for p, why in sources.find([path]).skipped]
    assert skipped == [("without label", "no format that is known here")]


def test_lines_that_are_no_profile_without_labels_are_left_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("0: hello\n1: world\n" * 5)
    with pytest.raises(ci.errors.UnknownFormatError, match="no format that is known here"):
        ci.read(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_logs_in_an_archive_are_read(tmp_path: Path, compression: int) -> None:
    """Also where the archive holds them as they are, so that its own first bytes show a profile."""
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("run/job.log", "".join(f"0: {line}\n" for line in lines(100)) + "1: x\n")
        archive.writestr("run/more.csv", "\n".join(lines(300)))
    assert {power for _, _, power in samples(path)} == {100.5, 101.5, 300.5, 301.5}
    skipped = sources.find([path]).skipped
    assert [p for p, _ in skipped] == [path / "run/job.log/task 1"]


def test_labels_of_labels_are_taken_off_twice_at_most(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    log = [
        "==============NVSMI LOG==============",
        "Timestamp : Sat Nov 28 10:00:00 2026",
        "",
        "GPU 0",
    ]
    path.write_text("".join("0: " * 9 + line + "\n" for line in log))
    with pytest.raises(ci.errors.ReadError, match="no events and no samples"):
        ci.read(path)


def test_a_file_with_a_label_on_few_lines_is_no_log_of_tasks(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("as printed\n" * 20 + "".join(f"0: {line}\n" for line in lines(100)))
    with pytest.raises(ci.errors.UnknownFormatError, match="no format that is known here"):
        ci.read(path)


def test_more_labels_than_are_unpacked_are_not_called_damage(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(archive_members, "MAX_MEMBERS", 1)
    monkeypatch.setattr(archive_members.Budget.__init__, "__defaults__", (1,))
    (tmp_path / "job.log").write_text("".join(f"0: {a}\n1: {a}\n" for a in lines(100)))
    with pytest.raises(
        ReadError, match=r": it has more than 1 labels in front of its lines \(give"
    ):
        ci.read(tmp_path / "job.log")


def test_lines_of_nothing_but_labels_are_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("0: \n1: \n" * 5)
    with pytest.raises(ci.errors.UnknownFormatError, match="no format that is known here"):
        ci.read(path)


def sampled_by_two(label: str, difference: float) -> str:
    """A log of two tasks that sampled a GPU each second, half a second apart, under a power that drifts."""
    rng = np.random.default_rng(0)
    rows = [(-1.0, label.format(task) + HEADER) for task in (1, 2)]
    for k in range(100):
        for task in (1, 2):
            second = k + task / 2
            watts = 500 + 30 * np.sin(second / 7) + rng.normal(0, 4) + (task == 2) * difference
            stamp = f"2026/11/29 01:{int(second) // 60:02d}:{second % 60:06.3f}"
            rows.append((second, f"{label.format(task)}{stamp}, 0, {watts:.2f} W"))
    return "".join(f"{text}\n" for _, text in sorted(rows))


@pytest.mark.parametrize(
    ("label", "difference", "gpus"),
    [("{}: ", 0, 1), ("{}: ", 15, 2), ("node{}: ", 0, 2), ("rank{}: ", 0, 1)],
)
def test_gpus_of_tasks_are_of_several_machines_where_means_or_labels_differ(
    tmp_path: Path, label: str, difference: float, gpus: int
) -> None:
    """3 % of power are 20 standard errors of what two tasks read of one GPU."""
    path = tmp_path / "job.log"
    path.write_text(sampled_by_two(label, difference))
    trace = ci.read(path)
    assert len(np.unique(trace.array("device", "series"))) == gpus
    assert (trace.samples.num_rows == 200) == (gpus == 2)
    codes = {issue.code for issue in trace.meta.issues}
    assert ("telemetry-assumed-same-gpu" in codes) == (gpus == 1)


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        ("power.draw [W]", ["node1: 2026/11/29 01:00:01.0, 0, 300 W", "node2: 2026/11/29 01:00:02.0, 0, 300 W"]),
        ("utilization.gpu [%]", [f"node{n}: 2026/11/29 01:00:0{s}.{n}, 0, 9 %" for s in range(9) for n in (1, 2)]),
    ],
    ids=["one after the other", "no power"],
)  # fmt: skip
def test_gpus_of_hosts_are_apart_whatever_was_measured(
    tmp_path: Path, field: str, rows: list[str]
) -> None:
    path = tmp_path / "job.log"
    headers = [f"node{n}: timestamp, index, {field}" for n in (1, 2)]
    path.write_text("".join(f"{line}\n" for line in [*headers, *rows]))
    trace = ci.read(path)
    assert sorted(trace.array("device", "series").tolist()) == [0, 1]
    assert trace.samples.num_rows == len(rows)


@pytest.mark.parametrize(("warmer", "gpus"), [((1, 0, 0), 1), ((1, 1, 1), 2)])
def test_temperatures_of_tasks_are_of_one_gpu_within_half_a_degree(
    tmp_path: Path, warmer: tuple[int, ...], gpus: int
) -> None:
    path = tmp_path / "job.log"
    rows = [f"{n}: timestamp, index, temperature.gpu" for n in (1, 2)]
    rows += [
        f"{n}: 2026/11/29 01:00:{s:02d}.{n}, 0, {65 + (n == 2) * warmer[s % 3]}"
        for s in range(48)
        for n in (1, 2)
    ]
    path.write_text("".join(f"{row}\n" for row in rows))
    assert len(np.unique(ci.read(path).array("device", "series"))) == gpus
