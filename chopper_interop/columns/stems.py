"""What kernels of one template, or of one generator, have in common of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

_RULES = (
    (r"\(anonymous namespace\)", "anonymous"),
    (r"^void ", ""),
    (r"(?s) *[<(\[].*$", ""),  # arguments of a template, parameters, [clone .kd]
    (r"_(MT|tilesize|tile)\d+x\d+.*$", ""),  # Tensile, cuDNN, cuBLAS: tiles and what follows
    (r"(\.kd|_\d+|_0d[0-9de]*)+$", ""),  # AMD's descriptors, Triton's numbers
)
"""What is replaced, one after the other."""
SAID = (
    "kernels are told apart by name without arguments of templates, parameters, tile sizes and "
    "trailing numbers"
)


def of(names: pa.Array) -> pa.Array:
    """Names without what differs between kernels of one template; never empty, null stays null."""
    stems = names
    for pattern, text in _RULES:
        stems = pc.replace_substring_regex(stems, pattern=pattern, replacement=text)
    return pc.if_else(pc.equal(pc.utf8_length(stems), 0), names, stems)
