"""Task graph and first values of the tabular algorithms.

An iteration is one vector step of N environments and N updates of the table, one after another.
There is one table: acting reads the values that learning writes. `families.offline` learns from a
log instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.algorithms.families import offline
from pearl.algorithms.families.replay import buffer_bytes
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl_devices import Buffers, kernel

if TYPE_CHECKING:
    from pearl.spec.system import System

POLICY = "q"


def build(name: str, system: System, *, needs_next_action: bool = False) -> TaskGraph:
    """Build the graph of one algorithm, whose update kernel is tabular.<name>: act, step, learn.

    needs_next_action: the update is for the previous step and needs the action just chosen, so it
        comes before the next step: act, learn, step.
    """
    if system.algorithm.offline is not None:
        return offline.build(name, system)
    envs, env = system.algorithm.num_envs, system.env
    sizes = {"envs": envs, "obs": 1, "act": 0, "states": env.states}
    table = {**sizes, "actions": env.actions}
    env_step = kernel("env_step", sizes, program=env.id, args=dict(env.args))
    choose, learn = kernel("tabular.choose", table), kernel(f"tabular.{name}", table)
    tasks = [
        Task("act", choose, reads=("table",)),
        Task("step", env_step, writes=("environments",)),
        Task("learn", learn, writes=("table",)),
    ]
    action, transition = buffer_bytes(choose, "act.action"), buffer_bytes(env_step, "step.")
    edges = [
        Edge("act", "step", bytes=action),
        Edge("step", "act", tokens_seq=1, bytes=buffer_bytes(choose, "env.obs")),
        Edge("learn", "act", tokens_seq=1),
        Edge("step", "step", tokens_seq=1),
        Edge("learn", "learn", tokens_seq=1),
    ]
    if needs_next_action:
        tasks = [tasks[0], tasks[2], tasks[1]]
        edges += [
            Edge("act", "learn", bytes=action),
            Edge("step", "learn", tokens_seq=1, bytes=transition),
            Edge("learn", "step"),
        ]
    else:
        edges.append(Edge("step", "learn", bytes=transition))
    return TaskGraph(
        name,
        tuple(tasks),
        tuple(edges),
        states={
            "environments": buffer_bytes(env_step, "env."),
            "table": buffer_bytes(learn, "policy.") + buffer_bytes(learn, "learner."),
        },
        env_steps=envs,
        updates=1,
        batch=envs,
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run: the table, and every constant."""
    a = system.algorithm
    if a.offline is not None:
        offline.initialise(buffers, system, seed)
        return
    buffers["policy.q"][:] = a.initial_value
    buffers["hyper.lr.q"][:] = a.learning_rate, a.learning_rate_power
    buffers["hyper.discount"][:] = a.discount
    e = a.exploration
    buffers["explore"][:] = e.initial, e.final, e.steps, 0.0
