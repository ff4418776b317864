"""`platform: ray`: the running cluster as a platform of several hosts, its nodes.

Home is the node of this process. Every node says which devices it has and times its own kernels, so
that unequal nodes are unequal devices. Links between them are measured (`links`), else assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pearl.cluster import connection, links
from pearl.cluster.connection import Node
from pearl.errors import SpecError
from pearl_devices import Device, Link, Platform, discover, platform_json
from pearl_devices.hosts import of_hosts
from pearl_estimators.host import calibrator, measuring
from pearl_estimators.host.calibration import Calibration, CalibrationError, versions

NAME = "ray"
"""The platform's name, and what a spec says for it."""


def platform(carrier: str) -> Platform:
    """The devices of every node of the running cluster, and the links between them, as they are for
    what carries the messages.

    Devices of another node are driven there (`real`) if they are CPUs; a GPU there is planned for.

    Raises:
        SpecError: there is no cluster to be had, or a node differs or does not answer; with the
            remedy.
    """
    ray = connection.connect()
    here = ray.get_runtime_context().get_node_id()
    nodes = connection.nodes()
    home = next(n for n in nodes if n.id == here)
    others = [n for n in nodes if n.id != here and n.cores]
    machines = {home.name: discover.host()}
    for node, answer in zip(others, _asked(ray, others), strict=True):
        machines[node.name] = _machine(node, answer)
    calibrator.set_remote_hosts(_measuring(ray, others))
    network = [links.link(home, node, carrier) for node in others]
    return of_hosts(NAME, machines, network)


def _look() -> dict[str, Any]:
    """The devices of this node and their links as plain data, and versions that estimates and bits
    depend on."""
    found = discover.host()
    return {
        "devices": [platform_json.plain(each) for each in found.devices],
        "links": [platform_json.plain(each) for each in found.links],
        "versions": versions(),
    }


def _asked(ray: Any, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """The answers of nodes to `_look`.

    Raises:
        SpecError: a node does not answer.
    """
    look = ray.remote(_look).options
    asked = [look(num_cpus=0, max_retries=0, **connection.on_node(n)).remote() for n in nodes]
    ray.wait(asked, num_returns=len(asked), timeout=connection.answer_s()) if asked else None
    answers, problems = [], []
    for node, answer in zip(nodes, asked, strict=True):
        try:
            answers.append(ray.get(answer, timeout=0.1))
        except ray.exceptions.RayError as error:
            why = " ".join(str(error).split())[:300]
            problems.append(
                f"node {node.name} ({node.address}) does not say which devices it has: {why}; look "
                "at its load and its ports, or end Ray there: ray stop"
            )
    if problems:
        raise SpecError(*problems)
    return answers


def _machine(node: Node, answer: dict[str, Any]) -> Platform:
    """The machine of another node: of its devices those that Ray hands out."""
    ours = versions()
    for name, theirs in answer["versions"].items():
        if theirs != ours[name]:
            raise SpecError(
                f"node {node.name} ({node.address}) has {name} {theirs}, this machine "
                f"{ours[name]}: times and bits of the two would differ; install the same on both, "
                "then start Ray there anew"
            )
    found = [Device(**about) for about in answer["devices"]]
    cpu, gpus = found[0], found[1 : 1 + node.gpus]
    cores = min(cpu.width, node.cores)
    devices = [_cut(cpu, cores), *(replace(gpu, real=False) for gpu in gpus)]
    names = {d.name for d in devices}
    cables = [Link(**about) for about in answer["links"]]
    return Platform(node.name, tuple(devices), tuple(k for k in cables if {k.a, k.b} <= names))


def _cut(cpu: Device, cores: int) -> Device:
    """So many cores of a CPU."""
    if cores == cpu.width:
        return cpu
    source = f"{cores} of {cpu.width} cores, as Ray hands out there"
    share = cores / cpu.width
    return replace(
        cpu,
        width=cores,
        max_lanes=cores,
        peak_flops_per_s=share * cpu.peak_flops_per_s,
        memory_bytes_per_s=share * cpu.memory_bytes_per_s,
        sources={**cpu.sources, "width": source, "max_lanes": source},
    )


def calibrate(seconds: float, limit_s: float | None = None) -> dict[str, Calibration]:
    """Measure the machines of this node, and side by side of all others that have cores, and keep
    on each what was measured there; node, this one first → its calibration.

    seconds, limit_s: as `measuring.calibrate`.

    Raises:
        SpecError: there is no cluster to be had.
        CalibrationError: a node cannot be measured, or not within the limit.
    """
    ray = connection.connect()
    here = ray.get_runtime_context().get_node_id()
    nodes = sorted(connection.nodes(), key=lambda n: n.id != here)
    nodes = [n for n in nodes if n.cores or n.id == here]
    limit_s = measuring.limit_of(seconds) if limit_s is None else limit_s
    task = ray.remote(_forced).options
    machines = {n.address: n for n in reversed(nodes)}  # one is enough of those on one machine
    asked = {
        address: task(num_cpus=0, max_retries=0, **connection.on_node(n)).remote(seconds, limit_s)
        for address, n in machines.items()
    }
    found = {a: _given(ray, machines[a], answer, limit_s)[0] for a, answer in asked.items()}
    return {n.name: found[n.address] for n in nodes}


def _forced(seconds: float, limit_s: float) -> tuple[dict[str, Any], str]:
    try:
        return measuring.calibrate(seconds=seconds, force=True, limit_s=limit_s).to_json(), ""
    except CalibrationError as error:
        return {}, str(error)


def _calibrated(groups: Sequence[str]) -> tuple[dict[str, Any], str]:
    """`measuring.measured_calibration` of this node, as plain data."""
    found, why = measuring.measured_calibration(groups)
    return found.to_json(), why


def _measuring(ray: Any, nodes: Sequence[Node]) -> dict[str, calibrator.Measure]:
    """Node → the function that has it measured. What is asked of one is asked of all at once, so
    that they measure side by side."""
    task = ray.remote(_calibrated).options
    asked: dict[tuple[str, ...], dict[str, Any]] = {}
    limit_s = measuring.limit_of(measuring.SECONDS)

    def measure(node: Node, groups: Sequence[str]) -> tuple[Calibration, str]:
        key = tuple(groups)
        if key not in asked:
            asked[key] = {
                n.name: task(num_cpus=0, max_retries=0, **connection.on_node(n)).remote(key)
                for n in nodes
            }
        return _given(ray, node, asked[key][node.name], len(nodes) * limit_s)

    return {node.name: partial(measure, node) for node in nodes}


def _given(ray: Any, node: Node, answer: Any, limit_s: float) -> tuple[Calibration, str]:
    """What a node measured, and why it is not all.

    Raises:
        CalibrationError: it measured nothing.
    """
    where = f"node {node.name} ({node.address})"
    until_s = limit_s + connection.answer_s()
    try:
        plain, why = ray.get(answer, timeout=until_s)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(answer, force=True)
        raise CalibrationError(
            f"{where} did not finish timing its kernels within {until_s:.0f} s; run "
            "`pearl calibrate` on it"
        ) from None
    except ray.exceptions.RayError as error:
        said = " ".join(str(error).split())[:300]
        raise CalibrationError(f"{where} could not time its kernels: {said}") from None
    if not plain:
        raise CalibrationError(f"{where}: {why}")
    return Calibration.from_json(plain), why
