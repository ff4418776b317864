"""A run that begins where another one has got to, with options and random streams of its own."""

from __future__ import annotations

from pathlib import Path

from pearl.errors import SpecError
from pearl.planning.plans import Plan
from pearl.planning.runs import CHECKPOINT
from pearl.seeds import checked_seed
from pearl.spec.system import System
from pearl.spec.trust import record_trusted
from pearl.training.checkpoints import checkpoint
from pearl.training.checkpoints.state import RunState
from pearl.training.compiled import compile_plan
from pearl.training.session import Session


def branch(source: Path, into: Path, system: System, plan: Plan, seed: int) -> None:
    """Write to the folder `into` the checkpoint of a run of `system` that goes on from the one in
    `source`.

    Learned arrays, replay, environments and counters are those of `source`; constants that the spec
    sets, such as step sizes, are of `system`, and the random streams are of `seed`.

    Raises:
        SpecError: there is no checkpoint, or its arrays are not those of this spec and plan.
    """
    from pearl_devices.primitives.math.rng import key

    file = source / CHECKPOINT
    stored = checkpoint.load(file)
    session = Session(compile_plan(system, plan, check=True), checked_seed(seed))
    state = RunState.of(stored.about["progress"], f"{file}: progress")
    try:
        given = session.load_checkpoint(stored, state.total_steps)
    except SpecError as error:
        way = f"{file}: a run of other sizes cannot go on from here: vary options that have none"
        raise SpecError(*error.problems, way) from None
    session.seed, session.at = seed, state.iteration
    for name, array in given.items():
        session.arrays[name][...] = array
    for name, array in session.arrays.items():
        if name.startswith("rng."):
            array[0] = key(seed, name.removeprefix("rng."))
    environments = stored.about["environments"]
    session.environments = lambda: environments
    record_trusted(system.raw)
    into.mkdir(parents=True, exist_ok=True)
    session.save_run(into, state)
