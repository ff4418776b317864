"""Operations that eager torch starts, counted from the code. Tests count those dispatched."""

from __future__ import annotations

from collections.abc import Mapping

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import Passes

COPY_OUT = 1
SQUASH = 6
"""Operations of tanh, scaled to the bounds."""
LOSS_ASSUMED = 16
"""Operations per network of an algorithm whose passes were not counted."""
_OPTIMISER = 10  # Adam on one flat vector, and reading the loss
_TARGET, _JOIN = 1, 1
_ADD_VALUE, _ADD_VALUE_BACK = 3, 7  # mean, sum and difference of a duelling network


def forward(layers: tuple[int, ...]) -> int:
    """Operations of a forward pass: a product with bias per layer, an activation between layers."""
    return 2 * (len(layers) - 1) - 1


def _backward(layers: tuple[int, ...]) -> int:
    """Operations of a backward pass: per layer, gradients of weights and biases; between layers, of
    input and activation."""
    return 2 * (len(layers) - 1) + 2 * (len(layers) - 2)


def of_inference(k: Kernel) -> float:
    own = next(iter(k.modules.values()), None)
    return (own.operations if own else forward(k.layers())) + COPY_OUT


def of_gradient_steps(
    k: Kernel, passes: Mapping[str, Passes], loss: float | None, actor: float
) -> float:
    """Operations of all gradient steps of a firing.

    loss: operations in one step of choice, gather, target, Huber, weight, mean, |td| and their
        gradients; None if not counted.
    actor: operations per forward pass that turn the actor's outputs into actions.
    """
    once = float(COPY_OUT + (LOSS_ASSUMED * len(passes) if loss is None else loss))
    for name, p in passes.items():
        layers = k.layers(name)
        ahead, back = forward(layers), _backward(layers)
        if name in k.modules:  # assumed: two gradients a layer, an operation each
            ahead = k.modules[name].operations
            back = 2 * ahead
        once += p.forward * ahead + p.backward * back
        once += p.through * ahead  # gradients of input and activation, layer by layer
        once += p.adam * _OPTIMISER + p.follow * _TARGET
        if name == "q" and k.dims.get("duelling"):
            once += p.forward * _ADD_VALUE + _ADD_VALUE_BACK
        elif name.startswith("critic"):
            once += p.forward * _JOIN
        elif name == "actor":
            once += p.forward * actor
    return k.dim("steps") * once
