"""`platform: ray`: the running cluster as a platform whose hosts are the nodes.

The local host is the node of this process. Every node lists its devices and times its own kernels,
so unequal nodes are unequal devices. Links between nodes are measured (`links`), else assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pearl.cluster import connection, links
from pearl.cluster.connection import Node
from pearl.cluster.transport import CARRIERS, carrier
from pearl.errors import SpecError
from pearl_devices import Device, Link, Platform, discover, platform_json
from pearl_devices.hosts import join_hosts
from pearl_estimators.host import calibrator, measuring
from pearl_estimators.host.calibration import Calibration, versions
from pearl_estimators.sealed_files import CalibrationError

NAME = "ray"
"""Name of the platform, also in a spec."""


def platform(carrier: str) -> Platform:
    """Discover the devices of every node of the running cluster, and the links between nodes.

    The CPU of another node can be trained on (`real`); a GPU of another node can only be planned.

    carrier: of the messages; each carrier has its own links.

    Raises:
        SpecError: there is no cluster, or a node differs or does not answer.
    """
    ray = connection.connect()
    local_id = ray.get_runtime_context().get_node_id()
    nodes = connection.nodes()
    home = next(n for n in nodes if n.id == local_id)
    others = [n for n in nodes if n.id != local_id and n.cores]
    machines = {home.name: discover.host()}
    for node, answer in zip(others, _inspect_nodes(ray, others), strict=True):
        machines[node.name] = _machine(node, answer)
    calibrator.set_remote_hosts(_measuring(ray, others))
    network = [links.link(home, node, carrier) for node in others]
    return join_hosts(NAME, machines, network)


def platform_by(asked: object) -> Platform:
    """Return the `platform` for the carrier that a spec asks for; the usual one if it asks for
    none that exists."""
    return platform(carrier(str(asked) if asked in CARRIERS else None))


def _inspect() -> dict[str, Any]:
    """List the devices and links of this node as plain data, with the versions that matter.

    Estimates and bits depend on these versions.
    """
    host = discover.host()
    return {
        "devices": [platform_json.plain(each) for each in host.devices],
        "links": [platform_json.plain(each) for each in host.links],
        "versions": versions(),
    }


def _inspect_nodes(ray: Any, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Collect the answers of nodes to `_inspect`.

    Raises:
        SpecError: a node does not answer.
    """
    task = ray.remote(_inspect).options
    pending = [task(num_cpus=0, max_retries=0, **connection.on_node(n)).remote() for n in nodes]
    if pending:
        with connection.naming_nodes(nodes):
            ray.wait(pending, num_returns=len(pending), timeout=connection.answer_s())
    answers, problems = [], []
    for node, answer in zip(nodes, pending, strict=True):
        try:
            answers.append(ray.get(answer, timeout=0.1))
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            problems.append(
                f"node {node.name} ({node.address}) does not list its devices: {reason}; check "
                "its load and its ports, or end Ray on it: ray stop"
            )
    if problems:
        raise SpecError(*problems)
    return answers


def _machine(node: Node, answer: dict[str, Any]) -> Platform:
    """Build the machine of another node, with the devices that Ray may allocate.

    Raises SpecError if a version differs from this machine.
    """
    ours = versions()
    for name, theirs in answer["versions"].items():
        if theirs != ours[name]:
            raise SpecError(
                f"node {node.name} ({node.address}) has {name} {theirs}, this machine "
                f"{ours[name]}: times and bits of the two would differ; install the same version "
                "on both, then restart Ray on the node"
            )
    cpu, *others = (Device(**entry) for entry in answer["devices"])
    gpus = others[: node.gpus]
    cores = min(cpu.width, node.cores)
    devices = [_take_cores(cpu, cores), *(replace(gpu, real=False) for gpu in gpus)]
    names = {d.name for d in devices}
    links = [Link(**entry) for entry in answer["links"]]
    return Platform(node.name, tuple(devices), tuple(k for k in links if {k.a, k.b} <= names))


def _take_cores(cpu: Device, cores: int) -> Device:
    """Reduce a CPU to some of its cores."""
    if cores == cpu.width:
        return cpu
    source = f"{cores} of {cpu.width} cores, as Ray allocates on this node"
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
    """Calibrate all nodes with cores in parallel; each stores its own calibration.

    Returns node → calibration, this node first.

    seconds: target of the measuring time, as in `measuring.calibrate`.
    limit_s: time limit, as in `measuring.calibrate`.

    Raises:
        SpecError: there is no cluster.
        CalibrationError: a node cannot be calibrated within the limit.
    """
    ray = connection.connect()
    local_id = ray.get_runtime_context().get_node_id()
    nodes = sorted(connection.nodes(), key=lambda n: n.id != local_id)
    nodes = [n for n in nodes if n.cores or n.id == local_id]
    limit_s = measuring.limit_of(seconds) if limit_s is None else limit_s
    task = ray.remote(_calibrate).options
    machines = {n.address: n for n in reversed(nodes)}  # one node is enough of each machine
    answers = {
        address: task(num_cpus=0, max_retries=0, **connection.on_node(n)).remote(seconds, limit_s)
        for address, n in machines.items()
    }
    calibrations = {
        a: _receive(ray, machines[a], answer, limit_s)[0] for a, answer in answers.items()
    }
    return {n.name: calibrations[n.address] for n in nodes}


def _calibrate(seconds: float, limit_s: float) -> tuple[dict[str, Any], str]:
    try:
        return measuring.calibrate(seconds=seconds, force=True, limit_s=limit_s).to_json(), ""
    except CalibrationError as error:
        return {}, str(error)


def _measure_groups(groups: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Run `measuring.measured_calibration` on this node; the calibration is plain data."""
    calibration, reason = measuring.measured_calibration(groups)
    return calibration.to_json(), reason


def _measuring(ray: Any, nodes: Sequence[Node]) -> dict[str, calibrator.Measure]:
    """Node → the function that makes the node measure.

    The first request for some groups goes to all nodes at once, so that they measure in parallel.
    """
    task = ray.remote(_measure_groups).options
    answers: dict[tuple[str, ...], dict[str, Any]] = {}
    limit_s = measuring.limit_of(measuring.SECONDS)

    def measure(node: Node, groups: Sequence[str]) -> tuple[Calibration, str]:
        key = tuple(groups)
        if key not in answers:
            answers[key] = {
                n.name: task(num_cpus=0, max_retries=0, **connection.on_node(n)).remote(key)
                for n in nodes
            }
        return _receive(ray, node, answers[key][node.name], len(nodes) * limit_s)

    return {node.name: partial(measure, node) for node in nodes}


def _receive(ray: Any, node: Node, answer: Any, limit_s: float) -> tuple[Calibration, str]:
    """Receive the calibration of a node, and the reason if it is incomplete.

    Raises:
        CalibrationError: the node measured nothing, or did not answer in time.
    """
    where = f"node {node.name} ({node.address})"
    until_s = limit_s + connection.answer_s()
    try:
        plain, reason = ray.get(answer, timeout=until_s)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(answer, force=True)
        raise CalibrationError(
            f"{where} did not finish timing its kernels within {until_s:.0f} s; run "
            "`pearl calibrate` on it"
        ) from None
    except ray.exceptions.RayError as error:
        text = " ".join(str(error).split())[:300]
        raise CalibrationError(f"{where} could not time its kernels: {text}") from None
    if not plain:
        raise CalibrationError(f"{where}: {reason}")
    return Calibration.from_json(plain), reason
