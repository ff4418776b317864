"""Commands about specs (`init`, `check`, `list`, `schema`) and this machine (`devices`, …)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pearl.cli.application import DONE, FAILED, SCHEMA, Result, command
from pearl.cli.arguments import Json, Keys, Set, Spec, load_spec, overrides
from pearl.errors import SpecError
from pearl.formatting import marked
from pearl.rooms import use_room

if TYPE_CHECKING:
    from pearl_devices import Device


class Cluster(StrEnum):
    ray = auto()


ON = {Cluster.ray: "pearl.cli.cluster:calibrate_nodes"}
"""Cluster → the function that calibrates its nodes. Its room may be left out."""

DEVICE_S = 10.0
"""Seconds that timing a device takes in addition to the host."""


@command
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path(
        "pearl.yaml"
    ),
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of `pearl list algorithms`.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Environment; default: one that suits the algorithm."),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES",
            help="Write a platform file instead of a spec, for editing and for `platform: FILE`: "
            "cpu=ryzen_9_7950x,gpu=rtx_4090x2, of `pearl list devices`.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write every key with its default and its meaning.")
    ] = False,
    json_file: Json = None,
) -> Result:
    """Write a spec to start from, or a platform file."""
    from pearl.files import make_folders
    from pearl.spec.platform_template import platform_text
    from pearl.spec.template import init_text

    if platform is None:
        text, following = init_text(algorithm, env, full=full), f"pearl check {file}"
    elif algorithm or env or full:
        raise SpecError("--platform writes a platform file; leave out --algorithm, --env, --full")
    else:
        text, following = platform_text(platform), f"pearl plan SPEC platform={file}"
    make_folders(file)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise SpecError(
            f"{file}: exists already; init does not overwrite, name another file"
        ) from None
    value = {"schema": SCHEMA, "path": str(file)}
    return Result(f"wrote {file}; next: {following}", value)


@command
def check(
    spec: Spec,
    keys: Keys = None,
    imports: Annotated[
        bool,
        typer.Option("--import", help="Also import and check the code that the spec names."),
    ] = False,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Check a spec and list every problem. Does not import code that the spec names."""
    from pearl.planner.planner import check_estimates
    from pearl.runtime.environments.rehearsal import Rehearsal, rehearse
    from pearl.spec import trust
    from pearl.spec.platform_entries import count_unsourced
    from pearl.spec.reading import load_static
    from pearl.spec.system import no_learning_warning
    from pearl.spec.user_code import check_code
    from pearl.training import memory

    static = load_static(spec, set=overrides([*(keys or ()), *(set or ())]))
    unchecked = [] if imports else trust.find_named_code(static.raw)
    seen = Rehearsal()
    if imports:
        system = load_spec(spec, [*(keys or ()), *(set or ())])
        check_code(system)
        seen = rehearse(system)
        if seen.problems:
            raise SpecError(*(f"algorithm.env: {problem}" for problem in seen.problems))
    warnings, env_note = [no_learning_warning(static, None)], ""
    if not unchecked:  # else sizes of unchecked environments or networks are unknown
        system = load_spec(spec, [*(keys or ()), *(set or ())])
        check_estimates(system)
        warnings.append(memory.memory_warning(system))
        env_note = system.env.note
    notes = [note for note in (env_note, *seen.notes, count_unsourced(static.platform)) if note]
    value = {
        "schema": SCHEMA,
        "status": "valid",
        "name": static.name,
        "spec_sha256": static.sha256,
        "algorithm": static.algorithm.name,
        "env": static.algorithm.env,
        "platform": static.platform.name,
        "devices": [d.name for d in static.platform.devices],
        "objective": static.objective,
        "not_looked_at": [vars(each) for each in unchecked],
        "warnings": [warning for warning in warnings if warning],
        "notes": notes,
    }
    simulated = [d.name for d in static.platform.devices if d.simulated]
    text = (
        f"{spec}: valid: {value['algorithm']} on {value['env']}, platform {value['platform']} "
        f"({marked(', '.join(value['devices']), simulated)}), objective {value['objective']}"
    )
    lines = [f"warning: {warning}" for warning in warnings if warning]
    lines += [f"note: {note}" for note in notes]
    lines += [f"not checked: {each}: {each.unknown}" for each in unchecked]
    if unchecked:
        lines.append("to check it too: pearl check --import (this runs the code)")
    return Result("\n".join([text, *lines]), value)


class Kind(StrEnum):
    """A subject of `pearl list`."""

    algorithms = auto()
    platforms = auto()
    devices = auto()
    kinds = auto()
    methods = auto()
    policies = auto()


@command
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    json_file: Json = None,
) -> Result:
    """List what a spec may name."""
    from pearl.cli.listing import LISTS

    items = LISTS[kind]()
    width = max(len(i["name"]) for i in items)
    text = "\n".join(f"{i['name']:<{width}}  {i['summary']}" for i in items)
    return Result(text, {"schema": SCHEMA, "kind": kind.value, "items": items})


