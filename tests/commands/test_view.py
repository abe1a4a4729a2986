"""``chopper-view``: what a browser gets, what other pages do not, and what is in view."""

import http.client
import json
import os
import re
import sys
import threading
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

import chopper_interop as ci
from chopper_interop import cli
from chopper_interop.build import TraceBuilder
from chopper_interop.commands import trace_server, view
from chopper_interop.converters.perfetto import chopper_metadata, opening
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, Meta, Rank

EPOCH = 1_767_189_312_000_000_000
UI = "https://ui.perfetto.dev"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A trace of two ranks with one step of 3 us, and 5 us before it."""
    builder = TraceBuilder(Meta(ranks=(Rank(0, pid=5), Rank(1, pid=9))))
    for rank in (0, 1):
        lane = builder.lane(rank, LaneKind.STREAM, 7, "stream 7", 0)
        ts = EPOCH + np.array([0, 5000, 7000])
        builder.nodes(
            kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane, ts=ts, dur=ts * 0 + 1000,
            iteration=[None, 3, 3],
        )  # fmt: skip
    ci.write(builder.finish(), tmp_path / "job.pftrace")
    return tmp_path / "job.pftrace"


def ask(
    server: trace_server.TraceServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; `headers` with underscores for hyphens."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body


def test_only_the_page_of_the_origin_may_read(job: Path) -> None:
    with trace_server.serving(trace_server.TraceServer(job, origin=UI)) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, headers, body = ask(server, server.path, Origin=UI)
        assert (status, body) == (200, job.read_bytes())
        assert headers["access-control-allow-origin"] == UI
        assert server.was_read.wait(5)
        assert ask(server, server.path, Origin="https://evil.example")[0] == 403
        assert ask(server, server.path, Origin="null")[0] == 403
        assert ask(server, server.path, Host=f"evil.example:{server.server_port}")[0] == 403
        assert ask(server, server.path, Host="127.0.0.1")[0] == 403
        asked = ask(server, server.path, "OPTIONS", Origin=UI)
        assert (asked[0], asked[1]["access-control-allow-private-network"]) == (204, "true")
        assert ask(server, server.path, "OPTIONS", Origin="https://evil.example")[0] == 403


def test_nothing_but_the_trace_is_served(job: Path) -> None:
    (job.parent / "secret").write_text("x")
    token_length = 20
    with trace_server.serving(trace_server.TraceServer(job, origin=UI)) as server:
        assert len(server.path.split("/")[1]) > token_length
        for path in ("/", "/job.pftrace", "/secret", server.path + "/../secret", "/../secret",
                     server.path + "?x", "/status", "//etc/passwd"):  # fmt: skip
            assert ask(server, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            assert ask(server, server.path, method)[0] >= 400
        assert not server.was_read.is_set()


def test_the_offline_ui_and_the_trace_come_from_one_server(job: Path) -> None:
    pages = trace_server.offline_pages()
    with trace_server.serving(trace_server.TraceServer(job, pages=pages)) as server:
        status, headers, body = ask(server, "/")
        assert (status, body) == (200, (pages / "index.html").read_bytes())
        assert "connect-src 'self'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert ask(server, server.path)[2] == job.read_bytes()
        assert ask(server, "/../../../../etc/passwd")[0] == 404
        assert (
            ask(server, f"/{next(pages.glob('v*/assets')).relative_to(pages)}/")[0] == 404
        )  # no list of files
        assert ask(server, "/", Host="evil.example")[0] == 403
        assert ask(server, server.path, Origin=UI)[0] == 403


def test_a_failed_answer_is_one_line(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with trace_server.serving(trace_server.TraceServer(job, pages=job.parent)) as server:
        for path in ("/%00", server.path):
            job.unlink(missing_ok=True)
            with pytest.raises(http.client.HTTPException):
                ask(server, path)
    lines = capfd.readouterr().err.splitlines()
    assert [line.startswith("chopper-view: an answer failed: ") for line in lines] == [True, True]


@pytest.mark.skipif(sys.platform != "linux", reason="names of other systems are Unicode")
def test_any_name_of_a_file_has_an_address(job: Path) -> None:
    path = job.rename(job.parent / os.fsdecode(b"\xff.pftrace"))
    with trace_server.serving(trace_server.TraceServer(path, origin=UI)) as server:
        assert ask(server, server.path)[:1] == (200,)


@pytest.mark.parametrize("start", ["Infinity", "null", "[]", '"x"', "[" * 100_000])
def test_damaged_notes_are_ignored(start: str) -> None:
    text = f'{{"start_ns": {start}, "end_ns": 1, "groups": [], "unfolded": []}}'
    packet = chopper_metadata.opening_packet(chopper_metadata.Opening(0, 1, (), ()))
    packet.chrome_events.metadata[0].json_value = text
    trace = perfetto_trace_pb2.Trace(packet=[packet])
    assert chopper_metadata.read_opening(trace.SerializeToString()) is None


def view_in_browser(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> tuple[int, dict[str, str], bytes]:
    """Run the command with a browser that reads what the address names: status, parameters, trace."""
    seen: dict[str, object] = {}
    readers: list[threading.Thread] = []

    def read() -> None:
        parts = urllib.parse.urlsplit(seen["parameters"]["url"])
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
        connection.request("GET", parts.path, headers={"Origin": UI})
        seen["body"] = connection.getresponse().read()

    def browser(url: str) -> bool:
        assert url.startswith(f"{UI}/#!/?")
        seen["parameters"] = dict(urllib.parse.parse_qsl(url.split("?", 1)[1]))
        readers.append(threading.Thread(target=read))
        readers[0].start()
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    monkeypatch.setattr(view, "PORT", 0)  # the only port that the UI may read is one for all tests
    status = cli.view_main(arguments)
    for reader in readers:  # the command ends when all is sent, which may be before it is taken
        reader.join()
    return status, seen["parameters"], seen["body"]


def commands(parameters: dict[str, str]) -> list[tuple[str, ...]]:
    listed = json.loads(parameters["startupCommands"])
    return [(c["id"].removeprefix("dev.perfetto."), *c["args"]) for c in listed]


def test_a_trace_is_opened_at_its_steps(monkeypatch: pytest.MonkeyPatch, job: Path) -> None:
    status, parameters, body = view_in_browser(monkeypatch, [str(job)])
    assert (status, body) == (0, job.read_bytes())
    assert (parameters["visStart"], parameters["visEnd"]) == (
        str(EPOCH + 5000 - 60), str(EPOCH + 8000 + 60)
    )  # fmt: skip
    unfolded = [c[1] for c in commands(parameters) if c[0] == "ExpandTracksByRegex"]
    assert any(re.search(p, "rank 0 5") for p in unfolded)
    assert not any(re.search(p, "rank 1 9") for p in unfolded)


def test_profiles_are_converted_first(
    monkeypatch: pytest.MonkeyPatch, job: Path, tmp_path: Path
) -> None:
    ci.write(ci.read(job), tmp_path / "kineto.json", to_format="kineto")
    kept = tmp_path / "kept.pftrace"
    arguments = [str(tmp_path / "kineto.json"), "-q", "-o", str(kept)]
    status, parameters, body = view_in_browser(monkeypatch, arguments)
    assert (status, body) == (0, kept.read_bytes())
    assert ("ExpandTracksByRegex", r"^critical path( \d+)?$") in commands(parameters)
    assert ci.read(kept).has("critical_ns")


def test_nothing_is_converted_for_a_ui_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
    job: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ci.write(ci.read(job), tmp_path / "kineto.json", to_format="kineto")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    kept = tmp_path / "kept.pftrace"
    arguments = [str(tmp_path / "kineto.json"), "--offline", "-o", str(kept)]
    assert cli.view_main(arguments) == 2
    assert "pip install 'chopper-interop[viewer]'" in capsys.readouterr().err
    assert not kept.exists()


def test_what_is_converted_is_anonymised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, kept = tmp_path / "zeppelin.json", tmp_path / "kept.pftrace"
    builder = TraceBuilder(Meta(ranks=(Rank(0, pid=5),)))
    lane = builder.lane(0, LaneKind.THREAD, 7, "zeppelin", 0)
    builder.nodes(
        kind=int(Kind.CPU_OP), name="zeppelin", rank=0, lane=lane, ts=EPOCH + np.array([0]), dur=9
    )
    ci.write(builder.finish(), source, to_format="kineto")
    arguments = [str(source), "-q", "--anonymise", "-o", str(kept)]
    _, _, body = view_in_browser(monkeypatch, arguments)
    assert b"zeppelin" not in body
    assert cli.view_main([str(kept), "--anonymise"]) == 2, "a Perfetto trace is shown as it is"
    assert "opened as it is" in capsys.readouterr().err


def test_a_trace_of_another_program_is_opened_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    packet = proto.TracePacket(timestamp=5, trusted_packet_sequence_id=1)
    packet.track_event.type = proto.TrackEvent.TYPE_INSTANT
    path = tmp_path / "other.pftrace"
    path.write_bytes(proto.Trace(packet=[packet]).SerializeToString())
    status, parameters, _ = view_in_browser(monkeypatch, [str(path)])
    assert status == 0
    assert not {"visStart", "startupCommands"} & parameters.keys()


def test_the_offline_ui_gets_ranks_in_order(job: Path) -> None:
    """Versions before v57 order processes by their slices; a workspace has the order of copying."""
    from chopper_interop.io import inputs

    steps = chopper_metadata.read_opening(inputs.head(job))
    copied = [
        c for c in commands(opening.parameters(steps, in_order=True)) if c[0].startswith("Copy")
    ]
    assert [c[1].split("(")[0] for c in copied] == ["^rank 0", "^rank 1", "^host"]


def test_a_large_trace_is_left_to_a_trace_processor(
    monkeypatch: pytest.MonkeyPatch, job: Path, tmp_path: Path
) -> None:
    tool = tmp_path / "trace_processor_shell"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(view, "_LARGE_BYTES", 1)
    urls = []
    monkeypatch.setattr("webbrowser.open", lambda url: urls.append(url) or True)
    assert cli.view_main([str(job), "-q"]) == 0
    assert (tmp_path / "asked").read_text() == f"--httpd --http-port 9001 {job}\n"
    assert "url=" not in urls[0]
    assert f"visStart={EPOCH + 4940}" in urls[0]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "name a trace or profiles"),
        (["missing.pftrace"], 4, "missing.pftrace"),
        (["job.pftrace", "-o", "x.pftrace"], 2, "opened as it is"),
        (["kineto.json", "-o", "x.parquet"], 2, "name one Perfetto trace"),
        (["kineto.json", "-O", "nonsense=1"], 2, "nonsense"),
        (["job.pftrace", "--offline", "--port", "70000"], 2, "port 70000"),
        (["job.pftrace", "--port", "7000"], 2, "--port: it is the port of --offline"),
    ],
)
def test_errors_are_one_line(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], status: int, text: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(job.parent)
    ci.write(ci.read(job), "kineto.json", to_format="kineto")
    assert cli.view_main([*arguments, "--no-browser"]) == status
    captured = capsys.readouterr().err
    assert text in captured
    assert captured.count("\n") == 1


def test_a_port_in_use_is_one_line(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with trace_server.serving(trace_server.TraceServer(job, origin=UI)) as server:
        monkeypatch.setattr(view, "PORT", server.server_port)
        assert cli.view_main([str(job), "--no-browser"]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_damaged_notes_of_what_is_in_view_are_ignored() -> None:
    packet = chopper_metadata.opening_packet(chopper_metadata.Opening(0, 1, ("a",), ("a",)))
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    head = proto.Trace(packet=[packet]).SerializeToString()
    assert chopper_metadata.read_opening(head) is not None
    for at in range(len(head)):
        chopper_metadata.read_opening(head[:at])
        chopper_metadata.read_opening(head[:at] + b"\xff" + head[at + 1 :])


def test_telemetry_alone_is_in_view_and_unfolded(tmp_path: Path) -> None:
    from chopper_interop.io import inputs

    builder = TraceBuilder(Meta(clock=BOOTTIME))
    row = builder.series(-1, "power", "W", "recorder", device=0)
    builder.samples(row, np.array([7_000, 9_000]), np.array([1.0, 2.0]))
    ci.write(builder.finish(), tmp_path / "job.pftrace")
    shown = chopper_metadata.read_opening(inputs.head(tmp_path / "job.pftrace"))
    assert (shown.start_ns, shown.end_ns, shown.unfolded) == (7_000, 9_000, ("host", "recorder"))
