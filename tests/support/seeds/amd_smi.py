"""amd-smi: every command and form, and what is known to go wrong with them."""

from __future__ import annotations

import json
from typing import Any

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Refused, Seed, reads

T = 1_786_553_852
AT = {"at_ns": 1_700_000_000_000_000_001}
WATCHING = "'CTRL' + 'C' to stop watching output:\n"
_HEAD = "timestamp,gpu,gfx_activity,vcn_activity,socket_power,hotspot,mem,total_energy_consumption"
_ROWS = [
    f'{T + tick},{gpu},97,"[1, 2]",{700 + 10 * gpu + tick},46,38,{1000 + tick}.5'
    for tick in range(3)
    for gpu in range(2)
]


def _watched(head: str, rows: list[str], line: str = "\r\n") -> str:
    ticks = (rows[at : at + 2] for at in range(0, len(rows), 2))
    return WATCHING + "".join(line.join([head, *tick, "", ""]) for tick in ticks)


def _row(tick: int, gpu: int, *, timed: bool = True) -> dict[str, Any]:
    stamp = {"timestamp": T + tick} if timed else {}
    power = {"socket_power": {"value": 700 + 10 * gpu + tick, "unit": "W"}}
    heat = {"hotspot": {"value": 46, "unit": "C"}, "mem": {"value": 38, "unit": "C"}}
    return {**stamp, "gpu": gpu, "power": power, "temperature": heat}


def _rows(*, timed: bool = True) -> list[dict[str, Any]]:
    return [_row(tick, gpu, timed=timed) for tick in range(3) for gpu in range(2)]


def _documents(indent: int | None = 4) -> str:
    rows = _rows()
    return WATCHING + "\n".join(json.dumps(rows[n : n + 2], indent=indent) for n in (0, 2, 4))


def _block(tick: int, gpu: int) -> str:
    return (
        f"GPU: {gpu}\n    TIMESTAMP: {T + tick}\n    USAGE:\n        VCN_ACTIVITY: [1 %, 2\n"
        f"            %, N/A]\n    POWER:\n        SOCKET_POWER: {700 + 10 * gpu + tick} W\n"
        "    TEMPERATURE:\n        HOTSPOT: 46 °C\n        MEM: 38 °C\n\n"
    )


CSV = _watched(_HEAD, _ROWS)
TEXT = WATCHING + "".join(_block(tick, gpu) for tick in range(3) for gpu in range(2))
_TABLE_HEAD = " TIMESTAMP  GPU  XCP  POWER   GPU_T   GFX%      VRAM_USAGE"
_TABLE = [
    f"{T + tick}    {gpu}    0  {700 + tick} W   46 °C   97 %    0.3/192.0 GB"
    for tick in range(3)
    for gpu in range(2)
]
TABLE = _watched(_TABLE_HEAD, _TABLE, "\n")
_LIST = [
    f"{n},0000:{n}c:00.0,00ff74a1-0000-1000-8000-00000000000{n},100{n},{n + 2}" for n in (0, 1)
]
LIST = "\r\n".join(["gpu,gpu_bdf,gpu_uuid,kfd_id,node_id", *_LIST, "", ""])
STATIC = json.dumps(
    {
        "gpu_data": [
            {
                "gpu": n,
                "asic": {"market_name": "AMD Instinct MI300X", "num_compute_units": 304},
                "limit": {"max_power": {"value": 750, "unit": "W"}},
                "clock": {
                    "sys": {"frequency_levels": {"Level 0": "132 MHz", "Level 1": "2100 MHz"}}
                },
            }
            for n in range(2)
        ]
    },
    indent=4,
)
XGMI = json.dumps(
    [
        {
            "gpu": n,
            "bdf": f"0000:{n}c:00.0",
            "link_metrics": {
                "links": [
                    {"gpu": m, "read": {"value": 5 + m, "unit": "KB"}, "write": "N/A"}
                    for m in range(2)
                ]
            },
        }
        for n in range(2)
    ],
    indent=4,
)
_PROCESS = {
    "process_info": {
        "name": "python3",
        "pid": 4242,
        "memory_usage": {"vram_mem": {"value": 5, "unit": "B"}},
    }
}
PROCESSES = "".join(
    f"timestamp,gpu,power_usage\r\n{T + n},0,700\r\n{T + n},1,710\r\n\r\n"
    "timestamp,gpu,name,pid,gtt_mem,vram_mem\r\n"
    f"{T + n},0,python3,42,5,6\r\n{T + n},1,python3,43,5,{n}\r\n\r\n"
    for n in range(3)
)
PROCESSES_JSON = json.dumps(
    [
        {"timestamp": T + n, "gpu": g, "power_usage": 700, "process_list": [_PROCESS]}
        for n in range(3)
        for g in range(2)
    ],
    indent=4,
)

SEEDS = (
    Seed("amd-smi", "processes.csv", PROCESSES.encode()),
    Seed("amd-smi", "processes.json", PROCESSES_JSON.encode()),
    Seed("amd-smi", "metric.csv", CSV.encode(), frozenset(r.encode() for r in _ROWS)),
    Seed("amd-smi", "metric.json", _documents().encode()),
    Seed("amd-smi", "lines.json", _documents(None).encode()),
    Seed("amd-smi-text", "metric.txt", TEXT.encode()),
    Seed("amd-smi-text", "monitor.txt", TABLE.encode(), frozenset(r.encode() for r in _TABLE)),
    Seed(
        "amd-smi-static", "xgmi.json", XGMI.encode(), options={"at_ns": 1_700_000_000_000_000_001}
    ),
)

