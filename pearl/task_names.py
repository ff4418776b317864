"""The names of the tasks of training loops, in specs, plans, pages and files.

A task is a place in the loop. The kind of its kernel, such as `update.dqn`, is the work done there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MEANINGS: Mapping[str, str] = {
    "act": "chooses actions",
    "step": "moves the environments on",
    "store": "writes steps to the replay or the rollout",
    "sample": "draws a batch from the replay",
    "advantages": "computes how much better each action was than expected",
    "learn": "takes gradient steps, or corrects a table",
    "priorities": "sets the probabilities of sampling",
    "average": "averages gradients, or the tables of all chunks",
    "sync": "gives the new weights to act",
    "gradient": "computes the gradient of one learner's share of the batch",
    "evaluate": "plays test episodes with the greedy policy",
}
"""Task → what a call of it does. Tasks of one learner of several end with its number: `learn_1`."""

TASKS = tuple(name for name in MEANINGS if name not in ("gradient", "evaluate"))
"""The tasks that a spec of any algorithm may name in its limits."""

CALLED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("actor", "policy", "forward", "infer"), ("act",)),
    **dict.fromkeys(("learner", "train", "trainer", "optimise"), ("learn",)),
    **dict.fromkeys(("env", "envs", "simulate", "environment"), ("step",)),
    **dict.fromkeys(("insert", "add"), ("store",)),
    **dict.fromkeys(("replay", "buffer"), ("store", "sample")),
    **dict.fromkeys(("copy", "broadcast"), ("sync",)),
}
"""What users call tasks → the names of these tasks."""

FORMER: Mapping[str, str] = {
    "inference": "act",
    "env_step": "step",
    "replay_insert": "store",
    "rollout_insert": "store",
    "replay_sample": "sample",
    "gae": "advantages",
    "update": "learn",
    "replay_update": "priorities",
    "all_reduce": "average",
    "param_sync": "sync",
    "evaluation": "evaluate",
}
"""Name of a task until November 2026 → its name. Specs get a hint; plans, runs and checkpoints are
read."""

_FORMER = re.compile(rf"(?<![\w.])({'|'.join(FORMER)})(?=_\d|(?![\w.]))")


def stem(task: str) -> str:
    """Return a task without the number of its learner or its copy."""
    return re.sub(r"(_\d+)?(#\d+)?$", "", task)


def present_name(task: str) -> str:
    """Return the name of a task or a call, given perhaps by former names."""
    return _FORMER.sub(lambda found: FORMER[found[1]], task)


def use_present_names(value: Any) -> Any:
    """Return a JSON value with the present names of tasks, in keys too."""
    if isinstance(value, Mapping):
        return {present_name(k): use_present_names(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [use_present_names(v) for v in value]
    return present_name(value) if isinstance(value, str) else value
