"""Arguments that no column holds are left out (``-O args=none``); all else of a trace is as with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from issue_counts import counts
from kineto_files import kernel, span, write
from shared_data import each, real

import chopper_interop as ci
from chopper_interop.errors import MissingDataError
from chopper_interop.io import json_members
from chopper_interop.testing.equality import assert_trace_equal
from chopper_interop.trace import Text

if TYPE_CHECKING:
    from pathlib import Path

LEFT_OUT, ENVIRONMENT = "arguments-left-out", "environment-left-out"
INPUTS = (
    "pytorch/v100_2021/worker0.1623143089861.pt.trace.json.gz",  # stacks as texts
    "pytorch/misc/mtia_inference_rank_0.json.gz",  # handles of streams in calls
    "pytorch/misc/nccl_data.json.gz",
    "pytorch/misc/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz",
    "pytorch/hip_graph_mi300x/sglang_Qwen3-8B_decode.json.gz",
    "pytorch/mi300x/gaunernst_bert-small-uncased__1016001.json.gz",
    "pytorch/host_et/resnet_2gpu_et.json.gz",
    "pytorch/rtx2080ti_pairs",  # a profile with its execution trace
    "pytorch/base_boundary_4rank_amd",
    "rocprof/v3_json_mi350x",
)


def assert_same_columns(path: Path, **options: Any) -> ci.Trace:
    """Read with and without arguments; columns and issues must be the same, but for what the issues say of arguments."""
    whole, without = ci.read(path, **options), ci.read(path, args="none", **options)
    assert not without.array("args_len").any()
    assert not without.text.buffers
    rows = np.flatnonzero(whole.array("args_len")).tolist()
    stated = sum(issue.count for issue in without.meta.issues if issue.code == LEFT_OUT)
    assert stated == sum(bool(whole.args(row)) for row in rows)
    of_arguments = {LEFT_OUT, ENVIRONMENT}
    issues = [
        sorted((i for i in t.meta.issues if i.code not in of_arguments), key=str)
        for t in (whole, without)
    ]
    assert issues[0] == issues[1]
    assert_trace_equal(whole.without_arguments().with_meta(issues=()), without.with_meta(issues=()))
    return without


@pytest.mark.parametrize("name", each(INPUTS))
def test_columns_of_real_inputs_are_the_same(name: str) -> None:
    assert_same_columns(real(name))


def test_columns_of_the_sample_job_are_the_same(demo: Path) -> None:
    trace = assert_same_columns(demo)
    assert trace.has("flops")
    assert counts(trace)[LEFT_OUT] > 1000  # nodes of both ranks


def test_small_files_that_are_read_together_keep_none(tmp_path: Path) -> None:
    for rank in range(3):
        write(
            tmp_path / f"{rank}.json",
            [
                kernel("k", 1, 1, 1, note="x"),
                span("cpu_op", "aten::mm", 0, 3, args={"Input Dims": [[2, 3], [3, 4]]}),
                span("cpu_op", "none", 5, 1, args={}),
            ],
            distributedInfo={"rank": rank},
        )
    assert counts(assert_same_columns(tmp_path))[LEFT_OUT] == 6  # two of each


def test_outputs_have_none_and_the_command_says_so(tmp_path: Path, run) -> None:
    path = write(tmp_path / "a.json", [kernel("k", 1, 1, 1, note="remarkable")])
    outputs = [tmp_path / "a.pftrace", tmp_path / "b.json"]
    names = [text for output in outputs for text in ("-o", output)]
    status, _, text = run("convert", path, *names, "-O", "args=none")
    assert status == 0
    assert LEFT_OUT in text
    assert not any(b"remarkable" in output.read_bytes() for output in outputs)


@pytest.mark.parametrize(
    ("value", "output", "expected", "hint"),
    [
        ("no", "a.pftrace", 0, ""),  # Perfetto's own option of that name
        ("non", "a.pftrace", 2, "args=non: say yes or no or none"),
        ("non", "a.parquet", 2, "-O args: neither the inputs nor the outputs have such an option"),
        (
            "no",
            "a.parquet",
            2,
            "such an option (without an output that takes others, its value is none)",
        ),
    ],
)
def test_other_values_are_of_writers(
    tmp_path: Path, run, value: str, output: str, expected: int, hint: str
) -> None:
    path = write(tmp_path / "a.json", [kernel("k", 1, 1, 1)])
    status, _, text = run("convert", "-q", path, "-o", tmp_path / output, "-O", f"args={value}")
    assert status == expected
    assert hint in text


def test_an_analysis_takes_the_option(demo: Path, run) -> None:
    status, table, _ = run("analyze", demo, "kernels", "-q", "-O", "args=none")
    assert (status, table) == run("analyze", demo, "kernels", "-q")[:2]


def test_analyses_that_look_at_arguments_say_that_there_are_none(demo: Path) -> None:
    """Of a trace with arguments, no other analysis looks into any."""
    from chopper_interop import registry
    from chopper_interop.analyses.methods import needs

    whole, without = ci.read(demo), ci.read(demo, args="none")
    given = {"compare": {"against": whole}, "sweep": {"against": [whole]}}
    given["what_if"] = {"change": "scale=0.5 where kind == 'comm'"}
    looks = set()
    for name in registry.analysis_names():
        trace = replace(whole, text=Watched(whole.text.buffers))
        try:
            ci.analyze(trace, name, **given.get(name, {}))
        except MissingDataError:
            continue
        if trace.text.asked:
            looks.add(name)
        notes = ci.analyze(without, name, **given.get(name, {})).notes
        assert ("arguments" in notes) == (name in needs.ARGUMENTS), name
    assert {"overlap", "efficiency", "dvfs"} <= looks <= needs.ARGUMENTS
    hta = ci.analyze(without, "temporal", compat="hta")
    assert "arguments" in hta.notes


def test_commands_keep_arguments_for_analyses_that_look_at_any(demo: Path) -> None:
    """Without options, analyses of which a table says what they look at, and that it leaves out, look into none."""
    from chopper_interop.schemas import results

    whole = ci.read(demo)
    looks = set()
    for name in results.LOOKED_AT:
        trace = replace(whole, text=Watched(whole.text.buffers))
        ci.analyze(trace, name)
        if trace.text.asked:
            looks.add(name)
    assert looks == results.LOOK_AT_ARGUMENTS


class Watched(Text):
    """Text that notes if anybody looks into it."""

    asked = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("buffers", "block"):
            object.__setattr__(self, "asked", True)
        return super().__getattribute__(name)


def test_what_is_looked_for_is_named(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is missing in `argument_keys` would change a column."""
    from chopper_interop import arguments
    from chopper_interop.io import json_events
    from chopper_interop.schemas import argument_keys

    asked: set[str] = set()
    find, extract = arguments.find_with_integers, json_events.extract_integers

    def find_noted(trace: ci.Trace, nodes: Any, keys: Any, integer_keys: Any) -> Any:
        asked.update((*keys, *integer_keys))
        return find(trace, nodes, keys, integer_keys)

    def extract_noted(buffer: Any, at: Any, length: Any, keys: Any) -> Any:
        asked.update(keys)
        return extract(buffer, at, length, keys)

    monkeypatch.setattr(arguments, "find_with_integers", find_noted)
    monkeypatch.setattr(json_events, "extract_integers", extract_noted)
    ci.read(demo)
    of_samples = {"Device Type", "Device Id", "Bytes", "Total Allocated", "Total Reserved"}
    assert {"Input Dims", "correlation", "dispatch_id"} <= asked
    assert asked - of_samples <= set(argument_keys.ALL)


