"""What graphs, their parts and limits answer: values by hand, and the texts of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.errors import SpecError
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.testing.graphs import tasks
from pearl_devices import kernel
from pearl_devices.kernels import KernelKind
from tests.answers import check, titles


def graph(*edges: Edge, names: str = "ab", **more: object) -> TaskGraph:
    return TaskGraph("g", tasks(*names), edges, **more)  # type: ignore[arg-type]


OWN = KernelKind(
    arrays=lambda k: {name: ((k.dim("envs"), 2), "float32") for name in ("env.obs", "own.sum")},
    writes=("env.obs", "own.sum"),
    variants={"python": "examples.rnd:bonus"},
)
BONUS = kernel("examples.rnd:BONUS", {"envs": 8, "obs": 2, "hidden": 4}, args={"scale": 1.0})
OWN_TASKS = {"bonus": BONUS, "again": BONUS, "own": kernel("tests.graph.test_answers:OWN", envs=8)}


def places(name: str, *tasks: str, groups: int = 1) -> str:
    """What becomes of a task on each edge of an algorithm; of several tasks, the last, after the
    others are put behind step."""
    spec = {"algorithm": {"name": name, "env": "MountainCar-v0", "num_envs": 8},
            "platform": "cpu_gpu", "limits": {"env_groups": groups}}  # fmt: skip
    whole = algorithm(name).graph(pearl.load(spec))
    *others, last = (Task(task, OWN_TASKS[task], writes=("more",)) for task in tasks)
    for other in others:
        whole = inserted(whole, other, after="step", before="store")
    lines = []
    ordering = next(e for e in whole.edges if not e.bytes)
    for e in (ordering, *(e for e in whole.edges if e.bytes)):
        try:
            found = inserted(whole, last, after=e.src, before=e.dst)
        except SpecError as error:
            lines.append(str(error) if e is ordering else str(error).rpartition("; ")[0])
            continue
        new = found.edges[len(whole.edges) :]
        told = [(x.src, x.dst, x.production, x.tokens_seq, x.bytes) for x in new]
        fused, at = [f.name for f in found.fusions], found.tasks.index(last)
        more = found.states["more"]
        lines.append(f"{e.src} → {e.dst}: {at}, {told}, {more} bytes more, fused {fused}")
    return "\n".join(lines)


FILE = Path(__file__).parent / "answers.txt"


@pytest.mark.parametrize("title", titles(FILE))
def test_graphs_and_limits_answer_what_is_kept(title: str, request: pytest.FixtureRequest) -> None:
    check(FILE, title, globals(), write=request.config.getoption("--write"))
