"""Run folders and JSON files that somebody else wrote, or that were cut, edited or damaged: one of
our errors or a report, never anything else."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pearl
from pearl.errors import SpecError
from pearl.json_files import DEPTH, MOST_BYTES, read_object
from pearl.planning.metrics_file import load_metrics
from pearl.planning.plans import load_plan
from pearl.planning.runs import Drift, TaskDrift, load_run
from pearl.report.report import Report, load_report
from pearl_devices import Device, Link, Platform
from pearl_estimators.gpu import calibration
from pearl_estimators.sealed_files import CalibrationError
from tests.examples import example_run, recorded, two_device_plan

DRIFT = Drift(1e-3, 1.2e-3, 0.2, (TaskDrift("learn", 1e-3, 1e-3, 0.0),))
LINKS = (Link("a", "b", 1e-6, 1e9),)
KEPT = recorded(two_device_plan())
PLACE = Platform("p", (Device("a", memory_bytes=1e9, figures={"f": 1.0}), Device("b")), LINKS)
RUN = example_run(
    drift=DRIFT, lags={"policy_lag": {"1": 3}}, events=("x",), platform=PLACE, **KEPT
).to_json()


def ways(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in an object; of a list to its first."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ways(inner, (*at, key))
    elif isinstance(value, list) and value:
        yield from ways(value[0], (*at, 0))


JUNK = ["x", [], {}, [1], {"a": "b"}, [[[]]], None, True, -1, 0, 1e308, -1e308, 5e-324, 10**400]
JUNK += [math.nan, math.inf, "\x00<script>"]


def written(folder: Path, at: tuple[Any, ...], value: Any) -> None:
    changed = copy.deepcopy(RUN)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    (folder / "run.json").write_text(json.dumps(changed))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(at=st.sampled_from(list(ways(RUN))), value=st.sampled_from(JUNK))
def test_a_run_with_an_odd_value_is_reported_or_refused(tmp_path, at, value) -> None:
    written(tmp_path, at, value)
    try:
        report = load_report(tmp_path)
    except SpecError:
        return
    assert report.text(60)
    assert report.text(60, verbose=True)
    report.save(tmp_path / "report.html")
    report.save_trace(tmp_path / "trace.json")
    json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    json.loads(json.dumps(report.to_json(), allow_nan=False))


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (("wall_s",), "4.2", "run.json: wall_s is '4.2'; a float is needed"),
        (("wall_s",), 10**400, "run.json: wall_s is a huge number; a float is needed"),
        (("cpu_s",), [1], r"run.json: cpu_s is \[1\]; a float is needed"),
        (("cpu_s",), math.nan, "run.json: cpu_s is nan; a float is needed"),
        (("env_steps",), 1.5, "run.json: env_steps is 1.5; a int is needed"),
        (("energy_j",), "1", r"run.json: energy_j is '1'; a float \| None is needed"),
        (("steady", "wall_s"), "1", r"steady is {'wall_s': '1',.*; a Mapping\[str, float\] is ne"),
        (("returns", "eval_mean"), "9", r"returns.eval_mean is '9'; a float \| None is needed"),
        (("returns", "eval_returns"), True, "returns.eval_returns is True; a tuple"),
        (("returns",), 3, "returns is 3; an object is needed"),
        (("lags", "policy_lag"), 3, r"lags is {'policy_lag': 3}; a Mapping"),
        (("plan", "status"), "x", r"plan: status is 'x'; a Literal\['optimal', "),
        (("plan", "rates"), "x", r"plan: rates is 'x'; a Mapping\[str, float\] is needed"),
        (("plan", "bottleneck"), 3, "bottleneck: an object is needed, this is 3"),
        (("tasks",), 3, "tasks: a list is needed, this is 3"),
        (("simulated",), 1, "simulated is 1; a bool is needed"),
        (("platform",), 3, "run.json: platform: an object is needed, this is 3"),
        (("platform", "devices"), [], "platform: platform 'p' has no device"),
        (("platform", "devices", 0, "width"), 0, "device 'a': width is 0"),
        (("platform", "links", 0, "b"), 1, r"links\[0\]: b is 1; a str is needed"),
    ],
)
def test_the_key_and_the_value_are_named(tmp_path, at, value, said) -> None:
    written(tmp_path, ("wall_s",), RUN["wall_s"])
    assert load_run(tmp_path).to_json() == RUN
    written(tmp_path, at, value)
    with pytest.raises(SpecError, match=said):
        load_run(tmp_path)


def test_a_report_shows_the_devices_of_the_run_and_not_of_this_machine(tmp_path) -> None:
    written(tmp_path, ("platform", "devices", 0, "model"), "Another CPU 9000")
    system = pearl.load("dqn_cartpole", set={"platform": "host"})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(system.raw))
    shown = load_report(tmp_path).system
    assert shown is not None
    assert shown.platform == load_run(tmp_path).platform
    assert shown.platform.devices[0].model == "Another CPU 9000"
    written(tmp_path, ("platform",), None)
    assert load_report(tmp_path).system is None


def test_a_plan_without_a_proof_reads_back() -> None:
    plan = two_device_plan().to_json()
    assert load_plan({**plan, "bound_value": None}).bound_value == math.inf
    with pytest.raises(SpecError, match="key 'bound_value' is missing"):
        load_plan({k: v for k, v in plan.items() if k != "bound_value"})


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP + "]" * 100_000, DEEP, '{"schema": 1, "a": ' + DEEP])
def test_deep_json_is_one_sentence_wherever_it_is_read(tmp_path, text, monkeypatch) -> None:
    for name, read in (("run.json", load_run), ("plan.json", load_plan)):
        (tmp_path / name).write_text(text)
        with pytest.raises(SpecError, match=rf"{name}: nested deeper than {DEPTH} levels; "):
            read(tmp_path / name)
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    file = calibration.path("deep")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    with pytest.raises(CalibrationError, match="delete it, or calibrate the GPU again"):
        calibration.load_gpu("deep")


def test_json_is_read_to_its_bounds(tmp_path, monkeypatch) -> None:
    file = tmp_path / "f.json"

    def nested(depth: int) -> str:
        return '{"a":' * depth + "1" + "}" * depth

    file.write_text(nested(DEPTH))
    assert read_object(file, "hint") == json.loads(nested(DEPTH))
    file.write_text(nested(DEPTH + 1))
    with pytest.raises(SpecError, match=f"f.json: nested deeper than {DEPTH} levels"):
        read_object(file, "hint")
    monkeypatch.setattr("pearl.json_files.MOST_BYTES", 2)
    file.write_text("{}")
    assert read_object(file, "hint") == {}
    file.write_text("{} ")
    with pytest.raises(SpecError, match="larger than 2 bytes; hint"):
        read_object(file, "hint")
    for text, said in (("[]", "an object is needed, this is a list"), ("{", "not JSON: ")):
        file.write_text(text)
        with pytest.raises(SpecError, match=f"f.json: {said}.*; hint"):
            read_object(file, "hint")
    with pytest.raises(SpecError, match="cannot be read: No such file or directory; hint"):
        read_object(tmp_path / "none", "hint")
    assert MOST_BYTES > 1 << 20


CELLS = ["1e308", "-1e308", "1.7976931348623157e308", "5e-324", "1e31", "nan", "inf", "0", "-1", ""]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@example(rows=[("5e-324", "5e-324", "1e308"), ("-1", "0", "1e308"), ("0", "1", "")])
@given(rows=st.lists(st.tuples(*[st.sampled_from([*CELLS, "3"])] * 3), min_size=2, max_size=6))
def test_any_numbers_in_the_metrics_make_a_page(tmp_path, rows) -> None:
    lines = ["env_steps,mean_return_20,eval_mean", *(",".join(row) for row in rows)]
    (tmp_path / "metrics.csv").write_text("\n".join(lines))
    metrics = load_metrics(tmp_path / "metrics.csv")
    Report(two_device_plan(), metrics=metrics).save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "nan" not in page.replace("nanmean", "")
    assert "inf," not in page
