"""First values of algorithms with a replay: sizes from the spec, networks, constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pearl.algorithms.environments import normalised_sizes, stored_units
from pearl.algorithms.families.replay import Sizes
from pearl.algorithms.learning_rates import write
from pearl.algorithms.networks import own_networks
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.spec.system import System


def sizes(system: System) -> Sizes:
    """Return the sizes of the loop. Replay capacity is rounded up to whole vector steps."""
    a = system.algorithm
    return Sizes(
        program=system.env.id,
        env_args=dict(system.env.args),
        envs=a.num_envs,
        obs=system.env.obs,
        act=system.env.act,
        capacity=-(-a.replay.capacity // a.num_envs) * a.num_envs,
        prioritised=a.replay.kind == "prioritised",
        fanout=a.replay.fanout,
        batch=a.batch_size,
        n_step=a.n_step,
        replay_ratio=a.replay_ratio,
        normalise=normalised_sizes(system),
        groups=system.limits.env_groups,
        network=a.network,
        shape=system.env.shape,
        frames=_frames(system),
        train_every=a.together,
        scheduled=a.scheduled,
        scaled=bool(system.env.pixels),
        units=stored_units(system),
        actions=0 if system.env.act else system.env.actions,
    )


CUT_EVERY = 40
"""Least env steps between two cut episodes whose frames are kept; assumed if the environment has no
shorter step limit. So the last frames take 2.5 % of all."""


def _frames(system: System) -> dict[str, int]:
    """Sizes of a replay of frames (`pearl_devices.primitives.replay.frames`); empty without
    frames."""
    a, stack = system.algorithm, system.env.stack
    if not stack:
        return {}
    apart = min(system.env.max_episode_steps or CUT_EVERY, CUT_EVERY)
    return {"stack": stack, "ends": -(-a.replay.capacity // apart) + a.num_envs}


def start_network(
    buffers: Buffers,
    system: System,
    name: str,
    layers: tuple[int, ...],
    seed: int,
    *,
    policy: bool = False,
    final_scale: float | None = None,
) -> None:
    """Draw network `name` from its own random stream. Copy it to its target, if it has one, and
    with `policy` to the acting side. A torch module starts with torch's own values and ignores
    final_scale."""
    from pearl_devices.primitives.math.nets import init_params
    from pearl_devices.primitives.math.rng import key

    env, stream = system.env, key(seed, f"network {name}")
    own = own_networks(system.algorithm.network, env.obs, env.shape, {name: layers})
    if own:
        from pearl_devices.primitives.torch.modules import first_values

        start = first_values(own[name], stream)
    else:
        start = init_params(layers, stream, final_scale=final_scale)
    buffers[f"learner.{name}"][:] = start
    if f"learner.{name}.target" in buffers:
        buffers[f"learner.{name}.target"][:] = start
    if policy:
        buffers[f"policy.{name}"][:] = start


def gradient_steps(system: System) -> float:
    """Return the number of gradient steps of the whole run."""
    a = system.algorithm
    return float(max(system.train.steps - a.learning_starts, 1) * a.replay_ratio)


def constants(buffers: Buffers, system: System) -> None:
    """Write the constants of optimiser, targets, replay and action bounds into their arrays."""
    a = system.algorithm
    buffers["hyper.adam"][:] = a.adam.beta1, a.adam.beta2, a.adam.eps
    buffers["hyper.tau"][:] = a.target.tau or 0.0
    buffers["hyper.target_every"][:] = a.target.every or 0
    buffers["hyper.clip_norm"][:] = a.max_grad_norm
    buffers["hyper.huber"][:] = a.huber
    buffers["hyper.discount"][:] = a.discount
    if a.replay.kind == "prioritised":
        draws = gradient_steps(system)
        buffers["replay.priority"][:] = a.replay.alpha, a.replay.epsilon, 1.0
        buffers["replay.beta"][:] = a.replay.beta, a.replay.beta_final, draws
    if system.env.act:
        buffers["act.low"][:] = system.env.act_low
        buffers["act.high"][:] = system.env.act_high


def start(
    buffers: Buffers,
    system: System,
    seed: int,
    networks: Mapping[str, tuple[int, ...]],
    policy: str,
) -> None:
    """Write all first values of a user-defined algorithm: its networks, one learning rate for all,
    the constants, and its exploration."""
    a = system.algorithm
    for name, layers in networks.items():
        start_network(buffers, system, name, layers, seed, policy=name == policy)
        write(buffers, name, a.learning_rate, gradient_steps(system))
    constants(buffers, system)
    e = a.exploration
    discrete = e.initial, e.final, e.steps, a.learning_starts
    buffers["explore"][:] = (e.noise, 0.0, 0.0, a.learning_starts) if system.env.act else discrete
