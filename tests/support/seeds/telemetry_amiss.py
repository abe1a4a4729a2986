"""Telemetry whose form is sound and whose clock or values are not."""

from __future__ import annotations

import re

from chopper_interop.errors import ReadError
from seeds import Odd, Refused, Seed, amd_smi, reads, rocm_smi

T = 1_786_553_852
SEEDS: tuple[Seed, ...] = ()


def _amd(*rows: tuple[int, int, str]) -> bytes:
    """amd-smi's CSV: seconds, GPU and power of rows."""
    lines = [f"{T + at},{gpu},{power}" for at, gpu, power in rows]
    return "\r\n".join(["timestamp,gpu,socket_power", *lines, ""]).encode()


def _nvidia(*rows: tuple[str, str]) -> bytes:
    """nvidia-smi's CSV of one GPU: times and power of rows."""
    lines = [f"{at}, 0, {power}" for at, power in rows]
    return "\n".join(["timestamp, index, power.draw [W]", *lines, ""]).encode()


_AUTUMN = ("01:58:00", "01:59:00", "01:00:00", "01:01:00")
_CLOCKS = (
    Odd("nvidia-smi: the hour that comes twice, without zone",
        {"n.csv": _nvidia(*((f"2024/11/03 {at}.000", "300.00 W") for at in _AUTUMN))},
        reads(samples=4, clock_stepped_back=2)),
    Odd("nvidia-smi: the hour that comes twice, with the zone",
        {"n.csv": _nvidia(*((f"2024/11/03 {at}.000", "300.00 W") for at in _AUTUMN))},
        reads(samples=4, hour_comes_twice_resolved=4), {"tz": "America/New_York"}),
    Odd("amd-smi: CSV whose clock steps back",
        {"m.csv": _amd((0, 0, "700"), (1, 0, "701"), (-499, 0, "702"), (-498, 0, "703"))},
        reads(samples=4, clock_stepped_back=2)),
    Odd("amd-smi: CSV of GPUs one behind the other",
        {"m.csv": _amd(*((at, gpu, "700") for gpu in (0, 1) for at in range(9)))},
        reads(samples=18, tick_without_all_gpus=16)),
    Odd("rocm-smi: rows with times that step back",
        {
            "s.csv": "\n".join(["timestamp,device,power_watts",
                *(f"{T + at},card0,700.0" for at in (0, 5, -495)), ""]).encode()},
        reads(samples=3, clock_stepped_back=1)),
    Odd("CharLLM: a clock that steps back",
        {"gpu_power_0.csv": f"{T}.5,700.0\n{T + 1}.5,701.0\n{T - 500}.5,702.0\n".encode()},
        reads(samples=3, clock_stepped_back=1)),
    Odd("Zeus: power whose clock steps back",
        {"p.csv": f"time,gpu0\n{T}.5,700.0\n{T + 1}.5,701.0\n{T - 500}.5,702.0\n".encode()},
        reads(samples=3, clock_stepped_back=1)),
)  # fmt: skip

_GARBLED = "value-garbled"
_WORDS = (
    *(
        Odd(f"amd-smi: {cell} among watts",
            {"m.csv": _amd((0, 0, "700"), (1, 0, cell), (2, 0, "702"))},
            reads(samples=2, **{code: 1}))
        for cell, code in (
            ('"100,5 W"', _GARBLED),
            ("1OO W", _GARBLED),
            ("abc", _GARBLED),
            ("1e400", _GARBLED),
            ("nan W", "value-not-available"),
            ("ENABLED", "cell-not-a-number"),
            ("AMDSMI_STATUS_NOT_SUPPORTED", "cell-not-a-number"),
        )
    ),
    Odd("amd-smi: a word under a name that is not known",
        {"m.csv": f"timestamp,gpu,socket_power,mood\n{T},0,700,GOOD7\n".encode()},
        reads(samples=1, cell_not_a_number=1)),
    Odd("amd-smi: a decimal comma under a name that is not known",
        {"m.csv": f'timestamp,gpu,socket_power,mood\n{T},0,700,"100,5 W"\n'.encode()},
        reads(samples=1, value_garbled=1)),
    Odd("nvidia-smi: words among watts",
        {
            "n.csv": _nvidia(("2024/05/01 12:00:00.000", "300.00 W"),
                ("2024/05/01 12:00:01.000", '"300,00 W"'), ("2024/05/01 12:00:02.000", "Enabled"))},
        reads(samples=1, value_garbled=1, cell_not_a_number=1)),
)  # fmt: skip

