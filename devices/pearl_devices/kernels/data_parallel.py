"""The kinds of gradient steps that several learners share (data parallel).

A gradient step of update.X is three kinds of firings. Every learner computes the gradient of its
rows of the batch (learner_gradient.X), all_reduce.X averages the gradients, and every learner takes
the same optimiser step with the mean (learner_step.X). Sizes: those of update.X, with the whole
batch; learners, their number; learner, the index from 0 (first and last kind); td (1) if TD errors
are sent. Gradient step n of a firing of update.X is step n of `steps` firings here; learner.step
counts them.

If shards is 1, every network is cut into one part per learner. An all_reduce.X averages the part
of its size `learner`. Part 0 also has the losses and the TD errors.
"""

from __future__ import annotations

from dataclasses import replace

from pearl_devices.base import Buffers
from pearl_devices.kernel import Dim, Kernel
from pearl_devices.kernels import dqn, on_policy
from pearl_devices.kernels.arrays import STOP
from pearl_devices.kernels.counting import (
    ADAM_BYTES_READ,
    ADAM_BYTES_WRITTEN,
    ADAM_FLOPS,
    F32,
    FOLLOW_FLOPS,
)
from pearl_devices.kernels.off_policy import has_loss
from pearl_devices.kernels.record import KernelKind, Spec, Work, primitive

OWN = ("learner", "learners", "td", "shards")
"""Sizes that these kinds have and update.X has not."""
SUMMED, STEPPED = 2, 10
"""Torch operations per network: a sum or quotient of the mean; an Adam step."""


def full_kernel(k: Kernel, of: str) -> Kernel:
    """Return the kernel of kind `of` whose gradient steps the learners share."""
    dims = {name: size for name, size in k.dims.items() if name not in OWN}
    return replace(k, kind=of, dims=dims)


def rows(k: Kernel) -> tuple[int, int]:
    """First and end row of a learner's part of the batch."""
    each = k.dim("batch") // k.dim("learners")
    return k.dim("learner") * each, (k.dim("learner") + 1) * each


def shards(k: Kernel) -> range:
    """Indices of the shards of a reduction: one shard, or one for each learner."""
    return range(k.dim("learners") if k.dims.get("shards") else 1)


def shard_of(k: Kernel) -> int:
    """The index of the shard that a reduction averages."""
    return k.dim("learner") if k.dims.get("shards") else 0


