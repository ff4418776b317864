"""Sweeps over the nodes of a cluster: two raylets on this machine, and a third that dies."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import yaml

import pearl
from pearl.cluster import connect
from pearl.errors import SpecError
from pearl.population import cluster_executor
from tests.population.test_population import Heard, alone, arrays, held
from tests.processes import HANG_S, named, until
from tests.ray_cluster import Cluster, members
from tests.schemas.test_schemas import problems

SPEC = {
    "algorithm": {"name": "q_learning", "env": "FrozenLake-v1"},
    "platform": "host",
    "limits": {"max_lanes": 1},
    "train": {
        "steps": 60_000,
        "evaluate_every": 20_000,
        "evaluate_episodes": 1,
        "final_episodes": 1,
        "checkpoint_every": 3000,
    },
}
with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


class Killer(Heard):
    """A watcher that kills a node as soon as a checkpoint of its run has come home."""

    def __init__(self, cluster, node, out, hold):
        super().__init__()
        self.cluster, self.node, self.out, self.killed = cluster, node, out, False
        self.hold = hold

    def refresh(self, rows):
        home = list(self.out.glob("seed=*/checkpoint.safetensors"))
        if not self.killed and len(home) == 3:
            self.killed = True
            self.cluster.kill(self.node)
            self.hold.unlink()


@pytest.mark.slow
@with_ray
def test_runs_of_a_node_that_dies_go_on_elsewhere_with_the_bits_of_one_alone(
    two_nodes: Cluster, tmp_path
):
    two_nodes.start("c", 1)
    out, hold = tmp_path / "sweep", tmp_path / "held"
    watcher = Killer(two_nodes, "c", out, hold)
    done = pearl.sweep(
        held(hold, SPEC, 12_000, 4000), seeds=[3, 4, 5], out=out, on="ray", watch=watcher
    )
    assert watcher.killed
    assert done.status == "done"
    assert watcher.lines[0].startswith("3 runs, 3 at once on 1 of 3 cores of 3 nodes each")
    (lost,) = [line for line in watcher.lines if line.startswith("node c (127.0.0.1) is lost: ")]
    assert lost.endswith("; a, b continue")
    (again,) = [e for e in done.history if e["event"] == "restart"]
    assert again["why"] == "node c (127.0.0.1) is lost"
    found = json.loads((out / "sweep.json").read_text())
    assert problems(found, "sweep") == []
    assert found["packing"]["hosts"] == ["a", "b", "c"]
    log = (out / "logs" / f"{again['run']}.log").read_text()
    assert log.count("$ pearl train ") == 2
    assert "--resume --trust" in log
    mine, same = arrays(out / again["run"]), alone(out, again["run"], tmp_path)
    assert mine.keys() == same.keys()
    assert all((mine[name] == same[name]).all() for name in mine)
    until(lambda: "c" not in {n["NodeName"] for n in connect().nodes() if n["Alive"]})


@pytest.mark.slow
@with_ray
def test_a_signal_brings_checkpoints_home_and_the_sweep_goes_on_here(two_nodes: Cluster, tmp_path):
    spec, out = tmp_path / "small.yaml", tmp_path / "sweep"
    spec.write_text(yaml.safe_dump(held(tmp_path / "held", SPEC, 12_000, 4000)))
    ask = ("sweep", str(spec), "--seeds", "3,4", "--out", str(out), "--on", "ray")
    process = subprocess.Popen([sys.executable, "-m", "pearl", *ask], stderr=subprocess.DEVNULL)
    first = out / "seed=3" / "checkpoint.safetensors"
    until(first.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANG_S) == -signal.SIGTERM
    assert not trains(two_nodes)
    (tmp_path / "held").unlink()
    found = json.loads((out / "sweep.json").read_text())
    assert found["status"] == "interrupted"
    assert problems(found, "sweep") == []
    cut = [run["run"] for run in found["runs"] if run["status"] == "interrupted"]
    assert cut
    assert all((out / run / "checkpoint.safetensors").exists() for run in cut)

    done = pearl.sweep(spec, seeds=[3, 4], out=out, resume=True)
    assert done.status == "done"
    mine, same = arrays(out / cut[0]), alone(out, cut[0], tmp_path)
    assert all((mine[name] == same[name]).all() for name in mine)


def trains(cluster):
    """Processes of the cluster's nodes that train."""
    below = [pid for node in cluster.nodes.values() for pid in members(node.pid)]
    return [pid for pid in below if named(pid) == "pearl train"]


def test_another_place_than_a_cluster_is_refused(tmp_path):
    with pytest.raises(SpecError, match="on is 'moon'; ray is needed"):
        pearl.sweep(SPEC, out=tmp_path / "sweep", on="moon")
    assert not (tmp_path / "sweep").exists()


@pytest.fixture
def node_agent(tmp_path, monkeypatch):
    """What an actor does on its node, without a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_executor.tempfile, "tempdir", str(tmp_path))
    found = cluster_executor.NodeAgent(1, str(tmp_path))
    yield found
    found.stop()


def test_a_run_that_cannot_begin_is_told_with_its_reason(node_agent, tmp_path):
    (tmp_path / "file").write_text("")
    node_agent.start(0, "../file/run", ["train"], {"../file/spec.yaml": b""})
    (news,) = node_agent.poll_events(1.0)
    assert news["code"] == 1
    assert b"Not a directory" in news["log"]


def test_a_checkpoint_is_told_once_with_the_files_that_changed(node_agent):
    folder = cluster_executor.Path(node_agent.folder())
    for file in ("logs/run.log", "run/spec.yaml"):
        cluster_executor.write(folder, {file: b"1"})
    process = SimpleNamespace(poll=lambda: None, send_signal=lambda _: None)
    node_agent._running[0] = cluster_executor._AgentRun("run", process)
    assert node_agent.poll_events(0.0) == []
    (folder / "run" / cluster_executor.CHECKPOINT).touch()
    (news,) = node_agent.poll_events(0.0)
    assert (news["code"], len(news["tree"]), news["log"]) == (None, 2, b"1")
    assert node_agent.poll_events(0.0) == []
    node_agent._running.clear()


def test_folders_that_nobody_holds_are_removed_and_held_ones_stay(node_agent, tmp_path):
    stale, young = tmp_path / "pearl-runs-stale", tmp_path / "pearl-runs-young"
    for folder in (stale, young):
        folder.mkdir()
        (folder / cluster_executor.LOCK_FILE).touch()
    held = cluster_executor.Path(node_agent.folder())
    for folder in (stale, held):
        os.utime(folder, (0, 0))
    cluster_executor.remove_stale()
    assert not stale.exists()
    assert young.exists()
    assert held.exists()
