"""Words of the field, which say nothing of a program, its user or its machine.

Anonymised names keep them, and with them what the rules of this package recognise: ``AcmeDecoderLayer_3``
is a layer under any first word. Collected from PyTorch's operators, the rules themselves, telemetry tools,
profilers' arguments, and libraries' kernels, in ``vocabulary.ini``; in lower case.
"""

from __future__ import annotations

import builtins
from configparser import ConfigParser
from importlib.resources import files

_LISTS = ConfigParser(interpolation=None)
_LISTS.read_string(
    files("chopper_interop.schemas").joinpath("vocabulary.ini").read_text("utf-8"), "vocabulary.ini"
)

WORDS = frozenset(word for block in _LISTS["words"].values() for word in block.split()) | frozenset(
    name.strip("_").lower() for name in dir(builtins)
)
"""Words of all kinds, and names of Python's builtins; single letters count too, wherever they stand."""
STEMS, NAMESPACES, PACKAGES = (
    _LISTS["names"][kind].split() for kind in ("stems", "namespaces", "packages")
)
"""Words that the rules find within longer ones (``mynorm`` is a norm); namespaces of libraries, and packages of
Python: names in them stay whole."""
