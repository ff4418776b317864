"""The numbers of a run for TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pearl.callbacks.extras import import_extra
from pearl.training.steering import Answer, Callback, Progress


class TensorBoard(Callback):
    """Writes scalars by env steps to the folder `path`.

    Raises:
        SpecError: tensorboard is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        import_extra("tensorboard", "tensorboard", "TensorBoard")
        self._path = Path(path)
        self._writer: Any = None  # made with the first event
        self._make: Any = import_extra("torch.utils.tensorboard", "tensorboard", "TensorBoard")

    def on_progress(self, event: Progress) -> Answer:
        self._write(event)
        return None

    def on_evaluation(self, event: Progress) -> Answer:
        self._write(event)
        return None

    def on_end(self, event: Progress) -> None:
        self._write(event)
        self._writer.close()
        self._writer = None

    def _write(self, event: Progress) -> None:
        if self._writer is None:
            self._writer = self._make.SummaryWriter(str(self._path))
        for name, number in event.numbers().items():
            self._writer.add_scalar(name, number, event.env_steps)
