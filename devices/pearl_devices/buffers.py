"""The arrays that kernels share: which names each kernel kind reads and writes, with shape and dtype.

Everything that a run is made of lies in these arrays: parameters, optimiser moments, replay, the
environments' states, random counters, hyper-parameters. So a checkpoint is these arrays and nothing
else, and a variant of a kernel (native, torch) is another function over the same memory.

Sizes: N environments, O observation and A action components, C replay rows, k gradient steps a firing,
B batch size, P parameters of a network. Discrete actions are int64 without the A axis.

| name | shape | what |
|---|---|---|
| env.obs | N, O | what the policy acts on next (after an automatic reset) |
| env.state, env.elapsed, env.return | N, 8; N; N | native environments: state, steps and return of the running episode |
| episode.returns, episode.lengths, episode.count | 4096; 4096; 1 | ring of finished episodes, and how many there were |
| act.action | N[, A] | chosen actions; act.low, act.high (A): their bounds |
| explore | 4 | discrete actions: epsilon at first, at last, env steps between, env steps of random action at the start; continuous ones: noise standard deviation as a share of half the action range (0 for inference.sac, which draws from its policy), 0, 0, env steps of random action |
| step.obs, step.action, step.reward, step.next_obs, step.terminated, step.truncated | N, … | the transition of this step; next_obs is the true successor, not the reset; truncated has bit 1 (value 2) where the environment was started anew just before |
| replay.obs … replay.truncated | C, … | the same, stored; row = time · N + environment, modulo C |
| replay.frame, replay.depth, replay.ahead, replay.last, replay.last_row, replay.clock | C + (stack - 1) · N, F; …; N, F; ends, F; ends; 2 | instead of replay.obs and replay.next_obs where observations are stacks of frames of F uint8 (see `primitives.frames`); env.*, step.* and batch.* hold whole stacks, float32 of 0 … 255, flattened |
| replay.cursor | 2 | next row to write; rows filled |
| replay.tree | T | K-ary sum tree over priorities, root first |
| replay.priority | 3 | alpha; constant added to |td|; largest priority so far |
| replay.beta | 3 | first and last importance exponent; sample firings between |
| batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight, batch.index | k, B, … | reward is the n-step return; discount is gamma^m · (1 − terminated) for the m steps it spans |
| batch.td | k, B | absolute TD error of each sample |
| learner.X, learner.X.target, learner.X.m, learner.X.v | P | network X, its target (where it has one), Adam's moments; one flat vector, per layer the weights (in, out) row by row, then the biases; the actor of PPO and A2C then has the logarithm of the deviation of each component of a continuous action |
| learner.X.steps | 1 | steps of Adam that network X has taken |
| learner.step | 1 | gradient steps done |
| loss.X | 1 | the last loss of network X |
| policy.X | P | the copy that inference reads |
| act.log_prob, act.sample | N; N, A | of inference.ppo: log densities of the actions, and continuous ones as drawn, scaled to bounds of -1 and 1 and not clipped |
| rollout.obs … rollout.truncated, rollout.log_prob | T, N, … | on-policy algorithms: T vector steps; continuous actions as drawn |
| rollout.at | 1 | the vector step that is stored next |
| rollout.value, rollout.advantage, rollout.returns | T, N | values of the observations, advantages, and their sums |
| hyper.X | 1 or more | lr.X per network, adam (beta1, beta2, eps), tau, target_every, clip_norm (0: off), huber (0: half the squared error, else delta), discount; of update.td3 smoothing (noise standard deviation and its limit, as shares of half the action range); of update.sac target_entropy; of PPO and A2C gae_lambda, clip and value_clip (0: off), entropy and value_weight (their parts in the loss), normalise (1: advantages), anneal (gradient steps over which the learning rates fall to 0; 0: they stay), rmsprop (decay, 0: Adam is used; constant in the root) |
| policy.q, learner.q.visits | states, actions | of the tabular algorithms: the table (float64), and how often each entry was updated; observations are then the numbers of states, and hyper.lr.q has the first step size and the power of the visits that it falls with |
| loop.more | 1 | iterations beyond the first that one call of iteration.* runs |
| normalise.obs, normalise.reward | 2, O; 2, 1 | mean and variance of the observations, of the discounted return; normalise.obs.count and normalise.reward.count: of how many |
| normalise.return, normalise.options | N; 3 | discounted return so far; limit of what is normalised (0: none), constant in the variance, discount |
| rng.TASK | 2 | key of the task's random stream; firings done |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.work import parameters, parts, passes, size

Spec = tuple[tuple[int, ...], str]
"""Shape and numpy dtype name."""

EPISODES = 4096
ANEW = 2
"""Added to a transition's `truncated` where its environment was started anew amid an episode: the
one before it is not its predecessor, though nothing says that it ended."""
STATE = 8


def tree_levels(capacity: int, fanout: int) -> tuple[int, ...]:
    """Widths of the sum tree's levels, root first: 1, …, the leaves (rounded up to whole nodes)."""
    widths = [-(-capacity // fanout) * fanout]
    while widths[0] > 1:
        above = widths[0] // fanout
        widths.insert(0, above if above == 1 else -(-above // fanout) * fanout)
    return tuple(widths)


def _transition(prefix: str, lead: tuple[int, ...], k: Kernel) -> dict[str, Spec]:
    obs, act = k.dim("obs"), k.dim("act")
    return {
        f"{prefix}.obs": ((*lead, obs), "float32"),
        f"{prefix}.action": ((*lead, act), "float32") if act else (lead, "int64"),
        f"{prefix}.reward": (lead, "float32"),
        f"{prefix}.next_obs": ((*lead, obs), "float32"),
    }


def _flags(prefix: str, rows: int) -> dict[str, Spec]:
    return {f"{prefix}.terminated": ((rows,), "uint8"), f"{prefix}.truncated": ((rows,), "uint8")}


def _env_step(k: Kernel) -> dict[str, Spec]:
    n, act = k.dim("envs"), k.dim("act")
    return {
        "env.obs": ((n, k.dim("obs")), "float32"),
        "env.state": ((n, STATE), "float64"),
        "env.elapsed": ((n,), "int64"),
        "env.return": ((n,), "float64"),
        "episode.returns": ((EPISODES,), "float64"),
        "episode.lengths": ((EPISODES,), "int64"),
        "episode.count": ((1,), "int64"),
        "act.action": ((n, act), "float32") if act else ((n,), "int64"),
        "rng.env_step": ((2,), "uint64"),
        **_transition("step", (n,), k),
        **_flags("step", n),
        **_statistics(k),
    }


def _statistics(k: Kernel) -> dict[str, Spec]:
    """What an env_step that normalises keeps."""
    n, found = k.dim("envs"), dict[str, Spec]()
    for what, columns in (("obs", k.dim("obs")), ("reward", 1)):
        if k.dims.get(f"normalise_{what}"):
            found[f"normalise.{what}"] = ((2, columns), "float64")
            found[f"normalise.{what}.count"] = ((1,), "float64")
            found["normalise.options"] = ((3,), "float64")
    return {
        **found,
        **({"normalise.return": ((n,), "float64")} if "normalise.reward" in found else {}),
    }


def _bounds(act: int) -> dict[str, Spec]:
    names = ("act.low", "act.high") if act else ()
    return dict.fromkeys(names, ((act,), "float32"))


def _inference(k: Kernel) -> dict[str, Spec]:
    n, act, (network,) = k.dim("envs"), k.dim("act"), k.networks
    return {
        "env.obs": ((n, k.dim("obs")), "float32"),
        f"policy.{network}": ((size(k),), "float32"),
        "explore": ((4,), "float64"),
        "rng.inference": ((2,), "uint64"),
        "act.action": ((n, act), "float32") if act else ((n,), "int64"),
        **_bounds(act),
    }


def _tree(k: Kernel) -> dict[str, Spec]:
    return {
        "replay.tree": ((sum(tree_levels(k.dim("capacity"), k.dim("fanout"))),), "float32"),
        "replay.priority": ((3,), "float64"),
    }


def _frames(k: Kernel) -> dict[str, Spec]:
    stack, envs, ends = k.dim("stack"), k.dim("apart"), k.dim("ends")
    size, places = k.dim("obs") // stack, k.dim("capacity") + (stack - 1) * envs
    return {
        "replay.frame": ((places, size), "uint8"),
        "replay.depth": ((places,), "uint8"),
        "replay.ahead": ((envs, size), "uint8"),
        "replay.last": ((ends, size), "uint8"),
        "replay.last_row": ((ends,), "int64"),
        "replay.clock": ((2,), "int64"),
    }


def _replay(k: Kernel) -> dict[str, Spec]:
    rows = k.dim("capacity")
    stored = _transition("replay", (rows,), k)
    if k.dims.get("stack"):
        stored = {n: s for n, s in stored.items() if not n.endswith("obs")} | _frames(k)
    return {
        **stored,
        **_flags("replay", rows),
        "replay.cursor": ((2,), "int64"),
        **(_tree(k) if k.dim("prioritised") else {}),
    }


def _replay_insert(k: Kernel) -> dict[str, Spec]:
    n = k.dim("envs")
    return {**_transition("step", (n,), k), **_flags("step", n), **_replay(k)}


def _batch(k: Kernel) -> dict[str, Spec]:
    lead = (k.dim("steps"), k.dim("batch"))
    return {
        **_transition("batch", lead, k),
        "batch.discount": (lead, "float32"),
        "batch.weight": (lead, "float32"),
    }


def _index(k: Kernel) -> dict[str, Spec]:
    return {"batch.index": ((k.dim("steps"), k.dim("batch")), "int64")}


def _td(k: Kernel) -> dict[str, Spec]:
    return {"batch.td": ((k.dim("steps"), k.dim("batch")), "float32")}


def _replay_sample(k: Kernel) -> dict[str, Spec]:
    return {
        **_replay(k),
        **_batch(k),
        **_index(k),
        **({"replay.beta": ((3,), "float64")} if k.dim("prioritised") else {}),
        "hyper.discount": ((1,), "float64"),
        "rng.replay_sample": ((2,), "uint64"),
    }


def _replay_update(k: Kernel) -> dict[str, Spec]:
    return {**_tree(k), **_index(k), **_td(k)}


OWN_HYPER: dict[str, dict[str, Spec]] = {
    "td3": {"hyper.smoothing": ((2,), "float64")},
    "sac": {"hyper.target_entropy": ((1,), "float64")},
}
DRAWS_NOTHING = ("dqn", "ddpg")
"""Algorithms whose gradient step needs no random numbers."""


def _update(k: Kernel) -> dict[str, Spec]:
    algorithm = k.kind.partition(".")[2]
    specs: dict[str, Spec] = {
        **_batch(k),
        **_td(k),
        "learner.step": ((1,), "int64"),
        "hyper.adam": ((3,), "float64"),
        "hyper.tau": ((1,), "float64"),
        "hyper.target_every": ((1,), "float64"),
        "hyper.clip_norm": ((1,), "float64"),
        "hyper.huber": ((1,), "float64"),
        **OWN_HYPER.get(algorithm, {}),
        **_bounds(k.dim("act")),
    }
    if algorithm not in DRAWS_NOTHING:
        specs["rng.update"] = ((2,), "uint64")
    for name, runs in passes(k).items():
        shape = (size(k, name),)
        for suffix in ("", ".target", ".m", ".v") if runs.target else ("", ".m", ".v"):
            specs[f"learner.{name}{suffix}"] = (shape, "float32")
        specs[f"learner.{name}.steps"] = ((1,), "int64")
        specs[f"hyper.lr.{name}"] = ((1,), "float64")
        specs[f"loss.{name}"] = ((1,), "float64")
    return specs


def _param_sync(k: Kernel) -> dict[str, Spec]:
    names = str(k.args["network"]).split("+")
    sizes = [k.dim("params")] if len(names) == 1 else [k.dim(name) for name in names]
    sides = ("learner", "policy")
    pairs = zip(names, sizes, strict=True)
    return {f"{side}.{name}": ((size,), "float32") for name, size in pairs for side in sides}


def _fused(k: Kernel) -> dict[str, Spec]:
    return {name: spec for part, _ in parts(k) for name, spec in specs(part).items()}


def _iteration(k: Kernel) -> dict[str, Spec]:
    return {"loop.more": ((1,), "int64"), **_fused(k)}


def _tabular(k: Kernel) -> dict[str, Spec]:
    n, table = k.dim("envs"), (k.dim("states"), k.dim("actions"))
    specs: dict[str, Spec] = {
        "policy.q": (table, "float64"),
        "explore": ((4,), "float64"),
        "act.action": ((n,), "int64"),
    }
    if k.kind == "tabular.choose":
        return {
            **specs,
            "env.obs": ((n, k.dim("obs")), "float32"),
            "rng.inference": ((2,), "uint64"),
        }
    return {
        **specs,
        **_transition("step", (n,), k),
        **_flags("step", n),
        "learner.q.visits": (table, "int64"),
        "learner.step": ((1,), "int64"),
        "hyper.lr.q": ((2,), "float64"),
        "hyper.discount": ((1,), "float64"),
        "batch.td": ((n,), "float64"),
        "loss.q": ((1,), "float64"),
        "rng.update": ((2,), "uint64"),
        "rng.env_step": ((2,), "uint64"),
    }


def _draw(k: Kernel) -> dict[str, Spec]:
    """inference.ppo: what it draws, and no constants of exploration."""
    n, act = k.dim("envs"), k.dim("act")
    specs = {name: spec for name, spec in _inference(k).items() if name != "explore"}
    specs["policy.actor"] = ((parameters(k.layers()) + act,), "float32")
    specs["act.log_prob"] = ((n,), "float32")
    return {**specs, **({"act.sample": ((n, act), "float32")} if act else {})}


def _rows(k: Kernel) -> dict[str, Spec]:
    lead = (k.dim("horizon"), k.dim("envs"))
    flags = dict.fromkeys(("rollout.terminated", "rollout.truncated"), (lead, "uint8"))
    return {**_transition("rollout", lead, k), **flags, "rollout.log_prob": (lead, "float32")}


def _rollout_insert(k: Kernel) -> dict[str, Spec]:
    n, act = k.dim("envs"), k.dim("act")
    return {
        **_transition("step", (n,), k),
        **_flags("step", n),
        **({"act.sample": ((n, act), "float32")} if act else {}),
        "act.log_prob": ((n,), "float32"),
        **_rows(k),
        "rollout.at": ((1,), "int64"),
    }


def _results(k: Kernel) -> dict[str, Spec]:
    names = ("rollout.value", "rollout.advantage", "rollout.returns")
    return dict.fromkeys(names, ((k.dim("horizon"), k.dim("envs")), "float32"))


def _gae(k: Kernel) -> dict[str, Spec]:
    return {
        **_rows(k),
        "rollout.at": ((1,), "int64"),
        **_results(k),
        "policy.critic": ((parameters(k.layers("critic")),), "float32"),
        "hyper.discount": ((1,), "float64"),
        "hyper.gae_lambda": ((1,), "float64"),
    }


def _rollout_update(k: Kernel) -> dict[str, Spec]:
    """update.ppo, update.a2c."""
    read = {n: s for n, s in _rows(k).items() if n.split(".")[1] in ("obs", "action", "log_prob")}
    names = ("clip_norm", "clip", "value_clip", "entropy", "value_weight", "normalise", "anneal")
    specs: dict[str, Spec] = {
        **read,
        **_results(k),
        **{f"hyper.{name}": ((1,), "float64") for name in names},
        "hyper.adam": ((3,), "float64"),
        "hyper.rmsprop": ((2,), "float64"),
        "learner.step": ((1,), "int64"),
        "rng.update": ((2,), "uint64"),
        **_bounds(k.dim("act")),
    }
    for name, more in (("actor", k.dim("act")), ("critic", 0)):
        size = (parameters(k.layers(name)) + more,)
        specs |= {f"learner.{name}{part}": (size, "float32") for part in ("", ".m", ".v")}
        specs[f"learner.{name}.steps"] = ((1,), "int64")
        specs[f"hyper.lr.{name}"] = ((1,), "float64")
        specs[f"loss.{name}"] = ((1,), "float64")
    return specs


KINDS: dict[str, Callable[[Kernel], dict[str, Spec]]] = {
    "inference.ppo": _draw,
    "update.ppo": _rollout_update,
    "update.a2c": _rollout_update,
}
"""Kinds whose arrays are not those of their family."""

FAMILIES: dict[str, Callable[[Kernel], dict[str, Spec]]] = {
    "rollout_insert": _rollout_insert,
    "gae": _gae,
    "rollout": _fused,
    "env_step": _env_step,
    "tabular": _tabular,
    "inference": _inference,
    "replay_insert": _replay_insert,
    "replay_sample": _replay_sample,
    "replay_update": _replay_update,
    "update": _update,
    "learn": _fused,
    "iteration": _iteration,
    "param_sync": _param_sync,
}


def specs(kernel: Kernel) -> dict[str, Spec]:
    """Name → (shape, dtype) of every array that `kernel` touches; an unknown kind is a KeyError."""
    return (KINDS.get(kernel.kind) or FAMILIES[kernel.kind.partition(".")[0]])(kernel)


def allocate(kernels: Iterable[Kernel], buffers: Buffers | None = None) -> Buffers:
    """All arrays of `kernels`, zeroed, added to `buffers`; existing ones stay.

    Two kernels that disagree about an array are a ValueError naming it and both shapes.
    """
    arrays: Buffers = {} if buffers is None else buffers
    for kernel in kernels:
        for name, (shape, dtype) in specs(kernel).items():
            old: npt.NDArray[np.generic] | None = arrays.get(name)
            if old is None:
                arrays[name] = np.zeros(shape, dtype)
            elif old.shape != shape or old.dtype != np.dtype(dtype):
                raise ValueError(
                    f"kernel {kernel.kind} wants {name} as {dtype}{list(shape)}, "
                    f"but it is {old.dtype}{list(old.shape)}"
                )
    return arrays
