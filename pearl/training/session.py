"""`Session`: the arrays and the progress of a compiled system, and their way to a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from pearl import run_folder
from pearl.algorithms import algorithm
from pearl.algorithms.environments import start_normalisation
from pearl.algorithms.evaluation import acting_if_any
from pearl.algorithms.interface import label, policy_states
from pearl.errors import SpecError
from pearl.planning.plans import plain
from pearl.planning.runs import CHECKPOINT
from pearl.runtime.protocol import channels
from pearl.spec.user_code import reporting_user_errors
from pearl.training import memory
from pearl.training.checkpoints import checkpoint, restoring
from pearl.training.checkpoints.state import RunState
from pearl.training.compiled import CompiledPlan
from pearl.training.policy import FILES, Policy
from pearl.training.steering import Which
from pearl_devices import Buffers, buffers
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.data_parallel import copy_to_learners

BEST = "best."
"""Beginning of the names of the arrays of the best policy."""


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint from which the arrays of a session come.

    stored: the file.
    environments: snapshots that restore external environments; None: these start again.
    reset: beginnings of the names of arrays that are not taken from the checkpoint.
    """

    stored: checkpoint.CheckpointFile
    environments: Mapping[str, Any] | None
    reset: tuple[str, ...] = ()

    @classmethod
    def from_file(cls, stored: checkpoint.CheckpointFile) -> ResumePoint:
        """Take environments and all arrays from the checkpoint."""
        return cls(stored, stored.about["environments"])


