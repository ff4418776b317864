"""The stop word (`loop.stop`): each gradient step reads it, and the next call continues an
interrupted firing.

stop[0]: not 0 if the call must return after the current gradient step; another thread sets it
during the call. stop[1]: gradient steps done of the firing; 0 between two firings. A firing gives
the same bits in several calls as in one.
"""

from __future__ import annotations

from pearl_devices.primitives.native import fast


@fast
def call_ends(stop, done, steps):
    """Return whether the call ends after `done` of the `steps` gradient steps of a firing."""
    stop[1] = done % steps
    return stop[1] == 0 or stop[0] != 0


@fast
def is_under_way(stop):
    """Return whether a firing has done some but not all of its gradient steps."""
    return stop[1] > 0
