# ruff: noqa: ARG001
"""``chopper-analyze``: which analyses run, with which options, and where results go."""

import ast
import contextlib
import csv
import inspect
import io
import json
import math
import re
import sys
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from gpu_work import Work
from gpu_work import trace as gpu_trace
from kineto_files import BASE, call, kernel, span, write
from read_once import read_once
from rich.cells import cell_len
from slow import slow_from

import chopper_interop as ci
from chopper_interop import cli, errors, registry
from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.annotate import stages
from chopper_interop.commands import (
    analysis_plan,
    console,
    console_results,
    console_tables,
    result_files,
)
from chopper_interop.demo import make_demo
from chopper_interop.result import Result
from chopper_interop.schemas import hub, results
from chopper_interop.schemas.kinds import Kind
from chopper_interop.sources import Inventory


def sample(folder: Path, name: str = "rank0.json", slower: int = 0) -> Path:
    info = {"distributedInfo": {"rank": 0, "world_size": 1}}
    events = [span("cpu_op", "aten::mm", 1, 9), kernel("k", 4, 5 + slower, 0)]
    return write(folder / name, events, baseTimeNanoseconds=BASE, **info)


@pytest.fixture
def install(monkeypatch):
    """Replace the installed analyses by a test's own."""

    def replace_all(**functions):
        monkeypatch.setattr(registry, "analysis_names", lambda: sorted(functions))
        monkeypatch.setattr(registry, "_analysis", functions.__getitem__)
        return functions

    return replace_all


def result_of(name: str, rows: dict | None = None, **facts) -> Result:
    return Result(
        name, pa.table(rows or {"rank": [0]}), facts, {"busy": "of GPUs"}, notes={"window": "all"}
    )


def plain(trace) -> Result:
    """Counts nodes.

    In one figure.
    """
    return result_of("plain", nodes=trace.nodes.num_rows)


def optional(trace, *, by: str = "rank", compat: str = "") -> Result:
    """Takes options.

    Parameters
    ----------
    trace
        Any trace.
    by
        What rows are of.
    compat
        "" or "hta".
    """
    if compat not in ("", "hta"):
        raise errors.NoSuchDefinitionsError(f"compat={compat}: there is hta")
    return result_of("optional", by=by, compat=compat)


def fails(trace) -> Result:
    """Cannot answer."""
    raise errors.SchemaError("there are no steps")


def compares(trace, *, against: ci.Trace | None = None) -> Result:
    """Compares two jobs."""
    return result_of("compares", other=None if against is None else against.meta.job)


def test_all_analyses_and_several_by_name(tmp_path: Path, run, install) -> None:
    install(optional=optional, plain=plain)
    path = sample(tmp_path)
    for names in ([], ["plain", "optional"]):
        status, out, _ = run("analyze", path, *names, "--json")
        assert status == 0
        assert sorted(json.loads(out)) == ["optional", "plain"]
    assert list(json.loads(run("analyze", path, "plain", "plain", "--json")[1])) == ["plain"]


def test_common_options_go_to_analyses_that_take_them(tmp_path: Path, run, install) -> None:
    install(optional=optional, plain=plain)
    path = sample(tmp_path)
    output = json.loads(run("analyze", path, "--by", "phase", "--json")[1])
    assert output["optional"]["summary"]["by"] == "phase"
    output = json.loads(run("analyze", path, "-O", "by=layer", "--json")[1])
    assert output["optional"]["summary"]["by"] == "layer"
    output = json.loads(run("analyze", path, "plain", "optional", "--by", "phase", "--json")[1])
    assert "--by" in output["plain"]["notes"]
    assert "--by" not in output["optional"]["notes"]
    status, out, stderr = run("analyze", path, "plain", "--by", "phase")
    assert (status, out, stderr.count("\n")) == (2, "", 1)
    assert "--by" in stderr
    assert run("analyze", path, "-q", "--steps", "1")[0] == 2
    assert run("analyze", path, "-q", "-O", "colour=red")[0] == 2
    status, _, stderr = run("analyze", path, "-O", "by=layer", "-O", "by=phase")
    assert (status, stderr.count("\n")) == (2, 1)
    assert "by was layer before" in stderr


def test_definitions_of_another_tool(tmp_path: Path, run, install) -> None:
    install(optional=optional, plain=plain)
    path = sample(tmp_path)
    status, out, stderr = run("analyze", path, "--compat", "hta")
    assert status == 0
    assert "hta" in out
    assert "plain was skipped" in stderr
    assert run("analyze", path, "-q", "--compat", "tracelens")[0] == 2

    def another(trace, *, compat: str = "") -> Result:
        return result_of("another", compat=compat)

    install(another=another, optional=optional)
    status, out, stderr = run("analyze", path, "--compat", "tracelens")
    assert (status, "optional was skipped: compat=tracelens" in stderr) == (0, True)
    assert list(json.loads(run("analyze", path, "--compat", "x", "--json")[1])) == ["another"]
    status, out, stderr = run(
        "analyze", path, "another", "optional", "--compat", "x", "--json", "-q"
    )
    assert (status, list(json.loads(out))) == (2, ["another"])
    assert stderr == "chopper-analyze: error: optional: compat=x: there is hta\n"


