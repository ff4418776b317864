"""The kinds of an algorithm with a replay: acting, gradient steps, and both in one call.

Sizes of inference.*: envs, obs, act, actions, and one network (widths) under its own name. Of
update.*: batch, steps, obs, act, and its networks under their own names. Of learn.*: those of its
parts. Of iteration.*: those of its parts, and vector_steps, the firings of acting; its program is
the environment. `act` is 0 for discrete actions; `actions` is their number, by default the number
of outputs of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pearl_devices.kernel import Kernel
from pearl_devices.kernels import torch_operations
from pearl_devices.kernels.arrays import STOP, bounds, learner
from pearl_devices.kernels.arrays import actions as actions_of
from pearl_devices.kernels.counting import (
    F32,
    activations_bytes,
    forward_flops,
    forward_products,
    gradient_products,
    gradient_work,
    parameters,
    size,
    sum_of,
)
from pearl_devices.kernels.environments import ENV_STEP, has_native
from pearl_devices.kernels.param_sync import PARAM_SYNC
from pearl_devices.kernels.record import (
    KernelKind,
    Networks,
    Parts,
    Passes,
    Product,
    Spec,
    Variant,
    Work,
    primitive,
)
from pearl_devices.kernels.replay import (
    REPLAY_INSERT,
    REPLAY_SAMPLE,
    REPLAY_UPDATE,
    batch,
    errors,
)

Counted = Callable[[Kernel], Mapping[str, Passes]]
"""Kernel → network → number of its passes in one gradient step."""


def acting_work(k: Kernel) -> Work:
    """The work of one forward pass for a batch of environments."""
    layers, n = k.layers(), k.dim("envs")
    own = next(iter(k.modules.values()), None)
    return (
        n * own.flops if own else forward_flops(layers, n),
        float(F32 * (size(k) + n * layers[0])),
        float(F32 * n * layers[-1]),
        float(F32 * n * own.numbers) if own else activations_bytes(layers, n),
    )


def acting_products(k: Kernel) -> tuple[Product, ...]:
    """Matrix products of the forward pass; none if a network is a module with unknown layers."""
    return () if k.modules else tuple(forward_products(k.layers(), k.dim("envs")))


def discrete_actions(k: Kernel) -> int:
    """The number of discrete actions of an inference; 0 for continuous actions."""
    if k.dim("act"):
        return 0
    if "actions" in k.dims:
        return k.dim("actions")
    return k.layers()[-1] - (k.dim("duelling") if "duelling" in k.dims else 0)


def acting_arrays(k: Kernel) -> dict[str, Spec]:
    n, (network,) = k.dim("envs"), k.networks
    return {
        "env.obs": ((n, k.dim("obs")), "float32"),
        f"policy.{network}": ((size(k),), "float32"),
        "explore": ((4,), "float64"),
        "rng.inference": ((2,), "uint64"),
        **actions_of(k),
        **bounds(k),
    }


def holds_numbers(name: str) -> bool:
    """Return whether a torch program reads the array as numbers: constants, counters, streams."""
    return name.startswith(("hyper.", "rng.")) or name.endswith((".step", ".steps", ".at"))


def is_outside_network(name: str) -> bool:
    """Return whether the forward pass of an acting network does not read the array."""
    return not name.startswith(("env.obs", "policy."))


def inference(
    name: str,
    *,
    native: bool = True,
    stochastic: bool = True,
    actions: Literal["discrete", "continuous"] = "continuous",
    networks: Networks | None = None,
) -> KernelKind:
    """Return the kind that acts. native: `primitives.updates.<name>` implements it."""
    variants = {"native": primitive(f"updates.{name}:bind_inference")} if native else {}
    return KernelKind(
        name=f"inference.{name}",
        structure="network",
        count=acting_work,
        arrays=acting_arrays,
        writes=("act.action", "rng.inference"),
        sends=("act.action",),
        per_copy=("rng.",),
        per_group=("env.",),
        repeatable=True,
        side="acts",
        stochastic=stochastic,
        products=acting_products,
        operations=torch_operations.of_inference,
        actions=actions,
        networks=networks,
        variants={
            **variants,
            "torch": primitive("torch.off_policy:bind_inference", on_host=is_outside_network),
        },
    )


def has_loss(k: Kernel) -> bool:
    """Whether a kernel names a torch loss."""
    return k.program is not None


TORCH = {"torch": primitive("torch.off_policy:bind_update", fits=has_loss, on_host=holds_numbers)}
BFLOAT16 = {
    "torch-bf16": primitive(
        "torch.off_policy:bind_update_bfloat16", fits=has_loss, on_host=holds_numbers
    )
}


def _assumed(k: Kernel) -> Mapping[str, Passes]:
    return dict.fromkeys(k.networks, Passes(2, 1))


def update(
    name: str,
    passes: Counted | None = None,
    *,
    variants: Mapping[str, Variant] = TORCH,
    hyper: Mapping[str, int] | None = None,
    stochastic: bool = True,
    period: str | None = None,
    loss_operations: float | None = None,
    actor_operations: float = torch_operations.SQUASH,
    example: str | None = None,
    actions: Literal["discrete", "continuous"] = "continuous",
    networks: Networks | None = None,
    averaged: bool = False,
) -> KernelKind:
    """Return the kind that takes gradient steps.

    passes: None if nobody counted them. Each network is then assumed to run forward twice (loss and
        target) and backward once.
    hyper: further constants, hyper.<name> → number of values.
    stochastic: a gradient step draws random numbers.
    period: name of the size that gives the number of gradient steps after which passes repeat.
    """
    counted = passes or _assumed

    def arrays(k: Kernel) -> dict[str, Spec]:
        specs: dict[str, Spec] = {
            **batch(k),
            **errors(k),
            **STOP,
            "learner.step": ((1,), "int64"),
            "hyper.adam": ((3,), "float64"),
            "hyper.tau": ((1,), "float64"),
            "hyper.target_every": ((1,), "float64"),
            "hyper.clip_norm": ((1,), "float64"),
            "hyper.huber": ((1,), "float64"),
            **{f"hyper.{n}": ((numbers,), "float64") for n, numbers in (hyper or {}).items()},
            **bounds(k),
        }
        if stochastic:
            specs["rng.update"] = ((2,), "uint64")
        for network, runs in counted(k).items():
            specs |= learner(k, network, size(k, network), target=runs.target)
        return specs

    def repeats(k: Kernel) -> int:
        return k.dim(period) if period else 1

    return KernelKind(
        name=f"update.{name}",
        structure="gradient",
        count=lambda k: gradient_work(k, counted(k)),
        arrays=arrays,
        writes=("batch.td", "learner.", "loss.", "rng.update"),
        sends=("batch.td",),
        side="learns",
        stochastic=stochastic,
        products=lambda k: gradient_products(k, counted(k), repeats(k)),
        rounds=lambda k: k.dim("steps") / repeats(k),
        passes=counted,
        assumed=passes is None,
        averaged=averaged,
        operations=lambda k: torch_operations.of_gradient_steps(
            k, counted(k), loss_operations, actor_operations
        ),
        code=name,
        example=example,
        actions=actions,
        networks=networks,
        variants=variants,
    )


def learn(of: KernelKind, variants: Mapping[str, Variant]) -> KernelKind:
    """Return the kind that samples, takes gradient steps and writes priorities, in one call."""

    def parts(k: Kernel) -> Parts:
        tail = (REPLAY_UPDATE,) if k.dim("prioritised") else ()
        return tuple((kind.kernel(k.dims), 1) for kind in (REPLAY_SAMPLE, of, *tail))

    return KernelKind(
        name=f"learn.{of.algorithm}",
        structure="fused",
        count=lambda k: sum_of(parts(k)),
        arrays=lambda k: join_arrays(parts(k), (REPLAY_SAMPLE, of, REPLAY_UPDATE)),
        writes=(*REPLAY_SAMPLE.writes, *of.writes, *REPLAY_UPDATE.writes),
        side="learns",
        stochastic=of.stochastic,
        parts=parts,
        cuts=lambda k: (parts(k),),
        products=of.products,
        rounds=of.rounds,
        passes=of.passes,
        accesses=lambda k: (
            REPLAY_SAMPLE.accesses(k) + REPLAY_UPDATE.accesses(k) * bool(k.dim("prioritised"))
        ),
        code=of.code,
        actions=of.actions,
        networks=of.networks,
        variants=variants,
    )


def iteration(policy: str, acts: KernelKind, learns: KernelKind) -> KernelKind:
    """Return the kind that runs an iteration in one call. policy: the name of the acting
    network."""

    def parts(k: Kernel) -> Parts:
        vector_steps = k.dim("vector_steps")
        names = ("envs", "obs", "act", "actions", policy, "duelling")
        acting = {n: k.dims[n] for n in names if n in k.dims}
        sync = {"params": parameters(k.layers(policy))}
        return (
            (acts.kernel(acting), vector_steps),
            (ENV_STEP.kernel(k.dims, program=k.program, args=k.args), vector_steps),
            (REPLAY_INSERT.kernel(k.dims), vector_steps),
            (learns.kernel(k.dims), 1),
            (PARAM_SYNC.kernel(sync, args={"network": policy}), 1),
        )

    kinds = (acts, ENV_STEP, REPLAY_INSERT, learns, PARAM_SYNC)
    return KernelKind(
        name=f"iteration.{learns.algorithm}",
        structure="fused",
        count=lambda k: sum_of(parts(k)),
        arrays=lambda k: {"loop.more": ((1,), "int64"), **join_arrays(parts(k), kinds)},
        writes=tuple(name for kind in kinds for name in kind.writes),
        stochastic=learns.stochastic,
        parts=parts,
        cuts=lambda k: (parts(k),),
        rounds=learns.rounds,
        passes=learns.passes,
        code=learns.code,
        actions=learns.actions,
        networks=learns.networks,
        variants={
            "native": primitive(f"updates.{learns.algorithm}:bind_iteration", fits=has_native)
        },
    )


def join_arrays(parts: Parts, kinds: tuple[KernelKind, ...]) -> dict[str, Spec]:
    """The arrays of all parts of a fused kernel; kinds: of the parts, in the same order."""
    pairs = zip(parts, kinds, strict=False)  # an unprioritised replay has no last part
    return {name: spec for (part, _), kind in pairs for name, spec in kind.arrays(part).items()}
