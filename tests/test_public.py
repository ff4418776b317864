"""The public surface, pinned: a change here is a change of what others rely on."""

import doctest
import inspect
import subprocess
import sys

import pytest

import pearl
import pearl_devices

NAMES = (
    "CostTable Calibration Device Edge Estimate InfeasibleError Kernel Limits Link Mode Plan "
    "Platform Policy Report Run SpecError System Task TaskGraph Trainer advise calibrate estimate "
    "explain load pareto plan solve verify STOP Callback Progress Sweep sweep Fusion"
)


def test_all_lists_exactly_the_public_names():
    assert set(pearl.__all__) == set(NAMES.split())
    assert all(hasattr(pearl, name) for name in NAMES.split())


def test_import_star_keeps_the_builtin_compile():
    scope: dict[str, object] = {}
    exec("from pearl import *", scope)
    assert "compile" not in scope
    assert callable(pearl.compile)


PUBLIC = [(name, getattr(pearl, name)) for name in (*pearl.__all__, "compile")]
FUNCTIONS = [(name, value) for name, value in PUBLIC if inspect.isfunction(value)]


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_public_function_documents_each_argument_and_its_example_is_true(
    name: str, function, tmp_path, monkeypatch
):
    text = inspect.getdoc(function)
    for argument in inspect.signature(function).parameters:
        assert f"\n    {argument}: " in text, argument
    monkeypatch.chdir(tmp_path)
    scope = {"pearl": pearl, "pearl_devices": pearl_devices}
    example = doctest.DocTestParser().get_doctest(text, scope, name, None, None)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_signatures_are_those_of_the_contract():
    contract = {
        "load": "spec set",
        "plan": "system method time_limit_s seed",
        "compile": "system set plan emulate seed",
        "solve": "graph costs objective method limits time_limit_s seed known workers on_incumbent "
        "certify",
        "verify": "plan graph costs limits objective",
        "pareto": "of costs limits gap time_limit_s",
        "estimate": "kernel device variant width host",
        "explain": "plan graph costs limits system within time_limit_s",
        "advise": "spec add time_limit_s seed about listener words",
        "sweep": "spec seeds over set asha tournament out resume restarts dry_run on watch",
        "calibrate": "platform seconds force groups limit_s",
    }
    for name, parameters in contract.items():
        assert list(inspect.signature(getattr(pearl, name)).parameters) == parameters.split(), name


def test_importing_pearl_loads_nothing_heavy():
    heavy = "{'torch', 'numba', 'scipy', 'gymnasium', 'jinja2'}"
    code = f"import sys, pearl; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
