"""Callbacks of a run: the event that they get, and the answer that ends the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pearl.errors import SpecError
from pearl.planning.runs import Run, StoppedBy
from pearl_devices.validation import check_type

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
    """The state of a run when a callback is called.

    Attributes:
        env_steps: env steps done.
        total_steps: env steps of the whole run.
        mean_return: of the last 20 training episodes; None before the first ends.
        env_steps_per_s: in the last stretch.
        predicted_env_steps_per_s: by the plan.
        eval_mean: of the latest evaluation; None before one.
        phase: warm-up, training or evaluation.
        iteration: iterations done.
        updates: gradient steps done.
        episodes: training episodes done.
        wall_s: seconds of iterations, without evaluation and checkpoints.
        cpu_s: CPU-seconds of the same.
        losses: the latest, by name.
        eval_returns: returns of the latest evaluation of this process.
        eval_env_steps: env steps after which the policy of that evaluation was taken; None before
            one.
        best_mean: of the best evaluation; None before one.
        folder: of the run; None without one.
        run: the outcome, in `on_end`; else None.
        policies: returns a copy of a policy; see `policy` and `policy_last`.
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
        """Return the present numbers for a logger, by name, without numbers that do not exist.

        Args:
            absent: make such numbers NaN instead, so that the names are always the same.
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
        """A copy of the best evaluated policy without exploration; before an evaluation, the
        first policy.
        """
        return self.policies("best")

    @property
    def policy_last(self) -> Policy:
        """A copy of the policy at this moment.

        Raises:
            ValueError: in `on_progress` of a plan with several lanes, which continue to train.
        """
        return self.policies("last")


class Callback:
    """Methods that a run calls (`Trainer.train(callbacks=[…])`). Override any of them.

    A method that returns `pearl.STOP` ends the run with its checkpoint and the final evaluation;
    its status is `stopped`, and `resume` continues it. An exception ends the run as `failed`, with
    a checkpoint, and is then raised. A run that another process resumes has the callbacks that are
    given there.
    """

    def on_progress(self, event: Progress) -> Answer:
        """Called a few times a second."""
        return None

    def on_evaluation(self, event: Progress) -> Answer:
        """Called after each evaluation during training."""
        return None

    def on_checkpoint(self, event: Progress) -> Answer:
        """Called after each checkpoint during training, which is in `event.folder`."""
        return None

    def on_end(self, event: Progress) -> None:
        """Called once, after the last file of the run was written; `event.run` is the outcome."""


Listener = Callable[[Progress], object]


class ProgressCallback(Callback):
    """A `progress` listener as a callback. Its answer is ignored."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def on_progress(self, event: Progress) -> Answer:
        self._listener(event)
        return None


@dataclass
class CallbackList:
    """The callbacks of a run, and whether they want to end it.

    callbacks: in the order in which they are called.
    stopped: the callback that ended the run; None: none did.
    raised: the first exception of a callback.
    failure: a sentence about that exception.
    """

    callbacks: Sequence[Callback]
    stopped: StoppedBy | None = None
    raised: BaseException | None = None
    failure: str | None = None

    @staticmethod
    def from_arguments(callbacks: Sequence[Callback], progress: Listener | None) -> CallbackList:
        """Check the arguments `callbacks` and `progress` of `train`.

        Raises:
            SpecError: an object is no `Callback`, or `progress` is no function.
        """
        needed = "a list of objects of classes that inherit pearl.Callback"
        wrong = check_type("train: callbacks", callbacks, Sequence, needed)
        wrong += check_type("train: progress", progress, Callable | None, "a function")  # type: ignore[arg-type]
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
        """Call every callback, up to the first one that raises. At the end of a run, call all.

        A callback that returns something else than None or `pearl.STOP` counts as one that raises.
        """
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
                told = (
                    f"{_describe_source(callback, moment)} raised {type(error).__name__}: {error}"
                )
                self.failure = self.failure or " ".join(told.split())
                if moment != "on_end":
                    return
            else:
                if answer is STOP and self.stopped is None:
                    self.stopped = StoppedBy(type(callback).__name__, event.env_steps)


def _describe_source(callback: Callback, moment: Moment) -> str:
    listening = isinstance(callback, ProgressCallback)
    return "the progress listener" if listening else f"{type(callback).__name__}.{moment}"
