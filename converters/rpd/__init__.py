"""rpd, the database of rocmProfileData, schemas 2 and 3 (the older relatives of rocpd).

Calls, GPU operations, values of monitors and counters are events of the source. Ranges of roctx
and rlog (``UserMarker``) become operators of PyTorch or ranges, by their text.

Its times are of ``CLOCK_MONOTONIC``, which is the time since boot unless the node slept; those
that the variant for CUPTI writes are Unix times.
"""

from __future__ import annotations

from pathlib import Path

from chopper_interop.io.sqlite_files import mentions_table
from chopper_interop.io.sqlite_schema import has_tables
from chopper_interop.registry import Converter

_OWN = ("rocpd_api", "rocpd_op")
_NOT_OWN = ("rocpd_info_",)


def sniff(head: bytes) -> bool:
    """True if a file that begins so is an rpd database: it names the first tables."""
    return mentions_table(head, *_OWN) and not mentions_table(head, *_NOT_OWN)


def confirms(path: Path, head: bytes) -> bool:
    """True if a database has tables of rpd and none of rocpd."""
    return has_tables(path, head, _OWN, _NOT_OWN)


RPD = Converter(
    name="rpd",
    description="rpd database (rocmProfileData)",
    versions="schemas 2 and 3",
    sniff=sniff,
    json=False,
    confirms=confirms,
    read="chopper_interop.converters.rpd.reader:read",
    carries="GPU operations with shapes and sizes, HIP, HSA and CUDA calls, roctx and PyTorch's "
    "operators nested on their threads, launches, monitored clocks as series, counters (schema 3)",
)
