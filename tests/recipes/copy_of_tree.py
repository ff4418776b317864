"""A copy of the tree with a patch applied, and Python processes that run in the copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pearl", "devices", "estimators", "configs", "tests", "examples", "benchmarks", "docs")


FINDERS = """import sys

sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f)]
"""
"""`sitecustomize` without the finder of an editable installation, which serves modules that the
copy lacks from the tree that is installed."""


def copy_of_tree(to: Path, patch: str = "", *, without: Iterable[str] = ()) -> Path:
    """Copies the packages, configs and tests to `to` / tree and applies tests/recipes/`patch`.

    A patch that does not fit the tree is an AssertionError with the file and the lines. without:
    files and folders that are not copied.
    """
    tree = to / "tree"
    gone = {ROOT / path for path in without}
    machine_code = shutil.ignore_patterns("*.nbi", "*.nbc", "*.egg-info")

    def left_out(at: str, names: list[str]) -> set[str]:
        return {*machine_code(at, names), *(n for n in names if Path(at, n) in gone)}

    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "pearl_configs").symlink_to("configs")  # as the installed package is called
    (tree / "sitecustomize.py").write_text(FINDERS)
    if patch:
        _apply(ROOT / "tests" / "recipes" / patch, tree)
    return tree


def _apply(patch: Path, tree: Path) -> None:
    """Applies a patch. Its lines are found by their content: a new machine may lack `patch`."""
    for part in re.split(r"(?m)^--- ", patch.read_text())[1:]:
        (name,) = re.findall(r"(?m)^\+\+\+ b/(\S+)", part)
        file = tree / name
        text = file.read_text() if file.exists() else ""
        for hunk in re.split(r"(?m)^@@ .*\n", part)[1:]:
            lines = hunk.splitlines(keepends=True)
            before, after = ("".join(x[1:] for x in lines if x[0] in f" {s}") for s in "-+")
            fits = text.count(before) == 1 if before else not text
            assert fits, f"{patch.name}: {name}: {before}"
            text = text.replace(before, after)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


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
