"""env_step on any gymnasium environment: an id, or `module:callable` that returns one.

Environments are made one by one and stepped one after another. From `BATCHED` environments on, a
registered vector entry point is used if its episodes can be restarted in the firing in which they
end: it declares this, or it is gymnasium's CartPole, whose state is restarted here. So every firing
has exactly one true transition per environment, and no reset is stored as a transition.

Environment n starts from a seed drawn from (key, firings done, n); a batch takes the first seed.
Later resets continue with the environment's own generator, as in gymnasium's vector environments.
`random` and `numpy.random` are seeded from the key before the environments are made, so that
environments which draw from them repeat in a run of one lane.

Resuming: an environment that is stepped alone is restored from its generator's state at its last
reset and its actions since (`snapshot`, `restore`). Of batches, only gymnasium's CartPole can be
restored. All others begin new episodes. A bind with rng.env_step[1] > 0 starts fresh episodes,
whose first transitions are marked (`ANEW`), until `restore`.

If an environment raises, returns NaN or a wrong shape, or exceeds a time limit, a ValueError names
it. With `on_failure`, the environment is made again instead, at most `ATTEMPTS` times in a row. The
stored step then starts from its new first observation, so every stored transition is real.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from pearl_devices.base import Buffers, Call, EnvironmentFailed
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.asked import SINCE, STEP, is_fault
from pearl_devices.primitives.envs.env_step import EnvStep, State
from pearl_devices.primitives.envs.global_generators import seed_generators
from pearl_devices.primitives.envs.gym_make import (
    GLOBAL,
    Array,
    Batch,
    draw_seeds,
    is_cartpole,
    make,
    resets_by_mask,
)
from pearl_devices.primitives.envs.gym_resume import (
    generator,
    generator_state,
    pack,
    unpack,
)
from pearl_devices.primitives.envs.gym_steps import SingleSteps
from pearl_devices.primitives.envs.normalise import scale, with_normalisation
from pearl_devices.primitives.envs.spaces import to_env_actions


def restart_cartpole(env: Any, ended: Array, obs: Array) -> None:
    """Restart the environments `ended` as their own next step would, and clear their marks."""
    count = int(ended.sum())
    env.state[:, ended] = env.np_random.uniform(env.low, env.high, size=(4, count))
    env.steps[ended] = 0
    env.prev_done[ended] = False
    obs[ended] = env.state[:, ended].T


class VectorEnvStep(EnvStep):
    """Steps a vector environment, which restarts its episodes itself or has them restarted here."""

    def __init__(self, kernel: Kernel, buffers: Buffers, env: Batch) -> None:
        super().__init__(kernel, buffers, env.single_observation_space, env.single_action_space)
        self.env, self.mode = env, env.metadata.get("autoreset_mode")
        first, infos = env.reset(seed=draw_seeds(buffers, 1)[0])
        self.refuse_masks(infos, env)
        self.write(first, buffers["env.obs"])
        self.begin()

    def write(self, obs: Any, out: Array) -> None:
        """Flatten a batch of observations into `out` (N, O), float32.

        Raises:
            ValueError: The batch has another shape, or a value is not finite.
        """
        if isinstance(self.obs_space, Box):
            flat = np.asarray(obs)
            if flat.size != out.size:
                raise ValueError(
                    f"environment {self.name!r}: observations of shape {flat.shape}; "
                    f"expected {self.envs} times {self.obs_space.shape}"
                )
            out[:] = flat.reshape(out.shape)
            if self.pixels is not None:
                out *= self.pixels
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
        if self.anew:
            self.start_anew()
        reward, terminated, truncated, infos = self.step(to_env_actions(self.action_space, action))
        b["rng.env_step"][1] += np.uint64(1)
        self.slot[STEP] += 1.0
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

    def made(self) -> list[Any]:
        return [self.env]

    def remake(self) -> Batch:
        """Make the same environments again."""
        made = make(self.name, self.args, self.envs)
        assert isinstance(made, VectorEnv)
        return made

    def step(self, actions: Array) -> tuple[Array, Array, Array, Any]:
        """Step all environments; make all of them again if one fails. Return reward, flags and
        infos. Rewards and successors are also in the arrays."""
        b, tried, lost = self.buffers, 0, self.envs
        while True:
            try:
                if tried:
                    with suppress(
                        Exception, SystemExit
                    ):  # it has failed; its close does not matter
                        self.env.close()
                    made = self.env = self.remake()
                    self.slot[SINCE] = monotonic()
                    first, infos = made.reset(seed=draw_seeds(b, 1, tried)[0])
                    self.refuse_masks(infos)
                    self.write(first, b["step.obs"])
                    for n in range(self.envs if self.scaled else 0):
                        state = (b["normalise.obs"], b["normalise.options"])
                        scale(b["step.obs"], n, *state, b["step.obs"])
                    b["env.return"][:], b["env.elapsed"][:], self.cut[:] = 0.0, 0, ANEW
                self.slot[SINCE] = monotonic()
                seen, reward, terminated, truncated, infos = self.env.step(actions)
                self.slot[SINCE] = 0.0
                b["step.reward"][:] = reward
                self.check_finite(b["step.reward"], "reward")
                self.write(seen, b["step.next_obs"])
                return reward, terminated, truncated, infos
            except EnvironmentFailed:  # it offers a mask; a new one would too
                raise
            except BaseException as error:  # the environment's code may raise anything
                if not is_fault(error):
                    raise
                tried, self.slot[SINCE] = tried + 1, 0.0
                which = f"one of a batch of {self.envs}"
                if isinstance(error, ValueError) and "number " in str(error):
                    which = str(error).partition("number ")[2].partition(":")[0]
                    which = f"number {which}"
                self.give_up(self.fault(which, error), tried, error, lost)
                lost = 0

    def snapshot(self) -> list[State]:
        """Return the state of gymnasium's CartPole, which exposes it."""
        if not is_cartpole(self.env):
            return super().snapshot()
        env: Any = self.env.unwrapped
        held = {name: pack(np.asarray(getattr(env, name))) for name in ("state", "steps")}
        return [{**held, "generator": generator_state(env)}]

    def restore(self, states: list[State]) -> list[str]:
        if not is_cartpole(self.env) or len(states) != 1 or not states[0].get("generator"):
            return super().restore(states)
        env, state = self.env.unwrapped, states[0]
        env.np_random = generator(state["generator"])
        env.state, env.steps = unpack(state["state"]), unpack(state["steps"])  # type: ignore[attr-defined]
        env.prev_done[:] = False  # type: ignore[attr-defined]
        self.cut[:] = 0
        return []

    def why_lost(self) -> str:
        return "" if is_cartpole(self.env) else super().why_lost()

    def final(self, infos: dict[str, Any], n: int) -> Any:
        """Return the last observation of environment n, whose episode has ended.

        Raises:
            ValueError: `infos` has no 'final_obs' for this environment.
        """
        try:
            seen = infos["final_obs"]
            return {key: seen[key][n] for key in seen} if isinstance(seen, dict) else seen[n]
        except (KeyError, IndexError, TypeError):
            raise ValueError(
                f"environment {self.name!r}, number {n}: its episode has ended, and infos has no "
                "'final_obs' with its last observation, which the autoreset mode SAME_STEP requires"
            ) from None

    def restart(self, ended: Array, infos: dict[str, Any]) -> None:
        """Write true successors to step.next_obs, and first observations of new episodes to
        env.obs."""
        obs, next_obs = self.buffers["env.obs"], self.buffers["step.next_obs"]
        for n in np.flatnonzero(ended):
            self.end(int(n))
        if self.mode == AutoresetMode.SAME_STEP:
            for n in np.flatnonzero(ended):
                next_obs[n] = self.flat(self.final(infos, int(n)), int(n))
            self.check_finite(next_obs, "observation")
        elif self.mode == AutoresetMode.DISABLED or resets_by_mask(self.env):
            self.slot[SINCE] = monotonic()
            first, infos = self.env.reset(options={"reset_mask": ended})
            self.slot[SINCE] = 0.0
            self.refuse_masks(infos)
            fresh = np.empty_like(obs)
            self.write(first, fresh)
            obs[ended] = fresh[ended]
        else:
            restart_cartpole(self.env.unwrapped, ended, obs)


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind env_step through gymnasium: make and reset the environments, with seeds from the key."""
    stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
    seed_generators(draw_seeds(buffers, 1, GLOBAL)[0])
    made = make(str(kernel.program), dict(kernel.args), kernel.dim("envs"), stack)
    kind = SingleSteps if isinstance(made, list) else VectorEnvStep
    return with_normalisation(kernel, buffers, kind(kernel, buffers, made), fresh=True)  # type: ignore[arg-type]


def env_step_of(call: Call) -> EnvStep | None:
    """Return the environments behind a bound env_step; None if all its state is in the arrays."""
    inner = getattr(call, "calls", [call])[0]
    return inner if isinstance(inner, EnvStep) else None
