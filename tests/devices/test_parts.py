"""Compiled functions have parts, and call functions that are apart by their symbols."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pearl_devices.primitives.math import nets, rng
from pearl_devices.primitives.numba_internals import ApartLibrary, PartLibrary
from pearl_devices.primitives.updates import dqn

INFER = """
import json
import sys
import numpy as np
from pearl_devices.kernels import kernel
from pearl_devices.buffers import allocate
from pearl_devices import cpu
of = kernel("inference.dqn", {"envs": 3, "obs": 4, "act": 0, "q": (4, 8, 2)})
buffers = allocate([of])
buffers["policy.q"][:] = np.linspace(-1, 1, buffers["policy.q"].size)
buffers["env.obs"][:] = np.linspace(-1, 1, 12).reshape(3, 4)
call = cpu.bind(of, "native", buffers)
call()
from pearl_devices.primitives.updates.dqn import choose, forward, infer
found = {f.__name__: [sum(f.stats.cache_hits.values()), sum(f.stats.cache_misses.values())]
         for f in (infer, forward, choose.part)}
assert any(new for _, new in found.values()) or "numpy.ma" not in sys.modules
print(json.dumps([found, buffers["act.action"].tolist()]))
"""


def inferred(cache: Path) -> tuple[dict[str, list[int]], list[int]]:
    """Function → found and compiled, of a process of its own, and the actions that it chose."""
    done = subprocess.run(
        [sys.executable, "-c", INFER], capture_output=True, text=True,
        env=os.environ
        | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, actions = json.loads(done.stdout)
    return found, actions


def test_kept_code_has_the_functions_that_it_calls_whether_kept_or_not(tmp_path: Path) -> None:
    first, actions = inferred(tmp_path)
    assert first == {"infer": [0, 1], "forward": [0, 1], "choose": [0, 1]}
    assert inferred(tmp_path) == ({"infer": [1, 0], "forward": [1, 0], "choose": [0, 0]}, actions)
    for file in tmp_path.rglob("nets.forward-*"):
        file.unlink()
    found, again = inferred(tmp_path)
    assert (found["infer"], found["forward"], again) == ([1, 0], [0, 1], actions)


def library(function: Any) -> Any:
    return next(iter(function.overloads.values())).library


def test_a_part_has_no_machine_code_and_what_is_apart_is_generated_once() -> None:
    rng.stream_base(1, 2)
    assert isinstance(library(rng.stream_base), ApartLibrary)
    part = rng.stream_base.part
    part.compile(next(iter(rng.stream_base.overloads)))
    assert isinstance(library(part), PartLibrary)
    assert library(part).get_pointer_to_function(library(part).name) == 0
    assert rng.stream_base._numba_type_.dispatcher is part
    assert nets.forward._numba_type_.dispatcher is nets.forward
    assert dqn.learn._numba_type_.dispatcher is dqn.learn
