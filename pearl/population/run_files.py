"""Specs, plans and run folders of a population, and the command of each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from pearl.files import make_folders, write_atomically
from pearl.json_files import read_object
from pearl.planning.plans import load_plan, plain
from pearl.planning.runs import CHECKPOINT, SPEC_MARK
from pearl.population.packing import Planner
from pearl.population.schedulers import RunStage
from pearl.spec.system import System
from pearl.training.checkpoints import branching


class Files:
    """The folder of a population.

    folder: None where nothing is to be written.
    systems: setting → its system. load: makes that of a setting which a tournament comes to.
    plans: setting → the file of its plan in the folder, once it is there.
    """

    def __init__(
        self,
        folder: Path | None,
        planner: Planner,
        systems: Mapping[str, System],
        load: Callable[[Mapping[str, object]], System],
    ) -> None:
        self._folder, self._planner, self._load = folder, planner, load
        self._systems = dict(systems)
        self._written: dict[str, tuple[Path, Path]] = {}
        self.plans: dict[str, str] = {}

    def system(self, stretch: RunStage) -> System:
        """The system of a stretch."""
        if stretch.setting not in self._systems:
            self._systems[stretch.setting] = self._load(stretch.values)
        return self._systems[stretch.setting]

    def of(self, stretch: RunStage) -> tuple[Path, Path]:
        """The files of a stretch's spec and plan, written where they are not there yet."""
        if stretch.setting not in self._written:
            self._written[stretch.setting] = self._write(stretch)
        return self._written[stretch.setting]

    def _write(self, stretch: RunStage) -> tuple[Path, Path]:
        assert self._folder is not None
        system = self.system(stretch)
        spec = self._folder / "specs" / f"{stretch.setting}.yaml"
        text = SPEC_MARK + yaml.safe_dump(plain(system.raw), sort_keys=False, allow_unicode=True)
        if not spec.exists() or spec.read_bytes() != text.encode():
            write_atomically(spec, text.encode())
        plan, number = self._planner.plan(system), 1
        content = plan.to_json()
        while (file := self._folder / "plans" / f"plan-{number}.json").exists():
            if read_object(file, "it is a plan of this sweep") == content:
                break  # equal plans have one file
            number += 1
        else:
            make_folders(file)
            plan.save(file)
        self.plans[stretch.setting] = str(file.relative_to(self._folder))
        return spec, file

    def command(self, stretch: RunStage, at: Path | None = None) -> list[str]:
        """The arguments of `pearl` for a stretch, whose branch is made where it has a parent.

        at: the folder that stands for this one on the machine of the run; None: this one.

        Raises:
            SpecError: the branch cannot be.
        """
        assert self._folder is not None
        into = self._folder / stretch.run
        if stretch.parent is not None and not (into / CHECKPOINT).exists():
            _, plan = self.of(stretch)
            source, system = self._folder / stretch.parent, self.system(stretch)
            branching.branch(source, into, system, load_plan(plan), stretch.seed)
        begun = (into / "plan.json").exists() or (into / CHECKPOINT).exists()
        if at is None:
            return self.train(stretch, into, stretch.steps) + ["--resume"] * begun
        found = self.train(stretch, at / stretch.run, stretch.steps, at)
        # Whoever asked for the sweep named its spec, and the node has no note of it.
        return found + ["--resume", "--trust"] * begun

    def train(self, stretch: RunStage, into: Path, steps: int, at: Path | None = None) -> list[str]:
        """The arguments that train a stretch's run to `steps` env steps in the folder `into`."""
        spec, plan = self.of(stretch)
        if at is not None:
            assert self._folder is not None
            spec, plan = (at / file.relative_to(self._folder) for file in (spec, plan))
        how = ("--plan", str(plan), "--seed", str(stretch.seed), "--steps", str(steps))
        return ["train", str(spec), *how, "--out", str(into)]
