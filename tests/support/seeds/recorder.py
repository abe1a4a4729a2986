"""The recorder's CSV files, three clocks a row."""

from chopper_interop.errors import UnknownFormatError
from seeds import Odd, Refused, Seed, reads

HEADER = (
    "realtime_ns,monotonic_ns,boottime_ns,gpu,current_socket_power,current_gfxclk,"
    "temperature_hotspot,energy_accumulator,system_clock_counter"
)
REAL, BOOT = 1_768_478_399_923_528_291, 1_234_566_800_071_650


def row(tick: int, gpu: int) -> str:
    """A row of ten a second for each of two GPUs; no two have the same values."""
    at = 100_000_000 * tick + 50_000 * gpu
    clocks = f"{REAL + at},{BOOT + at},{BOOT + at + 130}"
    values = f"{590 + tick},{1700 + 5 * gpu},71,{38740027295 + 3_900_000 * tick}"
    return f"{clocks},{gpu},{values},{BOOT + at + 1000}"


ROWS = [row(tick, gpu) for tick in range(8) for gpu in range(2)]


def text(*rows: str) -> bytes:
    return "".join(f"{line}\n" for line in (HEADER, *rows)).encode()


DESCRIPTION = (
    b'{"chopper_recording": 1, "tool": "chopper-record 0.1.0", "host": "node", "gpus": ['
    b'{"gpu": 0, "index": 0, "vendor": "amd", "name": "Instinct MI300X", "pci": "0000:05:00.0", '
    b'"max_mhz": 2100, "power_limit_w": 750.0}], "samplers": [{"library": "amdsmi 26.1.0", '
    b'"rate_hz": 100.0, "achieved_hz": 99.8, "ticks_left_out": 3}], "problems": []}'
)
SEEDS = (
    Seed("recorder", "recorder.csv", text(*ROWS), frozenset(r.encode() for r in ROWS)),
    Seed("recording", "recording.json", DESCRIPTION, others={"recorder.csv": text(*ROWS)}),
)
ODD = (
    Odd("recorder: cut within a row", {"r.csv": text(*ROWS)[:-60]},
        reads(samples=60, row_cut_short=1)),
    Odd("recorder: a quote that is not closed", {"r.csv": text(*ROWS).replace(b",71,", b',",', 1)},
        reads(samples=63)),
    Odd("recorder: header again", {"r.csv": text(*ROWS[:8], HEADER, *ROWS[8:])}, reads(samples=64)),
    Odd("recorder: UTF-16 and CRLF",
        {"r.csv": text(*ROWS).decode().replace("\n", "\r\n").encode("utf-16")}, reads(samples=64)),
    Odd("recorder: no header", {"r.csv": "\n".join(ROWS).encode()},
        Refused(UnknownFormatError, "no format that is known here")),
)  # fmt: skip
