"""Ctrl-C, SIGTERM and SIGHUP during a run: the run ends with its checkpoint and all its files."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from pearl_devices.system import host_system

T = TypeVar("T")

ENDING = host_system.ENDING
"""Signals that end the process. Each is raised again once the run has ended."""


LAST_S = 3.75
"""Seconds that a run has to end by itself after the second SIGTERM or SIGHUP (assumed): somewhat
longer than `watcher.LAST_S`, because the watcher can name an environment."""


class Interrupted(KeyboardInterrupt):
    """A signal that the user has sent ends what is under way."""


class Interruption:
    """The signals that a run has received.

    waits: describes the environments in other processes for which the run may be waiting.
    """

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._breaking = self._over = False
        self._numbers: tuple[int, ...] = ()
        self.waits: Callable[[], list[str]] = list

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

        The second SIGTERM or SIGHUP ends the process after `LAST_S`, with the checkpoint that the
        run has by then. While code of the user lets no Python run, `watchdog` does this.

        Raises:
            Interrupted: the second Ctrl-C, or a signal during `run_interruptibly`.
        """
        again = number == signal.SIGINT and signal.SIGINT in self._heard
        self._heard.append(number)
        if sum(self._heard.count(each) for each in ENDING) == 2:
            _thread.start_new_thread(self._end_late, (number,))
        if again or self._breaking:
            raise Interrupted

    def _end_late(self, number: int) -> None:
        """End the process if the run has not ended after LAST_S."""
        until_s = time.monotonic() + LAST_S
        while not self._over:
            if time.monotonic() > until_s:
                name = signal.Signals(number).name
                waits = "".join(f" {each} has not answered." for each in self.waits())
                text = f"pearl: the second signal was {name}, and the run has not ended, so the "
                text += f"process ends now.{waits} A checkpoint in the run's folder stays valid\n"
                os.write(2, text.encode())
                host_system.kill_self()
            time.sleep(0.05)

    def open(self, numbers: Iterable[int]) -> None:
        """Receive these signals. Call it in the main thread."""
        self._numbers = tuple(numbers)
        for number in self._numbers:
            signal.signal(number, self.handle)

    def keep_handlers(self) -> str | None:
        """Receive the signals again if other code has changed their handlers; return a sentence
        about it, else None. Call it in the thread of `open`."""
        lost = [n for n in self._numbers if signal.getsignal(n) != self.handle]
        for number in lost:
            signal.signal(number, self.handle)
        if not lost:
            return None
        names = ", ".join(signal.Signals(number).name for number in lost)
        return f"code of the user has changed what happens at {names}: set back"

    def close(self) -> None:
        """The run has ended: receive nothing more."""
        self._over, self._numbers = True, ()

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
            before[number] = handler
    found.open(before)
    try:
        yield found
    finally:
        found.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        for ending in found.ending[:1]:  # the process ends by it
            signal.raise_signal(ending)
