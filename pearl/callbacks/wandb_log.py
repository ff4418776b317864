"""The numbers of a run for Weights & Biases (extra `wandb`)."""

from __future__ import annotations

from typing import Any

from pearl.callbacks.extras import import_extra
from pearl.training.steering import Answer, Callback, Progress


class WandB(Callback):
    """Logs to a project by `wandb.init`, `run.log` and `run.finish`.

    init: further arguments of `wandb.init` (`mode="offline"`, `name=…`).

    Raises:
        SpecError: wandb is not installed.
    """

    def __init__(self, project: str, **init: Any) -> None:
        self._wandb = import_extra("wandb", "wandb", "WandB")
        self._init = {"project": project, **init}
        self._run: Any = None  # begun with the first event

    def on_progress(self, event: Progress) -> Answer:
        self._log(event)
        return None

    def on_evaluation(self, event: Progress) -> Answer:
        self._log(event)
        return None

    def on_end(self, event: Progress) -> None:
        self._log(event)
        self._run.finish()
        self._run = None

    def _log(self, event: Progress) -> None:
        if self._run is None:
            self._run = self._wandb.init(**self._init)
        self._run.log({"env_steps": event.env_steps, **event.numbers()})
