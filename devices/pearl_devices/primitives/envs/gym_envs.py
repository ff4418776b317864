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

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from pearl_devices.base import Buffers, Call, EnvironmentFailed
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.envs.asked import SINCE, STEP, is_fault
from pearl_devices.primitives.envs.border import Unfit, read_batch_step, reset
from pearl_devices.primitives.envs.env_step import EnvStep, State, normalised
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


def restart_cartpole(env: Any, ended: Array, obs: Array) -> None:
    """Restart the environments `ended` as their own next step would, and clear their marks."""
    count = int(ended.sum())
    fresh = env.np_random.uniform(env.low, env.high, size=(4, count))
    env.state[:, ended] = fresh
    env.steps[ended] = 0
    env.prev_done[ended] = False
    obs[ended] = fresh.astype(np.float32).T  # as its own reset gives them


class VectorEnvStep(EnvStep):
    """Steps a vector environment, which restarts its episodes itself or has them restarted here."""

    def __init__(self, kernel: Kernel, buffers: Buffers, env: Batch) -> None:
        super().__init__(kernel, buffers, env.single_observation_space, env.single_action_space)
        self.env, self.mode = env, env.metadata.get("autoreset_mode")
        with self.first_reset(None):
            first, infos = reset(env, seed=draw_seeds(buffers, 1)[0])
            self.refuse_masks(infos, env)
            self.write(first, self.raw)
        self.begin()

    def write(self, obs: Any, out: Array) -> None:
        """Write a batch of observations into `out` (N, O).

        Raises:
            Unfit: One does not belong to the space, or is not finite.
        """
        self.reader.read_batch(obs, out)
        self.check_finite(out, "observation")

    def __call__(self) -> None:
        b = self.buffers
        b["step.obs"][:] = b["env.obs"]
        b["step.action"][:] = b["act.action"]
        if self.anew:
            self.start_anew()
        reward, terminated, truncated = self.step(self.env_actions())
        b["rng.env_step"][1] += np.uint64(1)
        ended = np.logical_or(terminated, truncated)
        b["step.terminated"][:] = terminated
        b["step.truncated"][:] = truncated
        if np.count_nonzero(self.cut):  # a tenth of the time of `any`
            b["step.truncated"] |= self.cut
            self.cut[:] = 0
        b["env.elapsed"] += 1
        b["env.return"] += reward
        if np.count_nonzero(ended):
            for n in np.flatnonzero(ended):
                self.end(int(n))
            self.restart(ended)

    def made(self) -> list[Any]:
        return [self.env]

    def remake(self) -> Batch:
        """Make the same environments again."""
        made = make(self.name, self.args, self.envs)
        assert isinstance(made, VectorEnv)
        return made

    def renew(self, error: BaseException, *, lost: int, tried: int = 0) -> int:
        """Make all environments again after `error`; write their first observations to `raw`.
        Return the number of attempts, of which `tried` were made before."""
        b = self.buffers
        while True:
            tried, self.slot[SINCE] = tried + 1, 0.0
            row = error.row if isinstance(error, Unfit) else None
            if row is not None and self.slot[STEP]:
                self.slot[STEP] = b["env.elapsed"][row] + 1
            self.give_up(self.fault(row, error), tried, error, lost)
            try:
                with suppress(Exception, SystemExit):  # it has failed; its close does not matter
                    self.env.close()
                made = self.env = self.remake()
                self.slot[STEP] = 0
                self.slot[SINCE] = monotonic()
                first, infos = reset(made, seed=draw_seeds(b, 1, tried)[0])
                self.slot[SINCE] = 0.0
                self.refuse_masks(infos)
                self.write(first, self.raw)
                b["env.return"][:], b["env.elapsed"][:], self.cut[:] = 0.0, 0, ANEW
                return tried
            except EnvironmentFailed:  # it offers a mask; a new one would too
                raise
            except BaseException as another:  # the environment's code may raise anything
                if not is_fault(another):
                    raise
                error, lost = another, 0

    def step(self, actions: Array) -> tuple[Array, Array, Array]:
        """Step all environments; make all of them again if one fails. Return reward and flags.
        Rewards and true successors are also in the arrays, and next observations in `raw`."""
        b, tried, lost = self.buffers, 0, self.envs
        while True:
            try:
                self.slot[STEP] = b["env.elapsed"][0] + 1
                self.slot[SINCE] = monotonic()
                found = read_batch_step(self.env.step(actions), self.envs)
                self.slot[SINCE] = 0.0
                seen, reward, terminated, truncated, infos = found
                b["step.reward"][:] = reward
                self.check_finite(b["step.reward"], "reward")
                self.write(seen, self.raw_next)
                self.raw[:] = self.raw_next
                if self.mode == AutoresetMode.SAME_STEP:  # the episodes' last ones are in infos
                    self.read_last(np.logical_or(terminated, truncated), infos)
                return reward, terminated, truncated
            except BaseException as error:  # the environment's code may raise anything
                if not is_fault(error):
                    raise
                tried = self.renew(error, lost=lost, tried=tried)
                for n in range(self.envs):
                    self.show(n)
                lost = 0

    def read_last(self, ended: Array, infos: Any) -> None:
        """Write the last observations of ended episodes to `raw_next`.

        Raises:
            Unfit: `infos` has no 'final_obs' for one, or it does not belong to the space.
        """
        for n in np.flatnonzero(ended).tolist():
            try:
                self.reader.read(self.final(infos, n), self.raw_next[n])
            except Unfit as error:
                raise Unfit(str(error), n) from None
        self.check_finite(self.raw_next, "last observation")

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

    def final(self, infos: Any, n: int) -> Any:
        """Return the last observation of environment n, whose episode has ended.

        Raises:
            Unfit: `infos` has no 'final_obs' for this environment.
        """
        try:
            seen = infos["final_obs"]
            return {key: seen[key][n] for key in seen} if isinstance(seen, dict) else seen[n]
        except (KeyError, IndexError, TypeError):
            raise Unfit(
                "its episode has ended, and infos has no 'final_obs' with its last observation, "
                "which the autoreset mode SAME_STEP requires"
            ) from None

    def restart(self, ended: Array) -> None:
        """Begin new episodes where episodes have ended: write their first observations to `raw`."""
        if self.mode == AutoresetMode.SAME_STEP:
            return  # they are there
        if self.mode != AutoresetMode.DISABLED and not resets_by_mask(self.env):
            restart_cartpole(self.env.unwrapped, ended, self.raw)
            return
        try:
            self.slot[STEP] = 0
            self.slot[SINCE] = monotonic()
            first, infos = reset(self.env, options={"reset_mask": ended})
            self.slot[SINCE] = 0.0
            self.refuse_masks(infos)
            fresh = np.empty_like(self.raw)
            self.write(first, fresh)
            self.raw[ended] = fresh[ended]
        except EnvironmentFailed:  # as in `renew`
            raise
        except BaseException as error:  # as above
            if not is_fault(error):
                raise
            self.renew(error, lost=0)


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind env_step through gymnasium: make and reset the environments, with seeds from the key."""
    stack = int(kernel.dims.get("stack", 0))  # type: ignore[arg-type]
    seed_generators(draw_seeds(buffers, 1, GLOBAL)[0])
    made = make(str(kernel.program), dict(kernel.args), kernel.dim("envs"), stack)
    step: EnvStep
    if isinstance(made, list):
        step = SingleSteps(kernel, buffers, made)
    else:
        step = VectorEnvStep(kernel, buffers, made)
    return normalised(kernel, buffers, step)


def env_step_of(call: Call) -> EnvStep | None:
    """Return the environments behind a bound env_step; None if all its state is in the arrays."""
    inner = getattr(call, "calls", [call])[0]
    return inner if isinstance(inner, EnvStep) else None
