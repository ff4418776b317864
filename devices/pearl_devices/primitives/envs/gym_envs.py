"""env_step on any gymnasium environment: an id, or `module:callable` that returns one.

Environments are made one by one and stepped one after the other. A registered vector entry point is
used instead from `BATCHED` environments on, where its episodes can be restarted in the firing in
which they end (it says so, or it is gymnasium's CartPole, whose state is restarted here). So every
firing gives exactly one true transition per environment, and no reset is ever stored as one.

Environment n starts from a seed of its own, drawn from (key, firings done, n); a batched one takes
the first of them. The resets that follow go on with the environment's own generator, as gymnasium's
own vector environments do.

What resumes: each environment that is stepped alone comes back as it was by its generator's state
at its last reset and its actions since (`snapshot`, `restore`); of the batched ones gymnasium's
CartPole. A bind with rng.env_step[1] > 0 starts fresh episodes, whose first transitions are marked
(`ANEW`), until `restore`.

An environment that raises, gives NaN, a wrong shape or, watched, no answer is a ValueError naming
it; with `on_failure` it is made anew instead, at most `ATTEMPTS` times in a row. What is stored
then is the step from its new first observation: every transition is one that happened.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import AutoresetMode, VectorEnv

from pearl_devices.base import Buffers, Call, EnvironmentFailed, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.named import CALLABLE, environment, registered
from pearl_devices.primitives.envs.gym_resume import (
    LOG,
    generator,
    generator_state,
    packed,
    unpacked,
)
from pearl_devices.primitives.envs.native_envs import record
from pearl_devices.primitives.envs.normalise import normalised, scale
from pearl_devices.primitives.math.rng import bits, stream

Single = gymnasium.Env[Any, Any]
Batch = VectorEnv[Any, Any, Any]
Array = npt.NDArray[Any]
BATCHED = 6
"""From so many environments on a vector entry point pays: a step of gymnasium's CartPole takes 5 us
alone and 30 us batched, whatever their number (measured, AMD EPYC, gymnasium 1.4)."""


ATTEMPTS = 3
"""An environment that fails so often in a row, though it is made anew each time, is given up."""

State = dict[str, Any]
"""What brings an environment back, as JSON."""


def make(program: str, args: dict[str, Any], envs: int, stack: int = 0) -> list[Single] | Batch:
    """`envs` environments, or a batch of them; an UnsupportedError names one that cannot be made.
    stack: each observes so many of its last observations, which are frames of uint8.

    gymnasium's checker is left out: it only warns, and a wrong shape, NaN or infinity is an error
    here anyway.
    """
    try:
        if CALLABLE.fullmatch(program):
            return [stacked(environment(program, args), stack) for _ in range(envs)]
        spec = gymnasium.spec(registered(program))
        batched = spec.vector_entry_point is not None and not spec.additional_wrappers
        batched = batched and not stack
        if batched and (envs >= BATCHED or spec.entry_point is None):
            env = gymnasium.make_vec(spec.id, envs, vectorization_mode="vector_entry_point", **args)
            mode = env.metadata.get("autoreset_mode")
            if mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED) or is_cartpole(env):
                return env
            env.close()
        if spec.entry_point is None:
            raise UnsupportedError(
                f"environment {program!r} has only a vector entry point, and that one spends a "
                "step on each reset; such steps are no transitions and cannot be used"
            )
        made = [environment(program, args, disable_env_checker=True) for _ in range(envs)]
        return [stacked(env, stack) for env in made]
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedError(
            f"environment {program!r} with arguments {args} cannot be made: {error}"
        ) from error


def stacked(env: Single, stack: int) -> Single:
    """The same, observing its last `stack` frames, oldest first; before there are so many the first
    of the episode stands in. As it is for a stack of 0."""
    if not stack:
        return env
    space = env.observation_space
    if not (isinstance(space, Box) and space.dtype == np.uint8):
        raise UnsupportedError(
            f"environment {env} observes {space}; frames that are stacked are a Box of uint8"
        )
    return gymnasium.wrappers.FrameStackObservation(env, stack, padding_type="reset")


def is_cartpole(env: Batch) -> bool:
    """Whether this is gymnasium's own batched CartPole, whose arrays hold all of its state."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    held = ("state", "steps", "prev_done", "low", "high")
    known = isinstance(env.unwrapped, CartPoleVectorEnv)
    return known and all(hasattr(env.unwrapped, name) for name in held)


