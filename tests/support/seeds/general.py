"""Inputs that are of no format."""

from chopper_interop.errors import UnknownFormatError
from seeds import Odd, Refused

SEEDS = ()
ODD = (
    Odd("empty file", {"x.json": b""}, Refused(UnknownFormatError, "it is empty")),
    Odd("white space alone", {"x.csv": b" \r\n\n"}, Refused(UnknownFormatError, "it is empty")),
    Odd("prose", {"notes.txt": b"what we measured on Monday\n"},
        Refused(UnknownFormatError, "no format that is known here")),
)  # fmt: skip