def shard_range(size: int, shard: int, of: int) -> slice:
    """The slice of shard `shard` in a network of `size` numbers cut into `of` nearly equal
    shards."""
    return slice(size * shard // of, size * (shard + 1) // of)


def shard_name(k: Kernel, array: str, shard: int) -> str:
    """The name of a shard of gradient.I.X or mean.X; an array with one shard keeps its name."""
    return f"{array}.{shard}" if k.dims.get("shards") else array


def learner_array(array: str, learner: int) -> str:
    """The name of a learner's copy of learner.*; learner 0 has the array itself."""
    return f"learners.{learner}.{array.removeprefix('learner.')}" if learner else array


def copy_to_learners(arrays: Buffers) -> None:
    """Copy the arrays of the first learner to all other learners."""
    for name, array in arrays.items():
        if name.startswith("learners."):
            array[...] = arrays[f"learner.{name.split('.', 2)[2]}"]


def networks(arrays: dict[str, Spec]) -> dict[str, int]:
    """Network among the arrays of update.X → number of its parameters."""
    ends = [n[len("learner.") : -len(".m")] for n in arrays if n.endswith(".m")]
    return {name: arrays[f"learner.{name}"][0][0] for name in ends}


def shared_kinds(of: KernelKind) -> tuple[KernelKind, KernelKind, KernelKind]:
    """Return the three kinds by which learners share the gradient steps of `of`."""

    def base(k: Kernel) -> dict[str, Spec]:
        """Return the arrays of update.X without its results outside the learner."""
        found = of.arrays(full_kernel(k, of.name))
        return {n: s for n, s in found.items() if n not in STOP and not n.startswith("loss.")}

    def cut(k: Kernel, array: str, only: int | None = None) -> dict[str, Spec]:
        """The shards of an array for each network, whose name is appended; only: this shard
        alone."""
        found, of = dict[str, Spec](), shards(k)
        for name, size in networks(base(k)).items():
            for shard in of if only is None else (only,):
                numbers = shard_range(size, shard, len(of))
                spec: Spec = ((numbers.stop - numbers.start,), "float32")
                found[shard_name(k, f"{array}.{name}", shard)] = spec
        return found

    def sent(k: Kernel, learner: int, only: int | None = None) -> dict[str, Spec]:
        """The arrays that a learner sends for averaging; only: for the reduction of this shard."""
        prefix = f"gradient.{learner}"
        found = cut(k, prefix, only)
        if not only:  # losses and TD errors go to shard 0
            for name in networks(base(k)):
                found[f"{prefix}.loss.{name}"] = ((1,), "float64")
            if k.dims.get("td"):
                found[f"{prefix}.td"] = ((k.dim("batch") // k.dim("learners"),), "float32")
        return found

    def held(k: Kernel) -> dict[str, Spec]:
        """The learner's own arrays."""
        learner = k.dim("learner")
        return {
            learner_array(n, learner): s for n, s in base(k).items() if n.startswith("learner.")
        }

    def gradient_arrays(k: Kernel) -> dict[str, Spec]:
        read = {n: s for n, s in base(k).items() if not n.startswith(("learner.", "batch.td"))}
        return {**read, **held(k), **sent(k, k.dim("learner"))}

    def reduce_arrays(k: Kernel) -> dict[str, Spec]:
        shard = shard_of(k)
        given = {n: s for i in range(k.dim("learners")) for n, s in sent(k, i, shard).items()}
        given |= cut(k, "mean", shard)
        if shard:
            return given
        kept = {f"loss.{name}": ((1,), "float64") for name in networks(base(k))}
        errors = {"batch.td": base(k)["batch.td"]} if k.dims.get("td") else {}
        return {**given, **kept, **errors}

    def step_arrays(k: Kernel) -> dict[str, Spec]:
        constants = {n: s for n, s in base(k).items() if n.startswith("hyper.")}
        return {**constants, **cut(k, "mean"), **held(k)}

    def like(k: Kernel) -> Kernel:
        """One gradient step on a learner's rows; its estimate is used."""
        once: dict[str, Dim] = {"batch": k.dim("batch") // k.dim("learners"), "steps": 1}
        once |= {"epochs": 1} if "epochs" in k.dims else {}
        dims = {**full_kernel(k, of.name).dims, **once}
        return of.kernel(dims, program=k.program, args=k.args, modules=k.modules)

    def gradient_work(k: Kernel) -> Work:
        one = like(k)
        return one.flops, one.bytes_in, one.bytes_out, one.resident_bytes

    def held_numbers(k: Kernel) -> int:
        return sum(networks(base(k)).values())

    def reduce_work(k: Kernel) -> Work:
        averaged = cut(k, "mean", shard_of(k)).values()
        numbers, learners = sum(shape[0] for shape, _ in averaged), k.dim("learners")
        read, written = float(F32 * learners * numbers), float(F32 * numbers)
        return float(learners * numbers), read, written, 0.0

    def step_work(k: Kernel) -> Work:
        n = held_numbers(k)
        flops = float((ADAM_FLOPS + FOLLOW_FLOPS) * n)
        return flops, float((ADAM_BYTES_READ + F32) * n), float(ADAM_BYTES_WRITTEN * n), 0.0

    def share_of(k: Kernel) -> dict[str, tuple[int, int, int]]:
        first, end = rows(k)
        return {n: (1, first, end) for n in base(k) if n.startswith("batch.")}

    gradient = KernelKind(
        name=f"learner_gradient.{of.algorithm}",
        structure="shared",
        count=gradient_work,
        arrays=gradient_arrays,
        writes=("gradient.",),
        sends=("gradient.",),
        repeatable=True,
        side="learns",
        actions=of.actions,
        networks=of.networks,
        like=like,
        rows=share_of,
        code=of.code,
        example=of.example,
        variants={"torch": primitive("torch.shares:bind_gradient", fits=has_loss)},
    )
    reduction = KernelKind(
        name=f"all_reduce.{of.algorithm}",
        structure="shared",
        count=reduce_work,
        arrays=reduce_arrays,
        writes=("mean.", "loss.", "batch.td"),
        sends=("mean.", "batch.td"),
        repeatable=True,
        side="learns",
        actions=of.actions,
        networks=of.networks,
        like=lambda k: replace(k, dims={**k.dims, "learner": 1}) if shard_of(k) > 1 else k,
        operations=lambda k: SUMMED * k.dim("learners") * len(networks(base(k))),
        variants={"torch": primitive("torch.shares:bind_reduction")},
    )
    step = KernelKind(
        name=f"learner_step.{of.algorithm}",
        structure="shared",
        count=step_work,
        arrays=step_arrays,
        writes=("learner.", "learners."),
        side="learns",
        actions=of.actions,
        networks=of.networks,
        like=lambda k: replace(k, dims={**k.dims, "learner": 0}),
        operations=lambda k: STEPPED * len(networks(base(k))),
        variants={"torch": primitive("torch.shares:bind_step")},
    )
    return gradient, reduction, step


DQN_GRADIENT, DQN_REDUCTION, DQN_STEP = shared_kinds(dqn.UPDATE)
PPO_GRADIENT, PPO_REDUCTION, PPO_STEP = shared_kinds(on_policy.PPO)
A2C_GRADIENT, A2C_REDUCTION, A2C_STEP = shared_kinds(on_policy.A2C)
