"""A run that begins at the checkpoint of another one, with other options and random streams."""

from __future__ import annotations

from pathlib import Path

from pearl import run_folder
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
    """Write a checkpoint to the folder `into` for a run of `system` that continues `source`.

    Learned arrays, replay, environments and counters come from `source`. Constants that the spec
    sets, such as step sizes, come from `system`, and the random streams from `seed`.

    Raises:
        SpecError: there is no checkpoint, or its arrays do not fit this spec and plan.
    """
    from pearl_devices.primitives.math.rng import key

    file = run_folder.file_of(source, CHECKPOINT)
    stored = checkpoint.load(file)
    session = Session(compile_plan(system, plan, check=True), checked_seed(seed))
    state = RunState.from_json(stored.about["progress"], f"{file}: progress")
    try:
        constants = session.load_checkpoint(stored, state.total_steps)
    except SpecError as error:
        way = f"{file}: a run with other sizes cannot continue from here; vary other options"
        raise SpecError(*error.problems, way) from None
    session.seed, session.at, session.state = seed, state.iteration, state
    for name, array in constants.items():
        session.arrays[name][...] = array
    for name, array in session.arrays.items():
        if name.startswith("rng."):
            array[0] = key(seed, name.removeprefix("rng."))
    environments = stored.about["environments"]
    session.environments = lambda: environments
    record_trusted(system.raw)
    into.mkdir(parents=True, exist_ok=True)
    session.save_run(into)
