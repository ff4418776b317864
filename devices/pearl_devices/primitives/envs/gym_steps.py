"""Steps of gymnasium's environments one after another, and the code that batches share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces.utils import flatdim, flatten

from pearl_devices import masks
from pearl_devices.base import Buffers, EnvironmentFailed, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.asked import (
    EPISODE,
    NUMBER,
    SINCE,
    STEP,
    Asked,
    is_fault,
)
from pearl_devices.primitives.envs.gym_make import (
    BATCHED,
    Array,
    Single,
    draw_seeds,
    make,
)
from pearl_devices.primitives.envs.gym_resume import (
    LOG,
    generator_state,
    pack,
    replay_actions,
    unpack,
)
from pearl_devices.primitives.envs.native_envs import record
from pearl_devices.primitives.envs.normalise import scale
from pearl_devices.primitives.envs.spaces import choices, pixels, to_env_actions
from pearl_devices.primitives.envs.spaces import scale as scale_of

ATTEMPTS = 3
"""An environment that fails this often in a row, though it is made again each time, is given up."""

State = dict[str, Any]
"""Data that restores an environment, as JSON."""


class EnvStep(Asked):
    """A bound env_step: the common part of stepping environments one by one and in a batch."""

    def __init__(self, kernel: Kernel, buffers: Buffers, obs_space: Any, action_space: Any) -> None:
        super().__init__()
        self.name, self.envs, self.buffers = str(kernel.program), kernel.dim("envs"), buffers
        self.obs_space, self.action_space = obs_space, action_space
        self.args, self.scaled = dict(kernel.args), bool(kernel.dims.get("normalise_obs"))
        self.stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
        self.first = 0  # number of the first environment here, if others are stepped elsewhere
        self.on_failure: Callable[[str, int], None] | None = None
        self.cut = np.zeros(self.envs, np.uint8)
        self.zeros = np.zeros(buffers["env.obs"].size, np.float32)
        factored = choices(action_space)
        if isinstance(action_space, Discrete):
            act = 0
        elif isinstance(action_space, Box) or factored:
            act = len(factored) or flatdim(action_space)
        else:
            raise UnsupportedError(
                f"environment {self.name!r} has actions {action_space}; "
                "Discrete, MultiDiscrete, MultiBinary and Box are supported"
            )
        self.states = int(kernel.dims.get("states", 0))  # type: ignore[arg-type]
        if self.states and not (isinstance(obs_space, Discrete) and obs_space.n == self.states):
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} observes {obs_space}, the kernel has "
                f"{self.states} states"
            )
        size = 1 if self.states else flatdim(obs_space)
        scaled = kernel.dims.get("scaled")
        self.pixels = scale_of(size, pixels(obs_space)) if scaled else None
        found = (size, act, sum(factored))
        wanted = (kernel.dim("obs"), kernel.dim("act"), kernel.dims.get("choices", 0))
        if found != wanted:
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} has (obs, act, choices) = {found}, "
                f"the kernel has {wanted}"
            )

    def begin(self) -> None:
        """Clear the counters after the first reset."""
        b = self.buffers
        b["env.elapsed"][:] = 0
        b["env.return"][:] = 0.0
        if b["rng.env_step"][1] > 0:
            self.cut[:] = ANEW

    def share(self, slot: memoryview[float]) -> None:
        self.count()
        super().share(slot)

    def count(self) -> None:
        """Write the next step and the running episode to the slot."""
        self.slot[STEP] = int(self.buffers["rng.env_step"][1])
        self.slot[EPISODE] = int(self.buffers["episode.count"][0]) + 1

    def refuse_masks(self, info: Any, env: Any = None) -> None:
        """Refuse an environment that offers an action mask (`pearl_devices.masks`).

        info: of its reset. env: the environment, at its first reset.

        Raises:
            EnvironmentFailed: The environment offers an action mask.
        """
        if why := masks.refusal(self.name, info, env):
            raise EnvironmentFailed(why)

    def flat(self, one: Any, index: int) -> Array:
        """Return one environment's observation as a vector, float32.

        Raises:
            ValueError: The observation has another size than the space.
        """
        if self.states:
            return np.array([self.state(one, index)], np.float32)
        value = one if isinstance(self.obs_space, Box) else flatten(self.obs_space, one)
        flat = np.asarray(value, dtype=np.float32).reshape(-1)
        size = self.buffers["env.obs"].shape[1]
        if flat.size != size:
            raise ValueError(
                f"environment {self.name!r}, number {self.first + index}: an observation of "
                f"{flat.size} components and shape {np.shape(one)}; its space has {size}"
            )
        return flat if self.pixels is None else flat * self.pixels

    def state(self, one: Any, index: int) -> int:
        """Return the number of a discrete observation, from 0.

        Raises:
            ValueError: The space has no such observation.
        """
        number = int(one) - int(self.obs_space.start)
        if not 0 <= number < self.states:
            raise ValueError(
                f"environment {self.name!r}, number {self.first + index}: observed {one}; its "
                f"space is {self.obs_space}"
            )
        return number

    def finite(self, values: Array) -> bool:
        # 0 · NaN and 0 · infinity are NaN. One product is cheaper than a test of each value.
        return bool(np.dot(values.reshape(-1), self.zeros[: values.size]) == 0.0)

    def check_finite(self, values: Array, what: str) -> None:
        """Raises ValueError if a value, one for each environment, is NaN or infinite."""
        if not self.finite(values):
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(
                f"environment {self.name!r}, number {self.first + bad}: {what} {values[bad]} is "
                "not finite; learning from it would spoil all parameters"
            )

    def fault(self, which: str, error: BaseException) -> str:
        """Return the text of a failure: the environment, the episode, the step and the error.

        Episodes are counted over all environments of the task, from 1.
        """
        text = " ".join(str(error).split())
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        b, where = self.buffers, f"environment {self.name!r}, {which}"
        at = f"{where}, episode {b['episode.count'][0] + 1}, step {b['rng.env_step'][1]}"
        if isinstance(error, ValueError) and text.startswith(where):
            return f"{at}: {text.removeprefix(where).lstrip(': ')}"
        return f"{at}: {type(error).__name__}: {text}"

    def give_up(self, reason: str, attempt: int, error: BaseException, lost: int) -> None:
        """Report a failure to `on_failure`.

        Raises:
            EnvironmentFailed: There is no `on_failure`, or the last attempt failed too.
        """
        if self.on_failure is None:
            raise EnvironmentFailed(reason) from error
        if attempt > ATTEMPTS:
            raise EnvironmentFailed(
                f"{reason}; it was made again {ATTEMPTS} times and failed each time"
            ) from error
        self.on_failure(reason, lost)

    def snapshot(self) -> list[State]:
        """Return the states from which `restore` starts; call it between two firings."""
        return [{}]

    def restore(self, states: list[State]) -> None:
        """Restore the environments to the states of a `snapshot`.

        The arrays must be as they were after binding.

        Raises:
            ValueError: An environment does not return to the same state.
        """
        raise ValueError(
            f"environment {self.name!r} steps {self.envs} in one batch, which does not give its "
            f"state, so it cannot be restored; fewer than {BATCHED} environments are stepped "
            "alone and can be restored"
        )

    def end(self, index: int) -> None:
        """Record a finished episode."""
        b = self.buffers
        self.slot[EPISODE] += 1.0
        record(
            index, 0.0, True, b["env.return"], b["env.elapsed"],
            b["episode.returns"], b["episode.lengths"], b["episode.count"],
        )  # fmt: skip


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
            self.seen[n], info = env.reset(seed=seed)
            self.refuse_masks(info, env)
            buffers["env.obs"][n] = self.flat(self.seen[n], n)
        self.check_finite(buffers["env.obs"], "observation")
        self.begin()

    def actions(self) -> Any:
        """The actions as each environment takes them: Python integers, or arrays of its space's
        type."""
        found = to_env_actions(self.action_space, self.buffers["act.action"])
        return found.tolist() if self.discrete else found

    def __call__(self) -> None:
        b = self.buffers
        obs, next_obs, reward = b["env.obs"], b["step.next_obs"], b["step.reward"]
        terminated, truncated = b["step.terminated"], b["step.truncated"]
        b["step.obs"][:] = obs
        b["step.action"][:] = b["act.action"]
        ended, actions, slot = [], self.actions(), self.slot
        for n, (env, action) in enumerate(zip(self.all, actions, strict=True)):
            try:
                slot[NUMBER] = n
                slot[SINCE] = monotonic()
                seen, value, stop, cut, _ = env.step(action)
                slot[SINCE] = 0.0
                next_obs[n] = self.flat(seen, n)
                reward[n] = value
            except BaseException as error:  # the environment's code may raise anything
                if not is_fault(error):
                    raise
                stop, cut = self.retry_step(n, action, error)
            else:
                b["env.return"][n] += value
                if len(self.taken[n]) <= LOG:
                    self.taken[n].append(action)
                self.seen[n] = seen
            terminated[n], truncated[n] = stop, cut
            if stop or cut:
                ended.append(n)
        if not (self.finite(reward) and self.finite(next_obs)):
            ended = self.replace_non_finite(actions)
        if self.cut.any():
            truncated |= self.cut
            self.cut[:] = 0
        b["rng.env_step"][1] += np.uint64(1)
        slot[STEP] += 1.0
        b["env.elapsed"] += 1
        obs[:] = next_obs
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
            self.slot[NUMBER] = n
            self.slot[SINCE] = monotonic()
            self.origins[n], self.taken[n] = self.generator_origin(n), []
            self.first_obs(n, *self.all[n].reset(), self.buffers["env.obs"][n])
        except EnvironmentFailed:  # it offers a mask; a new one would too
            raise
        except BaseException as error:  # the environment's code may raise anything
            if not is_fault(error):
                raise
            self.renew(n, error, self.buffers["env.obs"], lost=0)

    def first_obs(self, n: int, seen: Any, info: Any, out: Array) -> None:
        """Write the first observation of an episode of environment n into `out` (O,), float32.

        Raises:
            ValueError: The observation has a wrong size, or a value that is not finite.
            EnvironmentFailed: The environment offers an action mask.
        """
        self.slot[SINCE] = 0.0
        self.refuse_masks(info)
        out[:] = self.flat(seen, n)
        if not self.finite(out):
            raise ValueError(
                f"environment {self.name!r}, number {self.first + n}: first observation not finite"
            )
        self.seen[n] = seen

    def renew(self, n: int, error: BaseException, out: Array, *, lost: int, tried: int = 0) -> int:
        """Make an environment again after `error`; write its first observation into row n of `out`.
        Return the number of attempts, of which `tried` were made before."""
        while True:
            tried += 1
            self.slot[SINCE] = 0.0
            self.give_up(self.fault(f"number {self.first + n}", error), tried, error, lost)
            try:
                with suppress(Exception, SystemExit):  # it has failed; its close does not matter
                    self.all[n].close()
                made = self.make_one()
                seed = draw_seeds(self.buffers, self.envs, tried)[n]
                self.all[n], self.origins[n], self.taken[n] = made, {"seed": seed}, []
                self.slot[SINCE] = monotonic()
                self.first_obs(n, *made.reset(seed=seed), out[n])
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
            tried = self.renew(n, error, b["step.obs"], lost=lost, tried=tried)
            if self.scaled:
                state = (b["normalise.obs"], b["normalise.options"])
                scale(b["step.obs"], n, *state, b["step.obs"])
            try:
                self.slot[SINCE] = monotonic()
                seen, value, stop, cut, _ = self.all[n].step(action)
                self.slot[SINCE] = 0.0
                b["step.next_obs"][n] = self.flat(seen, n)
                b["step.reward"][n] = value
                self.check_finite(b["step.reward"], "reward")
                self.check_finite(b["step.next_obs"], "observation")
            except BaseException as another:  # as above
                if not is_fault(another):
                    raise
                error, lost = another, 0
                continue
            self.taken[n].append(action)
            self.seen[n], self.cut[n] = seen, ANEW
            b["env.return"][n], b["env.elapsed"][n] = value, 0
            return stop, cut

    def replace_non_finite(self, actions: Any) -> list[int]:
        """Make environments again that gave a non-finite value; return the numbers of ended
        episodes."""
        b = self.buffers
        for n in range(self.envs):
            try:
                self.check_finite(b["step.reward"][: n + 1], "reward")
                self.check_finite(b["step.next_obs"][: n + 1], "observation")
            except ValueError as error:
                flags = self.retry_step(n, actions[n], error)
                b["step.terminated"][n], b["step.truncated"][n] = flags
        return [n for n in range(self.envs) if b["step.terminated"][n] or b["step.truncated"][n]]

    def snapshot(self) -> list[State]:
        found = []
        for origin, taken, seen in zip(self.origins, self.taken, self.seen, strict=True):
            state: State = {"origin": origin, "observation": pack(self.flat(seen, 0))}
            if len(taken) <= LOG:
                state["actions"] = pack(np.array(taken))
            found.append(state)
        return found

    def restore(self, states: list[State]) -> None:
        """Restore each environment by repeating the actions since its last reset.

        Raises:
            ValueError: The number of environments differs, or an episode cannot be repeated.
        """
        if len(states) != self.envs:
            raise ValueError(f"{len(states)} environments were stored, and there are {self.envs}")
        for n, state in enumerate(states):
            name = f"environment {self.name!r}, number {self.first + n}"
            if "actions" not in state:
                raise ValueError(
                    f"{name}: its episode is longer than the {LOG} actions that are kept to bring "
                    "it back"
                )
            origin, taken = state["origin"], self.actions_of(state)
            seen = self.replay(n, origin, taken)
            kept, found = unpack(state["observation"]), self.flat(seen, n)
            if not np.array_equal(kept, found):
                raise ValueError(
                    f"{name} was not restored: {len(taken)} steps after its reset it "
                    f"observes {found} instead of {kept}; it depends on more than its "
                    "generator and its actions"
                )
            self.origins[n], self.taken[n], self.seen[n] = origin, taken, seen
        self.cut[:] = 0

    def actions_of(self, state: State) -> list[Any]:
        """Return the actions that `snapshot` stored, as an environment takes them."""
        actions = unpack(state["actions"])
        return actions.tolist() if self.discrete else list(actions)

    def replay(self, n: int, origin: State | None, actions: list[Any]) -> Any:
        """Return an environment's observation after a reset from `origin` and these actions."""
        return replay_actions(self.all[n], origin, actions)
