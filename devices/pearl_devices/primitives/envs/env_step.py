"""What steps of gymnasium's environments share, whether one after another or in a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces.utils import flatdim

from pearl_devices import masks
from pearl_devices.base import Buffers, Call, EnvironmentFailed, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.asked import (
    EPISODE,
    STEP,
    Asked,
    is_fault,
)
from pearl_devices.primitives.envs.border import (
    Reader,
    Unfit,
    WrongInterface,
    all_finite,
    bad_action,
    not_given,
)
from pearl_devices.primitives.envs.gym_make import Array
from pearl_devices.primitives.envs.native_envs import record
from pearl_devices.primitives.envs.normalise import scale, with_normalisation
from pearl_devices.primitives.envs.spaces import (
    UnknownSpaceError,
    choices,
    parts,
    pixels,
    to_env_actions,
)
from pearl_devices.primitives.envs.spaces import scale as factors_of

ATTEMPTS = 3
"""An environment that fails this often in a row, though it is made again each time, is given up."""


def normalised(kernel: Kernel, buffers: Buffers, step: EnvStep) -> Call:
    """Return bound environments, followed by the normalisation that the kernel asks for."""
    return with_normalisation(kernel, buffers, step, fresh=True, raw=(step.raw, step.raw_next))  # type: ignore[arg-type]


def describe(error: BaseException) -> str:
    """The error of an environment in words, on one line."""
    text = " ".join(str(error).split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if isinstance(error, Unfit):
        return text
    kind = type(error).__name__
    return f"{kind}: {text}" if text else f"{kind}, without a text"


State = dict[str, Any]
"""Data that restores an environment, as JSON."""


class EnvStep(Asked):
    """A bound env_step: the common part of stepping environments one by one and in a batch.

    reader: reads their observations, into `raw` and `raw_next`: env.obs and step.next_obs, or
        arrays of float64 if observations are normalised.
    on_failure: called with each failure and the transitions lost; returns whether the run goes on.
    """

    def __init__(self, kernel: Kernel, buffers: Buffers, obs_space: Any, action_space: Any) -> None:
        super().__init__()
        self.name, self.envs, self.buffers = str(kernel.program), kernel.dim("envs"), buffers
        self.obs_space, self.action_space = obs_space, action_space
        self.args, self.scaled = dict(kernel.args), bool(kernel.dims.get("normalise_obs"))
        self.stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
        self.first = 0  # number of the first environment here, if others are stepped elsewhere
        self.on_failure: Callable[[str, int], object] | None = None
        self.ending = ""  # why the run ends at its next pause
        self.cut = np.zeros(self.envs, np.uint8)
        self.firsts: Array | None = None  # of a batch, as it was bound
        self.anew: dict[int, Array] = {}
        self.pass_first: Callable[[Array], Array] | None = None
        self.raw, self.raw_next = buffers["env.obs"], buffers["step.next_obs"]
        if self.scaled:
            self.raw, self.raw_next = (a.astype(np.float64) for a in (self.raw, self.raw_next))
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
        try:
            found = parts(obs_space)
        except UnknownSpaceError as error:
            raise UnsupportedError(f"environment {self.name!r}: {error}") from None
        scaled = factors_of(sum(part.size for part in found), pixels(obs_space))
        self.reader = Reader(
            found,
            table=bool(self.states),
            factors=scaled if kernel.dims.get("scaled") else None,
        )
        sizes = (self.reader.size, act, sum(factored))
        wanted = (kernel.dim("obs"), kernel.dim("act"), kernel.dims.get("choices", 0))
        if sizes != wanted:
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} has (obs, act, choices) = {sizes}, "
                f"the kernel has {wanted}"
            )

    def begin(self) -> None:
        """Clear the counters after the first reset."""
        b = self.buffers
        b["env.elapsed"][:] = 0
        b["env.return"][:] = 0.0
        self.firsts = self.raw.copy()
        if b["rng.env_step"][1] > 0:
            self.cut[:] = ANEW

    def start_anew(self) -> None:
        """Let this firing start from the first observations `anew`, in whose environments a new
        episode began at a resume. Its actions were chosen from the observations before.

        pass_first: what kernels of the user do with first observations; None: there are none.
        """
        b = self.buffers
        for n, first in self.anew.items():
            self.raw[n] = first
            self.show(n)
            b["env.return"][n], b["env.elapsed"][n], self.cut[n] = 0.0, 0, ANEW
        if self.pass_first is not None:
            rows = sorted(self.anew)
            b["step.obs"][rows] = self.pass_first(b["step.obs"][rows])
        self.anew = {}

    def share(self, slot: memoryview[float]) -> None:
        self.count()
        super().share(slot)

    def count(self) -> None:
        """Write the next step and the running episode to the slot."""
        self.slot[STEP] = int(self.buffers["env.elapsed"][0]) + 1
        self.slot[EPISODE] = int(self.buffers["episode.count"][0]) + 1

    def refuse_masks(self, info: Any, env: Any = None) -> None:
        """Refuse an environment that offers an action mask (`pearl_devices.masks`).

        info: of its reset. env: the environment, at its first reset.

        Raises:
            EnvironmentFailed: The environment offers an action mask.
        """
        if why := masks.refusal(self.name, info, env):
            raise EnvironmentFailed(why)

    def env_actions(self) -> Array:
        """The actions in act.action as the environments take them.

        Raises:
            EnvironmentFailed: one is not finite, and no environment gets it.
        """
        action = self.buffers["act.action"]
        if (n := bad_action(action)) is not None:
            raise EnvironmentFailed(f"{self.place(n)}: {not_given(action[n])}")
        return to_env_actions(self.action_space, action)

    def flat(self, one: Any) -> Array:
        """Return one environment's observation as a vector, float32.

        Raises:
            Unfit: it does not belong to the space.
        """
        row = np.zeros(self.raw.shape[1], np.float32)
        self.reader.read(one, row)
        return row

    def check_finite(self, values: Array, what: str, first: int = 0) -> None:
        """Raises Unfit if a value, one for each environment from number `first` on, is NaN or
        infinite."""
        if not all_finite(values):
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise Unfit(
                f"{what} {values[bad]} is not finite; learning from it would spoil all parameters",
                first + bad,
            )

    def place(self, row: int | None) -> str:
        """Name an environment, and its number."""
        which = f"one of a batch of {self.envs}" if row is None else f"number {self.first + row}"
        return f"environment {self.name!r}, {which}"

    @contextmanager
    def first_reset(self, row: int | None) -> Iterator[None]:
        """Within this context, errors of an environment's first reset become an
        EnvironmentFailed."""
        try:
            yield
        except (EnvironmentFailed, UnsupportedError):
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            at = self.place(error.row if isinstance(error, Unfit) and row is None else row)
            raise EnvironmentFailed(f"{at}, at its first reset: {describe(error)}") from error

    def fault(self, row: int | None, error: BaseException) -> str:
        """Return the text of a failure: the environment, the episode, the step and the error.

        They are counted as in the slot (see `asked.SINCE`).
        """
        episode, step = self.buffers["episode.count"][0] + 1, int(self.slot[STEP])
        return f"{self.place(row)}, episode {episode}, step {step}: {describe(error)}"

    def give_up(self, reason: str, attempt: int, error: BaseException, lost: int) -> None:
        """Report a failure to `on_failure`.

        Raises:
            EnvironmentFailed: There is no `on_failure`, a new environment would fail in the same
                way, or the last attempt failed too.
        """
        if self.on_failure is None or isinstance(error, WrongInterface):
            raise EnvironmentFailed(self.ending or reason) from error
        if attempt > ATTEMPTS:
            raise EnvironmentFailed(
                self.ending or f"{reason}; it was made again {ATTEMPTS} times and failed each time"
            ) from error
        if self.on_failure(reason, lost) is False and not self.ending:
            self.ending = reason

    def snapshot(self) -> list[State]:
        """Return the states from which `restore` starts; call it between two firings."""
        return [{}]

    def restore(self, states: list[State]) -> list[str]:
        """Restore the environments to the states of a `snapshot`; an environment that does not come
        back begins a new episode. Return a sentence about these.

        The arrays of the run may be copied again before the next firing.

        Raises:
            ValueError: The snapshot is of other environments.
        """
        assert self.firsts is not None
        self.anew = dict(enumerate(self.firsts))
        self.cut[:] = 0
        return [f"{self.why_lost()}; it begins new episodes"]

    def why_lost(self) -> str:
        """Return why these environments cannot be brought back, whatever their states are; "" if
        that depends."""
        return (
            f"environment {self.name!r} steps {self.envs} in one batch, which does not give its "
            "state"
        )

    def show(self, n: int) -> None:
        """Let the stored step of environment n begin at its observation in `raw`."""
        b = self.buffers
        if self.scaled:
            scale(self.raw, n, b["normalise.obs"], b["normalise.options"], b["step.obs"])
        else:
            b["step.obs"][n] = self.raw[n]

    def close(self) -> None:
        """End the environments, unless a call of one is running. They may fail to; that does not
        matter any more."""
        if self.since_s is None:
            for env in self.made():
                with suppress(Exception, SystemExit):
                    env.close()

    def made(self) -> Sequence[Any]:
        """Return the environments, or the batches of them, that this process has made."""
        raise NotImplementedError

    def end(self, index: int) -> None:
        """Record a finished episode."""
        b = self.buffers
        self.slot[EPISODE] += 1.0
        record(
            index, 0.0, True, b["env.return"], b["env.elapsed"],
            b["episode.returns"], b["episode.lengths"], b["episode.count"],
        )  # fmt: skip
