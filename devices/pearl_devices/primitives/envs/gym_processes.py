"""env_step on gymnasium's environments, each in a separate process, so that they wait in parallel.

All requests are sent, then the code of `SingleSteps` reads the answers in order. So seeds,
failures, restarts and snapshots are the same as for environments stepped one after another.
`random` and `numpy.random` are seeded in each process. Results
have the same bits if an environment depends on its own generator and actions alone.
"""

from __future__ import annotations

from typing import Any

from pearl_devices.base import Buffers, Call
from pearl_devices.buffers import allocate
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.envs.env_process import EnvProcess, start_environments
from pearl_devices.primitives.envs.env_step import State, normalised
from pearl_devices.primitives.envs.gym_make import GLOBAL, draw_seeds
from pearl_devices.primitives.envs.gym_steps import SingleSteps


class ProcessSteps(SingleSteps):
    """Steps environments in other processes."""

    all: list[EnvProcess]  # type: ignore[assignment]
    renewed = 0

    def __init__(self, kernel: Kernel, buffers: Buffers, envs: list[EnvProcess]) -> None:
        for env, seed in zip(envs, draw_seeds(buffers, len(envs)), strict=True):
            env.begin("reset", seed)
        super().__init__(kernel, buffers, envs)  # type: ignore[arg-type]

    def __call__(self) -> None:
        for env, action in zip(self.all, self.actions(), strict=True):
            env.begin("step", action)
        super().__call__()

    def made(self) -> list[Any]:
        return []  # their processes end with the last reference to them

    def restart_ended(self, ended: list[int]) -> None:
        for n in ended:
            self.all[n].begin("generator_state")
            self.all[n].begin("reset", None)
        super().restart_ended(ended)

    def generator_origin(self, n: int) -> State | None:
        found: State | None = self.all[n].generator_state()
        return found

    def make_one(self) -> Any:
        self.renewed += 1
        seeds = draw_seeds(self.buffers, 1, GLOBAL + self.renewed)
        return start_environments(self.name, self.args, 1, self.stack, seeds)[0]

    def replay(self, n: int, origin: State | None, actions: list[Any]) -> Any:
        return self.all[n].replay(origin, actions)

    def restore(self, states: list[State]) -> list[str]:
        for env, state in zip(self.all, states, strict=False):
            if "actions" in state:
                env.begin("replay", state["origin"], self.actions_of(state))
        return super().restore(states)


class SecondCopy:
    """One more environment of a kernel, in a process of its own."""

    def __init__(self, kernel: Kernel) -> None:
        """
        kernel: of one environment.

        Raises:
            UnsupportedError: It cannot be made.
        """
        stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
        arrays = allocate([kernel])
        seeds = draw_seeds(arrays, 1, GLOBAL)
        envs = start_environments(str(kernel.program), dict(kernel.args), 1, stack, seeds)
        self._env = envs[0]
        self._steps = ProcessSteps(kernel, arrays, envs)

    def bring_back(self, state: State) -> str:
        """Return why the actions of a snapshot do not bring the environment back, or ""."""
        return self._steps.bring_back(0, state)

    def close(self) -> None:
        """End the process."""
        self._env.close()


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind env_step through gymnasium in processes: make and reset the environments."""
    stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
    count = kernel.dim("envs")
    seeds = draw_seeds(buffers, count, GLOBAL)
    envs = start_environments(str(kernel.program), dict(kernel.args), count, stack, seeds)
    return normalised(kernel, buffers, ProcessSteps(kernel, buffers, envs))
