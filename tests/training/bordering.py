"""Environments of every space and with every fault that the border must read or refuse."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as S
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Mission(gymnasium.Space[Any]):
    """A space of a package's own, as MiniGrid has one."""


def box(*shape: int, kind: Any = np.float32) -> S.Box:
    return S.Box(0, 100, shape, kind)


SPACES: dict[str, Any] = {
    "box": box(2),
    "table": box(2, 3),
    "number": box(),
    "whole": box(3, kind=np.int64),
    "double": box(2, kind=np.float64),
    "image": S.Box(0, 255, (4, 4), np.uint8),
    "discrete": S.Discrete(4),
    "started": S.Discrete(4, start=-2),
    "choices": S.MultiDiscrete([2, 3]),
    "choices_started": S.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 5], [-1, 0]]),
    "bits": S.MultiBinary(3),
    "dict": S.Dict({"where": box(2), "kind": S.Discrete(3, start=1)}),
    "nested": S.Dict({"in": S.Dict({"a": box(2), "b": S.Discrete(2)}), "t": S.Tuple([box(1)])}),
    "tuple": S.Tuple([S.Discrete(3), box(2), S.MultiBinary(2)]),
    "camera": S.Dict({"eye": S.Box(0, 255, (2, 2), np.uint8), "at": box(1)}),
    "goals": S.Dict({n: box(2) for n in ("observation", "achieved_goal", "desired_goal")}),
}
"""Spaces that are read."""

UNREAD: dict[str, Any] = {
    "mission": S.Dict({"image": box(4), "mission": Mission()}),
    "mission_alone": Mission(),
    "text": S.Text(5),
    "sequence": S.Dict({"in": S.Dict({"list": S.Sequence(box(2))})}),
    "graph": S.Tuple([box(2), S.Graph(box(1), None)]),
    "one_of": S.OneOf([S.Discrete(2), box(2)]),
}
"""Spaces that are refused."""

ACTIONS: dict[str, Any] = {
    "two": S.Discrete(2),
    "bounded": S.Box(-1, 1, (1,), np.float32),
    "wide": S.Box(-3.4e38, 3.4e38, (1,), np.float32),
}

REWARDS = {"reward_nan": np.nan, "reward_none": None, "reward_array": np.array([1.0]),
           "reward_two": np.ones(2), "reward_text": "1", "reward_far": 1e300,
           "reward_masked": np.ma.masked, "reward_complex": 1j}  # fmt: skip
FLAGS = {"flag_none": None, "flag_array": np.array([False]), "flag_two": 2, "flag_int": 0,
         "flag_nan": np.nan}  # fmt: skip

MADE = [0]


class Case(gymnasium.Env[Any, Any]):
    """An episode of five steps. Its observations lie in its space, until the fault.

    fault: what is wrong from step `at` of each episode on, or with its methods.
    sick: how many of the environments, counted from the first one made since MADE was 0, are so.
    """

    def __init__(self, space: str = "box", fault: str = "", at: int = 3, sick: int = 10**9,
                 actions: str = "two") -> None:  # fmt: skip
        MADE[0] += 1
        self.observation_space = (SPACES | UNREAD)[space]
        self.action_space = ACTIONS[actions]
        self.fault = fault if MADE[0] <= sick else ""
        self.at, self.t = at, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        if self.fault == "only_observation":
            return self.observe()
        return self.observe(), None if self.fault == "no_info" else {}

    def observe(self) -> Any:
        seen: Any = self.observation_space.sample()
        if self.observation_space == SPACES["box"]:
            seen = self.np_random.uniform(0, 100, 2).astype(np.float32)
        if self.fault == "clock":
            return np.array([CLOCK.pop(), 1], np.float32)
        if self.fault == "stamps":
            return np.array([1.7e9 + self.t, self.t])
        if self.t < self.at:
            return seen
        broken = {
            "nan": np.array([np.nan, 1], np.float32),
            "inf": np.array([1, np.inf], np.float32),
            "huge": np.array([1e300, 1.0]),
            "short": np.array([1], np.float32),
            "turned": np.zeros((3, 2), np.float32),
            "none": None,
            "words": np.array(["a", "b"]),
            "ragged": [[1], [2, 3]],
            "missing": {"where": np.zeros(2, np.float32)},
            "above": 4,
            "below": -1,
            "half": 1.5,
            "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
        }
        return broken.get(self.fault, seen)

    def step(self, action: Any) -> Any:
        self.t += 1
        if not np.isfinite(action).all():
            raise AssertionError(f"the environment was given {action}")
        odd = self.t >= self.at
        reward: Any = 1.0
        stop: Any = False
        cut: Any = self.t >= 5
        if odd:
            if self.fault == "raise":
                raise RuntimeError("the simulator has diverged")
            if self.fault == "exhausted":
                raise StopIteration
            reward = REWARDS.get(self.fault, 1.0)
            stop = FLAGS.get(self.fault, False)
        info = {"action_mask": np.ones(2)} if self.fault == "step_mask" else {}
        if self.fault == "four":
            return self.observe(), reward, cut, info
        return self.observe(), reward, stop, cut, info


CLOCK = list(range(10**5))


def batch(num_envs: int, mode: str = "SAME_STEP", **args: Any) -> SyncVectorEnv:
    """A vector environment of gymnasium."""
    made = [lambda: Case(**args)] * num_envs
    return SyncVectorEnv(made, autoreset_mode=AutoresetMode[mode])


class Odd(SyncVectorEnv):
    """A vector environment whose batch has a fault."""

    fault = ""

    def step(self, actions: Any) -> Any:
        seen, reward, stop, cut, infos = super().step(actions)
        if self.fault == "reward_shape":
            reward = np.ones((len(reward), 2))
        if self.fault == "flag_none":
            stop = None
        if self.fault == "rows":
            seen = seen[:1]
        if self.fault == "no_final":
            infos = {}
        if self.fault == "four":
            return seen, reward, stop, infos
        if self.fault == "column":
            reward = reward[:, np.newaxis]
        return seen, reward, stop, cut, infos


def odd(num_envs: int, fault: str) -> Odd:
    made = Odd([Case] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    made.fault = fault
    return made
