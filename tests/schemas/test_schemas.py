"""The JSON schemas: they are valid themselves, real objects fit them, and damaged ones do not."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from pearl import schemas
from pearl.planning.plans import Plan
from tests.examples import example_run, fused_plan, recorded, two_device_plan

SCHEMAS: dict[str, dict[str, Any]] = {
    f.name.removesuffix(".json"): json.loads(f.read_text(encoding="utf-8"))
    for f in files(schemas).iterdir()
    if f.name.endswith(".json")
}
REGISTRY: Any = Registry().with_resources(
    (s["$id"], Resource.from_contents(s)) for s in SCHEMAS.values()
)


def problems(value: Any, schema: str) -> list[str]:
    """What is wrong with `value` as an object of this schema; a value must also be strict JSON."""
    strict = json.loads(json.dumps(value, allow_nan=False))
    validator = Draft202012Validator(SCHEMAS[schema], registry=REGISTRY)
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(strict)]


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_schema_is_a_valid_schema_that_wants_its_version(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:pearl:schema:1:{name}"
    assert schema["properties"]["schema"] == {"const": 1}
    assert "schema" in schema["required"]


@pytest.mark.parametrize("plan", [two_device_plan(), fused_plan()], ids=["two", "fused"])
def test_plans_and_runs_fit_their_schemas(plan: Plan) -> None:
    assert problems(plan.to_json(), "plan") == []
    assert problems(example_run(plan).to_json(), "run") == []
    nothing = example_run(
        plan,
        status="interrupted",
        env_steps_per_s=None,
        env_steps_per_cpu_s=None,
        updates_per_s=None,
        energy_j=None,
        energy_source=None,
        returns={
            "mean_last_20": None,
            "episodes": 0,
            "eval_mean": None,
            "eval_returns": [],
            "eval_cut": 0,
            "last_eval_mean": None,
            "last_eval_returns": [],
            "last_eval_cut": 0,
            "best_is_last": None,
        },
    )
    assert problems(nothing.to_json(), "run") == []


def test_every_key_of_the_contract_is_required() -> None:
    plan = two_device_plan()
    run = example_run(plan, **recorded(plan))
    for value, schema in ((plan.to_json(), "plan"), (run.to_json(), "run")):
        for key in value:
            damaged = {k: v for k, v in value.items() if k != key}
            assert problems(damaged, schema), f"{schema} without {key} passes"
        for group in (
            "lanes",
            "calls",
            "tasks",
            "edges",
            "steady",
            "returns",
            "bottleneck",
            "rates",
        ):
            if group not in value:
                continue
            sample = value[group][0] if isinstance(value[group], list) else value[group]
            for key in sample:
                damaged = copy.deepcopy(value)
                inner = damaged[group]
                del (inner[0] if isinstance(inner, list) else inner)[key]
                assert problems(damaged, schema), f"{schema}.{group} without {key} passes"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status",), "best"),
        (("tasks", 0, "rung"), "guessed"),
        (("tasks", 0, "firings"), 0),
        (("lanes", 0, "load"), 1.5),
        (("edges", 0, "slack"), -1),
        (("bottleneck", "kind"), "luck"),
        (("period_s",), None),
        (("schema",), 2),
    ],
)
def test_wrong_values_are_refused(path: tuple[str | int, ...], value: object) -> None:
    plan = two_device_plan().to_json()
    place: Any = plan
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert problems(plan, "plan")
