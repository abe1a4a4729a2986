"""Loaded by Python at the start of a program that ``chopper-record --torch`` runs: better defaults for its profiler.

PyTorch's profiler then records shapes and, by ``--torch host``, writes the host execution trace of each process. What
the program states itself holds. Nothing is imported before the program imports the profiler.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import os
import sys
from pathlib import Path
from typing import Any

_ON = "CHOPPER_TORCH"
_FOLDER = "CHOPPER_TORCH_FOLDER"  # for host execution traces, if they are wanted
_MODULE = "torch.profiler.profiler"
_OBSERVER = "execution_trace_observer"
_NUMBERS = itertools.count(1)  # of the profilers of this process, each of which has a file
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _load_hidden_sitecustomize() -> None:
    """Load the sitecustomize of the environment, which this file hides."""
    here = Path(__file__).resolve().parent
    others = [path for path in sys.path if Path(path or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the profiler's module as it would be found, and changes its defaults once it is loaded."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_change(module: Any) -> None:
                execute(module)
                _change_defaults(module)

            loader.exec_module = execute_and_change
        return spec


def _change_defaults(module: Any) -> None:
    profile = module.profile
    start = profile.__init__
    observer = _observer_of(module) if _FOLDER in os.environ else None

    def start_with_defaults(self: Any, *arguments: Any, **options: Any) -> None:
        options.setdefault("record_shapes", True)
        if observer is not None and options.get(_OBSERVER) is None:
            options[_OBSERVER] = observer()
            options[_OBSERVER].register_callback(_path())
        start(self, *arguments, **options)

    profile.__init__ = start_with_defaults


def _observer_of(module: Any) -> Any:
    """Return the class that writes host execution traces; None if the profiler takes none."""
    observer = getattr(module, "ExecutionTraceObserver", None)
    if observer is not None and _OBSERVER in inspect.signature(module.profile.__init__).parameters:
        return observer
    sys.stderr.write("chopper-record: this PyTorch writes no host execution trace of itself\n")
    return None


def _path() -> str:
    ranks = [os.environ[name] for name in _RANK if os.environ.get(name, "").isdigit()]
    rank = ranks[0] if ranks else "0"
    return str(Path(os.environ[_FOLDER]) / f"rank{rank}-{os.getpid()}-{next(_NUMBERS)}.et.json")


if _ON in os.environ:
    sys.meta_path.insert(0, _Finder())
_load_hidden_sitecustomize()
