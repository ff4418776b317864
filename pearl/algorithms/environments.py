"""The env_step kernel of a system, with the normalisation of its spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_devices import Buffers, Kernel, kernel

if TYPE_CHECKING:
    from pearl.spec.system import System


def normalised_sizes(system: System) -> dict[str, int]:
    """Return the normalisations of env_step as sizes; empty without normalisation."""
    asked = getattr(system.algorithm, "normalise", None)
    if asked is None:
        return {}
    wanted = {"normalise_obs": asked.observations, "normalise_reward": asked.rewards}
    return {name: 1 for name, on in wanted.items() if on}


def env_step(system: System) -> Kernel:
    """Return the kernel of a vector step of all environments."""
    env = system.env
    sizes = {
        "envs": system.algorithm.num_envs,
        "obs": env.obs,
        "act": env.act,
        **optional_sizes(system),
    }
    return kernel(
        "env_step", {**sizes, **normalised_sizes(system)}, program=env.id, args=dict(env.args)
    )


def optional_sizes(system: System) -> dict[str, int]:
    """Return sizes of optional features: factored actions, stacked frames, scaled images."""
    env = system.env
    wanted = {"choices": sum(env.choices), "stack": env.stack, "scaled": int(bool(env.pixels))}
    return {name: size for name, size in wanted.items() if size}


def stored_units(system: System) -> int:
    """Return the uint8 per 1.0 of an observation, if a replay or a rollout stores these; 0 if it
    stores float32, as it does with normalised observations."""
    return 0 if "normalise_obs" in normalised_sizes(system) else system.env.units


def start_normalisation(buffers: Buffers, system: System) -> None:
    """Write first values of the running statistics, if there are any."""
    from pearl_devices.primitives.envs.normalise import initialise

    if normalised_sizes(system):
        a = system.algorithm
        initialise(buffers, clip=a.normalise.clip, epsilon=a.normalise.epsilon, discount=a.discount)
