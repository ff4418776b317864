"""The public surface, pinned: a change here is a change of what others rely on."""

import inspect
import subprocess
import sys

import pearl

NAMES = {
    *("CostTable", "Calibration", "Device", "Edge", "Estimate", "InfeasibleError", "Kernel"),
    *(
        "Limits",
        "Link",
        "Mode",
        "Plan",
        "Platform",
        "Policy",
        "Report",
        "Run",
        "SpecError",
        "System",
    ),
    *(
        "Task",
        "TaskGraph",
        "Trainer",
        "advise",
        "calibrate",
        "estimate",
        "explain",
        "load",
        "pareto",
    ),
    *("plan", "solve", "STOP", "Callback", "Progress", "Sweep", "sweep"),
}


def test_all_lists_exactly_the_public_names():
    assert set(pearl.__all__) == NAMES
    assert all(hasattr(pearl, name) for name in NAMES)


def test_import_star_keeps_the_builtin_compile():
    scope: dict[str, object] = {}
    exec("from pearl import *", scope)
    assert "compile" not in scope
    assert callable(pearl.compile)


def test_signatures_are_those_of_the_contract():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    assert parameters(pearl.load) == ["spec", "set"]
    assert parameters(pearl.plan) == ["system", "method", "time_limit_s", "seed"]
    assert parameters(pearl.compile) == ["system", "set", "plan", "emulate", "seed"]
    assert parameters(pearl.solve) == [
        *("graph", "costs", "objective", "method", "limits", "time_limit_s", "seed", "known")
    ]
    assert parameters(pearl.pareto) == ["graph", "costs", "limits", "gap", "time_limit_s"]
    assert parameters(pearl.estimate) == ["kernel", "device", "variant", "width"]
    assert parameters(pearl.explain) == [
        *("plan", "graph", "costs", "limits", "system", "within", "time_limit_s")
    ]
    assert parameters(pearl.advise) == [
        *("spec", "add", "time_limit_s", "seed", "about", "listener", "words")
    ]
    assert parameters(pearl.sweep) == [
        *("spec", "seeds", "over", "set", "asha", "tournament", "out", "resume"),
        *("restarts", "dry_run", "on", "watch"),
    ]
    assert parameters(pearl.calibrate) == ["platform", "seconds", "force", "groups", "limit_s"]


def test_importing_pearl_loads_nothing_heavy():
    heavy = "{'torch', 'numba', 'scipy', 'gymnasium', 'jinja2'}"
    code = f"import sys, pearl; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