def restart_cartpole(env: Any, ended: Array, obs: Array) -> None:
    """Restarts the environments `ended` as its own next step would, and clears its mark for it."""
    count = int(ended.sum())
    env.state[:, ended] = env.np_random.uniform(env.low, env.high, size=(4, count))
    env.steps[ended] = 0
    env.prev_done[ended] = False
    obs[ended] = env.state[:, ended].T


def seeds(buffers: Buffers, envs: int, attempt: int = 0) -> list[int]:
    """One seed an environment, from the key and the firings done. attempt: others than before."""
    rng = buffers["rng.env_step"]
    base = np.uint64(stream(rng[0], rng[1] + np.uint64(attempt << 48)))
    return [int(bits(base, n)) >> 33 for n in range(envs)]


class Step:
    """A bound env_step: what stepping environments one by one and in a batch have in common."""

    def __init__(self, kernel: Kernel, buffers: Buffers, obs_space: Any, action_space: Any) -> None:
        self.name, self.envs, self.buffers = str(kernel.program), kernel.dim("envs"), buffers
        self.obs_space, self.action_space = obs_space, action_space
        self.args, self.scaled = dict(kernel.args), bool(kernel.dims.get("normalise_obs"))
        self.stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
        self.first = 0  # number of the first one, where others are stepped elsewhere
        self.on_failure: Callable[[str, int], None] | None = None
        self.since_s: float | None = None  # monotonic; None: none is being asked
        self.cut = np.zeros(self.envs, np.uint8)
        self.zeros = np.zeros(buffers["env.obs"].size, np.float32)
        if isinstance(action_space, Discrete):
            act = 0
        elif isinstance(action_space, Box):
            act = flatdim(action_space)
        else:
            raise UnsupportedError(
                f"environment {self.name!r} has actions {action_space}; "
                "Discrete and Box are supported"
            )
        self.states = int(kernel.dims.get("states", 0))  # type: ignore[arg-type]
        if self.states and not (isinstance(obs_space, Discrete) and obs_space.n == self.states):
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} observes {obs_space}, the kernel says "
                f"{self.states} states"
            )
        size = 1 if self.states else flatdim(obs_space)
        found, given = (size, act), (kernel.dim("obs"), kernel.dim("act"))
        if found != given:
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} has (obs, act) = {found}, "
                f"the kernel says {given}"
            )

    def begin(self) -> None:
        """After the first reset: no step done."""
        b = self.buffers
        b["env.elapsed"][:] = 0
        b["env.return"][:] = 0.0
        if b["rng.env_step"][1] > 0:
            self.cut[:] = ANEW

    def flat(self, one: Any, index: int) -> Array:
        """One environment's observation as a vector; a ValueError if its size is wrong."""
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
        return flat

    def state(self, one: Any, index: int) -> int:
        """The number of a discrete observation, from 0; a ValueError if there is no such state."""
        number = int(one) - int(self.obs_space.start)
        if not 0 <= number < self.states:
            raise ValueError(
                f"environment {self.name!r}, number {self.first + index}: observed {one}; its "
                f"space is {self.obs_space}"
            )
        return number

    def finite(self, values: Array) -> bool:
        # The product with zeros is 0 unless a value is not finite; cheaper than asking of each.
        return bool(np.dot(values.reshape(-1), self.zeros[: values.size]) == 0.0)

    def check_finite(self, values: Array, what: str) -> None:
        if not self.finite(values):
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(
                f"environment {self.name!r}, number {self.first + bad}: {what} {values[bad]} is "
                "not finite; learning from it would spoil all parameters"
            )

    def fault(self, which: str, error: BaseException) -> str:
        """A failure in words: which environment, in which step, and what it was."""
        step, text = int(self.buffers["rng.env_step"][1]), " ".join(str(error).split())
        where = f"environment {self.name!r}, {which}, "
        if isinstance(error, ValueError) and text.startswith(where[:-2]):
            return f"{where}step {step}: {text.removeprefix(where[:-2]).lstrip(': ')}"
        return f"{where}step {step}: {type(error).__name__}: {text}"

    def give_up(self, reason: str, attempt: int, error: BaseException, lost: int) -> None:
        """Tells of a failure; a ValueError if nobody is to be told, or it goes on failing."""
        if self.on_failure is None:
            raise EnvironmentFailed(reason) from error
        if attempt > ATTEMPTS:
            raise EnvironmentFailed(
                f"{reason}; it was made anew {ATTEMPTS} times, and failed each time"
            ) from error
        self.on_failure(reason, lost)

    def snapshot(self) -> list[State]:
        """What brings the environments back as they are now, between two firings."""
        return [{}]

    def restore(self, states: list[State]) -> None:
        """Brings the environments to where `snapshot` found them, the arrays being as they were
        after binding. A ValueError names one that does not come back the same."""
        raise ValueError(
            f"environment {self.name!r} steps {self.envs} in one batch, which does not tell its "
            f"state, so that it cannot come back as it was; fewer than {BATCHED} environments are "
            "stepped alone and can"
        )

    def end(self, index: int) -> None:
        """Notes a finished episode."""
        b = self.buffers
        record(
            index, 0.0, True, b["env.return"], b["env.elapsed"],
            b["episode.returns"], b["episode.lengths"], b["episode.count"],
        )  # fmt: skip


