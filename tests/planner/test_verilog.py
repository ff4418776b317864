"""The Verilog that is written of a plan: its files, and simulators that find its golden vectors."""

from __future__ import annotations

import json
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
from pearl_devices.fpga.program import Shape
from pearl_devices.fpga.simulation import missing
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
    k = kernel("update.ddpg", obs=3, act=1, batch=4, steps=1, **layers)
    return k, ddpg((3, 16, 1), (4, 16, 1), 4, Shape(4, 2))


def simulated(folder: Path) -> str:
    """What the test bench prints, by the first command of the README."""
    text = (folder / "README.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith("iverilog"))
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
    keys = ["algorithm.hidden=[8,8]", "algorithm.batch_size=8", "limits.pin.update=fpga"]
    command = ["rtl", "dqn_cartpole_fpga", *keys, "--out", str(out)]
    ran = CliRunner().invoke(app, [*command, "--json", "-"])
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert problems(value, "rtl") == []
    (learner,) = value["learners"]
    folder = Path(learner["folder"])
    text = (folder / "README.md").read_text()
    assert f"{learner['blocks']} DSP blocks" in text
    assert "No clock is promised" in text
    assert {"engine.v", "boxes.v", "float32.v", "testbench.v", "stream.hex"} <= {
        f.name for f in folder.iterdir()
    }
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "must be a new or an empty folder" in again.output
    system = pearl.load("dqn_cartpole_fpga", set={"limits.pin": {"update": "cpu"}})
    with pytest.raises(pearl.SpecError, match="no learner on an engine of a simulated FPGA"):
        write_verilog(system, tmp_path / "none")
