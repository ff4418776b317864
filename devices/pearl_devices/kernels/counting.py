"""Work of networks, gradient steps and fused kernels, counted from first principles.

A multiply-add is two flops. A dense layer of widths i → o on a batch of B costs 2·B·i·o forward,
and as much for each of the gradients of its input and of its weights. Adam costs 12 flops, four
reads and three writes of four bytes per parameter; a target three flops, a read and a write. Tests
compare with hand sums and `torch.utils.flop_counter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import Parts, Passes, Product, Work

F32 = 4
ADAM_FLOPS, FOLLOW_FLOPS = 12, 3
ADAM_BYTES_READ, ADAM_BYTES_WRITTEN = 16, 12


def parameters(layers: tuple[int, ...]) -> int:
    """Number of weights and biases of a dense network with these widths."""
    return sum(i * o + o for i, o in pairwise(layers))


def size(kernel: Kernel, name: str | None = None) -> int:
    """Number of parameters of a network of `kernel`; without a name, of its only network."""
    name = name or next(iter(kernel.networks), None)
    own = kernel.modules.get(name or "")
    return own.params if own else parameters(kernel.layers(name))


def obs_bytes(k: Kernel) -> int:
    """Bytes of an observation as a replay or a rollout stores it: uint8 with a size `units`."""
    return k.dim("obs") * (1 if k.dims.get("units") else F32)


def forward_flops(layers: tuple[int, ...], batch: int) -> float:
    """Flops of products and biases in one forward pass, and one per hidden unit for activations."""
    products = sum(2 * i * o + o for i, o in pairwise(layers))
    return float(batch * (products + sum(layers[1:-1])))


def backward_flops(layers: tuple[int, ...], batch: int) -> float:
    """Flops of the gradients of all weights and biases, and of all layer inputs but the first."""
    weights = sum(2 * i * o + o for i, o in pairwise(layers))
    return batch * weights + through_flops(layers[1:], batch)


def through_flops(layers: tuple[int, ...], batch: int) -> float:
    """Flops of the gradient of the network's input, without gradients of weights."""
    return float(batch * sum(2 * i * o + i for i, o in pairwise(layers)))


def activations_bytes(layers: tuple[int, ...], batch: int) -> float:
    return float(F32 * batch * sum(layers))


def forward_products(layers: tuple[int, ...], batch: int) -> list[Product]:
    return [(batch, i, o) for i, o in pairwise(layers)]


def weight_products(layers: tuple[int, ...], batch: int) -> list[Product]:
    return [(i, batch, o) for i, o in pairwise(layers)]


def through_products(layers: tuple[int, ...], batch: int) -> list[Product]:
    return [(batch, o, i) for i, o in pairwise(layers)]


def action_bytes(k: Kernel) -> int:
    if k.dims.get("choices"):
        return 8 * k.dim("act")
    return F32 * k.dim("act") or 8  # a discrete action is one int64


def gradient_work(k: Kernel, passes: Mapping[str, Passes]) -> Work:
    """The work of `steps` gradient steps on batches of transitions."""
    batch, steps = k.dim("batch"), k.dim("steps")
    flops = read = written = resident = 0.0
    for name, runs in passes.items():
        layers, own, params = k.layers(name), k.modules.get(name), size(k, name)
        if own:  # assumed: each of the two gradients costs as much as a forward pass
            once = batch * own.flops
            flops += (runs.forward + 2 * runs.backward + runs.through) * once
            stored = float(F32 * batch * own.numbers)
        else:
            back = backward_flops(layers, batch)
            flops += runs.forward * forward_flops(layers, batch) + runs.backward * back
            flops += runs.through * through_flops(layers, batch)
            stored = activations_bytes(layers, batch)
        flops += (ADAM_FLOPS * runs.adam + FOLLOW_FLOPS * runs.follow) * params
        read += (ADAM_BYTES_READ * runs.adam + F32 * runs.target) * params
        written += (ADAM_BYTES_WRITTEN * runs.adam + F32 * runs.follow) * params
        resident += 4 * stored + F32 * params
    row = F32 * (2 * k.dim("obs") + 3) + action_bytes(k)
    return (
        steps * flops,
        float(steps * (read + batch * row)),
        float(steps * (written + F32 * batch)),
        resident,
    )


def gradient_products(
    k: Kernel, passes: Mapping[str, Passes], period: int = 1
) -> tuple[Product, ...]:
    """The matrix products of `period` gradient steps, the number after which the passes repeat."""
    batch, found = k.dim("batch"), list[Product]()
    for name, runs in passes.items():
        if name in k.modules:
            continue  # the layers of a module are unknown, only its flops are counted
        layers = k.layers(name)
        found += forward_products(layers, batch) * round(period * runs.forward)
        back = weight_products(layers, batch) + through_products(layers[1:], batch)
        found += back * round(period * runs.backward)
        found += through_products(layers, batch) * round(period * runs.through)
    return tuple(found)


def sum_of(parts: Parts) -> Work:
    """The summed work of the parts of a fused kernel; all scratch memory stays allocated."""
    flops = read = written = resident = 0.0
    for part, firings in parts:
        flops += firings * part.flops
        read += firings * part.bytes_in
        written += firings * part.bytes_out
        resident += part.resident_bytes
    return flops, read, written, resident
