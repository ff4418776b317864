"""What parts of algorithms answer: numbers by hand, and every sentence of a refusal, whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Given
from typing import Any

import pytest

import pearl
from pearl.algorithms.families.replay import rates
from pearl.algorithms.initial_values import sizes
from tests.algorithms import test_offline, test_on_policy_options, test_returns
from tests.algorithms.test_first_values import DISCRETE, REPLAY, system
from tests.answers import check, titles

__all__ = ["REPLAY"]


def options(name: str, **given: Any) -> Any:
    """The options of an algorithm in a run of 1,000 env steps."""
    return system(name, **given).algorithm


def periods(ratio: str, envs: int, groups: int = 1, train_every: int = 1) -> tuple[int, int]:
    """Vector steps and gradient steps of an iteration."""
    replay_ratio = options("dqn", spaces=DISCRETE, replay_ratio=ratio).replay_ratio
    given = {"envs": envs, "groups": groups, "train_every": train_every}
    return rates(Given(replay_ratio=replay_ratio, **given))  # type: ignore[arg-type]


def replay(capacity: int, envs: int, cut: int, stack: int) -> tuple[Any, ...]:
    """Capacity and frames of a replay whose episodes are cut after so many steps (0: never)."""
    spaces = {"obs": 4, "actions": 2} | ({"max_episode_steps": cut} if cut else {})
    found = sizes(system("dqn", spaces=spaces, num_envs=envs, frame_stack=stack, batch_size=8,
                         replay={"capacity": capacity, "fanout": 4}, n_step=2))  # fmt: skip
    assert (found.fanout, found.batch, found.n_step, found.envs) == (4, 8, 2, envs)
    assert (found.actions, found.act, found.prioritised, found.scaled) == (2, 0, False, False)
    return found.capacity, dict(found.frames)


def offline(**changes: Any) -> str:
    """Read a spec of tables that learn from a log; double underscores are dots."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    pearl.load(test_offline.spec(), set=keys)
    return "read"


def rollout(name: str, **given: Any) -> str:
    pearl.load(test_on_policy_options.spec(name, **given))
    return "read"


def returns(name: str, kind: Any, **given: Any) -> str:
    pearl.load(test_returns.spec(name, kind, **given))
    return "read"


FILE = Path(__file__).parent / "answers.txt"


@pytest.mark.parametrize("title", titles(FILE))
def test_algorithms_answer_what_is_kept(title: str, request: pytest.FixtureRequest) -> None:
    check(FILE, title, globals(), write=request.config.getoption("--write"))
