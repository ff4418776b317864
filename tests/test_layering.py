"""devices ← estimators ← pearl, never back; and what is installed is what is there."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "pearl_devices": ROOT / "devices" / "pearl_devices",
    "pearl_estimators": ROOT / "estimators" / "pearl_estimators",
    "pearl": ROOT / "pearl",
}
MAY_IMPORT = {
    "pearl_devices": set(),
    "pearl_estimators": {"pearl_devices"},
    "pearl": {"pearl_devices", "pearl_estimators", "pearl_configs"},
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_only_the_layers_below_it(package):
    ours = set(FOLDERS) | {"pearl_configs"}
    for file in sorted(FOLDERS[package].rglob("*.py")):
        above = (imports(file) & ours) - {package} - MAY_IMPORT[package]
        assert not above, f"{file.relative_to(ROOT)} imports {above}"


def test_the_listed_packages_are_those_in_the_tree():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    sources = listed["package-dir"]
    found = {
        ".".join((name, *init.parent.relative_to(ROOT / folder).parts))
        for name, folder in sources.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(listed["packages"])


def test_no_submodule_bears_the_name_of_a_public_function():
    functions = {"load", "plan", "compile", "solve", "pareto", "estimate", "calibrate", "explain"}
    assert not functions & {p.stem for p in (ROOT / "pearl").iterdir()}
