"""rocm-smi: its three forms out of loops, and what is known to go wrong with them."""

from __future__ import annotations

import json

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Refused, Seed, reads

T = 1_754_585_903
AT = {"at_ns": 1_700_000_000_000_000_001}
_POWER = "Average Graphics Package Power (W)"
_HEAT = "Temperature (Sensor junction) (C)"
_USE = "GPU use (%)"
WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control\n\n"


def _values(tick: int, card: int) -> dict[str, str]:
    return {_HEAT: "46.0", _POWER: f"{700 + 10 * card + tick}.0", _USE: "97"}


def _json(tick: int) -> str:
    return json.dumps({f"card{n}": _values(tick, n) for n in range(2)}) + "\n"


def _csv(tick: int) -> str:
    rows = "".join(f"card{n},{','.join(_values(tick, n).values())}\n" for n in range(2))
    return f"device,{_HEAT},{_POWER},{_USE}\n{rows}\n"


def _text(tick: int) -> str:
    lines = "".join(
        f"GPU[{n}]\t\t: {key}: {value}\n"
        for n in range(2)
        for key, value in _values(tick, n).items()
    )
    rule = "=" * 60
    head = (
        f"\n\n{'=' * 12} ROCm System Management Interface {'=' * 12}\n{'=' * 20} All {'=' * 20}\n"
    )
    return f"{head}{lines}{rule}\n{'=' * 18} End of ROCm SMI Log {'=' * 18}\n"


def _table(tick: int) -> str:
    rule = "=" * 60
    head = f"{'=' * 12} ROCm System Management Interface {'=' * 12}\n{'=' * 16} Concise Info {'=' * 16}\n"
    head += "Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK"
    head += "     Fan  Perf  PwrCap  VRAM%  GPU%\n"
    head += f"        (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)\n{rule}\n"
    rows = "".join(
        f"{n}       4     0x74a0,   50375  48.0°C      {110 + tick}.0W    NPS1, SPX, 0        98Mhz"
        "   1300Mhz  0%   auto  550.0W  0%     0%\n"
        for n in range(2)
    )
    return f"{head}{rows}{rule}\n{'=' * 18} End of ROCm SMI Log {'=' * 18}\n"


def _loop(form: object, between: str = "{}\n") -> str:
    return "".join(between.format(T + 5 * n) + form(n) for n in range(3))  # type: ignore[operator]


_ROWS = [f"{T + 5 * t},card{n},{700 + t}.0,4{n}.0" for t in range(3) for n in range(2)]
STAMPED = "\n".join(["timestamp,device,power_watts,temp_junction_celsius", *_ROWS, ""])
JSON, CSV, TEXT, TABLE = (_loop(form) for form in (_json, _csv, _text, _table))

SEEDS = (
    Seed("rocm-smi", "loop.json", JSON.encode()),
    Seed("rocm-smi", "loop.csv", CSV.encode()),
    Seed("rocm-smi", "loop.txt", TEXT.encode()),
    Seed("rocm-smi", "concise.txt", TABLE.encode()),
    Seed("rocm-smi", "stamped.csv", STAMPED.encode(), frozenset(r.encode() for r in _ROWS)),
)
_NO_DATA = Refused(ReadError, "no events and no samples")

ODD = (
    Odd("rocm-smi: JSON out of a loop", {"s.json": JSON.encode()}, reads(samples=18)),
    Odd("rocm-smi: CSV out of a loop", {"s.csv": CSV.encode()}, reads(samples=18)),
    Odd("rocm-smi: text out of a loop", {"s.txt": TEXT.encode()}, reads(samples=18)),
    Odd("rocm-smi: tables out of a loop", {"s.txt": TABLE.encode()}, reads(samples=44)),
    Odd("rocm-smi: rows with times", {"s.csv": STAMPED.encode()}, reads(samples=12)),
    Odd("rocm-smi: text in UTF-16", {"s.txt": TEXT.encode("utf-16")}, reads(samples=18)),
    Odd("rocm-smi: tables in Latin-1", {"s.txt": TABLE.encode("latin-1")}, reads(samples=44)),
    Odd("rocm-smi: CSV with CRLF", {"s.csv": CSV.replace("\n", "\r\n").encode()},
        reads(samples=18)),
    Odd("rocm-smi: a warning in front", {"s.csv": (WARNING + CSV).encode()}, reads(samples=18)),
    Odd("rocm-smi: no times", {"s.json": _json(0).encode()}, _NO_DATA),
    Odd("rocm-smi: one time given", {"s.json": _json(0).encode()}, reads(samples=6), AT),
    Odd("rocm-smi: a loop without times", {"s.txt": _loop(_text, "").encode()},
        reads(samples=6, row_of_earlier_output=4), AT),
    Odd("rocm-smi: a loop without times whose period is known",
        {"s.txt": _loop(_text, "").encode()}, reads(samples=18), {**AT, "period_ms": 5000}),
    Odd("rocm-smi: JSON that breaks off", {"s.json": JSON[:-20].encode()},
        reads(samples=15, row_cut_short=1, tick_without_all_gpus=1)),
    Odd("rocm-smi: rows with times that break off", {"s.csv": STAMPED[:-6].encode()},
        reads(samples=10, row_cut_short=1, tick_without_all_gpus=1)),
    Odd("rocm-smi: a header above no rows", {"s.csv": f"device,{_POWER}\n".encode()},
        Refused(UnknownFormatError, "no format that is known here")),
    Odd("rocm-smi: a card too large",
        {"s.json": (JSON + json.dumps({"card99999999999": {_USE: "1"}})).encode()},
        reads(samples=18)),
)  # fmt: skip
