"""Tokens and samples of steps by shapes, and which ranks hold one copy of a model."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from kineto_files import BASE, kernel, span, write

import chopper_interop as ci
from chopper_interop.analyses.methods.communication import job_layout
from chopper_interop.analyses.methods.efficiency import batches
from chopper_interop.schemas import hub

VOCABULARY, WIDTH = 32000, 64
Call = tuple[str, list]


def embedding(*indices: int, rows: int = VOCABULARY) -> Call:
    return "aten::embedding", [[rows, WIDTH], list(indices), [], [], []]


def trace(folder: Path, ranks: dict[int, list[Call]], groups: dict[str, list[list[int]]] | None = None,
          world: int = 0) -> ci.Trace:  # fmt: skip
    """One step of these ranks, each of which makes some calls."""
    for rank, calls in ranks.items():
        events = [span("user_annotation", "ProfilerStep#3", 0, 1000), kernel("k", 900, 50, 0)]
        for i, (name, dims) in enumerate(calls):
            args = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
            events.append(span("cpu_op", name, 10 + 20 * i, 10, args=args))
        info = {"rank": rank, "world_size": world or len(ranks), "backend": "nccl"}
        write(folder / f"rank{rank}.json", events, baseTimeNanoseconds=BASE, distributedInfo=info)
    read = ci.read(folder)
    if groups is None:
        return read
    rows = [
        {"name": str(n), "description": text, "backend": "nccl", "ranks": members}
        for n, (text, members) in enumerate(
            (text, members) for text, lists in groups.items() for members in lists
        )
    ]
    return replace(read, groups=pa.Table.from_pylist(rows, schema=hub.schema("groups")))


def counted(of: ci.Trace, chosen: list[int] | None = None) -> tuple[float | None, float | None]:
    result = batches.step_batches(of, of.ranks if chosen is None else chosen, [3])
    return result.tokens[3], result.samples[3]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([embedding(2, 128)], (256, 2)),
        ([embedding(2, 128)] * 3, (768, 6)),  # microbatches
        ([embedding(2, 128), embedding(1, 128, rows=128), embedding(2, 128, rows=2)], (256, 2)),
        ([embedding(300)], (300, None)),  # sequences one behind the other
        ([embedding(2, 0)], (None, None)),
        ([("aten::embedding", [])], (None, None)),
        ([("aten::embedding", [[], []])], (None, None)),
        ([("aten::embedding", ["x", None])], (None, None)),
        ([("aten::embedding", [[VOCABULARY, WIDTH], [1 << 40, 1 << 40]])], (None, None)),
        ([("aten::embedding", [[VOCABULARY, WIDTH], [-4, 8]])], (None, None)),
        ([("aten::cross_entropy_loss", [[2, 500, 16], [2, 16], []])], (32, 2)),
        ([("aten::cross_entropy_loss", [[32, 500], [32], []])], (None, None)),  # of what?
        (
            [
                ("aten::scaled_dot_product_attention", [[2, 4, 16, 8]]),
                ("aten::cross_entropy_loss", [[32, 500], [32], []]),
                ("aten::nll_loss_forward", [[32, 500], [32], []]),
            ],
            (32, None),
        ),
        ([("aten::conv2d", [[8, 3, 32, 32], [16, 3, 3, 3], []])], (None, 8)),
        ([("aten::conv2d", [[8, 64, 32, 32], [16, 64, 3, 3], []])], (None, None)),
        (
            [
                ("aten::conv2d", [[8, 3, 224, 224], [768, 3, 16, 16], []]),
                ("aten::scaled_dot_product_attention", [[8, 4, 197, 8]]),
                ("aten::cross_entropy_loss", [[8, 1000], [8], []]),
            ],
            (None, 8),
        ),
        ([], (None, None)),
    ],
)
def test_what_shapes_tell(tmp_path: Path, calls, expected) -> None:
    assert counted(trace(tmp_path, {0: calls})) == expected


def test_an_operator_within_itself_counts_once(tmp_path: Path) -> None:
    name, dims = embedding(2, 128)
    outer = span("cpu_op", name, 10, 50, args={"Input Dims": dims})
    inner = span("cpu_op", name, 20, 20, args={"Input Dims": dims})
    step = span("user_annotation", "ProfilerStep#3", 0, 1000)
    info = {"rank": 0, "world_size": 1}
    write(tmp_path / "r.json", [step, outer, inner], baseTimeNanoseconds=BASE, distributedInfo=info)
    assert counted(ci.read(tmp_path)) == (256, 2)


EACH = [embedding(2, 128)]
EIGHT = list(range(8))


@pytest.mark.parametrize(
    ("groups", "copies", "tokens", "samples"),
    [
        ({}, 8, 8 * 256, 16),
        ({"default_pg": [EIGHT]}, 8, 8 * 256, 16),
        ({"mesh_dp_shard": [EIGHT]}, 8, 8 * 256, 16),
        ({"mesh_tp": [[0, 1, 2, 3], [4, 5, 6, 7]], "mesh_dp": [[0, 4]]}, 2, 2 * 256, 4),
        ({"TENSOR_MODEL_PARALLEL_GROUP": [EIGHT]}, 1, 256, 2),
        ({"tp": [[0, 1], [2, 3], [4, 5], [6, 7]]}, 4, 4 * 256, 8),
        ({"CONTEXT_PARALLEL_GROUP": [[0, 1], [2, 3], [4, 5], [6, 7]]}, 8, 8 * 256, 8),
        ({"EXPERT_MODEL_PARALLEL_GROUP": [EIGHT]}, 8, 8 * 256, 16),
        ({"DATA_PARALLEL_GROUP_WITH_CP": [EIGHT]}, 8, 8 * 256, 16),
        ({"MODEL_PARALLEL_GROUP": [EIGHT], "TENSOR_MODEL_PARALLEL_GROUP": [[0, 1, 2, 3]]}, 1, 5 * 256, 10),
    ],
)  # fmt: skip
def test_ranks_that_see_the_same_count_once(
    tmp_path: Path, groups, copies, tokens, samples
) -> None:
    actual = trace(tmp_path, dict.fromkeys(EIGHT, EACH), groups)
    assert len(job_layout.job_layout(actual).replicas) == copies
    assert counted(actual) == (tokens, samples)


def test_stages_of_a_pipeline_are_one_copy(tmp_path: Path) -> None:
    """The first stage has the embedding, the last one the loss: the tokens count once."""
    loss = [
        ("aten::scaled_dot_product_attention", [[2, 4, 128, 8]]),
        ("aten::cross_entropy_loss", [[256, 500], [256], []]),
    ]
    ranks = {0: EACH, 1: [], 2: EACH, 3: loss, 4: [], 5: loss}
    groups = {"mesh_pp": [[0, 1, 3], [2, 4, 5]], "default_pg": [[0, 1, 2, 3, 4, 5]]}
    actual = trace(tmp_path, ranks, groups)
    assert counted(actual) == (512, 4)
    assert counted(actual, [0, 1, 3]) == (256, 2)
    assert counted(actual, [1]) == (pytest.approx(256 / 3), pytest.approx(2 / 3))


def test_some_ranks_of_a_job_alone(tmp_path: Path) -> None:
    actual = trace(tmp_path, {1: EACH}, {"mesh_tp": [[0, 1, 2, 3]], "default_pg": [EIGHT]}, world=8)
    counts = batches.step_batches(actual, [1], [3])
    assert counts.tokens[3] == 64  # a quarter of the tokens that four ranks work on together
    assert counts.share == 1 / 8
    assert counts.layout is not None
    assert counts.layout.world == 8


def test_one_copy_without_shapes_leaves_the_sum_unknown(tmp_path: Path) -> None:
    actual = trace(tmp_path, {0: EACH, 1: []})
    assert counted(actual) == (None, None)
    assert counted(actual, [0]) == (256, 2)


def test_any_group_and_any_size(tmp_path: Path) -> None:
    """Odd descriptions and members tell nothing, and break nothing."""
    groups = {"": [[]], "tp": [[0], [0, 99]], "ünï_tp!": [[0, 1]], "model": [[0, 0]]}
    actual = trace(tmp_path, {0: EACH, 1: EACH}, groups)
    layout = job_layout.job_layout(actual)
    assert layout.world == 3
    assert [copy.ranks for copy in layout.replicas] == [(0, 99), (1,)]
