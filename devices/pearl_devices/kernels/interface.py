"""User-defined kernels between environments and the acting network: which rows they change, and
which of their arrays belong to the policy (`pearl_devices.primitives.envs.interface` runs them).

`Kernel.interface` of an acting kernel lists them in firing order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import KernelKind, Spec, matches, select_arrays

Changed = Literal["env.obs", "act.action"]

OBSERVED: Changed = "env.obs"
TAKEN: Changed = "act.action"

STATISTICS = "normalise.obs"
"""Mean and variance of observations that env_step normalises."""


def changes(kernel: Kernel) -> tuple[Changed, ...]:
    """Whether a user-defined kernel writes observations, actions or both; empty for other
    kernels."""
    kind = _kind(kernel)
    if kind.structure != "own":
        return ()
    written = kind.written(kind.arrays(kernel))
    return tuple(name for name in (OBSERVED, TAKEN) if name in written)


def resize(kernel: Kernel, rows: int) -> Kernel:
    """Return the same kernel for `rows` rows."""
    return replace(kernel, dims={**kernel.dims, "envs": rows})


def misfit(kernel: Kernel) -> str:
    """Return why the rows that a kernel changes differ from its size `envs`; empty if they
    agree."""
    envs = kernel.dims.get("envs")
    if not isinstance(envs, int):
        return f"it has no size 'envs', only {sorted(kernel.dims)}"
    for rows in (envs, envs + 1):
        found = _kind(kernel).arrays(resize(kernel, rows))
        for name in changes(kernel):
            if found[name][0][:1] != (rows,):
                return f"of {rows} envs {name} is {list(found[name][0])}; {rows} rows are needed"
    return ""


def trained_arrays(kernel: Kernel) -> dict[str, Spec]:
    """Return the arrays that a kernel reads in evaluation as training left them.

    Their shape does not depend on the number of environments. Arrays that the kernel changes and
    arrays of each copy of its task are not included.
    """
    kind, envs = _kind(kernel), kernel.dim("envs")
    other = kind.arrays(resize(kernel, envs + 1))
    apart = (*changes(kernel), *select_arrays(other, kind.per_copy))
    return {
        name: spec
        for name, spec in kind.arrays(kernel).items()
        if other.get(name) == spec and not matches(name, apart)
    }


def states(acting: Kernel) -> dict[str, Spec]:
    """The policy's arrays of all kernels in `acting.interface`."""
    return {name: spec for each in acting.interface for name, spec in trained_arrays(each).items()}


def _kind(kernel: Kernel) -> KernelKind:
    from pearl_devices.kernels import kind_of

    return kind_of(kernel)
