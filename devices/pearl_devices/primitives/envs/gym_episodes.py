"""Greedy episodes of environments through gymnasium, in lock-step: one choice of actions for all
running episodes, then a step of each environment.

Environments are made when an episode first needs them, and serve all evaluations of a binding. If
an environment raises anything or returns what training would not take, that is an
`EnvironmentFailed` that names the episode and its step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from pearl_devices import masks
from pearl_devices.base import Buffers, EnvironmentFailed, UnsupportedError
from pearl_devices.cpu import greedy
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.evaluation import PLAYED, acting, env_args
from pearl_devices.kernels.interface import STATISTICS, states
from pearl_devices.primitives.envs import spaces
from pearl_devices.primitives.envs.asked import EPISODE, SINCE, STEP, Asked, is_fault
from pearl_devices.primitives.envs.border import (
    Reader,
    Unfit,
    bad_action,
    not_given,
    read_step,
    reset,
)
from pearl_devices.primitives.envs.env_step import describe
from pearl_devices.primitives.envs.evaluations import Evaluations
from pearl_devices.primitives.envs.gym_make import Array, Single, stack_frames
from pearl_devices.primitives.envs.interface import Interface
from pearl_devices.user_imports import CALLABLE, make_environment


def make_env(program: str, args: dict[str, Any], stack: int) -> Single:
    """Make one environment that observes its last `stack` frames.

    Raises:
        UnsupportedError: The environment cannot be made.
    """
    options = {} if CALLABLE.fullmatch(program) else {"disable_env_checker": True}
    try:
        return stack_frames(make_environment(program, args, **options), stack)
    except ValueError as error:
        raise UnsupportedError(f"environment {program!r} cannot be made: {error}") from error


class GymEpisodes(Evaluations, Asked):
    """A bound evaluation. Its slot has the episode and the step in the episode."""

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        Evaluations.__init__(self, kernel, buffers)
        Asked.__init__(self)
        self.name = str(kernel.program)
        self._envs, self._seeds = list[Single](), list[int]()
        self._greedy = greedy(
            acting(kernel),
            buffers["evaluation.policy"],
            buffers.get("act.low"),
            buffers.get("act.high"),
            buffers.get("act.choices"),
        )
        self._interface: Interface | None = None
        self._reader: Reader | None = None
        self._rows: Array = buffers["evaluation.obs"]
        if "evaluation.statistics" in buffers:  # normalised in float64, as in training
            self._rows = np.zeros(self._rows.shape)

    def reset(self, seeds: Sequence[int]) -> None:
        self._seeds = [*seeds]
        self._at[:] = 0
        for n in range(self.kernel.dim("envs")):
            self._start(n)
            self._at[0] = n + 1

    def play(self, steps: int) -> None:
        while steps and self._at[0]:
            self._step()
            steps -= 1

    def close(self) -> None:
        for env in self._envs:
            with suppress(Exception):  # it may have failed; a failing close does not matter
                env.close()
        self._envs.clear()
        self._at[:] = 0

    @contextmanager
    def _asked(self, episode: int, step: int) -> Iterator[None]:
        """Within this context, errors of an environment become an EnvironmentFailed. episode: from
        0 on."""
        self.slot[EPISODE], self.slot[STEP] = episode + 1, step
        self.slot[SINCE] = monotonic()
        try:
            yield
        except BaseException as error:
            if not is_fault(error):
                raise
            text = f"{self._place(episode, step)}: {describe(error)}"
            raise EnvironmentFailed(text) from error
        finally:
            self.slot[SINCE] = 0.0

    def _place(self, episode: int, step: int) -> str:
        return f"environment {self.name!r}, evaluation episode {episode + 1}, step {step}"

    def _start(self, n: int) -> None:
        """Begin the next episode in row n."""
        b, k = self.buffers, self.kernel
        if n == len(self._envs):
            stack = int(k.dims.get("stack", 0))  # type: ignore[arg-type]
            self._envs.append(make_env(self.name, env_args(k), stack))
        episode = int(self._at[1])
        self._at[1] += 1
        with self._asked(episode, 0):
            seen, info = reset(self._envs[n], seed=self._seeds[episode])
            self._see(n, seen)
        if why := masks.refusal(self.name, info, self._envs[n] if episode == n else None):
            raise EnvironmentFailed(why)
        b["evaluation.episode"][n], b["evaluation.elapsed"][n] = episode, 0
        b["evaluation.return"][n] = 0.0

    def _see(self, n: int, seen: Any) -> None:
        """Write the observation of row n for the policy: flat, or the number of a state.

        Raises:
            Unfit: it does not belong to its space, or is not finite.
        """
        if self._reader is None:
            found = spaces.parts(self._envs[0].observation_space)
            self._reader = Reader(found, table=bool(self.kernel.dims.get("states")))
        self._reader.read(seen, self._rows[n])
        if not np.isfinite(self._rows[n]).all():
            raise Unfit(f"observation {self._rows[n]} is not finite")

    def _between(self) -> Interface:
        """The interface between environments and network, once there is an environment."""
        if self._interface is None:
            b, space = self.buffers, self._envs[0].observation_space
            held = {name: b[PLAYED + name] for name in states(self.kernel)}
            if "evaluation.statistics" in b:
                held[STATISTICS] = b["evaluation.statistics"]
            clip, epsilon, _ = b.get("normalise.options", np.zeros(3)).tolist()
            pixels = spaces.pixels(space) if self.kernel.dims.get("scaled") else ()
            self._interface = Interface(
                self.kernel, held, pixels=pixels, clip=clip, epsilon=epsilon
            )
        return self._interface

    def _actions(self, playing: int) -> Array:
        between = self._between()
        seen = between.observe(self._rows[:playing])
        return between.take(self._greedy(seen))

    def _step(self) -> None:
        b, most = self.buffers, self.kernel.dim("max_steps")
        episode, elapsed, total = (
            b[f"evaluation.{name}"] for name in ("episode", "elapsed", "return")
        )
        playing = int(self._at[0])
        space = self._envs[0].action_space
        chosen = self._actions(playing)
        if (bad := bad_action(chosen)) is not None:
            at = self._place(int(episode[bad]), int(elapsed[bad]) + 1)
            raise EnvironmentFailed(f"{at}: {not_given(chosen[bad])}")
        given = spaces.to_env_actions(space, chosen)
        actions = given.tolist() if isinstance(space, Discrete) else [*given]
        n = 0
        while n < playing:
            elapsed[n] += 1
            with self._asked(int(episode[n]), int(elapsed[n])):
                seen, reward, stop, late = read_step(self._envs[n].step(actions[n]))
                if not math.isfinite(reward):
                    raise Unfit(f"reward {reward} is not finite")
                self._see(n, seen)
                total[n] += reward
            over = stop or late
            if over or elapsed[n] >= most:
                b["evaluation.returns"][episode[n]] = total[n]
                b["evaluation.cut"][episode[n]] = not over
                if self._at[1] < self.kernel.dim("episodes"):
                    self._start(n)
                else:
                    playing -= 1
                    self._take(n, playing, actions)
                    continue
            n += 1
        self._at[0] = playing

    def _take(self, n: int, other: int, actions: list[Any]) -> None:
        """Swap rows n and `other`; the action of `other` is chosen and not yet done."""
        self._envs[n], self._envs[other] = self._envs[other], self._envs[n]
        actions[n] = actions[other]
        self._rows[n] = self._rows[other]
        for name in ("episode", "elapsed", "return"):
            array = self.buffers[f"evaluation.{name}"]
            array[n] = array[other]


def bind(kernel: Kernel, buffers: Buffers) -> GymEpisodes:
    """Bind an evaluation through gymnasium."""
    return GymEpisodes(kernel, buffers)
