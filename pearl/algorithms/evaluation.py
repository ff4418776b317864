"""The task that judges the policy of a system."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl.algorithms.environments import asked, normalised
from pearl.algorithms.interface import interface_of
from pearl.graph.task_graph import Task, TaskGraph
from pearl_devices import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.evaluation import evaluation

if TYPE_CHECKING:
    from pearl.spec.system import System

MAX_STEPS = 10_000
"""Env steps after which an evaluation cuts an episode of an environment that has no limit of its
own, where the spec names none (assumed)."""


def acting_of(graph: TaskGraph) -> Kernel:
    """The kernel that acts in training, with what stands between it and the environments; of a loop
    that does not act, the one that its policy acts by (`KernelKind.policy`).

    Raises:
        SpecError: a kernel of the user's own there cannot be part of a policy.
    """
    for task in graph.tasks:
        if acts_by := kind_of(task.kernel).policy:
            return acts_by(task.kernel)
    return replace(graph.task("inference").kernel, interface=interface_of(graph))


def acting_if_any(graph: TaskGraph) -> Kernel | None:
    """As `acting_of`; None in a graph without a task that acts, or writes such a policy."""
    found = any(t.name == "inference" or kind_of(t.kernel).policy for t in graph.tasks)
    return acting_of(graph) if found else None


def task_of(system: System, graph: TaskGraph) -> Task | None:
    """The task of the evaluations amid a run; None where the spec has none, or nothing acts.

    Raises:
        SpecError: as `acting_of`, whether the spec asks for evaluations or not.
    """
    train = system.train
    acting = acting_if_any(graph)
    if acting is None or not (train.evaluate_every and train.evaluate_episodes):
        return None
    return Task("evaluation", kernel_of(system, acting, train.evaluate_episodes))


def kernel_of(system: System, acting: Kernel, episodes: int) -> Kernel:
    """The kernel that plays episodes of the policy of `acting` on the environment of `system`."""
    env = system.env
    return evaluation(
        acting,
        env.id,
        env.args,
        episodes,
        max_steps=max_steps(system),
        obs=acting.dim("obs"),
        act=acting.dim("act"),
        **asked(system),
        **{n: on for n, on in normalised(system).items() if n == "normalise_obs"},
    )


def max_steps(system: System) -> int:
    """Env steps after which an evaluation cuts an episode."""
    return system.train.evaluate_max_steps or system.env.max_episode_steps or MAX_STEPS
