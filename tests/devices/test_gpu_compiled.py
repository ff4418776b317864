"""Every CUDA program, compiled by NVRTC without spills. A plain run compiles each for one of the
three architectures in turn; the slow test compiles all for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from pearl_devices.gpu import acting, environments, rollouts
from pearl_devices.gpu.nvrtc import ARCHITECTURES
from pearl_devices.gpu.program import Program
from pearl_devices.primitives import NATIVE_ENVS
from tests.devices import test_gpu_acting as act
from tests.devices import test_gpu_rollouts as store
from tests.devices.gpu_stand_in import assert_compiles
from tests.devices.test_gpu_environments import env_kernel

SINE_BYTES = 40
"""Of a thread's stack: what sine and cosine of float64 take to reduce large angles."""


@dataclass(frozen=True)
class Limits:
    """What a thread of a program may take."""

    program: Program
    stack_bytes: int = 0
    registers: int = 255


def choice_of(name: str, envs: int, hidden: tuple[int, ...]) -> Limits:
    choice = ACTING.index(name)
    source, _ = acting.program(act.kernels(envs, hidden)[name], choice)
    return Limits(source, SINE_BYTES if choice in (1, 2, 4) else 0, registers=64)


def judging(envs: int, horizon: int, hidden: tuple[int, ...]) -> Limits:
    return Limits(
        rollouts.advantages_program(store.judging(envs, horizon, hidden))[0], registers=64
    )


def environment(name: str, **more: int) -> Limits:
    return Limits(environments.program(env_kernel(name, 8, **more)), SINE_BYTES)


def copies(size: int) -> Limits:
    return Limits(rollouts.copy_program(store.inserting(size)))


ACTING = ("dqn", "ddpg", "sac", "ppo", "ppo continuous")
QUICK: dict[str, Callable[[], Limits]] = {
    **{f: partial(Limits, Program(f), registers=64) for f in ("replay.cu", "frames.cu")},
    **{name: partial(environment, name) for name in sorted(NATIVE_ENVS)},
    "normalised": partial(environment, "Pendulum-v1", normalise_obs=1, normalise_reward=1),
    **{
        f"{name} acting in {envs}": partial(choice_of, name, envs, hidden)
        for name in ACTING
        for envs, hidden in ((8, (64, 64)), (4096, (256, 256)))
    },
    **{f"copies of {size}": partial(copies, size) for size in (0, 2)},
    "few rows judged": partial(judging, 8, 128, (64, 64)),
    "many rows judged": partial(judging, 1024, 16, (256, 256)),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("at", "name"), [*enumerate(QUICK)], ids=QUICK)
def test_a_program_compiles_without_spills(at: int, name: str) -> None:
    found = QUICK[name]()
    one = ARCHITECTURES[at % len(ARCHITECTURES)]
    assert_compiles(found.program, found.stack_bytes, found.registers, (one,))


@pytest.mark.slow
def test_every_program_compiles_for_every_architecture_without_spills() -> None:
    for make in QUICK.values():
        found = make()
        assert_compiles(found.program, found.stack_bytes, found.registers)
