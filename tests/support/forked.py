"""Commands in processes of their own, forked from one that has imported the package: importing takes most of a short command.

What a process has from its start is as in a new one: environment, streams, limits, signals, and how it exits.
Only `sitecustomize` and variables that Python or numpy read when they start need a new one.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_MODULES = (
    "psutil",
    "pyarrow.csv",
    *(
        f"chopper_interop.{name}"
        for name in (
            "cli",
            "recording.session",
            "commands.recorded_contents",
            "commands.analyze",
            "commands.view",
            "joining.job",
            "annotate.telemetry.job",
            "converters.amd_smi.recorder_samples",
            "converters.amd_smi.recorder_facts",
        )
    ),
)
"""What `chopper-record` imports, but for the vendors' libraries."""
_REQUEST_BYTES = 1 << 16


@dataclass(frozen=True)
class Child:
    """A command of `chopper_interop.start`, as a process.

    Parameters
    ----------
    command, arguments
        Name of its function there, and its arguments; without a name, all there is to run is the code.
    environment
        All its variables.
    libraries
        Folders from which modules are imported first.
    first
        Code that runs before it.
    folder
        The current folder.
    file_bytes
        Limit of the size of files.
    """

    command: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    libraries: Sequence[Path] = ()
    first: str = ""
    folder: Path = Path()
    file_bytes: int | None = None

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        outputs = [os.pipe(), os.pipe()]
        request = json.dumps(
            asdict(self) | {"environment": dict(self.environment), "folder": self.folder.resolve()},
            default=str,
        ).encode()
        socket.send_fds(_server(), [request], [end for _, end in outputs])
        for _, end in outputs:
            os.close(end)
        with ThreadPoolExecutor() as threads:
            texts = threads.map(_text, [start for start, _ in outputs])
        status = json.loads(_server().recv(_REQUEST_BYTES))
        return subprocess.CompletedProcess([self.command, *self.arguments], status, *texts)


def _text(stream: int) -> str:
    with open(stream, encoding="utf-8") as file:
        return file.read()


@cache
def _server() -> socket.socket:
    own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(others.fileno())], pass_fds=[others.fileno()]
    )
    others.close()

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own


def _serve(requests: socket.socket) -> None:
    """Fork a process for each request, until there are no more."""
    while True:
        text, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not text:
            return
        child = os.fork()
        if not child:
            requests.close()
            _become(json.loads(text), streams)
        for stream in streams:
            os.close(stream)
        requests.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _become(request: dict[str, Any], streams: list[int]) -> None:
    from chopper_interop import start

    os.environ.clear()
    os.environ.update(request["environment"])
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    if request["file_bytes"] is not None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"],) * 2)
    sys.path[:0] = request["libraries"]
    os.chdir(request["folder"])
    sys.argv = ["x", *request["arguments"]]
    try:
        exec(request["first"], {})  # noqa: S102
        if request["command"]:
            getattr(start, request["command"])()
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 # as Python ends of it; the loop of requests must not go on here
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    sys.exit()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # of the tests
    for module in _MODULES:
        importlib.import_module(module)
    _serve(socket.socket(fileno=int(sys.argv[1])))