@command
def schema(json_file: Json = None) -> Result:
    """Print the JSON Schema of specs, for editors."""
    from pearl.spec.reading import json_schema

    found = json_schema()
    return Result(json.dumps(found, indent=2), found)


@command
def devices(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every GPU kernel with its CPU kernel.")
    ] = False,
    json_file: Json = None,
) -> Result:
    """Show the devices of this machine."""
    from pearl.cli.listing import runnable
    from pearl.cli.text import platform_object, platform_text, variants_text
    from pearl_devices.discover import host

    platform = host()
    variants = {d.name: runnable(d) for d in platform.devices if d.name != platform.host}
    text = [platform_text(platform), *(variants_text(name, v) for name, v in variants.items())]
    value: dict[str, Any] = {**platform_object(platform), "variants": variants, "verified": None}
    if not verify:
        return Result("\n\n".join(text), {"schema": SCHEMA, **value})
    checks = list(_seams("VERIFY"))
    if not checks:
        raise SpecError("devices --verify: this machine has no GPU, so there is nothing to verify")
    value["verified"] = {}
    for device, number, check in checks:
        print(f"verifying {device.name}", file=sys.stderr, flush=True)
        results = check(device, number)
        passed = sum(v.passed for v in results)
        text.append("\n".join(v.text for v in results))
        text.append(f"{device.name}: {passed} of {len(results)} pass")
        value["verified"][device.name] = [{**vars(v), "passed": v.passed} for v in results]
    failed = any(not v["passed"] for rows in value["verified"].values() for v in rows)
    return Result("\n\n".join(text), {"schema": SCHEMA, **value}, FAILED if failed else DONE)


@command
def calibrate(
    check: Annotated[
        bool, typer.Option("--check", help="Test the stored calibration on held-out kernels.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Target measuring time, in seconds.")
    ] = 30.0,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, help="Stop after this many seconds; default: 2 × seconds + 120."),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Measure only operator overhead, matrix products and memory bandwidth of "
            "this CPU.",
        ),
    ] = False,
    on: Annotated[
        Cluster | None,
        typer.Option(
            help="Calibrate every node of the running Ray cluster and the links between nodes."
        ),
    ] = None,
    json_file: Json = None,
) -> Result:
    """Calibrate this host: time its CPU kernels, then its GPUs."""
    if probe and (check or on is not None):
        raise SpecError("calibrate: --probe excludes --check and --on; remove them")
    if probe:
        return _probe()
    if on is not None:
        if check:
            raise SpecError("calibrate: --check is of this host alone; leave out one of the two")
        return use_room(ON[on], f"calibrate --on {on}")(seconds, time_limit)  # type: ignore[no-any-return]
    from pearl.cli.text import calibration_text, checks_text, gpu_calibration_text
    from pearl_devices import UnsupportedError
    from pearl_estimators.host import measuring
    from pearl_estimators.host.calibration_file import path

    if not check:
        print(f"measuring this host, about {seconds:.0f} s", file=sys.stderr, flush=True)
    calibration = measuring.calibrate(seconds=seconds, force=not check, limit_s=time_limit)
    value = {**calibration.to_json(), "path": str(path())}
    if not check:
        texts = [calibration_text(calibration, value["path"])]
        value["devices"] = []
        for device, number, timer in _seams("TIMER"):
            print(f"measuring {device.name}, about {DEVICE_S:g} s", file=sys.stderr, flush=True)
            try:
                timed, file = timer(device, number, DEVICE_S)
            except UnsupportedError as error:
                texts.append(f"{device.name}: not timed: {error}")
                continue
            texts.append(gpu_calibration_text(timed, str(file)))
            value["devices"].append({**timed.to_json(), "path": str(file)})
        return Result("\n\n".join(texts), value)
    rows = measuring.check(calibration)
    value["checks"] = [{**vars(row), "held": row.held} for row in rows]
    return Result(checks_text(rows), value)


def _probe() -> Result:
    from pearl.cli.text import probe_text
    from pearl_estimators.host import probe

    result, path = probe.probe(), str(probe.probe_path())
    return Result(probe_text(result, path), {"schema": SCHEMA, **result.to_json(), "path": path})


def _seams(name: str) -> Iterator[tuple[Device, int, Callable[..., Any]]]:
    """The devices of this machine whose kind has a function called `name`.

    Each with its number among the devices of its kind, and the function.
    """
    from pearl_devices import backend
    from pearl_devices.discover import host
    from pearl_devices.user_imports import import_function

    devices = host().devices
    for i, device in enumerate(devices):
        seam = getattr(backend(device.kind), name, None)
        if seam is not None:
            number = sum(d.kind == device.kind for d in devices[:i])
            yield device, number, import_function(seam) if isinstance(seam, str) else seam
