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
| step.obs, step.action, step.reward, step.next_obs, step.terminated, step.truncated | N, … | the transition of this step; next_obs is the true successor, not the reset |
| replay.obs … replay.truncated | C, … | the same, stored; row = time · N + environment, modulo C |
| replay.cursor | 2 | next row to write; rows filled |
| replay.tree | T | K-ary sum tree over priorities, root first |
| replay.priority | 3 | alpha; constant added to |td|; largest priority so far |
| replay.beta | 3 | first and last importance exponent; sample firings between |
| batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount, batch.weight, batch.index | k, B, … | reward is the n-step return; discount is gamma^m · (1 − terminated) for the m steps it spans |
| batch.td | k, B | absolute TD error of each sample |
| learner.X, learner.X.target, learner.X.m, learner.X.v | P | network X, its target (where it has one), Adam's moments; one flat vector, per layer the weights (in, out) row by row, then the biases |
| learner.X.steps | 1 | steps of Adam that network X has taken |
| learner.step | 1 | gradient steps done |
| loss.X | 1 | the last loss of network X |
| policy.X | P | the copy that inference reads |
| hyper.X | 1 or more | lr.X per network, adam (beta1, beta2, eps), tau, target_every, clip_norm (0: off), huber (0: half the squared error, else delta), discount; of update.td3 smoothing (noise standard deviation and its limit, as shares of half the action range); of update.sac target_entropy |
| rng.TASK | 2 | key of the task's random stream; firings done |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.work import parameters, passes

Spec = tuple[tuple[int, ...], str]
"""Shape and numpy dtype name."""

EPISODES = 4096
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
    }


def _bounds(act: int) -> dict[str, Spec]:
    names = ("act.low", "act.high") if act else ()
    return dict.fromkeys(names, ((act,), "float32"))


def _inference(k: Kernel) -> dict[str, Spec]:
    n, act, (network,) = k.dim("envs"), k.dim("act"), k.networks
    return {
        "env.obs": ((n, k.dim("obs")), "float32"),
        f"policy.{network}": ((parameters(k.layers()),), "float32"),
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


def _replay(k: Kernel) -> dict[str, Spec]:
    rows = k.dim("capacity")
    return {
        **_transition("replay", (rows,), k),
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
        size = (parameters(k.layers(name)),)
        for suffix in ("", ".target", ".m", ".v") if runs.target else ("", ".m", ".v"):
            specs[f"learner.{name}{suffix}"] = (size, "float32")
        specs[f"learner.{name}.steps"] = ((1,), "int64")
        specs[f"hyper.lr.{name}"] = ((1,), "float64")
        specs[f"loss.{name}"] = ((1,), "float64")
    return specs


def _param_sync(k: Kernel) -> dict[str, Spec]:
    network, size = str(k.args["network"]), (k.dim("params"),)
    return {f"learner.{network}": (size, "float32"), f"policy.{network}": (size, "float32")}


def _learn(k: Kernel) -> dict[str, Spec]:
    tail = _replay_update(k) if k.dim("prioritised") else {}
    return {**_replay_sample(k), **_update(k), **tail}


FAMILIES: dict[str, Callable[[Kernel], dict[str, Spec]]] = {
    "env_step": _env_step,
    "inference": _inference,
    "replay_insert": _replay_insert,
    "replay_sample": _replay_sample,
    "replay_update": _replay_update,
    "update": _update,
    "learn": _learn,
    "param_sync": _param_sync,
}


def specs(kernel: Kernel) -> dict[str, Spec]:
    """Name → (shape, dtype) of every array that `kernel` touches; an unknown kind is a KeyError."""
    return FAMILIES[kernel.kind.partition(".")[0]](kernel)


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
