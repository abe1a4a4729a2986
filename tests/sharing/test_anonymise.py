"""An anonymised trace says nothing of its program, in any output, and analyses do not notice."""

import math
import re
from pathlib import Path

import kineto_files
import numpy as np
import pyarrow as pa
import pytest
from outputs import OUTPUTS, content, written
from read_once import read_once
from shared_data import SHARED, each

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import ChopperError, UsageError
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.sharing import texts
from chopper_interop.sharing.aliases import Aliases
from chopper_interop.sharing.stage import Sharing
from chopper_interop.sharing.texts import Changes, change_arguments
from chopper_interop.testing.equality import assert_trace_equal

CANARY = "zeppelin"
KEY = "a key of the tests"


def with_canaries(trace: ci.Trace) -> ci.Trace:
    """The trace with a word of nobody's in each of its texts."""

    def mark(text: str) -> str:
        return f"{text} {CANARY}_{CANARY.title()}{CANARY}"

    kept = ("Meta.clock", "ClockFit.method")  # of a closed set: what is unknown is refused
    new, _ = texts.change_tables(trace, lambda _, text: mark(text))
    new, _ = change_arguments(new, Changes(mark, mark))
    meta = texts.change_meta(trace.meta, lambda at, text: text if at in kept else mark(text))
    return new.with_meta(**vars(meta))


def test_no_text_of_the_trace_is_in_any_output(demo: Path, tmp_path: Path) -> None:
    """Whatever a format's reader puts into the hub, and wherever, it does not get out."""
    marked = with_canaries(read_once(demo))
    shared = Sharing(key=KEY).apply(marked, []).with_meta(job="job")
    for name, raw in written(shared, tmp_path).items():
        assert not re.search(CANARY.encode(), raw, re.IGNORECASE), name


@pytest.mark.slow
def test_no_text_of_the_trace_is_in_any_result(demo: Path) -> None:
    shared = Sharing(key=KEY).apply(with_canaries(read_once(demo)), []).with_meta(job="job")
    assert CANARY not in str(results(shared)).lower()


def test_every_kind_of_text_is_visited(demo: Path) -> None:
    """The test above sees nothing in what is not there: the sample has texts of all kinds."""
    places = set()
    trace = read_once(demo)
    texts.change_tables(trace, lambda place, text: places.add(place) or text)
    texts.change_meta(trace.meta, lambda place, text: places.add(place) or text)
    columns = {
        f"{t}.{c.name}" for t, cs in hub.TABLES.items() for c in cs if pa.types.is_string(c.type)
    }
    assert columns <= places
    assert {"nodes.name", "nodes.phase", "nodes.operation", "Meta.facts.key"} <= places
    assert {"Rank.host", "Device.pci", "Source.path", "ClockFit.of", "Issue.example"} <= places


@pytest.mark.parametrize("block", [1, 100])
def test_of_an_object_that_is_no_json_nothing_but_the_object_counts(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """It breaks off behind a string that would be changed; other objects may be looked into by other threads."""
    monkeypatch.setattr(texts, "_BLOCK", block)
    texts_of_nodes = [b'{"a": "secret"}', b'{"a": "secret", "b": "x', b'{"c": 1, "d": "secret"}']
    length = np.array([len(text) for text in texts_of_nodes])
    builder = TraceBuilder()
    at = (
        builder.text(np.frombuffer(b"".join(texts_of_nodes), np.uint8)) + np.cumsum(length) - length
    )
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    builder.nodes(
        kind=int(Kind.CPU_OP), name="op", rank=0, lane=lane, ts=np.arange(3), dur=1, args=(at, length)
    )  # fmt: skip
    trace, count = change_arguments(builder.finish(), Changes(lambda _: "*"))
    assert [trace.args(node) for node in range(3)] == [{"a": "*"}, {}, {"c": 1, "d": "*"}]
    assert count == 3


def secrets_file(folder: Path) -> Path:
    """A file of a profiler whose texts are all of one company."""
    span, kernel = kineto_files.span, kineto_files.kernel
    events = [
        span("user_annotation", "zeppelin_forward", 0, 90),
        span("python_function", "/home/zeppelin/secret/zeppelin.py(12): zeppelin_step", 1, 80),
        span("cpu_op", "zeppelin::fused_norm", 2, 70, args={"Zeppelin key": ["zeppelin", 7]}),
        kineto_files.call("hipLaunchKernel", 3, 5, 1),
        kernel("void zeppelin::norm_kernel<Zeppelin<float>, 4>(float*)", 20, 9, 1),
        kineto_files.call("hipLaunchKernel", 9, 5, 2),
        kernel("_ZN8zeppelin11gemm_kernelEv", 30, 9, 2, **{"Process Group Name": "zeppelin_tp"}),
        {"ph": "C", "name": "zeppelin bytes", "ts": 5, "pid": 1, "args": {"zeppelin": 3}},
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "zeppelin-0"}},
    ]
    header = {"host_name": "zeppelin01", "zeppelin": "zeppelin", "USER_ZEPPELIN": "zeppelin"}
    return kineto_files.write(folder / "zeppelin01_100.170.pt.trace.json", events, **header)


