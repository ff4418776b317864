"""A kernel kind or an algorithm is known in its own file: no other file of the packages names one.

Kinds of devices are held by tests/devices/test_device_kinds.py.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pearl.algorithms import ALGORITHMS
from pearl_devices.gpu.kernels import CUDA
from pearl_devices.kernels import KINDS
from tests.sources import ROOT, nodes

KERNELS = {kind.partition(".")[0] for kind in KINDS} - {"rollout", "tabular", "evaluation"}
"""First words of names of kernel kinds. Rollout and tabular are families of algorithms too, and
evaluation is a phase of a run."""

HOMES = (
    "pearl/algorithms/",
    "devices/pearl_devices/kernels/",
    "devices/pearl_devices/primitives/",
    "devices/pearl_devices/fpga/kernels.py",
    "devices/pearl_devices/gpu/graphs.py",
    "devices/pearl_devices/gpu/kernels.py",
    *(
        f"devices/{variant.function.partition(':')[0].replace('.', '/')}.py"
        for found in CUDA.values()
        for variant in found.values()
        if isinstance(variant.function, str)
    ),
)
"""Graphs that are built of kernels, the records of kernels, and their implementations: on a CPU all
of `primitives`, on other kinds of devices the table of each and the files that it names."""

EXCUSED = {
    "pearl/explanation/crossover.py": "the batch size that is asked about is the one of learn",
    "pearl/planning/estimated_costs.py": "the lane of learn stays where a run starts",
    "pearl/planning/schedule.py": "a round of the loop is an iteration in traces",
    "pearl/report/words.py": "a round of the loop is an iteration in reports too",
    "pearl/runtime/protocol/lane_schedule.py": "the lane that learns is the one of learn",
    "pearl/task_names.py": "tasks had the names of kernel kinds before",
    "pearl/testing/algorithm_contract.py": "one task learns",
}
"""File → why it names a kind. The task `learn` has the name of a kind, `learn.dqn`."""


def names(file: Path) -> Iterator[str]:
    """Kernel kinds and algorithms that a file spells in its code, docstrings aside."""
    prose = {id(node.value) for node in nodes(file) if isinstance(node, ast.Expr)}
    for node in nodes(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            words = set(re.findall(r"\w+", node.value)) if " " not in node.value else set()
            yield from sorted(words & (KERNELS | set(ALGORITHMS)))


def test_no_other_file_names_a_kernel_kind_or_an_algorithm():
    found = set()
    for folder in ("pearl", "devices/pearl_devices", "estimators/pearl_estimators"):
        for file in (ROOT / folder).rglob("*.py"):
            place = str(file.relative_to(ROOT))
            if not place.startswith(HOMES) and any(names(file)):
                found.add(place)
    assert found == set(EXCUSED)


def test_a_name_in_code_is_seen_and_one_in_prose_is_not(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""update.dqn in prose."""\nKIND = "update.dqn"\nWORDS = "the update of"\n')
    assert sorted(names(file)) == ["dqn", "update"]
