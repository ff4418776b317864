"""Ctrl-C, SIGTERM and SIGHUP during a run: it ends whole, with its checkpoint and its files."""

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
    """The signals that a run has heard."""

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._breaking = False

    @property
    def requested(self) -> bool:
        """Whether the run is to end."""
        return bool(self._heard)

    def run_interruptibly(self, work: Callable[[], T]) -> T | None:
        """The result of `work`; None where a signal came before its end.

        The work may be given up at any point. A second Ctrl-C is a KeyboardInterrupt.
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
        """The handler of the signals."""
        again = number == signal.SIGINT and signal.SIGINT in self._heard
        self._heard.append(number)
        if again or self._breaking:
            raise KeyboardInterrupt

    @property
    def ending(self) -> list[int]:
        """The signals heard that end the process."""
        return [number for number in ENDING if number in self._heard]


@contextmanager
def interruptible(*numbers: signal.Signals) -> Iterator[Interruption]:
    """Meanwhile signals are heard: Ctrl-C, SIGTERM and SIGHUP unless others are named.

    The second Ctrl-C raises KeyboardInterrupt. At the end SIGTERM or SIGHUP, where heard, is raised
    again with the handler that was there before. A signal that is ignored stays ignored (`nohup`).
    Outside the main thread nothing is heard.
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
