"""Sweeps over the nodes of a cluster: two raylets on this machine, and a third that dies."""

import errno
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
from pearl.population.driver import StageEnd
from pearl.population.packing import RunHost
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


def no_memory(*_):
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_run_that_cannot_begin_is_told_with_its_reason(node_agent, monkeypatch):
    here = node_agent.folder()
    (Path(here) / "file").write_text("")
    node_agent.start(0, "file/run", ["train"], {"file/run/spec.yaml": b""})
    monkeypatch.setattr(cluster_executor, "start_process", no_memory)
    node_agent.start(1, "run", ["train"], {"run/spec.yaml": b""})
    no_folder, memory = node_agent.poll_events(1.0)
    log = no_folder.pop("log").decode()
    assert no_folder == {"slot": 0, "run": "file/run", "tree": {}, "code": 1}
    assert log.startswith(f"{here}/file: ")
    assert log.endswith("\n")
    log = f"{here}: {os.strerror(errno.ENOMEM)}\n".encode()
    assert memory == {"slot": 1, "run": "run", "tree": {}, "log": log, "code": 1}
    assert node_agent.poll_events(0.0) == []


def test_a_checkpoint_is_told_once_with_the_files_that_changed(node_agent, monkeypatch):
    """And the end of the run with the rest, of which nothing is told twice."""
    codes, started, log = [None] * 9, [], Path(node_agent.folder()) / "logs" / "run.log"
    process = SimpleNamespace(poll=lambda: codes.pop(0))

    def start(arguments, cores, file):
        started.append((arguments, cores, file))
        return process

    monkeypatch.setattr(cluster_executor, "start_process", start)
    node_agent._usable, folder = [3, 5, 7], Path(node_agent.folder())
    cluster_executor.write(folder, {"logs/run.log": b"of before"})
    checkpoint = f"run/{cluster_executor.CHECKPOINT}"
    tree = {checkpoint: b"0", "run/spec.yaml": b"1"}
    node_agent.start(1, "run", ["train"], tree)
    assert started == [(["train"], [3, 7], log)]
    assert not log.exists()
    log.write_bytes(b"one")
    assert node_agent.poll_events(0.0) == []  # it has the checkpoint that it began with
    (folder / "run" / "a.csv").write_bytes(b"2")
    (folder / checkpoint).write_bytes(b"00")
    event = {"slot": 1, "run": "run", "tree": {}, "log": b"one", "code": None}
    (news,) = node_agent.poll_events(0.0)
    assert list(news["tree"]) == [checkpoint, "run/a.csv"]  # no file is older than the checkpoint
    assert news == event | {"tree": {checkpoint: b"00", "run/a.csv": b"2"}}
    assert node_agent.poll_events(0.0) == []
    (folder / "run" / "a.csv").write_bytes(b"23")
    log.write_bytes(b"one two")
    codes[0] = 0
    changed = {"tree": {"run/a.csv": b"23"}, "log": b" two", "code": 0}
    assert node_agent.poll_events(0.0) == [event | changed]
    assert node_agent._running == {}


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


def news(slot, code=None, log=b"", **tree):
    return {"slot": slot, "run": "ignored", "tree": tree, "log": log, "code": code}


def test_stages_go_to_the_node_with_most_free_slots_and_their_files_come_home(cluster, tmp_path):
    executor = cluster.make()
    assert (executor.slots, cluster.ray.times_s) == (3, [7.0, 7.0])
    options = {"max_concurrency": 3, "num_cpus": 4, "num_gpus": 1, "node": "a"}
    assert cluster.a.options == options
    assert cluster.b.options == options | {"num_cpus": 2, "num_gpus": 0, "node": "b"}
    for slot in range(4):
        executor.start(slot, STAGES[slot])
    spec = {"spec": b"spec"}
    assert cluster.a.begun == [
        (0, "seed=0", ["train", "/a"], {**spec, "seed=0/below/old": b"old"}),
        (1, "seed=1", ["train", "/a"], spec),
    ]
    assert cluster.b.begun == [(0, "seed=2", ["train", "/b"], spec)]
    cluster.a.answers = [[news(1, log=b"one ", x=b"1"), news(1, 0, b"two", x=b"2")]]
    assert executor.wait() == StageEnd(1, STAGES[1], "done", 7.5)
    assert (tmp_path / "logs" / "seed=1.log").read_bytes() == b"one two"
    assert (tmp_path / "x").read_bytes() == b"2"
    assert cluster.polls == []
    cluster.b.answers = [[news(0, 2, b"why\n")]]
    why = "ended with exit status 2; last output: why"
    assert executor.wait() == StageEnd(2, STAGES[2], "failed", None, why)
    assert cluster.a.begun[2:] == [(1, "seed=3", ["train", "/a"], spec)]
    executor.start(3, STAGES[4])
    assert executor.wait() == StageEnd(3, STAGES[4], "failed", None, "cannot begin")
    assert (cluster.a.waits_s, cluster.b.waits_s) == ([1.0, 1.0], [1.0])
    assert cluster.said == []


def test_the_stages_of_a_lost_node_die_and_with_the_last_node_all_do(cluster):
    executor = cluster.make(gpus=False)
    assert cluster.a.options["num_gpus"] == 0
    for slot in range(4):
        executor.start(slot, STAGES[slot])
    cluster.b.answers = [RayError("the raylet\n is gone")]
    lost = "node b (10.0.0.2) is lost"
    assert executor.wait() == StageEnd(2, STAGES[2], "died", None, lost)
    cluster.a.answers = [RayError("too")]
    lost = "node a (10.0.0.1) is lost"
    assert executor.wait() == StageEnd(0, STAGES[0], "died", None, lost)
    assert executor.wait() == StageEnd(1, STAGES[1], "died", None, lost)
    none = "no node is left to run on"
    assert executor.wait() == StageEnd(3, STAGES[3], "died", None, none)
    assert cluster.said == [
        "node b (10.0.0.2) is lost: the raylet is gone; a continues",
        "node a (10.0.0.1) is lost: too; no node continues",
    ]
    assert cluster.ray.killed == ["b", "a"]
    assert executor.wait() is None
    assert len(cluster.polls) == 21


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            Late(),
            r"node b \(10.0.0.2\) provides no 1 slots within 7 s; other programs use its 2 cores",
        ),
        (RayError("actor\ndied"), r"^node b \(10.0.0.2\): actor died$"),
    ],
)
def test_a_node_that_cannot_begin_is_named_and_all_actors_end(cluster, answer, why):
    with pytest.raises(SpecError, match=why):
        cluster.make(b=answer)
    assert cluster.ray.killed == ["a", "b"]


def test_nodes_are_hosts_of_runs():
    assert cluster_executor.run_hosts(NODES) == (
        RunHost("a", (0, 1, 2, 3, 4), 2e9, gpus=True),
        RunHost("b", (0, 1), None, gpus=False),
    )
