"""A copy of the tree is what its processes import, and a patch changes the copy alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes import copy_of_tree as module
from tests.recipes.copy_of_tree import ROOT, copy_of_tree, python_in

WHERE = """
import pearl, pearl_devices, pearl_estimators, pearl_configs, tests
for module in (pearl, pearl_devices, pearl_estimators, pearl_configs, tests):
    print(module.__file__)
"""


def test_processes_import_every_package_from_the_copy(tmp_path: Path) -> None:
    tree = copy_of_tree(tmp_path)
    done = python_in(tree, "-c", WHERE)
    files = done.stdout.split()
    assert len(files) == 5, done.stderr
    assert all(Path(file).is_relative_to(tree) for file in files), files


def test_a_patch_is_applied_to_the_copy_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests" / "recipes").mkdir(parents=True)
    lines = ["--- a/pearl/errors.py", "+++ b/pearl/errors.py", "@@ -1,1 +1,1 @@"]
    for folder in (*module.FOLDERS, "pyproject.toml"):
        if folder != "tests":
            (tmp_path / folder).symlink_to(ROOT / folder)
    first = (ROOT / "pearl" / "errors.py").read_text().splitlines()[0]
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, removed in (("fits", first), ("does_not", "a line that is not there")):
        text = "\n".join([*lines, f"-{removed}", '+"""Another first line."""', ""])
        (tmp_path / "tests" / "recipes" / f"{name}.patch").write_text(text)
    tree = copy_of_tree(tmp_path / "a", "fits.patch")
    assert (tree / "pearl" / "errors.py").read_text().startswith('"""Another first line."""')
    assert (ROOT / "pearl" / "errors.py").read_text().startswith(first)
    with pytest.raises(AssertionError, match=r"does_not\.patch: pearl/errors\.py: a line that"):
        copy_of_tree(tmp_path / "b", "does_not.patch")
