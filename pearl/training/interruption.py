"""Ctrl-C, SIGTERM and SIGHUP during a run: the run ends with its checkpoint and all its files."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the process. Each is raised again once the run has ended."""


class Interruption:
    """The signals that a run has received."""

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._breaking = False

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        return bool(self._heard)

    def run_interruptibly(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`; None if a signal came before `work` ended.

        A signal may end the work at any point. A second Ctrl-C raises KeyboardInterrupt.
        """
        self._breaking = True
        try:
            return None if self.requested else work()
        except KeyboardInterrupt:
            if not self.requested or self._heard.count(signal.SIGINT) > 1:
                raise
            return None
        finally:
            self._breaking = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: the second Ctrl-C, or a signal during `run_interruptibly`.
        """
        again = number == signal.SIGINT and signal.SIGINT in self._heard
        self._heard.append(number)
        if again or self._breaking:
            raise KeyboardInterrupt

    @property
    def ending(self) -> list[int]:
        """The received signals that end the process."""
        return [number for number in ENDING if number in self._heard]


@contextmanager
def interruptible(*numbers: signal.Signals) -> Iterator[Interruption]:
    """Within this context, receive signals: Ctrl-C, SIGTERM and SIGHUP by default.

    A second Ctrl-C raises KeyboardInterrupt. On exit, a received SIGTERM or SIGHUP is raised again
    with the handler from before. An ignored signal stays ignored (`nohup`). Outside the main
    thread, no signal is received.
    """
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {}
    for number in numbers or (signal.SIGINT, *ENDING):
        handler = signal.getsignal(number)
        if handler not in (signal.SIG_IGN, None):  # None: not Python's, and could not come back
            before[number] = signal.signal(number, found.handle)
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for ending in found.ending:
            signal.raise_signal(ending)
