"""Cached plans, so that a spec that is trained again is not planned again.

The key of a plan is a digest of its inputs: graph, platform, limits and objective of the spec, the
calibrations of this host and its GPUs, the stored times of its user code, the groups that are
skipped for now, and the sources. Keys of a spec that no plan depends on, such as `train.steps`, do
not count. A plan is not cached if some of its user code is not timed, if its search was cut short,
or if its times are to be measured again. A cached plan carries a digest of itself: this version
wrote it for this very problem, so it is not checked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.json_files import read_object
from pearl.planner.planner import plan_graph, skipping_timing_if_busy, with_lanes
from pearl.planning.estimated_costs import list_user_code
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl_devices import BACKENDS
from pearl_devices.cache_folder import cache_folder, doubts
from pearl_estimators.host import calibrator
from pearl_estimators.host.calibration import versions
from pearl_estimators.host.calibrator import MEASURED_BY
from pearl_estimators.host.timed_rows import describe_job, stored_rows

SCHEMA = 2
KEPT = 64
"""Most plans in the cache, the most recently used first. With 0 no plan is cached."""
NOTE = "remembered: made before for this graph, platform, limits and calibration"


def find_plan(problem: Problem) -> Plan:
    """Return the plan of a system that is trained at once: its cached plan, or a new one, which is
    then cached.

    Raises:
        InfeasibleError: no plan meets the limits.
    """
    with skipping_timing_if_busy(problem.spec):
        plan = load_cached_plan(problem)
        if plan is None:
            plan = plan_graph(problem)
            cache_plan(problem, plan)
        return plan


def load_cached_plan(problem: Problem) -> Plan | None:
    """Return the cached plan of the same problem, or None if there is none that is sound. Its costs
    are estimated on first use, as they would be now."""
    system, file = problem.spec, _file(problem)
    if file is None:
        return None
    try:
        if doubts(file.parent):
            return None
        stored = read_object(file, "a remembered plan")
        most = stored["max_lanes"]
        if stored != _entry(file, stored["plan"], most):
            return None
        plan = load_plan(stored["plan"])
        os.utime(file)
    except (OSError, SpecError, LookupError, TypeError):
        return None

    costing = cache(partial(copy_context().run, lambda: with_lanes(problem, most).costs))
    limits = replace(problem.limits, max_lanes=most)
    solved_problem = replace(problem, costing=costing, limits=limits)
    note = "; ".join(filter(None, (plan.note, NOTE)))
    named = {"spec_sha256": system.sha256, "host": system.platform.name}
    return replace(plan, note=note, problem=solved_problem, **named)  # type: ignore[arg-type]


def cache_plan(problem: Problem, plan: Plan) -> None:
    """Cache a plan that `plan_graph` has just made of a problem, if this is allowed."""
    solved, file = plan.problem, _file(problem)
    if solved is None or file is None or plan.status == "time_limit":
        return
    if calibrator.needs_retiming(problem.graph.kernels):
        return
    stored = _entry(file, plan.to_json(), solved.limits.max_lanes)
    with suppress(OSError):  # without write permission nothing is cached
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, json.dumps(stored, allow_nan=False).encode())
        for old in sorted(file.parent.glob("*.json"), key=_used_s, reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)


def _entry(file: Path, plan: Mapping[str, Any], max_lanes: int | None) -> dict[str, Any]:
    """The content of a cache file, with the digests of its problem and of itself."""
    content = {"schema": SCHEMA, "digest": file.stem, "max_lanes": max_lanes, "plan": plan}
    return {**content, "content": _digest(json.dumps(content).encode())}


def _used_s(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _file(problem: Problem) -> Path | None:
    """The cache file of a problem's plan; None if some input cannot be written down, or is user
    code."""
    system, platform = problem.spec, problem.spec.platform
    if not KEPT or any(device.kind not in BACKENDS for device in platform.devices):
        return None
    if any(device.host in MEASURED_BY for device in platform.devices):  # other hosts' calibrations
        return None
    folder = cache_folder()
    user_code = list_user_code(problem.graph, platform, system.limits)
    try:
        inputs = {
            "graph": _plain(problem.graph),
            "platform": _plain(platform),
            "limits": _plain(system.limits),
            "objective": system.objective,
            "evaluations": [system.train.evaluate_every, system.train.evaluate_in],
            "threads": system.train.lanes == "threads",
            "user code": [stored_rows()[describe_job(job)["key"]] for job in user_code],
            "passed": sorted(calibrator.skipped_groups().items()),
            "calibrations": {
                f.name: _digest(f.read_bytes()) for f in sorted(folder.glob("*.json"))
            },
            "versions": versions(),
            "python": sys.version,
            "sources": digest_sources(),
        }
    except (TypeError, OSError, KeyError):  # KeyError: some user code is not timed
        return None
    return folder / "plans" / f"{_digest(json.dumps(inputs).encode())}.json"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Plain data of dataclasses, in order; TypeError for anything else."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if is_dataclass(value):
        values = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return {type(value).__name__: values}
    if isinstance(value, Mapping):
        return [[_plain(k), _plain(v)] for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(each) for each in value)
    raise TypeError(f"{type(value).__name__} has no complete text form")


def digest_sources() -> str:
    """Return the digest of name, size and modification time of every file of the three packages."""
    entries = []
    for package in ("pearl", "pearl_estimators", "pearl_devices"):
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for folder, _, files in sorted(os.walk(root)):
                for name in sorted(files):
                    if name.endswith(".py"):
                        status = os.stat(os.path.join(folder, name))
                        entries.append(f"{package}/{name} {status.st_size} {status.st_mtime_ns}")
    return _digest("\n".join(entries).encode())
