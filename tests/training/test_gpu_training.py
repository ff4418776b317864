"""Training with lanes on a GPU, the stand-in in its place: resuming, faults and errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pearl.errors import SpecError
from pearl.training.compiled import compile_plan
from pearl.training.trainer import Trainer
from pearl_devices import UnsupportedError
from pearl_devices.gpu import verify
from pearl_devices.gpu.driver import HostDriver
from tests.gpu_lanes import LEARNING, a_fault_in_the_steps, gpu_plan
from tests.lanes import differing, spread, told, trained

STEPS, EVERY = 480, 160
GRAPH = {**LEARNING, "learn": "graph"}
CUDA = {**GRAPH, "step": "cuda"}
ALL = {**CUDA, "act": "cuda", "store": "cuda", "sample": "cuda",
       "sync": "cuda"}  # fmt: skip
JUDGING = {"act": "cuda", "store": "cuda", "advantages": "cuda", "learn": "graph",
           "sync": "cuda"}  # fmt: skip
CASES = {"eager": ("dqn", LEARNING), "cuda": ("dqn", CUDA), "all": ("dqn", ALL),
         "sac": ("sac", GRAPH), "ppo": ("ppo", JUDGING)}  # fmt: skip


def made(case: str, **options: Any) -> Any:
    """System and plan of a case, with a checkpoint on the way."""
    name, on_gpu = CASES[case]
    system, plan = gpu_plan(name, on_gpu, **options)
    return told(system, checkpoint_every=EVERY), plan


class Through(dict[str, Trainer]):
    """Case → its run in one thread, from the first step to the last; made when it is asked for."""

    def __missing__(self, case: str) -> Trainer:
        self[case] = trained(*made(case), "one", steps=STEPS)
        assert self[case].run.status == "done", self[case].run.message  # type: ignore[attr-defined]
        return self[case]


@pytest.fixture(scope="module")
def through() -> Through:
    return Through()


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("case", "hosting"),
                         [("cuda", "threads"), ("cuda", "processes"), ("sac", "threads"),
                          ("ppo", "threads"), ("ppo", "processes")])  # fmt: skip
def test_kernels_in_cuda_compute_the_same_wherever_the_lanes_run(through, case, hosting):
    other = trained(*made(case), hosting, steps=STEPS)
    assert other.run.status == "done", other.run.message
    assert differing(through[case], other) == []


def killed(folder: Path, case: str, hosting: str) -> None:
    """A run in a process of its own that is ended by signal 9 after its first checkpoint."""
    text = ("import os, signal, sys\n"
            "from tests.training.test_gpu_training import STEPS, made, trained\n"
            "from pearl.training import loop\n" "loop.PROGRESS_S = 0.0\n" "def kill(now):\n"
            f"    if now.env_steps > {2 * EVERY} and os.path.exists(sys.argv[1]):\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n" "if __name__ == '__main__':\n"
            f"    trained(*made({case!r}), {hosting!r}, steps=STEPS, out={str(folder)!r},\n"
            "            progress=kill)\n")  # fmt: skip
    file = folder / "checkpoint.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", text, str(file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert file.exists()


@pytest.mark.parametrize(("case", "hosting"),
                         [("all", "one"), pytest.param("sac", "processes", marks=pytest.mark.slow),
                          pytest.param("ppo", "threads", marks=pytest.mark.slow)])  # fmt: skip
def test_a_killed_run_goes_on_and_equals_the_one_that_went_through(
    through: Any, case: str, hosting: str, tmp_path: Path
) -> None:
    killed(tmp_path, case, hosting)
    again = trained(*made(case), hosting, steps=STEPS, out=tmp_path, resume=True)
    assert again.run.status == "done", again.run.message
    assert differing(through[case], again) == []


def gone_on(folder: Path, to: Any) -> Trainer:
    """A run of `folder` gone on with by another plan."""
    system, plan = to
    trainer = Trainer._from_compiled(
        compile_plan(told(system, lanes="one"), plan), 3, plan_given=True
    )
    run = trainer.train(steps=STEPS, out=folder, resume=True)
    assert run.status == "done", run.message
    return trainer


def test_checkpoints_of_gpu_lanes_and_of_cpu_plans_are_the_same_files(through, tmp_path):
    system, on_gpu = made("eager")
    _, alone = gpu_plan("dqn", {}, {"learn": "torch"}, {"max_lanes": 1})
    on_cpu = spread(alone, {t.task: int(t.task in LEARNING) for t in alone.tasks})
    assert {t.device for t in on_cpu.tasks} == {"cpu"}
    for number, (first, second) in enumerate(((on_gpu, on_cpu), (on_cpu, on_gpu))):
        folder = tmp_path / str(number)
        trained(system, first, "one", steps=STEPS // 2, out=folder)
        assert differing(through["eager"], gone_on(folder, (system, second))) == []


def test_a_fault_in_a_cuda_source_changes_what_is_trained(through: Any, monkeypatch: Any) -> None:
    a_fault_in_the_steps(monkeypatch)
    run = trained(*made("cuda"), "one", steps=STEPS)
    assert "learner.q" in differing(through["cuda"], run)


def test_a_device_that_computes_wrongly_is_refused_before_the_first_run_on_it(
    monkeypatch: Any, tmp_path: Path
) -> None:
    a_fault_in_the_steps(monkeypatch)
    monkeypatch.setattr(verify, "cache_folder", lambda: tmp_path)
    wrong = r"device gpu: env_step cuda: \S+ differs from the CPU's by(.|\n)*limits\.pin"
    with pytest.raises(SpecError, match=wrong):
        trained(*made("cuda"), "one", steps=STEPS)


# ---------------------------------------------------------------------- errors


class AcceleratorError(RuntimeError):
    """As torch calls the error of a device that does nothing more."""


ERRORS = {
    "full": (
        torch.OutOfMemoryError("CUDA out of memory"),
        r"^cpu: kernel env_step: its memory is full, with \d+ bytes .*make the replay",
    ),
    "lost": (
        AcceleratorError("CUDA error: unspecified launch failure"),
        r"^cpu: kernel env_step: the device is lost \(CUDA error: unspecified launch failure\);"
        r" the last checkpoint is untouched: .*--resume",
    ),
}


@pytest.mark.parametrize("hosting", ["one", "threads"])
@pytest.mark.parametrize("case", ERRORS)
def test_a_device_that_fails_ends_the_run_in_a_sentence(case, hosting, monkeypatch, tmp_path):
    error, told_so = ERRORS[case]
    bound, launches = HostDriver.prepare_launch, [0]

    def failing(self: Any, *given: Any) -> Any:
        launch = bound(self, *given)

        def fail() -> None:
            launches[0] += 1
            if launches[0] > 30:
                raise error
            launch()

        return fail

    monkeypatch.setattr(HostDriver, "prepare_launch", failing)
    trainer = trained(*gpu_plan("dqn", CUDA), hosting, steps=STEPS, out=tmp_path)
    assert trainer.run.status == "failed"
    assert re.search(told_so, trainer.run.message), trainer.run.message


def test_a_run_whose_arrays_find_no_room_ends_before_it_begins(monkeypatch: Any) -> None:
    def full(*given: Any, **how: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    system, plan = gpu_plan("dqn")
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(UnsupportedError, match=r"cpu: an array of \d+ bytes: its memory is full"):
        trained(system, plan, "one", steps=STEPS)


def test_a_variant_that_a_gpu_does_not_have_is_refused_by_name() -> None:
    system, plan = gpu_plan("dqn")
    tasks = tuple(replace(t, variant="fusion") if t.task == "learn" else t for t in plan.tasks)
    wrong = r"learn runs as 'fusion' on gpu, which offers .*'eager'.*'graph'"
    with pytest.raises(SpecError, match=wrong):
        compile_plan(system, replace(plan, tasks=tasks), check=True)
