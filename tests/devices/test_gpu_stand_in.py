"""The stand-in for a GPU finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from pearl_devices import UnsupportedError, kernel
from pearl_devices.base import DeviceFailed, finish
from pearl_devices.gpu import cuda_emulator
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.memory import TorchMemory
from pearl_devices.gpu.program import Program
from pearl_devices.gpu.streams import streams_of
from pearl_devices.gpu.verify import Verdict
from tests.devices.gpu_stand_in import NotingTwin, sanitized

TOY = Program(str(Path(__file__).with_name("toy.cu")))


def test_a_launch_computes_and_an_access_beyond_an_array_is_reported(tmp_path: Path) -> None:
    x, out, driver = torch.arange(1000, dtype=torch.float32), torch.zeros(1), NotingTwin()
    driver.prepare_launch(TOY, "total", (1,), (64,), (x, out, 1000))()
    assert float(out) == 499500.0
    assert sanitized(driver.prepared, tmp_path) == ""
    for order in (0, 7):
        assert "heap-buffer-overflow" in sanitized(driver.prepared, tmp_path, order=order, short=x)
    assert "heap-buffer-overflow" in sanitized(driver.prepared, tmp_path, short=out)


def test_a_library_that_another_user_may_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    kept = cuda_emulator.build_library(TOY)
    assert cuda_emulator.build_library(TOY) == kept
    for mode in (0o770, 0o707):
        kept.parent.chmod(mode)
        with pytest.raises(UnsupportedError, match=r"others may write it.*set PEARL_CACHE_DIR"):
            cuda_emulator.build_library(TOY)


def test_a_graph_repeats_its_operators_with_the_numbers_of_its_tensors() -> None:
    x, y, total = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.zeros(2)

    def work() -> None:
        total[:1].add_((x * y)[:1])
        total.mul_(2.0)

    work()
    graph = streams_of(torch.device("cpu")).make_graph()
    graph.capture(work)
    assert total.tolist() == [18.0, 0.0]
    x[0] = 10.0
    graph.replay()
    assert total.tolist() == [96.0, 0.0]  # twice 18 and 10 times 3
    with pytest.raises(RuntimeError, match="it waits for a number of the device"):
        graph.capture(lambda: print(total[0].item()))


def test_a_verdict_allows_what_another_order_of_sums_gives() -> None:
    allowed = Verdict("k", "v", "x", 1e-5, 1e-4)
    assert allowed.passed
    assert allowed.text == "k v: pass"
    for wrong in (replace(allowed, median=1.1e-5), replace(allowed, worst=1.1e-4)):
        assert not wrong.passed
    told = "x differs from the CPU's by 1.1e-04 of its largest change (median 1.0e-05; 0.0001 and"
    assert told in wrong.text


def test_a_firing_copies_in_and_out_and_counts_the_time_of_its_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = count()
    monkeypatch.setattr("pearl_devices.gpu.memory.perf_counter_ns", lambda: next(ticks))
    of = TorchMemory(HostDriver())
    k = kernel("param_sync", params=4, args={"network": "q"})
    given, back = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    source, target = of.twin(given), of.twin(back)
    assert source.data_ptr() != given.ctypes.data
    assert of.part(source, 1, (3, 1)).tolist() == [[1.0], [2.0], [3.0]]
    calls = []

    def call() -> None:
        calls.append(source.tolist())
        target.copy_(2 * source)

    given += 1
    for loads, stores, nanoseconds in (
        ((), (), 0), (((given, source),), (), 1), ((), ((back, target),), 1),
        (((given, source),), ((back, target),), 2),
    ):  # fmt: skip
        fire = of.firing(call, k, loads, stores, "lane")
        for times in (1, 2):
            fire()
            assert fire.copied_ns == [times * nanoseconds]  # type: ignore[attr-defined]
    finish(fire)
    assert calls[:2] == [[0.0, 1.0, 2.0, 3.0]] * 2
    assert calls[2:] == [[1.0, 2.0, 3.0, 4.0]] * 6
    assert back.tolist() == [2.0, 4.0, 6.0, 8.0]
    of.load(((given[::-1].copy(), source),))
    assert source.tolist() == [4.0, 3.0, 2.0, 1.0]
    of.store(((back, source),))
    assert back.tolist() == [4.0, 3.0, 2.0, 1.0]


def test_a_device_that_fails_is_a_sentence_with_a_way_out() -> None:
    of = TorchMemory(HostDriver())
    of.twin(np.zeros(100, np.float32))
    k = kernel("param_sync", params=4, args={"network": "q"})

    class AcceleratorError(RuntimeError): ...

    for error, said in (
        (torch.OutOfMemoryError("full"), "cpu: kernel param_sync: its memory is full, with 400 by"),
        (AcceleratorError("no\n  device"), r"param_sync: the device is lost \(no device\); the l"),
    ):

        def fails(error: Exception = error) -> None:
            raise error

        with pytest.raises(DeviceFailed, match=said):
            of.firing(fails, k, (), (), "lane")()

    def wrong() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match=r"^ours$"):
        of.firing(wrong, k, (), (), "lane")()
