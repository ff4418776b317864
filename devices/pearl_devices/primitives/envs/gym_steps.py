"""Steps of gymnasium's environments one after another."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from pearl_devices.base import Buffers, EnvironmentFailed
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.asked import (
    NUMBER,
    SINCE,
    STEP,
    is_fault,
)
from pearl_devices.primitives.envs.border import Unfit, all_finite, read_step, reset
from pearl_devices.primitives.envs.env_step import EnvStep, State
from pearl_devices.primitives.envs.gym_make import (
    Single,
    draw_seeds,
    make,
)
from pearl_devices.primitives.envs.gym_resume import (
    AT_RESUME,
    LOG,
    TOO_LONG,
    describe_difference,
    describe_lost,
    generator_state,
    pack,
    replay_actions,
    unpack,
)


class SingleSteps(EnvStep):
    """Steps environments one after another and restarts those whose episodes end."""

    def __init__(self, kernel: Kernel, buffers: Buffers, envs: list[Single]) -> None:
        first = envs[0]
        super().__init__(kernel, buffers, first.observation_space, first.action_space)
        self.all, self.discrete = envs, isinstance(first.action_space, Discrete)
        numbers = draw_seeds(buffers, self.envs)
        self.origins: list[State | None] = [{"seed": number} for number in numbers]
        self.taken: list[list[Any]] = [[] for _ in envs]
        self.seen: list[Any] = [None] * self.envs
        for n, (env, seed) in enumerate(zip(envs, numbers, strict=True)):
            with self.first_reset(n):
                self.seen[n], info = reset(env, seed=seed)
                self.refuse_masks(info, env)
                self.reader.read(self.seen[n], self.raw[n])
                self.check_finite(self.raw[n : n + 1], "observation")
        self.begin()

    def actions(self) -> Any:
        """The actions as each environment takes them: Python integers, or arrays of its space's
        type."""
        found = self.env_actions()
        return found.tolist() if self.discrete else found

    def __call__(self) -> None:
        b = self.buffers
        obs, reward = b["env.obs"], b["step.reward"]
        terminated, truncated = b["step.terminated"], b["step.truncated"]
        b["step.obs"][:] = obs
        b["step.action"][:] = b["act.action"]
        if self.anew:
            self.start_anew()
        ended, actions, slot = [], self.actions(), self.slot
        read, raw_next, done = self.reader.read, self.raw_next, b["env.elapsed"].tolist()
        for n, (env, action) in enumerate(zip(self.all, actions, strict=True)):
            try:
                slot[NUMBER], slot[STEP] = n, done[n] + 1
                slot[SINCE] = monotonic()
                seen, value, stop, cut = read_step(env.step(action))
                slot[SINCE] = 0.0
                read(seen, raw_next[n])
                reward[n] = value
                b["env.return"][n] += value
            except BaseException as error:  # the environment's code may raise anything
                if not is_fault(error):
                    raise
                stop, cut = self.retry_step(n, action, error)
            else:
                if len(self.taken[n]) <= LOG:
                    self.taken[n].append(action)
                self.seen[n] = seen
            terminated[n], truncated[n] = stop, cut
            if stop or cut:
                ended.append(n)
        if not (all_finite(reward) and all_finite(raw_next)):
            ended = self.replace_non_finite(actions)
        if np.count_nonzero(self.cut):  # a tenth of the time of `any`
            truncated |= self.cut
            self.cut[:] = 0
        b["rng.env_step"][1] += np.uint64(1)
        b["env.elapsed"] += 1
        self.raw[:] = raw_next
        self.restart_ended(ended)

    def restart_ended(self, ended: list[int]) -> None:
        """Begin new episodes in environments whose episodes have ended."""
        for n in ended:
            self.end(n)
            self.restart(n)

    def generator_origin(self, n: int) -> State | None:
        """Return the state of an environment's generator before a reset."""
        return generator_state(self.all[n])

    def restart(self, n: int) -> None:
        """Begin a new episode in an environment whose episode has ended."""
        try:
            self.slot[NUMBER], self.slot[STEP] = n, 0
            self.slot[SINCE] = monotonic()
            self.origins[n], self.taken[n] = self.generator_origin(n), []
            self.first_obs(n, *reset(self.all[n]))
        except EnvironmentFailed:  # it offers a mask; a new one would too
            raise
        except BaseException as error:  # the environment's code may raise anything
            if not is_fault(error):
                raise
            self.renew(n, error, lost=0)

    def first_obs(self, n: int, seen: Any, info: Any) -> None:
        """Write the first observation of an episode of environment n into `raw`.

        Raises:
            Unfit: The observation does not belong to its space, or is not finite.
            EnvironmentFailed: The environment offers an action mask.
        """
        self.slot[SINCE] = 0.0
        self.refuse_masks(info)
        self.reader.read(seen, self.raw[n])
        self.check_finite(self.raw[n : n + 1], "first observation", n)
        self.seen[n] = seen

    def renew(self, n: int, error: BaseException, *, lost: int, tried: int = 0) -> int:
        """Make an environment again after `error`; write its first observation into row n of `raw`.
        Return the number of attempts, of which `tried` were made before."""
        while True:
            tried += 1
            self.slot[SINCE] = 0.0
            self.give_up(self.fault(n, error), tried, error, lost)
            try:
                with suppress(Exception, SystemExit):  # it has failed; its close does not matter
                    self.all[n].close()
                made = self.make_one()
                seed = draw_seeds(self.buffers, self.envs, tried)[n]
                self.all[n], self.origins[n], self.taken[n] = made, {"seed": seed}, []
                self.slot[NUMBER], self.slot[STEP] = n, 0
                self.slot[SINCE] = monotonic()
                self.first_obs(n, *reset(made, seed=seed))
                return tried
            except EnvironmentFailed:  # as in `restart`
                raise
            except BaseException as another:  # as above
                if not is_fault(another):
                    raise
                error, lost = another, 0

    def make_one(self) -> Single:
        """Make one more of these environments."""
        made = make(self.name, self.args, 1, self.stack)
        assert isinstance(made, list)
        return made[0]

    def retry_step(self, n: int, action: Any, error: BaseException) -> tuple[bool, bool]:
        """After a failed step, make the environment again and step it from its first
        observation."""
        b, tried, lost = self.buffers, 0, 1
        while True:
            tried = self.renew(n, error, lost=lost, tried=tried)
            self.show(n)
            try:
                self.slot[STEP] = 1
                self.slot[SINCE] = monotonic()
                seen, value, stop, cut = read_step(self.all[n].step(action))
                self.slot[SINCE] = 0.0
                self.reader.read(seen, self.raw_next[n])
                b["step.reward"][n] = b["env.return"][n] = value
                self.check_row(n)
            except BaseException as another:  # as above
                if not is_fault(another):
                    raise
                error, lost = another, 0
                continue
            self.taken[n].append(action)
            self.seen[n], self.cut[n] = seen, ANEW
            b["env.elapsed"][n] = 0
            return stop, cut

    def check_row(self, n: int) -> None:
        """Raises Unfit if the reward or the observation of environment n is not finite; other
        environments may have failed in the same step, and are looked at in turn."""
        self.check_finite(self.buffers["step.reward"][n : n + 1], "reward", n)
        self.check_finite(self.raw_next[n : n + 1], "observation", n)

    def replace_non_finite(self, actions: Any) -> list[int]:
        """Make environments again that gave a non-finite value; return the numbers of ended
        episodes."""
        b = self.buffers
        for n in range(self.envs):
            try:
                self.check_row(n)
            except Unfit as error:
                self.slot[STEP] = b["env.elapsed"][n] + 1
                flags = self.retry_step(n, actions[n], error)
                b["step.terminated"][n], b["step.truncated"][n] = flags
        return [n for n in range(self.envs) if b["step.terminated"][n] or b["step.truncated"][n]]

    def snapshot(self) -> list[State]:
        found = []
        for n, (origin, taken) in enumerate(zip(self.origins, self.taken, strict=True)):
            state: State = {"origin": origin, "observation": pack(self.flat(self.seen[n]))}
            if len(taken) <= LOG and n not in self.anew:
                state["actions"] = pack(np.array(taken))
            found.append(state)
        return found

    def restore(self, states: list[State]) -> list[str]:
        """Restore each environment by repeating the actions since its last reset."""
        if len(states) != self.envs:
            raise ValueError(f"{len(states)} environments were stored, and there are {self.envs}")
        lost: dict[int, str] = {}
        for n, state in enumerate(states):
            if why := self.bring_back(n, state):
                lost[n] = why
                self.begin_episode(n)
        self.cut[:] = 0
        return describe_lost(self.name, self.first, self.envs, lost)

    def bring_back(self, n: int, state: State) -> str:
        """Repeat the actions of a snapshot in environment n; return why this does not bring it
        back, or ""."""
        origin, kept = state["origin"], unpack(state["observation"])
        if "actions" not in state:
            return TOO_LONG
        taken = self.actions_of(state)
        after = f"{len(taken):,} steps after its reset it"
        try:
            seen = self.replay(n, origin, taken)
            found = self.flat(seen)
        except BaseException as error:  # the environment's code may raise anything
            if not is_fault(error):
                raise
            return f"{after} raises {type(error).__name__}: {' '.join(str(error).split())}"
        if not np.array_equal(kept, found):
            return f"{after} {describe_difference(kept, found)}"
        self.origins[n], self.taken[n], self.seen[n] = origin, taken, seen
        return ""

    def begin_episode(self, n: int) -> None:
        """Begin a new episode in an environment that was not brought back, at the next step."""
        before = self.raw[n].copy()
        seed = draw_seeds(self.buffers, self.envs, AT_RESUME)[n]
        self.origins[n], self.taken[n] = {"seed": seed}, []
        try:
            self.first_obs(n, *reset(self.all[n], seed=seed))
        except EnvironmentFailed:  # as in `restart`
            raise
        except BaseException as error:  # as above
            if not is_fault(error):
                raise
            self.renew(n, error, lost=0)
        self.anew[n], self.raw[n] = self.raw[n].copy(), before

    def made(self) -> list[Any]:
        return list(self.all)

    def actions_of(self, state: State) -> list[Any]:
        """Return the actions that `snapshot` stored, as an environment takes them."""
        actions = unpack(state["actions"])
        return actions.tolist() if self.discrete else list(actions)

    def replay(self, n: int, origin: State | None, actions: list[Any]) -> Any:
        """Return an environment's observation after a reset from `origin` and these actions."""
        return replay_actions(self.all[n], origin, actions)
