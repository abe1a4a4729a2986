"""Machine code that was kept on disk, as functions that Python calls, without numba.

Importing numba, and having it make of each file what it knows of a function, takes longer than to convert a small file.
What the machine code itself needs is the linker of LLVM and three small modules of numba in C: allocation and views of
arrays, names of errors, constants of a function.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the part of signal in C, which takes a tenth of the time
import builtins
import contextlib
import ctypes
import importlib.util
import math
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import llvmlite.binding

from chopper_interop.arrays import code_files

_llvm: Any = llvmlite.binding
_EXTENSIONS = ("numba._dynfunc", "numba._helperlib", "numba.core.runtime._nrt_python")
TRIED = {f"0.{minor}" for minor in range(60, 69)}
"""Versions of numba with which the tests of this passed: in others, its modules in C may have other functions."""
_HARMLESS = {f"NUMBA_{name}" for name in ("CACHE_DIR", "NUM_THREADS", "THREADING_LAYER")}
"""Variables of numba, set in images and by schedulers, that change nothing in loops of one thread kept elsewhere."""
WAITS = "waits_for_machine_code"
"""Attribute of handlers of signals that do not raise in Python that machine code calls."""
_objects: dict[bytes, Any] = {}


def dumps(
    machine_code: bytes, name: str, constants: bytes, needed: list[str], rest: bytes
) -> bytes:
    """Make the content of a file of machine code.

    Parameters
    ----------
    machine_code
        An object file.
    name
        The function in it that takes arguments of Python.
    constants
        Name and constants of each environment in it, pickled.
    needed
        Names that are not in it.
    rest
        What numba needs to call it from other loops.
    """
    return pickle.dumps((machine_code, name, constants, needed, rest))


def loads(data: bytes) -> tuple[bytes, str, bytes, list[str], bytes]:
    """Take apart the content of a file of machine code, which is the user's own."""
    return pickle.loads(data)  # noqa: S301 # code_files.cache_folder


@cache
def function(loop: code_files.Compilable, types: str) -> Any:
    """Return a loop for arguments of these types, None where numba must make it.

    Machine code is linked once: of two copies, LLVM would find the names of one.
    """
    linker = _linker()
    if linker is not None:
        for data in code_files.stored(loop, types, linker.processor):
            with contextlib.suppress(Exception):  # of another version's file: numba compiles
                return linker.function(data)
    return None


@cache
def _linker() -> Linker | None:
    """Return the linker of this process.

    None if numba is to call all loops: the user's settings change what it compiles, its parts in C may not be as they
    are known here, or it was imported before, so that little is saved.
    """
    variables = os.environ.keys() - _HARMLESS
    # numba reads the file where PyYAML is installed
    is_set = Path(".numba_config.yaml").exists() or any(v.startswith("NUMBA_") for v in variables)
    version = ".".join(metadata.version("numba").split(".")[:2])
    if "numba" not in sys.modules and not is_set and version in TRIED:
        with contextlib.suppress(Exception):  # whatever is missing, numba does without
            return Linker()
    return None


def knows_names() -> bool:
    """Return True if LLVM's linker knows the names of numba's parts in C without numba."""
    return _linker() is not None


