"""FSDP2's part of a training step: gathering parameters, scattering gradients, all on RCCL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.demo import catalogue
from chopper_interop.demo.comms import Communicator
from chopper_interop.demo.program import COMPUTE
from chopper_interop.demo.tensors import LIST, bf16, f32, numbers, scalar

if TYPE_CHECKING:
    from chopper_interop.demo.groups import ProcessGroup
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.memory import Memory
    from chopper_interop.demo.writer import Writer


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

    def __init__(
        self, writer: Writer, memory: Memory, world: ProcessGroup, *, event_records: bool
    ) -> None:
        self.w = writer
        self.memory = memory
        self.ranks = len(world.ranks)
        self.world = Communicator(writer, world, event_records=event_records)
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
            self._gathered[group.name] = self.world.run(
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
            with w.op("fsdp::chunk_cat", arguments), w.op("aten::_chunk_cat", arguments):
                w.launch(_chunk_cat(elements))
            self.memory.alloc(4 * group.shard_elements)
            self._scattered = self.world.run(
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
