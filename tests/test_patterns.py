"""Patterns meet foreign text: none may take more than about linear time."""

import importlib
import math
import pkgutil
import re
import time
from pathlib import Path

import pytest
from slow import slow_from

import chopper_interop

PARTS = (
    "=", "-", "[", "]", "(", "<", "_", " ", "\t", "\n", ".", ",", ":", "/", '"', "\\", "0", "a",
    "Z", "GPU ", " [clone ]", "Temp SCLK MCLK ", "a_", "a ", "0 ", "a.", "a::", "_1", "1.", "1,",
    "a,", ", ", ": ",
)  # fmt: skip
SEARCHES = {"search", "sub", "subn", "split", "findall", "finditer"}
COUNTS = (8, 12, 16, 20, 24, 28, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Repetitions of a part. The first grow slowly: some patterns take twice as long for each one."""
LARGEST = 4096
BOUNDED = frozenset({
    "chopper_interop.analyses.methods.changes.verbs._CHANGE_PATTERN",  # the user's own text
    "chopper_interop.converters.rocm.file_names._V3_FILE",  # names of files: 255 bytes at most
    "chopper_interop.converters.zeus.charllm_metrics._GPU_NAME",  # the same
    "chopper_interop.edges.communication._LOOKS_LIKE",  # `own_name`: 256 characters at most
})  # fmt: skip
"""Patterns that are slow on long texts, and meet short ones only."""
QUICK_S = 1e-3
MAX_EXPONENT = 1.5
"""Time grows as this power of the length: 1 of a linear pattern, 2 of a quadratic one."""


def patterns():
    """Yield each pattern of a module, and whether it is searched or only matched at a start."""
    methods = {}
    names = [
        info.name
        for info in pkgutil.walk_packages(chopper_interop.__path__, "chopper_interop.")
        if not info.name.endswith("__main__")
    ]
    places_by_pattern = {}
    for name in names:
        module = importlib.import_module(name)
        source = Path(module.__file__).read_text("utf-8")
        for owner, attribute, method in re.findall(
            r"(\w+\.)?\b([A-Z_][A-Z0-9_]*)\.(\w+)[(,)]",
            source,  # called, or handed on
        ):
            methods.setdefault(attribute if owner else (name, attribute), set()).add(method)
        for attribute, value in vars(module).items():
            if isinstance(value, re.Pattern) and f"{name}.{attribute}" not in BOUNDED:
                places_by_pattern.setdefault((value.pattern, value.flags), (value, []))[1].append(
                    (name, attribute)
                )
    for pattern, places in places_by_pattern.values():
        used = set().union(*(methods.get(place, set()) for place in places))
        used = used or set().union(*(methods.get(attribute, set()) for _, attribute in places))
        yield pattern, places[0], not used or bool(used & SEARCHES), "fullmatch" in used


def hostile_parts(source):
    plain = re.sub(r"\\.|\(\?[P:=!<\w]*>?", " ", source)
    words = list(dict.fromkeys(re.findall(r"\w{2,}|[^\w\s]", plain)))[:40]
    return dict.fromkeys((*PARTS, *words, " ".join(words[:4]), *(f"{word} " for word in words[:8])))


def seconds(function, text):
    """Return the least of the times of calls: others are of other work on the machine."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        function(text)
        times.append(time.thread_time() - start)
        if times[-1] < QUICK_S:
            break
    return min(times)


def grows(function, part, *, is_bytes):
    """True if the time of a text that repeats a part grows faster than the text."""
    before = None
    exponents = []
    for count in COUNTS:
        if count * len(part) > LARGEST:
            break
        text = part * count + "\1"
        taken = seconds(function, text.encode() if is_bytes else text)
        if before and before[1] > QUICK_S / 8 and taken > QUICK_S:
            exponents.append(math.log(taken / before[1]) / math.log(count / before[0]))
        if taken > 10 * QUICK_S:
            break
        before = count, taken
    return bool(exponents) and min(exponents) > MAX_EXPONENT


@pytest.mark.parametrize("step", slow_from([30, 1], 1))
def test_no_pattern_takes_more_than_linear_time_on_foreign_text(step):
    slow = []
    for pattern, place, is_searched, is_full in [*patterns()][::step]:
        source = pattern.pattern
        is_bytes = isinstance(source, bytes)
        source = source.decode("latin-1") if is_bytes else source
        function = (
            pattern.search if is_searched else pattern.fullmatch if is_full else pattern.match
        )
        parts = hostile_parts(source)
        slow += [
            (".".join(place), source, part)
            for part in parts
            if all(grows(function, part, is_bytes=is_bytes) for _ in range(3))
        ]
    assert not slow


RECOGNISED_S = 0.6
"""Seconds of a processor at most for recognising 64 KB, of which most take a hundredth (chosen: a busy machine)."""


@pytest.mark.parametrize("step", slow_from([12, 1], 1))
def test_any_file_is_recognised_quickly(tmp_path: Path, step: int) -> None:
    """A folder may hold thousands of files: a header of 32,768 columns took four seconds."""
    from chopper_interop import registry
    from chopper_interop.io.inputs import HEAD_BYTES

    cells = [f"{part}," for part in ("t", "GPU", "gpu 0", "time (s)", "a.b", "A[1]", "Kernel_Name")]
    seconds = {}
    for part in [*PARTS, *cells, "[{", '{"a":', "[1,", "<a>", "a;", "a\t", "a|"][::step]:
        for end in ("", "\n"):
            path = tmp_path / "file"
            path.write_text((part + end) * (HEAD_BYTES // len(part + end) + 1))
            head = path.read_bytes()[:HEAD_BYTES]
            begin = time.thread_time()
            registry.sniffed(head, path)
            seconds[part + end] = time.thread_time() - begin
    assert max(seconds.values()) < RECOGNISED_S, seconds
