"""Whether the external environments of a run come back from a checkpoint, tried once in a run.

A second copy of one environment of each task repeats the actions of the running episode, in a
process of its own and while the run goes on. So the running environments, global generators and the
bits of the run are not touched. The result changes nothing but the events of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pearl.planning.replicas import resize_kernel
from pearl.runtime.environments.external_envs import FailureLog
from pearl.runtime.protocol.single_lane import Job
from pearl_devices import Kernel
from pearl_devices.primitives.envs.gym_resume import TOO_LONG

MOST_ACTIONS = 1000
"""An episode with more actions is not repeated; a later checkpoint may have a shorter one."""

NEW_EPISODES = "a resumed run begins new episodes there"


class Trial:
    """The trial of a run; close it when the run ends."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._copies: list[Any] = []
        self._over = False

    def begin(self, jobs: Sequence[Job], snapshots: Mapping[str, Any], log: FailureLog) -> None:
        """Begin the trial, unless it has begun or no episode is short enough.

        snapshots: of the checkpoint, by task (and group, after `@`).
        log: gets a sentence for each task whose environments would not come back.
        """
        if self._thread is not None or self._over:
            return
        kernels = {job.name: job.kernel for job in jobs if job.steps_external_envs}
        tried: list[tuple[Kernel, Mapping[str, Any]]] = []
        known: list[str] = []
        for name, states in snapshots.items():
            kernel = kernels.get(name.partition("@")[0])
            if kernel is None or any(kernel == other for other, _ in tried):
                continue
            what = f"environment {kernel.program!r}"
            if not any(states):
                known.append(
                    f"{what} steps {kernel.dim('envs')} in one batch, which does not give its "
                    f"state; {NEW_EPISODES}"
                )
            elif any("origin" in s and "actions" not in s for s in states):
                known.append(f"{what} cannot be brought back: {TOO_LONG}; {NEW_EPISODES}")
            elif kept := [s for s in states if 0 < _length(s) <= MOST_ACTIONS]:
                tried.append((kernel, max(kept, key=_length)))
        for text in dict.fromkeys(known):
            log.note(text, restarts=0)
        if tried or known:
            self._thread = threading.Thread(target=self._try, args=(tried, log), daemon=True)
            self._thread.start()

    def _try(self, tried: Sequence[tuple[Kernel, Mapping[str, Any]]], log: FailureLog) -> None:
        from pearl_devices.primitives.envs.gym_processes import SecondCopy

        for kernel, state in tried:
            one = resize_kernel(kernel, 1, kernel.dim("envs"))
            what = f"environment {kernel.program!r}"
            try:
                copy = SecondCopy(one)
                self._copies.append(copy)
                why = copy.bring_back(dict(state))
            except Exception as error:  # user code: a second copy may be impossible
                text = " ".join(str(error).split())
                text = f"{what}: whether it can be brought back could not be tried: {text}"
            else:
                text = f"{what} cannot be brought back: {why}; {NEW_EPISODES}" if why else ""
            if text and not self._over:
                log.note(text, restarts=0)
            with suppress(IndexError):
                self._copies.pop().close()

    def close(self) -> None:
        """End the copies; a trial that has not ended says nothing."""
        self._over = True
        with suppress(IndexError):
            self._copies.pop().close()
        if self._thread is not None:
            self._thread.join(timeout=1.0)


def _length(state: Mapping[str, Any]) -> int:
    """Return the number of actions in a snapshot; 0 without actions."""
    actions = state.get("actions")
    return int(actions["shape"][0]) if actions else 0
