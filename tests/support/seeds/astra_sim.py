"""ASTRA-sim's logs of simulations."""

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Refused, Seed, reads

HEAD = "[2026-11-21 23:26:04.538] [workload] [debug] "
RING = "[2026-11-21 23:26:04.517] [system::topology::RingTopology] [info] ring of node 0, id: 0\n"
NAMES = {0: "aten::mm", 1: "hipLaunchKernel", 2: "Cijk_Ailk", 3: "ncclDevKernel_Generic"}
TYPES = {0: 4, 1: 4, 2: 4, 3: 7}


def line(event: str, rank: int, tick: int, node: int, name: str = "", kind: int = -1) -> str:
    """Line of a log of the present form."""
    name, kind = name or NAMES[node], TYPES[node] if kind < 0 else kind
    return (
        f"{HEAD}{event},sys->id={rank}, tick={tick}, node->id={node}, "
        f"node->name={name}, node->type={kind}\n"
    )


def run(start: int = 0, ranks: int = 2) -> list[str]:
    """A run of four nodes on each rank, one after the other, 10 ns each."""
    return [
        line(event, rank, start + 10 * (node + (event == "callback")), node)
        for node in range(4)
        for event in ("issue", "callback")
        for rank in range(ranks)
    ]


END = "".join(
    f"{HEAD.replace('debug', 'info')}sys[{rank}] finished, 40 cycles, exposed communication 9\n"
    for rank in range(2)
)
LINES = run()
SOUND = "".join([RING, *LINES, END]).encode()
PLAIN = (
    "".join(
        text.replace(HEAD, "").replace(", ", ",").replace("node->type", "node->node_type")
        for text in LINES
    ).encode()
    + b"sys[0] finished, 40 cycles\nsys[1] finished, 40 cycles\n"
)

SEEDS = [
    Seed(
        "astra-sim",
        "log.log",
        SOUND,
        frozenset(text.strip().encode() for text in LINES if "issue," in text),
    ),
    Seed(
        "astra-sim",
        "out.txt",
        PLAIN,
        frozenset(text for text in PLAIN.splitlines() if text.startswith(b"issue,")),
    ),
]


def _log(*lines: str) -> dict[str, bytes]:
    return {"log.log": "".join([RING, *lines, END]).encode()}


_ONE = [line("issue", 0, 5, 2), line("callback", 0, 9, 2)]

ODD = [
    Odd("astra-sim: nothing but its beginning", _log(), Refused(ReadError, "trace-enabled")),
    Odd("astra-sim: nothing but callbacks", _log(*_ONE[1:]), Refused(ReadError, "trace-enabled")),
    Odd("astra-sim: rings of a printed log alone",
        {"stdout.txt": b"ring of node 0, id: 0 dimension: local total nodes in ring: 8\n"},
        Refused(ReadError, "trace-enabled")),
    Odd("astra-sim: nothing but the end of a printed log",
        {"stdout.txt": b"sys[0] finished, 117780 cycles\n"}, Refused(ReadError, "trace-enabled")),
    Odd("astra-sim: a line of another log", {"log.log": b"[2026-11-21] started\n"},
        Refused(UnknownFormatError, "no format")),
    Odd("astra-sim: hangs", _log(*LINES[:-2]), reads(6, sim_node_not_ended=2)),
    Odd("astra-sim: its beginning rotated away", _log(*LINES[1:]), reads(7, sim_node_not_begun=1)),
    Odd("astra-sim: rotated files",
        {"log.log": "".join([*LINES[9:], END]).encode(), "log.1.log": "".join(LINES[4:9]).encode(),
            "log.2.log": "".join(LINES[:4]).encode(), "err.log": b""}, reads(8)),
    Odd("astra-sim: two runs in one log", _log(*run(), *run()), reads(8, sim_earlier_runs=8)),
    Odd("astra-sim: a number is missing", _log(*_ONE, _ONE[0].replace("tick=5", "tick=")),
        reads(1, sim_line_broken=1)),
    Odd("astra-sim: a number out of range",
        _log(*_ONE, line("issue", 0, 5, 1).replace("tick=5", "tick=99999999999999999999")),
        reads(1, sim_line_broken=1)),
    Odd("astra-sim: ends before it begins",
        _log(*_ONE, line("issue", 0, 9, 1), line("callback", 0, 8, 1)),
        reads(1, sim_node_ends_first=1)),
    Odd("astra-sim: lines out of order", _log(*LINES[::-1]), reads(8)),
    Odd("astra-sim: lines twice", _log(*(text for text in LINES for _ in range(2))), reads(16)),
    Odd("astra-sim: Windows' line ends", {"log.log": SOUND.replace(b"\n", b"\r\n")}, reads(8)),
    Odd("astra-sim: a log that is called as ETs are", {"a.et": SOUND}, reads(8)),
    Odd("astra-sim: UTF-16", {"log.log": SOUND.decode().encode("utf-16")}, reads(8)),
    Odd("astra-sim: a name in Latin-1",
        {"log.log": SOUND.replace(b"Cijk_Ailk", "Größe".encode("latin-1"))}, reads(8)),
    Odd("astra-sim: names with commas",
        _log(*(t.replace("Cijk", "a, node->id=7, b") for t in _ONE)), reads(1)),
    Odd("astra-sim: cut within a line", {"log.log": SOUND[: SOUND.rindex(b"tick=40")]},
        reads(7, sim_node_not_ended=1, sim_line_broken=1, sim_rank_not_finished=2)),
]  # fmt: skip
