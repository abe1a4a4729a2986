"""Names of process groups: one table for who sees which data and for how a job was divided."""

import pytest

from chopper_interop.analyses.methods.communication import group_names


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mesh_tp", {"tp"}),
        ("mesh_dim_tp", {"tp"}),
        ("TENSOR_MODEL_PARALLEL_GROUP", {"tp"}),
        ("MODEL_PARALLEL_GROUP", {"model"}),
        ("pipe_parallel_group", {"pp"}),
        ("mesh_dp_shard", {"dp_shard"}),
        ("hsdp_replicate", {"dp_replicate"}),
        ("ulysses", {"cp"}),
        ("EXPERT_MODEL_PARALLEL_GROUP", {"ep"}),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", {"tp", "dp"}),
        ("default_pg", set()),
        ("", set()),
    ],
)
def test_group_names_give_kinds_of_parallelism(name: str, kinds: set[str]) -> None:
    assert group_names.parallelism_kinds(name) == kinds
