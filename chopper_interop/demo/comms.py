"""Communication of process groups, as ProcessGroupNCCL of PyTorch 2.8 runs and records it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chopper_interop.demo import catalogue
from chopper_interop.demo.program import COMM, COMPUTE
from chopper_interop.demo.tensors import NONE, Argument, f32, many, numbers, scalar

if TYPE_CHECKING:
    from chopper_interop.demo.groups import ProcessGroup
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.writer import Writer


class Communicator:
    """Writes what one rank communicates within a group.

    Parameters
    ----------
    rank
        Its number within the group, -1 if all ranks write the same.
    """

    def __init__(
        self, writer: Writer, group: ProcessGroup, rank: int = -1, *, event_records: bool
    ) -> None:
        self.w = writer
        self.group = group
        self.rank = rank
        self.event_records = event_records
        if group not in writer.program.groups:
            writer.program.groups.append(group)

    def all_reduce(self, elements: int = 1, channels: int = 1) -> None:
        """Sum float32 numbers over the ranks, as functional collectives do."""
        w, tensor = self.w, f32(elements)
        size = len(self.group.ranks)
        kernel = catalogue.collective(4 * elements, size, passes=2, channels=channels)
        with w.op("_c10d_functional::all_reduce", [f32(), scalar("sum"), scalar(self.group.name)]):
            op = self.run("c10d::allreduce_", "allreduce", tensor, tensor, kernel)
        with w.op("_c10d_functional::wait_tensor", [f32()]):
            self.wait(op)

    def wait(self, op: int) -> None:
        """Let the compute stream wait for what was communicated."""
        with self._recorded("wait", Argument("Byte"), Argument("Byte")):
            self.w.wait(COMPUTE, op)

    def run(
        self, operator: str, name: str, send: Argument, receive: Argument, kernel: Kernel
    ) -> int:
        """Run a collective on the RCCL stream, after all work queued on the compute stream."""
        title = f"nccl:{name.replace('allreduce', 'all_reduce')}"
        with self.w.op(operator, [receive, send, NONE, scalar("False"), scalar(-1)]):
            with self._recorded(name, send, receive):
                self.w.call("hipStreamIsCapturing")
                op = self._launch(title, send, kernel, COMM, self.group.ranks)
            self.w.call("hipEventDestroy")
        return op

    def send(self, tensor: Argument, peer: int, stream: int) -> int:
        """Send to a rank of the group, after all work so far queued on the compute stream."""
        title = f"nccl:send {self.rank}->{peer}"
        members = self.group.ranks[self.rank], self.group.ranks[peer]
        with self.w.op("c10d::send", [many(tensor), NONE, scalar(peer), scalar(0)]):
            return self._exchange("send", title, tensor, (peer, stream), members)

    def receive(self, tensor: Argument, peer: int, stream: int) -> int:
        """Receive from a rank of the group into a buffer that the compute stream is done with."""
        title = f"nccl:recv {self.rank}<-{peer}"
        members = self.group.ranks[peer], self.group.ranks[self.rank]
        with self.w.op("c10d::recv_", [many(tensor), NONE, scalar(peer), scalar(0)]):
            return self._exchange("recv", title, tensor, (peer, stream), members)

    def _exchange(
        self,
        name: str,
        title: str,
        tensor: Argument,
        where: tuple[int, int],
        members: tuple[int, int],
    ) -> int:
        peer, stream = where
        kernel = catalogue.point_to_point(2 * elements_of(tensor))
        facts = {"Rank": peer, "Dst Rank" if name == "send" else "Src Rank": self.group.ranks[peer]}
        with self._recorded(name, tensor, tensor, **facts):
            self.w.call("hipStreamIsCapturing")
            return self._launch(title, tensor, kernel, stream, members, exchange=True)

    def _launch(
        self,
        title: str,
        tensor: Argument,
        kernel: Kernel,
        stream: int,
        members: tuple[int, ...],
        *,
        exchange: bool = False,
    ) -> int:
        w = self.w
        w.record(visible=self.event_records)
        w.wait(stream, w.last[COMPUTE])
        with w.annotation(title, [tensor]):
            w.call("hipStreamGetCaptureInfo_v2")
            op = w.launch(kernel, stream)
            w.program.gpu[op].members, w.program.gpu[op].exchange = members, exchange
        w.record(visible=self.event_records)
        return op

    @contextmanager
    def _recorded(
        self, name: str, send: Argument, receive: Argument, **details: int
    ) -> Iterator[int]:
        """Open the operator that carries the description of what is communicated."""
        waits, group = name == "wait", self.group
        ranks = 1 if waits else len(group.ranks)
        start = [scalar(-1)] * 2 if waits else [scalar(group.ranks[0]), scalar(group.stride)]
        own = details.get("Rank", max(self.rank, 0))
        tail = [scalar(own), NONE, numbers(), numbers(), *start, scalar(ranks)]
        inputs = [NONE, NONE, *tail] if waits else [many(send), NONE, NONE, *tail]
        if self.rank >= 0:
            details = {"Rank": self.rank} | details
        fields = comm_fields(name, send, receive, group) | details
        with self.w.op("record_param_comms", inputs, **fields) as row:
            yield row


_DTYPES = {"c10::BFloat16": "BFloat16", "float": "Float"}
DTYPE_BYTES = {"BFloat16": 2, "Float": 4}


def comm_fields(
    name: str, send: Argument, receive: Argument, group: ProcessGroup
) -> dict[str, Any]:
    """Return what `record_param_comms` says of what is communicated, in its order."""
    waits = name == "wait"
    ranks = [] if waits else list(group.ranks)
    stride = {"Global rank start": group.ranks[0], "Global rank stride": group.stride}
    return {
        "Collective name": name,
        "dtype": _DTYPES.get(send.type, "Byte"),
        "In msg nelems": 0 if waits else elements_of(send),
        "Out msg nelems": 0 if waits else elements_of(receive),
        "In split size": "[]",
        "Out split size": "[]",
        **({} if waits else stride),
        "Group size": len(ranks) or 1,
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(ranks),
    }


def elements_of(tensor: Argument) -> int:
    """Count the elements of a tensor."""
    product = 1
    for size in tensor.dims:
        product *= size
    return product
