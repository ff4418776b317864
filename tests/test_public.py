"""The public surface, pinned: a change here is a change of what others rely on."""

import inspect
import subprocess
import sys

import pearl

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
