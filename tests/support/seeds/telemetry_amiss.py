"""Telemetry whose form is sound and whose clock or values are not."""

from __future__ import annotations

import re

from chopper_interop.errors import ReadError
from seeds import Odd, Reads, Refused, Seed, amd_smi, rocm_smi

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
_BACK = "clock-stepped-back"
_CLOCKS = (
    Odd(
        "nvidia-smi: the hour that comes twice, without zone",
        {"n.csv": _nvidia(*((f"2024/11/03 {at}.000", "300.00 W") for at in _AUTUMN))},
        Reads(samples=4, issues={_BACK: 2}),
    ),
    Odd(
        "nvidia-smi: the hour that comes twice, with the zone",
        {"n.csv": _nvidia(*((f"2024/11/03 {at}.000", "300.00 W") for at in _AUTUMN))},
        Reads(samples=4, issues={"hour-comes-twice-resolved": 4}),
        {"tz": "America/New_York"},
    ),
    Odd(
        "amd-smi: CSV whose clock steps back",
        {"m.csv": _amd((0, 0, "700"), (1, 0, "701"), (-499, 0, "702"), (-498, 0, "703"))},
        Reads(samples=4, issues={_BACK: 2}),
    ),
    Odd(
        "amd-smi: CSV of GPUs one behind the other",
        {"m.csv": _amd(*((at, gpu, "700") for gpu in (0, 1) for at in range(9)))},
        Reads(samples=18, issues={"tick-without-all-gpus": 16}),
    ),
    Odd(
        "rocm-smi: rows with times that step back",
        {
            "s.csv": "\n".join(
                ["timestamp,device,power_watts"]
                + [f"{T + at},card0,700.0" for at in (0, 5, -495)]
                + [""]
            ).encode()
        },
        Reads(samples=3, issues={_BACK: 1}),
    ),
    Odd(
        "CharLLM: a clock that steps back",
        {"gpu_power_0.csv": f"{T}.5,700.0\n{T + 1}.5,701.0\n{T - 500}.5,702.0\n".encode()},
        Reads(samples=3, issues={_BACK: 1}),
    ),
    Odd(
        "Zeus: power whose clock steps back",
        {"p.csv": f"time,gpu0\n{T}.5,700.0\n{T + 1}.5,701.0\n{T - 500}.5,702.0\n".encode()},
        Reads(samples=3, issues={_BACK: 1}),
    ),
)

_GARBLED = "value-garbled"
_WORDS = (
    *(
        Odd(
            f"amd-smi: {cell} among watts",
            {"m.csv": _amd((0, 0, "700"), (1, 0, cell), (2, 0, "702"))},
            Reads(samples=2, issues={code: 1}),
        )
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
    Odd(
        "amd-smi: a word under a name that is not known",
        {"m.csv": f"timestamp,gpu,socket_power,mood\n{T},0,700,GOOD7\n".encode()},
        Reads(samples=1, issues={"cell-not-a-number": 1}),
    ),
    Odd(
        "amd-smi: a decimal comma under a name that is not known",
        {"m.csv": f'timestamp,gpu,socket_power,mood\n{T},0,700,"100,5 W"\n'.encode()},
        Reads(samples=1, issues={_GARBLED: 1}),
    ),
    Odd(
        "nvidia-smi: words among watts",
        {
            "n.csv": _nvidia(
                ("2024/05/01 12:00:00.000", "300.00 W"),
                ("2024/05/01 12:00:01.000", '"300,00 W"'),
                ("2024/05/01 12:00:02.000", "Enabled"),
            )
        },
        Reads(samples=1, issues={_GARBLED: 1, "cell-not-a-number": 1}),
    ),
)

_BLOCK = "GPU: 0\n    POWER:\n        SOCKET_POWER: 700 W\n    CLOCK:\n        GFX_0:\n            CLK: 1"
_AT = {"at_ns": T * 1_000_000_000}
_CUTS = (
    Odd(
        "amd-smi: text of one output that ends within a number",
        {"m.txt": _BLOCK.encode()},
        Reads(samples=1, issues={"cell-cut-short": 1}),
        _AT,
    ),
    Odd(
        "amd-smi: text of one output whose last line lacks its end",
        {"m.txt": (_BLOCK + "00 MHz").encode()},
        Reads(samples=2),
        _AT,
    ),
    Odd(
        "amd-smi: a table of one output that ends within a number",
        {"m.txt": b"GPU  POWER  GPU_TEMP\n  0  700 W  4"},
        Reads(samples=1, issues={"cell-cut-short": 1}),
        _AT,
    ),
)

_IMPOSSIBLE = "value-impossible"
_BEYOND = (
    *(
        Odd(
            f"amd-smi: {key} of {cell}",
            {"m.csv": f"timestamp,gpu,{key}\n{T},0,{cell}\n".encode()},
            Reads(samples=1, issues={_IMPOSSIBLE: count} if count else {}),
        )
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
    Odd(
        "nvidia-smi: negative power",
        {"n.csv": _nvidia(("2024/05/01 12:00:00.000", "-300.00 W"))},
        Reads(samples=1, issues={_IMPOSSIBLE: 1}),
    ),
    Odd(
        "CharLLM: negative power",
        {"gpu_power_0.csv": f"{T}.5,-700.0\n{T + 1}.5,701.0\n".encode()},
        Reads(samples=2, issues={_IMPOSSIBLE: 1}),
    ),
    *(
        Odd(
            f"Zeus: a window of {elapsed} s and {energy} J",
            {
                "w.csv": (
                    "start_time,window_name,elapsed_time,gpu0_energy\n"
                    f"{T}.5,step,{elapsed},{energy}\n"
                ).encode()
            },
            Reads(samples=samples, issues={_IMPOSSIBLE: count}),
        )
        for elapsed, energy, samples, count in (
            ("0.0", "5.0", 2, 1),
            ("-1.0", "5.0", 3, 2),
            ("nan", "5.0", 1, 1),
            ("1.0", "-5.0", 3, 2),
        )
    ),
)

_US = "05/01/2024 12:00:00.000"
_FORMS = (
    Odd(
        "nvidia-smi: dates as in the United States",
        {"n.csv": _nvidia((_US, "300.00 W"), (_US, "301.00 W"))},
        Refused(ReadError, "that is not understood"),
    ),
    Odd(
        "nvidia-smi: one date as in the United States",
        {"n.csv": _nvidia(("2024/05/01 12:00:00.000", "300.00 W"), (_US, "301.00 W"))},
        Reads(samples=1, issues={"stamp-not-understood": 1}),
    ),
    Odd(
        "amd-smi: text with tabs",
        {"m.txt": amd_smi.TEXT.replace("    ", "\t").encode()},
        Reads(samples=30),
    ),
    Odd(
        "amd-smi: a table with tabs",
        {"m.txt": re.sub("  +", "\t", amd_smi.TABLE).encode()},
        Reads(samples=26),
    ),
    Odd(
        "rocm-smi: text with tabs",
        {"s.txt": re.sub("  +", "\t", rocm_smi.TEXT).encode()},
        Reads(samples=18),
    ),
    Odd(
        "rocm-smi: tables with tabs",
        {"s.txt": re.sub("  +", "\t", rocm_smi.TABLE).encode()},
        Reads(samples=44),
    ),
)

ODD = (*_FORMS, *_BEYOND, *_CUTS, *_CLOCKS, *_WORDS)
