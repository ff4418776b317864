"""The stand-in for a GPU finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pearl_devices import UnsupportedError
from pearl_devices.gpu import cuda_emulator
from pearl_devices.gpu.program import Program
from tests.devices.gpu_stand_in import NotingTwin, assert_compiles, assert_near, sanitized

TOY = Program(str(Path(__file__).with_name("toy.cu")))


def test_a_launch_computes_and_an_access_beyond_an_array_is_reported(tmp_path: Path) -> None:
    x, out, driver = torch.arange(1000, dtype=torch.float32), torch.zeros(1), NotingTwin()
    driver.prepare_launch(TOY, "total", (1,), (64,), (x, out, 1000))()
    assert float(out) == 499500.0
    assert sanitized(driver.prepared, tmp_path) == ""
    for order in (0, 7):
        assert "heap-buffer-overflow" in sanitized(driver.prepared, tmp_path, order=order, short=x)
    assert "heap-buffer-overflow" in sanitized(driver.prepared, tmp_path, short=out)


def test_a_program_compiles_for_every_architecture_and_registers_are_bounded() -> None:
    assert_compiles(TOY, registers=64)
    with pytest.raises(AssertionError, match="total, sm_80"):
        assert_compiles(TOY, registers=4)


def test_near_is_asked_of_the_median_and_of_the_worst() -> None:
    wanted = np.linspace(1.0, 2.0, 101)
    assert_near(wanted * (1 + 9e-6), wanted)
    with pytest.raises(AssertionError, match="some"):
        assert_near(wanted * (1 + 2e-5), wanted, name="some")
    one = wanted.copy()
    one[7] += 3e-4
    with pytest.raises(AssertionError, match="element 7"):
        assert_near(one, wanted)
    with pytest.raises(AssertionError, match="nothing changes"):
        assert_near(wanted, wanted, wanted)


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
