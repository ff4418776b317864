"""evaluation: greedy episodes of a copy of the policy, several in lock-step.

A firing is one evaluation of the parameters at its start. Its episodes have fixed seeds, so the
result depends on the parameters only. A vector step is one forward pass for all running episodes,
and a step of each environment. When an episode ends, its row takes the next episode; rows without
an episode cost nothing.

No other task waits for this firing, and it fires once in many iterations. So it is a task beside
the loop (`TaskGraph.evaluation`), and its parts give its estimate.
"""

from __future__ import annotations

from collections.abc import Mapping

from pearl_devices.kernel import Arg, Dim, Kernel
from pearl_devices.kernels.arrays import STATE, bounds
from pearl_devices.kernels.counting import sum_of
from pearl_devices.kernels.environments import ENV_STEP
from pearl_devices.kernels.environments import has_native as native_environment
from pearl_devices.kernels.interface import resize, states
from pearl_devices.kernels.record import KernelKind, Parts, Spec, Variant, primitive

ROWS = 16
"""Largest number of episodes in lock-step (assumed): a forward pass of this many rows costs little
more than one of a single row, and each external environment takes memory."""

ACTING, CHOOSING = "policy.kind", "policy.program"
"""Keys in a kernel's `args` that are no valid keyword arguments: the kind of the acting kernel, and
the program that chooses its actions."""


PLAYED = "evaluation.interface."
"""Prefix of the names of copied arrays that user-defined kernels read."""


def evaluation(
    acting: Kernel, program: str, args: Mapping[str, Arg], episodes: int, **sizes: Dim
) -> Kernel:
    """Return the kernel that plays `episodes` with the policy of `acting`.

    program, args: of the environment.
    sizes: max_steps, and those of `EVALUATION` that the environment has.
    """
    how = {ACTING: acting.kind, **({CHOOSING: acting.program} if acting.program else {})}
    rows = min(episodes, ROWS)
    dims = {**acting.dims, **sizes, "episodes": episodes, "envs": rows}
    return EVALUATION.kernel(
        dims,
        program=program,
        args={**args, **how},
        modules=acting.modules,
        interface=tuple(resize(each, rows) for each in acting.interface),
    )


def acting(k: Kernel) -> Kernel:
    """Return the kernel that acts in an evaluation."""
    choosing = k.args.get(CHOOSING)
    return Kernel(
        str(k.args[ACTING]),
        k.dims,
        program=None if choosing is None else str(choosing),
        modules=k.modules,
    )


def env_args(k: Kernel) -> dict[str, Arg]:
    """The keyword arguments of the environment."""
    return {name: value for name, value in k.args.items() if name not in (ACTING, CHOOSING)}


def policy_of(k: Kernel) -> tuple[str, Spec]:
    """The name of the evaluated parameters' array, with its shape and type."""
    from pearl_devices.kernels import kind_of

    arrays = kind_of(acting(k)).arrays(acting(k))
    (found,) = ((name, spec) for name, spec in arrays.items() if name.startswith("policy."))
    return found


def _arrays(k: Kernel) -> dict[str, Spec]:
    rows, episodes = k.dim("envs"), k.dim("episodes")
    name, policy = policy_of(k)
    found: dict[str, Spec] = {
        name: policy,
        "evaluation.policy": policy,
        "evaluation.obs": ((rows, k.dim("obs")), "float32"),
        "evaluation.state": ((rows, STATE), "float64"),
        "evaluation.episode": ((rows,), "int64"),
        "evaluation.elapsed": ((rows,), "int64"),
        "evaluation.return": ((rows,), "float64"),
        "evaluation.first": ((episodes, STATE), "float64"),
        "evaluation.returns": ((episodes,), "float64"),
        "evaluation.cut": ((episodes,), "uint8"),
        "evaluation.at": ((2,), "int64"),
        "evaluation.seed": ((1,), "uint64"),
        **bounds(k),
    }
    if k.dims.get("normalise_obs"):
        found["evaluation.statistics"] = ((2, k.dim("obs")), "float64")
        found["normalise.obs"] = ((2, k.dim("obs")), "float64")
        found["normalise.options"] = ((3,), "float64")
    for name, spec in states(k).items():
        found[name] = spec
        found[PLAYED + name] = spec
    return found


def vector_steps(k: Kernel) -> int:
    """Most vector steps of one evaluation: every episode reaches its step limit."""
    return -(-k.dim("episodes") // k.dim("envs")) * k.dim("max_steps")


def _environment(k: Kernel) -> Kernel:
    """The kernel that steps the environments of an evaluation; it does not normalise."""
    sizes = ("envs", "obs", "act", "stack", "states", "choices", "scaled")
    dims = {name: k.dims[name] for name in sizes if name in k.dims}
    return ENV_STEP.kernel(dims, program=k.program, args=env_args(k))


def evaluation_parts(k: Kernel) -> Parts:
    """The kernels by which an evaluation is counted and estimated: for each vector step a choice of
    actions, a step of the environments and a firing of each kernel between them."""
    from pearl_devices.kernels import kind_of

    bare, steps = acting(k), vector_steps(k)
    chosen = kind_of(bare).kernel(bare.dims, program=bare.program, modules=bare.modules)
    # A user-defined kernel counts as in training, where its function was timed.
    between = tuple((kind_of(e).kernel(e.dims, args=e.args), steps) for e in k.interface)
    return (chosen, steps), (_environment(k), steps), *between


def has_native(k: Kernel) -> bool:
    """Whether environment and network have a native implementation."""
    plain = not (k.modules or k.interface or k.dims.get("states") or CHOOSING in k.args)
    bare = Kernel(k.kind, k.dims, program=k.program, args=env_args(k))
    return plain and native_environment(bare)


EVALUATION = KernelKind(
    name="evaluation",
    structure="evaluation",
    count=lambda k: sum_of(evaluation_parts(k)),
    arrays=_arrays,
    writes=("evaluation.",),
    variants={
        "native": primitive("envs.episodes:bind", fits=has_native),
        "gymnasium": Variant("pearl_devices.primitives.envs.gym_episodes:bind"),
    },
)
"""Sizes: episodes; envs, its rows in lock-step; max_steps, the step limit of an episode; those of
the acting kernel; stack, states, scaled and normalise_obs as of env_step."""
