"""What steps of gymnasium's environments share, whether one after another or in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
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
    STEP,
    Asked,
)
from pearl_devices.primitives.envs.gym_make import Array
from pearl_devices.primitives.envs.native_envs import record
from pearl_devices.primitives.envs.normalise import scale
from pearl_devices.primitives.envs.spaces import choices, pixels
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
        self.firsts: Array | None = None  # of a batch, as it was bound
        self.anew: dict[int, Array] = {}
        self.pass_first: Callable[[Array], Array] | None = None
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
        self.firsts = b["env.obs"].copy()
        if b["rng.env_step"][1] > 0:
            self.cut[:] = ANEW

    def start_anew(self) -> None:
        """Let this firing start from the first observations `anew`, in whose environments a new
        episode began at a resume. Its actions were chosen from the observations before.

        pass_first: what kernels of the user do with first observations; None: there are none.
        """
        b = self.buffers
        for n, first in self.anew.items():
            b["step.obs"][n] = first
            if self.scaled:
                state = (b["normalise.obs"], b["normalise.options"])
                scale(b["step.obs"], n, *state, b["step.obs"])
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