_BLOCK = "GPU: 0\n    POWER:\n        SOCKET_POWER: 700 W\n    CLOCK:\n        GFX_0:\n            CLK: 1"
_AT = {"at_ns": T * 1_000_000_000}
_CUTS = (
    Odd("amd-smi: text of one output that ends within a number", {"m.txt": _BLOCK.encode()},
        reads(samples=1, cell_cut_short=1), _AT),
    Odd("amd-smi: text of one output whose last line lacks its end",
        {"m.txt": (_BLOCK + "00 MHz").encode()}, reads(samples=2), _AT),
    Odd("amd-smi: a table of one output that ends within a number",
        {"m.txt": b"GPU  POWER  GPU_TEMP\n  0  700 W  4"}, reads(samples=1, cell_cut_short=1), _AT),
)  # fmt: skip

_BEYOND = (
    *(
        Odd(f"amd-smi: {key} of {cell}", {"m.csv": f"timestamp,gpu,{key}\n{T},0,{cell}\n".encode()},
            reads(samples=1, **({"value-impossible": count} if count else {})))
        for key, cell, count in (
            ("socket_power", "-5", 1),
            ("socket_power", "-5 W", 1),
            ("socket_power", "100001", 1),
            ("socket_power", "100000", 0),
            ("gfx_0_clk", "-132", 1),
            ("gfx_0_clk", "100001 MHz", 1),
            ("gfx_activity", "200", 1),
            ("gfx_activity", "101", 0),
            ("hotspot", "-20", 0),
            ("used_vram", "-2", 1),
            ("total_energy_consumption", "-2.5", 1),
        )
    ),
    Odd("nvidia-smi: negative power", {"n.csv": _nvidia(("2024/05/01 12:00:00.000", "-300.00 W"))},
        reads(samples=1, value_impossible=1)),
    Odd("CharLLM: negative power", {"gpu_power_0.csv": f"{T}.5,-700.0\n{T + 1}.5,701.0\n".encode()},
        reads(samples=2, value_impossible=1)),
    *(
        Odd(f"Zeus: a window of {elapsed} s and {energy} J",
            {
                "w.csv": (
                    "start_time,window_name,elapsed_time,gpu0_energy\n"
                    f"{T}.5,step,{elapsed},{energy}\n").encode()},
            reads(samples=samples, value_impossible=count))
        for elapsed, energy, samples, count in (
            ("0.0", "5.0", 2, 1),
            ("-1.0", "5.0", 3, 2),
            ("nan", "5.0", 1, 1),
            ("1.0", "-5.0", 3, 2),
        )
    ),
)  # fmt: skip

_US = "05/01/2024 12:00:00.000"
_FORMS = (
    Odd("nvidia-smi: dates as in the United States",
        {"n.csv": _nvidia((_US, "300.00 W"), (_US, "301.00 W"))},
        Refused(ReadError, "that is not understood")),
    Odd("nvidia-smi: one date as in the United States",
        {"n.csv": _nvidia(("2024/05/01 12:00:00.000", "300.00 W"), (_US, "301.00 W"))},
        reads(samples=1, stamp_not_understood=1)),
    Odd("amd-smi: text with tabs", {"m.txt": amd_smi.TEXT.replace("    ", "\t").encode()},
        reads(samples=30)),
    Odd("amd-smi: a table with tabs", {"m.txt": re.sub("  +", "\t", amd_smi.TABLE).encode()},
        reads(samples=26)),
    Odd("rocm-smi: text with tabs", {"s.txt": re.sub("  +", "\t", rocm_smi.TEXT).encode()},
        reads(samples=18)),
    Odd("rocm-smi: tables with tabs", {"s.txt": re.sub("  +", "\t", rocm_smi.TABLE).encode()},
        reads(samples=44)),
)  # fmt: skip

ODD = (*_FORMS, *_BEYOND, *_CUTS, *_CLOCKS, *_WORDS)
