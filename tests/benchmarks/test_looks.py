"""The benchmark of looks: its process without looks has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pearl
from benchmarks import looks
from pearl.testing.kernel_buffers import filled
from pearl_devices import cpu, kernel

STEPS = 3
"""Gradient steps of a firing."""
CODE = "from benchmarks import looks; looks.blind(); import tests.benchmarks.test_looks as t; "


def taken():
    """Gradient steps that a call takes whose stop word is set."""
    k = kernel("update.dqn", obs=4, act=0, q=(4, 8, 2), batch=4, steps=STEPS, double=1)
    b = filled([k])
    b["learner.step"][:], b["loop.stop"][:] = 0, (1, 0)
    cpu.bind(k, "native", b)()
    return int(b["learner.step"][0])


@pytest.mark.slow
def test_compiled_code_without_looks_takes_all_gradient_steps(tmp_path):
    """It is compiled into a folder of its own: the usual one has the code that looks."""
    assert taken() == 1
    done = subprocess.run(
        [sys.executable, "-c", f"{CODE}print(t.taken())"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{STEPS}\n", done.stderr


@pytest.mark.parametrize("quick", [True, False])
def test_every_stretch_takes_gradient_steps(quick):
    for spec, steps, pairs in looks.loads(quick=quick).values():
        assert steps > pearl.load(spec).algorithm.learning_starts
        assert pairs > 2  # quartiles are shown
