"""What FSDP2 adds to a training step: gathering parameters, scattering gradients, all on RCCL."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.demo import catalogue
from chopper_interop.demo.program import COMM, COMPUTE
from chopper_interop.demo.tensors import LIST, NONE, Argument, bf16, f32, many, numbers, scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.program import Writer

_ADDRESS = 0x7F20_0000_0000
_RESERVED_BYTES = 96 << 30


@dataclass
class Memory:
    """The caching allocator: every allocation and release is an instant in the trace."""

    writer: Writer
    allocated: int = 24 << 30
    _sizes: dict[int, int] = field(default_factory=dict)
    _next: int = _ADDRESS

    def alloc(self, size: int) -> int:
        """Allocate `size` bytes; the address."""
        address, self._next = self._next, self._next + (size + 511) // 512 * 512
        self._sizes[address] = size
        self._note(address, size)
        return address

    def free(self, address: int) -> None:
        """Release what `alloc` gave."""
        self._note(address, -self._sizes.pop(address))

    def free_all(self) -> None:
        """Release everything that is left."""
        for address in list(self._sizes):
            self.free(address)

    def _note(self, address: int, size: int) -> None:
        self.allocated += size
        self.writer.memory(
            size, address=address, allocated=self.allocated, reserved=_RESERVED_BYTES
        )


@dataclass(frozen=True)
class Shards:
    """Parameters of one FSDP group.

    Parameters
    ----------
    name
        Fully qualified name, empty for the root.
    sizes
        Elements of each parameter.
    ranks
        Ranks that share them.
    """

    name: str
    sizes: tuple[int, ...]
    ranks: int

    @property
    def label(self) -> str:
        """The name as the annotations of FSDP2 append it."""
        return f" ({self.name})" if self.name else ""

    @property
    def shard_elements(self) -> int:
        """Elements on one rank, padded."""
        return sum(-(-size // self.ranks) for size in self.sizes)

    @property
    def elements(self) -> int:
        """Elements of the gathered buffer."""
        return self.shard_elements * self.ranks


class Fsdp:
    """Writes the operators of FSDP2 for one step."""

    def __init__(self, writer: Writer, memory: Memory, ranks: int, *, event_records: bool) -> None:
        self.w = writer
        self.memory = memory
        self.ranks = ranks
        self.event_records = event_records
        self._gathered: dict[str, int] = {}
        self._buffers: dict[str, int] = {}
        self._scattered = -1

    def all_gather(self, group: Shards) -> None:
        """Copy the shard in and start the all-gather."""
        w, size = self.w, group.shard_elements
        with w.annotation(f"FSDP::all_gather{group.label}"):
            with w.annotation(f"FSDP::all_gather_copy_in{group.label}"):
                self._buffers[group.name] = self.memory.alloc(2 * group.elements)
                sizes = numbers(*(-(-s // self.ranks) for s in group.sizes))
                arguments = [LIST, bf16(group.elements), sizes, scalar(size), scalar(0)]
                with (
                    w.op("fsdp::all_gather_copy_in", arguments),
                    w.op("aten::_foreach_copy_", [LIST, LIST, scalar("False")]),
                ):
                    w.launch(_gather_in(size))
            self._gathered[group.name] = self._collective(
                "c10d::_allgather_base_",
                "_allgather_base",
                bf16(size),
                bf16(group.elements),
                catalogue.collective(2 * group.elements, self.ranks),
            )

    def copy_out(self, group: Shards) -> None:
        """Let the compute stream wait for the all-gather and split its result."""
        w, elements = self.w, group.elements
        with w.annotation(f"FSDP::all_gather_copy_out{group.label}"):
            w.wait(COMPUTE, self._gathered.pop(group.name))
            self.memory.alloc(2 * elements)
            arguments = [bf16(self.ranks, group.shard_elements), numbers(*group.sizes), scalar(1)]
            with (
                w.op("fsdp::split_with_sizes_copy", [*arguments, LIST]),
                w.op("aten::split_with_sizes_copy", [*arguments, LIST]),
            ):
                w.launch(_split_out(elements))
            self.memory.free(self._buffers.pop(group.name))

    def reduce_scatter(self, group: Shards) -> None:
        """Copy the gradients in, once the one before is through, and start the reduce-scatter."""
        w, elements = self.w, group.elements
        with w.annotation(f"FSDP::post_backward_accumulate{group.label}"):
            pass
        with w.annotation(f"FSDP::post_backward_reshard{group.label}"):
            w.think(2_500)
        if self._scattered >= 0:
            with w.annotation(f"FSDP::post_backward_rs_wait{group.label}"):
                w.wait(COMPUTE, self._scattered)
        with w.annotation(f"FSDP::post_backward_reduce{group.label}"):
            buffer = self.memory.alloc(4 * elements)
            arguments = [LIST, scalar(0), scalar(self.ranks), f32(self.ranks, group.shard_elements)]
            with (
                w.op("fsdp::chunk_cat", arguments),
                w.op("aten::_chunk_cat", arguments),
            ):
                w.launch(_chunk_cat(elements))
            self.memory.alloc(4 * group.shard_elements)
            self._scattered = self._collective(
                "c10d::_reduce_scatter_base_",
                "_reduce_scatter_base",
                f32(elements),
                f32(group.shard_elements),
                catalogue.collective(4 * elements, self.ranks),
            )
            self.memory.free(buffer)

    def finish_backward(self) -> None:
        """Let the compute stream wait for the last reduce-scatter."""
        with self.w.annotation("FSDP::root_post_backward_callback"):
            self.w.wait(COMPUTE, self._scattered)
            self._scattered = -1

    def all_reduce(self) -> None:
        """Sum one number over the ranks, as the norm of sharded gradients needs it."""
        w = self.w
        with w.op("_c10d_functional::all_reduce", [f32(), scalar("sum"), scalar("0")]):
            op = self._collective(
                "c10d::allreduce_",
                "allreduce",
                f32(1),
                f32(1),
                catalogue.collective(4, self.ranks, passes=2, channels=1),
            )
        with (
            w.op("_c10d_functional::wait_tensor", [f32()]),
            self._comm_op("wait", Argument("Byte"), Argument("Byte")),
        ):
            w.wait(COMPUTE, op)

    def _collective(
        self, operator: str, name: str, send: Argument, receive: Argument, kernel: Kernel
    ) -> int:
        """One collective on the RCCL stream, after what the compute stream has been given so far."""
        w = self.w
        with w.op(operator, [receive, send, NONE, scalar("False"), scalar(-1)]):
            with self._comm_op(name, send, receive):
                w.call("hipStreamIsCapturing")
                w.record(visible=self.event_records)
                w.wait(COMM, w.last[COMPUTE])
                with w.annotation(f"nccl:{name.replace('allreduce', 'all_reduce')}", [send]):
                    w.call("hipStreamGetCaptureInfo_v2")
                    op = w.launch(kernel, COMM)
                w.record(visible=self.event_records)
            w.call("hipEventDestroy")
        return op

    @contextmanager
    def _comm_op(self, name: str, send: Argument, receive: Argument) -> Iterator[int]:
        """Open the operator that carries a collective's description."""
        waits = name == "wait"
        ranks = 1 if waits else self.ranks
        start = [scalar(-1), scalar(-1)] if waits else [scalar(0), scalar(1)]
        tail = [scalar(0), NONE, numbers(), numbers(), *start, scalar(ranks)]
        inputs = [NONE, NONE, *tail] if waits else [many(send), NONE, NONE, *tail]
        fields = comm_fields(name, send, receive, 0 if waits else self.ranks)
        with self.w.op("record_param_comms", inputs, **fields) as row:
            yield row


