"""Make the list of loops that `chopper_interop.arrays.ahead` compiles: ``python tests/support/loops.py``.

Runs what newcomers run, the sample job's report and its conversions, and lists the loops that Python calls then, in the order of
their first calls.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COMMANDS = (
    ("convert", "-q", "--demo", "{}/profiles"),
    ("analyze", "-q", "{}/profiles", "--html", "{}/report.html", "--csv", "{}/csv"),
    ("convert", "-q", "{}/profiles", "-o", "{}/job.pftrace", "-o", "{}/et/", "-o", "{}/job.parquet", "-O", "mode=gpu"),
)  # fmt: skip
"""The report of a sample job, and files for Perfetto, for simulators and with tables."""


def calls(folder: Path, commands: Iterable[tuple[str, ...]] = COMMANDS) -> dict[str, None]:
    """Run the commands; return lines of the list."""
    from chopper_interop import cli
    from chopper_interop.arrays import ahead
    from chopper_interop.arrays.compiled import Loop

    call = Loop.__call__
    lines: dict[str, None] = {}

    def recorded(self: Any, *arguments: Any, **named: Any) -> Any:
        function = self.py_func
        if not named and "<locals>" not in function.__qualname__:
            types = [ahead.described(value) for value in arguments]
            lines[json.dumps([function.__module__, function.__qualname__, types])] = None
        return call(self, *arguments, **named)

    Loop.__call__ = recorded  # type: ignore[method-assign]
    try:
        for command, *texts in commands:
            if getattr(cli, f"{command}_main")([text.format(folder) for text in texts]):
                raise RuntimeError(command)  # one that ends early leaves loops out
    finally:
        Loop.__call__ = call  # type: ignore[method-assign]
    return lines


if __name__ == "__main__":
    from chopper_interop.arrays import ahead

    with tempfile.TemporaryDirectory() as name:
        made = calls(Path(name))
    ahead.PATH.write_text("".join(f"{line}\n" for line in made), encoding="utf-8")
    print(f"{ahead.PATH.name}: {len(made)} loops")