KEYS = ("a", "bc", "")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=2), v, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from((*KEYS, "b", "d", "abc"))


@given(
    st.dictionaries(NAMES, VALUES, max_size=5),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.data(),
)
@example({"d": 1}, None, True, None)
def test_members_against_json(
    members: dict[str, Any],
    indent: int | None,
    only_numbers: bool,  # noqa: FBT001 # drawn
    data: Any,
) -> None:
    text = json.dumps(members, indent=indent)
    is_number = {
        k: isinstance(v, int | float) and not isinstance(v, bool) for k, v in members.items()
    }
    is_plain = {k: n and json.dumps(members[k])[-1].isdigit() for k, n in is_number.items()}
    expected = {k: v for k, v in members.items() if k in KEYS or (only_numbers and not is_plain[k])}
    got = copied(text.encode(), only_numbers=only_numbers)
    assert json.dumps(json.loads(got)) == json.dumps(expected)
    assert (len(got) > len("{}")) == bool(members)
    assert len(got) <= len(text)
    if data is not None and len(text) > len("{}"):  # what is broken stays as it is
        cut = text[: data.draw(st.integers(1, len(text) - 1))].encode()
        assert copied(cut, only_numbers=only_numbers) == cut


@pytest.mark.parametrize(
    "text",
    [
        '{"d": 1, }',
        '{"d": 01 x}',
        '{"d" 1}',
        '{"d": 1}}',
        "( stream(0x1f))",
        '{"d": 1 "a": 2}',
        "{,}",
    ],
)
def test_objects_that_are_no_json_stay(text: str) -> None:
    assert copied(text.encode(), only_numbers=False) == text.encode()


@pytest.mark.parametrize(
    ("number", "left"),
    [
        ("-0", "{ }"),
        ("1.5e-7", "{ }"),
        ("01", '{"d":01}'),
        ("1.", '{"d":1.}'),
        ("-", '{"d":-}'),
        ("NaN", '{"d":NaN}'),
        (".5", '{"d":.5}'),
        ("1e", '{"d":1e}'),
    ],
)
def test_numbers_that_json_libraries_refuse_stay(number: str, left: str) -> None:
    """Without them a library would take an object that it refuses with them."""
    got = copied(f'{{"d":{number}}}'.encode(), only_numbers=True)
    assert got == left.encode()


def copied(text: bytes, *, only_numbers: bool) -> bytes:
    out = np.zeros(len(text) + 8, np.uint8)
    buffer = np.frombuffer(bytearray(b"##" + text + b"##"), np.uint8)
    keys = json_members.keys(KEYS)
    used = json_members.copy_members(buffer, 2, 2 + len(text), *keys, only_numbers, out, 0)
    return out[:used].tobytes()
