"""A copy of the tree with a patch applied, and Python processes that run in the copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pearl", "devices", "estimators", "configs", "tests", "examples", "benchmarks", "docs")


def copy_of_tree(to: Path, patch: str = "") -> Path:
    """Copies the packages, configs and tests to `to` / tree and applies tests/recipes/`patch`.

    A patch that does not fit the tree is an AssertionError with the words of `patch`.
    """
    tree = to / "tree"
    for folder in FOLDERS:
        left_out = shutil.ignore_patterns("*.nbi", "*.nbc", "*.egg-info")
        shutil.copytree(ROOT / folder, tree / folder, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "pearl_configs").symlink_to("configs")  # as the installed package is called
    if patch:
        command = ["patch", "--strip=1", "--batch", "--forward", f"--directory={tree}"]
        text = (ROOT / "tests" / "recipes" / patch).read_bytes()
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        assert done.returncode == 0, f"{patch}: {done.stdout.decode()}{done.stderr.decode()}"
    return tree


def python_in(
    tree: Path, *arguments: str, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """`python *arguments` in the copy, whose packages hide the installed ones.

    The exit status is the caller's to check.
    """
    paths = (tree, tree / "devices", tree / "estimators")
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        timeout=timeout_s,
        check=False,
    )
