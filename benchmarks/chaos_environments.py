"""Environments that hang, end their process or disturb it, in every hosting of `benchmarks.chaos`.

A run of such an environment is done, or it ends with a sentence that names environment, episode and
step. One that hangs ends within `END_S` of the second SIGTERM. The last checkpoint can be read, and
no process is left.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos import CORES, GONE_S, MOST_S, Case, Seen, start, widened
from benchmarks.processes import below, is_running

BAD = "tests.runtime.bad_envs:Bad"
HANGING = ("hang", "spin", "hold")
OTHERS = ("segv", "kill", "exit", "exit0", "sysexit", "own", "handles", "folder", "handlers")
LANES = ("one", "threads", "processes")
STEPS, AT = 2000, 400
"""Env steps of a run, and the step of an environment from which it is bad."""
END_S = 5.0
"""Seconds from the second SIGTERM to the end."""
NAMED = re.compile(r"environment .*episode \d+, step \d+")


def bad_environments(work: Path) -> list[Seen]:
    """Run each kind of environment in each hosting."""
    found = []
    for lanes in LANES:
        for kind in (*HANGING, *OTHERS):
            folder = work / f"bad_{lanes}_{kind}"
            seen = Seen(f"{kind} {lanes}")
            given, out = folder / "given", folder / "run"
            case = Case("dqn", lanes)
            prepare(case, kind, given)
            run(case, kind, given, out, seen)
            said = "; ".join(seen.wrong) or "as it must be"
            print(f"environment {seen.case}: {said}", flush=True)
            if not seen.wrong:
                shutil.rmtree(folder)
            found.append(seen)
    return found


def prepare(case: Case, kind: str, given: Path) -> None:
    """Write spec.yaml and plan.json of a run with environments of this kind."""
    from tests.lanes import planned

    widened()
    given.mkdir(parents=True)
    args = {"kind": kind, "at": AT, "asked": str(given / "asked")}
    spec: dict[str, Any] = {**case.spec(), "name": "bad"}
    spec["algorithm"] |= {"env": BAD, "num_envs": 2, "env_args": args}
    spec["limits"]["variants"] = {"step": ["gymnasium"]}
    spec["train"] |= {"steps": STEPS, "checkpoint_every": 160, "calibrate_after": False}
    (given / "spec.yaml").write_text(yaml.safe_dump(spec))
    planned(spec, cores=CORES, variants=("native", "gymnasium"))[1].save(given / "plan.json")


def run(case: Case, kind: str, given: Path, out: Path, seen: Seen) -> None:
    """Train until the end, for a hanging environment by two signals."""
    process, begin_s = start(case, given, out), time.monotonic()
    others = list[int]()
    try:
        while process.poll() is None and time.monotonic() - begin_s < MOST_S:
            others = below(process.pid) or others
            if kind in HANGING and (given / "asked").exists():
                time.sleep(0.5)
                process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=END_S)
                break
            time.sleep(0.01)
        if process.poll() is None:
            seen.wrong.append("it has not ended in time")
    finally:
        process.kill()
        process.wait()
    end_s = time.monotonic() + GONE_S
    while (alive := [p for p in others if is_running(p)]) and time.monotonic() < end_s:
        time.sleep(0.01)
    seen.left += len(alive)
    check(given, out, seen)


def check(given: Path, out: Path, seen: Seen) -> None:
    """Check that the run is done or its end explained, and that its checkpoint is sound."""
    from pearl.training.checkpoints.checkpoint import load
    from pearl.training.trainer import CHECKPOINT

    said = (given / "log").read_text(errors="replace")
    file = out / "run.json"
    told = json.loads(file.read_text()) if file.exists() else {}
    if told.get("status") != "done" and not NAMED.search(f"{said} {told.get('message')}"):
        seen.wrong.append(f"no environment is named: {said[-300:]}")
    try:
        load(out / CHECKPOINT)
    except Exception as error:  # a checkpoint may be damaged in any way
        seen.wrong.append(f"the checkpoint: {error}")
