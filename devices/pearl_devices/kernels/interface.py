"""Kernels of the user's own between environments and the network that acts: what they change, and
which of their arrays belong to the policy (`pearl_devices.primitives.envs.interface` runs them).

`Kernel.interface` of a kernel that acts has them in the order in which they fire.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import KernelKind, Spec, chosen, matches

Changed = Literal["env.obs", "act.action"]

OBSERVED: Changed = "env.obs"
TAKEN: Changed = "act.action"

STATISTICS = "normalise.obs"
"""The mean and variance of observations where the environments' own kernel normalises them."""


def changes(kernel: Kernel) -> tuple[Changed, ...]:
    """Which of observations and actions a kernel of the user's own writes; none for any other."""
    kind = _kind(kernel)
    if kind.structure != "own":
        return ()
    written = kind.written(kind.arrays(kernel))
    return tuple(name for name in (OBSERVED, TAKEN) if name in written)


def resized(kernel: Kernel, rows: int) -> Kernel:
    """The same kernel for so many rows."""
    return replace(kernel, dims={**kernel.dims, "envs": rows})


def misfit(kernel: Kernel) -> str:
    """Why the rows that a kernel changes are not its size `envs`; empty where they are."""
    envs = kernel.dims.get("envs")
    if not isinstance(envs, int):
        return f"it has no size 'envs', only {sorted(kernel.dims)}"
    for rows in (envs, envs + 1):
        found = _kind(kernel).arrays(resized(kernel, rows))
        for name in changes(kernel):
            if found[name][0][:1] != (rows,):
                return f"of {rows} envs {name} is {list(found[name][0])}; {rows} rows are needed"
    return ""


def kept(kernel: Kernel) -> dict[str, Spec]:
    """The arrays that a kernel reads in evaluation as training left them: those of its record whose
    shape does not depend on the number of environments, but what it changes and what every copy of
    its task has of its own."""
    kind, envs = _kind(kernel), kernel.dim("envs")
    other = kind.arrays(resized(kernel, envs + 1))
    apart = (*changes(kernel), *chosen(other, kind.per_copy))
    return {
        name: spec
        for name, spec in kind.arrays(kernel).items()
        if other.get(name) == spec and not matches(name, apart)
    }


def states(acting: Kernel) -> dict[str, Spec]:
    """The arrays of all kernels in `acting.interface` that belong to the policy."""
    return {name: spec for each in acting.interface for name, spec in kept(each).items()}


def _kind(kernel: Kernel) -> KernelKind:
    from pearl_devices.kernels import kind_of

    return kind_of(kernel)
