"""Every real input is taken for what it is, and read or refused for a reason that is known.

What must come out of each is counted in the tests of its format; here nothing may be forgotten.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from real_files import converted
from shared_data import SHARED, each

import chopper_interop as ci
from chopper_interop.errors import ChopperError

PROFILES = ("pytorch", "rocprof", "telemetry", "chakra")
SOME_TIME = 1_700_000_000 * 10**9

REFUSED: tuple[tuple[str, str], ...] = (
    # what is of no format, or of one that holds no times
    (r"pytorch/odd/(empty\.json(\.gz)?|whitespace\.json)$", "it is empty"),
    (r"pytorch/odd/not_json\.json$", "no format that is known here"),
    (r"truth\.json$", "no format that is known here"),
    (r"rocpd_v3_tables_and_views\.tsv$", "no format that is known here"),
    (r"(stats|domain_stats|kernel_names)\.csv$", r"without a timeline|--kernel-trace too"),
    (r"pc_sampling_\w+\.csv$", "without a timeline"),
    (r"sampled_loop_8xmi300x/.*/(cpu|memory)_.*\.csv$", "no format that is known here"),
    (r"sampled_loop_8xmi300x/.*/containerized/.*\.json$", "no format that is known here"),
    (r"summary_power_a40\.csv$", "means over runs"),
    (r"query-c2c\.txt$", "holds no samples in time"),
    (r"v1_two_pass_mi250x/.*\.json$", "no events"),  # of --stats alone: labels and no trace
)
"""Path → why there is no trace of it. A file that is not listed here must be read."""
MAY_BE_REFUSED: tuple[tuple[str, str], ...] = (
    (r"pytorch/odd/", r"no events|traceEvents|half|cut|damaged|JSON|there is nothing"),
    (r"telemetry/amd_smi", r"describes a machine|holds an error|it is empty|no samples"),
    (r"rocprof_compute_pmc/", r"roofline|describes|without|times"),
    (r"rocprof/v3_csv.*counter_collection\.csv$", "--kernel-trace too"),
    (r"rocprof/v1_.*\.csv$", "without times|without a timeline"),
    (r"rocm_smi_real/", "no samples|describes"),
)
"""Path → why some of these hold no trace; their own tests say which."""
TWICE = re.compile(
    r"pytorch/odd/|telemetry/amd_smi_by_version/v6\."
    r"|pytorch/(base_boundary|clock_skew|ddp_resnet)_4rank_amd/(rank[123]|merged)"
    r"|pytorch/host_et/resnet_2gpu|sampled_loop_8xmi300x/.*(_bs8_|mem0\.9_)"
)
"""What `test_kineto_odd` reads and counts, what `test_amd_smi` does of versions between the first and the last, and
files that hold what another one of their folder does, of other ranks or of another setting of the program."""


def like(name: str) -> tuple[str, str]:
    """Folder and ending of a file, or its name where files of a folder are of several kinds, as those of rocprof."""
    path = Path(name)
    return str(path.parent), path.name if name.startswith("rocprof") else path.suffix


def files() -> list[Any]:
    """All files that are no document and no figure of another tool.

    Those that must be read and that other tests read and count are slow: `test_real_inputs` converts them,
    and `TWICE` lists the others. So are those that are like a later one of their folder.
    """
    result = (p for folder in PROFILES for p in (SHARED / folder).rglob("*") if p.is_file())
    names = sorted(str(p.relative_to(SHARED)) for p in result)
    cases: list[Any] = []
    elsewhere = converted() | set(names) - set({like(name): name for name in names}.values())
    for name in names:
        is_twice = (name in elsewhere or TWICE.match(name)) and not reason(name, REFUSED)
        cases.append(pytest.param(name, marks=pytest.mark.slow) if is_twice else name)
    return cases


def reason(name: str, table: tuple[tuple[str, str], ...]) -> str | None:
    return next((why for pattern, why in table if re.search(pattern, name)), None)


def read(path: Path) -> ci.Trace | str:
    """The trace of a file, with a time if it lacks one and can be given it; or why there is none."""
    try:
        return ci.read(path)
    except ChopperError as refused:
        if "at_ns" not in str(refused):
            return str(refused)
    try:
        return ci.read(path, at_ns=SOME_TIME)
    except ChopperError as refused:
        if "period_ms" not in str(refused):
            return str(refused)
    return ci.read(path, at_ns=SOME_TIME, period_ms=1000)


@pytest.mark.parametrize("name", each(files()))
def test_it_is_read_or_refused_for_its_reason(name: str) -> None:
    trace = read(SHARED / name)
    must = reason(name, REFUSED)
    if isinstance(trace, str):
        assert "\n" not in trace
        assert re.search(must or reason(name, MAY_BE_REFUSED) or "never", trace), trace
        return
    assert must is None
    (source,) = trace.meta.sources
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert 0 < source.events == source.nodes + counted
