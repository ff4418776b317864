"""The replay in CUDA, on the stand-in, beside the CPU's: trees, rings, draws and batches are equal.

Powers are those of another library on a GPU, so what follows from one is asked to 1e-6; trees are
compared with an exponent of 1, which every library leaves exact. Of the
18 combinations of fanout, order of threads and one block or several, the test of a ring that goes
round runs 6; three pairs of fanout and order are in none.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Kernel, backend, kernel
from pearl_devices.gpu import kernels as replay_kernels
from pearl_devices.gpu import nvrtc, replay
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.kernels import DRAWN_BY, find_written, on_host
from pearl_devices.gpu.program import Program
from tests.devices import gpu_stand_in as stand_in

PROGRAMS = (Program("replay.cu"), Program("frames.cu"))


class Beside:
    """The same firings on the CPU and in CUDA, over arrays that begin alike.

    variant: in CUDA, of kernels that have it.
    """

    def __init__(
        self,
        *kernels: Kernel,
        order: int = 0,
        driver: HostDriver | None = None,
        variant: str = "cuda",
    ) -> None:
        given = fill_arrays(kernels)
        self.native, self.device = stand_in.copied(given), dict[str, Any](stand_in.tensors(given))
        named = {k: variant if variant in find_written(k) else "cuda" for k in kernels}
        self.host = {n for k, v in named.items() for n in on_host(k, v)}
        self.device |= {name: given[name] for name in self.host}
        self.write("replay.priority", (1.0, 1e-2, 0.0))
        driver = driver or HostDriver(order)
        self.calls = {
            k.kind: (
                backend("cpu").bind(k, "native", self.native),
                stand_in.bind_cuda(k, self.device, driver, named[k]),
            )
            for k in kernels
        }
        self.random = np.random.default_rng(order)

    def write(self, name: str, values: Any) -> None:
        if name in self.native:
            self.native[name][...] = values
            self.device[name][...] = torch.from_numpy(self.native[name])

    def fire(self, *kinds: str) -> None:
        for kind in kinds:
            for call in self.calls[kind]:
                call()

    def step(self, ends: float = 0.1, anew: float = 0.0) -> None:
        """A vector step of random transitions, whole numbers up to 255, is stored."""
        for name, array in self.native.items():
            if not name.startswith("step."):
                continue
            values: Any = self.random.integers(0, 256, array.shape)
            if array.dtype == np.uint8:
                values = self.random.random(array.shape) < ends
            if name == "step.truncated":
                values = values + 2 * (self.random.random(array.shape) < anew)
            self.write(name, values)
        self.fire("replay_insert")

    def learn(self) -> None:
        """Batches are drawn, and get priorities."""
        self.fire("replay_sample")
        if "replay_update" in self.calls:
            td = self.native["batch.td"]
            self.write("batch.td", self.random.normal(size=td.shape).astype(np.float32))
            self.fire("replay_update")

    def same(self) -> None:
        kept = {name: self.device[name] for name in self.host}
        rest = {name: a for name, a in self.device.items() if name not in kept}
        found, wanted = stand_in.on_the_host(rest) | kept, self.native
        stand_in.assert_equal(found, wanted, *(n for n in wanted if n != "batch.weight"))
        if "batch.weight" in wanted:
            np.testing.assert_allclose(found["batch.weight"], wanted["batch.weight"], rtol=1e-6)


def kernels(
    capacity: int,
    fanout: int = 16,
    *,
    envs: int = 4,
    act: int = 0,
    batch: int = 16,
    steps: int = 1,
    n_step: int = 1,
    prioritised: int = 1,
    **more: int,
) -> tuple[Kernel, ...]:
    ring = {"envs": envs, "obs": 6, "act": act, "capacity": capacity, "fanout": fanout, **more}
    ring["prioritised"] = prioritised
    insert = kernel("replay_insert", ring)
    sample = kernel("replay_sample", ring, batch=batch, steps=steps, n_step=n_step)
    update = kernel("replay_update", capacity=capacity, fanout=fanout, batch=batch, steps=steps)
    return (insert, sample, update) if prioritised else (insert, sample)


# The compiler


def assembly(program: Program) -> str:
    library, handle, size = nvrtc.library(), ctypes.c_void_p(), ctypes.c_size_t()
    text = program.text.encode()
    assert library.nvrtcCreateProgram(ctypes.byref(handle), text, b"x.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=compute_90", b"--std=c++17")
    assert library.nvrtcCompileProgram(handle, 2, options) == 0
    library.nvrtcGetPTXSize(handle, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(handle, found)
    library.nvrtcDestroyProgram(ctypes.byref(handle))
    return found.value.decode()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.file)
def test_no_product_fuses_with_a_sum_so_that_a_gpu_rounds_as_the_cpu_does(program: Program) -> None:
    """The stand-in cannot tell: g++ fuses nothing. Powers have such products of their own."""
    for entry in assembly(program).split(".entry ")[1:]:
        assert "fma.rn.f64" not in entry
        if entry.startswith(("replay_insert", "replay_draw", "frames_insert", "frames_mark")):
            assert "fma.rn.f32" not in entry


# Trees, rings and batches


@pytest.mark.parametrize(("fanout", "order", "one_block"), [
    (fanout, stand_in.ORDERS[(at + apart) % 3], bool(apart))
    for at, fanout in enumerate((16, 8, 5))
    for apart in (0, 1)
])  # fmt: skip
def test_trees_rings_and_batches_equal_the_cpus_while_the_ring_goes_round(
    fanout: int, order: int, one_block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that samples raise every level but the root:
    monkeypatch.setattr(replay_kernels, "WHOLE_NODES", 1)
    if not one_block:
        monkeypatch.setattr(replay_kernels, "ONE_BLOCK_LANES", 0)
    run = Beside(*kernels(300, fanout, steps=3, n_step=3, act=order % 3), order=order)
    for time in range(200):
        run.step(anew=0.05)
        if time % 9 == 5:
            run.learn()
            run.same()
    assert run.native["replay.cursor"].tolist() == [200, 300]  # it went round twice
    assert run.native["rng.replay_sample"][1] == 66
    index = run.native["batch.index"]
    assert np.unique(index).size < index.size  # rows drawn twice
    assert len(set(run.native["replay.tree"][-300:])) > 100


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    envs=st.integers(1, 70), rounds=st.integers(2, 40),
    fanout=st.sampled_from([2, 3, 8, 16, 33, 64]), act=st.sampled_from([0, 1, 3]),
    batch=st.integers(1, 70), steps=st.integers(1, 3), n_step=st.integers(1, 6),
    prioritised=st.sampled_from([0, 1]), ends=st.sampled_from([0.0, 0.1, 0.6]),
    anew=st.sampled_from([0.0, 0.3]), whole=st.sampled_from([1, 20, 1024]),
    order=st.sampled_from(stand_in.ORDERS),
)  # fmt: skip
def test_any_sizes_compute_what_the_cpu_computes(
    envs: int, rounds: int, ends: float, anew: float, whole: int, order: int, **sizes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_kernels, "WHOLE_NODES", whole)
        run = Beside(*kernels(envs * rounds, envs=envs, **sizes), order=order)
    run.fire("replay_sample")  # of an empty replay
    run.same()
    for time in range(rounds + 4):
        run.step(ends, anew)
        if time % (rounds // 2) == 0 or time > rounds:
            run.learn()
    run.same()


def test_of_a_row_drawn_twice_the_last_counts_across_batches_and_the_largest_of_all() -> None:
    update = kernels(36, 4, batch=4, steps=2)[2]
    for order in stand_in.ORDERS:
        run = Beside(update, order=order)
        run.write("batch.index", [[5, 7, 5, 9], [7, 1, 1, 1]])
        run.write("batch.td", [[1, 2, 3, 4], [5, 6, -70, 0]])
        run.fire("replay_update")
        run.same()
        leaves = run.device["replay.tree"][-36:]
        wanted = torch.tensor([3.01, 5.01, 4.01, 0.01])
        assert torch.equal(leaves[[5, 7, 9, 1]], wanted)
        assert float(run.device["replay.priority"][2]) == pytest.approx(70.01)


def test_priorities_are_powers_to_a_millionth_and_parents_the_sums_of_what_was_written() -> None:
    run = Beside(*kernels(3000, 8, batch=200))
    run.write("replay.priority", (0.6, 1e-6, 0.0))
    for _ in range(700):
        run.step()
    run.learn()
    found = run.device["replay.tree"].numpy()
    np.testing.assert_allclose(found, run.native["replay.tree"], rtol=1e-6)
    top = run.native["replay.priority"][2]
    np.testing.assert_allclose(float(run.device["replay.priority"][2]), top, rtol=1e-6)
    assert len(set(found[-3000:])) > 100
    run.write("replay.tree", found)  # from equal trees equal draws
    run.fire("replay_sample")
    run.same()


# Frames


def frame_kernels(capacity: int, **more: int) -> tuple[Kernel, ...]:
    sizes = {"stack": 3, "apart": 6, "ends": 90, "envs": 3, **more}
    return kernels(capacity, **sizes)


@pytest.mark.parametrize(("prioritised", "order"), [*zip((0, 1, 1), stand_in.ORDERS, strict=True)])
def test_frames_equal_the_cpus_while_the_ring_goes_round(prioritised: int, order: int) -> None:
    """Each order once; no longer run: the other three pairs."""
    sizes = {"prioritised": prioritised, "steps": 2, "n_step": 3, "batch": 40}
    run = Beside(*frame_kernels(120, **sizes), order=order)
    run.fire("replay_sample")
    run.same()
    for time in range(110):
        run.step(ends=0.15, anew=0.1)
        if time % 10 == 9:
            run.learn()
            run.same()
    assert run.native["replay.clock"][0] == 330  # nearly three times round
    assert run.native["replay.clock"][1] > 45  # last frames: their ring went round too
    assert {0, 1, 2} == set(run.native["replay.depth"])


# Rows in the host's memory


@pytest.mark.parametrize("stack", [0, 3])
def test_rows_in_the_hosts_memory_are_written_and_read_there(stack: int) -> None:
    sizes = {"n_step": 2, "batch": 30, "steps": 2}
    some = frame_kernels(60, **sizes) if stack else kernels(60, **sizes)
    run = Beside(*some, variant="host-rows", order=7)
    ring = {name for name in run.native if name.startswith("replay.")}
    assert ring - run.host == {f"replay.{name}" for name in DRAWN_BY} & ring
    for time in range(50):
        run.step(anew=0.1)
        if time % 6 == 5:
            run.learn()
            run.same()
    assert all(isinstance(run.device[name], np.ndarray) for name in run.host)
    assert run.device["replay.reward"].any()


def test_an_insertion_into_the_hosts_memory_waits_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: waits.append("stream"))
    monkeypatch.setattr(replay, "STREAMED", ("cpu",))
    monkeypatch.setattr(torch.cpu, "current_stream", lambda device: stream)
    for variant, some in (("cuda", 0), ("host-rows", 2)):
        for stack in (0, 3):
            insert = frame_kernels(60)[0] if stack else kernels(60)[0]
            Beside(insert, variant=variant).step()
        assert len(waits) == some


# Memory


@pytest.mark.parametrize(("stack", "fanout"), [(0, 16), (3, 3)])
def test_no_kernel_leaves_its_arrays(stack: int, fanout: int, tmp_path: Path) -> None:
    driver, sizes = stand_in.NotingTwin(), {"fanout": fanout, "n_step": 3, "batch": 9, "steps": 2}
    some = frame_kernels(36, **sizes) if stack else kernels(36, **sizes)
    run = Beside(*some, driver=driver)
    for _ in range(13):
        run.step(ends=0.3)
    run.learn()
    short = [run.device[name] for name in ("replay.tree", "batch.next_obs")]
    stand_in.assert_stays_inside(driver.prepared, tmp_path, *short)