_TIMED = json.dumps(_rows())
_AGAIN = json.dumps({"gpu_data": _rows(timed=False)})
_ONCE = "gpu,socket_power\r\n0,100\r\n1,101\r\n\r\n"
_NO_DATA = Refused(ReadError, "no events and no samples")

ODD = (
    Odd("amd-smi: CSV of a watch", {"m.csv": CSV.encode()}, reads(samples=42)),
    Odd("amd-smi: CSV in UTF-16", {"m.csv": CSV.encode("utf-16")}, reads(samples=42)),
    Odd("amd-smi: CSV with a mark of its order", {"m.csv": CSV.encode("utf-8-sig")},
        reads(samples=42)),
    Odd("amd-smi: CSV with LF", {"m.csv": CSV.replace("\r", "").encode()}, reads(samples=42)),
    Odd("amd-smi: CSV whose first header is lost",
        {"m.csv": ("\r\n".join(_ROWS[:2]) + "\r\n" + CSV).encode()},
        Refused(UnknownFormatError, "no format that is known here")),
    Odd("amd-smi: CSV that ends within a row", {"m.csv": CSV[: CSV.rindex(",46,")].encode()},
        reads(samples=35, row_cut_short=1, tick_without_all_gpus=1)),
    Odd("amd-smi: CSV with a GPU too large",
        {"m.csv": (CSV + f"{T},99999999999,1,1,1,1,1,1\r\n").encode()},
        reads(samples=42, row_without_gpu=1)),
    Odd("amd-smi: CSV with NUL bytes behind it", {"m.csv": CSV.encode() + bytes(100)},
        reads(samples=42, file_cut_short=1)),
    Odd("amd-smi: rows of CSV without times", {"m.csv": _ONCE.encode()}, _NO_DATA),
    Odd("amd-smi: CSV without rows", {"m.csv": b"timestamp,gpu,socket_power\r\n"}, _NO_DATA),
    Odd("amd-smi: --file that was appended to", {"m.csv": (_ONCE + _ONCE).encode()},
        reads(samples=2, row_of_earlier_output=2), AT),
    Odd("amd-smi: an error among the rows",
        {"m.csv": ("error,code\r\nParameter '-T' is invalid.,-2\r\n" + CSV).encode()},
        reads(samples=42, error_message=1)),
    Odd("amd-smi: an error alone as JSON",
        {"m.json": b'{"error": "AMDSMI has returned error \'-1002\'", "code": -1002}'},
        Refused(UnknownFormatError, "error")),
    Odd("amd-smi: the empty file of 7.1", {"m.json": b""},
        Refused(UnknownFormatError, "it is empty")),
    Odd("amd-smi: the first line of a watch alone", {"m.json": WATCHING.encode()},
        Refused(UnknownFormatError, "without values")),
    Odd("amd-smi: the combined document of 7.1 alone", {"m.json": (WATCHING + _AGAIN).encode()},
        reads(samples=6, row_of_earlier_output=4), AT),
    Odd("amd-smi: the combined document of 7.1 behind the list",
        {"m.json": (WATCHING + _TIMED + "\n" + _AGAIN).encode()},
        reads(samples=18, row_repeated=6)),
    Odd("amd-smi: documents one behind the other", {"m.json": _documents().encode()},
        reads(samples=18)),
    Odd("amd-smi: JSON that breaks off", {"m.json": _documents()[:-40].encode()},
        reads(samples=15, row_cut_short=1, tick_without_all_gpus=1)),
    Odd("amd-smi: text of a watch", {"m.txt": TEXT.encode()}, reads(samples=30)),
    Odd("amd-smi: text in UTF-16", {"m.txt": TEXT.encode("utf-16")}, reads(samples=30)),
    Odd("amd-smi: text in Latin-1", {"m.txt": TEXT.encode("latin-1")}, reads(samples=30)),
    Odd("amd-smi: text with CRLF", {"m.txt": TEXT.replace("\n", "\r\n").encode()},
        reads(samples=30)),
    Odd("amd-smi: text that ends within a number", {"m.txt": TEXT[: TEXT.rindex("2 W")].encode()},
        reads(samples=27, cell_cut_short=1)),
    Odd("amd-smi: text that ends within a list", {"m.txt": TEXT[: TEXT.rindex("%, N/A]")].encode()},
        reads(samples=25, cell_cut_short=1)),
    Odd("amd-smi: the table of a watch", {"m.txt": TABLE.encode()}, reads(samples=26)),
    Odd("amd-smi: the table in Latin-1", {"m.txt": TABLE.encode("latin-1")}, reads(samples=26)),
    Odd("amd-smi: the table with a cell too many",
        {"m.txt": (TABLE + f"{T + 3} 0 0 1 W 2 °C 3 % 4 % 0.3/192.0 GB\n").encode()},
        reads(samples=26, row_cut_short=1)),
    Odd("amd-smi: values that stand for none",
        {
            "m.csv": (
                f"timestamp,gpu,socket_power,hotspot,gfx_0_clk\n{T},0,65535,-1,4294967295\n"
                f"{T + 1},0,18446744073709551615,46,1900\n").encode()},
        reads(samples=2, value_not_available=4)),
    Odd("amd-smi: numbers beyond all types",
        {"m.csv": f"timestamp,gpu,socket_power,hotspot\n{T},0,1e999,46\n{T},1,nan,46\n".encode()},
        reads(samples=2, value_garbled=1, value_not_available=1)),
)  # fmt: skip
