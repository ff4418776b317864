"""The variant `fused`: gradient steps that one block of GPU threads takes alone.

The block takes all gradient steps of a firing in one launch, on one of the GPU's streaming
multiprocessors. Wide networks are left to variants that use all multiprocessors.
"""

from __future__ import annotations

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import Variant

WIDEST, DEEPEST, MOST_INPUTS, MOST_ROWS = 256, 5, 512, 65_536
"""Most units of a layer, layers, input components, batch rows."""

UNKNOWN = {
    "choices": "factored actions",
    "kept": "rollouts that are stored in part",
    "units": "observations that are stored as uint8",
    "scheduled": "schedules of learning rates",
    "stops": "target divergence",
}
"""Sizes of kernels that one block does not support → in words."""


def misfit(kernel: Kernel) -> str:
    """Return why one block cannot take these gradient steps; empty if it can."""
    if kernel.modules:
        return f"{', '.join(kernel.modules)} is a torch module, whose layers are not known"
    for size, what in UNKNOWN.items():
        if kernel.dims.get(size):
            return f"it does not support {what}"
    if kernel.dim("batch") > MOST_ROWS:
        return f"a batch of {kernel.dim('batch')} rows is more than {MOST_ROWS}"
    rows = kernel.dim("envs") * kernel.dim("horizon") if "horizon" in kernel.dims else 0
    if rows % kernel.dim("batch"):
        return f"minibatches of {kernel.dim('batch')} rows do not fill a rollout of {rows}"
    twins = {layers for name, layers in kernel.networks.items() if name.startswith("critic")}
    if len(twins) > 1:
        return f"the critics differ: {', '.join(map(str, sorted(twins)))}"
    for name, layers in kernel.networks.items():
        if len(layers) - 1 > DEEPEST:
            return f"{name} has {len(layers) - 1} layers, more than {DEEPEST}"
        if max(layers[1:]) > WIDEST:
            return f"{name} has a layer of {max(layers[1:])} units, more than {WIDEST}"
        if layers[0] > MOST_INPUTS:
            return f"{name} has {layers[0]} inputs, more than {MOST_INPUTS}"
    return ""


def fits(kernel: Kernel) -> bool:
    return not misfit(kernel)


def fused(algorithm: str) -> dict[str, Variant]:
    """Return the variant `fused` with the binder of this algorithm."""
    return {"fused": Variant(f"pearl_devices.gpu.updates:bind_{algorithm}", fits=fits)}