class Linker:
    """LLVM's linker, which knows the names of numba's parts in C, and what these make functions and constants with.

    Attributes
    ----------
    processor
        The identifier of this processor that numba has.
    """

    def __init__(self) -> None:
        features = _llvm.get_host_cpu_features().flatten()
        self.processor = (_llvm.get_process_triple(), _llvm.get_host_cpu_name(), features)
        dynamic, helpers, runtime = map(_extension, _EXTENSIONS)
        self._made_function, self._made_environment = dynamic.make_function, dynamic.Environment
        self._environments: list[Any] = []  # machine code holds their addresses
        _llvm.initialize_native_target()
        _llvm.initialize_native_asmprinter()
        machine = _llvm.Target.from_default_triple().create_target_machine()
        self._engine = _llvm.create_mcjit_compiler(_llvm.parse_assembly(""), machine)
        # as numba does, which may free what was allocated before it was imported
        runtime.memsys_use_cpython_allocator()
        # names as numba gives them: core/base.py, core/externals.py, core/runtime/nrt.py
        names: dict[str, Any] = {"_Py_NoneStruct": id(None)}
        names |= {f"numba_{name}": address for name, address in helpers.c_helpers.items()}
        names |= {n: helpers.c_helpers[n] for n in dir(math) if n in helpers.c_helpers}
        names["numba_unpickle"] = ctypes.cast(_unpickle, ctypes.c_void_p).value
        for name, address in runtime.c_helpers.items():
            names[name if name.startswith("_") else f"NRT_{name}"] = address
        errors = (e for e in vars(builtins).values() if isinstance(e, type))
        names |= {f"PyExc_{e.__name__}": id(e) for e in errors if issubclass(e, BaseException)}
        for name, address in names.items():
            _llvm.add_symbol(name, address)

    def function(self, data: bytes) -> Any:
        """Return the function of a file of machine code.

        Raises
        ------
        ValueError
            It needs what is not here, which LLVM would end the process for.
        """
        machine_code, name, constants, needed, _ = loads(data)
        if not all(map(_llvm.address_of_symbol, needed)):
            raise ValueError(name)
        self._engine.add_object_file(_llvm.ObjectFileRef.from_data(machine_code))
        self._engine.finalize_object()
        environments = []
        for symbol, values in pickle.loads(constants):  # noqa: S301 # of the same file
            environment = self._made_environment({})
            environment.consts[:] = values
            place = self._engine.get_global_value_address(symbol)
            ctypes.c_void_p.from_address(_known(place)).value = id(environment)
            environments.append(environment)
        self._environments += environments
        address = _known(self._engine.get_function_address(name))
        return self._made_function(builtins, name, "", address, environments[0], ())


def uninterrupted(loop: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a loop, or what gets its code: signals with handlers in Python are handled when it has returned.

    Signals that come while machine code runs are handled in the first Python that it calls, `_unpickled` or numba's own,
    and handlers may raise; where code is looked for, what they raise would be suppressed as a fault of a file. Only the main
    thread handles signals. Those of commands wait by themselves (`WAITS`).
    """
    if threading.current_thread() is not threading.main_thread():
        return loop(*arguments, **named)
    if hasattr(_signal.getsignal(_signal.SIGINT), WAITS):
        return loop(*arguments, **named)
    came: list[int] = []
    all_handlers = {n: _signal.getsignal(n) for n in _signals()}
    handlers = {n: handler for n, handler in all_handlers.items() if callable(handler)}
    try:
        for number in handlers:
            _signal.signal(number, lambda signum, _: came.append(signum))
        return loop(*arguments, **named)
    finally:
        try:
            _restore(handlers)
        finally:
            with contextlib.ExitStack() as handled:  # all of them, though one raises
                for signum in reversed(came):
                    handled.callback(signal.raise_signal, signum)


def _restore(handlers: dict[int, Any]) -> None:
    """Set all handlers, of which each may be called meanwhile, and raise."""
    raised: BaseException | None = None
    while handlers:
        try:
            for number in list(handlers):
                _signal.signal(number, handlers[number])
                del handlers[number]
        except BaseException as error:  # noqa: BLE001, PERF203 # raised below; none is left out
            raised = error
    if raised is not None:
        raise raised


@cache
def _signals() -> tuple[int, ...]:
    """Numbers of all signals; `signal` makes enumerations of them, for 60 us."""
    return tuple(sorted(map(int, signal.valid_signals())))


def _known(address: int) -> int:
    if not address:
        raise ValueError("no such name")
    return address


@cache
def _unpickled(address: int, size: int, _: int) -> Any:
    """Object that machine code makes, once: types of arrays and tuples, errors. numba's own imports numba.

    Machine code goes on without what it asked for if this raises, which ends the process. `cache` is code in C, in
    which no signal is handled: only the first call for an address is one of Python (`uninterrupted`).
    """
    data = ctypes.string_at(address, size)
    if data not in _objects:
        _objects[data] = pickle.loads(data)  # noqa: S301 # of the code
    return _objects[data]


_unpickle: Any = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)(_unpickled)


def _extension(name: str) -> Any:
    """Import a module in C of numba, and not numba, which finds it there when it is imported later."""
    top, *inner, _ = name.split(".")
    package: Any = importlib.util.find_spec(top)
    folders = [str(Path(folder, *inner)) for folder in package.submodule_search_locations]
    spec: Any = PathFinder.find_spec(name, folders)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
