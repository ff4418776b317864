"""One run of one library to the threshold of one case, clocked from the start of its process.

Each library is imported on use, so that this runs in the interpreter of the library it measures.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.time_to_solution.cases import Case

BEGIN = "PEARL_BENCHMARK_BEGIN_S"
"""Environment variable: the monotonic clock when the process was started."""


class Watch:
    """Notes every evaluation of a run.

    evaluations: env steps, mean return, wall and CPU seconds since the process was started.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.evaluations: list[tuple[int, float, float, float]] = []

    def solved(self, env_steps: int, mean: float) -> bool:
        """One more evaluation. Returns whether it reaches the threshold."""
        wall_s, cpu_s = time.monotonic() - float(os.environ[BEGIN]), 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            cpu_s += used.ru_utime + used.ru_stime
        self.evaluations.append((env_steps, mean, wall_s, cpu_s))
        return mean >= self.case.threshold

    def result(self) -> dict[str, Any]:
        """The last evaluation, and all of them.

        Raises:
            RuntimeError: there was none.
        """
        if not self.evaluations:
            raise RuntimeError("the run ended before its first evaluation")
        env_steps, mean, wall_s, cpu_s = self.evaluations[-1]
        return {
            "solved": mean >= self.case.threshold,
            "env_steps": env_steps,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "evaluations": self.evaluations,
        }


def ours(case: Case, seed: int) -> dict[str, Any]:
    """`pearl.compile` and `train`, as a user writes them; the spec's plan is made or remembered."""
    import pearl

    watch = Watch(case)

    class Solved(pearl.Callback):
        def on_evaluation(self, event: Any) -> Any:
            done = watch.solved(event.eval_env_steps, event.eval_mean)
            return pearl.STOP if done else None

    trainer = pearl.compile(case.ours(), seed=seed)
    trainer.train(callbacks=[Solved()])
    return watch.result() | {"lanes": sum(lane.width > 0 for lane in trainer.plan.lanes)}


def _stable(name: str) -> Callable[[Case, int], dict[str, Any]]:
    """stable-baselines3 or sbx, evaluated by the former's `evaluate_policy` in lock-step."""

    def train(case: Case, seed: int) -> dict[str, Any]:
        import gymnasium
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv

        from benchmarks.peers_trainers import stable_model

        watch = Watch(case)

        def make() -> Any:
            return Monitor(gymnasium.make(case.load.env))

        judging = DummyVecEnv([make] * case.episodes)

        class Judge(BaseCallback):
            following = case.evaluate_every

            def _on_step(self) -> bool:
                if self.num_timesteps < self.following:
                    return True
                self.following += case.evaluate_every
                judging.seed(seed)
                mean, _ = evaluate_policy(self.model, judging, case.episodes, deterministic=True)
                return not watch.solved(self.num_timesteps, float(mean))

        model = stable_model(name, case.load, seed, case.steps, make)
        model.learn(case.steps, callback=Judge())
        return watch.result()

    return train


def xla(case: Case, seed: int) -> dict[str, Any]:
    """The whole loop and the evaluation, each one XLA program."""
    import jax
    from jax import lax

    from benchmarks.peers_xla import built, greedy

    watch = Watch(case)
    body, state, per = built(case.load, seed)
    rounds = case.evaluate_every // per
    program = jax.jit(lambda s: lax.scan(body, s, None, rounds)[0], donate_argnums=0)
    judge = jax.jit(greedy(case.load, case.episodes, case.longest))
    for done in range(per * rounds, case.steps + 1, per * rounds):
        state = program(state)
        if watch.solved(done, float(judge(state, jax.random.key(seed)).mean())):
            break
    return watch.result()


RUNS: Mapping[str, Callable[[Case, int], dict[str, Any]]] = {
    "ours": ours,
    "sb3": _stable("sb3"),
    "sbx": _stable("sbx"),
    "xla": xla,
}
"""Who → a run."""