_DTYPES = {"c10::BFloat16": "BFloat16", "float": "Float"}
DTYPE_BYTES = {"BFloat16": 2, "Float": 4}


def comm_fields(name: str, send: Argument, receive: Argument, ranks: int) -> dict[str, Any]:
    """Return what `record_param_comms` says of a collective, in its order."""
    stride = {"Global rank start": 0, "Global rank stride": 1} if ranks else {}
    return {
        "Collective name": name,
        "dtype": _DTYPES.get(send.type, "Byte"),
        "In msg nelems": _elements(send) if ranks else 0,
        "Out msg nelems": _elements(receive) if ranks else 0,
        "In split size": "[]",
        "Out split size": "[]",
        **stride,
        "Group size": ranks or 1,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(ranks))),
    }


def _elements(tensor: Argument) -> int:
    product = 1
    for size in tensor.dims:
        product *= size
    return product


def _gather_in(elements: int) -> Kernel:
    return catalogue.multi_tensor(
        "TensorListMetadata<2>",
        "UnaryOpFunctor<c10::BFloat16, 2, 1, 1>, at::native::Copy<c10::BFloat16, float>",
        "copy",
        elements,
        (1, 1),
    )


def _split_out(elements: int) -> Kernel:
    name = "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel"
    arguments = "(char**, char**, long*, long*, long, long, long, long)"
    return _copy(name + arguments, elements, (2, 2))


def _chunk_cat(elements: int) -> Kernel:
    name = "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>"
    arguments = "(c10::BFloat16**, float*, long*, long*, long*, long, long, long, long, long)"
    return _copy(name + arguments, elements, (2, 4))


def _copy(name: str, elements: int, sizes: tuple[int, int]) -> Kernel:
    """Kernel that copies elements of so many bytes in and out."""
    traffic = (sizes[0] * elements, sizes[1] * elements)
    return catalogue.stream(name, "copy", traffic, catalogue.spread(elements))
