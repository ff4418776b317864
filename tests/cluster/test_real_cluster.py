"""Two raylets on this machine: joined by name and token, reached from the loopback alone."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pearl.cluster import connect, nodes, on_node, timing
from tests.cluster.strangers import BLOBS, SILENT
from tests.ray_cluster import Cluster, listening, members

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


def test_two_raylets_are_two_nodes_and_each_runs_what_is_pinned_to_it(two_nodes: Cluster):
    ray = connect()
    found = nodes()
    assert [(n.name, n.address, n.cores) for n in found] == [
        ("a", "127.0.0.1", 1),
        ("b", "127.0.0.1", 1),
    ]

    @ray.remote(num_cpus=0)
    def where():
        import tests.ray_cluster as found_by_path

        return ray.get_runtime_context().get_node_id(), os.getpid(), found_by_path.__file__

    for node in found:
        asked = where.options(**on_node(node)).remote()
        node_id, pid, file = ray.get(asked, timeout=60)
        assert (node_id, file) == (node.id, str(Path(__file__).parents[1] / "ray_cluster.py"))
        assert pid in members(two_nodes.nodes[node.name].pid)


def test_nothing_of_it_listens_beyond_the_loopback(two_nodes: Cluster):
    nodes()  # workers are there
    own = [os.getpid(), *(p for n in two_nodes.nodes.values() for p in members(n.pid))]
    found = listening(own)
    assert any(address.startswith("127.0.0.1:") for _, address in found)
    assert [each for each in found if not each[1].startswith("127.0.0.1:")] == []


def test_strangers_at_its_ports_do_not_keep_messages_from_coming(two_nodes: Cluster):
    """By calls of Ray, at every port that listens, this process's among them. Who sits between two
    nodes is not kept out: that takes Ray's TLS (`docs/trust.md`)."""
    ray = connect()
    kind = ray.remote(concurrency_groups={"into": 1, "out": 1})(timing._Echo)
    actor = kind.options(num_cpus=0, **on_node(nodes()[1])).remote()
    by = timing._ByRay(ray, actor)
    own = [os.getpid(), *(p for n in two_nodes.nodes.values() for p in members(n.pid))]
    ports = sorted({int(at.rpartition(":")[2]) for _, at in listening(own)})
    strangers, said = [], [*BLOBS.values(), b""]
    for number in range(max(SILENT, len(ports) * len(said))):
        port, blob = ports[number % len(ports)], said[number // len(ports) % len(said)]
        with suppress(OSError):
            strangers.append(socket.create_connection(("127.0.0.1", port), 5.0))
            strangers[-1].sendall(blob)
    assert len(strangers) >= SILENT
    for _ in range(3):
        asked = by.asked(100_000)
        by.send(np.arange(100_000).astype(np.uint8))
        by.back(asked)
    ray.kill(actor)
    for each in strangers:
        each.close()
    assert all(node.poll() is None for node in two_nodes.nodes.values())


def test_without_the_token_it_is_refused_in_a_sentence(two_nodes: Cluster, tmp_path: Path):
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    done = subprocess.run(
        [sys.executable, "-c", "from pearl.cluster import nodes; nodes()"],
        env={**os.environ, "RAY_AUTH_TOKEN_PATH": str(wrong)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pearl.errors.SpecError: the cluster at 127.0.0.1:")
    assert "requires a token that this process does not have" in last
