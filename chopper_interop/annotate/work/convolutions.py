"""Shapes of convolutions in traces without values of arguments (PyTorch before 2.1).

Without its stride, the shape of a convolution's result is unknown. But the call of its gradient
has the shapes of input, result and weight as arguments. Where all such calls of a trace that have
two of these shapes agree in the third, it is assumed for every convolution with these two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from chopper_interop.annotate.work.calls import Call, Shape, dense

FORWARD = re.compile(r"aten::(cudnn|miopen|mkldnn)_(depthwise_)?convolution")
INPUT_GRADIENT = re.compile(r"aten::(cudnn|miopen)_convolution_backward_input")
WEIGHT_GRADIENT = re.compile(r"aten::(cudnn|miopen)_convolution_backward_weight")
_GRADIENTS: tuple[tuple[re.Pattern[str], tuple[int, int, int]], ...] = (
    (re.compile(r"aten::convolution_backward(_overrideable)?"), (1, 2, 0)),
    (re.compile(r"aten::(cudnn|miopen|mkldnn)_convolution_backward"), (0, 2, 1)),
)
"""Operators whose calls have all three shapes → indexes of input, weight, gradient of result."""

ThirdShapes = dict[tuple["Shape", "Shape"], set["Shape"]]
"""Two shapes of a convolution → all third shapes that occur with them."""


def is_gradient(name: str) -> bool:
    """Return True for names of operators that compute gradients of convolutions."""
    return _indexes(name) is not None


@lru_cache(1 << 12)
def _indexes(name: str) -> tuple[int, int, int] | None:
    """Return the places of input, weight and result among the arguments of an operator; None if it computes no gradients."""
    return next((indexes for names, indexes in _GRADIENTS if names.fullmatch(name)), None)


class Shapes:
    """Shapes of the convolutions of a job, from its calls of gradients."""

    def __init__(self) -> None:
        self._results: ThirdShapes = defaultdict(set)
        self._weights: ThirdShapes = defaultdict(set)
        self._inputs: ThirdShapes = defaultdict(set)

    def add(self, names: Iterable[str], calls: Iterable[Call | None]) -> None:
        """Take over shapes of calls, with the names of their operators; None for arguments that are not understood."""
        for name, call in zip(names, calls, strict=True):
            indexes = _indexes(name)
            if indexes is not None and call is not None:
                x, weight, result = (call.tensor(index) for index in indexes)
                if x is not None and weight is not None and result is not None:
                    self._add(x.shape, weight.shape, result.shape)

    def _add(self, x: Shape, weight: Shape, result: Shape) -> None:
        if len(x) == len(weight) == len(result) > 1 and result[1] == weight[0]:
            self._results[x, weight].add(result)
            self._weights[result, x].add(weight)
            self._inputs[result, weight].add(x)

    def complete(self, name: str, call: Call) -> Call:
        """Return a call with the shape that its arguments lack, if that is known."""
        if FORWARD.fullmatch(name) and not call.outputs and not any(call.values):
            result, first = self._third(self._results, call, 0, 1), call.tensor(0)
            if result is None or first is None:
                return call
            return replace(call, outputs=(dense(result, first.dtype),))
        if call.value(0) is not None:
            return call
        if WEIGHT_GRADIENT.fullmatch(name):
            size = self._third(self._weights, call, 1, 2)
        elif INPUT_GRADIENT.fullmatch(name):
            size = self._third(self._inputs, call, 1, 2)
        else:
            return call
        return call if size is None else replace(call, values=(list(size), *call.values[1:]))

    @staticmethod
    def _third(known: ThirdShapes, call: Call, a: int, b: int) -> Shape | None:
        """Shape that all gradients have with those of two arguments; None if they disagree."""
        tensor_a, tensor_b = call.tensor(a), call.tensor(b)
        if tensor_a is None or tensor_b is None:
            return None
        shapes = known.get((tensor_a.shape, tensor_b.shape), set())
        return next(iter(shapes)) if len(shapes) == 1 else None
