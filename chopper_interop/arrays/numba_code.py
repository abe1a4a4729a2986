"""Loops as numba has them: compiled, or of machine code that was kept, so that other loops can call it."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numba
from numba.core import bytecode, compiler, runtime, serialize, types
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.typing.templates import make_intrinsic_template
from numba.core.typing.typeof import typeof_impl
from numba.np import numpy_support

from chopper_interop.arrays import claims, code_files, loaded_code

_njit: Any = numba.njit
_dispatcher: Any = Dispatcher
_result: Any = compiler.CompileResult
_runtime: Any = runtime
_target: Any = cpu_target
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
    return _typeof(loop.inner_dispatcher, context)


def _typeof_written(written: Any, _: Any) -> Any:
    """Type of what a function writes for the loop that calls it."""
    return _function(written)


_typeof.register(code_files.Compilable)(_typeof_loop)
_typeof.register(code_files.Written)(_typeof_written)


@cache
def _function(written: code_files.Written) -> Any:
    return _types.Function(_intrinsic_template(written, written.writer, written.__qualname__))


def dispatcher(
    loop: code_files.Compilable, compiles: Callable[[], None], *, is_inner: bool = False
) -> Any:
    """Return what numba compiles and calls a loop with; the function itself where it is switched off.

    Parameters
    ----------
    loop
        The loop.
    compiles
        Called before it is compiled.
    is_inner
        Whether only other loops call it: what takes arguments of Python is a third of its compilation, and left out.
    """
    options = {
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": is_inner,
        "forceinline": loop.is_inlined,
    }
    made: Any = _njit(**options, _nrt=loop.counts_references)(loop.py_func)
    if isinstance(made, _dispatcher):
        made._cache = CodeCache(loop, compiles, is_inner=is_inner)  # noqa: SLF001 # numba has no hook for it
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

    def __init__(
        self, loop: code_files.Compilable, compiles: Callable[[], None], *, is_inner: bool
    ) -> None:
        self.loop = loop
        self._compiles = compiles
        self._endings = ("inner", "") if is_inner else ("",)
        self.cache_path = None

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Load machine code; None if there is none and it must be compiled.

        Where numba's own cache refreshes the target, which imports all that numba can compile, this starts
        only what code needs to run: allocation. Compiling refreshes the target itself.
        """
        _runtime.rtsys.initialize(target)
        types, processor = text_of(signature), target.codegen().magic_tuple()
        for ending in self._endings:
            stored = code_files.stored(self.loop, types + ending, processor)
            result = loaded_code.uninterrupted(_first_result, target, stored)
            if result is not None:
                return result
        types += self._endings[0]
        name = code_files.file_name(self.loop, types, processor)
        claims.take(name)
        kept = code_files.kept(name)  # by another process, since
        result = loaded_code.uninterrupted(_first_result, target, kept)
        if result is not None:
            claims.release(name)
            return result
        self._compiles()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save machine code, unless numba has it in another way: then each process compiles."""
        types, processor = text_of(signature) + self._endings[0], result.codegen.magic_tuple()
        try:
            if not result.lifted and not result.library.has_dynamic_globals:
                loaded_code.uninterrupted(self._save, types, processor, result)
        finally:
            claims.release(code_files.file_name(self.loop, types, processor))

    def _save(self, types: str, processor: Any, result: Any) -> None:
        with contextlib.suppress(Exception):
            code_files.save(self.loop, types, processor, _content(result))


def _content(result: Any) -> bytes:
    """Content of a file of machine code, of the result of a compilation."""
    # numba's types of each line, for people, are half of it and contain paths of this machine
    library, function, made, *rest = result._replace(type_annotation="")._reduce()  # noqa: SLF001
    name, kind, (machine_code, bitcode) = library
    environments = {e.env_name: e.consts for e in (made, *rest[-1])}
    return loaded_code.dumps(
        machine_code, function.llvm_cpython_wrapper_name,
        constants=_dumps(list(environments.items())),
        needed=needed_names(result.library),
        rest=_dumps((name, kind, bitcode, function, made, *rest)),
    )  # fmt: skip


def needed_names(library: Any) -> list[str]:
    """Return the names that are not in a library of machine code."""
    module = library._final_module  # noqa: SLF001 # numba has no other way
    values = itertools.chain(module.functions, module.global_variables)
    needed = sorted(v.name for v in values if v.is_declaration)
    return [name for name in needed if not name.startswith("llvm.")]


def add_names() -> None:
    """Have the linker know the names of numba's parts in C."""
    _runtime.rtsys.initialize(_target.target_context)


def _first_result(target: Any, contents: Iterable[bytes]) -> Any:
    """Result of the first content of a file that is of this version; None if it is compiled again."""
    for data in contents:
        with contextlib.suppress(Exception):
            return _result_of(target, data)
    return None


def _result_of(target: Any, data: bytes) -> Any:
    """Result of a compilation for a target, of the content of a file, which is the user's own."""
    machine_code, _, _, _, rest = loaded_code.loads(data)
    name, kind, bitcode, *parts = pickle.loads(rest)  # noqa: S301 # code_files.cache_folder
    library = name, kind, (machine_code, bitcode)
    return _result._rebuild(target, library, *parts)  # noqa: SLF001 # as numba's own cache


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
