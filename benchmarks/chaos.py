"""Runs that are killed and go on: `python -m benchmarks.chaos [--seed 0] [--kills 200] [--quick]`.

Every algorithm with its lanes in one thread, in threads and in processes, and actors in any order,
are trained by `pearl train`, killed with signal 9 at moments drawn by the seed (while starting,
before the ring of the replay has wrapped, after), and go on by `--resume` until they are done. The
arrays of their last checkpoint must then be those of a run that was never killed, bit for bit; but
not in any order, nor where a worker was killed and its lane started again: there the counts must be
the same (gradient steps, random streams, cursor). In one thread the rows of metrics.csv must be the
same too. After each kill no process may be left, and after all no shared memory.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bars import ONE_THREAD, at_most, finish
from benchmarks.processes import below, is_running

ROOT = Path(__file__).parents[1]
CORES = 4
"""The plans are for so many, whatever this machine has: what is tested is no speed."""
STEPS = {
    "dqn": 60_000, "ddpg": 20_000, "td3": 20_000, "sac": 20_000, "ppo": 102_400, "a2c": 102_400,
    "q_learning": 1_000_000, "sarsa": 1_000_000,
}  # fmt: skip
"""Algorithm → env steps of a run: some seconds."""
WRAPS = 0.3
"""The ring is as long as this part of a run."""
PHASES = ("starting", "filling", "wrapped")
KILLS = 4
"""Of one run."""
GONE_S = 20.0
"""A worker that still imports when its parent dies ends so much later at most (assumed)."""
MOST_S = 300.0
"""For one process (assumed)."""
COUNTS = ("rng.", "replay.cursor", "learner.step")
"""What is the same even where transitions were lost."""


@dataclass(frozen=True)
class Case:
    """An algorithm, how its lanes are hosted, and whether actors go in any order."""

    algorithm: str
    lanes: str
    any_order: bool = False

    @property
    def name(self) -> str:
        return f"{self.algorithm} {self.lanes}{' any order' if self.any_order else ''}"

    @property
    def steps(self) -> int:
        return STEPS[self.algorithm]

    def spec(self) -> dict[str, Any]:
        acting = dict[str, Any](name=self.algorithm, env="CartPole-v1", num_envs=4)
        limits = dict[str, Any](max_lanes=1 if self.lanes == "one" else 3)
        if self.algorithm in ("q_learning", "sarsa"):
            acting["env"] = "FrozenLake-v1"
        elif self.algorithm in ("ppo", "a2c"):
            acting |= {"hidden": [16, 16], "rollout_steps": 16}
        else:
            ring = {"capacity": int(WRAPS * self.steps), "kind": "uniform"}
            if self.algorithm == "dqn":
                ring |= {"kind": "prioritised", "fanout": 8}
                acting["n_step"] = 1 if self.any_order else 3
            acting |= {"hidden": [16, 16], "batch_size": 16, "replay_ratio": "1/4"}
            acting |= {"learning_starts": 64, "replay": ring}
            limits["policy_lag"] = 2
        if self.algorithm in ("ddpg", "td3", "sac"):
            acting["env"] = "Pendulum-v1"
        if self.any_order:
            copies = {"act": 2, "step": 2}
            limits |= {"any_order": True, "replicas": copies, "policy_lag": 4}
        train = {"steps": self.steps, "lanes": self.lanes, "evaluate_every": 0}
        train |= {"final_episodes": 0, "checkpoint_every": self.steps // 16}
        return {"algorithm": acting, "platform": "host", "limits": limits, "train": train}


REPLAY = ("dqn", "ddpg", "td3", "sac")
CASES = (
    *(Case(a, "one") for a in (*REPLAY, "ppo", "a2c", "q_learning", "sarsa")),
    *(Case(a, lanes) for lanes in ("threads", "processes") for a in (*REPLAY, "ppo", "a2c")),
    *(Case(a, lanes, True) for lanes in ("threads", "processes") for a in ("dqn", "sac")),
)
QUICK = (Case("dqn", "processes"), Case("sac", "one"))


def widened() -> None:
    """This host, seen with `CORES` cores."""
    from pearl_devices.system import host_system

    host_system.usable_cpus = lambda: list(range(CORES))  # type: ignore[method-assign]


def child(arguments: list[str]) -> None:
    """The command line on that host."""
    from pearl.cli import main as pearl

    widened()
    sys.argv = ["pearl", *arguments]
    pearl()


def prepare(case: Case, folder: Path) -> None:
    """The files that a run of the case is started with: spec.yaml and plan.json."""
    import yaml

    from pearl import load, plan
    from tests.lanes import planned

    widened()
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(yaml.safe_dump(case.spec()))
    system = load(str(folder / "spec.yaml"))
    if case.lanes == "one" or case.any_order:
        found = plan(system)
    else:
        found = planned(case.spec(), cores=CORES)[1]
    found.save(folder / "plan.json")


def start(case: Case, given: Path, out: Path) -> subprocess.Popen[bytes]:
    """`pearl train`, in a group of its own; goes on where there is a run."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--child", "train"]
    command += [str(given / "spec.yaml"), "--plan", str(given / "plan.json"), "--out", str(out)]
    if out.exists():
        command.append("--resume")
    with (given / "log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | ONE_THREAD, stdout=log, stderr=log, process_group=0
        )


