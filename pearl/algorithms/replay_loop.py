"""The task graph that algorithms with a replay share: act, insert, sample, update, copy.

The rates and tokens are those of the table in `docs/theory.md`. With N environments and replay
ratio rho = gradient steps per env step, rho·N = n/d in lowest terms: an iteration is d
vector steps and n gradient steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from pearl.graph import Edge, Fusion, Task, TaskGraph
from pearl_devices import Kernel, kernel
from pearl_devices.buffers import specs
from pearl_devices.kernel import Dim

LEARNING = ("replay_sample", "update", "replay_update", "param_sync")


@dataclass(frozen=True)
class Sizes:
    """What the loop needs to know: environment, replay and batch. act is 0 for discrete actions."""

    program: str
    env_args: dict[str, str | int | float | bool]
    envs: int
    obs: int
    act: int
    capacity: int
    prioritised: bool
    fanout: int
    batch: int
    n_step: int
    replay_ratio: Fraction


def rates(sizes: Sizes) -> tuple[int, int]:
    """(vector steps, gradient steps) of one iteration."""
    per_vector_step = sizes.replay_ratio * sizes.envs
    return per_vector_step.denominator, per_vector_step.numerator


def build(
    name: str,
    sizes: Sizes,
    *,
    inference: Kernel,
    update: dict[str, Dim],
    program: str,
    policy: str,
    policy_params: int,
    learner_bytes: float,
) -> TaskGraph:
    """The graph of one algorithm.

    inference: its acting kernel. update: sizes of the networks of kernel `update.<name>`.
    program: the torch loss. policy, policy_params: the network copied to the acting side.
    learner_bytes: parameters, targets and moments.
    """
    acts, steps = rates(sizes)
    # Under uniform replay one firing may do all gradient steps of an iteration (a block);
    # under prioritised replay that would make priorities stale, so a firing is one step there.
    block = 1 if sizes.prioritised else steps
    learns = steps // block
    replay: dict[str, Dim] = {
        "envs": sizes.envs,
        "obs": sizes.obs,
        "act": sizes.act,
        "capacity": sizes.capacity,
        "prioritised": int(sizes.prioritised),
        "fanout": sizes.fanout,
    }
    drawn: dict[str, Dim] = {**replay, "batch": sizes.batch, "n_step": sizes.n_step}
    env_step = kernel(
        "env_step",
        program=sizes.program,
        args=sizes.env_args,
        envs=sizes.envs,
        obs=sizes.obs,
        act=sizes.act,
    )
    insert = kernel("replay_insert", replay)
    sample = kernel("replay_sample", drawn, steps=block)
    learn = kernel(f"update.{name}", update, program=program, batch=sizes.batch, steps=block)
    sync = kernel("param_sync", args={"network": policy}, params=policy_params)
    # One call for all gradient steps of an iteration; it needs no program, it is native only.
    fused = kernel(f"learn.{name}", {**drawn, **update}, steps=steps)
    tasks = [
        Task("inference", inference, reads=("policy",)),
        Task("env_step", env_step, writes=("environments",)),
        Task("replay_insert", insert, writes=("replay",)),
        Task("replay_sample", sample, reads=("replay",)),
        Task("update", learn, writes=("learner",)),
        Task("param_sync", sync, reads=("learner",), writes=("policy",), copies=True),
    ]
    if sizes.prioritised:
        priorities = kernel(
            "replay_update",
            batch=sizes.batch,
            steps=block,
            capacity=sizes.capacity,
            fanout=sizes.fanout,
        )
        tasks.insert(5, Task("replay_update", priorities, writes=("replay",)))
    edges = _edges(
        acts,
        learns,
        sizes.prioritised,
        action=nbytes(inference, "act.action"),
        obs=nbytes(inference, "env.obs"),
        transition=nbytes(insert, "step."),
        batch=nbytes(sample, "batch."),
        td=nbytes(learn, "batch.td"),
        params=4.0 * policy_params,
    )
    members = ("replay_sample", "update") + (("replay_update",) if sizes.prioritised else ())
    return TaskGraph(
        name,
        tuple(tasks),
        tuple(edges),
        states={
            "environments": nbytes(env_step, "env."),
            "policy": 4.0 * policy_params,
            "learner": learner_bytes,
            "replay": nbytes(insert, "replay."),
        },
        fusions=(Fusion("learn", members, fused),),
        env_steps=acts * sizes.envs,
        updates=steps,
        batch=sizes.batch,
    )


def nbytes(of: Kernel, prefix: str) -> float:
    """Bytes of the kernel's buffers whose names start with `prefix`."""
    size = {"float32": 4, "float64": 8, "int64": 8, "uint64": 8, "uint8": 1}
    total = 0
    for name, (shape, dtype) in specs(of).items():
        if name.startswith(prefix):
            count = 1
            for extent in shape:
                count *= extent
            total += count * size[dtype]
    return float(total)


def _edges(
    d: int,
    u: int,
    prioritised: bool,
    *,
    action: float,
    obs: float,
    transition: float,
    batch: float,
    td: float,
    params: float,
) -> list[Edge]:
    """d acting firings and u learning firings an iteration; gcd(d, u) = 1."""
    back = d + u - gcd(d, u)  # tokens of the state edges back to replay_insert
    edges = [
        Edge("inference", "env_step", bytes=action),
        Edge("env_step", "inference", tokens_seq=1, bytes=obs),
        Edge("env_step", "replay_insert", bytes=transition, limit="insertion_lag"),
        Edge("replay_insert", "replay_sample", u, d),
        Edge("replay_sample", "replay_insert", d, u, back),
        Edge("replay_sample", "update", bytes=batch, limit="prefetch"),
    ]
    if prioritised:
        edges += [
            Edge("update", "replay_update", bytes=td, limit="priority_staleness"),
            Edge("replay_sample", "replay_update"),
            Edge("replay_update", "replay_sample", tokens_seq=1),
            Edge("replay_update", "replay_insert", d, u, back),
        ]
    if u >= d:  # param_sync fires with the acting side
        edges += [
            Edge("update", "param_sync", d, u, d - 1),
            Edge("param_sync", "inference", tokens_seq=1, bytes=params, limit="policy_lag"),
            Edge("inference", "param_sync"),
            Edge("param_sync", "update", u, d, u),
        ]
    else:  # param_sync fires with the learning side
        edges += [
            Edge("update", "param_sync"),
            Edge("param_sync", "inference", d, u, u + d - 1, bytes=params, limit="policy_lag"),
            Edge("inference", "param_sync", u, d),
            Edge("param_sync", "update", tokens_seq=1),
        ]
    edges += [
        Edge(name, name, tokens_seq=1)
        for name in ("env_step", "replay_insert", "update", "param_sync")
    ]
    return edges
