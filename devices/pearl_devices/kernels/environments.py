"""env_step: one step of every environment, native, through gymnasium or through envpool."""

from __future__ import annotations

from importlib.util import find_spec

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import EPISODES, STATE, actions, step
from pearl_devices.kernels.counting import F32, action_bytes
from pearl_devices.kernels.record import KernelKind, Spec, Work, primitive
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.system import host_system


def has_native(k: Kernel) -> bool:
    """Whether the environment has a native implementation with these sizes and no arguments."""
    sizes = NATIVE_ENVS.get(str(k.program))
    given = tuple(k.dims.get(name, 0) for name in ("obs", "act", "stack"))
    return sizes is not None and not k.args and given == (sizes.obs, sizes.act, 0)


def _envpool(k: Kernel) -> bool:
    plain = not any(k.dims.get(name) for name in ("states", "stack", "choices", "scaled"))
    named = k.program is not None and ":" not in k.program
    return plain and named and find_spec("envpool") is not None


def _named(k: Kernel) -> bool:
    return k.program is not None


def _alone(k: Kernel) -> bool:
    """Whether it has a program without a native implementation; such a program may wait."""
    return host_system.PROCESSES and _named(k) and str(k.program) not in NATIVE_ENVS


def _work(k: Kernel) -> Work:
    n, obs, act = k.dim("envs"), k.dim("obs"), action_bytes(k)
    # Normalisation: about 12 flops per number, and 12 bytes read and written (float32 and the mean
    # and variance of its column).
    numbers = n * (2 * obs * bool(k.dims.get("normalise_obs")))
    numbers += n * bool(k.dims.get("normalise_reward"))
    # About 60 flops per state variable: classic control with a sine, a cosine and two quotients.
    return (
        60.0 * n * obs + 12.0 * numbers,
        float(n * ((8 + F32) * obs + act) + 12 * numbers),  # state in float64, observation, action
        # Both observations, the next observation, reward, flags.
        float(n * ((8 + 3 * F32) * obs + act + 6) + F32 * numbers),
        0.0,
    )


def _arrays(k: Kernel) -> dict[str, Spec]:
    n = k.dim("envs")
    return {
        "env.obs": ((n, k.dim("obs")), "float32"),
        "env.state": ((n, STATE), "float64"),
        "env.elapsed": ((n,), "int64"),
        "env.return": ((n,), "float64"),
        "episode.returns": ((EPISODES,), "float64"),
        "episode.lengths": ((EPISODES,), "int64"),
        "episode.count": ((1,), "int64"),
        **actions(k),
        "rng.env_step": ((2,), "uint64"),
        **step(k),
        **_statistics(k),
    }


def _statistics(k: Kernel) -> dict[str, Spec]:
    """Running mean and variance of an env_step that normalises."""
    n, found = k.dim("envs"), dict[str, Spec]()
    for what, columns in (("obs", k.dim("obs")), ("reward", 1)):
        if k.dims.get(f"normalise_{what}"):
            found[f"normalise.{what}"] = ((2, columns), "float64")
            found[f"normalise.{what}.count"] = ((1,), "float64")
            found["normalise.options"] = ((3,), "float64")
    if "normalise.reward" in found:
        found["normalise.return"] = ((n,), "float64")
    return found


ENV_STEP = KernelKind(
    name="env_step",
    structure="environment",
    count=_work,
    arrays=_arrays,
    writes=("env.", "episode.", "rng.env_step", "step.", "normalise."),
    sends=("step.",),
    per_copy=("rng.", "episode."),
    per_group=("env.", "rng.env_step", "normalise.return"),
    repeatable=True,
    side="acts",
    variants={
        "native": primitive("envs.native_envs:bind_step", fits=has_native),
        "gymnasium": primitive("envs.gym_envs:bind_step", fits=_named),
        "processes": primitive("envs.gym_processes:bind_step", fits=_alone),
        "envpool": primitive("envs.envpool_envs:bind_step", fits=_envpool),
    },
)
"""Sizes: envs, obs, act; normalise_obs and normalise_reward (1 if it normalises,
`primitives.envs.normalise`); states, the number of states if observations are state numbers;
choices if actions are factored; scaled (1 if observed images are scaled to 0 … 1)."""