class SingleSteps(Step):
    """Steps environments one after the other and restarts those that end."""

    def __init__(self, kernel: Kernel, buffers: Buffers, envs: list[Single]) -> None:
        first = envs[0]
        super().__init__(kernel, buffers, first.observation_space, first.action_space)
        self.all, self.discrete = envs, isinstance(first.action_space, Discrete)
        self.offset = int(first.action_space.start) if self.discrete else 0  # type: ignore[attr-defined]
        numbers = seeds(buffers, self.envs)
        self.origins: list[State | None] = [{"seed": number} for number in numbers]
        self.taken: list[list[Any]] = [[] for _ in envs]
        self.seen: list[Any] = [None] * self.envs
        for n, (env, seed) in enumerate(zip(envs, numbers, strict=True)):
            self.seen[n] = env.reset(seed=seed)[0]
            buffers["env.obs"][n] = self.flat(self.seen[n], n)
        self.check_finite(buffers["env.obs"], "observation")
        self.begin()

    def actions(self) -> Any:
        """What each environment takes: a Python integer, or an array of its space's type."""
        action, space = self.buffers["act.action"], self.action_space
        if self.discrete:
            return [value + self.offset for value in action.tolist()]
        return action.reshape(self.envs, *space.shape).astype(space.dtype, copy=True)

    def __call__(self) -> None:
        b = self.buffers
        obs, next_obs, reward = b["env.obs"], b["step.next_obs"], b["step.reward"]
        terminated, truncated = b["step.terminated"], b["step.truncated"]
        b["step.obs"][:] = obs
        b["step.action"][:] = b["act.action"]
        ended, actions = [], self.actions()
        for n, (env, action) in enumerate(zip(self.all, actions, strict=True)):
            try:
                self.since_s = monotonic()
                seen, value, stop, cut, _ = env.step(action)
                self.since_s = None
                next_obs[n] = self.flat(seen, n)
                reward[n] = value
            except Exception as error:  # an environment is a program of others: whatever it raises
                stop, cut = self.anew(n, action, error)
            else:
                b["env.return"][n] += value
                if len(self.taken[n]) <= LOG:
                    self.taken[n].append(action)
                self.seen[n] = seen
            terminated[n], truncated[n] = stop, cut
            if stop or cut:
                ended.append(n)
        if not (self.finite(reward) and self.finite(next_obs)):
            ended = self.without_nan(actions)
        if self.cut.any():
            truncated |= self.cut
            self.cut[:] = 0
        b["rng.env_step"][1] += np.uint64(1)
        b["env.elapsed"] += 1
        obs[:] = next_obs
        for n in ended:
            self.end(n)
            self.restart(n)

    def restart(self, n: int) -> None:
        """The next episode of an environment whose last one has ended."""
        self.origins[n] = generator_state(self.all[n])
        self.taken[n] = []
        try:
            self.since_s = monotonic()
            self.first_obs(n, self.all[n].reset()[0], self.buffers["env.obs"][n])
        except Exception as error:  # an environment is a program of others: whatever it raises
            self.renew(n, error, self.buffers["env.obs"], lost=0)

    def first_obs(self, n: int, seen: Any, out: Array) -> None:
        self.since_s = None
        out[:] = self.flat(seen, n)
        if not self.finite(out):
            raise ValueError(
                f"environment {self.name!r}, number {self.first + n}: a first observation that is "
                "not finite"
            )
        self.seen[n] = seen

    def renew(self, n: int, error: BaseException, out: Array, *, lost: int, tried: int = 0) -> int:
        """Makes an environment anew after `error`, its first observation in row n of `out`; how
        often that was tried so far."""
        while True:
            tried += 1
            self.since_s = None
            self.give_up(self.fault(f"number {self.first + n}", error), tried, error, lost)
            try:
                with suppress(Exception):  # it has failed; whether it can end does not matter
                    self.all[n].close()
                made = make(self.name, self.args, 1, self.stack)
                assert isinstance(made, list)
                seed = seeds(self.buffers, self.envs, tried)[n]
                self.all[n], self.origins[n], self.taken[n] = made[0], {"seed": seed}, []
                self.since_s = monotonic()
                self.first_obs(n, made[0].reset(seed=seed)[0], out[n])
                return tried
            except Exception as another:  # as above
                error, lost = another, 0

    def anew(self, n: int, action: Any, error: BaseException) -> tuple[bool, bool]:
        """After a failed step: the step of a new environment from its first observation."""
        b, tried, lost = self.buffers, 0, 1
        while True:
            tried = self.renew(n, error, b["step.obs"], lost=lost, tried=tried)
            if self.scaled:
                state = (b["normalise.obs"], b["normalise.options"])
                scale(b["step.obs"], n, *state, b["step.obs"])
            try:
                self.since_s = monotonic()
                seen, value, stop, cut, _ = self.all[n].step(action)
                self.since_s = None
                b["step.next_obs"][n] = self.flat(seen, n)
                b["step.reward"][n] = value
                self.check_finite(b["step.reward"], "reward")
                self.check_finite(b["step.next_obs"], "observation")
            except Exception as another:  # as above
                error, lost = another, 0
                continue
            self.taken[n].append(action)
            self.seen[n], self.cut[n] = seen, ANEW
            b["env.return"][n], b["env.elapsed"][n] = value, 0
            return stop, cut

    def without_nan(self, actions: Any) -> list[int]:
        """Makes anew whichever gave what is not finite; the numbers of the episodes that end."""
        b = self.buffers
        for n in range(self.envs):
            try:
                self.check_finite(b["step.reward"][: n + 1], "reward")
                self.check_finite(b["step.next_obs"][: n + 1], "observation")
            except ValueError as error:
                flags = self.anew(n, actions[n], error)
                b["step.terminated"][n], b["step.truncated"][n] = flags
        return [n for n in range(self.envs) if b["step.terminated"][n] or b["step.truncated"][n]]

    def snapshot(self) -> list[State]:
        found = []
        for origin, taken, seen in zip(self.origins, self.taken, self.seen, strict=True):
            state: State = {"origin": origin, "observation": packed(self.flat(seen, 0))}
            if len(taken) <= LOG:
                state["actions"] = packed(np.array(taken))
            found.append(state)
        return found

    def restore(self, states: list[State]) -> None:
        """By the actions since its last reset, each."""
        if len(states) != self.envs:
            raise ValueError(f"{len(states)} environments were kept, and there are {self.envs}")
        for n, (env, state) in enumerate(zip(self.all, states, strict=True)):
            name = f"environment {self.name!r}, number {self.first + n}"
            if "actions" not in state:
                raise ValueError(
                    f"{name}: its episode is longer than the {LOG} actions that are kept to bring "
                    "it back"
                )
            origin = state["origin"]
            if origin and "seed" in origin:
                seen, _ = env.reset(seed=origin["seed"])
            else:
                if origin:
                    env.unwrapped.np_random = generator(origin)
                seen, _ = env.reset()
            actions = unpacked(state["actions"])
            taken: list[Any] = actions.tolist() if self.discrete else list(actions)
            for action in taken:
                seen, *_ = env.step(action)
            kept, found = unpacked(state["observation"]), self.flat(seen, n)
            if not np.array_equal(kept, found):
                raise ValueError(
                    f"{name} did not come back as it was: {len(taken)} steps after its reset it "
                    f"observes {found}, and had observed {kept}; it does not follow from its "
                    "generator and its actions alone"
                )
            self.origins[n], self.taken[n], self.seen[n] = origin, taken, seen
        self.cut[:] = 0


