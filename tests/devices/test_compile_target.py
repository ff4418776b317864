"""Kernels are compiled for this host, for an older processor, or, read only, for Arm."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

from pearl_devices.primitives.math.vectors import NEON, registers, target
from pearl_estimators.host import calibration

HELD = {"NUMBA_CPU_NAME": "znver3", "NUMBA_CPU_FEATURES": ""}


def told(script: str, **environment: str) -> str:
    """What a process with these variables prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def every_target() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


@pytest.mark.parametrize(("name", "features", "triple", "expected"), [
    ("znver3", "", "x86_64-unknown-linux-gnu", (8, 16)),
    ("znver4", "", "x86_64-unknown-linux-gnu", (16, 32)),
    ("x86-64", "", "x86_64-unknown-linux-gnu", (4, 16)),
    ("znver4", "+sse2,+avx,+avx2", "x86_64-unknown-linux-gnu", (8, 16)),
    ("neoverse-n1", "", "aarch64-unknown-linux-gnu", NEON),
])  # fmt: skip
def test_the_registers_are_those_of_the_processor_compiled_for(
    every_target: None, name: str, features: str, triple: str, expected: tuple[int, int]
) -> None:
    assert registers(name, features, triple) == expected


def test_the_features_and_the_code_that_llvm_generates_say_the_same_of_this_host() -> None:
    name, features = target()
    whole = set(features.split(","))
    unnamed = ",".join(sorted(whole - {"+avx512f", "+avx", "+sse2"}))
    assert registers(name, unnamed or "") == registers(name, features)


@pytest.mark.usefixtures("cpu_as_it_is")
def test_a_host_held_to_older_instructions_is_another_one_in_all_that_depends_on_them() -> None:
    script = """
import json
from pearl_devices import discover
from pearl_devices.primitives import code_cache
from pearl_devices.primitives.math.vectors import LANES, ROWS
from pearl_estimators.host import calibration
cpu = discover.cpu()
print(json.dumps([LANES, ROWS, cpu.figures["flops_per_cycle"], cpu.figures["bfloat16"],
    cpu.sources["flops_per_cycle"], calibration.host(), code_cache.sources().digest]))
"""
    *figures, said, host, digest = json.loads(told(script, **HELD))
    assert figures == [8, 6, 32.0, 0.0]
    assert "NUMBA_CPU_NAME=znver3" in said
    assert host == {
        **calibration.host(),
        "compiled for": "NUMBA_CPU_NAME=znver3 NUMBA_CPU_FEATURES=",
    }
    *_, plain_host, plain_digest = json.loads(told(script))
    assert plain_host == calibration.host()
    assert digest != plain_digest


TILE = """
import numba, numpy as np
from pearl_devices.primitives.math import vectors
assert vectors.LANES == 4
vectors.BY_LANE = True
from pearl_devices.primitives.math.tiles import tile
most = tile(8, 2, False, {turned}, "{finish}")
@numba.njit(no_cfunc_wrapper=True, no_cpython_wrapper=True)
def product(a, b, out, stride, depth):
    most(a, 0, stride, b, 0, 8, out, 0, 8, b, 0, 0, depth, 8)
flat = numba.types.Array(numba.float32, 1, "C")
product.compile((flat, flat, flat, numba.int64, numba.int64))
print(product.inspect_llvm(product.signatures[0]))
"""


