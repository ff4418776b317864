"""Compiled functions have parts, and call functions that are apart by their symbols."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import typeof, types
from numba.core.errors import NumbaTypeError, NumbaValueError

from pearl_devices.primitives import native
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


def test_a_number_that_is_written_out_has_the_type_of_others() -> None:
    """Else a function would be compiled once for each number that a caller spells."""
    of = types.Array(types.float32, 1, "C"), types.Array(types.int64, 1, "C")
    template = nets.forward.get_call_template(
        (*of, types.Array(types.float32, 2, "C"), of[0], types.literal(False)), {}
    )
    assert template[0].cases[-1].args[4] == types.boolean
    assert not any(isinstance(args[4], types.Literal) for args in nets.forward.overloads)
    assert gc.isenabled()


def test_arrays_have_the_types_that_numba_gives_them() -> None:
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    for array in (
        np.zeros(2, np.uint8),
        np.zeros((3, 4))[:, 1:],
        np.zeros((2, 2), order="F"),
        frozen,
    ):
        assert typeof(array) == native._of_any_array(array, None)
    for array in (np.zeros(2, np.longdouble), np.ma.zeros(2)):
        with pytest.raises((NumbaTypeError, NumbaValueError)):
            typeof(array)


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


def test_references_are_counted_only_where_an_array_is_made_or_returned() -> None:
    """Compiled code works on arrays that its caller holds; a call leaves their counts as they
    were, also through `forward`, which returns a view."""

    @native.fast
    def halve(x):
        rest = x[1:]
        for j in range(rest.size):
            rest[j] *= np.float32(0.5)

    x = np.ones(3, np.float32)
    halve(x)
    assert x.tolist() == [1.0, 0.5, 0.5]
    assert "NRT_incref" not in next(iter(halve.inspect_llvm().values()))

    with pytest.raises(NumbaTypeError, match="returning of array"):
        native.fast(lambda x: x[1:])(x)

    given: tuple[Any, ...] = (
        np.ones(4 * 8 + 8 + 8 * 2 + 2, np.float32), np.array([4, 8, 2]),
        np.ones((3, 4), np.float32), np.zeros(3 * 10, np.float32),
    )  # fmt: skip
    held = [sys.getrefcount(array) for array in given]
    views = [nets.forward(*given, False) for _ in range(3)]
    assert all(view.base is not None and np.shares_memory(view, given[3]) for view in views)
    del views
    assert [sys.getrefcount(array) for array in given] == held


def test_only_the_function_is_optimised_and_not_what_python_calls_it_by() -> None:
    @native.fast
    def first(x):
        return x[0]

    assert first(np.full(2, 3.0)) == 3.0
    module = next(iter(first.overloads.values())).library._final_module
    optimised = {
        f.name.startswith("_ZN7cpython"): not any(b"optnone" in a for a in f.attributes)
        for f in module.functions
        if not f.is_declaration and "first" in f.name
    }
    assert optimised == {True: False, False: True}