def test_launches_that_are_not_all_known_are_not_100_percent(tmp_path: Path, run) -> None:
    events = [kernel("k", 0, 1, 0)]
    for k in range(1, 250):
        events += [call("hipLaunchKernel", 4 * k, 1, k), kernel("k", 4 * k + 2, 1, k)]
    _, out, _ = run("analyze", "-q", write(tmp_path / "a.json", events, baseTimeNanoseconds=BASE))
    assert "launches of 99.6% of the GPU's work are known" in out


def test_an_analysis_may_be_an_object_without_a_hash(tmp_path: Path, run, install) -> None:
    class Unhashable:
        """Counts nodes."""

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, trace, *, by: str = "rank") -> Result:
            return result_of("counted", nodes=trace.nodes.num_rows, by=by)

    install(counted=Unhashable())
    status, out, _ = run("analyze", sample(tmp_path), "counted", "--json", "--by", "rank")
    assert (status, json.loads(out)["counted"]["summary"]["nodes"]) == (0, 2)


def test_every_analysis_refuses_definitions_that_it_lacks(tmp_path: Path) -> None:
    trace = ci.read(sample(tmp_path))
    for name, function in registry.working_analyses().items():
        if "compat" in registry.options(function):
            with pytest.raises(errors.NoSuchDefinitionsError, match="compat=none"):
                ci.analyze(trace, name, compat="none")


def test_a_failing_analysis_does_not_stop_the_others(tmp_path: Path, run, install) -> None:
    install(fails=fails, plain=plain)
    status, out, stderr = run("analyze", "-q", sample(tmp_path))
    assert status == errors.SchemaError.exit_status
    assert "plain" in out
    assert stderr == "chopper-analyze: error: fails: there are no steps\n"
    status, out, stderr = run("analyze", "-q", tmp_path, "fails")
    assert (status, out.strip(), stderr.count("\n")) == (errors.SchemaError.exit_status, "", 1)


def test_an_analysis_with_a_defect_is_one_line_as_any_other_defect(
    tmp_path: Path, run, install
) -> None:
    def broken(_trace: object) -> None:
        raise ZeroDivisionError("made")

    install(broken=broken)
    status, _, stderr = run("analyze", "-q", sample(tmp_path), "broken")
    assert status == 70
    start = f"chopper-analyze {ci.__version__}: error: broken: analysis broken failed: ZeroDivisionError: made"
    assert (stderr.startswith(start), stderr.count("\n")) == (True, 1)
    assert "Traceback" in run("analyze", "-q", "--debug", sample(tmp_path), "broken")[2]


def test_against_another_job(tmp_path: Path, run, install) -> None:
    install(compares=compares, plain=plain)
    path, other = sample(tmp_path), sample(tmp_path, "old.json", slower=3)
    assert list(json.loads(run("analyze", path, "--json")[1])) == ["plain"]
    output = json.loads(run("analyze", path, "--against", other, "--json")[1])
    assert output["compares"]["summary"] == {"other": "old"}
    status, _, stderr = run("analyze", path, "compares")
    assert (status, "--against" in stderr) == (2, True)
    assert run("analyze", path, "plain", "--against", other)[0] == 2
    assert run("analyze", path, "--against", tmp_path / "none")[0] == 2


def test_analyses_are_listed_with_their_options(run, install) -> None:
    install(optional=optional, plain=plain, broken=registry.Broken("broken", "no reason"))
    status, out, _ = run("analyze", "--list")
    assert status == 0
    for text in ("optional  Takes options.", "-O by=rank", "What rows are of.", "no reason"):
        assert text in out
    status, out, _ = run("analyze", "--list", "optional")
    assert (status, "optional  Takes" in out, "plain" in out) == (0, True, False)
    status, _, stderr = run("analyze", "--list", "plan")
    assert (status, "did you mean 'plain'?" in stderr) == (3, True)


def test_the_list_has_no_names_of_python_objects(run) -> None:
    out = run("analyze", "--list")[1]
    assert "`" not in out
    assert not re.search(r"\b[a-z_]+\.[a-zA-Z_]+\b", out)


def test_tables_are_human_readable(tmp_path: Path, run, install) -> None:
    def many(trace) -> Result:
        """Many rows."""
        rows = {
            "kernel": ["[bold]k"] * 50,
            "busy_ns": [None, 1_234_567, *range(48)],
            "busy_share": [0.125] * 50,
            "n": [1_000_000] * 50,
        }
        return result_of("many", rows, span_ns=1500, ok=True)

    install(many=many)
    path = sample(tmp_path)
    out = run("analyze", "-q", path)[1]
    for text in ("[bold]k", "1.23 ms", "12.5%", "1,000,000", "… 30 more", "1.50 µs", "ok yes"):
        assert text in out, text
    assert run("analyze", "-q", path, "--rows", "0")[1].count("[bold]k") == 50
    assert run("analyze", "-q", path, "--rows", "3")[1].count("[bold]k") == 3
    assert run("analyze", "-q", path, "--rows", "9" * 30)[1].count("[bold]k") == 50
    assert run("analyze", "-q", path, "--rows", "-1")[0] == 2
    lines = out.splitlines()
    assert all(line == line.rstrip() for line in lines if "window" in line or "span" in line)


