"""Replay of stacked frames: the batches are those of a replay that stores whole observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import pearl
from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Buffers, Kernel, cpu, kernel
from pearl_devices.kernels.arrays import ANEW

ENVS, CAPACITY, DRAWN, FRAME = 3, 36, 24, 4
RING: dict[str, Any] = {"act": 0, "capacity": CAPACITY, "fanout": 4}


def rings(stack: int, ends: int, groups: int, **more: Any) -> tuple[list[Kernel], list[Kernel]]:
    """(insert, sample) of frames, and the same of whole observations."""
    found = []
    sizes = {**RING, "obs": stack * FRAME, "envs": ENVS, **more}
    for own in ({"stack": stack, "ends": ends, "apart": ENVS}, {}):
        drawn = {name: sizes[name] for name in sizes if name != "n_step"}
        insert = kernel("replay_insert", {**drawn, **own, "envs": ENVS // groups})
        sample = kernel("replay_sample", {**sizes, **own}, batch=DRAWN, steps=2)
        found.append([insert, sample])
    return found[0], found[1]


class World:
    """Environments whose frames are all different, with ends as told; gives `step.*`."""

    def __init__(self, stack: int, ends: dict[tuple[int, int], str]) -> None:
        self.stack, self.ends, self.random = stack, ends, np.random.default_rng(5)
        self.held = [self.first() for _ in range(ENVS)]

    def frame(self) -> np.ndarray:
        return self.random.integers(0, 256, FRAME)

    def first(self) -> list[np.ndarray]:
        return [self.frame()] * self.stack

    def write(self, time: int, which: Sequence[int], places: list[Buffers]) -> None:
        for n, e in enumerate(which):
            end = self.ends.get((time, e), "")
            if end == "anew":  # the last transition was one, though nothing said that it ended
                self.held[e] = self.first()
            obs, self.held[e] = self.held[e], [*self.held[e][1:], self.frame()]
            for b in places:
                b["step.obs"][n], b["step.next_obs"][n] = np.ravel(obs), np.ravel(self.held[e])
                b["step.reward"][n], b["step.action"][n] = 1 + 10 * time + e, time % 2
                b["step.terminated"][n] = end in ("terminated", "both")
                b["step.truncated"][n] = (end in ("truncated", "both")) + ANEW * (end == "anew")
            if end not in ("", "anew"):
                self.held[e] = self.first()


@settings(max_examples=80, deadline=None)
@given(stack=st.integers(1, 4), n_step=st.integers(1, 4), steps=st.integers(1, 40),
       prioritised=st.sampled_from([0, 1]), groups=st.sampled_from([1, 3]),
       ends=st.dictionaries(st.tuples(st.integers(0, 39), st.integers(0, ENVS - 1)),
                            st.sampled_from(["terminated", "truncated", "both", "anew"]),
                            max_size=60))  # fmt: skip
def test_batches_are_those_of_a_replay_of_whole_observations(
    stack, n_step, steps, prioritised, groups, ends
):
    sizes = rings(stack, CAPACITY, groups, n_step=n_step, prioritised=prioritised)
    replays = [fill_arrays(kernels) for kernels in sizes]
    calls = [[cpu.bind(k, "native", b) for k in ks] for ks, b in zip(sizes, replays, strict=True)]
    world, size = World(stack, ends), ENVS // groups
    for time in range(steps):
        for group in range(groups):
            world.write(time, range(group * size, group * size + size), replays)
            for insert, _ in calls:
                insert()
    for _ in range(3):
        for _, sample in calls:
            sample()
        frames, whole = replays
        for name in ("index", "weight", "obs", "action", "reward", "discount"):
            np.testing.assert_array_equal(frames[f"batch.{name}"], whole[f"batch.{name}"], name)
        goes_on = whole["batch.discount"] > 0
        successors = (b["batch.next_obs"][goes_on] for b in replays)
        np.testing.assert_array_equal(*successors)
        assert np.isfinite(frames["batch.next_obs"]).all()


def test_more_cut_episodes_than_there_is_room_for_are_an_error() -> None:
    (insert, sample), _ = rings(2, ends=4, groups=1, n_step=1, prioritised=0)
    buffers = fill_arrays([insert, sample])
    call, world = cpu.bind(insert, "native", buffers), World(2, {})
    world.ends = {(time, 0): "truncated" for time in range(0, 99, 4)}  # 3 in the ring at a time
    for time in range(99):
        world.write(time, range(ENVS), [buffers])
        call()
    world.ends = {(time, 0): "truncated" for time in range(99, 120)}
    for time in range(99, 102):  # and those of the last two of the ring
        world.write(time, range(ENVS), [buffers])
        call()
    world.write(102, range(ENVS), [buffers])
    with pytest.raises(ValueError, match="more episodes were cut than it has last frames for"):
        call()


class Noise(gymnasium.Env[Any, Any]):
    """Pictures of noise; an episode is cut after a while. The reward tells of the last two."""

    def __init__(self, side: int = 12, cut: int = 50, kind: str = "uint8") -> None:
        self.observation_space = Box(0, 255, (side, side), np.dtype(kind).type)
        self.action_space, self.cut, self.at = Discrete(2), cut, 0

    def picture(self) -> Any:
        shape = self.observation_space.shape
        assert shape is not None
        return self.np_random.integers(0, 256, shape).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self.picture(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.picture(), float(action), self.at % 31 == 30, self.at == self.cut, {}


def spec(**more: Any) -> dict[str, Any]:
    algorithm = {"name": "dqn", "env": "tests.training.test_frames:Noise", "num_envs": 2,
                 "frame_stack": 3, "hidden": [8], "batch_size": 8, "replay_ratio": "1/2",
                 "learning_starts": 20,
                 "replay": {"kind": "uniform", "capacity": 2000}}  # fmt: skip
    train = {"steps": 160, "evaluate_every": 0, "final_episodes": 1, "checkpoint_every": 0}
    return {"algorithm": algorithm | more, "limits": {"max_lanes": 1}, "train": train}


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
def test_training_on_frames_is_that_on_whole_stacks(kind, monkeypatch):
    """The same graph, but stored whole: the parameters come out bit for bit."""
    replay = {"kind": kind, "capacity": 60}  # so that the ring goes round
    results = []
    for whole in (False, True):
        if whole:
            plain = cpu.bind

            def bind(k: Kernel, variant: str, b: Buffers, plain: Any = plain) -> Any:
                if k.kind not in ("replay_insert", "replay_sample"):
                    return plain(k, variant, b)
                names = ("stack", "ends", "apart")
                same = kernel(k.kind, {n: v for n, v in k.dims.items() if n not in names})
                for name in ("obs", "next_obs"):
                    shape = (k.dim("capacity"), k.dim("obs"))
                    b.setdefault(f"replay.{name}", np.zeros(shape, np.float32))
                return plain(same, variant, b)

            monkeypatch.setattr(cpu, "bind", bind)
        trainer = pearl.compile(spec(replay=replay), seed=3)
        assert trainer.train().status == "done"
        assert whole == bool(trainer.session.arrays.get("replay.obs", np.zeros(1)).any())
        results.append(trainer.session.arrays["learner.q"].copy())
    np.testing.assert_array_equal(*results)


def test_frames_of_another_type_or_that_would_be_normalised_are_an_error_at_their_key() -> None:
    with pytest.raises(pearl.SpecError, match=r"frame_stack.*Box.*uint8"):
        pearl.load(spec(env_args={"kind": "float32"}))
    with pytest.raises(pearl.SpecError, match=r"frame_stack.*let the network scale them"):
        pearl.load(spec(normalise={"observations": True}))
