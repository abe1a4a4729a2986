"""Work after the backward pass: gradient clipping, fused AdamW, reading the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.demo import catalogue
from chopper_interop.demo.tensors import LIST, NONE, f32, scalar

if TYPE_CHECKING:
    from chopper_interop.demo.comms import Communicator
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.writer import Writer


class Update:
    """Writes the update of the parameters.

    Parameters
    ----------
    world
        All ranks, over which the norm of the gradients is summed.
    shards
        Elements of each group of parameters that this rank holds.
    layers
        Layers that it holds.
    """

    def __init__(self, writer: Writer, world: Communicator, shards: list[int], layers: int) -> None:
        self.w = writer
        self.world = world
        self.shards = shards
        self.layers = layers

    def clip(self) -> None:
        """Norm of all gradients over all ranks, and the scaling by it."""
        w = self.w
        w.think(180_000)
        with w.op("aten::_foreach_norm", [LIST, scalar(2), NONE]):
            for elements in self.shards:
                w.launch(
                    foreach("1", "LpNormFunctor<float, NormType::L2>", "reduction", elements, 1, 0)
                )
            w.launch(foreach("1", "lpnorm_cleanup<float, NormType::L2>", "reduction", 512, 1, 0))
        with w.op("aten::linalg_vector_norm", [f32(self.layers * 9 + 3), scalar(2)]):
            w.launch(catalogue.pointwise(catalogue.SCALE, 64, 1, size=4))
        self.world.all_reduce()
        for name, functor in _CLIPPING:
            with w.op(name, [f32(), scalar("1.")]):
                w.launch(catalogue.pointwise(functor, 1, 1, size=4))
        with w.op("aten::_foreach_mul_", [LIST, f32()]):
            for elements in self.shards:
                w.launch(foreach("1", _SCALE_LIST, "optimizer", elements, 1, 1))
        self.item()

    def optimizer(self) -> None:
        """Write the step of the optimizer."""
        w = self.w
        with w.annotation("Optimizer.step#AdamW.step", gap_ns=30_000):
            w.think(900_000 + 60_000 * self.layers)
            with w.op("aten::_foreach_add_", [LIST, f32(), scalar(1)]):
                w.launch(foreach("2", "BinaryOpScalarTensorFunctor<float>", "optimizer", 128, 1, 1))
            options = [scalar(v) for v in ("0.0003", "0.9", "0.95", "0.1", "1e-08", "False")]
            with w.op("aten::_fused_adamw_", [*[LIST] * 6, *options], gap_ns=140_000):
                for elements in self.shards:
                    w.think(25_000)
                    w.launch(foreach("4", _ADAM, "optimizer", elements, 4, 3))

    def item(self) -> None:
        """Read a number, for which the host waits."""
        with self.w.op("aten::item", [f32()]), self.w.op("aten::_local_scalar_dense", [f32()]):
            self.w.copy("hipMemcpyWithStream", "DtoH", 4)


_ADAM = "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double"
_SCALE_LIST = "BinaryOpScalarTensorFunctor<float, 1, 1, 0>, std::multiplies<float>, float*, float"
_CLIPPING = (
    ("aten::add", "CUDAFunctorOnSelf_add<float>"),
    ("aten::reciprocal", catalogue.RECIPROCAL),
    ("aten::mul", catalogue.SCALE),
    ("aten::clamp", catalogue.CLAMP),
)


def foreach(lists: str, functor: str, kind: str, elements: int, reads: int, writes: int) -> Kernel:
    """Kernel over lists of float32 tensors, by the number of lists and the functor."""
    metadata = f"TensorListMetadata<{lists}>"
    return catalogue.multi_tensor(metadata, functor, kind, elements, (reads, writes))
