"""Address at which Perfetto's UI opens a trace in the view that the trace notes of itself.

The commands are those that Perfetto documents as stable for automation.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from chopper_interop.converters.perfetto.chopper_metadata import Opening

_MARGIN = 50
"""Share of the time in view that is shown before and after it: one fiftieth."""
_WORKSPACE = "job"
_MODULES = ("kernels", "steps")
"""Files of ``sql/chopper``, which define views."""
_GPU_GROUPS = r"^GPU( \d+)?( \(.*\))?$"


def parameters(opening: Opening, *, in_order: bool) -> dict[str, str]:
    """Return parameters of the UI's address for the view that a trace notes.

    Parameters
    ----------
    opening
        The view.
    in_order
        Bring the groups into order by a workspace, for versions before v57, which order
        processes by their number of slices.
    """
    margin = (opening.end_ns - opening.start_ns) // _MARGIN
    return {
        "visStart": str(max(opening.start_ns - margin, 0)),
        "visEnd": str(opening.end_ns + margin),
        "startupCommands": json.dumps(_commands(opening, in_order=in_order)),
    }


def _commands(opening: Opening, *, in_order: bool) -> list[dict[str, Any]]:
    commands = []
    if in_order:
        commands.append(_command("CreateWorkspace", _WORKSPACE))
        commands += [
            _command("CopyTracksToWorkspaceByRegex", _pattern(group), _WORKSPACE)
            for group in opening.groups
        ]
        commands.append(_command("SwitchWorkspace", _WORKSPACE))
    unfold = [*map(_pattern, opening.unfolded), _GPU_GROUPS]
    commands += [_command("ExpandTracksByRegex", pattern) for pattern in unfold]
    return commands + [_command("RunQuery", text) for text in sql_modules().values()]


def sql_modules() -> dict[str, str]:
    """Return the SQL modules for traces that our writer wrote, by their names, without comments."""
    folder = files("chopper_interop.converters.perfetto").joinpath("sql").joinpath("chopper")
    modules = {}
    for name in _MODULES:
        lines = folder.joinpath(f"{name}.sql").read_text("utf-8").splitlines()
        modules[f"chopper.{name}"] = " ".join(
            line.strip() for line in lines if line and not line.startswith("--")
        )
    return modules


def _command(name: str, *args: str) -> dict[str, Any]:
    return {"id": f"dev.perfetto.{name}", "args": list(args)}


def _pattern(group: str) -> str:
    """Pattern of the name of a group, to which the UI adds the number of a process."""
    escaped = re.sub(r"[.*+?^${}()|\[\]\\]", r"\\\g<0>", group)
    return rf"^{escaped}( \d+)?$"


def address(ui: str, parameters: dict[str, str]) -> str:
    """Return the address of the UI with parameters; what is after "#" stays in the browser."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"{ui}/#!/?{query}"