def test_a_file_full_of_names_keeps_none(tmp_path: Path, run) -> None:
    (tmp_path / "zeppelin").mkdir()
    secrets_file(tmp_path / "zeppelin")
    outputs = [a for name in OUTPUTS for a in ("-o", f"{tmp_path}/out/{name}")]
    (tmp_path / "out").mkdir()
    status, _, _ = run("convert", tmp_path / "zeppelin", "--anonymise", *outputs)
    assert status == 0
    for name in OUTPUTS:
        raw = content(tmp_path / "out" / name)
        assert b"zeppelin" not in raw.lower(), name
        assert name == "et/" or b"norm_kernel" in raw, "words that say what it does stay"
    status, text, _ = run("analyze", tmp_path / "zeppelin", "--anonymise", "--json", "temporal")
    assert status == 0
    assert "zeppelin" not in text.lower()


def test_reasons_of_failures_name_nothing(tmp_path: Path, run) -> None:
    """A sweep has a row for a run that cannot be read; without an option it names no folder."""
    sound, broken = tmp_path / "zeppelin", tmp_path / "broken_zeppelin"
    sound.mkdir()
    broken.mkdir()
    secrets_file(sound)
    (broken / "zeppelin.json").write_text('{"traceEvents": [}')
    for job, other in ((sound, broken), (broken, sound)):
        arguments = ("analyze", job, "sweep", "--against", other, "--json")
        status, text, _ = run(*arguments, "--anonymise")
        assert status == 0
        assert "holds no events" in text
        assert "zeppelin" not in text.lower()
        assert str(tmp_path) not in run(*arguments)[1]


@pytest.mark.parametrize(
    "name",
    [
        "aten::_scaled_dot_product_flash_attention", "autograd::engine::evaluate_function: MulBackward0",
        "hipMemcpyAsync", "hsa_amd_agent_iterate_memory_pools", "ProfilerStep#12", "Memcpy HtoD (Host -> Device)",
        "Cijk_Ailk_Bljk_BBS_BH_MT64x16x64", "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
        "torch/nn/modules/module.py(1501): _call_impl", "nn.Module: Linear_3", "Optimizer.step#AdamW.step",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, at::detail::Array<char*, 1> >",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_13fooE", "triton_poi_fused_add_mul_0", "TCC_EA_RDREQ_32B_sum",
        "nccl:all_reduce", "[[2, 3], 4.5, true]", "c10::BFloat16", "hipGraphExecExternalSemaphoresSignalNodeSetParams", "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "hipTexRefGetMipmapLevelClamp", "cudaFuncSetAttribute", "ncclRedOpCreatePreMulSum", "MIOpenBatchNormBwdSpatial",
        "cuda:0", "0000:c5:00.0", "0:1:2:3", "GFX busy accumulated XCP 0 XCD 3",
    ],
)  # fmt: skip
def test_names_of_libraries_stay(name: str) -> None:
    assert Aliases(KEY).text(name) == name


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("AcmeDecoderLayer_3", r"[A-Z]\w+DecoderLayer_3"),
        ("void at::native::f<acme::Op>(int)", r"void at::native::f<[a-z]{12}::Op>\(int\)"),
        ("_ZN4acme4normIfEEv", r"_ZN12[a-z]{12}4normIfEEv"),
        ("hipAcmeNorm cutlass_acme_gemm", r"hip[A-Z][a-z]{11}Norm cutlass_[a-z]{12}_gemm"),
        ("train.py(12): acme_main", r"train\.py\(12\): [a-z]{12}_main"),
        ("10.1.2.3 3fa9c0d1 0198a2f4-0000-0000-0000-000000000001", r"[a-z]{12} [a-z]{12} [a-z]{12}"),
        ("10.1.2.3:29500", r"[a-z]{12}:29500"),
        ("00:1a:2b:3c:4d:5e", r"[a-z]{12}"),
        ("fe80::1ff:fe23:4567:890a", r"[a-z]{12}"),
        ("ДРУГ", r"[A-Z]{12}"),
    ],
)  # fmt: skip
def test_other_names_become_aliases_of_their_form(name: str, alias: str) -> None:
    aliases = Aliases(KEY)
    assert re.fullmatch(alias, aliases.text(name)), aliases.text(name)
    assert aliases.text(name) == Aliases(KEY).text(name)
    assert aliases.text(name) != Aliases("another key").text(name)


