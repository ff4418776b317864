"""The ladder and its lower rungs: given times, the datasheet roofline, modelled power, timing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pearl.testing import EstimatorContract
from pearl_devices import Device, kernel
from pearl_estimators import Estimate, estimate
from pearl_estimators.host import timer
from pearl_estimators.host.benchmark_kernels import bind_filled
from pearl_estimators.host.timer import time_call
from pearl_estimators.roofline import launches
from tests.devices import test_work as on_policy
from tests.needs import needs_linux

CPU = Device(
    "cpu", "cpu", width=16, peak_flops_per_s=3e12, memory_bytes_per_s=200e9, idle_power_w=60.0,
    active_power_w=185.0,
)  # fmt: skip
GPU = Device(
    "gpu", "gpu", width=82, width_unit="sm", peak_flops_per_s=35e12, memory_bytes_per_s=936e9,
    overhead_s=5e-6, idle_power_w=18.0, active_power_w=350.0,
)  # fmt: skip
NULL = Device("null", "null", width=4, figures={"latency_s": 1e-3, "latency_s.update.dqn": 5e-3})
STORE = {"envs": 8, "obs": 4, "act": 0, "capacity": 51_200, "fanout": 16, "prioritised": 1}
DRAW = {**STORE, "batch": 64, "steps": 2, "n_step": 1}
DQN = kernel(
    "update.dqn", program="tests.kernel_losses:dqn", obs=4, act=0, q=(4, 64, 64, 2), batch=64,
    steps=2, double=1,
)  # fmt: skip
DDPG = kernel(
    "update.ddpg", program="tests.kernel_losses:ddpg", obs=3, act=1, actor=(3, 64, 64, 1),
    critic=(4, 64, 64, 64, 1), batch=64, steps=1,
)  # fmt: skip
TWIN: dict[str, Any] = {
    "obs": 3, "act": 1, "critic1": (4, 64, 64, 1), "critic2": (4, 64, 64, 1), "batch": 64,
    "steps": 2,
}  # fmt: skip
TD3 = kernel(
    "update.td3", TWIN, program="pearl.algorithms.td3:losses", actor=(3, 64, 64, 1), policy_delay=2
)
SAC = kernel(
    "update.sac", TWIN, program="pearl.algorithms.sac:losses", actor=(3, 64, 64, 2), alpha=(0, 1)
)
OWN = kernel(
    "update.mine", obs=4, act=0, q=(4, 64, 64, 2), batch=64, steps=1, program="my_module:losses"
)
SYNC = kernel("param_sync", args={"network": "q"}, params=5000)
ACT = kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 64, 2))


class TestCpuDatasheet(EstimatorContract):
    device = CPU
    rung = "datasheet"
    kernels = (
        kernel("env_step", program="CartPole-v1", envs=8, obs=4, act=0),
        kernel("env_step", program="Pendulum-v1", envs=8, obs=3, act=1),
        kernel("env_step", program="Ant-v5", envs=8, obs=105, act=8), ACT,
        kernel("replay_insert", STORE), kernel("replay_sample", DRAW),
        kernel("replay_sample", {**DRAW, "prioritised": 0, "n_step": 3}),
        kernel("replay_update", DRAW), DQN, DDPG, TD3, SAC, OWN,
        kernel("learn.dqn", DRAW, q=(4, 64, 64, 2), double=1), SYNC,
    )  # fmt: skip


class TestGpuDatasheet(EstimatorContract):
    device = GPU
    rung = "datasheet"
    kernels = (ACT, DQN, DDPG, TD3, SAC, OWN, SYNC)


class TestNull(EstimatorContract):
    device = NULL
    rung = "given"
    kernels = (ACT, DQN, SYNC)


def test_a_kernel_that_a_device_cannot_run_is_refused():
    ant = kernel("env_step", program="Ant-v5", envs=8, obs=105, act=8)
    for k in (ant, replace(OWN, program=None)):
        with pytest.raises(ValueError, match=f"kernel {k.kind}.*: device 'gpu' .*cannot run it"):
            estimate(k, GPU)


class Dispatched(TorchDispatchMode):
    """Counts the operations that torch dispatches, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returns = function._schema.returns
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.count += not (view or "detach" in str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "k",
    [
        DQN, kernel("update.dqn", DQN.dims | {"q": (4, 32, 2), "double": 0}, program=DQN.program),
        DDPG, TD3, SAC,
        kernel("update.dqn", DQN.dims | {"q": (4, 64, 64, 3), "duelling": 1}, program=DQN.program),
        ACT, kernel("inference.ddpg", envs=8, obs=3, act=1, actor=(3, 64, 1)),
        *(on_policy.PPO, on_policy.A2C, on_policy.GAE, on_policy.ACT),
    ],
    ids=lambda k: k.kind,
)  # fmt: skip
def test_launches_are_what_torch_dispatches_within_a_tenth(k):
    call = bind_filled(k, "torch")
    call()
    with Dispatched() as counted:
        call()
    assert launches(k, "torch") == pytest.approx(counted.count, rel=0.1)
    assert torch.get_num_threads() >= 1


def test_an_estimate_refuses_what_cannot_be():
    with pytest.raises(ValueError, match=r"occupancy_s 2.0 exceeds latency_s 1.0"):
        Estimate(1.0, occupancy_s=2.0)
    with pytest.raises(ValueError, match=r"latency_s is nan"):
        Estimate(float("nan"))


