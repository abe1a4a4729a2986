"""Checks of options that several analyses have."""

from __future__ import annotations

from collections.abc import Collection

from chopper_interop.errors import NoSuchDefinitionsError, OptionError, similar


def check_choice(
    option: str, text: str, known: Collection[str], error: type[OptionError] = OptionError
) -> str:
    """Check that an option is one of the known words, and return it.

    Raises
    ------
    OptionError
        It is none of them; of class `error`.
    """
    if text not in known:
        hint = similar(text, (word for word in known if word))
        raise error(f"{option}={text}: there is no {text!r}", hint=hint)
    return text


def check_at_least(bound: int, **options: int) -> None:
    """Check that no option is below a number.

    Raises
    ------
    OptionError
        One is; the message names it.
    """
    for option, value in options.items():
        if value < bound:
            raise OptionError(f"{option}={value}: it must be at least {bound}")


def check_compat(text: str, known: Collection[str]) -> str:
    """Check that the option `compat` is one of the known tools, and return it.

    Raises
    ------
    NoSuchDefinitionsError
        It is none of them.
    """
    return check_choice("compat", text, known, NoSuchDefinitionsError)
