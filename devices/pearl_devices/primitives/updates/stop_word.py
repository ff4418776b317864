"""The stop word (`loop.stop`): gradient steps look at it one by one, and what a call has not done
the next one does.

stop[0]: not 0 where the call is to return after the gradient step in hand; set from outside, amid
the call. stop[1]: gradient steps of the firing that are done; 0 between two firings. A firing in
several calls computes what it computes in one.
"""

from __future__ import annotations

from pearl_devices.primitives.native import fast


@fast
def ended(stop, done, steps):
    """After `done` of the `steps` gradient steps of a firing: whether the call returns."""
    stop[1] = done % steps
    return stop[1] == 0 or stop[0] != 0


@fast
def under_way(stop):
    """Whether a firing is amid its gradient steps."""
    return stop[1] > 0
