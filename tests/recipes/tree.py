"""Recipes tried: a patch on a copy of the tree, and commands run in the copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("pearl/", "devices/", "estimators/")
PARTS = (*PACKAGES, "configs/", "examples/", "tests/", "pyproject.toml")


def patched(patch: str, folder: Path) -> Path:
    """A copy of the tree in `folder` with `tests/recipes/{patch}` applied."""
    tree = folder / "tree"
    tree.mkdir()
    dirt = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in PARTS:
        if part.endswith("/"):
            shutil.copytree(ROOT / part, tree / part, ignore=dirt)
        else:
            shutil.copy(ROOT / part, tree / part)
    file = str(ROOT / "tests" / "recipes" / patch)
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder)}  # no repository's paths
    apply = ["git", "apply", "--verbose", file]
    done = subprocess.run(apply, cwd=tree, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tree


def size(patch: str) -> dict[str, int]:
    """File of the packages → lines that the patch adds or removes there; a new file counts 0."""
    found: dict[str, int] = {}
    file, new = "", False
    for line in (ROOT / "tests" / "recipes" / patch).read_text().splitlines():
        if line.startswith("diff --git"):
            file, new = line.split(" b/")[-1], False
        new |= line == "--- /dev/null"
        if file.startswith(PACKAGES) and line.startswith(("+", "-")):
            changed = not new and not line.startswith(("+++", "---"))
            found[file] = found.get(file, 0) + changed
    return found


def run(tree: Path, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in a copy, whose packages are the ones imported."""
    paths = [tree, tree / "devices", tree / "estimators"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
