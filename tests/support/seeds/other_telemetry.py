"""Telemetry of nvidia-smi, dcgmi, Zeus and CharLLM-PPT: generators, small inputs and odd ones."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from chopper_interop.errors import ReadError, UnknownFormatError, UsageError
from seeds import Odd, Refused, Seed, reads

START = datetime(2024, 5, 1, 12, 34, 56, 789_000, tzinfo=timezone.utc)
START_NS = 1_714_566_896_789_000_000
QUERY = "timestamp, index, name, pci.bus_id, utilization.gpu [%], power.draw [W], clocks.current.sm [MHz], memory.used [MiB]"
APPS = "pid, process_name, used_gpu_memory [MiB]\n4711, python3, 8000 MiB\n"
HEADLESS = b"2024/05/01 12:34:56.789, 0, 53.60 W\n2024/05/01 12:34:57.790, 0, 54.10 W\n"


def query_csv(ticks: int, gpus: int, *, units: bool = True, end: str = "\n") -> bytes:
    """``nvidia-smi --query-gpu=… --format=csv -lms 100``."""
    lines = [QUERY]
    for tick in range(ticks):
        for gpu in range(gpus):
            at = START + timedelta(milliseconds=100 * tick + 2 * gpu)
            stamp = at.strftime("%Y/%m/%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"
            w, p, m, b = (" W", " %", " MHz", " MiB") if units else ("",) * 4
            lines.append(
                f"{stamp}, {gpu}, NVIDIA H100 80GB HBM3, 00000000:{0x0F + gpu:02X}:00.0, "
                f"{50 + tick}{p}, {300 + 10 * tick + gpu}.50{w}, {1410 + 15 * tick}{m}, {1000 + gpu}{b}"
            )
    return (end.join(lines) + end).encode()


def dmon(ticks: int, gpus: int, *, dated: bool = True, again: int = 4) -> bytes:
    """``nvidia-smi dmon -s pucm -o DT``: both lines of the heading come again every few rows."""
    names = "gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb"
    units = "Idx      W      C      C      %      %    MHz    MHz     MB"
    if dated:
        names, units = "Date       Time        " + names, "YYYYMMDD   HH:MM:SS    " + units
    lines = []
    for row in range(ticks * gpus):
        if row % again == 0:
            lines += [f"#{names} ", f"#{units} "]
        tick, gpu = divmod(row, gpus)
        at = datetime(2024, 5, 1, 23, 59, 58, tzinfo=timezone.utc) + timedelta(seconds=tick)
        stamp = at.strftime(" %Y%m%d   %H:%M:%S  ") if dated else ""
        lines.append(
            f"{stamp}    {gpu}    {200 + tick}     45      -     {90 + gpu}     50   2619   1980  70000 "
        )
    return ("\n".join(lines) + "\n").encode()


def dcgmi_dmon(ticks: int, gpus: int, *, again: int = 6, stamps: bool = False) -> bytes:
    """``dcgmi dmon -e 155,156,100,140,1002,1009``: units only below some names."""
    names = ["POWER", "TOTEC", "SMCLK", "MMTMP", "SMACT", "PCITX"]
    units = ["W", "mJ", "", "C", "", ""]
    lines = []
    for row in range(ticks * gpus):
        if row % again == 0:
            lines.append(f"{'#Entity':<17}" + "".join(f"{n:<13}" for n in names))
            lines.append(f"{'ID':<17}" + "".join(f" {u:<12}" for u in units))
        tick, gpu = divmod(row, gpus)
        cells = [f"{400 + tick}.125", str(10**9 + 400_000 * tick), "1980", "N/A" if gpu else "55"]
        cells += ["0.998", str(2_000_000 + tick)]
        lines.append(f"{f'GPU {gpu}':<17}" + "".join(f"{c:<13}" for c in cells))
    if stamps:
        lines = [f"{1714566896 + n // gpus}.125 {line}" for n, line in enumerate(lines)]
    return ("\n".join(lines) + "\n").encode()


def smi_log(logs: int, gpus: int) -> bytes:
    """``nvidia-smi -q -d POWER,CLOCK,UTILIZATION,TEMPERATURE,MEMORY,PERFORMANCE -l 5``."""
    text = ""
    for log in range(logs):
        at = datetime(2024, 5, 1, 12, 34, 56, tzinfo=timezone.utc) + timedelta(seconds=5 * log)
        text += (
            "\n==============NVSMI LOG==============\n\n"
            f"Timestamp                                 : {at.strftime('%a %b %e %H:%M:%S %Y')}\n"
            "Driver Version                            : 550.54.15\n"
            f"Attached GPUs                             : {gpus}\n"
        )
        for gpu in range(gpus):
            text += (
                f"GPU 00000000:{0x0F + gpu:02X}:00.0\n"
                "    Performance State                     : P0\n"
                "    Clocks Event Reasons\n"
                "        Idle                              : Not Active\n"
                "        SW Power Cap                      : Active\n"
                "        HW Slowdown                       : Not Active\n"
                "            HW Thermal Slowdown           : Not Active\n"
                "    FB Memory Usage\n"
                "        Total                             : 81559 MiB\n"
                f"        Used                              : {1000 + log} MiB\n"
                "    Utilization\n"
                f"        Gpu                               : {90 + gpu} %\n"
                "        Memory                            : 40 %\n"
                "    Temperature\n"
                "        GPU Current Temp                  : 61 C\n"
                "        Memory Current Temp               : N/A\n"
                "    GPU Power Readings\n"
                f"        Power Draw                        : {300 + log}.25 W\n"
                "        Current Power Limit               : 700.00 W\n"
                "    Clocks\n"
                "        Graphics                          : 1980 MHz\n"
                "        SM                                : 1975 MHz\n"
                "        Memory                            : 2619 MHz\n"
                "    Max Clocks\n"
                "        SM                                : 1980 MHz\n"
            )
    return text.encode()


def smi_xml(documents: int, gpus: int) -> bytes:
    """``nvidia-smi -q -x -l 5``."""
    text = ""
    for number in range(documents):
        at = datetime(2024, 5, 1, 12, 34, 56, tzinfo=timezone.utc) + timedelta(seconds=5 * number)
        text += (
            '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
            f"<nvidia_smi_log>\n\t<timestamp>{at.strftime('%a %b %e %H:%M:%S %Y')}</timestamp>\n"
            f"\t<driver_version>550.54.15</driver_version>\n\t<attached_gpus>{gpus}</attached_gpus>\n"
        )
        for gpu in range(gpus):
            text += (
                f'\t<gpu id="00000000:{0x0F + gpu:02X}:00.0">\n'
                "\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>\n"
                f"\t\t<uuid>GPU-{gpu:08x}-1111-2222-3333-444444444444</uuid>\n"
                "\t\t<performance_state>P0</performance_state>\n"
                "\t\t<clocks_event_reasons>\n"
                "\t\t\t<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>\n"
                "\t\t</clocks_event_reasons>\n"
                f"\t\t<fb_memory_usage><total>81559 MiB</total><used>{1000 + number} MiB</used>"
                "</fb_memory_usage>\n"
                f"\t\t<utilization><gpu_util>{90 + gpu} %</gpu_util><memory_util>40 %</memory_util>"
                "</utilization>\n"
                "\t\t<temperature><gpu_temp>61 C</gpu_temp></temperature>\n"
                f"\t\t<gpu_power_readings><power_draw>{300 + number}.25 W</power_draw>"
                "</gpu_power_readings>\n"
                "\t\t<clocks><graphics_clock>1980 MHz</graphics_clock><sm_clock>1975 MHz</sm_clock>"
                "<mem_clock>2619 MHz</mem_clock></clocks>\n"
                "\t</gpu>\n"
            )
        text += "</nvidia_smi_log>\n"
    return text.encode()


def zeus_windows(windows: int, gpus: int, *, start: str = "13585625.187147852") -> bytes:
    """A log of ZeusMonitor."""
    seconds, _, fraction = start.partition(".")
    lines = [
        "start_time,window_name,elapsed_time," + ",".join(f"gpu{g}_energy" for g in range(gpus))
    ]
    for window in range(windows):
        energies = ",".join(f"{1000 + 10 * window + g}.5" for g in range(gpus))
        lines.append(f"{int(seconds) + 2 * window}.{fraction},step,1.5,{energies}")
    return ("\n".join(lines) + "\n").encode()


def zeus_power(rows: int) -> bytes:
    """A record of power of two GPUs."""
    lines = ["time,gpu0,gpu1"]
    lines += [f"17145668{96 + n // 10}.{n % 10}12345,{100 + n}.5,{200 + n}.25" for n in range(rows)]
    return ("\n".join(lines) + "\n").encode()


def charllm_file(values: list[object], start: int = 1_714_566_896) -> bytes:
    """One file: a row every 50 ms."""
    lines = [f"{start + n // 20}.{(n % 20) * 50:03d}1234,{value}" for n, value in enumerate(values)]
    return ("\n".join(lines) + "\n").encode()


def charllm_folder(ranks: int, rows: int) -> dict[str, bytes]:
    """Files of a run on NVIDIA GPUs: counters that wrap, an error, metrics of the node."""
    files: dict[str, bytes] = {}
    for rank in range(ranks):
        wrapping = [(2**32 - 3000 + 1000 * n) % 2**32 for n in range(rows)]
        files |= {
            f"gpu_power_{rank}.csv": charllm_file([300.5 + n + rank for n in range(rows)]),
            f"mem_power_{rank}.csv": charllm_file([-1] * rows),
            f"gpu_thermal_{rank}.csv": charllm_file([60 + rank] * rows),
            f"gpu_util_{rank}.csv": charllm_file([99] * (rows - 1) + [-1]),
            f"mem_util_{rank}.csv": charllm_file([40] * rows),
            f"sm_clock_{rank}.csv": charllm_file([1980 - 15 * n for n in range(rows)]),
            f"pcie_tx_throughput_{rank}.csv": charllm_file([1000] * rows),
            f"pcie_tx_bytes_{rank}.csv": charllm_file([f"{v}.0" for v in wrapping]),
            f"nvlink_rx_throughput_{rank}.csv": charllm_file(wrapping),
        }
    cpu = "".join(f"1714566896.0{t}5,{v}\n" for t in range(rows) for v in (1, 2.5, 3))
    files |= {
        "system_cpu_usage_rank_0_id_7.csv": cpu.encode(),
        "system_memory_used_0.csv": charllm_file([2e12] * rows),
        "system_ib_rx_bytes_rank_0_id_ib2.csv": charllm_file(
            [10**15 + 4096 * n for n in range(rows)]
        ),
    }
    return files


def _rows(data: bytes) -> frozenset[bytes]:
    return frozenset(line for line in data.split(b"\n") if line[:1].isdigit())


_CSV, _WINDOWS, _POWER = query_csv(4, 2), zeus_windows(4, 2), zeus_power(12)
_CHARLLM = charllm_file([300.5, 310.25, -1, 305.0])
SEEDS = (
    Seed("nvidia-smi", "smi.csv", _CSV, _rows(_CSV)),
    Seed("nvidia-smi", "nounits.csv", query_csv(3, 2, units=False), options={"tz": "+02:00"}),
    Seed("nvidia-smi", "dmon.txt", dmon(4, 2)),
    Seed("nvidia-smi", "log.txt", smi_log(2, 2)),
    Seed("nvidia-smi", "smi.xml", smi_xml(2, 2)),
    Seed("dcgmi", "dcgmi.txt", dcgmi_dmon(4, 2), options={"at_ns": START_NS, "period_ms": 100}),
    Seed("zeus", "windows.csv", _WINDOWS, _rows(_WINDOWS)),
    Seed("zeus", "power.csv", _POWER, _rows(_POWER)),
    Seed("charllm", "gpu_power_3.csv", _CHARLLM, _rows(_CHARLLM)),
)

_LINES = _CSV.split(b"\n")
_ONE = query_csv(1, 1)
ODD = (
    Odd("nvidia-smi: cut within a row", {"x.csv": _CSV[:-7]}, reads(samples=31, cell_cut_short=1)),
    Odd("nvidia-smi: cut within a row's middle", {"x.csv": _CSV[:-40]},
        reads(samples=28, row_cut_short=1)),
    Odd("nvidia-smi: one row without line feed is whole", {"x.csv": _ONE[:-1]}, reads(samples=4)),
    Odd("nvidia-smi: header comes again", {"x.csv": _CSV + _CSV}, reads(samples=64)),
    Odd("nvidia-smi: header lost", {"x.csv": b"\n".join(_LINES[1:])},
        Refused(ReadError, "it has no header")),
    Odd("nvidia-smi: header given by option", {"x.csv": b"\n".join(_LINES[1:])}, reads(samples=32),
        {"columns": QUERY}),
    Odd("nvidia-smi: rows in front of the header", {"x.csv": b"\n".join([_LINES[1], *_LINES])},
        reads(samples=32, row_without_header=1)),
    Odd("nvidia-smi: CRLF", {"x.csv": query_csv(4, 2, end="\r\n")}, reads(samples=32)),
    Odd("nvidia-smi: UTF-16", {"x.csv": _CSV.decode().encode("utf-16")}, reads(samples=32)),
    Odd("nvidia-smi: byte order mark", {"x.csv": b"\xef\xbb\xbf" + _CSV}, reads(samples=32)),
    Odd("nvidia-smi: Latin-1", {"x.csv": _CSV.replace(b"NVIDIA H100", b"NVIDIA \xb0")},
        reads(samples=32)),
    Odd("nvidia-smi: header alone", {"x.csv": _LINES[0] + b"\n"},
        Refused(ReadError, "The file holds no rows")),
    Odd("nvidia-smi: nothing available",
        {"x.csv": _ONE.replace(b"300.50 W", b"[N/A]").replace(b"1410 MHz", b"[Not Supported]")},
        reads(samples=2)),
    Odd("nvidia-smi: errors in cells",
        {"x.csv": _ONE.replace(b"300.50 W", b"[Unknown Error]")
            .replace(b"1410 MHz", b"[GPU is lost]")}, reads(samples=2, value_in_error=2)),
    Odd("nvidia-smi: a unit that is not of power",
        {"x.csv": _ONE.replace(b"300.50 W", b"300.50 furlongs")}, reads(samples=3, unit_unknown=1)),
    Odd("nvidia-smi: a number beyond doubles", {"x.csv": _ONE.replace(b"300.50", b"1e999")},
        reads(samples=3, value_garbled=1)),
    Odd("nvidia-smi: NUL bytes in front of a row",
        {"x.csv": _LINES[0] + b"\n\0\0\0\0" + _LINES[1] + b"\n" + _LINES[2] + b"\n"},
        reads(samples=4, stamp_not_understood=1)),
    Odd("nvidia-smi: a column twice",
        {"x.csv": _ONE.replace(b"power.draw [W]", b"clocks.current.sm [MHz]", 1)},
        reads(samples=2, column_twice=1, unit_unknown=1)),
    Odd("nvidia-smi: foreign columns keep their names",
        {"x.csv": _ONE.replace(b"power.draw [W]", b"warp.factor", 1)}, reads(samples=4)),
    Odd("nvidia-smi: an impossible date", {"x.csv": _CSV.replace(b"2024/05/01", b"2024/13/41", 1)},
        reads(samples=28, stamp_not_understood=1)),
    Odd("nvidia-smi: no such zone", {"x.csv": _CSV}, Refused(UsageError, "there is no such zone"),
        {"tz": "Mars/Olympus"}),
    Odd("nvidia-smi: processes behind", {"x.csv": _CSV + APPS.encode()},
        reads(samples=32, process_row=1)),
    Odd("nvidia-smi: processes alone", {"x.csv": APPS.encode()},
        Refused(UnknownFormatError, "it is about processes")),
    Odd("nvidia-smi: without header, times alone are given", {"x.csv": HEADLESS},
        Refused(ReadError, "it has no header")),
    Odd("nvidia-smi: the table for people",
        {"x.txt": b"Wed May  1 12:34:56 2024\n+-----------------------------------------+\n| NVIDIA-SMI 535.161.07  Driver Version: 535.161.07 |\n"},
        Refused(UnknownFormatError, "it holds no samples in time")),
    Odd("dmon: cut within a row", {"x.txt": dmon(2, 1)[:-20]}, reads(samples=7, row_cut_short=1)),
    Odd("dmon: heading lost", {"x.txt": b"\n".join(dmon(3, 2).split(b"\n")[2:])},
        reads(samples=14, row_without_header=4)),
    Odd("dmon: no times", {"x.txt": dmon(2, 1, dated=False)},
        Refused(ReadError, "Rows without a time were left out")),
    Odd("dmon: no times but the last's", {"x.txt": dmon(2, 1, dated=False)},
        reads(samples=7, row_of_earlier_output=1), {"at_ns": START_NS}),
    Odd("pmon",
        {"x.txt": b"# gpu         pid   type     sm    mem    enc    dec    command\n# Idx           #    C/G      %      %      %      %    name\n    0       4711     C     90     50      -      -    python3\n"},
        Refused(UnknownFormatError, "it is about processes")),
    Odd("nvidia-smi -q: cut within a GPU", {"x.txt": smi_log(1, 1).rpartition(b"80 MHz")[0]},
        reads(samples=15, cell_cut_short=1)),
    Odd("nvidia-smi -q -x: cut within a GPU", {"x.xml": smi_xml(2, 2)[:-300]},
        reads(samples=33, row_cut_short=1)),
    Odd("dcgmi: no times", {"x.txt": dcgmi_dmon(2, 1)},
        Refused(ReadError, "Rows without a time were left out")),
    Odd("dcgmi: cut within a row", {"x.txt": dcgmi_dmon(2, 1)[:-40]},
        reads(samples=6, row_cut_short=1), {"at_ns": START_NS, "period_ms": 100}),
    Odd("dcgmi: a period of nothing", {"x.txt": dcgmi_dmon(2, 1)},
        Refused(UsageError, "that is no period"), {"at_ns": START_NS, "period_ms": 0}),
    Odd("Zeus: times not of one clock", {"x.csv": _WINDOWS + b"1714566896.5,step,1.5,1.0,2.0\n"},
        reads(samples=36, row_on_other_clock=1)),
    Odd("Zeus: a comma in a window's name", {"x.csv": _WINDOWS.replace(b"step", b"fwd,bwd", 1)},
        reads(samples=36)),
    Odd("Zeus: cut within a row", {"x.csv": _WINDOWS[:-8]}, reads(samples=27, row_cut_short=1)),
    Odd("Zeus: cut within the last cell", {"x.csv": _WINDOWS[:-3]},
        reads(samples=32, cell_cut_short=1)),
    Odd("Zeus: a time that is none", {"x.csv": _WINDOWS.replace(b"13585625", b"soon", 1)},
        reads(samples=27, row_without_time=1)),
    Odd("two columns of numbers under any name", {"loss.csv": _CHARLLM},
        Refused(ReadError, "none that CharLLM-PPT gives")),
    Odd("CharLLM: such a file next to its own",
        {"a/gpu_power_0.csv": _CHARLLM, "a/loss.csv": _CHARLLM}, reads(samples=3, file_name_unknown=4)),
    Odd("CharLLM: cut within a row", {"gpu_power_0.csv": _CHARLLM[:-2]},
        reads(samples=2, row_perhaps_cut=1)),
    Odd("CharLLM: overflow", {"gpu_power_0.csv": _CHARLLM.replace(b"310.25", b"1e400")},
        reads(samples=2, row_cut_short=1)),
    Odd("CharLLM: errors alone", {"gpu_power_0.csv": charllm_file([-1, -1])},
        Refused(ReadError, "no events and no samples")),
)  # fmt: skip
