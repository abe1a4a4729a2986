"""Shapes of convolutions in traces without values of arguments (PyTorch before 2.1).

Without its stride, the shape of a convolution's result is unknown. But the call of its gradient
has the shapes of input, result and weight as arguments. Where all such calls of a trace that have
two of these shapes agree in the third, it is assumed for every convolution with these two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

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


def with_inferred_shapes(names: Sequence[str], calls: Sequence[Call | None]) -> list[Call | None]:
    """Return the calls of a trace with the shapes that those of convolutions lack, if known.

    Parameters
    ----------
    names, calls
        Names of operators, and calls of them; None for arguments that are not understood.
    """
    named = list(zip(names, calls, strict=True))
    shapes = _ConvolutionShapes(named)
    return [call and shapes.complete(name, call) for name, call in named]


class _ConvolutionShapes:
    """Shapes of the convolutions of a trace, from all its calls of gradients.

    Parameters
    ----------
    calls
        Names of operators, and calls of them.
    """

    def __init__(self, calls: Iterable[tuple[str, Call | None]]) -> None:
        self._results: ThirdShapes = defaultdict(set)
        self._weights: ThirdShapes = defaultdict(set)
        self._inputs: ThirdShapes = defaultdict(set)
        for name, call in calls:
            indexes = next((i for names, i in _GRADIENTS if names.fullmatch(name)), None)
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
