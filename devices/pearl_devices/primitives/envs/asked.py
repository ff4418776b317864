"""What environments are asked at the moment, in numbers that another process may read; and whose
fault an exception is."""

from __future__ import annotations

import signal
from array import array
from typing import cast

SINCE, NUMBER, STEP, EPISODE = range(4)
"""Places in a slot: monotonic seconds at which a call of an environment began, 0 if none is
running; number of the environment, −1 if it has none; its step; its episode.

Steps count from 1 in each episode, and 0 is its reset. Episodes count from 1: in training, over all
environments of the task, those that have ended and the one under way. In a batch, the step is that
of its first environment, if it is not known which one is meant."""

SLOT = 4
"""Numbers of a slot, float64."""


def new_slot() -> memoryview[float]:
    """Make a slot that only this process has."""
    return cast("memoryview[float]", memoryview(array("d", [0.0, -1.0, 0.0, 0.0])))


class Asked:
    """Something that calls environments, one at a time.

    slot: what it asks (see SINCE). Writing to it costs some ten nanoseconds.
    """

    def __init__(self) -> None:
        self.slot = new_slot()

    @property
    def since_s(self) -> float | None:
        """Monotonic time at which the running call of an environment began; None if none runs."""
        return self.slot[SINCE] or None

    def share(self, slot: memoryview[float]) -> None:
        """Write to `slot` from now on, which another process reads."""
        slot[:] = self.slot
        self.slot = slot


def is_fault(error: BaseException) -> bool:
    """Whether the code of an environment is at fault: it is not the user's Ctrl-C.

    PEARL's handler of Ctrl-C raises a subclass of KeyboardInterrupt, Python's own the class.
    """
    if not isinstance(error, KeyboardInterrupt):
        return True
    own = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return own and type(error) is KeyboardInterrupt
