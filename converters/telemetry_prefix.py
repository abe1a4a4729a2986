"""Times that scripts put in front of the lines of a tool that writes none."""

from __future__ import annotations

import re

from chopper_interop.converters.telemetry_stamps import stamp_of

_DATE = re.compile(r"\d{8}")


def split_stamp(line: str) -> tuple[str, str]:
    """What a script put in front of a line, and the line.

    A stamp is one word or two (date and time), perhaps in brackets.
    """
    words = line.split(None, 2)
    for count in (1, 2):
        if len(words) <= count:
            break
        told = " ".join(words[:count]).strip("[](),")
        if _DATE.fullmatch(words[0]) and count == 1:
            continue
        rest = line.split(None, count)[count]
        looks = re.match(r"\d{4}-|\d{4}/|\d{10,}", told) is not None
        if looks and stamp_of(told) is not None:
            return told, rest.strip()
    return "", line
