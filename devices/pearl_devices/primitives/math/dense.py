"""Dense networks over flat parameter vectors in plain numpy, for policies outside a run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def network_of(
    layers: tuple[int, ...], params: npt.NDArray[np.floating], *, curved: bool = False
) -> Callable[[Array], Array]:
    """Return the network of these widths, as in `nets`: a function from rows (rows, in) to outputs.

    params: read at each call. curved: hidden layers use tanh instead of ReLU.
    """
    parts, offset = [], 0
    for i, o in pairwise(layers):
        weights = params[offset : offset + i * o].reshape(i, o)
        offset += i * o
        parts.append((weights, params[offset : offset + o]))
        offset += o
    zero = np.float32(0.0)

    def network(x: Array) -> Array:
        for n, (weights, bias) in enumerate(parts):
            x = x @ weights
            x += bias
            if n < len(parts) - 1:
                if curved:
                    np.tanh(x, out=x)
                else:
                    np.maximum(x, zero, out=x)
        return x

    return network
