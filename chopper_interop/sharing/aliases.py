"""Aliases of names: the words that say nothing stay, all others become keyed hashes of themselves.

::

    AcmeDecoderLayer_3        ->  KxqvzbdgjkqvDecoderLayer_3
    void acme::fused_norm<4>  ->  void xzbqvkdgjxqz::fused_norm<4>
    aten::mm, hipMemcpyAsync, Cijk_Ailk_Bljk_…   stay

Equal words have equal aliases under one key. Without the key an alias cannot be computed from a guessed
word, so that no dictionary reverses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

from chopper_interop.schemas.vocabulary import NAMESPACES, PACKAGES, STEMS, WORDS

_LETTERS = "bdgjkqvxz"
"""Letters of aliases: no rule for names finds one of its words in them."""
_LENGTH = 12
"""Letters of an alias. Chosen: 9 ** 12 aliases, so that two of a million words rarely share one."""


def _any(words: list[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


_ADDRESS = (  # of a network: versions 4 and 6, and of a card
    r"(?<![\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])"
    r"|(?<![\w:])(?=[\d:]*[a-fA-F])(?:[0-9a-fA-F]{1,4}::?){3,7}[0-9a-fA-F]{1,4}(?![\w:])"
    r"|(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"
)
_HASHED = (
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"  # UUID
    rf"|{_ADDRESS}"
    r"|(?<![^\W_])(?=[a-fA-F]{0,9}\d)(?=\d{0,9}[a-fA-F])[0-9a-fA-F]{7,64}(?![^\W_])"  # hash
    r"|\d{10,}"
)
_KEPT = (
    rf"(?<![\w:])(?:{_any(NAMESPACES)})(?:::(?:~?\w+|\(anonymous namespace\)))+"
    r"|(?<!\w)(?:hsa|Cijk|igemm|turing|sm\d\d|nvjet|xmma|__amd_rocclr)_\w+"
    rf"|(?<![\w/.-])(?:{_any(PACKAGES)})/[\w./-]*\.pyx?\(\d+\): [\w<>.]+"
    r"|0[xX][0-9a-fA-F]+"
)
_TOKEN = re.compile(
    rf"(?P<kept>{_KEPT})|(?P<mangled>(?<!\w)_Z\w+)|(?P<hashed>{_HASHED})|(?P<word>[^\W\d_]+)"
)
_TYPES = re.compile(r"(?:t?f\d\d?|bf?\d\d?|fp\d\d?|e\dm\d|[ius]\d\d?|\d\d?d)+", re.IGNORECASE)
"""Types of numbers one behind the other, which look like a hash in hexadecimal digits."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^A-Za-z]+")
_STEM = re.compile(_any(STEMS), re.IGNORECASE)
_NUMBERS = re.compile(r"(?i:[\s\d.,+\-\[\](){}<>:]|e[+-]?\d|true|false|none|null|nan|inf)*")
_HAS_ADDRESS = re.compile(_ADDRESS)
_IDENTIFIER = re.compile(
    r"L[a-z]n?\d+E|DF\d+[b_]?|T\d*_|S[\dA-Z]{0,3}_(?!\d)"  # values, types, parameters: no identifiers
    r"|(?P<nested>N[rVK]{0,3})?(?P<again>S[\dA-Z]{0,3}_|St)?(?P<size>[1-9]\d{0,3})"
)
_LOCAL = "_GLOBAL__N_1"
"""Mangled name of an anonymous namespace."""


class Aliases:
    """Aliases of texts by one key.

    Parameters
    ----------
    key
        Any text.

    Examples
    --------
    >>> aliases = Aliases("a key")
    >>> aliases.text("aten::mm"), aliases.text("nn.Module: Linear_3")
    ('aten::mm', 'nn.Module: Linear_3')
    >>> aliases.text("acme_norm_7").endswith("_norm_7")
    True
    >>> aliases.text("acme") == aliases.text("ACME").lower()
    True
    """

    def __init__(self, key: str) -> None:
        self._key = blake2b(key.encode("utf-8", "surrogatepass")).digest()
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return a text with aliases for all words that are not of the field."""
        if _NUMBERS.fullmatch(text) and not _HAS_ADDRESS.search(text):
            return text
        if text not in self._known:
            self._known[text] = _TOKEN.sub(self._token, text)
        return self._known[text]

    def whole(self, text: str) -> str:
        """Return one alias for a text, whatever is in it."""
        return self._alias(text) if text else ""

    def pci(self, address: str) -> str:
        """Return an alias of a PCI address that has the form of one."""
        digest = self._digest(address).hex()
        return f"{digest[:8]}:{digest[8:10]}:{digest[10:12]}.0" if address else ""

    def _digest(self, text: str) -> bytes:
        return blake2b(
            text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16
        ).digest()

    def _alias(self, word: str) -> str:
        """Return the alias of a word, in capitals where the word is."""
        number = int.from_bytes(self._digest(word.casefold()), "big")
        letters = []
        for _ in range(_LENGTH):
            number, letter = divmod(number, len(_LETTERS))
            letters.append(_LETTERS[letter])
        alias = "".join(letters)
        if word.isupper() and len(word) > 1:
            return alias.upper()
        return alias.capitalize() if word[:1].isupper() else alias

    def _token(self, match: re.Match[str]) -> str:
        text = match[0]
        if match["kept"]:
            return text
        if match["mangled"]:
            return self._mangled(text)
        if match["hashed"]:
            return text if _TYPES.fullmatch(text) else self._alias(text)
        return self._word(text)

    def _word(self, word: str) -> str:
        """Return a run of letters, of whose parts (``acme``, ``Layer``) the known ones stay."""
        new, unknown = [], ""
        for part in _PART.findall(word):
            if part.lower() in WORDS or (len(part) == 1 and part.isascii()):
                new += [self._unknown(unknown), part]
                unknown = ""
            else:
                unknown += part
        return "".join([*new, self._unknown(unknown)])

    def _unknown(self, word: str) -> str:
        """Return the alias of a word; what rules find within it stays."""
        if not word:
            return ""
        new, end = [], 0
        for stem in _STEM.finditer(word):
            new += [self._alias(word[end : stem.start()]) if stem.start() > end else "", stem[0]]
            end = stem.end()
        return "".join([*new, self._alias(word[end:]) if end < len(word) else ""])

    def _mangled(self, name: str) -> str:
        """Return a mangled name with aliases for its identifiers; one of libraries alone stays."""
        identifiers = list(_identifiers(name))
        outer = [text for _, _, text, nested in identifiers if nested == "N"]
        of_library = bool(outer) and {*outer} <= {*NAMESPACES, _LOCAL}
        new, end = [], 0
        for start, stop, text, nested in identifiers:
            alias = text if of_library and nested else self.text(text)
            new += [name[end:start], f"{len(alias)}{alias}"]
            end = stop
        return "".join([*new, name[end:]])


def _identifiers(name: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield identifiers of a mangled name: where the length and the text lie, the text, and what it follows.

    That is "N" for the first of a nested name, "S" for one behind another or behind a repeated part of
    the name, else "".
    """
    at = previous = 0
    while match := _IDENTIFIER.search(name, at):
        at = match.end()
        if not match["size"]:
            continue
        start, begin = match.start("size"), match.end()
        stop = begin + int(match["size"])
        text = name[begin:stop]
        if len(text) < stop - begin or not re.fullmatch(r"[^\W\d]\w*", text):
            continue
        nested = "N" if match["nested"] and not match["again"] else ""
        yield (
            start,
            stop,
            text,
            nested or ("S" if match["again"] or match.start() == previous else ""),
        )
        at = previous = stop