def steps_done(out: Path) -> int:
    """Env steps by the last whole row of metrics.csv; 0 before there is one."""
    try:
        rows = (out / "metrics.csv").read_text().splitlines()
    except OSError:
        return 0
    return next((int(n) for r in reversed(rows) if (n := r.partition(",")[0]).isdigit()), 0)


@dataclass
class Seen:
    """What befell one run. kills: (phase, who); left: processes that outlived their parent by
    `GONE_S`; wrong: in words, what is not as it must be."""

    case: str
    kills: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0
    restarts: int = 0
    wrong: list[str] = field(default_factory=list)


def killed(case: Case, given: Path, out: Path, seen: Seen, dice: random.Random, begin_s: float,
           workers: bool) -> bool:  # fmt: skip
    """Start, kill at a moment that is drawn; whether a kill came before the end. begin_s: what a
    start takes; workers: whether one of them is killed, and the run goes on by itself."""
    process, born, before = start(case, given, out), time.monotonic(), steps_done(out)
    bounds = {"filling": WRAPS * case.steps, "wrapped": 0.9 * case.steps}
    possible = [phase for phase, end in bounds.items() if before < end]
    phase = dice.choice([*possible, *(() if workers and possible else ("starting",))])
    wait_s = dice.uniform(0.05, begin_s)
    least = dice.uniform(max(before, WRAPS * case.steps), 0.9 * case.steps)
    if phase == "filling":
        least = dice.uniform(before, WRAPS * case.steps)
    try:
        while process.poll() is None:
            now, lived_s = steps_done(out), time.monotonic() - born
            if lived_s > wait_s if phase == "starting" else now > max(before, least):
                break
            time.sleep(0.002)
            if lived_s > MOST_S:
                seen.wrong.append(f"not done within {MOST_S:g} s")
                break
        else:
            return False
        others = below(process.pid)
        phase = "starting" if now <= before else PHASES[1 + (now > WRAPS * case.steps)]
        if workers:
            if not others:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(others), signal.SIGKILL)
            seen.kills.append((phase, "worker"))
            process.wait(timeout=MOST_S)
            return True
        process.kill()
        seen.kills.append((phase, "main"))
        process.wait()
        end = time.monotonic() + GONE_S
        while (alive := [p for p in others if is_running(p)]) and time.monotonic() < end:
            time.sleep(0.01)
        seen.left += len(alive)
        return True
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def finished(case: Case, given: Path, out: Path, seen: Seen) -> None:
    """Let the run go on to its end."""
    process = start(case, given, out)
    try:
        status = process.wait(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status:
        said = (given / "log").read_text(errors="replace").strip().splitlines()
        seen.wrong.append(f"exit status {status}: {said[-1] if said else ''}")


def arrays(out: Path) -> Mapping[str, Any]:
    from safetensors.numpy import load_file

    from pearl.training.trainer import CHECKPOINT
    from tests.lanes import PASSING

    found = load_file(out / CHECKPOINT)
    return {n: a for n, a in found.items() if not n.startswith(PASSING) and "@" not in n}


def history(out: Path) -> list[list[str]]:
    """The rows of metrics.csv without what is measured of time."""
    with (out / "metrics.csv").open() as file:
        rows = list(csv.reader(file))
    kept = [i for i, name in enumerate(rows[0]) if not name.endswith(("_s", "_share"))]
    return [[row[i] for i in kept] for row in rows]


def compare(case: Case, whole: Path, out: Path, seen: Seen) -> None:
    """Whether the run ended as the one that was never killed did, as far as that is promised."""
    import numpy as np

    told = json.loads((out / "run.json").read_text())
    seen.restarts = told["restarts"]
    one, other = arrays(whole), arrays(out)
    exact = not case.any_order and not seen.restarts
    if told["status"] != "done" or told["env_steps"] != case.steps:
        seen.wrong.append(f"{told['status']} after {told['env_steps']} env steps")
    if one.keys() != other.keys():
        seen.wrong.append(f"other arrays: {sorted(one.keys() ^ other.keys())}")
    for name in one.keys() & other.keys():
        random_order = case.any_order and "#" in name  # how many steps each copy makes is open
        if exact or (name.startswith(COUNTS) and not random_order):
            if not np.array_equal(one[name], other[name]):
                seen.wrong.append(f"{name} differs")
        elif one[name].dtype.kind == "f" and not np.isfinite(other[name]).all():
            seen.wrong.append(f"{name} is not finite")
    if exact and case.lanes == "one" and history(whole) != history(out):
        seen.wrong.append("metrics.csv differs")  # elsewhere a row tells where others are
    elif [r[0] for r in history(whole)] != [r[0] for r in history(out)]:
        seen.wrong.append("metrics.csv has other rows")


@dataclass
class Reference:
    """A run that was never killed. begin_s: to its first row of metrics.csv."""

    given: Path
    out: Path
    begin_s: float


def reference(case: Case, folder: Path) -> Reference:
    prepare(case, folder / "given")
    process, begin = start(case, folder / "given", folder / "whole"), time.monotonic()
    begin_s = 0.0
    while process.poll() is None and time.monotonic() - begin < MOST_S:
        if not begin_s and steps_done(folder / "whole"):
            begin_s = time.monotonic() - begin
        time.sleep(0.01)
    if process.poll() != 0:
        process.kill()
        sys.exit(f"{case.name} failed unkilled: {(folder / 'given' / 'log').read_text()[-2000:]}")
    return Reference(folder / "given", folder / "whole", begin_s)


def chaos(cases: tuple[Case, ...], kills: int, seed: int, work: Path) -> list[Seen]:
    """Runs of the cases in turn until there were so many kills."""
    dice, found = random.Random(seed), list[Seen]()
    known: dict[Case, Reference] = {}
    while sum(len(seen.kills) for seen in found) < kills:
        case = cases[len(found) % len(cases)]
        if case not in known:
            known[case] = reference(case, work / case.name.replace(" ", "_"))
        ref, seen = known[case], Seen(case.name)
        out = ref.out.with_name(f"run_{len(found)}")
        workers = case.lanes == "processes" and len(found) // len(cases) % 2 == 1
        for _ in range(KILLS):
            if not killed(case, ref.given, out, seen, dice, ref.begin_s, workers):
                break
            if workers:
                break
        finished(case, ref.given, out, seen)
        if not seen.wrong:
            compare(case, ref.out, out, seen)
        if not seen.wrong:
            shutil.rmtree(out)
        found.append(seen)
        which = ", ".join(f"{who} {phase}" for phase, who in seen.kills)
        print(f"{case.name}: {which}: {'; '.join(seen.wrong) or 'as it must be'}", flush=True)
    return found


def shown(found: list[Seen], left: list[str], json_path: str | None, values: dict[str, Any]) -> int:
    columns = ["run", *PHASES, "workers", "restarts", "wrong"]
    rows = list[list[str]]()
    for name in dict.fromkeys(seen.case for seen in found):
        these = [seen for seen in found if seen.case == name]
        phases = Counter(phase for seen in these for phase, _ in seen.kills)
        who = Counter(who for seen in these for _, who in seen.kills)
        cells = [*(phases[p] for p in PHASES), who["worker"], sum(s.restarts for s in these)]
        texts = [text for seen in these for text in seen.wrong]
        rows.append([name, *map(str, cells), "; ".join(texts) or "–"])
    kills, wrong = sum(len(s.kills) for s in found), sum(bool(s.wrong) for s in found)
    bars = [
        at_most(f"runs of {len(found)} with {kills} kills not as promised", wrong, 0, "{}"),
        at_most("processes that outlived a kill", sum(seen.left for seen in found), 0, "{}"),
        at_most("shared memory left", len(left), 0, "{}"),
    ]
    values |= {"runs": list(map(vars, found))}
    return finish("chaos", columns, rows, bars, [], json_path, values)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--child"]:
        child(given[1:])
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help=", ".join(c.name for c in QUICK))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(given)
    shared, begin = set(os.listdir("/dev/shm")), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos") as work:
        cases = QUICK if options.quick else CASES
        found = chaos(cases, options.kills, options.seed, Path(work))
    left = sorted(set(os.listdir("/dev/shm")) - shared)
    values = {"seed": options.seed, "seconds": round(time.monotonic() - begin)}
    return shown(found, left, options.json, values)


if __name__ == "__main__":
    sys.exit(main())
