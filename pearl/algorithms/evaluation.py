"""The task that judges the policy of a system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.graph.task_graph import Task, TaskGraph
from pearl_devices import Kernel
from pearl_devices.kernels.evaluation import evaluation

if TYPE_CHECKING:
    from pearl.spec.system import System

MAX_STEPS = 10_000
"""Env steps after which an evaluation cuts an episode of an environment that has no limit of its
own, where the spec names none (assumed)."""


def acting_of(graph: TaskGraph) -> Kernel:
    """The kernel that acts in training."""
    return graph.task("inference").kernel


def task_of(system: System, graph: TaskGraph) -> Task | None:
    """The task of the evaluations amid a run; None where the spec has none, or nothing acts."""
    train = system.train
    wanted = train.evaluate_every and train.evaluate_episodes
    if not wanted or all(t.name != "inference" for t in graph.tasks):
        return None
    return Task("evaluation", kernel_of(system, acting_of(graph), train.evaluate_episodes))


def kernel_of(system: System, acting: Kernel, episodes: int) -> Kernel:
    """The kernel that plays episodes of the policy of `acting` on the environment of `system`."""
    env, normalise = system.env, getattr(system.algorithm, "normalise", None)
    scaled = normalise is not None and normalise.observations
    return evaluation(
        acting,
        env.id,
        env.args,
        episodes,
        max_steps=max_steps(system),
        obs=acting.dim("obs"),
        act=acting.dim("act"),
        stack=env.stack,
        scaled=int(bool(env.pixels)),
        normalise_obs=int(scaled),
    )


def max_steps(system: System) -> int:
    """Env steps after which an evaluation cuts an episode."""
    return system.train.evaluate_max_steps or system.env.max_episode_steps or MAX_STEPS
