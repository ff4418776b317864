"""The kinds of algorithms that learn from rollouts, such as PPO and A2C.

Sizes of inference.ppo: envs, obs, act, tanh (hidden layers of tanh: 0 or 1), actor. Of update.*:
envs, obs, act, horizon, tanh, actor, critic, epochs, batch (of a minibatch), steps (gradient steps
of all epochs). Of rollout.ppo and iteration.*: those of their parts. If actions are factored, `act`
is the number of components and `choices` the total number of choices. `scheduled` is 1 if learning
rates have schedules, `stops` is 1 if a target divergence ends gradient steps, `units` as in
`rollouts`. With `kept`, the number of stored vector steps (`rollouts`), a firing of update.* adds
the gradient of one vector step; the last firing of a rollout takes the optimiser's step with the
mean gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pearl_devices.kernel import Kernel
from pearl_devices.kernels import torch_operations
from pearl_devices.kernels.arrays import STOP, bounds, continuous, learner
from pearl_devices.kernels.counting import (
    ADAM_BYTES_READ,
    ADAM_BYTES_WRITTEN,
    F32,
    action_bytes,
    gradient_products,
    gradient_work,
    obs_bytes,
    parameters,
    size,
    sum_of,
)
from pearl_devices.kernels.environments import ENV_STEP, has_native
from pearl_devices.kernels.off_policy import (
    acting_arrays,
    acting_products,
    acting_work,
    has_loss,
    holds_numbers,
    is_outside_network,
    join_arrays,
)
from pearl_devices.kernels.param_sync import PARAM_SYNC
from pearl_devices.kernels.record import KernelKind, Parts, Passes, Spec, Variant, Work, primitive
from pearl_devices.kernels.rollouts import GAE, ROLLOUT_INSERT, judged_steps, results, rows

# Counted from the formulas. Per discrete action or continuous component: a sample and its log
# density (exp, uniform or normal, square, logarithms). Per minibatch row: ratio, clipping, value
# error and their gradients. Per parameter: square, sum and scale of a clipped gradient.
DRAW_FLOPS, ON_POLICY_LOSS_FLOPS, CLIP_FLOPS = 20, 40, 3
LANES = 16
"""Elements of a vector register, and rows of the strip of transposed weights."""


def is_dense(k: Kernel) -> bool:
    """Whether all its networks are dense layers."""
    return not k.modules


def _passes(k: Kernel) -> Mapping[str, Passes]:
    return dict.fromkeys(("actor", "critic"), Passes(1, 1, follow=0, target=False))


def _choices(k: Kernel) -> int:
    """The number of discrete actions, or of components of a continuous action."""
    return k.layers("actor")[-1]


def _draw_work(k: Kernel) -> Work:
    flops, read, written, resident = acting_work(k)
    n = k.dim("envs")
    more = F32 + action_bytes(k)  # density and sample
    return flops + DRAW_FLOPS * n * _choices(k), read, written + n * more, resident


def _draw_arrays(k: Kernel) -> dict[str, Spec]:
    """Arrays of densities and samples beside the actions, without constants of exploration."""
    n, act = k.dim("envs"), continuous(k)
    specs = {name: spec for name, spec in acting_arrays(k).items() if name != "explore"}
    specs["policy.actor"] = ((size(k) + act,), "float32")
    specs["act.log_prob"] = ((n,), "float32")
    return {**specs, **({"act.sample": ((n, act), "float32")} if act else {})}


INFERENCE = KernelKind(
    name="inference.ppo",
    structure="network",
    count=_draw_work,
    arrays=_draw_arrays,
    writes=("act.action", "act.log_prob", "act.sample", "rng.inference"),
    sends=("act.action", "act.log_prob", "act.sample"),
    per_copy=("rng.",),
    per_group=("env.",),
    repeatable=True,
    side="acts",
    stochastic=True,
    products=acting_products,
    operations=torch_operations.of_inference,
    variants={
        "native": primitive("updates.policies:bind_inference", fits=is_dense),
        "torch": primitive("torch.on_policy:bind_inference", on_host=is_outside_network),
    },
)


def _update_work(k: Kernel) -> Work:
    """The work of all gradient steps on a rollout, `steps` in number."""
    flops = gradient_work(k, _passes(k))[0]
    stored, steps = k.dim("batch") * k.dim("steps"), k.dim("steps")
    held = sum(size(k, name) for name in ("actor", "critic"))
    flops += stored * (ON_POLICY_LOSS_FLOPS + DRAW_FLOPS * _choices(k)) + CLIP_FLOPS * steps * held
    row = obs_bytes(k) + F32 * 4 + action_bytes(k)  # log density, value, advantage, return
    read = float(stored * row + steps * ADAM_BYTES_READ * held)
    return flops, read, float(steps * ADAM_BYTES_WRITTEN * held), _scratch(k)


def _scratch(k: Kernel) -> float:
    """Bytes of the native variant's scratch: a copy of a minibatch, and for each network its
    activations, the workspace of the backward pass (`math.nets.scratch`), and its gradient."""
    batch = k.dim("batch")
    held = float(batch * (F32 * (k.dim("obs") + 5) + action_bytes(k)))
    held += F32 * 2 * judged_steps(k) * k.dim("envs")  # the order of the rows
    for name in ("actor", "critic"):
        widths = k.layers(name)
        held += F32 * (batch * sum(widths[1:]) + 2 * (batch + LANES) * max(widths) + size(k, name))
        held += F32 * batch * k.modules[name].numbers if name in k.modules else 0
    return held


_READ = ("rollout.obs", "rollout.action", "rollout.log_prob")


def _update_arrays(k: Kernel) -> dict[str, Spec]:
    """The arrays that the loss of PPO and A2C reads from the rollout."""
    names = ("clip_norm", "clip", "value_clip", "entropy", "value_weight", "normalise", "anneal")
    specs: dict[str, Spec] = {
        **{name: spec for name, spec in rows(k).items() if name in _READ},
        **results(k),
        **{f"hyper.{name}": ((1,), "float64") for name in names},
        "hyper.adam": ((3,), "float64"),
        "hyper.rmsprop": ((2,), "float64"),
        **({"learner.at": ((2,), "int64")} if k.dims.get("kept") else STOP),
        "learner.step": ((1,), "int64"),
        "rng.update": ((2,), "uint64"),
        **bounds(k),
        **({"hyper.target_kl": ((1,), "float64")} if k.dims.get("stops") else {}),
    }
    for name, more in (("actor", continuous(k)), ("critic", 0)):
        specs |= learner(k, name, size(k, name) + more, target=False)
        if k.dims.get("kept"):  # the sum of gradients, then that of losses
            specs[f"learner.{name}.sum"] = ((size(k, name) + more + 1,), "float32")
    return specs


def _update_like(k: Kernel) -> Kernel:
    """A gradient step on one vector step, if a firing learns from one."""
    dims = {n: size for n, size in k.dims.items() if n != "kept"}
    return replace(k, dims={**dims, "horizon": judged_steps(k)})


def _by_step(whole: str, step: str) -> Callable[[Kernel], str]:
    """The primitive for a rollout, or for one vector step of it."""
    return lambda k: f"pearl_devices.primitives.{step if k.dims.get('kept') else whole}"


def _own_arrays(k: Kernel) -> dict[str, Spec]:
    """The whole rollout, for a user-defined loss."""
    return rows(k) | _update_arrays(k)


def update(
    name: str,
    *,
    native: bool = False,
    loss_operations: float | None = None,
    example: str | None = None,
    assumed: bool = True,
    horizons: tuple[int, int] = (8, 256),
    minibatches: bool = False,
) -> KernelKind:
    """Return the kind that takes gradient steps on a rollout. native: its loss is that of PPO and
    A2C; else the torch loss computes it, and the work of the passes is assumed."""
    by_step = _by_step("updates.ppo:bind_update", "updates.ppo_steps:bind_step")
    variants = {"native": Variant(by_step, fits=is_dense)} if native else {}
    by_step = _by_step("torch.on_policy:bind_update", "torch.on_policy:bind_step")
    torch = Variant(by_step, fits=has_loss, on_host=holds_numbers)
    return KernelKind(
        name=f"update.{name}",
        structure="gradient",
        count=_update_work,
        arrays=_update_arrays if native else _own_arrays,
        writes=("learner.", "loss.", "rng.update"),
        side="learns",
        stochastic=True,
        products=lambda k: gradient_products(k, _passes(k)),
        passes=_passes,
        like=_update_like,
        assumed=assumed,
        averaged=native,
        operations=lambda k: torch_operations.of_gradient_steps(
            k, _passes(k), loss_operations, torch_operations.SQUASH
        ),
        code="on_policy" if native else name,
        example=example,
        horizons=horizons,
        minibatches=minibatches,
        variants={**variants, "torch": torch},
    )


_ACTING = ("envs", "obs", "act", "choices", "tanh")
"""Sizes of an acting part, without its network."""


def _rollout_parts(k: Kernel) -> Parts:
    steps = k.dim("horizon")
    acting = {n: k.dims[n] for n in (*_ACTING, "actor") if n in k.dims}
    return (
        (INFERENCE.kernel(acting), steps),
        (ENV_STEP.kernel(k.dims, program=k.program, args=k.args), steps),
        (ROLLOUT_INSERT.kernel(k.dims), steps),
    )


_ROLLOUT_KINDS = (INFERENCE, ENV_STEP, ROLLOUT_INSERT)

ROLLOUT = KernelKind(
    name="rollout.ppo",
    structure="fused",
    count=lambda k: sum_of(_rollout_parts(k)),
    arrays=lambda k: join_arrays(_rollout_parts(k), _ROLLOUT_KINDS),
    writes=tuple(name for kind in _ROLLOUT_KINDS for name in kind.writes),
    stochastic=True,
    parts=_rollout_parts,
    cuts=lambda k: (_rollout_parts(k),),
    products=acting_products,
    rounds=lambda k: float(k.dim("horizon")),
    variants={"native": primitive("updates.ppo_iteration:bind_rollout", fits=has_native)},
)


def iteration(of: KernelKind) -> KernelKind:
    """Return the kind that runs a rollout, its advantages and the steps of `of`, in one call."""

    def rest(k: Kernel) -> Parts:
        sizes = {"actor": parameters(k.layers("actor")) + continuous(k)}
        sizes["critic"] = parameters(k.layers("critic"))
        args = {"network": "actor+critic"}
        judging = {n: size for n, size in k.dims.items() if n != "actor"}
        return (
            (GAE.kernel(judging), 1),
            (of.kernel(k.dims), 1),
            (PARAM_SYNC.kernel(sizes, args=args, params=sum(sizes.values())), 1),
        )

    def parts(k: Kernel) -> Parts:
        return (*_rollout_parts(k), *rest(k))

    def cuts(k: Kernel) -> tuple[Parts, ...]:
        acting = {n: k.dims[n] for n in (*_ACTING, "horizon", "actor") if n in k.dims}
        rollout = ROLLOUT.kernel(acting, program=k.program, args=k.args)
        return parts(k), ((rollout, 1), *rest(k))

    kinds = (*_ROLLOUT_KINDS, GAE, of, PARAM_SYNC)
    return KernelKind(
        name=f"iteration.{of.algorithm}",
        structure="fused",
        count=lambda k: sum_of(parts(k)),
        arrays=lambda k: {"loop.more": ((1,), "int64"), **join_arrays(parts(k), kinds)},
        writes=tuple(name for kind in kinds for name in kind.writes),
        stochastic=True,
        parts=parts,
        cuts=cuts,
        products=of.products,
        passes=of.passes,
        code=of.code,
        horizons=of.horizons,
        minibatches=of.minibatches,
        variants={"native": primitive("updates.ppo_iteration:bind_iteration", fits=has_native)},
    )


PPO = update(
    "ppo",
    native=True,
    loss_operations=78,
    example="pearl.algorithms.ppo:losses",
    assumed=False,
    minibatches=True,
)
A2C = update(
    "a2c",
    native=True,
    loss_operations=50,
    example="pearl.algorithms.a2c:losses",
    assumed=False,
    horizons=(4, 32),
)
PPO_ITERATION, A2C_ITERATION = iteration(PPO), iteration(A2C)
