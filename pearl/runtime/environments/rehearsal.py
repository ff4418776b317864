"""The rehearsal of `pearl check --import`: one environment plays one episode twice with one seed.
What training would meet is said before a run begins.

The actions are random, and go to the environment as in training: through the border
(`pearl_devices.primitives.envs.border`), which reads all that it returns. Steps and seconds are
bounded. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pearl.runtime.environments.external_envs import TIME_LIMIT_S
from pearl.runtime.environments.watchdog import env_time_limit, watching_user_code

if TYPE_CHECKING:
    from pearl.spec.system import System

STEPS = 1000
"""Most steps of an episode that is rehearsed."""

SECONDS = 2.0
"""Seconds after which an episode that is rehearsed is cut."""

SEED = 0

GOALS = ("observation", "achieved_goal", "desired_goal")
"""Entries of a goal environment's observations (gymnasium-robotics)."""


@dataclass(frozen=True)
class Rehearsal:
    """What was seen.

    problems: sentences about what would end a run.
    notes: sentences about what training takes, and a user should know.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Episode:
    """What an environment showed in an episode.

    rows: observations, flat, float64; the first one is that of the reset.
    rewards, flags: of each step.
    odd: sentences about values that were taken and are of another type than gymnasium's.
    masks: names of what looks like an action mask.
    """

    rows: list[npt.NDArray[np.float64]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    flags: list[tuple[bool, bool]] = field(default_factory=list)
    odd: dict[str, None] = field(default_factory=dict)
    masks: dict[str, None] = field(default_factory=dict)


class Stage:
    """An environment that is rehearsed, and the place that it has reached.

    normalised: observations stay float64 until they are normalised.
    """

    def __init__(self, system: System) -> None:
        from pearl_devices.primitives.envs.asked import Asked
        from pearl_devices.primitives.envs.border import Reader
        from pearl_devices.primitives.envs.gym_episodes import make_env
        from pearl_devices.primitives.envs.spaces import parts

        self.system, self.asked, self.name = system, Asked(), system.env.id
        self.env = make_env(self.name, dict(system.env.args), system.env.stack)
        self.reader = Reader(parts(self.env.observation_space))
        self.episode, self.step = 0, 0
        normalise = getattr(system.algorithm, "normalise", None)
        self.normalised = bool(getattr(normalise, "observations", False))

    @property
    def since_s(self) -> float | None:
        return self.asked.since_s

    @property
    def slot(self) -> memoryview[float]:
        return self.asked.slot

    def share(self, slot: memoryview[float]) -> None:
        self.asked.share(slot)

    @property
    def place(self) -> str:
        return f"environment {self.name!r}, rehearsed episode {self.episode}, step {self.step}"

    def actions(self) -> list[Any]:
        """Return random actions, as the environment takes them."""
        from gymnasium.spaces import Discrete

        from pearl_devices.primitives.envs.spaces import to_env_actions

        env, draw = self.system.env, np.random.default_rng(SEED)
        chosen: npt.NDArray[Any]
        if env.actions:
            chosen = draw.integers(0, env.actions, STEPS)
        elif env.choices:
            chosen = draw.integers(0, env.choices, (STEPS, env.act))
        else:
            low, high = (np.array(bound) for bound in (env.act_low, env.act_high))
            least, most = np.maximum(low, -1.0), np.minimum(high, 1.0)
            bounded = np.isfinite(low) & np.isfinite(high) & (high - low < 1e6)
            least, most = np.where(bounded, low, least), np.where(bounded, high, most)
            chosen = draw.uniform(np.minimum(least, most), most, (STEPS, env.act))
            chosen = chosen.astype(np.float32)
        space = self.env.action_space
        given = to_env_actions(space, chosen)
        return given.tolist() if isinstance(space, Discrete) else [*given]

    def play(self, actions: list[Any], *, seed: int | None = SEED) -> Episode:
        """Play an episode until it ends, or the actions or the time are used up.

        Raises:
            Unfit: the environment returned what training does not take.
        """
        from pearl_devices import masks
        from pearl_devices.primitives.envs import border

        found, begin_s = Episode(), monotonic()
        self.episode, self.step = self.episode + 1, 0
        with self._asking():
            options = {} if seed is None else {"seed": seed}
            seen, info = border.reset(self.env, **options)
        self._see(found, seen)
        found.masks.update(dict.fromkeys(masks.like_masks(seen, info)))
        for self.step, action in enumerate(actions, 1):
            with self._asking():
                result = self.env.step(action)
            seen, reward, terminated, truncated = border.read_step(result)
            found.odd.update(dict.fromkeys(border.odd_types(result)))
            found.masks.update(dict.fromkeys(masks.like_masks(None, result[4])))
            if not np.isfinite(reward):
                raise border.Unfit(f"reward {reward} is not finite")
            if abs(reward) > border.WIDEST:
                raise border.Unfit(f"reward {reward:g} is not finite in float32")
            self._see(found, seen)
            found.rewards.append(reward)
            found.flags.append((terminated, truncated))
            if terminated or truncated or monotonic() - begin_s > SECONDS:
                break
        return found

    def _see(self, found: Episode, seen: Any) -> None:
        from pearl_devices.primitives.envs.border import Unfit

        row = np.zeros(self.reader.size)
        self.reader.read(seen, row)
        with np.errstate(over="ignore"):
            shown = row if self.normalised else row.astype(np.float32)
        if not np.isfinite(shown).all():
            raise Unfit(f"observation {shown} is not finite")
        found.rows.append(row)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        from pearl_devices.primitives.envs.asked import EPISODE, SINCE, STEP

        slot = self.asked.slot
        slot[EPISODE], slot[STEP], slot[SINCE] = self.episode, self.step, monotonic()
        try:
            yield
        finally:
            self.asked.slot[SINCE] = 0.0


def rehearse(system: System) -> Rehearsal:
    """Rehearse the environment of a system."""
    from pearl_devices import UnsupportedError
    from pearl_devices.primitives.envs.asked import is_fault
    from pearl_devices.primitives.envs.border import WrongInterface
    from pearl_devices.primitives.envs.env_step import describe
    from pearl_devices.primitives.envs.global_generators import generators_from

    try:
        stage = Stage(system)
    except UnsupportedError as error:
        return Rehearsal((str(error),))
    limit_s = system.train.env_time_limit or TIME_LIMIT_S
    try:
        stages = {"the rehearsal": stage}
        with generators_from(SEED), env_time_limit(stages, stages, limit_s, stands=""):
            actions = stage.actions()
            first = stage.play(actions)
            again = stage.play(actions[: len(first.rewards)])
            return Rehearsal(notes=tuple(_watch(stage, actions, first, again)))
    except BaseException as error:  # the environment's code may raise anything
        if not is_fault(error):
            raise
        text = f"{stage.place}: {describe(error)}"
        if system.train.on_env_failure == "restart" and not isinstance(error, WrongInterface):
            return Rehearsal(notes=(f"{text}; training would make the environment again",))
        return Rehearsal((text,))
    finally:
        with suppress(Exception), watching_user_code(f"close of environment {stage.name!r}"):
            stage.env.close()  # it may have failed; a failing close does not matter


def _watch(stage: Stage, actions: list[Any], first: Episode, again: Episode) -> Iterator[str]:
    """Yield a sentence about each thing that a user should know of two equal episodes."""
    name = f"environment {stage.name!r}"
    if why := _difference(first, again):
        yield f"{name}: two episodes from seed {SEED} with the same actions differ: {why}; " + (
            "it draws from random or numpy.random, whose state no checkpoint has: a resumed run "
            "begins new episodes. Draw from self.np_random instead"
            if _follows_global_generators(stage, actions[: len(first.rewards)])
            else "it depends on more than its seed and its actions (a generator of its own, a "
            "clock, hardware), so two runs with one seed may differ, and a resumed run begins "
            "new episodes"
        )
    elif why := _lost_at_a_resume(stage, actions):
        yield f"{name} cannot be brought back by a resumed run, which begins new episodes: {why}"
    yield from (f"{name}: {each}" for each in first.odd)
    if first.masks:
        named = ", ".join(first.masks)
        yield (
            f"{name}: {named} looks like an action mask, and masks are not supported: all actions "
            "are chosen from and learned from"
        )
    yield from (f"{name}: {each}" for each in _flattened(stage))
    yield from (f"{name}: {each}" for each in _merged(stage, first))


def _difference(one: Episode, other: Episode) -> str:
    """Where two episodes differ first; empty if they do not."""
    for step, (a, b) in enumerate(zip(one.rows, other.rows, strict=False)):
        if not np.array_equal(a, b):
            at = int(np.argmax(a != b))
            return (
                f"after step {step}, component {at} of the observation is {a[at]:g} and {b[at]:g}"
            )
    for step, (x, y) in enumerate(zip(one.rewards, other.rewards, strict=False), 1):
        if x != y:
            return f"the reward of step {step} is {x:g} and {y:g}"
    for step, (before, after) in enumerate(zip(one.flags, other.flags, strict=False), 1):
        if before != after:
            return f"step {step} ends the episode in one of them"
    return ""


def _follows_global_generators(stage: Stage, actions: list[Any]) -> bool:
    """Whether episodes are equal once Python's and numpy's global generators are seeded."""
    from pearl_devices.primitives.envs.global_generators import generators_from

    found = []
    for _ in range(2):
        with generators_from(SEED):
            found.append(stage.play(actions))
    return not _difference(*found)


def _lost_at_a_resume(stage: Stage, actions: list[Any]) -> str:
    """How an episode differs that is repeated as a resumed run repeats it; empty if it does not."""
    from pearl_devices.primitives.envs.gym_resume import generator_state, replay_actions
    from pearl_devices.primitives.envs.spaces import Lone

    if isinstance(stage.env.unwrapped, Lone):
        return "vector environments do not give their states"
    origin = generator_state(stage.env)
    played = stage.play(actions[:20], seed=None)
    done = len(played.rewards)
    row = np.zeros(stage.reader.size)
    stage.reader.read(replay_actions(stage.env, origin, actions[:done]), row)
    if np.array_equal(row, played.rows[-1]):
        return ""
    at = int(np.argmax(row != played.rows[-1]))
    return (
        f"{done} steps after a reset without a seed, component {at} of the observation is "
        f"{played.rows[-1][at]:g}, and {row[at]:g} when the same is repeated: it depends on more "
        "than its np_random and its actions"
    )


def _flattened(stage: Stage) -> Iterator[str]:
    names = {part.path[0] for part in stage.reader.parts if part.path}
    if set(GOALS) <= names:
        algorithm = stage.system.algorithm.name
        yield (
            f"it observes goals ({', '.join(GOALS)}); {algorithm} flattens them into one vector, "
            "and relabels no goals (hindsight replay)"
        )


def _merged(stage: Stage, episode: Episode) -> Iterator[str]:
    """Say which components float32 cannot tell apart, if they are not normalised before."""
    if stage.normalised:
        return
    rows = np.array(episode.rows)
    for at in range(rows.shape[1]):
        exact = np.unique(rows[:, at])
        left = np.unique(exact.astype(np.float32)).size
        if 2 * left <= exact.size:
            yield (
                f"component {at} of the observation has {exact.size} values around {exact[0]:g}, "
                f"of which float32 tells {left} apart: set algorithm.normalise.observations, which "
                "normalises in float64, or subtract a constant in a wrapper"
            )
            return