def test_notes_are_shown_and_definitions_on_request(tmp_path: Path, run, install) -> None:
    def empty(trace) -> Result:
        """No rows."""
        none = pa.table({"busy_ns": pa.array([], pa.int64())})
        notes = {"window": "all", "no rows": "nothing ran"}
        facts = {"busy_ns": None, "ranks": 0, "by": {"idle_ns": None, "comm_ns": 5}}
        return Result("empty", none, facts, {"busy": "of GPUs"}, notes=notes)

    install(empty=empty, plain=plain)
    path = sample(tmp_path)
    status, out, stderr = run("analyze", path, "empty", "plain")
    assert (status, "--definitions" in stderr) == (0, True)
    assert out.split("\n")[:3] == [
        "empty",
        "no rows: nothing ran",
        "summary: by comm 5 ns",
    ]
    assert "window" not in out
    status, out, stderr = run("analyze", path)
    assert ("empty" in out, "empty was skipped: nothing ran" in stderr) == (False, True)
    assert "of GPUs" not in out
    out = run("analyze", "-q", path, "empty", "plain", "--definitions")[1]
    assert (out.count("busy: of GPUs"), out.count("window: all")) == (2, 2)
    shown = json.loads(run("analyze", path, "--json")[1])["empty"]
    assert shown["notes"] == {"window": "all", "no rows": "nothing ran"}
    assert shown["conventions"] == {"busy": "of GPUs"}


