"""Loops as numba has them: compiled, or of machine code that was kept, so that other loops can call it.

numba itself also parses the bitcode of each function that it loads, which takes twice as long as to load the machine
code. It is there for functions that are compiled later and call this one, so it is parsed when one does.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import llvmlite.binding
import numba
from numba.core import bytecode, codegen, compiler, environment, runtime, serialize, types
from numba.core.dispatcher import Dispatcher
from numba.core.typing.templates import make_intrinsic_template
from numba.core.typing.typeof import typeof_impl
from numba.np import numpy_support

from chopper_interop.arrays import code_files, loaded_code

_llvm: Any = llvmlite.binding
_njit: Any = numba.njit
_dispatcher: Any = Dispatcher
_result: Any = compiler.CompileResult
_library: Any = codegen.JITCodeLibrary
_environment: Any = environment.Environment
_rebuild: Any = environment._rebuild_env  # noqa: SLF001 # what numba pickles an environment as
_runtime: Any = runtime
_dumps: Any = serialize.dumps
_types: Any = types
_typeof: Any = typeof_impl
_as_dtype: Any = numpy_support.as_dtype
_intrinsic_template: Any = make_intrinsic_template
# Names of symbols contain a running number. Were it to start at 1 in each process, as numba has it,
# different functions with one name could meet where code of several processes is loaded into one.
bytecode.FunctionIdentity._unique_ids = itertools.count(time.time_ns())  # noqa: SLF001


def _typeof_loop(loop: Any, context: Any) -> Any:
    """Type of a loop that another one calls."""
    return _typeof(loop.dispatcher, context)


def _typeof_written(written: Any, _: Any) -> Any:
    """Type of what a function writes for the loop that calls it."""
    return _function(written)


_typeof.register(code_files.Compilable)(_typeof_loop)
_typeof.register(code_files.Written)(_typeof_written)


@cache
def _function(written: code_files.Written) -> Any:
    return _types.Function(_intrinsic_template(written, written.writer, written.__qualname__))


def dispatcher(loop: code_files.Compilable, compiles: Callable[[], None]) -> Any:
    """Return what numba compiles and calls a loop with; the function itself where it is switched off.

    Parameters
    ----------
    loop
        The loop.
    compiles
        Called before it is compiled.
    """
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    made: Any = _njit(**options, _nrt=loop.counts_references)(loop.py_func)
    if isinstance(made, _dispatcher):
        made._cache = CodeCache(loop, compiles)  # noqa: SLF001 # numba has no hook for it
        made.get_call_template = _without_constants(made.get_call_template)
    return made


def _without_constants(template: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that others call once for all constants that they give it, not for each."""

    def general_template(arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
        general = {name: _types.unliteral(kind) for name, kind in keywords.items()}
        return template([_types.unliteral(kind) for kind in arguments], general)

    return general_template


class CodeCache:
    """Machine code of one function on disk, a file for each signature and kind of processor."""

    def __init__(self, loop: code_files.Compilable, compiles: Callable[[], None]) -> None:
        self.loop = loop
        self._compiles = compiles
        self.cache_path = None

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Load machine code; None if there is none and it must be code_files.

        Where numba's own cache refreshes the target, which imports all that numba can compile, this starts
        only what code needs to run: allocation. Compiling refreshes the target itself.
        """
        _runtime.rtsys.initialize(target)
        for data in code_files.stored(
            self.loop, text_of(signature), target.codegen().magic_tuple()
        ):
            with contextlib.suppress(*code_files.UNREADABLE):
                return _rebuilt(target, data)
        self._compiles()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save machine code."""
        if result.lifted or result.library.has_dynamic_globals:
            return
        # numba's types of each line, for people, are half of it and contain paths of this machine
        library, function, made, *rest = result._replace(type_annotation="")._reduce()  # noqa: SLF001
        name, kind, (machine_code, bitcode) = library
        module = result.library._final_module  # noqa: SLF001
        values = itertools.chain(module.functions, module.global_variables)
        needed = sorted(v.name for v in values if v.is_declaration)
        environments = {e.env_name: e.consts for e in (made, *rest[-1])}
        data = loaded_code.dumps(
            machine_code, function.llvm_cpython_wrapper_name,
            constants=_dumps(list(environments.items())),
            needed=[name for name in needed if not name.startswith("llvm.")],
            rest=_dumps((name, kind, bitcode, function, made, *rest)),
        )  # fmt: skip
        code_files.save(self.loop, text_of(signature), result.codegen.magic_tuple(), data)


def text_of(signature: Iterable[Any]) -> str:
    """Return the text of types of arguments in names of files, that of `compiled` for such arguments."""
    return ",".join(map(_type_text, signature))


def _type_text(kind: Any) -> str:
    if isinstance(kind, _types.Array):
        return code_files.array_text(
            _as_dtype(kind.dtype), kind.ndim, kind.layout,
            is_mutable=kind.mutable, is_aligned=kind.aligned,
        )  # fmt: skip
    if isinstance(kind, _types.BaseTuple):
        made = getattr(kind, "instance_class", tuple)
        return code_files.tuple_text(made, map(_type_text, kind))
    return "None" if isinstance(kind, _types.NoneType) else str(kind)


class _Library(_library):  # type: ignore[misc] # numba has no types
    """Machine code of a function, whose bitcode is parsed when it is linked with that of another.

    Parameters
    ----------
    target
        What numba compiles for.
    name
        Of the library.
    machine_code, bitcode
        As numba's ``serialize_using_object_code`` returned them.
    names
        Names of what is called by address.
    """

    _shared_module: Any

    def __init__(
        self, target: Any, name: str, machine_code: bytes, bitcode: bytes, names: set[str]
    ) -> None:
        super().__init__(target.codegen(), name)
        self._bitcode = bitcode
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


def _rebuilt(target: Any, data: bytes) -> Any:
    """Result of a compilation, of the content of a file of machine code.

    Parameters
    ----------
    target
        What numba compiles for.
    data
        The content of the file, which is the user's own.
    """
    machine_code, _, _, _, rest = loaded_code.loads(data)
    parts = _Unpickler(io.BytesIO(rest)).load()
    (
        name,
        _,
        bitcode,
        function,
        environment,
        signature,
        objectmode,
        lifted,
        annotation,
        inits,
        more,
    ) = parts
    for init in inits or ():
        init()
    names = {function.llvm_func_name, function.llvm_cpython_wrapper_name}
    loaded = _Library(target, name, machine_code, bitcode, names)
    entry = target.get_executable(loaded, function, environment)
    for other in more:
        loaded.codegen.set_env(other.env_name, other)
    return _result(
        typing_context=target.typing_context, target_context=target, entry_point=entry, typing_error=None,
        type_annotation=annotation, signature=signature, objectmode=objectmode, lifted=lifted, fndesc=function,
        library=loaded, call_helper=None, environment=environment, metadata=None, reload_init=inits,
        referenced_envs=more,
    )  # fmt: skip
