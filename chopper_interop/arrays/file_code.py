"""Addresses of the functions of `file_functions`: of machine code that was kept on disk, else compiled, and then kept.

Compiling takes 1.3 s of each process that works in files, linking what is kept a twentieth.
"""

from __future__ import annotations

import contextlib
import pickle
from functools import cache
from pathlib import Path
from typing import Any

from chopper_interop.arrays import code_files, loaded_code

_SOURCES = ("file_functions.py", "file_state.py")
"""Files of all that is compiled."""
_engines: list[Any] = []
"""Hold linked code as long as the process runs."""


@cache
def addresses() -> dict[str, int]:
    """Return the address of each function that others call, by its name."""
    name = _file_name()
    for data in code_files.kept(name) if name else ():
        with contextlib.suppress(Exception):  # of another version's file
            return _linked(data)
    from chopper_interop.arrays.file_functions import FUNCTIONS  # it compiles them

    if name:
        with contextlib.suppress(Exception):  # numba has it in another way: each process compiles
            code_files.keep(name, _content(FUNCTIONS))
    return {function: made.address for function, made in FUNCTIONS.items()}


def _file_name() -> str:
    """Name of the file, after what it is compiled from and for; empty where the source cannot be read."""
    try:
        sources = [Path(__file__).with_name(file).read_bytes() for file in _SOURCES]
    except OSError:
        return ""
    return code_files.name_of_sources("file_functions", sources)


def _content(functions: dict[str, Any]) -> bytes:
    """Content of the file: of each function its name in an object file, that file, and names that are not in it."""
    from chopper_interop.arrays import numba_code

    objects = {}
    for name, made in functions.items():
        library = made._library  # noqa: SLF001 # as numba's own cache
        _, _, (code, _) = library.serialize_using_object_code()
        objects[name] = made.native_name, code, numba_code.needed_names(library)
    return pickle.dumps(objects)


def _linked(data: bytes) -> dict[str, int]:
    """Link the content of a file, which is the user's own (`code_files.cache_folder`).

    Raises
    ------
    ValueError
        It needs what is not here, which would end the process.
    """
    llvm = code_files.llvm
    objects: dict[str, tuple[str, bytes, list[str]]] = pickle.loads(data)  # noqa: S301 # see above
    if not loaded_code.knows_names():
        from chopper_interop.arrays import numba_code  # numba is there, or set up by the user

        numba_code.add_names()
    if not all(
        llvm.address_of_symbol(name) for _, _, needed in objects.values() for name in needed
    ):
        raise ValueError(objects.keys())
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for _, code, _ in objects.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    found = {name: engine.get_function_address(symbol) for name, (symbol, _, _) in objects.items()}
    if not all(found.values()):
        raise ValueError(found)
    _engines.append(engine)
    return found
