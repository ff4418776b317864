"""Sweeps over the nodes of a cluster: two raylets on this machine, and a third that dies."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import pearl
from pearl.cluster import Node, connect
from pearl.errors import SpecError
from pearl.population import cluster_executor, local_executor
from pearl.population.schedulers import RunStage
from pearl_devices.system import host_system
from tests.population.test_population import Heard, alone, arrays, held
from tests.processes import HANG_S, is_run, until
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
    return [pid for pid in below if is_run(pid)]


def test_another_place_than_a_cluster_is_refused(tmp_path):
    with pytest.raises(SpecError, match="on is 'moon'; ray is needed"):
        pearl.sweep(SPEC, out=tmp_path / "sweep", on="moon")
    assert not (tmp_path / "sweep").exists()


@pytest.fixture
def node_agent(tmp_path, monkeypatch):
    """What an actor does on its node, without a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_executor.tempfile, "tempdir", str(tmp_path))
    found = cluster_executor.NodeAgent(2, str(tmp_path))
    yield found
    found._running.clear()
    found.stop()


def test_folders_that_nobody_holds_are_removed_and_held_ones_stay(
    node_agent, tmp_path, monkeypatch
):
    stale, young = tmp_path / "pearl-runs-stale", tmp_path / "pearl-runs-young"
    held = Path(node_agent.folder())
    monkeypatch.setattr(cluster_executor, "time", SimpleNamespace(time=lambda: 1060.0))
    for folder, at in ((stale, 1000), (young, 1001), (held, 0)):
        folder.mkdir(exist_ok=True)
        (folder / cluster_executor.LOCK_FILE).touch()
        os.utime(folder, (at, at))
    monkeypatch.setattr(host_system, "find_user", lambda: -1)
    cluster_executor.remove_stale()
    assert stale.exists()  # of another user
    monkeypatch.undo()
    monkeypatch.setattr(cluster_executor.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cluster_executor, "time", SimpleNamespace(time=lambda: 1060.0))
    cluster_executor.remove_stale()
    assert [f.exists() for f in (stale, young, held)] == [False, True, True]


# --- the host of a sweep, with agents that answer what the test says


class RayError(Exception):
    pass


class Late(RayError):
    pass


class Agent:
    """The actor of a node. answers: to `poll_events`, in turn; without one, it does not answer."""

    def __init__(self, ray, options):
        self.ray, self.options, self.begun, self.answers, self.last = ray, options, [], [], []
        self.waits_s = []

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self, f"_{name}"))

    def _folder(self):
        return self.ray.folders.get(self.options["node"], f"/{self.options['node']}")

    def _start(self, slot, run, arguments, tree):
        self.begun.append((slot, run, arguments, tree))

    def _poll_events(self, within_s):
        self.waits_s.append(within_s)
        return self

    def _stop(self):
        return self.last


class Ray:
    """A module `ray` whose actors are agents of the test. folders: node → its first answer."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=Late)

    def __init__(self, folders):
        self.folders, self.agents, self.killed, self.times_s = folders, {}, [], []

    def remote(self, kind):
        assert kind is cluster_executor.NodeAgent

        def options(**given):
            def make(cores, folder):
                assert (cores, folder) == (2, os.getcwd())
                return self.agents.setdefault(given["node"], Agent(self, given))

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def wait(self, answers, *, num_returns, timeout):
        assert (num_returns, timeout) == (1, cluster_executor.POLL_INTERVAL_S)
        return [a for a in answers if a.answers], []

    def get(self, answer, timeout):
        self.times_s.append(timeout)
        found = answer.answers.pop(0) if isinstance(answer, Agent) else answer
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, agent):
        self.killed.append(agent.options["node"])
        raise RayError("is gone already")


NODES = Node("a", "1", "10.0.0.1", 5, 1, 2e9), Node("b", "2", "10.0.0.2", 2, 0, 0.0)
STAGES = [RunStage(f"seed={n}", "s", {}, n, 400) for n in range(5)]


class Files:
    """The folder of a sweep, whose stages have one spec. The run "seed=4" cannot begin."""

    def __init__(self, path):
        self.path = path
        (path / "spec").write_bytes(b"spec")
        (path / "seed=0" / "below").mkdir(parents=True)
        (path / "seed=0" / "below" / "old").write_bytes(b"old")

    def log(self, run):
        return self.path / "logs" / f"{run}.log"

    def build_command(self, stage, folder):
        if stage is STAGES[4]:
            raise SpecError("cannot begin")
        return ["train", str(folder)]

    def write_inputs(self, stage):
        return (self.path / "spec",)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Makes an executor of two slots on node a and one on b. said: its events; polls: so many."""
    found = SimpleNamespace(said=[], polls=[], over=[False])

    def make(gpus=True, **folders):
        found.ray = Ray(folders)
        monkeypatch.setattr(cluster_executor, "connect", lambda: found.ray)
        monkeypatch.setattr(cluster_executor, "on_node", lambda node: {"node": node.name})
        monkeypatch.setattr(cluster_executor, "answer_s", lambda: 7.0)
        loaded = SimpleNamespace(returns={"last_eval_mean": 7.5})
        monkeypatch.setattr(local_executor, "load_run", lambda folder: loaded)

        def poll():
            found.polls.append(len(found.polls))
            found.over[0] = len(found.polls) > 20

        found.executor = cluster_executor.ClusterExecutor(
            dict(zip(NODES, (2, 1), strict=True)), 2, gpus=gpus, files=Files(tmp_path),
            interrupted=lambda: found.over[0], poll=poll, on_event=found.said.append,
        )  # fmt: skip
        found.a, found.b = (found.ray.agents[n.name] for n in NODES)
        return found.executor

    found.make = make
    return found
