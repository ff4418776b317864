"""A device kind is one file and one line; a faulty one is a sentence that names file and fault."""

from __future__ import annotations

import ast
import re
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

import pearl
from pearl.errors import SpecError
from pearl.planning.estimated_costs import build_cost_table
from pearl.spec.user_code import build_graph
from pearl_devices import BACKENDS, Device, backend, estimator, kernel, trust_kind
from pearl_devices.base import DeviceKindError, KernelKindError
from pearl_estimators import estimate, power
from pearl_estimators.host.calibrator import is_calibrated_here
from tests.cli.test_cli import Ran

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own_device.md").read_text(encoding="utf-8")
GOOD, CONTRACT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NEAR = {
    "kind": "pim", "source": "made up", "width": 8, "peak": "1 TFLOP/s",
    "memory_bandwidth": "100 GB/s", "overhead": "1 us", "idle_power": "1 W", "active_power": "10 W",
    "figures": {"bank_bytes_per_s": "2 GB/s"},
}  # fmt: skip
LINK = {"between": ["cpu", "near"], "source": "s", "latency": "1 us", "bandwidth": "16 GB/s"}
SPEC: dict[str, Any] = {
    "algorithm": {"name": "dqn", "env": "CartPole-v1", "num_envs": 4, "hidden": [16]},
    "platform": {"devices": {"cpu": "xeon_gold_6326", "near": NEAR}, "links": [LINK]},
    "limits": {"pin": {"sample": "near", "store": "near"}},
}

NUMBERS = count()


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the file of a kind `pim` that the table names, and a spec that uses it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str | None, path: str = "") -> Path:
        module = path or f"pim_{next(NUMBERS)}"
        if not path:
            monkeypatch.setitem(BACKENDS, "pim", module)
        if text is not None:
            file = tmp_path / f"{module.replace('.', '/')}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        spec = tmp_path / "spec.yaml"
        platform = SPEC["platform"]
        near = {**NEAR, "kind": path or "pim"}
        devices = {**platform["devices"], "near": near}
        spec.write_text(yaml.safe_dump({**SPEC, "platform": {**platform, "devices": devices}}))
        return spec

    return write


def test_a_kind_of_one_file_and_one_line_is_planned_listed_and_labelled(kind: Any) -> None:
    spec = kind(GOOD)
    system = pearl.load(spec)
    near = system.platform.device("near")
    assert (near.width_unit, near.simulated, near.when_unused) == ("banks", True, "off")
    task = pearl.plan(system).task("sample")
    assert (task.device, task.width, task.width_unit) == ("near", 8, "banks")
    assert (task.rung, task.variant) == ("closed_form", "near")
    listed = "pim A processor in memory: draws and stores replay where it lies (width in banks, "
    assert listed + "simulated)" in " ".join(Ran("list", "kinds").out.split())
    assert Ran("check", spec).status == 0
    k = system_kernel(system, "sample")
    found = estimate(k, near, width=4)
    assert found.latency_s == pytest.approx(k.bytes_in / (4 * 2e9))
    assert found.energy_j == pytest.approx(0.5 * 9 * found.latency_s)
    assert power.SOURCE in found.source


def system_kernel(system: pearl.System, task: str) -> Any:
    from pearl.planner.planner import build_problem

    return build_problem(system).graph.task(task).kernel


def test_a_kind_may_say_its_own_energy_and_rung(kind: Any) -> None:
    kind(GOOD.replace('"low_s"', '"energy_j": 7.0, "rung": "datasheet", "source": "s", "low_s"'))
    near = Device("near", "pim", width=8, figures={"bank_bytes_per_s": 2e9})
    found = estimate(SAMPLE, near)
    assert (found.energy_j, found.rung, found.source) == (7.0, "datasheet", "s")


SAMPLE = kernel("replay_insert", envs=4, obs=4, act=0, capacity=64, prioritised=0, fanout=4)


def test_a_figure_that_a_kind_asks_for_is_the_users_to_give(kind: Any) -> None:
    kind(GOOD)
    with pytest.raises(ValueError, match=r"^device 'near' gives no bank_bytes_per_s$"):
        estimate(SAMPLE, Device("near", "pim", width=8))


def test_a_kind_by_module_path_is_imported_where_the_spec_is_the_users_word(kind: Any) -> None:
    spec = kind(GOOD, "own_kinds.memory")
    said = Ran("check", spec)
    assert said.status == 0
    assert "not checked: platform.devices.near.kind own_kinds.memory: whether it is" in said.out
    assert "own_kinds.memory" not in sys.modules
    assert Ran("check", "--import", spec).status == 0
    assert pearl.plan(spec).task("sample").width_unit == "banks"
    assert pearl.load(spec).sha256 == pearl.spec.reading.load_static(spec).sha256


