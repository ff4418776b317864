"""param_sync: copies network parameters from the learning side to the acting side."""

from __future__ import annotations

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.counting import F32
from pearl_devices.kernels.record import KernelKind, Spec, Work, primitive


def _work(k: Kernel) -> Work:
    size = float(F32 * k.dim("params"))
    return 0.0, size, size, 0.0


def _arrays(k: Kernel) -> dict[str, Spec]:
    names = str(k.args["network"]).split("+")
    sizes = [k.dim("params")] if len(names) == 1 else [k.dim(name) for name in names]
    sides = ("learner", "policy")
    pairs = zip(names, sizes, strict=True)
    return {f"{side}.{name}": ((size,), "float32") for name, size in pairs for side in sides}


PARAM_SYNC = KernelKind(
    name="param_sync",
    structure="copy",
    count=_work,
    arrays=_arrays,
    writes=("policy.",),
    sends=("policy.",),
    repeatable=True,
    variants={"native": primitive("math.nets:bind_sync")},
)
"""Sizes: params; X and Y, the sizes of two networks, if `args["network"]` is X+Y."""
