"""What the variants of a GPU cost on the datasheet rung, and with starts that were timed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pearl.advice.hardware import catalogue_device
from pearl.spec.catalogue import catalogue
from pearl_devices import Device, Kernel, kernel, offers
from pearl_devices.gpu.driver import HostDriver, Launch
from pearl_devices.gpu.kernels import CUDA, find_written
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.examples import loops
from pearl_estimators import estimate
from pearl_estimators.gpu import variants
from pearl_estimators.gpu.queue import RATES, product_s, queue
from pearl_estimators.gpu.timing import call_on
from pearl_estimators.gpu.variants import Starts, gpu_roofline, launches, start_s, starts_of
from tests.estimators.gradient_steps import gradient_steps
from tests.estimators.test_estimators import DQN, DRAW, GPU, SAC, STORE


def seconds(k: Kernel, variant: str, device: Device = GPU, width: int = 0) -> float:
    return gpu_roofline(k, device, variant, width or device.width).latency_s


def test_operators_start_while_the_gpu_works_and_those_of_a_graph_between() -> None:
    large = kernel(
        "update.dqn", DQN.dims | {"q": (4, 2048, 2048, 2), "batch": 8192}, program=DQN.program
    )
    work_s = queue(large, GPU, 82, alone=True).seconds
    assert work_s > start_s(large, GPU, "eager")
    one_s = start_s(large, GPU, "eager") / launches(large, "eager")
    assert seconds(large, "eager") == pytest.approx(work_s + one_s)
    alone = queue(large, GPU, 82, alone=False).seconds
    assert seconds(large, "graph") == pytest.approx(alone + start_s(large, GPU, "graph"))
    for variant in ("eager", "graph"):
        e = gpu_roofline(large, GPU, variant, 82)
        assert sum(e.parts.values()) == pytest.approx(e.latency_s)


A100 = replace(
    GPU, width=108, peak_flops_per_s=19.5e12, memory_bytes_per_s=1555e9,
    figures={"clock_hz": 1.41e9, "l2_bytes": 40e6},
)  # fmt: skip


def by_hand_s(device: Device, m: int, k: int, n: int, width: int) -> tuple[float, float]:
    """The fastest of all tiles and of all splits of the inner size, or the bytes at their rate."""
    hz = device.figures.get("clock_hz", 0) or device.peak_flops_per_s / device.width / 256
    lanes = device.peak_flops_per_s / device.width / hz  # flops of an SM in a cycle
    rate = lanes * (0.59 if lanes > 192 else 0.92)
    cycles = []
    for rows, columns, share in ((32, 32, 0.5), (64, 64, 0.75), (128, 64, 1.0)):
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        for chunks in (2**i for i in range(12)):
            if chunks == 1 or (tiles * chunks <= width and k >= 256 * chunks):
                waves = math.ceil(tiles * chunks / width)
                step = max(32.0, waves * 2 * rows * columns / (rate * share))
                cycles.append(math.ceil(k / chunks) * step + 1e-6 * hz * (chunks > 1))
    moved = 4 * (m * k + k * n + m * n)
    bandwidth = device.memory_bytes_per_s
    if moved <= device.figures.get("l2_bytes", 4 * 2**20):
        bandwidth = max(bandwidth, 20.5 * width * hz)
    compute_s, memory_s = min(cycles) / hz, moved / bandwidth
    return (compute_s, 0.0) if compute_s >= memory_s else (0.0, memory_s)


@pytest.mark.parametrize("device", [GPU, A100], ids=["128 lanes", "64 lanes"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1), (64, 4, 64), (128, 128, 128), (64, 511, 64), (64, 512, 64), (64, 1000, 64),
        (32, 8192, 32), (65, 300, 129), (2048, 2048, 2048), (4096, 4, 4096), (8, 4096, 4096),
        (1, 65_536, 1), (700, 900, 1100), (1024, 2, 511), (1024, 2, 512),
    ],
)  # fmt: skip
def test_a_product_takes_the_fastest_tiles_and_chunks(
    device: Device, shape: tuple[int, int, int]
) -> None:
    for width in (device.width, 8, 1):
        found = product_s(device, shape, width)
        assert found == pytest.approx(by_hand_s(device, *shape, width), rel=1e-12)


def test_starts_by_hand() -> None:
    """5 us of a launch, 2.1 of each later one, 15.6 more of each with gradients, 3.75 of others."""
    acting = kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 64, 2))
    steps, ops = launches(SAC, "eager"), launches(acting, "eager")
    assert start_s(SAC, GPU, "eager") == pytest.approx(
        5e-6 + (steps - 1) * 2.1e-6 + steps * 15.6e-6
    )
    assert start_s(acting, GPU, "eager") == pytest.approx(5e-6 + (ops - 1) * 2.1e-6 + ops * 3.75e-6)
    assert start_s(SAC, GPU, "graph") == pytest.approx(6e-6)
    quick = replace(GPU, overhead_s=1e-6)
    assert start_s(environments(300), quick, "cuda") == pytest.approx(2e-6)
    timed = Starts(operator_s=1e-6, graph_s=2e-6, launch_s=3e-6)
    assert start_s(environments(300), GPU, "cuda", timed) == pytest.approx(6e-6)
    assert start_s(acting, GPU, "eager", timed) == pytest.approx(ops * 4e-6)
    assert start_s(acting, GPU, "graph", timed) == pytest.approx(5e-6)


def test_starts_are_those_of_the_figures_the_probe_or_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "figures", lambda: {"operator_s": 1e-6, "gradient_s": 2e-6})
    slower = (3.6e9 / 4.8e9) ** 1.5
    by_clock = replace(GPU, figures={"host_clock_hz": 4.8e9})
    own = replace(by_clock, figures={"operator_s": 7e-6, "host_clock_hz": 4.8e9}, real=True)
    for device, operator_s, gradient_s in (
        (GPU, 3.75e-6, 15.6e-6),
        (by_clock, 3.75e-6 * slower, 15.6e-6 * slower),
        (replace(by_clock, real=True), 1e-6, 2e-6),
        (replace(by_clock, real=True, host="other"), 3.75e-6 * slower, 15.6e-6 * slower),
        (own, 7e-6, 2e-6),
    ):
        found = starts_of(device)
        assert (found.operator_s, found.gradient_s) == pytest.approx((operator_s, gradient_s))
        assert (found.graph_s, found.gap_s, found.launch_s) == (1e-6, 1e-6, None)


def test_float64_has_its_own_rate_where_the_platform_says_it() -> None:
    many = kernel("env_step", program="CartPole-v1", envs=1 << 20, obs=4, act=0)
    fast = replace(GPU, figures={"float64_flops_per_s": GPU.peak_flops_per_s / 2})
    assert seconds(many, "cuda", fast) < seconds(many, "cuda")


def environments(envs: int) -> Kernel:
    return kernel("env_step", program="CartPole-v1", envs=envs, obs=4, act=0)


RING = {**DRAW, "capacity": 64, "batch": 8}
WRITTEN = [
    environments(8), environments(300), DQN, kernel("replay_insert", {**STORE, "capacity": 64}),
    kernel("replay_sample", RING), kernel("replay_sample", {**RING, "prioritised": 0}),
    kernel("replay_update", RING),
    kernel("replay_update", {**RING, "batch": 4096, "capacity": 51_200}),
]  # fmt: skip
"""Kernels of every kind that is written in CUDA."""


class CountingTwin(HostDriver):
    """The stand-in, counting launches."""

    count = 0

    def prepare_launch(self, *arguments: Any, **more: Any) -> Launch:
        launch = super().prepare_launch(*arguments, **more)

        def counted() -> None:
            self.count += 1
            launch()

        return counted


def test_every_kind_that_is_written_in_cuda_launches_what_its_record_says() -> None:
    """In a second firing, of the first example that fits and of the kernels above."""
    counted = set[tuple[str, str]]()
    for k in (*(k for loop in loops() for k in loop), *WRITTEN):
        for variant, written in find_written(k).items():
            known = (k.kind, variant) in counted and k not in WRITTEN
            if variant in ("eager", "graph") or known or not written.fits(k):
                continue
            counted.add((k.kind, variant))
            driver = CountingTwin()
            call = call_on(driver, k, variant)
            call()
            before = driver.count
            call()
            assert driver.count - before == launches(k, variant), (k, variant)
    by_hand = {(n, v) for n, found in CUDA.items() for v in found if v not in ("eager", "graph")}
    assert counted >= by_hand


CARDS = [name for name, entry in catalogue().items() if entry["kind"] == "gpu"]


@pytest.mark.parametrize("name", CARDS)
def test_no_gradient_step_beats_the_peak_of_a_card_its_memory_or_its_shortest_kernel(
    name: str,
) -> None:
    card = catalogue_device(name)
    for k in gradient_steps():
        products = kind_of(k).rounds(k) * len(kind_of(k).products(k))
        moved = 4 * sum(m * j + j * n + m * n for m, j, n in kind_of(k).products(k))
        for variant, width in offers(k, card):
            e = estimate(k, card, variant=variant, width=width)
            peak = card.sustained_flops_per_s * width / card.width
            assert k.flops / e.latency_s <= peak, (k.kind, k.dims, variant)
            assert e.latency_s >= card.overhead_s
            assert e.energy_j <= card.active_power_w * e.latency_s
            if variant in ("eager", "graph"):
                shortest_s = RATES.element_s * kind_of(k).operations(k)
                assert e.latency_s >= shortest_s + 0.3e-6 * products
                if moved > 20 * card.figures.get("l2_bytes", 0.0):
                    assert e.latency_s >= 0.5 * moved / card.memory_bytes_per_s