@pytest.mark.parametrize(
    ("turned", "finish", "loads"), [(False, "bias", 16), (False, "gate", 16), (True, "", 4)]
)
def test_tiles_for_arm_keep_their_sums_in_registers_and_multiply_by_lane(
    every_target: None, turned: bool, finish: str, loads: int
) -> None:
    """A load to all lanes would take a slot of the multiply units. The tile's code, generated here
    for the shortest vectors of x86, is translated for Arm and read. loads: vectors that a pass
    needs."""
    script = TILE.format(turned=turned, finish=finish)
    text = told(script, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="")
    text = re.sub(r'target (triple|datalayout) = ".*"\n', "", text)
    text = re.sub(r'"target-(cpu|features)"="[^"]*"', "", text)
    for cpu in ("neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1"):
        machine = binding.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
            cpu=cpu, opt=3
        )
        module = binding.parse_assembly(text)
        module.triple, module.data_layout = "aarch64-unknown-linux-gnu", str(machine.target_data)
        code = machine.emit_assembly(module)
        blocks = re.split(r"^\.\w+:.*$|^\s+b\..*$", code, flags=re.MULTILINE)
        loop = max(blocks, key=lambda block: len(re.findall(r"\bfmla\b", block)))
        assert len(re.findall(r"\bfmla\s+v\d+\.4s", loop)) == (16 if turned else 64)
        assert "ld1r" not in loop, "a load to all lanes"
        assert not re.search(r"\[sp", loop), "sums are put on the stack"
        pairs, single = (len(re.findall(rf"\b{name}\s+q", loop)) for name in ("ldp", "ldu?r"))
        assert 2 * pairs + single == loads


DIGEST = """
import hashlib, sys
from pearl_devices.primitives.math import vectors
if lanes := int(sys.argv[1]):
    vectors.LANES, vectors.STRIP, vectors.BY_LANE = lanes, 2 * lanes, lanes == 4
    vectors.ROWS = 6 if lanes == 8 else 8
    vectors.SUMS = 2 * vectors.ROWS
import numpy as np
from pearl_devices.primitives.math import nets
found = hashlib.sha256()
for widths in ((5, 37, 24, 1), (9, 2), (20, 2), (3, 18, 3)):
    random, layers = np.random.default_rng(0), np.array(widths, np.int64)
    params, x = nets.init_params(widths, 1), random.normal(size=(71, widths[0])).astype(np.float32)
    acts, deltas = nets.scratch(widths, 71)
    grad, tail = np.zeros_like(params), np.zeros((71, 1), np.float32)
    m, v = np.zeros_like(params), np.zeros_like(params)
    for step in range(3):
        out = nets.forward(params, layers, x, acts, True)
        deltas[: out.size] = random.normal(size=out.size)
        nets.backward(params, layers, x, acts, 71, 71, deltas, grad, 1, tail, True)
        nets.adam(params, grad, m, v, step + 1, 1e-2, np.array([0.9, 0.999, 1e-8]), 0.5)
    for array in (params, out, tail):
        found.update(array.tobytes())
print(found.hexdigest())
"""


def test_the_length_of_vectors_decides_no_bit() -> None:
    """Of networks of any widths, their gradients and steps; with vectors of 4, 8 and 16 elements,
    which this host's compiler splits or joins as it can."""
    found, kept = set(), os.environ["NUMBA_CACHE_DIR"]
    for lanes in (0, 4, 8, 16):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST, str(lanes)],
            env={**os.environ, "NUMBA_CACHE_DIR": f"{kept}/vectors-{lanes}"},
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        found.add(done.stdout)
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="holds x86 to AVX2")
@pytest.mark.parametrize("changes", [
    ("dqn_cartpole", "algorithm.learning_starts=100"),
    ("sac_pendulum", "algorithm.learning_starts=200"),
    ("ppo_cartpole", "algorithm.rollout_steps=32"),
], ids=lambda changes: changes[0])  # fmt: skip
def test_a_run_held_to_avx2_computes_what_it_computes_on_all_of_this_host(
    changes: tuple[str, str], tmp_path: Path
) -> None:
    """With one plan. Where the host has AVX-512, its vectors are twice as long."""
    stored, plan = [], tmp_path / "0" / "plan.json"
    for number, held in enumerate(({}, HELD)):
        folder = tmp_path / str(number)
        given = ("--steps", "600", "train.evaluate_every=0", "train.final_episodes=1")
        given = (*changes, *given, "--out", str(folder), *(("--plan", str(plan)) if held else ()))
        subprocess.run(
            [sys.executable, "-m", "pearl", "train", *given],
            env={**os.environ, **held}, capture_output=True, timeout=300, check=True,
        )  # fmt: skip
        stored.append((folder / "policy_last.safetensors").read_bytes())
    assert stored[0] == stored[1]
