"""Callbacks of a run: the event that they are told, and the answer that ends the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pearl.errors import SpecError
from pearl.planning.runs import Run, StoppedBy
from pearl_devices.validation import mistyped

if TYPE_CHECKING:
    from pearl.training.policy import Policy


class Stop(Enum):
    """The type of `STOP`."""

    STOP = "stop"


STOP: Final = Stop.STOP
"""The answer of a callback that ends the run."""

Answer = Literal[Stop.STOP] | None
Moment = Literal["on_progress", "on_evaluation", "on_checkpoint", "on_end"]
Which = Literal["last", "best"]


def _no_policy(which: Which) -> Policy:
    raise ValueError(f"this event has no policy ({which}): no run made it")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run at the moment that a callback is told of.

    env_steps, total_steps: done, and of the whole run.
    mean_return: of the last 20 training episodes; None before the first ends.
    env_steps_per_s: lately; predicted_env_steps_per_s: by the plan.
    eval_mean: of the latest evaluation; None before one.
    phase: warm-up, training or evaluation.
    iteration, updates, episodes: iterations, gradient steps and training episodes done.
    wall_s, cpu_s: of iterations, without evaluation and checkpoints.
    losses: the latest, by name.
    eval_returns, eval_env_steps: of the latest evaluation of this process: its returns, and the
        env steps after which its policy was taken.
    best_mean: of the best evaluation; None before one.
    folder: of the run; None without one.
    run: the outcome, in `on_end`; else None.
    """

    env_steps: int
    total_steps: int
    mean_return: float | None
    env_steps_per_s: float
    predicted_env_steps_per_s: float
    eval_mean: float | None
    phase: str
    iteration: int = 0
    updates: int = 0
    episodes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    losses: Mapping[str, float] = field(default_factory=dict)
    eval_returns: tuple[float, ...] = ()
    eval_env_steps: int | None = None
    best_mean: float | None = None
    folder: Path | None = None
    run: Run | None = None
    policies: Callable[[Which], Policy] = field(default=_no_policy, repr=False, compare=False)

    def numbers(self, *, absent: bool = False) -> dict[str, float]:
        """The numbers of this moment for a logger, by name; those there are none of are left out.

        absent: such are NaN instead, so that the names are always the same.
        """
        found = {
            "updates": self.updates,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "eval_mean": self.eval_mean,
            "best_mean": self.best_mean,
            "env_steps_per_s": self.env_steps_per_s,
            "predicted_env_steps_per_s": self.predicted_env_steps_per_s,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            **{f"loss_{name}": loss for name, loss in self.losses.items()},
        }
        none = {name: float("nan") for name, number in found.items() if number is None and absent}
        return none | {n: float(number) for n, number in found.items() if number is not None}

    @property
    def policy(self) -> Policy:
        """A copy of the policy without exploration: the best evaluated; before one, the first."""
        return self.policies("best")

    @property
    def policy_last(self) -> Policy:
        """A copy of the policy at this moment.

        Raises:
            ValueError: in `on_progress` of a plan with several lanes, which train on meanwhile.
        """
        return self.policies("last")


class Callback:
    """Told of a run as it goes (`Trainer.train(callbacks=[…])`). Override any of its methods.

    A method that returns `pearl.STOP` ends the run: with its checkpoint and the final evaluation,
    status `stopped`; `resume` goes on with it. An exception ends the run too, `failed` with a
    checkpoint, and is then raised. A run that goes on in another process begins with callbacks as
    they are given there.
    """

    def on_progress(self, event: Progress) -> Answer:
        """A few times a second."""
        return None

    def on_evaluation(self, event: Progress) -> Answer:
        """After each evaluation amid the run."""
        return None

    def on_checkpoint(self, event: Progress) -> Answer:
        """After each checkpoint written amid the run, in `event.folder`."""
        return None

    def on_end(self, event: Progress) -> None:
        """Once, after the last file of the run was written; `event.run` is the outcome."""


Listener = Callable[[Progress], object]


class ProgressCallback(Callback):
    """A `progress` listener. Its answer is not looked at."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def on_progress(self, event: Progress) -> Answer:
        self._listener(event)
        return None


@dataclass
class CallbackList:
    """The callbacks of a run, and their wish to end it.

    stopped: by a callback; None: by none.
    raised: the first exception of a callback.
    failure: the same in words.
    """

    callbacks: Sequence[Callback]
    stopped: StoppedBy | None = None
    raised: BaseException | None = None
    failure: str | None = None

    @staticmethod
    def from_arguments(callbacks: Sequence[Callback], progress: Listener | None) -> CallbackList:
        """Raises SpecError where one is no `Callback`."""
        needed = "a list of objects of classes that inherit pearl.Callback"
        wrong = mistyped("train: callbacks", callbacks, Sequence, needed)
        wrong += mistyped("train: progress", progress, Callable | None, "a function")  # type: ignore[arg-type]
        wrong += [
            f"train: callbacks[{n}] is {each!r}; an object of a class that inherits "
            "pearl.Callback is needed" + (" (an object, not the class)" * isinstance(each, type))
            for n, each in enumerate(() if wrong else callbacks)
            if not isinstance(each, Callback)
        ]
        if wrong:
            raise SpecError(*wrong)
        return CallbackList([*callbacks, *([ProgressCallback(progress)] if progress else [])])

    def notify(self, moment: Moment, make: Callable[[], Progress]) -> None:
        """Tell every callback; one that raises is the last to be told, but at the end."""
        if not self.callbacks or (self.raised is not None and moment != "on_end"):
            return
        event = make()
        for callback in self.callbacks:
            try:
                answer = getattr(callback, moment)(event)
                if answer is not None and (answer is not STOP or moment == "on_end"):
                    raise TypeError(f"it returned {answer!r}; None or pearl.STOP is allowed")
            except (Exception, SystemExit) as error:
                self.raised = self.raised or error
                told = f"{_said(callback, moment)} raised {type(error).__name__}: {error}"
                self.failure = self.failure or " ".join(told.split())
                if moment != "on_end":
                    return
            else:
                if answer is STOP and self.stopped is None:
                    self.stopped = StoppedBy(type(callback).__name__, event.env_steps)


def _said(callback: Callback, moment: Moment) -> str:
    listening = isinstance(callback, ProgressCallback)
    return "the progress listener" if listening else f"{type(callback).__name__}.{moment}"