@pytest.mark.parametrize(
    ("words", "record"),
    [
        (["energy"], "telemetry (chopper-record)"),
        (["throttling"], "telemetry (chopper-record)"),
        (["memory_round_trips"], "rocprofv3 --pmc"),
        (["breakdown", "--compat", "chopper"], "record_shapes=True, rocprofv3 --pmc"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_without_data_an_analysis_names_what_to_record(
    tmp_path: Path, run, words: list[str], record: str
) -> None:
    """It printed zeros, or the head of a table without rows."""
    path = tmp_path / "job.parquet"
    ci.write(gpu_trace([Work(Kind.KERNEL, 0, 1000)]), path)
    lines = run("analyze", "-q", path, *words)[1].splitlines()
    assert lines[-1] == f"record: {record}"
    assert len(lines) == 3


def test_a_figure_is_shown_once(tmp_path: Path, run, install) -> None:
    """The time of each class stood in the rows and below them, and origins of tokens twice."""

    def twice(trace) -> Result:
        """Sums by class, which the summary has by name, and a note that repeats it."""
        rows = pa.table({"iteration": pa.array([None, None], pa.int32()), "class": ["comm", "host"],
                         "dur_ns": [5_000, 7_000]})  # fmt: skip
        facts = {"comm_ns": 5_000, "host_ns": 7_000, "tokens_from": "the user", "gpus": 3}
        return Result("twice", rows, facts, notes={"tokens_from": "the user"})

    install(twice=twice)
    out = run("analyze", "-q", sample(tmp_path), "twice")[1]
    assert [out.count(text) for text in ("5.00 µs", "7.00 µs", "the user")] == [1, 1, 1]


def test_rank_0_is_named_in_a_summary(tmp_path: Path, run, install) -> None:
    """The slowest rank of a job was left out as nothing, where it was rank 0."""

    def slowest(trace) -> Result:
        """Figures, of which only those that count something are left out where they are 0."""
        facts = {"slow_rank": 0, "late_rank": -1, "gpus_without_rank": 0, "ranks": 4, "gain_ns": 3}
        return Result("slowest", pa.table({"rank": [0], "busy_ns": [1]}), facts)

    install(slowest=slowest)
    out = run("analyze", "-q", sample(tmp_path), "slowest")[1]
    assert "summary: slow_rank 0 · ranks 4 · gain 3 ns\n" in out
    assert "without" not in out
    assert "-1" not in out


def test_each_reason_for_skipping_is_a_line(tmp_path: Path, run, install) -> None:
    """A profile in a format that cannot be read was "1 file skipped": nothing said how to export it."""
    install(plain=plain)
    sample(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("notes")
    (tmp_path / "run.nsys-rep").write_bytes(b"\x00\x99" * 99)
    err = run("analyze", tmp_path, "plain")[2]
    reading, *skipped = " ".join(err.split()).split(" skipped: ")
    assert reading == "reading: PyTorch profiler trace (Kineto JSON)"
    assert skipped[0] == "a.txt and 2 more files: no format that is known here"
    assert skipped[1].startswith("run.nsys-rep: ")
    assert "torch.profiler" in skipped[1]
    assert "skipped" not in run("analyze", "-q", tmp_path, "plain")[2]


def test_of_many_reasons_for_skipping_the_last_are_counted(capsys) -> None:
    skipped = [(Path(f"{k}-{n}"), f"reason {k}") for k in range(6) for n in range(k + 1)]
    console.show_formats_read(Inventory([], skipped), quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: no files"
    assert lines[1:3] == ["skipped: 0-0: reason 0", "skipped: 1-0 and 1 more file: reason 1"]
    assert lines[5:] == ["skipped: 11 more files, for other reasons (chopper-convert lists them)"]


def test_names_are_shown_literally_and_lists_are_cut(tmp_path: Path, run, install) -> None:
    def odd(trace) -> Result:
        """Odd names."""
        rows = {"kernel": ["back\\", "\x1b[31mred\n:bug:"], "mean_ns": [0.5, 2.5e6]}
        return result_of("odd", rows, by_step=[{"kernel": "\x1b[0m"}, *range(5000)])

    install(odd=odd)
    path = sample(tmp_path)
    out = run("analyze", "-q", path, "--rows", "3")[1]
    lines = [line.split() for line in out.splitlines()]
    assert lines[2:4] == [["\\x1b[31mred\\n:bug:", "2.50", "ms"], ["back\\", "<0.01", "ms"]]
    assert "by_step kernel \\x1b[0m, 0, 1, … 4,998 more" in out
    assert "4,999" in run("analyze", "-q", path, "--rows", "0")[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_name_is_printed_on_any_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    name = "名é😀"
    info = {"distributedInfo": {"rank": 0, "world_size": 1}}
    path = write(tmp_path / "名.json", [kernel(name, 4, 5, 0)], baseTimeNanoseconds=BASE, **info)

    def run_encoded(command: str, *arguments: object) -> str:
        with monkeypatch.context() as patch:
            for stream in ("stderr", "stdout"):
                terminal = io.TextIOWrapper(io.BytesIO(), encoding)
                patch.setattr(sys, stream, terminal)
            getattr(cli, f"{command}_main")([str(argument) for argument in arguments])
            terminal.seek(0)
            return terminal.read()

    output = json.loads(run_encoded("analyze", path, "kernels", "--by", "kernel", "--json"))
    assert [row["kernel"] for row in output["kernels"]["rows"]] == [name]
    shown = run_encoded("analyze", path, "kernels", "--by", "kernel")
    assert name.encode(encoding, "backslashreplace").decode(encoding) in shown
    run_encoded("convert", path, "-o", tmp_path / "名.pftrace")
    run_encoded("check", tmp_path / "名")


def test_json_is_strict(tmp_path: Path, run, install) -> None:
    def wrong(trace) -> Result:
        """Not a number."""
        return result_of("wrong", {"busy_share": [math.nan]})

    install(wrong=wrong)
    status, out, stderr = run("analyze", sample(tmp_path), "--json")
    assert (status, out) == (errors.SchemaError.exit_status, "")
    assert stderr.count("\n") == 1
    assert "wrong" in stderr


def test_csv_and_json_together(tmp_path: Path, run, install) -> None:
    install(optional=optional, plain=plain)
    status, out, _ = run("analyze", "-q", sample(tmp_path), "--json", "--csv", tmp_path / "csv")
    assert status == 0
    output = json.loads(out)
    summary = json.loads((tmp_path / "csv" / "summary.json").read_text())
    for name, result in output.items():
        with (tmp_path / "csv" / f"{name}.csv").open(newline="") as file:
            assert [row["rank"] for row in csv.DictReader(file)] == ["0"]
        assert summary[name] == {k: v for k, v in result.items() if k != "rows"}


def test_results_become_columns_of_the_written_trace(tmp_path: Path, run, install) -> None:
    def knows(trace) -> Result:
        """Knows the slack."""
        n = trace.nodes.num_rows
        return Result(
            "knows", pa.table({"rank": [0]}), annotations={"slack_ns": pa.array(list(range(n)))}
        )

    install(knows=knows, plain=plain)
    out = [tmp_path / "a.parquet", tmp_path / "a.pftrace", tmp_path / "et", tmp_path / "a.graphml"]
    outputs = [x for o in out for x in ("-o", f"{o}/" if o.name == "et" else o)]
    status, shown, stderr = run("analyze", sample(tmp_path), *outputs)
    assert status == 0, stderr
    assert "knows" in shown
    assert "2 nodes" in stderr
    for path in out[:3]:
        back = ci.read(path).nodes["slack_ns"].drop_null()  # in an ET, waits are nodes too
        assert sorted(back.to_pylist()) == [0, 1]
    assert run("analyze", "-q", tmp_path / "rank0.json", "-o", tmp_path / "rank0.json")[0] == 2
    assert run("analyze", "-q", tmp_path / "rank0.json", "-o", tmp_path / "x.docx")[0] == 3


def test_no_input_is_overwritten(tmp_path: Path, run, install) -> None:
    install(compares=compares, plain=plain)
    path = sample(tmp_path)
    first, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for out in (first, other):
        assert run("convert", "-q", path, "-o", out)[0] == 0
    table = path.rename(tmp_path / "plain.csv")

    def contents() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    before = contents()
    for arguments in (
        (table, "plain", "--csv", tmp_path),
        (first, "compares", "--against", table, "plain", "--csv", tmp_path),
        (first, "compares", "--against", other, "-o", other),
        (first, "plain", "-o", first),
    ):
        status, out, stderr = run("analyze", "-q", *arguments)
        assert (status, out, "would be overwritten" in stderr) == (2, "", True)
        assert contents() == before
    assert run("analyze", "-q", table, "plain", "--csv", tmp_path / "csv")[0] == 0


@pytest.mark.parametrize("ending", [".parquet", ".pftrace", "et/"])
def test_written_traces_can_be_analysed(tmp_path: Path, run, ending: str) -> None:
    source = sample(tmp_path)
    out = f"{tmp_path}/out/{ending if ending == 'et/' else 'job' + ending}"
    assert run("convert", "-q", source, "-o", out)[0] == 0
    output = json.loads(run("analyze", out, "temporal", "--json")[1])
    assert output["temporal"]["summary"]["busy_ns"] == 5000
    if ending == "et/":
        file = next(Path(out).glob("*.et"))
        assert json.loads(run("analyze", file, "temporal", "--json")[1]) == output


@pytest.fixture(scope="session")
def job(tmp_path_factory) -> ci.Trace:
    folder = tmp_path_factory.mktemp("demo")
    return ci.read(make_demo(folder / "job", ranks=2, layers=1, steps=2, seed=3, recorder_hz=100))


BY = (
    "", "rank", "rank,phase", "class", "category", "operation", "instance", "operation_instance",
    "piece",
)  # fmt: skip
COMPAT = ("", "hta", "tracelens", "chopper", "charllm")


@pytest.mark.parametrize("name", sorted(registry.working_analyses()))
def test_every_column_is_documented(job: ci.Trace, name: str) -> None:
    """`schemas/results.py` describes each column of every mode."""
    function = registry.analysis(name)
    takes = registry.options(function)
    second = {"against": job} if "against" in takes else {}
    chosen = [("by", by) for by in BY], [("compat", compat) for compat in COMPAT]
    modes = [{option: value for option, value in pair if value} for pair in product(*chosen)]
    columns: set[str] = set()
    for mode in (mode for mode in modes if mode.keys() <= takes.keys()):
        with contextlib.suppress(errors.UsageError):  # not every analysis has every mode
            columns |= set(function(job, **second, **mode).rows.column_names)
    assert columns, "it has rows by default"
    unknown = columns - results.columns(name).keys()
    assert not unknown, f"{name}: columns that schemas/results.py does not describe"
    assert (inspect.getdoc(function) or "").partition("\n")[0].endswith("."), "no first line"


def test_no_analysis_is_described_twice() -> None:
    """Of two dictionaries of one name, or of two texts of one column, the first would be lost."""
    tree = ast.parse(Path(results.__file__).read_text(encoding="utf-8"))
    names = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    assert len(names) == len(set(names))
    for each in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        keys = [key.value for key in each.keys if isinstance(key, ast.Constant)]
        assert len(keys) == len(set(keys))


def test_column_names_end_in_their_units() -> None:
    assert set(grouping.GRAINS) <= set(results.KEYS)
    for name in results.FIGURES:
        for column, meaning in results.columns(name).items():
            assert meaning.endswith("."), column
            declared = next((c for c in hub.ANNOTATIONS if c.name == column), None)
            assert not declared or declared.unit in ("", results.unit(column)), column
    units = {"busy_ns": "ns", "share": "1", "a_share": "1", "x_tflop_per_s_counted": "TFLOP/s",
             "calls_per_s": "1/s", "algbw_gbps": "GB/s", "count": ""}  # fmt: skip
    assert {name: results.unit(name) for name in units} == units


def test_the_schema_lists_analyses_and_units(run) -> None:
    output = json.loads(run("analyze", "--schema")[1])
    assert set(registry.working_analyses()) <= output["properties"].keys()
    temporal = output["properties"]["temporal"]
    assert temporal["properties"]["rows"]["items"]["properties"]["busy_ns"]["x-unit"] == "ns"


def test_analyses_are_planned_without_a_trace(install) -> None:
    install(compares=compares, optional=optional, plain=plain)
    plan = analysis_plan.plan_analyses([], {"by": "job"}, {}, against=False)
    assert plan.options == {"optional": {"by": "job"}, "plain": {}}
    assert list(plan.skipped) == ["compares"]


def test_without_a_name_the_summary_is_printed(demo: Path, run) -> None:
    status, out, stderr = run("analyze", demo / "kineto", "-q")
    assert (status, stderr) == (0, "")
    assert out.startswith("read ")
    assert 5 <= out.count("\n") <= 15
    assert f"chopper-analyze {demo / 'kineto'} findings: all of them" in " ".join(out.split())
    assert list(json.loads(run("analyze", demo / "kineto", "--json")[1])) == ["summary"]


def test_a_summary_has_at_most_15_lines_of_a_narrow_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long, source = "some words of 23 cells " * 6, "/a/folder/" + "of-some-length/" * 5
    topics = ["read", "trust", "step", "step", "idle", "binds", "late", "clock", *["finding"] * 5]
    rows = {
        "topic": [*topics, "more", "record"],
        "text": [*[long] * len(topics), "chopper-analyze RUN/ findings: all of them", long],
    }
    shown = [Result("summary", pa.table(rows))]
    console_results.show(shown, max_rows=None, definitions=False, source=source)
    lines = capsys.readouterr().out.splitlines()
    assert sum(-(-cell_len(line) // 80) for line in lines) == 15
    assert sum("some words" in line for line in lines) >= len(topics) - 3  # two findings stay
    assert f"more     chopper-analyze {source} findings: all of them" in lines  # in one piece


def test_the_command_that_shows_more_reads_the_same(demo: Path, run) -> None:
    source, offset = str(demo / "kineto"), "--clock-offset=rank0:0"
    shown = run("analyze", "-q", source, "--run", "all", offset)[1]
    command = f"chopper-analyze {source} --run=all {offset} findings"
    assert f"{command}: all of them" in " ".join(shown.split())
    assert run("analyze", "-q", *command.split()[1:])[0] == 0


def test_all_names_all_analyses(demo: Path, run) -> None:
    status, out, stderr = run("analyze", demo / "kineto", "all", "--json")
    assert (status, "compare" in stderr) == (0, False)
    assert {"findings", "summary", "temporal", "what_if"} <= json.loads(out).keys()


def test_findings_are_listed_with_the_command_that_shows_them(demo: Path, run) -> None:
    out = run("analyze", demo / "kineto", "-q", "findings")[1]
    assert "late-rank-gpu: saves" in out
    assert f"chopper-analyze {demo / 'kineto'} stragglers --by operation --ranks 1" in out


def test_findings_of_a_job_without_steps_are_not_those_of_a_step(tmp_path: Path, run) -> None:
    copies = [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 100, 7)]
    source = write(tmp_path / "rank0.json", [kernel("k", 0, 10, 7), *copies])
    heading = run("analyze", source, "-q", "findings")[1].splitlines()[1]
    assert re.fullmatch(r"1\. exposed-collective: saves 100.0 µs, 90\.9%", heading)


def test_texts_of_findings_are_folded_and_commands_whole(demo: Path, run, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("analyze", demo / "kineto", "-q", "findings")[1].splitlines()[1:]
    commands = [line for line in lines if line.startswith("   chopper-analyze ")]
    texts = [line for line in lines if line.startswith("   ") and line not in commands]
    assert f"   chopper-analyze {demo / 'kineto'} stragglers --by operation --ranks 1" in commands
    assert max(map(len, texts)) <= 60
    assert [line for line in lines if line not in commands + texts and not line[0].isdigit()] == []


@pytest.mark.parametrize(
    ("words", "similar"),
    [
        (("temporal", "--by", "rnk"), "did you mean 'rank'?"),
        (("energy", "--by", "gpu"), "did you mean 'rank'?"),
        (("temporal", "--by", "step"), "did you mean 'iteration'?"),
        (("all", "--by", "opertion"), "did you mean 'operation'?"),
        (("idle", "--by", "blme", "--steps", "3"), "did you mean 'blame'?"),
        (("temporal", "--steps", "eahc"), "did you mean 'each'?"),
        (("temporal", "--compat", "hat"), "did you mean 'hta'?"),
        (("what_if", "-O", "change=scael=0.5"), "did you mean scale="),
        (("what_if", "-O", "change=bandwidth=2 latncy=0"), "did you mean 'latency'?"),
        (("what_if", "-O", "change=scale=2 where knd == 'comm'"), "did you mean 'kind'?"),
        (("what_if", "-O", "change=scale=2 where kind = 'comm'"), "to compare, write =="),
        (("what_if", "-O", "change=scale=2 where kind == 'com'"), "did you mean 'comm'?"),
        (
            ("what_if", "-O", "change=scale=2 where rank == 1 and kind in ('kernl', 'comm')"),
            "did you mean 'kernel'?",
        ),
        (("temporal", "--ranks", "a"), "write numbers and ranges"),
        (("dvfs", "-O", "clock=ab"), "clock=ab is no clock"),
        (("dvfs", "-O", "memory_clock=2x3"), "2x3 is no clock"),
        (("dvfs", "-O", "clock=1900", "-O", "on_ranks=x"), "on_ranks=x"),
        (("dvfs", "-O", "sensor=slow"), "slow describes no sensor"),
        (("dvfs", "-O", "cap_w=many"), "cap_w=many"),
        (("dvfs", "-O", "gpus=no-such.toml"), "No such file"),
        (("power", "-O", "caps=high"), "'high' is not a power"),
        (("traffic", "-O", "window=some"), "window=some"),
        (("imbalance", "-O", "window=some"), "window=some"),
        (("compare", "--against", "x", "-O", "names=like"), "names=like"),
        (("compare", "--against", "x", "-O", "against_steps=x"), "steps=x"),
        (("kernels", "-O", "bogus=1"), "-O bogus"),
        (
            ("--by", "rank"),
            "--by: not an option of summary (name all, or some that have it: breakdown,",
        ),
        (("--against", "x"), "(name all, or some that have it: compare, sweep)"),
        (("idle", "temporal", "--against", "x"), "--against: not an option of idle or temporal"),
        (("-o", "a.pftrace"), "such as critical_path, or all"),
    ],
)
def test_typing_errors_are_found_before_anything_is_read(
    tmp_path: Path, run, words: tuple[str, ...], similar: str
) -> None:
    status, out, stderr = run("analyze", tmp_path / "not-there.json", *words)
    assert (status, out, stderr.count("\n")) == (2, "", 1)
    assert similar in stderr


def test_a_query_with_methods_of_columns_is_no_typing_error(demo: Path, run) -> None:
    for query in (
        "name.str.contains('Cijk') and abs(dur) > 10",
        "kind == 'kernel' & phase == 'backward'",
        "phase == 'backward' & kind != 'comm'",
    ):
        change = f"change=scale=0.5 where {query}"
        assert run("analyze", demo / "kineto", "-q", "what_if", "-O", change)[0] == 0


def test_tables_have_units_once_and_a_total(demo: Path, run, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    header, *rows = run("analyze", demo / "kineto", "-q", "temporal")[1].splitlines()[1:5]
    assert header.split()[:5] == ["rank", "span", "compute", "exposed_comm", "idle"]
    assert rows[-1].split()[0] == "total"
    assert [row.split()[2] for row in rows] == ["ms"] * 3
    out = run("analyze", demo / "kineto", "-q", "temporal", "--compat", "hta")[1]
    assert out.splitlines()[1].split()[:2] == ["rank", "idle_time(us)"]


def test_groups_of_work_are_sorted_by_time_in_each_step(demo: Path, run) -> None:
    """`idle --by blame`, which findings name, began with what took 5 µs: a second of idle time was below the 20 rows."""
    for options in ((), ("--steps", "each")):
        words = ("idle", "--by", "blame", *options, "--rows", "0")
        table = run("analyze", demo / "kineto", "-q", *words)[1].split("idle: blame")[0]
        rows = [line.split() for line in table.splitlines()[2:] if " ms" in line]
        rows = [row for row in rows if row[0] != "total"]
        at = rows[0].index("ms") - 1
        keys = [(row[0] if options else "", -float(row[at].replace(",", ""))) for row in rows]
        assert len(keys) > 3
        assert keys == sorted(keys)


def test_each_unit_is_written_once_and_unknown_numbers_are_named(
    tmp_path: Path, run, install, monkeypatch
) -> None:
    def mixed(trace) -> Result:
        """Columns whose names end in units, of which some would be the same without."""
        rows = {
            "rank": [0, 1],
            "energy_j": [2.5, 0.25],
            "energy_share": [0.9, 0.1],
            "tokens_per_s_per_w": [1.0, 0.9876],
            "speed_ratio": [1.0, 1.0625],
            "sensor": ["a", "b"],
            "sensor_ns": [5000, None],
        }
        record = {
            "rank": 1,
            "power_w": 250.5,
            "power_share": None,
            "lead_sum_ns": 30,
            "late_share": 0.5,
        }
        return result_of("mixed", rows, first=record, last=record | {"power_w": None})

    install(mixed=mixed)
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("analyze", "-q", sample(tmp_path), "mixed")[1].splitlines()
    header = "rank energy energy_share tokens_per_s_per_w speed sensor sensor_time"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        header,
        "0 2.500 J 90.0% 1.000 1.000 a 5.00 µs",
        "1 0.250 J 10.0% 0.988 1.062 b (none)",
        "mixed: first, last",
        "first last",
        "rank 1 1",
        "power 250.5 W",
        "lead_sum 30 ns 30 ns",
        "late 50.0% 50.0%",
    ]


def test_texts_are_cut_for_the_columns_that_answer_the_question(
    demo: Path, run, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("analyze", demo / "kineto", "-q", "kernels", "--rows", "3")[1].splitlines()
    assert lines[1].split()[:6] == ["class", "kernel", "total", "share", "count", "median"]
    assert all(len(line) <= 80 for line in lines)


def test_one_row_that_does_not_fit_is_a_list(tmp_path: Path, run, install, monkeypatch) -> None:
    def single(trace) -> Result:
        """Many figures of one job."""
        return result_of("single", {f"part_{k}_ns": [k * 1000] for k in range(1, 20)})

    install(single=single)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("analyze", "-q", sample(tmp_path), "single")[1].splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["part_1", "1.00", "µs"],
        ["part_2", "2.00", "µs"],
    ]
    assert len(lines) == 20


def test_rows_that_look_alike_show_where_they_differ(tmp_path: Path, run, install) -> None:
    def alike(trace) -> Result:
        """Long names."""
        names = [f"void at::native::{'x' * 80}<{end}>" for end in ("half", "float", "float")]
        return result_of("alike", {"kernel": [*names, None], "busy_ns": [1, 2, 3, 4]})

    install(alike=alike)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        lines = run("analyze", "-q", sample(tmp_path), "alike")[1].splitlines()
    assert lines[2].startswith("(none) ")
    assert "half" in lines[5]
    assert all("float" in line for line in lines[3:5])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (591_335.4, "591,335"),
        (12_345.6, "12,346"),
        (9_999.7, "10,000"),
        (9876.54, "9,877"),
        (0.00743, "0.00743"),
        (2e15, "2e+15"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_no_exponent_where_digits_are_shorter(value: float, text: str) -> None:
    assert console_tables.cells("tokens_per_s", [value, None]) == [f"{text} 1/s", ""]
    assert console_tables.headed_cells("tokens_per_s", "tokens_per_s", [value]) == [text]


def test_small_values_of_a_column_keep_three_figures_next_to_large_ones() -> None:
    times = [4_160_000_000, 23_600_000, 19_100_000, 17_000_000, 4_170_000, 1_000]
    texts = ["4.16000 s", "0.02360 s", "0.01910 s", "0.01700 s", "0.00417 s", "<0.00001 s"]
    assert console_tables.cells("busy_ns", times) == texts
    assert console_tables.cells("median_ns", [1_220_000, 2_345.0]) == ["1.22000 ms", "0.00234 ms"]
    assert console_tables.cells("wait_ns", [209_300_000, 40_200, 1]) == [
        "209.3 ms",
        "0.04 ms",
        "<0.01 ms",
    ]
    assert console_tables.cells("span_ns", [9_996_000_000, 0, None]) == ["10.0 s", "0 s", ""]


def test_shortened_names_show_the_part_in_which_they_differ() -> None:
    start = "void miopenSp3AsmConv_v30_3_1_gfx942_fp16_dot2_edc"
    ends = ["_f2x3_stride1", "_f2x3_stride2", "_f3x2_stride1", "_wrw" + "x" * 90]
    shown = console_tables.shortened([start + end for end in (*ends, ends[0])], 24)
    assert [len(text) <= 24 for text in shown] == [True] * 5
    assert [part in text for part, text in zip((*ends[:3], "_wrw"), shown, strict=False)] == [
        True
    ] * 4
    assert len(set(shown)) == 4
    assert shown[4] == shown[0]
    short = [f"{'a' * 40}{end}" for end in ("", "b", "bc")]  # one is the beginning of another
    assert len(set(console_tables.shortened(short, 24))) == 3


def test_texts_of_wide_characters_fit_in_cells_of_the_terminal() -> None:
    text = "计算核函数" * 12 + " 重叠 of 通信"  # two cells a character
    lines = console_tables.folded(text, 24)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(cell_len, lines)) <= 24
    assert cell_len(console_tables.cut_text(text, 24)) <= 24
    alike = [text + end for end in ("前向", "后向", "后向再")]
    shown = console_tables.shortened(alike, 24)
    assert len(set(shown)) == 3
    assert max(map(cell_len, shown)) <= 24


def test_compare_of_equal_jobs_says_that_nothing_changed(demo: Path, run) -> None:
    path = demo / "kineto"
    lines = run("analyze", "-q", path, "--against", path, "compare", "--by", "kernel")[
        1
    ].splitlines()
    assert not any(line.startswith(("kernel", "status")) for line in lines)  # no table
    assert any(line.startswith("unchanged: nothing changed: all ") for line in lines)


def test_compare_counts_rows_without_a_change_and_leaves_them_out(tmp_path: Path, run) -> None:
    paths = []
    for dur in (1000, 3000):
        works = [
            Work(Kind.KERNEL, 0, 2000, name="same"),
            Work(Kind.KERNEL, 5000, dur, name="slower"),
        ]
        paths.append(tmp_path / f"{dur}.parquet")
        ci.write(gpu_trace(works), paths[-1])
    arguments = (paths[1], "--against", paths[0], "compare", "--by", "kernel")
    lines = run("analyze", "-q", *arguments)[1].splitlines()
    assert [sum(name in line.split() for line in lines) for name in ("slower", "same")] == [1, 1]
    assert "unchanged: 1 of 2 groups take the same time in both jobs" in lines
    rows = json.loads(run("analyze", "-q", "--json", *arguments)[1])["compare"]["rows"]
    assert len(rows) == 2


SELECTIONS: list[dict[str, str]] = [{}, {"by": "layer"}, {"steps": "11"}, {"ranks": "0"}]


@pytest.mark.parametrize("options", slow_from(SELECTIONS, 2), ids=repr)
def test_annotations_that_an_analysis_does_not_look_at_have_no_part_in_its_result(
    options, run, demo
):
    whole = read_once(demo)
    words = [f"--{name}={value}" for name, value in options.items()]
    for name, columns in results.LOOKED_AT.items():
        assert columns <= set(stages.OF_NODES)
        if not options.keys() <= registry.options(registry.analysis(name)).keys():
            continue
        try:
            expected = result_files.to_json([ci.analyze(whole, name, **options)])
        except errors.OptionError:  # rows by layer
            continue
        assert run("analyze", demo, name, "--json", *words) == (0, f"{expected}\n", "")


def test_what_is_written_has_all_annotations_and_the_digests_of_its_files(run, demo, tmp_path):
    path = tmp_path / "job.parquet"
    assert run("analyze", demo, "temporal", "-q", "-o", path)[0] == 0
    written, whole = ci.read(path), ci.read(demo)
    assert set(whole.nodes.column_names) <= set(written.nodes.column_names)
    assert [source.sha256 for source in written.meta.sources] == [
        source.sha256 for source in whole.meta.sources
    ]
