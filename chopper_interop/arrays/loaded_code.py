"""Machine code that was kept on disk, as functions that Python calls, without numba.

Importing numba, and having it make of each file what it knows of a function, takes longer than to convert a small file.
What the machine code itself needs is the linker of LLVM and three small modules of numba in C: allocation and views of
arrays, names of errors, constants of a function.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import importlib.util
import math
import os
import pickle
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding

_llvm: Any = llvmlite.binding
_EXTENSIONS = ("numba._dynfunc", "numba._helperlib", "numba.core.runtime._nrt_python")
_lock = threading.Lock()
_objects: dict[int, Any] = {}
_environments: list[Any] = []
"""Constants of functions: machine code holds their addresses."""


@cache
def is_usable() -> bool:
    """Return True unless the user's environment changes what numba compiles, or its parts in C are missing."""
    return not any(name.startswith("NUMBA_") for name in os.environ) and None not in _paths()


@cache
def processor() -> tuple[str, str, str]:
    """Return the identifier of this processor that numba has."""
    try:
        features = _llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM does not know the processor
        features = ""
    return _llvm.get_process_triple(), _llvm.get_host_cpu_name(), features


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


def entry(data: bytes) -> Any:
    """Return the function of a file of machine code.

    Raises
    ------
    ValueError
        It needs what is not here.
    """
    machine_code, name, constants, needed, _ = loads(data)
    with _lock:
        engine, made_function, made_environment = _linker()
        if not all(map(_llvm.address_of_symbol, needed)):
            raise ValueError(name)
        engine.add_object_file(_llvm.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        environments = []
        for symbol, values in pickle.loads(constants):  # noqa: S301 # of the same file
            environment = made_environment({})
            environment.consts[:] = values
            place = ctypes.c_void_p.from_address(engine.get_global_value_address(symbol))
            place.value = id(environment)
            environments.append(environment)
        _environments.extend(environments)
        address = engine.get_function_address(name)
        return made_function(builtins, name, "", address, environments[0], ())


def _unpickled(address: int, size: int, _: int) -> Any:
    """Object that machine code makes, once: types of arrays and tuples, errors. numba's own imports numba."""
    if address not in _objects:
        _objects[address] = pickle.loads(ctypes.string_at(address, size))  # noqa: S301 # of the code
    return _objects[address]


_unpickle: Any = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)(_unpickled)


@cache
def _linker() -> tuple[Any, Any, Any]:
    """LLVM's linker, which knows the names of numba's parts in C, and what these make functions and constants with."""
    dynamic, helpers, runtime = map(_extension, _EXTENSIONS, _paths())
    _llvm.initialize_native_target()
    _llvm.initialize_native_asmprinter()
    machine = _llvm.Target.from_default_triple().create_target_machine()
    engine = _llvm.create_mcjit_compiler(_llvm.parse_assembly(""), machine)
    # names as numba gives them: core/base.py, core/externals.py, core/runtime/nrt.py
    names: dict[str, Any] = {"_Py_NoneStruct": id(None)}
    names |= {f"numba_{name}": address for name, address in helpers.c_helpers.items()}
    names |= {name: helpers.c_helpers[name] for name in dir(math) if name in helpers.c_helpers}
    names["numba_unpickle"] = ctypes.cast(_unpickle, ctypes.c_void_p).value
    for name, address in runtime.c_helpers.items():
        names[name if name.startswith("_") else f"NRT_{name}"] = address
    errors = (e for e in vars(builtins).values() if isinstance(e, type))
    names |= {f"PyExc_{e.__name__}": id(e) for e in errors if issubclass(e, BaseException)}
    for name, address in names.items():
        _llvm.add_symbol(name, address)
    return engine, dynamic.make_function, dynamic.Environment


def _extension(name: str, path: Path | None) -> Any:
    """Import a module in C of numba, and not numba, which finds it there when it is imported later."""
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, str(path))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


@cache
def _paths() -> tuple[Path | None, ...]:
    """Files of numba's modules in C, None for one that is not there."""
    numba = importlib.util.find_spec("numba")
    folder = Path((numba and numba.origin) or "").parent
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    return tuple(
        next(filter(Path.is_file, (folder.joinpath(*parts[:-1], parts[-1] + s) for s in suffixes)), None)
        for parts in (name.split(".")[1:] for name in _EXTENSIONS)
    )  # fmt: skip
