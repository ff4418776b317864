"""Algorithms: one readable file each, and its name in `ALGORITHMS`.

An algorithm is a module. A spec names a shipped algorithm by its name in `ALGORITHMS`, and a
user-defined one by its module path (`docs/own_algorithm.md`). `Algorithm` lists the names that a
module has. PEARL derives everything else from the module: the options in a spec, the actions and
observations that the algorithm needs, and the tasks that wait for `learning_starts`.
"""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pearl.algorithms.families.replay import LEARNING
from pearl.algorithms.options import Acting, Own, OwnRollout, ReplayOptions, RolloutOptions
from pearl.algorithms.tabular_options import TabularOptions as Tabular
from pearl.errors import SpecError
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers
from pearl_devices.user_imports import import_user_module

if TYPE_CHECKING:
    from pearl.spec.system import System

__all__ = [
    "ALGORITHMS",
    "FAMILIES",
    "Algorithm",
    "algorithm",
    "dqn",
    "environments",
    "evaluation",
    "families",
    "fields",
    "initial_values",
    "interface",
    "options",
    "spaces",
    "tabular_options",
    "undotted_name_error",
]

ALGORITHMS = (
    "dqn",
    "ddpg",
    "td3",
    "sac",
    "ppo",
    "a2c",
    "q_learning",
    "sarsa",
)
"""Names in a spec, each a module of this package."""

ACTIONS = ("discrete", "continuous", "both")


class Family(NamedTuple):
    """Algorithms that share a task graph.

    options: the class that their `Options` subclass.
    own: options of a module without its own.
    learning: tasks whose firings are empty before `learning_starts`.
    """

    options: type[Acting]
    own: type[Acting]
    learning: tuple[str, ...] = ()


FAMILIES = {
    "replay": Family(ReplayOptions, Own, LEARNING),
    "rollout": Family(RolloutOptions, OwnRollout),
    "tabular": Family(Tabular, Tabular),
    "own": Family(Acting, Acting),
}
"""Family → what its algorithms share. In family `own`, the module builds its task graph itself."""


class AlgorithmModule(Protocol):
    """Functions of an algorithm module.

    graph: the task graph of a system.
    initialise: fills the arrays of a fresh run.
    """

    def graph(self, system: System) -> TaskGraph: ...
    def initialise(self, buffers: Buffers, system: System, seed: int) -> None: ...


class Algorithm(NamedTuple):
    """An algorithm module, checked. Its fields are the names that a module has.

    POLICY: name of the acting network.
    FAMILY: a key of `FAMILIES`; default replay.
    ACTIONS: the actions that it can choose, one of `ACTIONS`; default both.
    LEARNING: tasks whose firings are empty before `learning_starts`; default the family's.
    Options: its options in a spec, a subclass of the family's options; default `Family.own`.
    summary: its docstring.
    """

    name: str
    source: AlgorithmModule
    POLICY: str
    FAMILY: str
    ACTIONS: str
    LEARNING: tuple[str, ...]
    Options: type[Acting]
    summary: str

    def graph(self, system: System) -> TaskGraph:
        """Build the task graph of `system`.

        Raises:
            SpecError: The module returns something else than a TaskGraph.
        """
        graph = self.source.graph(system)
        if not isinstance(graph, TaskGraph):
            kind = type(graph).__name__
            raise SpecError(
                f"algorithm.name: {self.name}: its graph returns a {kind}; a TaskGraph is needed"
            )
        return graph

    def initialise(self, buffers: Buffers, system: System, seed: int) -> None:
        """Fill the arrays of a fresh run."""
        self.source.initialise(buffers, system, seed)


def algorithm(name: str) -> Algorithm:
    """Load the algorithm that a spec names: a name of `ALGORITHMS`, or the path of a module.

    Raises:
        SpecError: There is no such module, or it lacks a part of an algorithm.
    """
    shipped = name in ALGORITHMS
    if not shipped and "." not in name:
        raise SpecError(undotted_name_error(name))
    path = f"{__name__}.{name}" if shipped else name
    try:
        module = import_user_module(path)
    except ValueError as error:
        reason = f"its module {path} cannot be imported ({error})"
        if shipped:
            reason += (
                f"; it is named in ALGORITHMS of {_short(__file__)}, so its file must be there"
            )
        else:
            reason += "; it must be on Python's path"
        raise SpecError(f"{name}: {reason}") from error
    faults = list(_faults(module))
    if faults:
        file = _short(getattr(module, "__file__", None) or path)
        raise SpecError(
            f"{name}: {file} is no algorithm: it {', and '.join(faults)}; see docs/own_algorithm.md"
        )
    family = FAMILIES[getattr(module, "FAMILY", "replay")]
    return Algorithm(
        name,
        cast(AlgorithmModule, module),
        module.POLICY,
        getattr(module, "FAMILY", "replay"),
        getattr(module, "ACTIONS", "both"),
        tuple(getattr(module, "LEARNING", family.learning)),
        getattr(module, "Options", family.own),
        module.__doc__ or "",
    )


def undotted_name_error(name: object) -> str:
    """Return the error for a name that is not in `ALGORITHMS` and has no dot."""
    near = get_close_matches(str(name)[:200].lower(), ALGORITHMS, 1, 0.6)
    guess = f" (did you mean {near[0]}?)" if near else ""
    allowed = f"{', '.join(ALGORITHMS)}, a module path"
    if isinstance(name, str) and name.isidentifier():
        with suppress(ImportError, ValueError):  # ValueError: such as of __main__
            if find_spec(name) is not None:
                allowed += f"; {name} is a module outside a package: move it into a folder, and "
                allowed += "name it with a dot"
    return f"given {name!r:.200}{guess}; allowed are {allowed}"


def _faults(module: ModuleType) -> list[str]:
    """Return the faults that keep `module` from being an algorithm, each as a predicate."""
    family = getattr(module, "FAMILY", "replay")
    needed = ["POLICY", "graph", "initialise"]
    if family in ("replay", "rollout"):
        needed.append("losses")
    missing = [each for each in needed if not hasattr(module, each)]
    faults = [f"has no {', '.join(missing)}"] if missing else []
    for each in {"graph", "initialise", "losses"}.intersection(needed) - set(missing):
        if not callable(getattr(module, each)):
            faults.append(f"has a {each} that is no function")
    for each, allowed in (("FAMILY", tuple(FAMILIES)), ("ACTIONS", ACTIONS)):
        given = getattr(module, each, allowed[-1])
        if given not in allowed:
            faults.append(f"has {each} {given!r} (allowed are {', '.join(allowed)})")
    options = getattr(module, "Options", None)
    if options is not None and family in FAMILIES:
        faults += _faults_of_options(options, FAMILIES[family].options, family)
    return faults


def _faults_of_options(options: Any, base: type[Acting], family: str) -> list[str]:
    if not (isinstance(options, type) and issubclass(options, base)):
        return [
            f"has Options that do not subclass pearl.algorithms.options.{base.__name__}, "
            f"as those of family {family} must"
        ]
    if "__pydantic_validator__" not in vars(options):
        return [
            "has Options that are no pydantic dataclass (write "
            "@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT) above them)"
        ]
    fields: dict[str, Any] = options.__pydantic_fields__  # type: ignore[attr-defined]
    bare = [key for key, field in fields.items() if field.is_required()]
    bare = [key for key in bare if key not in ("name", "env")]
    return [f"has Options without a default for {', '.join(bare)}"] if bare else []


def _short(file: str) -> str:
    """Return the path of a file, relative to the current folder if the file is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
