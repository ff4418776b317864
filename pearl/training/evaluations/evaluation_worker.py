"""Evaluations in a worker: a process in addition to the lanes of the plan."""

from __future__ import annotations

from time import monotonic
from typing import Any

from pearl.planning.plans import plain
from pearl.runtime.child_process import Answer, ChildProcess
from pearl.runtime.protocol.channels import SharedArrays, layout_of
from pearl.runtime.protocol.single_lane import LaneError
from pearl.spec.system import System
from pearl.training.evaluations.evaluation import Evaluation
from pearl.waits import NAMED_S, say
from pearl_devices import Buffers, platform_json
from pearl_devices.base import EnvironmentFailed

PROGRAM = "pearl.training.evaluations.process:main"

DEATHS = 3
"""Deaths of the process in one evaluation after which the run ends."""

POLL_INTERVAL_S = 0.5
"""Seconds between two checks of a process while waiting."""

SILENCE_S = 60.0
"""Seconds without a sign of life after which the process is ended (assumed)."""


class EvaluationWorker:
    """Plays one evaluation at a time in another process.

    Both processes map the parameters. If the process dies, a new one plays the same evaluation
    again, with the same parameters and seed.

    deaths: number of deaths of the process so far.
    """

    def __init__(self, system: System, judged: Buffers) -> None:
        """judged: the arrays of a policy, as `begin` takes them."""
        self._memory = SharedArrays(layout_of(judged))
        self._about = {
            "spec": plain(system.raw),
            "platform": platform_json.to_json(system.platform),
            "layout": self._memory.layout,
            "memory": self._memory.handle,
        }
        self._orders: dict[str, Any] | None = None
        self._answer: Answer | None = None
        self._heard_s, self.deaths, self._named_s = monotonic(), 0, 0.0
        self._child = self._start_child()

    def _start_child(self) -> ChildProcess:
        self._heard_s = monotonic()
        return ChildProcess(PROGRAM, [self._memory.handle], self._about, self._receive)

    def _receive(self, answer: Answer) -> None:
        self._heard_s = monotonic()
        if "alive" not in answer:
            self._answer = answer

    @property
    def playing(self) -> bool:
        """Whether there is an evaluation whose result has not been read yet."""
        return self._orders is not None

    def begin(self, judged: Buffers, episodes: int, seed: int) -> None:
        """Begin an evaluation of a copy of these parameters."""
        for name, array in self._memory.arrays.items():
            array[...] = judged[name]
        self._orders = {"episodes": episodes, "seed": seed}
        if "error" not in (self._answer or {}):  # then it could not start
            self._answer = None
        self._child.send(self._orders)

    def result(self) -> tuple[Evaluation, float]:
        """Wait for the evaluation; return it and the CPU seconds of its episodes.

        Raises:
            EnvironmentFailed: an environment failed; the worker can play again.
            LaneError: the evaluation cannot be played.
        """
        died = 0
        while self._answer is None:
            self._child.wait_for(
                lambda: self._answer is not None or self._child.is_closed, POLL_INTERVAL_S
            )
            if self._answer is None:
                died += self._restart_if_dead(died)
        answer, self._answer, self._orders = self._answer, None, None
        if "failure" in answer:
            raise EnvironmentFailed(answer["failure"])
        if "error" in answer:
            raise LaneError(f"evaluation: {answer['error']}")
        found = Evaluation(tuple(answer["returns"]), answer["cut"], answer["max_steps"])
        return found, answer["cpu_s"]

    def _restart_if_dead(self, died: int) -> bool:
        """Restart the process if it has died or is silent; return whether it was restarted.

        died: earlier deaths in this evaluation.
        """
        ended = self._child.exit_reason()
        if self._answer is not None:
            return False
        silent_s = monotonic() - self._heard_s
        if ended is None and silent_s > NAMED_S and self._named_s != self._heard_s:
            self._named_s = self._heard_s
            say(
                f"the process of evaluation, {self._child.pid}, has not answered for "
                f"{silent_s:.0f} s; after {SILENCE_S:g} s it is ended"
            )
        if ended is None and silent_s > SILENCE_S:
            self._child.kill()
            ended = f"its process {self._child.pid} gave no sign for {silent_s:.0f} s"
        if ended is None:
            return False
        if died + 1 >= DEATHS:
            raise LaneError(f"evaluation: {ended}, the {DEATHS} times that it was tried")
        self.deaths += 1
        self._child.end()
        self._child = self._start_child()
        assert self._orders is not None
        self._child.send(self._orders)
        return True

    def close(self) -> None:
        """End the process; during an evaluation, kill it."""
        if self.playing:
            self._child.kill()
        self._child.end()
        self._orders = None
