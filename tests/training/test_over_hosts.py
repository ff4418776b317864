"""The path of `docs/cluster.md`: plan over two nodes, train, lose one of them, report. Where this
machine allows it, each node has a network of its own (`tests/networks.py`)."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import load_file

from pearl.planning.runs import load_run
from pearl.training.checkpoints import checkpoint
from pearl.training.policy import Policy
from pearl.training.trainer import CHECKPOINT
from tests.networks import allowed, two_hosts
from tests.processes import HANG_S, until
from tests.ray_cluster import ray_cluster

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
QUIET = ("train.evaluate_every=0", "train.final_episodes=2", "train.checkpoint_every=4000")
SMALL = ("algorithm.hidden=[16, 16]", "algorithm.batch_size=16", "algorithm.learning_starts=64")


def command(cluster, *words):
    found = [sys.executable, "-m", "pearl", *words]
    return cluster.hosts["a"].inside(*found) if cluster.hosts else found


def settings(*given):
    return [word for key in ("platform=ray", *SMALL, *QUIET, *given) for word in ("--set", key)]


@pytest.fixture(scope="module")
def cluster():
    with ExitStack() as entered:
        hosts = entered.enter_context(two_hosts()) if allowed() else ()
        yield entered.enter_context(ray_cluster(hosts=hosts))


def test_learners_of_two_nodes_compute_what_processes_do_by_calls_of_ray_too(cluster, tmp_path):
    options = settings(
        "limits.learners=2", "limits.distribution=data_parallel_learners", "train.steps=400"
    )
    found = []
    for lanes in ("ray", "processes"):
        folder = tmp_path / lanes
        words = command(cluster, "train", "dqn_cartpole", *options, "--out", str(folder))
        done = subprocess.run([*words, "--set", f"train.lanes={lanes}", "--set",
                               "train.carrier=ray"],
                              capture_output=True, text=True, timeout=HANG_S)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        plan = json.loads((folder / "plan.json").read_text())
        places = {t["task"]: t["device"] for t in plan["tasks"]}
        assert (places["gradient_0"], places["gradient_1"]) == ("a/cpu", "b/cpu")
        found.append((load_run(folder), load_file(folder / "checkpoint.safetensors")))
    (over, arrays), (_, alone) = found
    (traffic,) = over.traffic
    assert traffic["carrier"] == "ray"
    assert min(traffic["messages_to"], traffic["messages_from"]) > 0
    assert arrays.keys() == alone.keys()
    assert all(np.array_equal(arrays[name], alone[name]) for name in arrays)


def test_a_run_over_two_nodes_is_planned_trained_loses_a_node_and_is_reported(cluster, tmp_path):
    folder = tmp_path / "run"
    planned = subprocess.run(command(cluster, "plan", "dqn_cartpole", *settings(), "--json", "-"),
                             capture_output=True, text=True, timeout=HANG_S,
                             check=True)  # fmt: skip
    plan = json.loads(planned.stdout)
    assert {t["device"] for t in plan["tasks"]} == {"a/cpu"}  # microseconds stay on one host
    assert "host" in plan["note"]
    apart = settings("limits.distribution=synchronous_actors", "train.steps=100000000")
    words = command(cluster, "train", "dqn_cartpole", *apart, "--out", str(folder))
    trained = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def noted(restarts):
        assert trained.poll() is None, trained.communicate()[0]
        if not (folder / CHECKPOINT).exists():
            return False
        return checkpoint.load(folder / CHECKPOINT).about["progress"]["log"]["restarts"] >= restarts

    try:
        until(lambda: noted(0), "a checkpoint")
        cluster.kill("b")
        until(lambda: noted(1), "a checkpoint of the run without node b")
        trained.send_signal(signal.SIGINT)
        said, _ = trained.communicate(timeout=HANG_S)
    finally:
        trained.kill()
    assert trained.returncode == 130, said
    run = load_run(folder)
    assert (run.status, run.lost_transitions) == ("interrupted", 0)
    assert run.restarts >= 1
    assert any("on host b" in event for event in run.events)
    (traffic,) = run.traffic
    assert (traffic["host"], traffic["carrier"]) == ("b", "tcp")
    assert traffic["messages_from"] > 0
    assert Policy.load(folder, trust=True)([0.0, 0.0, 0.1, 0.0]) in (0, 1)
    reported = subprocess.run(command(cluster, "report", str(folder)), capture_output=True,
                              text=True, timeout=HANG_S, check=True)  # fmt: skip
    assert "recovered failures" in reported.stdout
