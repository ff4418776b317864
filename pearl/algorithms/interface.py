"""The interface between the environments and the acting network: the part of a policy besides its
parameters. `pearl_devices.primitives.envs.interface.Interface` runs it, in evaluation, in
`pearl.Policy` and for the first observations of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.algorithms.environments import normalised_sizes
from pearl.errors import SpecError
from pearl.graph.task_graph import Task, TaskGraph
from pearl_devices import Buffers, Kernel
from pearl_devices.kernels import LEFT_OUT, kind_of
from pearl_devices.kernels.interface import OBSERVED, STATISTICS, TAKEN, changes, misfit, states
from pearl_devices.kernels.record import Spec

if TYPE_CHECKING:
    from pearl.spec.system import System
    from pearl_devices.primitives.envs.interface import Interface

NOUNS = {OBSERVED: "the observations", TAKEN: "the actions"}


def inserted_tasks(graph: TaskGraph) -> tuple[Task, ...]:
    """Return the user-defined tasks that change observations before a network reads them, or
    actions before an environment takes them, in firing order."""
    return tuple(t for t in graph.tasks if changes(t.kernel))


def interface_of(graph: TaskGraph) -> tuple[Kernel, ...]:
    """Return the kernels of these tasks that are part of the policy.

    Raises:
        SpecError: a policy cannot have a task; one sentence for each.
    """
    tasks = inserted_tasks(graph)
    problems = [why for t in tasks if (why := _obstacle(t, graph))]
    if problems:
        raise SpecError(*problems)
    return tuple(t.kernel for t in tasks if kind_of(t.kernel).in_evaluation != LEFT_OUT)


def _obstacle(task: Task, graph: TaskGraph) -> str:
    """Return why a policy cannot have the kernel of a task; empty if it can."""
    kernel, written = task.kernel, changes(task.kernel)
    nouns = " and ".join(f"{NOUNS[name]} ({name})" for name in written)
    where = f"graph {graph.name!r}: task {task.name!r} (kernel kind {kernel.kind}) writes {nouns}"
    if len(written) > 1:
        return f"{where}; a kernel changes one of the two: make two of it"
    acting = graph.task("act").kernel
    if written == (OBSERVED,):
        if acting.dims.get("states"):
            return f"{where}, which are the numbers of states that a table is indexed by"
        if any("stack" in t.kernel.dims and _stores(t) for t in graph.tasks):
            return (
                f"{where}, which are stacks of frames that the replay stores as uint8: leave "
                "frame_stack at 0 and stack them in the environment, or let the network do this"
            )
        if (groups := _groups(graph)) > 1:
            return (
                f"{where}, and limits.env_groups is {groups}: each group has its own observations, "
                "and the task would change only the observations of the first group; leave "
                "env_groups at 1"
            )
    if kind_of(kernel).in_evaluation is None:
        return (
            f"{where}, and its record does not say what evaluation does, so another policy would "
            "be evaluated than was trained: give the record in_evaluation, the 'module:function' "
            "that changes them in evaluation, or pearl_devices.kernels.LEFT_OUT if it is no part "
            "of the policy"
        )
    if kind_of(kernel).in_evaluation != LEFT_OUT and (why := misfit(kernel)):
        return f"{where}, and cannot be made for other rows: {why}"
    return ""


def _stores(task: Task) -> bool:
    return kind_of(task.kernel).structure == "insert"


def _groups(graph: TaskGraph) -> int:
    """Number of groups of environments: the tokens on the way from them to the network."""
    return max(
        (e.tokens_seq for e in graph.edges if (e.src, e.dst) == ("step", "act")),
        default=1,
    )


def policy_states(system: System, acting: Kernel) -> dict[str, Spec]:
    """Return the arrays of a policy besides its parameters: name in a run → shape and type."""
    found: dict[str, Spec] = {}
    if normalised_sizes(system).get("normalise_obs"):
        found[STATISTICS] = ((2, acting.dim("obs")), "float64")
    return found | states(acting)


def label(name: str) -> str:
    """Return the name of a copy of one of `policy_states`, without its owner's prefix."""
    return "normalise" if name == STATISTICS else f"interface.{name}"


def interface(system: System, acting: Kernel, arrays: Buffers) -> Interface:
    """Return the interface of a policy. arrays: those of `policy_states`."""
    from pearl_devices.primitives.envs.interface import Interface

    asked = getattr(system.algorithm, "normalise", None)
    scale = {"clip": asked.clip, "epsilon": asked.epsilon} if asked is not None else {}
    return Interface(acting, arrays, pixels=system.env.pixels, **scale)


def pass_first(acting: Kernel, arrays: Buffers) -> None:
    """Pass the first observations of environments (env.obs) through the user-defined kernels, as
    their firings do with later ones; step has done everything else.

    arrays: env.obs, and those of `policy_states`.
    """
    from pearl_devices.primitives.envs.interface import Interface

    own = Interface(acting, {name: arrays[name] for name in states(acting)})
    arrays[OBSERVED][...] = own.apply_kernels(OBSERVED, arrays[OBSERVED])
