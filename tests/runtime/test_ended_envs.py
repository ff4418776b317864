"""Environments are ended when their lanes have ended."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from tests.lanes import planned, replay_spec, trained

ENDED: list[str] = []


class Walk(gymnasium.Env[Any, Any]):
    observation_space = Box(-9, 9, (3,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.stepped = True
        return np.ones(3, np.float32), 1.0, True, False, {}

    def close(self) -> None:
        ENDED.append("one")
        if hasattr(self, "stepped"):
            raise RuntimeError("its window was closed before")


class Many(gymnasium.vector.SyncVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__([Walk] * num_envs)

    def close_extras(self, **_: Any) -> None:
        ENDED.append("many")


def many(num_envs: int = 4) -> Many:
    return Many(num_envs)


@pytest.mark.parametrize("lanes", ["one", "threads"])
@pytest.mark.parametrize(("env", "word", "count"), [("Walk", "one", 4), ("many", "many", 1)])
def test_environments_end_with_the_run(env, word, count, lanes):
    spec = replay_spec("dqn", env=f"tests.runtime.test_ended_envs:{env}", num_envs=4)
    spec["limits"]["variants"] = {"step": ["gymnasium"]}
    spec["train"]["evaluate_every"] = 0
    system, plan = planned(spec, variants=("native", "gymnasium"))
    from tests.runtime import test_ended_envs as own

    own.ENDED.clear()
    assert trained(system, plan, lanes, steps=64).run.status == "done"
    assert own.ENDED.count(word) >= count
