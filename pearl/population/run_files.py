"""The folder of a sweep: specs, plans, logs, runs, `sweep.json`; and the command of each run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pearl import run_folder
from pearl.errors import SpecError
from pearl.files import make_folders, read_bounded
from pearl.formats import check_format
from pearl.json_files import MOST_BYTES, printable_values, read_object
from pearl.planning.plans import load_plan, plain
from pearl.planning.runs import CHECKPOINT, SPEC_MARK
from pearl.population.packing import Planner
from pearl.population.schedulers import RunStage
from pearl.spec.system import System
from pearl.training.checkpoints import branching

FILE = "sweep.json"
FOLDERS = "specs", "plans", "logs", ".first"
"""Folders of a sweep besides those of its runs."""


class SweepFolder:
    """The folder of a sweep.

    folder: None if the sweep writes nothing.
    systems: setting → its system.
    load: makes the system of a setting that a tournament creates later, from its values.
    plans: setting → the file of its plan, relative to the folder, once the plan is written.
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

    @property
    def path(self) -> Path:
        """The path of the folder."""
        assert self._folder is not None
        return self._folder

    def log(self, run: str) -> Path:
        """The log file of a run."""
        return self.path / "logs" / f"{run}.log"

    def system(self, stage: RunStage) -> System:
        """The system of a stage."""
        if stage.setting not in self._systems:
            self._systems[stage.setting] = self._load(stage.values)
        return self._systems[stage.setting]

    def write_inputs(self, stage: RunStage) -> tuple[Path, Path]:
        """Write the spec and the plan of a stage unless they are there, and return both files."""
        if stage.setting not in self._written:
            self._written[stage.setting] = self._write(stage)
        return self._written[stage.setting]

    def _write(self, stage: RunStage) -> tuple[Path, Path]:
        system = self.system(stage)
        name = f"specs/{stage.setting}.yaml"
        text = SPEC_MARK + yaml.safe_dump(plain(system.raw), sort_keys=False, allow_unicode=True)
        spec = run_folder.find(self.path, name)
        if spec is None or read_bounded(spec, MOST_BYTES, follow=False) != text.encode():
            run_folder.write(self.path, name, text.encode())
        plan, number = self._planner.plan(system), 1
        content = printable_values(plan.to_json())
        while file := run_folder.find(self.path, f"plans/plan-{number}.json"):
            if read_object(file, "it is a plan of this sweep", follow=False) == content:
                break  # equal plans have one file
            number += 1
        else:
            file = run_folder.clear(self.path, f"plans/plan-{number}.json")
            make_folders(file)
            plan.save(file)
        self.plans[stage.setting] = str(file.relative_to(self.path))
        return self.path / name, file

    def build_command(self, stage: RunStage, at: Path | None = None) -> list[str]:
        """Build the arguments of `pearl` for a stage. First branch the run off its parent, if any.

        at: the folder of the sweep on the host of the run; None: this folder.

        Raises:
            SpecError: the run cannot branch off its parent.
        """
        into, of_run = self.path / stage.run, f"{stage.run}/{CHECKPOINT}"
        if stage.parent is not None and not run_folder.find(self.path, of_run):
            _, plan = self.write_inputs(stage)
            run_folder.find_folder(self.path, stage.parent)  # no link
            parent, system = self.path / stage.parent, self.system(stage)
            branching.branch(parent, into, system, load_plan(plan), stage.seed)
        names = of_run, f"{stage.run}/plan.json"
        resume = ["--resume"] * any(run_folder.find(self.path, name) for name in names)
        if at is None:
            return self.train_arguments(stage, into, stage.steps) + resume
        arguments = self.train_arguments(stage, at / stage.run, stage.steps, at)
        # The user of the sweep named its spec, but the other host has no record of that.
        return arguments + resume + ["--trust"] * bool(resume)

    def train_arguments(
        self, stage: RunStage, out: Path, steps: int, at: Path | None = None
    ) -> list[str]:
        """Build the arguments that train the run of a stage to `steps` env steps, into `out`."""
        spec, plan = self.write_inputs(stage)
        if at is not None:
            spec, plan = (at / file.relative_to(self.path) for file in (spec, plan))
        options = ("--plan", str(plan), "--seed", str(stage.seed), "--steps", str(steps))
        return ["train", str(spec), *options, "--out", str(out)]


def load_sweep_file(folder: Path, *, resume: bool) -> dict[str, Any] | None:
    """Load the sweep.json of a folder, to resume its sweep; None if there is none yet.

    Raises:
        SpecError: the folder is a file, holds a sweep that is not to be resumed, or holds links, or
            its sweep.json is damaged.
    """
    file = run_folder.find(folder, FILE)
    if file is None:
        for name in FOLDERS:
            if found := run_folder.find_folder(folder, name):
                run_folder.refuse_links(found)
        if folder.exists() and not folder.is_dir():
            raise SpecError(f"{folder}: is a file, not a folder; name another folder")
        return None
    if not resume:
        raise SpecError(f"{folder}: holds a sweep; resume it (--resume), or name another folder")
    run_folder.refuse_links(folder)
    content = read_object(file, "`pearl sweep` writes it", follow=False)
    check_format("sweep", content, str(file))
    if not _is_complete(content):
        raise SpecError(f"{file}: no sweep that this version can resume; name another folder")
    return content


def _is_complete(content: Mapping[str, Any]) -> bool:
    """Whether a sweep.json has every key that a resumed sweep reads, with the right types."""

    def have(entries: object, keys: Sequence[str]) -> bool:
        return isinstance(entries, list) and all(
            isinstance(entry, dict) and all(key in entry for key in keys) for entry in entries
        )

    packing, plans = content.get("packing"), content.get("plans")
    return (
        have(content.get("history"), ("event", "run", "steps"))
        and all("score" in entry for entry in content["history"] if entry["event"] == "end")
        and have(content.get("runs"), ("run", "setting", "seed", "values", "steps"))
        and isinstance(packing, dict)
        and type(packing.get("cores_per_run")) is int
        and packing["cores_per_run"] > 0
        and isinstance(plans, dict)
        and all(isinstance(file, str) for file in plans.values())
    )
