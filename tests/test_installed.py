"""Wheel and sdist, installed in an empty environment, work from another folder. The README's two
commands work on every Python of this machine, and with the lowest versions that are allowed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.sources import ROOT

DATA = {".yaml", ".json", ".j2", ".v", ".h", ".cu", ".cuh", ".typed"}
OTHERS = ("3.12", "3.13", "3.14", "3.15")
WITH_TESTS = ("3.12", "3.13", "3.14")
"""Other Pythons for which all that the tests need has wheels."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    tree, out = unpacked(folder), folder / "dist"
    python = environment(folder / "builder", sys.executable)
    command(folder, python, "-m", "pip", "install", "-q", "build")
    command(folder, python, "-m", "build", "--outdir", str(out), str(tree))
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def unpacked(folder: Path) -> Path:
    """The tree as an archive gives it: without git."""
    left_out = ("[.]*", "__pycache__", "build", "*.egg-info", "*.nbi", "*.nbc", "runs", "site")
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*left_out)))


def environment(folder: Path, interpreter: str) -> str:
    """The interpreter of a new, empty environment."""
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    return str(folder / "bin" / "python")


def command(cwd: Path, *words: str) -> str:
    """Standard output of a command that must end with status 0 and that sees no checkout."""
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def interpreter(version: str) -> str | None:
    """Path of a Python of this version, such as 3.12; None if this machine has none."""
    pyenv = Path.home() / ".pyenv" / "versions"
    found = [
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python"))),
    ]
    for path in filter(None, found):
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if asked.stdout.startswith(f"Python {version}."):
            return path
    return None


def test_wheel_and_sdist_hold_every_file_of_the_packages(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    mapped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-dir"
    ]
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.split("/", 1)[-1] for name in archive.getnames()}
    for package, folder in mapped.items():
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in DATA | {".py"} and "__pycache__" not in file.parts:
                assert f"{package}/{file.relative_to(ROOT / folder)}" in in_wheel
                assert str(file.relative_to(ROOT)) in in_sdist


@pytest.mark.parametrize("version", [f"{sys.version_info[0]}.{sys.version_info[1]}", *OTHERS])
def test_the_commands_of_the_readme_work_from_another_folder(
    built: tuple[Path, Path], version: str, tmp_path: Path
) -> None:
    """Without torch: the environment has what the wheel asks for and nothing else."""
    base = sys.executable if sys.version.startswith(version) else interpreter(version)
    if base is None:
        pytest.skip(f"this machine has no Python {version}")
    python = environment(tmp_path / "env", base)
    wheel = str(built[1])
    command(
        tmp_path, python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), wheel
    )
    pearl = str(Path(python).with_name("pearl"))
    command(
        tmp_path, python, "-c", "import importlib.util as u; assert u.find_spec('torch') is None"
    )

    command(tmp_path, pearl, "init", "mine.yaml")
    command(tmp_path, pearl, "check", "mine.yaml")
    page = tmp_path / "plan.html"
    command(tmp_path, pearl, "plan", "dqn_cartpole_gpu", "--explain", "--html", str(page))
    assert page.read_text().startswith("<!doctype html>")
    assert "Should gpu be used" in command(
        tmp_path, pearl, "advise", "dqn_cartpole", "--platform", "cpu_gpu", "--about", "devices"
    )
    command(tmp_path, pearl, "rtl", "dqn_cartpole_fpga", "--out", "verilog")
    for what in ("algorithms", "platforms", "devices", "kinds", "methods"):
        assert command(tmp_path, pearl, "list", what)
    trained = command(tmp_path, pearl, "train", "dqn_cartpole")
    (best,) = re.findall(r"best return (\d+)", trained)
    assert int(best) >= 475
    assert (tmp_path / "runs/dqn_cartpole/report.html").exists()

    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = code.replace("configs/dqn_cartpole.yaml", "dqn_cartpole").replace("50_000", "2_000")
    assert "env steps/s" in command(tmp_path, python, "-c", code)


def run_tests(tree: Path, python: str, *arguments: str) -> None:
    """Run tests in an unpacked tree with the caches of a new user."""
    cache = str(tree.parent / "cache")
    caches = [f"{name}_CACHE_DIR={cache}" for name in ("PEARL", "NUMBA")]
    pytest_of = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", *arguments]
    command(tree, "env", *caches, *pytest_of)


@pytest.mark.parametrize("version", WITH_TESTS)
def test_the_second_command_of_the_readme_passes_from_an_unpacked_archive(
    version: str, tmp_path: Path
) -> None:
    base = interpreter(version)
    if base is None:
        pytest.skip(f"this machine has no Python {version}")
    tree, python = unpacked(tmp_path), environment(tmp_path / "env", base)
    command(tree, python, "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[test]")
    run_tests(tree, python)


def test_the_lowest_versions_that_are_allowed_train_and_pass_tests(tmp_path: Path) -> None:
    tree, python = unpacked(tmp_path), environment(tmp_path / "env", sys.executable)
    command(tree, python, "-m", "pip", "install", "-q", "uv")
    lowest = ("--resolution", "lowest-direct", "-e", ".[test]")
    command(tree, python, "-m", "uv", "pip", "install", "-q", "--python", python, *lowest)
    pearl = str(Path(python).with_name("pearl"))
    trained = command(tmp_path, pearl, "train", str(tree / "configs/dqn_cartpole.yaml"))
    (best,) = re.findall(r"best return (\d+)", trained)
    assert int(best) >= 475
    rooms = ("graph", "planning", "runtime", "solvers", "spec")
    run_tests(tree, python, *(f"tests/{room}" for room in rooms))
