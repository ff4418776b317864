"""Whole training loops: CPU only, GPU only, planned, and other libraries.

A GPU-only loop has every task that the GPU offers there, a CPU-only loop none; `planned` is what
the planner makes of both. Joules are those of the devices as NVML and RAPL count them, where they
do; a figure that is modelled is not kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pearl
from benchmarks.gpu.target import Case, Target
from pearl.spec.user_code import build_graph
from pearl.training.trainer import Trainer
from pearl_devices import offers
from pearl_estimators.energy import MODELLED, EnergyMeter, total

ENVIRONMENTS, SMALL_ENVIRONMENTS = (1024, 4096, 16_384), (8,)
RUN_S, PLAN_S, MOST_STEPS = 1.5, 2.0, 50_000_000
SMALL_STEPS = 256
WHERE = ("CPU only", "GPU only", "planned")
LIBRARY_STEPS = 20_000
ASKED = {"env_steps_per_s": 2.1, "env_steps_per_j": 3.4}
"""Figure → least ratio of ours to the best other's."""

OFF_POLICY: dict[str, Any] = {"batch_size": 256, "learning_starts": 1024, "hidden": [256, 256]}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "dqn": {"env": "CartPole-v1", **OFF_POLICY, "hidden": [64, 64], "replay_ratio": "1/64"},
    "ddpg": {"env": "Pendulum-v1", **OFF_POLICY, "replay_ratio": "1/64"},
    "sac": {"env": "Pendulum-v1", **OFF_POLICY, "replay_ratio": "1/64"},
    "ppo": {"env": "CartPole-v1", "rollout_steps": 32, "minibatches": 4, "epochs": 2},
}

COMPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("DQN", {"hidden": [64, 64], "batch_size": 64, "replay_ratio": 1}),
    "ddpg": ("DDPG", {"hidden": [256, 256], "batch_size": 256, "replay_ratio": 1}),
}
"""Algorithm → its name in the libraries, and the sizes with which both run."""


def run(target: Target) -> list[Case]:
    found = []
    for name in ALGORITHMS:
        for envs in SMALL_ENVIRONMENTS if target.stand_in else ENVIRONMENTS:
            found += [_loop(target, name, envs, where) for where in WHERE]
    for name in COMPARED:
        found += judged(target, [*_libraries(target, name), _small_loop(target, name)])
    return found


def spec(target: Target, name: str, envs: int, **more: Any) -> dict[str, Any]:
    algorithm = {"name": name, "num_envs": envs, **ALGORITHMS[name], **more}
    if "replay_ratio" in algorithm:
        algorithm["replay"] = {"kind": "uniform", "capacity": max(100_000, 8 * envs)}
    if target.stand_in:
        algorithm["hidden"] = [16, 16]
        if "replay_ratio" in algorithm:
            algorithm |= {"batch_size": 16, "learning_starts": 64, "replay_ratio": "1/8"}
            algorithm["replay"]["capacity"] = 1024
        else:
            algorithm["rollout_steps"] = 8
    quiet = {"evaluate_every": 0, "final_episodes": 0, "lanes": "one"}
    return {"algorithm": algorithm, "platform": target.platform, "train": quiet}


def pinned(target: Target, given: dict[str, Any], where: str) -> dict[str, Any]:
    """The spec with its tasks on one side, as far as that side runs them."""
    if where == "planned":
        return given
    graph = build_graph(pearl.load(given))
    on_gpu = {t.name for t in graph.tasks if offers(t.kernel, target.device)}
    moved = on_gpu if where == "GPU only" else set()
    side = {t.name: target.device.name if t.name in moved else "cpu" for t in graph.tasks}
    return {**given, "limits": {"pin": side}}


def _loop(target: Target, name: str, envs: int, where: str, **more: Any) -> Case:
    what = f"{name}, {envs} environments, {where}"
    system = pearl.load(pinned(target, spec(target, name, envs, **more), where))
    plan = pearl.plan(system, time_limit_s=PLAN_S)
    iteration = plan.problem.graph.env_steps if plan.problem else envs
    steps = SMALL_STEPS if target.stand_in else min(MOST_STEPS, int(plan.value * RUN_S))
    steps = max(steps, 8 * iteration)
    done = Trainer(system, plan).train(steps=steps)
    on_gpu = sum(task.device == target.device.name for task in plan.tasks)
    counts = {"env_steps": done.env_steps, "updates": done.updates, "tasks_on_gpu": on_gpu}
    measured = done.energy_source and "modelled" not in done.energy_source
    joules = done.energy_j if measured else None
    right = done.status == "done" and done.env_steps >= steps and done.updates > 0
    if where != "planned":
        right = right and (on_gpu > 0) == (where == "GPU only")
    return Case(
        what, right, counts,
        target.figures(
            env_steps_per_s=done.env_steps_per_s, predicted_per_s=plan.value,
            env_steps_per_j=done.env_steps / joules if joules else None,
        ),
        note=done.message or "",
    )  # fmt: skip


def counted(meter: EnergyMeter) -> float | None:
    """Joules of all devices so far; None where one of them is only modelled."""
    joules, source = total(meter.read({}))
    return None if MODELLED in source else joules


def _small_loop(target: Target, name: str) -> Case:
    """An algorithm as the libraries run it."""
    return _loop(target, name, 8, "planned", learning_starts=1000, **COMPARED[name][1])


def _libraries(target: Target, name: str) -> Iterator[Case]:
    """Those that are installed. None knows the stand-in."""
    called, sizes = COMPARED[name]
    for package in () if target.stand_in else ("stable_baselines3", "sbx"):
        try:
            library = __import__(package)
        except ImportError:
            print(f"absent: {package}")
            continue
        from stable_baselines3.common.env_util import make_vec_env

        own = {"device": str(target.driver.device)} if package == "stable_baselines3" else {}
        model = getattr(library, called)(
            "MlpPolicy", make_vec_env(ALGORITHMS[name]["env"], 8), train_freq=1, gradient_steps=8,
            learning_starts=1000, batch_size=sizes["batch_size"],
            policy_kwargs={"net_arch": sizes["hidden"]}, **own,
        )  # fmt: skip
        model.learn(2000)  # compiles, and begins to learn
        with EnergyMeter.of(target.devices) as meter:
            begin = time.perf_counter()
            model.learn(LIBRARY_STEPS, reset_num_timesteps=False)
            seconds, joules = time.perf_counter() - begin, counted(meter)
        yield Case(
            f"{package}, {called}, 8 environments", True, {"env_steps": LIBRARY_STEPS},
            target.figures(
                env_steps_per_s=LIBRARY_STEPS / seconds,
                env_steps_per_j=LIBRARY_STEPS / joules if joules else None,
            ),
        )  # fmt: skip


def judged(target: Target, cases: list[Case]) -> list[Case]:
    """With the bars of the last, ours, over the best of the others. On the stand-in, and where no
    other is here, there is nothing to judge by."""
    *others, ours = cases
    if target.stand_in or not others:
        return cases
    figures, met, asked = dict(ours.figures), ours.passed, []
    for figure, bar in ASKED.items():
        best = max(c.figures.get(figure, 0.0) for c in others)
        gain = ours.figures.get(figure, 0.0) / best if best else math.nan
        figures[f"{figure}_over_best"] = gain
        met = met and gain >= bar
        asked.append(f"{figure} >= {bar} x the best")
    return [*others, Case(ours.what, met, ours.counts, figures, ", ".join(asked), ours.note)]