class Session:
    """The arrays of a compiled system as they are at some iteration of a run.

    compiled: the system and its plan.
    seed: of all random streams.
    state: progress of the run, as checkpoints store it in addition to the arrays.
    at: iterations done, including those that drained the lanes.
    resume_point: the checkpoint from which arrays and state come; None: the run has just begun.
    arrays: all of them, by name. Calls are bound to these objects, so they are never replaced.
    memory: holds the arrays if lanes run in other processes; else None.
    acting: the kernel that acts, with the kernels between it and the environments.
    environments: returns the snapshots that restore external environments.
    saved_environments: those of the last checkpoint that this session wrote.
    notes: returns sentences about the calls that last ran.
    """

    def __init__(self, compiled: CompiledPlan, seed: int) -> None:
        self.compiled, self.seed = compiled, seed
        self.environments: Callable[[], Mapping[str, Any]] = dict
        self.saved_environments: Mapping[str, Any] = {}
        self.notes: Callable[[], list[str]] = list
        self.memory: channels.SharedArrays | None = None
        self.resume_point: ResumePoint | None = None
        self.acting = acting_if_any(compiled.graph)
        self.arrays = self._allocate()
        self.start(seed)

    def _allocate(self) -> Buffers:
        """Allocate all arrays, in shared memory if lanes run in separate processes."""
        c, kernels = self.compiled, {}
        for name, job in c.jobs.items():
            origin, _ = c.replica_graph.origin(name)
            fused = len(job.tasks) > 1
            kernels[job.name if fused else origin] = (
                job.kernel if fused else c.graph.task(origin).kernel
            )
        arrays: Buffers = {}
        capacity = memory.replay_capacity(c.system)
        with memory.explaining_memory_errors(kernels.values(), capacity):
            try:
                buffers.allocate(kernels.values(), arrays)
            except ValueError as error:  # a record of the user
                raise SpecError(str(error)) from None
            for name, shape, dtype in channels.extra_arrays(c.protocol, c.graph, arrays):
                arrays[name] = np.zeros(shape, dtype)
            if c.any_order:
                arrays["any_order.acted"] = np.zeros(len(c.protocol.split.shares), np.int64)
            if c.hosting in ("processes", "ray"):
                self.memory = channels.copy_to_shared_memory(arrays)
                arrays = dict(self.memory.arrays)
        return arrays

    def start(self, seed: int, steps: int | None = None) -> None:
        """Fill all arrays as they are before the first env step of a run.

        steps: env steps of that run; None: the spec's.
        """
        from pearl_devices.primitives.math.rng import key

        arrays, system = self.arrays, self.compiled.system
        for array in arrays.values():
            array[...] = 0
        for name, array in arrays.items():
            if name.startswith("rng."):
                array[0] = key(seed, name.removeprefix("rng."))
        lasting = system if steps is None else system.with_steps(steps)
        name = system.algorithm.name
        with reporting_user_errors(system, f"algorithm.name: {name}: its initialise"):
            algorithm(name).initialise(arrays, lasting, seed)
        start_normalisation(arrays, system)
        copy_to_learners(arrays)
        for name, array in arrays.items():
            if "@" in name and not name.startswith("rng."):
                array[...] = arrays[name.partition("@")[0]]
        self.at, self.resume_point = 0, None
        self.state = RunState(total_steps=lasting.train.steps)
        for copies in (BEST, restoring.EVALUATED):
            for copy, name in self._copied(copies).items():
                arrays[copy] = arrays[name].copy()

    # ------------------------------------------------------------------ policies

    def _copied(self, copies: str) -> dict[str, str]:
        """Array of a copy of the policy → the array that training changes.

        copies: BEST, or EVALUATED of `restoring`.
        """
        states = policy_states(self.compiled.system, self.acting) if self.acting else {}
        labels = {f"{copies}{label(name)}": name for name in states}
        return {f"{copies}policy": self.compiled.policy, **labels}

    def latest_array_name(self, name: str) -> str:
        """Return the name of the array that holds the newest version of `name`."""
        return channels.latest_parameters_name(self.compiled.protocol, name, self.at)

    def mark_best(self) -> None:
        """Make the current policy the best one."""
        self._copy(BEST)

    def copy_for_evaluation(self) -> Buffers:
        """Copy the current policy to the arrays that are evaluated, and return these."""
        self._copy(restoring.EVALUATED)
        return self.evaluated_arrays

    @property
    def evaluated_arrays(self) -> Buffers:
        """The arrays of the policy that is evaluated."""
        return {copy: self.arrays[copy] for copy in self._copied(restoring.EVALUATED)}

    def mark_evaluated_best(self) -> None:
        """Make the policy that was evaluated the best one."""
        for best, judged in zip(self._copied(BEST), self._copied(restoring.EVALUATED), strict=True):
            self.arrays[best][...] = self.arrays[judged]

    def _copy(self, copies: str) -> None:
        for copy, name in self._copied(copies).items():
            self.arrays[copy][...] = self.arrays[self.latest_array_name(name)]

    def best_is_last(self) -> bool:
        """Return whether the current policy is the best one."""
        a, pairs = self.arrays, self._copied(BEST).items()
        return not any((a[b] != a[self.latest_array_name(n)]).any() for b, n in pairs)

    def policy(self, which: Which) -> Policy:
        """Return the policy over this session's own arrays."""
        if which == "best":
            return self._policy_of({n: self.arrays[c] for c, n in self._copied(BEST).items()})
        names = self._copied(BEST).values()
        return self._policy_of({n: self.arrays[self.latest_array_name(n)] for n in names})

    @property
    def evaluated_policy(self) -> Policy:
        """The policy that is evaluated."""
        copied = self._copied(restoring.EVALUATED).items()
        return self._policy_of({name: self.arrays[copy] for copy, name in copied})

    def _policy_of(self, states: Buffers) -> Policy:
        """states: the arrays of a policy, its parameters among them."""
        assert self.acting
        return Policy(self.compiled.system, self.acting, states.pop(self.compiled.policy), states)

    # ------------------------------------------------------------------ checkpoints

    def checkpoint_arrays(self, state: RunState) -> Buffers:
        """Return the arrays as a checkpoint with this state holds them.

        Those of an evaluated policy are among them only during its evaluation.
        """
        replay, judging = self.compiled.system.train.checkpoint_replay, state.judging
        views = restoring.checkpoint_views(self.arrays, self.compiled.graph, replay=replay)
        return {n: a for n, a in views.items() if judging or not n.startswith(restoring.EVALUATED)}

    def checkpoint_bytes(self) -> int:
        """Return the bytes of the arrays in a checkpoint."""
        return sum(array.nbytes for array in self.checkpoint_arrays(self.state).values())

    def save(self, path: Path, state: RunState) -> None:
        """Write the arrays and `state` to a checkpoint, atomically."""
        about = {
            "spec": plain(self.compiled.system.raw),
            "plan": self.compiled.plan.to_json(),
            "emulate": self.compiled.emulate,
            "seed": self.seed,
            "progress": plain(vars(state) | {"log": vars(state.log)}),
            "environments": self.environments(),
        }
        self.saved_environments = about["environments"]
        checkpoint.save(path, self.checkpoint_arrays(state), about)

    def save_run(self, folder: Path, pacer: checkpoint.CheckpointPacer | None = None) -> None:
        """Write both policies and the checkpoint of a run.

        Until a policy has been evaluated, the best policy is the last.

        pacer: records the time that the files took; None: nothing does.
        """
        begin_s = time.monotonic()
        if self.state.best_mean is None:
            self.mark_best()
        env_steps = self.state.iteration * self.compiled.graph.env_steps
        for which, name in FILES.items():
            policy = self.policy("best" if which == "best" else "last")
            policy.save(run_folder.clear(folder, name), which=which, env_steps=env_steps)
        self.save(run_folder.clear(folder, CHECKPOINT), self.state)
        if pacer:
            pacer.record(self.checkpoint_bytes(), time.monotonic() - begin_s)

    def load_checkpoint(
        self, stored: checkpoint.CheckpointFile, steps: int | None = None
    ) -> Buffers:
        """Check the arrays of a checkpoint, then copy them into this session.

        Return the constants of a run of `steps` env steps (None: the spec's).

        Raises:
            SpecError: a sentence for every array that does not fit.
        """
        c = self.compiled
        kernels = [t.kernel for t in c.graph.tasks if kind_of(t.kernel).structure == "insert"]
        inserted = kernels[0].dim("envs") if kernels else 1
        if c.any_order:
            inserted = gcd(*c.protocol.split.shares)
        restoring.check(stored, self.arrays, c.graph, c.system, inserted)
        self.seed = stored.about["seed"]
        self.start(self.seed, steps)
        constants = {
            name: array.copy()
            for name, array in self.arrays.items()
            if name.startswith("hyper.") or name.partition("@")[0] == "replay.beta"
        }
        restoring.restore(stored, self.arrays, c.graph)
        self.resume_point = ResumePoint.from_file(stored)
        return constants
