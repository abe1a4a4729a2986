"""Machine code that was kept on disk, as what numba has of a function that it has just compiled.

numba itself also parses the bitcode of each function that it loads, which takes twice as long as to load the machine
code. It is there for functions that are compiled later and call this one, so it is parsed when one does.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import llvmlite.binding
from numba.core import codegen, compiler, environment

_llvm: Any = llvmlite.binding
_result: Any = compiler.CompileResult
_library: Any = codegen.JITCodeLibrary
_environment: Any = environment.Environment
_rebuild: Any = environment._rebuild_env  # noqa: SLF001 # what numba pickles an environment as


class _Library(_library):  # type: ignore[misc] # numba has no types
    """Machine code of a function, whose bitcode is parsed when it is linked with that of another.

    Parameters
    ----------
    target
        What numba compiles for.
    data
        What numba's ``serialize_using_object_code`` returned.
    names
        Names of what is called by address.
    """

    _shared_module: Any

    def __init__(
        self, target: Any, data: tuple[str, str, tuple[bytes, bytes]], names: set[str]
    ) -> None:
        name, _, (machine_code, self._bitcode) = data
        super().__init__(target.codegen(), name)
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()
        self._codegen._engine._defined_symbols |= names  # noqa: SLF001 # as numba, of parsed bitcode

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = _llvm.parse_bitcode(self._bitcode)
        return self._shared_module


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _constants if found is _rebuild else found


def _constants(module: str, constants: Any, name: str) -> Any:
    """Environment of a function: its constants, and its module's globals if that is loaded.

    numba imports the module of each of its own functions that a loop contains, and with it all that can be
    compiled, which took a sixth of a small conversion. Only code in object mode, of which there is none, looks up globals.
    """
    if module in sys.modules:
        return _rebuild(module, constants, name)
    made = _environment({})
    made.env_name = name
    made.consts[:] = constants
    return made


def loads(data: bytes) -> tuple[Any, ...]:
    """Unpickle what numba's ``CompileResult._reduce`` returned, of a file that is the user's own."""
    return _Unpickler(io.BytesIO(data)).load()


def rebuilt(target: Any, data: tuple[Any, ...]) -> Any:
    """Result of a compilation, of what numba's ``CompileResult._reduce`` returned of it.

    Parameters
    ----------
    target
        What numba compiles for.
    data
        The parts, unpickled.
    """
    library, function, environment, signature, objectmode, lifted, annotation, inits, more = data
    for init in inits or ():
        init()
    names = {function.llvm_func_name, function.llvm_cpython_wrapper_name}
    loaded = _Library(target, library, names)
    entry = target.get_executable(loaded, function, environment)
    for other in more:
        loaded.codegen.set_env(other.env_name, other)
    return _result(
        typing_context=target.typing_context, target_context=target, entry_point=entry, typing_error=None,
        type_annotation=annotation, signature=signature, objectmode=objectmode, lifted=lifted, fndesc=function,
        library=loaded, call_helper=None, environment=environment, metadata=None, reload_init=inits,
        referenced_envs=more,
    )  # fmt: skip
