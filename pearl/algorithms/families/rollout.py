"""The task graph of on-policy algorithms: act, step and store T times, then value the rollout,
learn from it, and copy the parameters.

An iteration is one rollout. The acting side has copies of both networks. The actor chooses. The
critic values the whole rollout at once when it is complete, which costs less than step by step and
gives the same numbers. The learning side gets the rollout with its advantages in one message. All
actions of a rollout come from one copy of the parameters, so no edge may have slack.

Returns of n rewards read a window of the rollout, and a loss that is the mean over its rows reads
one vector step at a time. Then advantages and gradients fire once per vector step, n steps behind
the environments. Only n + 2 vector steps are kept: one is written while the others are read. The
parameters still move once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pearl.algorithms.environments import env_step as env_step_of
from pearl.algorithms.environments import normalised_sizes, optional_sizes, stored_units
from pearl.algorithms.families.replay import buffer_bytes, check_own_name
from pearl.algorithms.learning_rates import write
from pearl.algorithms.networks import own_networks
from pearl.algorithms.returns import steps_ahead
from pearl.graph.liveness import live_rows
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl_devices import Buffers, Kernel, kernel
from pearl_devices.buffers import specs
from pearl_devices.kernel import Arg, Dim
from pearl_devices.kernels import KINDS

if TYPE_CHECKING:
    from pearl.spec.system import System


SPARE = 1
"""Additional kept vector steps: without one, each step would be stored only after the gradient of
an earlier one (40 steps of 200 us with gradients of 300 us: 13.9 ms
instead of 12.8 ms)."""


def layers(system: System) -> dict[str, tuple[int, ...]]:
    """Return the widths of the actor (observation → logits, or means of continuous actions) and of
    the critic (observation → value)."""
    env, a = system.env, system.algorithm
    outputs = env.actions or sum(env.choices) or env.act
    return {
        "actor": (env.obs, *a.widths("actor"), outputs),
        "critic": (env.obs, *a.widths("critic"), 1),
    }


def nparams(of: Kernel) -> int:
    """Return the number of acting-side parameters that a kernel reads, with action deviations."""
    (size,) = (shape[0] for name, (shape, _) in specs(of).items() if name.startswith("policy."))
    return size


def build(
    system: System,
    name: str,
    *,
    losses: str,
    epochs: int = 1,
    minibatches: int = 1,
    options: Mapping[str, Arg] | None = None,
    extra: Mapping[str, int] | None = None,
    by_row: bool = False,
) -> TaskGraph:
    """Build the graph of one algorithm.

    name: of its kernels, update.<name> and, if there is a native one, iteration.<name>.
    losses: the torch loss, `module:callable`.
    epochs: passes over a rollout.
    minibatches: gradient steps per pass. With 1 the loss gets the rollout in the order of time.
    options: keyword arguments of the torch loss. extra: further sizes of the update kernel.
    by_row: the loss of a minibatch is the mean of a loss of each row.
    """
    check_own_name(name, losses)
    a, env, nets = system.algorithm, system.env, layers(system)
    horizon, rows = a.rollout_steps, a.rollout_steps * a.num_envs
    n, once = steps_ahead(a.returns), epochs * minibatches == 1 and "stops" not in (extra or {})
    by_step = n > 0 and by_row and once and not a.normalise_advantages
    judged = 1 if by_step else horizon  # vector steps of a firing
    reach = n if by_step else None if horizon > 1 else 0
    order = (Edge("store", "advantages", 1, judged, reach=reach), Edge("advantages", "learn"))
    live = live_rows(order, "store", ("advantages", "learn"), horizon)
    kept = min(live + SPARE, horizon)
    ahead: dict[str, Dim] = {"ahead": n} if n else {}
    window: dict[str, Dim] = {"kept": kept} if by_step else {}
    modules = own_networks(a.network, env.obs, env.shape, nets)
    nets = {n: (w[0], w[-1]) if n in modules else w for n, w in nets.items()}
    spaces: dict[str, Dim] = {"envs": a.num_envs, "obs": env.obs, "act": env.act}
    factored: dict[str, Dim] = {"choices": sum(env.choices)} if env.choices else {}
    spaces |= factored
    packed: dict[str, Dim] = {"units": units} if (units := stored_units(system)) else {}
    curved: dict[str, Dim] = {"tanh": int(a.activation == "tanh")}
    learned: dict[str, Dim] = {
        **spaces, **packed, **curved, **nets, **window, "horizon": horizon, "epochs": epochs,
        "batch": a.num_envs * judged // minibatches, "steps": epochs * minibatches, **(extra or {}),
        **({"scheduled": 1} if a.scheduled else {}),
    }  # fmt: skip
    actor, critic = ({n: own} if (own := modules.get(n)) else {} for n in ("actor", "critic"))
    inference = kernel("inference.ppo", {**spaces, **curved}, modules=actor, actor=nets["actor"])
    env_step = env_step_of(system)
    insert = kernel("rollout_insert", {**spaces, **packed}, horizon=kept)
    judging = {**spaces, **packed, **curved, **ahead, **window, "horizon": horizon}
    gae = kernel("gae", judging, modules=critic, critic=nets["critic"])
    update = kernel(f"update.{name}", learned, program=losses, args=options, modules=modules)
    sent = replace(update, dims={**learned, "kept": 1}) if by_step else update
    sizes = {"actor": nparams(inference), "critic": nparams(gae)}
    params = sum(sizes.values())
    sync = kernel("param_sync", {**sizes}, args={"network": "actor+critic"}, params=params)
    whole = 0 if normalised_sizes(system) else a.num_envs
    tasks = (
        Task("act", inference, reads=("policy",), environments=a.num_envs),
        Task("step", env_step, writes=("environments",), environments=whole),
        Task("store", insert, writes=("rollout",)),
        Task("advantages", gae, reads=("policy",), writes=("rollout",)),
        Task("learn", update, writes=("learner",)),
        Task("sync", sync, reads=("learner",), writes=("policy",), copies=True),
    )
    drawn = buffer_bytes(inference, "act.log_prob") + buffer_bytes(inference, "act.sample")
    edges = (
        Edge("act", "step", bytes=buffer_bytes(inference, "act.action")),
        Edge("step", "act", tokens_seq=1, bytes=buffer_bytes(inference, "env.obs")),
        Edge("act", "store", bytes=drawn),
        Edge("step", "store", bytes=buffer_bytes(insert, "step.")),
        order[0],
        Edge("advantages" if judged == horizon else "learn", "store", judged, 1, kept),
        replace(order[1], bytes=buffer_bytes(sent, "rollout.")),
        Edge("learn", "sync", 1, horizon // judged),
        Edge("sync", "learn", horizon // judged, 1, horizon // judged),
        Edge("sync", "act", horizon, 1, horizon, bytes=4.0 * params),
        Edge("act", "sync", 1, horizon),
        *((Edge("learn", "advantages", tokens_seq=1),) if by_step else ()),
        *(Edge(task, task, tokens_seq=1) for task in ("step", "store", "learn", "sync")),
    )
    fusions: list[Fusion] = []
    apart = by_step or normalised_sizes(system) or optional_sizes(system) or packed or modules
    if not apart:
        acting = {n: learned[n] for n in (*spaces, *curved, "actor", "horizon")}
        program, args = env.id, dict(env.args)
        fused = kernel("rollout.ppo", acting, program=program, args=args)
        fusions.append(Fusion("rollout", ("act", "step", "store"), fused))
        if f"iteration.{name}" in KINDS and not n:
            fused = kernel(f"iteration.{name}", learned, program=program, args=args)
            fusions.append(Fusion("iteration", tuple(t.name for t in tasks), fused))
    return TaskGraph(
        name,
        tasks,
        edges,
        states={
            "environments": buffer_bytes(env_step, "env."),
            "policy": 4.0 * params,
            "learner": buffer_bytes(update, "learner."),
            "rollout": buffer_bytes(gae, "rollout."),
        },
        fusions=tuple(fusions),
        env_steps=rows,
        updates=epochs * minibatches,
        batch=rows // minibatches,
    )


def start(buffers: Buffers, system: System, seed: int, *, updates: int = 1) -> None:
    """Write common first values: both networks with their copies, and the constants.

    updates: gradient steps of one rollout. Networks are orthogonal; the actor's last layer starts
    near 0, so the first policy is nearly uniform, or has means near the middle.
    """
    from pearl_devices.primitives.math.rng import key
    from pearl_devices.primitives.updates.policies import orthogonal_params

    a, env = system.algorithm, system.env
    rollouts = math.ceil(system.train.steps / (a.rollout_steps * a.num_envs))
    for name, gain in (("actor", 0.01), ("critic", 1.0)):
        widths, stream = layers(system)[name], key(seed, f"network {name}")
        own = own_networks(a.network, env.obs, env.shape, {name: widths})
        if own:
            from pearl_devices.primitives.torch.modules import first_values

            first = first_values(own[name], stream)
        else:
            first = orthogonal_params(widths, stream, final_gain=gain)
        for side in ("learner", "policy"):
            buffers[f"{side}.{name}"][: first.size] = first
            buffers[f"{side}.{name}"][first.size :] = a.log_std
        write(buffers, name, a.learning_rate, rollouts * updates)
    buffers["hyper.anneal"][:] = rollouts * updates if a.anneal else 0
    buffers["hyper.adam"][:] = a.adam.beta1, a.adam.beta2, a.adam.eps
    buffers["hyper.clip_norm"][:] = a.max_grad_norm
    buffers["hyper.discount"][:] = a.discount
    buffers["hyper.gae_lambda"][:] = 1.0 if a.returns == "monte_carlo" else a.gae_lambda
    buffers["hyper.entropy"][:] = a.entropy
    buffers["hyper.value_weight"][:] = a.value_weight
    buffers["hyper.normalise"][:] = a.normalise_advantages
    if env.choices:
        buffers["act.choices"][:] = env.choices
    elif env.act:
        buffers["act.low"][:] = env.act_low
        buffers["act.high"][:] = env.act_high


def log_prob_and_entropy(nets: Any, batch: Any) -> tuple[Any, Any]:
    """Return log densities (B,) of batch.action and entropies (B,) under the current policy, in
    torch: of a soft-max over logits, of one soft-max per component of a factored action
    (`nets.choices`), or of a Gaussian with `nets.log_std()`, summed over components."""
    import torch

    out = nets.actor(batch.obs)
    action = batch.action
    if not hasattr(nets, "log_std"):
        taken = action.reshape(len(out), -1)
        sizes: tuple[int, ...] = getattr(nets, "choices", (out.shape[1],))
        logits = [torch.log_softmax(part, dim=1) for part in torch.split(out, [*sizes], dim=1)]
        chosen = [each.gather(1, taken[:, c : c + 1]) for c, each in enumerate(logits)]
        entropies = [-(each.exp() * each).sum(1) for each in logits]
        return torch.cat(chosen, 1).sum(1), torch.stack(entropies, 1).sum(1)
    log_std = nets.log_std()
    away = (action - out) * torch.exp(-log_std)
    each = -0.5 * away.square() - log_std - 0.5 * math.log(2 * math.pi)
    entropy = (log_std + 0.5 + 0.5 * math.log(2 * math.pi)).sum()
    return each.sum(1), entropy.expand(len(out))


def normal(advantage: Any) -> Any:
    """Normalise in torch to mean 0 and unbiased standard deviation 1 (1e-8 added), as the native
    variant does; a single row is unchanged."""
    from pearl_devices.primitives.torch import programs

    return programs.normal(advantage)
