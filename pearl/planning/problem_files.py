"""Problems as JSON objects: the graph, the costs and the limits that a certificate is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from typing import Any

from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Fusion, Replica, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem
from pearl_devices import Device, Kernel, Link, Platform
from pearl_devices.kernel import Module
from pearl_devices.kernels import KINDS as KERNELS
from pearl_estimators import Estimate

KINDS: tuple[type, ...] = (
    CostTable,
    Device,
    Edge,
    Estimate,
    Fusion,
    Kernel,
    Limits,
    Link,
    Mode,
    Module,
    Platform,
)
KINDS += (Replica, Task, TaskGraph)
"""Dataclasses of a problem: each is written as an object with its fields that are not default."""

FACTS = {"sources", "source", "rung", "bound_by", "parts", "low_s", "high_s", "band", "figures"}
FACTS |= {"flops", "bytes_in", "bytes_out", "interface", "evaluation"}
"""Fields that no plan's value or bound depends on; they are not written."""


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Return the graph, costs and limits as plain objects, numbers in full precision: only modes
    that the limits allow."""
    limits = problem.limits
    allowed = tuple(
        m
        for m in problem.costs.modes
        if all(
            m.device in limits.devices.get(t, (m.device,))
            and limits.pin.get(t, m.device) == m.device
            and m.variant in limits.variants.get(t, (m.variant,))
            for t in m.tasks
        )
    )
    parts = (problem.graph, replace(problem.costs, modes=allowed), limits)
    graph, costs, kept = (_plain(part) for part in parts)
    return {"graph": graph, "costs": costs, "limits": kept, "objective": problem.objective}


def digest(problem: Problem) -> str:
    """Return a hash of what `problem_to_json` writes."""
    text = json.dumps(problem_to_json(problem), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def problem_from_json(value: object, where: str = "problem") -> Problem:
    """Return the problem of an object that `problem_to_json` made.

    Raises:
        SpecError: the object is not one; the text names the place `where`.
    """
    try:
        assert isinstance(value, Mapping)
        graph, costs, limits = (_build(value[name]) for name in ("graph", "costs", "limits"))
        assert [type(p) for p in (graph, costs, limits)] == [TaskGraph, CostTable, Limits]
        return Problem(graph, costs, limits, str(value["objective"]))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecError(f"{where}: not the graph, costs and limits of a plan: {error!r}") from None


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {"map": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value if value is None or isinstance(value, str | bool) else _number(value)
    if isinstance(value, Kernel) and value.kind not in KERNELS:
        # a file that is checked elsewhere names no code of a user
        value = Kernel("unknown", resident_bytes=value.resident_bytes)
    found = {"": type(value).__name__}
    for name, empty in _written(type(value)):
        given = getattr(value, name)
        if given != empty:
            found[name] = _plain(given)
    return found


@cache
def _written(kind: Any) -> list[tuple[str, object]]:
    """Return the names and the defaults of the fields of a dataclass that are written."""
    return [
        (f.name, f.default_factory() if f.default_factory is not MISSING else f.default)
        for f in fields(kind)
        if f.name not in FACTS
    ]


def _number(value: Any) -> int | float | str:
    number: int | float = value.item() if hasattr(value, "item") else value
    return number if number not in (float("inf"), float("-inf")) else str(number)


def _build(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_build(each) for each in value)
    if value in ("inf", "-inf"):
        return float(value)
    if not isinstance(value, Mapping):
        return value
    if "map" in value:
        return {_build(k): _build(v) for k, v in value["map"]}
    kind = next(kind for kind in KINDS if kind.__name__ == value[""])
    return kind(**{name: _build(each) for name, each in value.items() if name})
