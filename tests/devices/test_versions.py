"""What the project says about versions is true of its sources."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from pearl_devices.base import UnsupportedError
from pearl_devices.primitives.numba_internals import BELOW, LEAST, check_release
from tests.sources import ROOT, imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INTERNALS = ROOT / "devices/pearl_devices/primitives/numba_internals.py"

OTHER_NUMBA = """
import numba, sys
numba.__version__ = "0.99.1"
from pearl.cli import main
sys.argv = ["pearl", "train", "dqn_cartpole", "--set", "train.steps=64", "--out", sys.argv[1]]
main()
"""


def test_one_file_uses_what_numba_does_not_promise() -> None:
    for folder in ("pearl", "devices", "estimators"):
        for file in (ROOT / folder).rglob("*.py"):
            inside = {
                name for name in imports(file) if re.match(r"numba\.(core|np)\b(?!\.errors)", name)
            }
            assert file == INTERNALS or not inside, f"{file}: {inside}"


def test_the_bounds_of_numba_are_those_that_an_import_checks() -> None:
    (numba,) = (d for d in PROJECT["dependencies"] if d.startswith("numba"))
    least, below = (".".join(map(str, each)) for each in (LEAST, BELOW))
    assert numba == f"numba>={least},<{below}"
    (llvmlite,) = (d for d in PROJECT["dependencies"] if d.startswith("llvmlite"))
    assert "<" in llvmlite


@pytest.mark.parametrize("release", ["0.66.0", "0.69.0", "0.69.0rc1", "1.0", "0.70dev"])
def test_a_release_of_numba_that_was_not_tried_is_refused(release: str) -> None:
    with pytest.raises(UnsupportedError, match=f"numba {release} is not known to work; install"):
        check_release(release)


@pytest.mark.parametrize("release", ["0.67.0", "0.67.0rc1", "0.68.1"])
def test_a_release_of_numba_that_was_tried_is_taken(release: str) -> None:
    check_release(release)


def test_a_command_ends_with_one_sentence_about_numba(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_NUMBA, str(tmp_path / "run")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: numba 0.99.1 is not known to work; ")
    assert "Traceback" not in done.stderr


def test_test_and_base_dependencies_bring_no_cuda() -> None:
    extras = PROJECT["optional-dependencies"]
    for each in [*PROJECT["dependencies"], *extras["test"]]:
        assert not re.match(r"torch|pearl-toolkit\[train|nvidia-cuda|cupy", each), each