@pytest.mark.usefixtures("cpu_as_it_is")
def test_estimating_imports_neither_torch_nor_numba_nor_gymnasium():
    code = (
        "import sys\n"
        "from pearl_devices import Device, kernel\n"
        "from pearl_estimators import estimate\n"
        "k = kernel('inference.dqn', envs=8, obs=4, act=0, q=(4, 64, 2))\n"
        "estimate(k, Device('c', 'cpu')), estimate(k, Device('g', 'gpu'))\n"
        "u = kernel('update.dqn', obs=4, act=0, q=(4, 64, 2), batch=8, steps=1, double=1)\n"
        "figures = {'clock_hz': 1e8, 'ram_blocks': 1e4, 'ram_block_bits': 20480,"
        "'ram_word_bits': 40, 'float32_cycles': 4}\n"
        "estimate(u, Device('f', 'fpga', width=4000, figures=figures), width=100)\n"
        "heavy = {'torch', 'numba', 'gymnasium', 'scipy'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Machine:
    """A machine whose clocks move only when work is done: `cpu` per call, `stolen` beside it."""

    def __init__(self, cpu: list[float], stolen: list[float] | None = None) -> None:
        self.cpu, self.stolen, self.calls = cpu, stolen or [0.0], 0
        self.cpu_s = self.wall_s = 0.0

    def call(self) -> None:
        assert self.calls < 1 << 18, "calls without end"
        took = self.cpu[self.calls % len(self.cpu)]
        self.wall_s += took + self.stolen[self.calls % len(self.stolen)]
        self.cpu_s += took
        self.calls += 1

    def time(self, **options: object):
        return time_call(self.call, wall=lambda: self.wall_s, cpu=lambda: self.cpu_s, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cpu", "stolen", "options", "low_s", "median_s", "high_s", "repeats", "contention"),
    [
        ([1.0], [0.0], {"seconds": 400.0}, 1, 1, 1, 400, 1),  # 1 in warming up, 8 in counting
        ([1.0], [0.5], {"seconds": 600.0}, 1, 1, 1, 400, 1.5),  # a core taken is not in the time
        ([0.5], [1.0], {"seconds": 12.0, "computes": False}, 1.5, 1.5, 1.5, 8, 3),  # a call waits
        ([1.0] * 4 + [2.0], [0.0], {"seconds": 0.1, "blocks": 5}, 1, 1, 2, 3, 4 / 3 * 0.75),
        ([1.0] * 4 + [2.0], [0.0], {"seconds": 4.0, "blocks": 5}, 1, 1, 2, 4, 1),
        ([1.0], [0.0], {"seconds": 5.0, "blocks": 5, "firings": 4}, 0.25, 0.25, 0.25, 5, 1),
        # On two cores, blocks without both of them do not count,
        ([2.0, 2.0, 2.0, 2.0, 1.0, 2.0], [-1.0, -1.0, -1.0, -0.8, 0.2, -0.95],
         {"seconds": 4.0, "blocks": 4, "cores": 2, "firings": 2}, 0.5, 0.5, 0.5, 4, 4.1 / 4),
        # unless there are no others.
        ([2.0, 2.0, 2.0, 3.0, 2.0], [-1.0, -1.0, 0.0, 0.0, 0.0],
         {"seconds": 3.0, "blocks": 3, "cores": 2}, 1, 1, 1.5, 3, 2),
    ],
)  # fmt: skip
def test_a_call_is_timed_in_blocks_of_repeats(
    cpu, stolen, options, low_s, median_s, high_s, repeats, contention
):
    found = Machine(cpu, stolen).time(**options)
    assert (found.low_s, found.median_s, found.high_s) == pytest.approx((low_s, median_s, high_s))
    assert found.spread == pytest.approx((high_s - low_s) / median_s)
    assert (found.repeats, found.contention) == (repeats, pytest.approx(contention))


@pytest.mark.parametrize(
    ("each_s", "seconds", "repeats"),
    [(1.0, 10.0, 10), (1.0, 10.1, 10), (0.001, 1.0, 1000), (0.0, 1.0, 1 << 14)],
)  # fmt: skip
def test_repeats_double_until_they_fill_a_tenth_of_a_block(each_s, seconds, repeats):
    machine = Machine([each_s])
    assert timer._repeats(machine.call, seconds, lambda: machine.wall_s) == (
        repeats,
        pytest.approx(each_s),
    )
    assert machine.calls == {10.0: 1, 10.1: 3}.get(seconds, 255 if each_s else (1 << 15) - 1)


@pytest.mark.parametrize(("seconds", "blocks"), [(0.0, 8), (-1.0, 8), (0.1, 1)])
def test_timing_needs_time_and_two_blocks(seconds, blocks):
    with pytest.raises(ValueError, match=r"time_call: "):
        time_call(lambda: None, seconds=seconds, blocks=blocks)


def test_a_call_that_takes_no_time_is_an_error():
    with pytest.raises(ValueError, match=r"calls took no measurable time"):
        Machine([0.0]).time(seconds=0.1)


@needs_linux("counts of waits for a core")
def test_waits_for_a_core_are_those_that_the_system_counts_of_each_thread(monkeypatch):
    def counted() -> float:
        fields = [file.read_text().split() for file in Path("/proc/self/task").glob("*/schedstat")]
        return sum(int(each[1]) for each in fields) * 1e-9

    before = counted()
    assert before - 1e-6 <= timer.queued_s() <= counted() + 1e-6  # sums in another order
    monkeypatch.setattr(timer, "time", SimpleNamespace(perf_counter=lambda: 9.0))
    for queued, alone in ((2.5, 6.5), (None, 9.0)):
        monkeypatch.setattr(timer, "queued_here_s", lambda queued=queued: queued)
        assert timer.alone_s() == alone