def commands(spec: Path) -> tuple[tuple[Any, ...], ...]:
    return ("check", spec), ("plan", spec), ("train", "--emulate", spec)


def assert_refused(command: tuple[Any, ...], why: str) -> str:
    """A command is refused with one line that names the file of `pim`. The line."""
    ran = Ran(*command)
    assert ran.status == 2, command
    assert f"device kind 'pim', {BACKENDS['pim']}.py: {why}" in ran.err, command
    assert len(ran.err.strip().splitlines()) == 1, command
    return str(ran.err)


FAULTS = {
    "no file": (None, "there is no such file on Python's path; write one that defines offers, b"),
    "no Python": ("def offers(:", "it cannot be imported: SyntaxError: "),
    "raises": ("1 / 0", "it cannot be imported: ZeroDivisionError: "),
    "exits": ("raise SystemExit(3)", "it cannot be imported: SystemExit: "),
    "no offers": (GOOD.replace("def offers", "def offer"), "it has no offers; it needs def off"),
    "no bind": (GOOD.replace("def bind", "def bound"), "it has no bind; it needs def bind("),
    "no unit": (GOOD.replace("WIDTH_UNIT", "UNIT"), "it has no WIDTH_UNIT; it needs one word"),
    "no word": (GOOD.replace('"banks"', "3"), "WIDTH_UNIT is 3; it must be one word"),
    "unsaid": (GOOD.replace("SIMULATED", "MADE_UP"), "it has no SIMULATED; it needs True if no"),
    "no estimate": (
        GOOD.replace("ESTIMATE", "estimate"),
        "it has no ESTIMATE; it needs a function (kernel, device, variant, width)",
    ),
    "no function": (f"{GOOD}\nESTIMATE = 3", "ESTIMATE is 3; it must be a function"),
    "no module": (f"{GOOD}\nESTIMATE = 'no_such:f'", "ESTIMATE is 'no_such:f': No module named"),
    "not in it": (
        f"{GOOD}\nESTIMATE = 'pearl_estimators.roofline:no_such'",
        "ESTIMATE is 'pearl_estimators.roofline:no_such': module 'pearl_estimators.roofline' has",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_half_registered_kind_is_a_sentence_that_names_file_and_lack(
    kind: Any, fault: str
) -> None:
    text, why = FAULTS[fault]
    spec = kind(text)
    for command in (*commands(spec), ("list", "devices"), ("list", "kinds")):
        assert_refused(command, why)


@pytest.mark.parametrize(
    "body",
    ["3", "None", "'near'", "('near',)", "(('near', 0),)", "(('near', 9),)", "((2, 1),)", "1 / 0"],
)
def test_offers_that_are_none_are_a_sentence_that_names_the_file(kind: Any, body: str) -> None:
    spec = kind(GOOD.replace('    return (("near', f'    return {body}\n    return (("near'))
    for command in commands(spec)[:2]:
        assert_refused(command, "offers ")


def test_offers_that_fail_are_a_sentence_where_a_plan_is_given(kind: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert Ran("plan", kind(GOOD), "--json", plan).status == 0
    spec = kind(GOOD.replace('    return (("near', '    return 1 / 0\n    return (("near'))
    given = "train", spec, "--plan", plan, "--emulate", "--out", tmp_path / "run"
    assert "plan: device kind" in assert_refused(given, "offers fails for kernel")


@pytest.mark.parametrize("function", ["offers", "ESTIMATE"])
def test_a_fault_of_a_kernel_kind_is_not_laid_on_the_device(
    kind: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind(GOOD)
    near = Device("near", "pim", width=8, figures={"bank_bytes_per_s": 2e9})

    def fails(*given: Any) -> Any:
        raise KernelKindError("kernel kind mine:KIND: arrays fails")

    monkeypatch.setattr(backend("pim"), function, fails)
    with pytest.raises(KernelKindError, match=r"^kernel kind mine:KIND: arrays fails$"):
        estimate(SAMPLE, near)


def test_a_kind_that_no_table_names_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyError, match="no device kind 'tpu'; there are"):
        backend("tpu")
    with pytest.raises(DeviceKindError, match="no spec that you named has it, so it is not import"):
        backend("json.tool")
    trust_kind("json.tool")
    with pytest.raises(ValueError, match=r"device kind 'json\.tool', json/tool\.py: .*standard li"):
        backend("json.tool")
    spec = {**SPEC, "platform": {"devices": {"cpu": {**NEAR, "kind": "cqu"}}}}
    with pytest.raises(SpecError, match=r"given 'cqu' \(did you mean cpu\?\); allowed: cpu or gpu"):
        pearl.load(spec)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_estimate_of_every_kind_that_ships_resolves(name: str) -> None:
    assert callable(estimator(name))


def test_the_contract_on_the_page_holds_for_the_kind_on_the_page(kind: Any) -> None:
    kind(GOOD, "my_package.memory")
    scope: dict[str, Any] = {}
    exec(CONTRACT, scope)
    contract = scope["TestMemory"]()
    contract.test_more_work_is_never_faster()
    contract.test_equal_arrays_give_bit_equal_results()
    assert [k.kind for k, *_ in contract.each()] == ["replay_insert"]


EXCUSED = {
    "pearl/testing/kernel_kind_contract.py": "runs a firing on the host",
    "devices/pearl_devices/__init__.py": "the table",
    "devices/pearl_devices/base.py": "a device whose times a cost table gives",
    "devices/pearl_devices/discover.py": "describes the CPU and the GPUs of this machine",
    "devices/pearl_devices/extras.py": "the name of an extra",
    "devices/pearl_devices/fpga/simulation.py": "the name of an extra",
    "devices/pearl_devices/system/kernel_files.py": "the name of a control group",
    "devices/pearl_devices/system/linux.py": "the name that Linux has for a core",
    "devices/pearl_devices/gpu/driver.py": "the name that torch has for the CPU",
    "devices/pearl_devices/gpu/nvml.py": "describes the GPUs of this machine",
    "estimators/pearl_estimators/host/benchmark_kernels.py": "times the kernels of the CPU",
    "estimators/pearl_estimators/host/calibrate_host.py": "null of JSON",
    "estimators/pearl_estimators/host/calibration.py": "the model of the CPU it was made on",
    "estimators/pearl_estimators/host/calibration_file.py": "the model of the CPU it was made on",
    "estimators/pearl_estimators/host/features.py": "cache sizes of the CPU",
    "estimators/pearl_estimators/host/probe.py": "the model of the CPU it was made on",
    "pearl/advice/case.py": "null of YAML",
    "pearl/solvers/first_use.py": "problems whose times are given",
    "pearl/spec/yaml_reader.py": "null of YAML",
    "pearl/testing/algorithm_contract.py": "every algorithm runs on a CPU",
    "pearl/testing/graphs.py": "problems whose times are given",
    "pearl/training/checkpoints/checkpoint.py": "null of JSON",
    "pearl/training/policy.py": "null of JSON",
    "pearl/training/checkpoints/warm_start.py": "the name that torch has for the CPU",
}
"""Files that may name a device kind → why."""


def test_a_device_kind_is_named_in_files_of_device_kinds_alone() -> None:
    """A simulated kind may bind the kernels of another one, so the files of kinds may name any."""
    paths = [ROOT / "devices" / module.replace(".", "/") for module in BACKENDS.values()]
    own = {p / "__init__.py" if p.is_dir() else p.with_suffix(".py") for p in paths}
    found: set[str] = set()
    for package in ("pearl", "devices", "estimators"):
        for file in (ROOT / package).rglob("*.py"):
            if file in own:
                continue
            named = {n.value for n in ast.walk(ast.parse(file.read_text())) if _is_text(n)}
            if named & BACKENDS.keys():
                found.add(str(file.relative_to(ROOT)))
    assert sorted(found - EXCUSED.keys()) == []
    assert sorted(EXCUSED.keys() - found) == [], "excused, but need not be"


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_a_device_of_a_kind_of_ones_own_is_asked_about(kind: Any) -> None:
    spec = kind(GOOD.replace("SIMULATED = True", "SIMULATED = False"))
    system = pearl.load(spec, set={"limits.pin": {}})
    questions = [each.question for each in pearl.explain(pearl.plan(system)).answers]
    assert re.fullmatch(r"Why is near (slower|faster) than the CPU\?", questions[0])
    assert questions[1] == "Why does near idle?"


def test_cores_of_a_simulated_device_are_no_threads(kind: Any) -> None:
    spec = kind(
        GOOD.replace('"banks"', '"cores"').replace('(("near", device.width),)', '[["near", 8]]')
    )
    limits = {**SPEC["limits"], "max_lanes": 1}
    system = pearl.load(spec, set={"limits": limits})
    assert {m.width for m in build_cost_table(*problem_of(system)).of("sample")} == {8}


def problem_of(system: pearl.System) -> Any:
    return build_graph(system), system.platform, system.limits


def test_only_kinds_of_the_hosts_estimator_are_calibrated_here(kind: Any) -> None:
    kind(GOOD)
    assert not is_calibrated_here(Device("a", "pim", real=True))
    assert is_calibrated_here(Device("a", "cpu", real=True))
    assert not is_calibrated_here(Device("a", "cpu"))
    kind(f"{GOOD}\nESTIMATE = {BACKEND_OF_CPU.ESTIMATE!r}")
    assert is_calibrated_here(Device("a", "pim", real=True))


BACKEND_OF_CPU = backend("cpu")
