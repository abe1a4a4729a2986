"""Shapes of convolutions in traces without values of arguments (PyTorch before 2.1).

Without its stride, the shape of a convolution's result is not known. But the call of its gradient
has the shapes of input, result and weight as arguments. Where all such calls of a trace that have
two of these shapes agree in the third, it is taken for every convolution with these two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from chopper_interop.work.calls import dense

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.work.calls import Call, Shape

FORWARD = re.compile(r"aten::(cudnn|miopen|mkldnn)_(depthwise_)?convolution")
OF_INPUT = re.compile(r"aten::(cudnn|miopen)_convolution_backward_input")
OF_WEIGHT = re.compile(r"aten::(cudnn|miopen)_convolution_backward_weight")
_TELLS: tuple[tuple[re.Pattern[str], tuple[int, int, int]], ...] = (
    (re.compile(r"aten::convolution_backward(_overrideable)?"), (1, 2, 0)),
    (re.compile(r"aten::(cudnn|miopen|mkldnn)_convolution_backward"), (0, 2, 1)),
)
"""Operators whose calls tell all three shapes → arguments: input, weight, gradient of result."""

Known = dict[tuple["Shape", "Shape"], set["Shape"]]


class Shapes:
    """What the calls of a trace tell of its convolutions together.

    Parameters
    ----------
    calls
        Names of operators, and calls of them.
    """

    def __init__(self, calls: Iterable[tuple[str, Call | None]]) -> None:
        self._results: Known = defaultdict(set)
        self._weights: Known = defaultdict(set)
        self._inputs: Known = defaultdict(set)
        for name, call in calls:
            places = next((at for names, at in _TELLS if names.fullmatch(name)), None)
            if places is not None and call is not None:
                x, weight, result = (call.tensor(at) for at in places)
                if x is not None and weight is not None and result is not None:
                    self._learn(x.shape, weight.shape, result.shape)

    def _learn(self, x: Shape, weight: Shape, result: Shape) -> None:
        if len(x) == len(weight) == len(result) > 1 and result[1] == weight[0]:
            self._results[x, weight].add(result)
            self._weights[result, x].add(weight)
            self._inputs[result, weight].add(x)

    def completed(self, name: str, call: Call) -> Call:
        """A call of a convolution with the shape that its arguments do not tell, if it is known."""
        if FORWARD.fullmatch(name) and not call.outputs and not any(call.values):
            found, first = self._one(self._results, call, 0, 1), call.tensor(0)
            if found is None or first is None:
                return call
            return replace(call, outputs=(dense(found, first.dtype),))
        if call.value(0) is not None:
            return call
        if OF_WEIGHT.fullmatch(name):
            found = self._one(self._weights, call, 1, 2)
        elif OF_INPUT.fullmatch(name):
            found = self._one(self._inputs, call, 1, 2)
        else:
            return call
        return call if found is None else replace(call, values=(list(found), *call.values[1:]))

    @staticmethod
    def _one(known: Known, call: Call, a: int, b: int) -> Shape | None:
        one, other = call.tensor(a), call.tensor(b)
        if one is None or other is None:
            return None
        shapes = known.get((one.shape, other.shape), set())
        return next(iter(shapes)) if len(shapes) == 1 else None
