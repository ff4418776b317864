"""What the variants of a GPU cost on the datasheet rung, and with starts that were timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pearl_devices import Device, Kernel, kernel
from pearl_devices.gpu.driver import HostTwin, Launch
from pearl_devices.kernels import KINDS, kind_of
from pearl_devices.kernels.examples import loops
from pearl_estimators.gpu.timing import call_on
from pearl_estimators.gpu.variants import ASSUMED, Starts, gpu_roofline, start_s
from pearl_estimators.roofline import launches
from tests.devices.gpu_stand_in import arrays, bind_cuda, tensors
from tests.estimators.test_estimators import DDPG, DQN, DRAW, GPU, SAC, STORE, TD3


def seconds(k: Kernel, variant: str, device: Device = GPU, width: int = 0) -> float:
    width = width or (1 if variant == "fused" else device.width)
    return gpu_roofline(k, device, variant, width).latency_s


@pytest.mark.parametrize("k", [DQN, DDPG, TD3, SAC], ids=lambda k: k.kind)
def test_of_small_networks_one_launch_is_quicker_than_a_graph_and_that_than_operators(k) -> None:
    assert seconds(k, "fused") < seconds(k, "graph") < 0.2 * seconds(k, "eager")
    found = {v: gpu_roofline(k, GPU, v, 1 if v == "fused" else 82) for v in ("eager", "graph")}
    assert {e.bound_by for e in found.values()} == {"overhead"}


def test_an_operator_of_a_gradient_step_starts_as_fast_as_published_and_others_faster() -> None:
    each_s = start_s(SAC, GPU, "eager") / launches(SAC, "eager")
    assert 12e-6 <= each_s <= 18e-6  # LeanRL's SAC and TD3 on an H100
    acting = kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 64, 2))
    assert start_s(acting, GPU, "eager") / launches(acting, "eager") < each_s


def test_a_fused_kernel_has_one_multiprocessor_however_many_there_are() -> None:
    twice = replace(GPU, width=164, peak_flops_per_s=70e12, memory_bytes_per_s=2 * 936e9)
    assert seconds(DQN, "fused", twice) == pytest.approx(seconds(DQN, "fused"))
    wide = kernel("update.dqn", DQN.dims | {"q": (4, 512, 512, 2)}, program=DQN.program)
    assert seconds(wide, "fused") > 10 * seconds(DQN, "fused")
    assert seconds(wide, "graph") < seconds(wide, "fused")


def test_operators_start_while_the_gpu_works_and_those_of_a_graph_between() -> None:
    large = kernel(
        "update.dqn", DQN.dims | {"q": (4, 2048, 2048, 2), "batch": 8192}, program=DQN.program
    )
    work_s = large.flops / GPU.peak_flops_per_s
    assert work_s > start_s(large, GPU, "eager")
    one_s = GPU.overhead_s + ASSUMED.gradient_s
    assert seconds(large, "eager") == pytest.approx(work_s + one_s)
    assert seconds(large, "graph") == pytest.approx(work_s + start_s(large, GPU, "graph"))


def test_environments_cost_a_launch_until_there_are_many() -> None:
    def step(envs: int) -> float:
        return seconds(kernel("env_step", program="CartPole-v1", envs=envs, obs=4, act=0), "cuda")

    assert step(1) == pytest.approx(step(256), rel=0.1)
    assert step(65_536) > 2 * step(256)
    assert step(65_536) < 0.1 * 256 * step(256)


def test_float64_has_its_own_rate_where_the_platform_says_it() -> None:
    many = kernel("env_step", program="CartPole-v1", envs=1 << 20, obs=4, act=0)
    fast = replace(GPU, figures={"float64_flops_per_s": GPU.peak_flops_per_s / 2})
    assert seconds(many, "cuda", fast) < seconds(many, "cuda")


def test_rows_are_drawn_from_a_tree_side_by_side() -> None:
    few, many = (kernel("replay_sample", {**DRAW, "batch": b}) for b in (64, 1024))
    assert kind_of(many).accesses(many) == pytest.approx(16 * kind_of(few).accesses(few))
    assert seconds(many, "cuda") < 1.2 * seconds(few, "cuda")


def test_starts_that_were_timed_take_the_place_of_assumed_ones() -> None:
    slow = Starts(operator_s=30e-6, gradient_s=100e-6, graph_s=50e-6, gap_s=9e-6)
    for variant in ("eager", "graph"):
        timed = gpu_roofline(DQN, GPU, variant, 82, slow).latency_s
        assert timed > 3 * seconds(DQN, variant), variant
    assert gpu_roofline(DQN, GPU, "fused", 1, slow).latency_s == seconds(DQN, "fused")


def test_variants_of_a_rounding_start_as_the_plain_ones() -> None:
    assert start_s(DDPG, GPU, "eager-bf16") == start_s(DDPG, GPU, "eager")


def environments(envs: int) -> Kernel:
    return kernel("env_step", program="CartPole-v1", envs=envs, obs=4, act=0)


RING = {**DRAW, "capacity": 64, "batch": 8}
WRITTEN = [
    environments(8),
    environments(300),
    DQN,
    kernel("replay_insert", {**STORE, "capacity": 64}),
    kernel("replay_sample", RING),
    kernel("replay_sample", {**RING, "prioritised": 0}),
    kernel("replay_update", RING),
    kernel("replay_update", {**RING, "batch": 4096, "capacity": 51_200}),
]
"""Kernels of every kind that is written in CUDA."""


class CountingTwin(HostTwin):
    """The stand-in, counting launches."""

    count = 0

    def bound(self, *arguments: Any, **more: Any) -> Launch:
        launch = super().bound(*arguments, **more)

        def counted() -> None:
            self.count += 1
            launch()

        return counted


@pytest.mark.parametrize("k", WRITTEN, ids=lambda k: f"{k.kind} {k.dims.get('envs', '')}")
def test_the_launches_of_a_record_are_those_of_a_firing(k: Kernel) -> None:
    for variant in set(kind_of(k).cuda) - {"eager", "graph"}:  # which torch launches
        driver = CountingTwin()
        call = bind_cuda(k, tensors(arrays(k)), driver, variant)
        call()
        before = driver.count
        call()
        assert driver.count - before == launches(k, variant), variant


def test_every_kind_that_is_written_in_cuda_launches_what_its_record_says() -> None:
    counted: set[tuple[str, str]] = set()
    for one in (k for loop in loops() for k in loop):
        for variant, written in kind_of(one).cuda.items():
            pair = one.kind, variant
            if variant in ("eager", "graph") or pair in counted or not written.fits(one):
                continue
            counted.add(pair)
            driver = CountingTwin()
            call = call_on(driver, one, variant)
            call()
            before = driver.count
            call()
            assert driver.count - before == launches(one, variant), pair
    by_hand = {(n, v) for n, k in KINDS.items() for v in k.cuda if v not in ("eager", "graph")}
    assert counted >= by_hand
