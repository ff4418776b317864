"""Kernels are compiled for this host, for an older processor, or, read only, for Arm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

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


def test_tiles_for_arm_keep_their_sums_in_registers(every_target: None) -> None:
    """With vectors of four; the tile's code, generated here for the shortest vectors of x86, is
    translated for Arm and read."""
    script = """
import numba, numpy as np
from pearl_devices.primitives.math.tiles import tile
from pearl_devices.primitives.math.vectors import LANES
assert LANES == 4
most = tile(8, 2, False, False, "")
@numba.njit(no_cfunc_wrapper=True, no_cpython_wrapper=True)
def product(a, b, out, depth):
    most(a, 0, depth, b, 0, 8, out, 0, 8, b, 0, 0, depth, 8)
flat = numba.types.Array(numba.float32, 1, "C")
product.compile((flat, flat, flat, numba.int64))
print(product.inspect_llvm(product.signatures[0]))
"""
    text = told(script, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="")
    machine = binding.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        cpu="neoverse-n1", opt=3
    )
    text = re.sub(r'target (triple|datalayout) = ".*"\n', "", text)
    text = re.sub(r'"target-(cpu|features)"="[^"]*"', "", text)
    module = binding.parse_assembly(text)
    module.triple, module.data_layout = "aarch64-unknown-linux-gnu", str(machine.target_data)
    code = machine.emit_assembly(module)
    blocks = re.split(r"^\.\w+:.*$", code, flags=re.MULTILINE)
    loop = max(blocks, key=lambda block: len(re.findall(r"\bfmla\b", block)))
    assert len(re.findall(r"\bfmla\s+v\d+\.4s", loop)) == 16
    assert not re.search(r"\[sp", loop), "sums are put on the stack"
