"""The graph of several learners, by hand: every edge, its bytes, and where each task stands."""

from __future__ import annotations

from typing import Any

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.algorithms.families.learners import (
    ADD_S,
    SHARD_S,
    choose_reduction,
    learning_tasks,
    share_out,
)
from pearl.errors import SpecError
from pearl.graph.task_graph import TaskGraph

DQN = {
    "name": "dqn", "batch_size": 8, "learning_starts": 8, "num_envs": 4,
    "replay": {"capacity": 64, "kind": "prioritised"},
}  # fmt: skip
"""Networks of 32 numbers: 128 bytes; a batch of 352 bytes, of which 32 are TD errors."""
PPO = {"name": "ppo", "num_envs": 4, "rollout_steps": 8, "epochs": 1, "minibatches": 2}
"""An actor of 32 numbers and a critic of 26: 232 bytes; two gradient steps in a firing."""


def graph(options: dict[str, Any]) -> TaskGraph:
    own = {"env": "E-v0", "spaces": {"obs": 3, "actions": 2}, "hidden": [5], **options}
    return algorithm(own["name"]).graph(pearl.load({"algorithm": own, "platform": "cpu_gpu"}))


def rows(made: TaskGraph) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {
        (e.src, e.dst): (e.production, e.consumption, e.tokens_seq, e.bytes, e.limit)
        for e in made.edges
    }


MOVES = {
    ("learn", "gradient_0"): (1, 1, 1, 0.0, None),
    ("learn_1", "gradient_1"): (1, 1, 1, 0.0, None),
    ("learn", "learn"): (1, 1, 1, 0.0, None),
    ("learn_1", "learn_1"): (1, 1, 1, 0.0, None),
}


def between(senders: str, readers: str, *sizes: float) -> dict[tuple[str, str], tuple[Any, ...]]:
    """An edge from each sender to each reader; sizes: bytes of the messages in this order."""
    pairs = [(src, dst) for src in senders.split() for dst in readers.split()]
    return {pair: (1, 1, 0, size, None) for pair, size in zip(pairs, sizes, strict=True)}


@pytest.mark.parametrize(
    ("options", "reduction", "expected"),
    [
        # half of the rows to each; its gradient, TD errors of its rows and a loss of 8 bytes
        (DQN, "star", {
            **between("sample", "gradient_0 gradient_1", 176.0, 176.0),
            **between("gradient_0 gradient_1", "average", 152.0, 152.0),
            **between("average", "learn learn_1", 128.0, 128.0),
            ("average", "priorities"): (1, 1, 0, 32.0, "priority_staleness"),
            ("learn", "sync"): (1, 4, 0, 0.0, None),
            ("sync", "learn"): (4, 1, 4, 0.0, None),
        }),
        # half of the numbers to each, the rest to the first
        (DQN, "shards", {
            **between("sample", "gradient_0 gradient_1", 176.0, 176.0),
            **between("gradient_0 gradient_1", "average average_1", 88.0, 64.0, 88.0, 64.0),
            **between("average average_1", "learn learn_1", 64.0, 64.0, 64.0, 64.0),
            ("average", "priorities"): (1, 1, 0, 32.0, "priority_staleness"),
            ("learn", "sync"): (1, 4, 0, 0.0, None),
            ("sync", "learn"): (4, 1, 4, 0.0, None),
        }),
        # each reads the whole rollout, and every gradient step is a firing now
        (PPO, "star", {
            ("advantages", "gradient_0"): (2, 1, 0, 1152.0, None),
            ("advantages", "gradient_1"): (2, 1, 0, 1152.0, None),
            **between("gradient_0 gradient_1", "average", 248.0, 248.0),
            **between("average", "learn learn_1", 232.0, 232.0),
            ("learn", "sync"): (1, 2, 0, 0.0, None),
            ("sync", "learn"): (2, 1, 2, 0.0, None),
        }),
    ],
)  # fmt: skip
def test_edges_of_two_learners(options: Any, reduction: Any, expected: Any) -> None:
    before = graph(options)
    after = share_out(before, 2, reduction)
    others = {pair: row for pair, row in rows(before).items() if "learn" not in pair}
    assert rows(after) == {**others, **MOVES, **expected}
    names = [t.name for t in after.tasks]
    reductions = ["average", "average_1"][: 1 + (reduction == "shards")]
    learning = ["gradient_0", "gradient_1", *reductions, "learn", "learn_1"]
    at = names.index("gradient_0")
    assert names[at : at + len(learning)] == learning
    assert [n for n in names if n not in learning] == [
        t.name for t in before.tasks if t.name != "learn"
    ]
    others_learn = [name for name in learning if name != "learn"]
    assert learning_tasks(("learn",), after) == ("learn", *others_learn)
    assert learning_tasks(("advantages",), after) == ("advantages",)
    for n, each in enumerate(("learner", "learner_1")):
        gradient, step = after.task(f"gradient_{n}"), after.task(["learn", "learn_1"][n])
        assert (gradient.reads, gradient.writes, gradient.group) == ((each,), (), None)
        assert (step.reads, step.writes) == ((), (each,))
        assert step.group == (reductions[n] if n < len(reductions) else None)
        assert gradient.kernel.dim("learner") == step.kernel.dim("learner") == n
        assert gradient.kernel.dims.get("td") == (1 if options is DQN else None)
        assert gradient.kernel.dims.get("shards") == (1 if reduction == "shards" else None)
        assert gradient.kernel.dim("learners") == 2
        assert after.states[each] == before.states["learner"]
    for n, name in enumerate(reductions):
        assert after.task(name).group == name
        assert after.task(name).kernel.dims.get("learner") == (n if reduction == "shards" else None)
    kept = [f.name for f in before.fusions if "learn" not in f.tasks]
    assert [f.name for f in after.fusions] == kept
    assert (after.env_steps, after.updates) == (before.env_steps, before.updates)


def test_one_learner_changes_nothing_and_a_network_has_a_number_for_each_shard() -> None:
    before = graph(DQN)
    assert share_out(before, 1) is before
    fits = graph({**DQN, "batch_size": 32, "learning_starts": 32})
    assert "average_1" in {t.name for t in share_out(fits, 32, "shards").tasks}
    wide = {**DQN, "batch_size": 64, "learning_starts": 64}
    with pytest.raises(SpecError, match="a network of 32 numbers has none for each of 64 learners"):
        share_out(graph(wide), 64, "shards")


@pytest.mark.parametrize(("learners", "networks"), [(2, 1), (4, 1), (2, 2), (8, 3)])
def test_shards_are_chosen_where_they_are_predicted_to_be_faster(learners, networks):
    """A star takes ADD_S more for each number of all but one; shards SHARD_S for each shard."""
    border = SHARD_S * networks * learners / (ADD_S * (learners - 1))
    for sum_of, found in ((border + 2, "shards"), (border - 2, "star")):
        sizes = [int(sum_of) - 10 * (networks - 1), *[10] * (networks - 1)]
        assert choose_reduction(learners, sizes) == found
        assert choose_reduction(learners, sizes, apart=True) == "star"
    assert choose_reduction(learners, [10**9, learners]) == "shards"
    assert choose_reduction(learners, [10**9, learners - 1]) == "star"
