"""The task that evaluates the policy of a system."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl.algorithms.environments import normalised_sizes, optional_sizes
from pearl.algorithms.interface import interface_of
from pearl.graph.task_graph import Task, TaskGraph
from pearl_devices import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.evaluation import evaluation

if TYPE_CHECKING:
    from pearl.spec.system import System

MAX_STEPS = 10_000
"""Default step limit of an evaluation episode, if neither the environment nor the spec has a limit
(assumed)."""


def acting_of(graph: TaskGraph) -> Kernel:
    """Return the kernel that acts in training, with the kernels between it and the environments.

    A loop that does not act has a kernel that writes its policy (`KernelKind.policy`).

    Raises:
        SpecError: a user-defined kernel there cannot be part of a policy.
    """
    for task in graph.tasks:
        if acting := kind_of(task.kernel).policy:
            return acting(task.kernel)
    return replace(graph.task("act").kernel, interface=interface_of(graph))


def acting_if_any(graph: TaskGraph) -> Kernel | None:
    """Return `acting_of`, or None for a graph without a task that acts or writes such a policy."""
    found = any(t.name == "act" or kind_of(t.kernel).policy for t in graph.tasks)
    return acting_of(graph) if found else None


def task_of(system: System, graph: TaskGraph) -> Task | None:
    """Return the task of the evaluations during a run; None if the spec has none, or nothing acts.

    Raises:
        SpecError: as `acting_of`, also if the spec has no evaluations.
    """
    train = system.train
    acting = acting_if_any(graph)
    if acting is None or not (train.evaluate_every and train.evaluate_episodes):
        return None
    return Task("evaluate", kernel_of(system, acting, train.evaluate_episodes))


def kernel_of(system: System, acting: Kernel, episodes: int) -> Kernel:
    """Return the kernel that plays episodes with the policy of `acting` on the system's
    environment."""
    env = system.env
    return evaluation(
        acting,
        env.id,
        env.args,
        episodes,
        max_steps=max_steps(system),
        obs=acting.dim("obs"),
        act=acting.dim("act"),
        **optional_sizes(system),
        **{n: on for n, on in normalised_sizes(system).items() if n == "normalise_obs"},
    )


def max_steps(system: System) -> int:
    """Return the step limit of an evaluation episode."""
    return system.train.evaluate_max_steps or system.env.max_episode_steps or MAX_STEPS