def test_equal_names_have_equal_aliases_in_all_outputs_of_a_key(tmp_path: Path) -> None:
    path = secrets_file(tmp_path)
    a, b = (ci.read(path, anonymise=KEY) for _ in range(2))
    assert_trace_equal(a, b)
    assert a.names() != ci.read(path, anonymise=True).names()
    assert ci.read(path, anonymise=True).names() != ci.read(path, anonymise=True).names()


def test_it_cannot_keep_the_environment(tmp_path: Path, run) -> None:
    with pytest.raises(UsageError):
        ci.read(secrets_file(tmp_path), anonymise=True, keep_environment=True)
    for option in (["--anonymise", "--keep-environment"], ["--anonymise-key", ""]):
        status, _, error = run("convert", tmp_path, "-o", tmp_path / "x.json", *option)
        assert (status, error.count("error")) == (2, 1)


# --- analyses ---


def results(trace: ci.Trace) -> dict[str, object]:
    """All analyses of a trace: summaries and rows, or why there are none."""
    return {name: outcome(trace, name) for name in ci.analyses()}


def outcome(trace: ci.Trace, analysis: str) -> object:
    try:
        result = ci.analyze(trace, analysis)
    except ChopperError as error:
        return type(error).__name__
    return result.summary, result.to_pandas().to_dict("list")


def same(a: object, b: object, aliases: Aliases) -> bool:
    """True if two results are equal, but for texts of which one is the alias of the other."""
    if isinstance(a, str) and isinstance(b, str):
        return b in (a, aliases.text(a))
    if isinstance(a, dict) and isinstance(b, dict):
        return len(a) == len(b) and same(list(a.items()), list(b.items()), aliases)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y, aliases) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12)
    return a == b


def assert_same_analyses(path: Path, folder: Path) -> None:
    aliases = Aliases(KEY)
    original = ci.read(path, name="job")
    ci.write(ci.read(path, anonymise=KEY), folder / "a.parquet")
    again = ci.read(folder / "a.parquet", name="job")
    assert "meaning-of-name-lost" not in {issue.code for issue in again.meta.issues}
    expected, actual = results(original), results(again)
    assert [n for n in expected if not same(expected[n], actual[n], aliases)] == []


@pytest.mark.slow
def test_a_file_full_of_names_re_reads_to_the_same_analyses(tmp_path: Path) -> None:
    assert_same_analyses(secrets_file(tmp_path), tmp_path)


@pytest.mark.slow
def test_the_sample_job_re_reads_to_the_same_analyses(demo: Path, tmp_path: Path) -> None:
    assert_same_analyses(demo, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", each(sorted(p for p in SHARED.glob("[pr]*/*") if p.is_dir())), ids=str
)
def test_real_jobs_re_read_to_the_same_analyses(job: Path, tmp_path: Path) -> None:
    try:
        ci.read(job)
    except ChopperError as error:
        pytest.skip(str(error))
    assert_same_analyses(job, tmp_path)