class BatchStep(Step):
    """Steps a vector environment, which restarts its episodes or has them restarted here."""

    def __init__(self, kernel: Kernel, buffers: Buffers, env: Batch) -> None:
        super().__init__(kernel, buffers, env.single_observation_space, env.single_action_space)
        self.env, self.mode = env, env.metadata.get("autoreset_mode")
        first, _ = env.reset(seed=seeds(buffers, 1)[0])
        self.write(first, buffers["env.obs"])
        self.begin()

    def write(self, obs: Any, out: Array) -> None:
        """Flattens a batch of observations into `out` (N, O); refuses what is not finite."""
        if isinstance(self.obs_space, Box):
            flat = np.asarray(obs)
            if flat.size != out.size:
                raise ValueError(
                    f"environment {self.name!r}: observations of shape {flat.shape}; "
                    f"expected {self.envs} times {self.obs_space.shape}"
                )
            out[:] = flat.reshape(out.shape)
        else:
            for n, one in enumerate(
                gymnasium.vector.utils.iterate(self.env.observation_space, obs)
            ):
                out[n] = self.flat(one, n)
        self.check_finite(out, "observation")

    def __call__(self) -> None:
        b = self.buffers
        action, obs, next_obs = b["act.action"], b["env.obs"], b["step.next_obs"]
        b["step.obs"][:] = obs
        b["step.action"][:] = action
        space = self.action_space
        if isinstance(space, Discrete):
            given: Array = action + space.start if space.start else action
        else:
            given = action.reshape(self.envs, *space.shape).astype(space.dtype, copy=False)
        reward, terminated, truncated, infos = self.step(given)
        b["rng.env_step"][1] += np.uint64(1)
        ended = np.logical_or(terminated, truncated)
        b["step.terminated"][:] = terminated
        b["step.truncated"][:] = truncated
        if self.cut.any():
            b["step.truncated"] |= self.cut
            self.cut[:] = 0
        obs[:] = next_obs
        b["env.elapsed"] += 1
        b["env.return"] += reward
        if ended.any():
            self.restart(ended, infos)

    def remade(self) -> Batch:
        """The same environments once more."""
        made = make(self.name, self.args, self.envs)
        assert isinstance(made, VectorEnv)
        return made

    def step(self, given: Array) -> tuple[Array, Array, Array, Any]:
        """A step of all, made anew together where one fails: reward, flags and what else it says.
        Rewards and successors are in the arrays."""
        b, tried, lost = self.buffers, 0, self.envs
        while True:
            try:
                if tried:
                    with suppress(Exception):  # it has failed; whether it can end does not matter
                        self.env.close()
                    made = self.env = self.remade()
                    self.since_s = monotonic()
                    first, _ = made.reset(seed=seeds(b, 1, tried)[0])
                    self.write(first, b["step.obs"])
                    for n in range(self.envs if self.scaled else 0):
                        state = (b["normalise.obs"], b["normalise.options"])
                        scale(b["step.obs"], n, *state, b["step.obs"])
                    b["env.return"][:], b["env.elapsed"][:], self.cut[:] = 0.0, 0, ANEW
                self.since_s = monotonic()
                seen, reward, terminated, truncated, infos = self.env.step(given)
                self.since_s = None
                b["step.reward"][:] = reward
                self.check_finite(b["step.reward"], "reward")
                self.write(seen, b["step.next_obs"])
                return reward, terminated, truncated, infos
            except Exception as error:  # an environment is a program of others: whatever it raises
                tried, self.since_s = tried + 1, None
                which = f"one of a batch of {self.envs}"
                if isinstance(error, ValueError) and "number " in str(error):
                    which = str(error).partition("number ")[2].partition(":")[0]
                    which = f"number {which}"
                self.give_up(self.fault(which, error), tried, error, lost)
                lost = 0

    def snapshot(self) -> list[State]:
        """Of gymnasium's CartPole, which says what it is made of."""
        if not is_cartpole(self.env):
            return super().snapshot()
        env: Any = self.env.unwrapped
        held = {name: packed(np.asarray(getattr(env, name))) for name in ("state", "steps")}
        return [{**held, "generator": generator_state(env)}]

    def restore(self, states: list[State]) -> None:
        """Of gymnasium's CartPole."""
        if not is_cartpole(self.env) or len(states) != 1 or not states[0].get("generator"):
            super().restore(states)
        env, state = self.env.unwrapped, states[0]
        env.np_random = generator(state["generator"])
        env.state, env.steps = unpacked(state["state"]), unpacked(state["steps"])  # type: ignore[attr-defined]
        env.prev_done[:] = False  # type: ignore[attr-defined]
        self.cut[:] = 0

    def restart(self, ended: Array, infos: dict[str, Any]) -> None:
        """Gives step.next_obs the true successors and env.obs the first of the next episodes."""
        obs, next_obs = self.buffers["env.obs"], self.buffers["step.next_obs"]
        for n in np.flatnonzero(ended):
            self.end(int(n))
        if self.mode == AutoresetMode.SAME_STEP:
            for n in np.flatnonzero(ended):
                next_obs[n] = self.flat(infos["final_obs"][n], int(n))
            self.check_finite(next_obs, "observation")
        elif self.mode == AutoresetMode.DISABLED:
            first, _ = self.env.reset(options={"reset_mask": ended})
            fresh = np.empty_like(obs)
            self.write(first, fresh)
            obs[ended] = fresh[ended]
        else:
            restart_cartpole(self.env.unwrapped, ended, obs)


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """env_step through gymnasium: makes the environments and resets them, seeds from the key."""
    stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
    made = make(str(kernel.program), dict(kernel.args), kernel.dim("envs"), stack)
    kind = SingleSteps if isinstance(made, list) else BatchStep
    return normalised(kernel, buffers, kind(kernel, buffers, made), fresh=True)  # type: ignore[arg-type]


def stepping(call: Call) -> Step | None:
    """The environments behind a bound env_step; None where all there is lies in the arrays."""
    inner = getattr(call, "calls", [call])[0]
    return inner if isinstance(inner, Step) else None
