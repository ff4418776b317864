"""Learners with averaged gradients (data parallel): an algorithm's graph with several learners.

The task that takes gradient steps becomes several tasks. Every learner computes the gradient of its
rows of each batch (`gradient_0`, `gradient_1`, …), and `average` averages the gradients. Every
learner then takes the same step with the mean on its own parameters, moments and targets: `learn`
for the first learner, which stays in its place in the loop, `learn_1`, `learn_2`, … The rest of
the graph does not change, so the algorithm's source needs no change.

The reduction is a star or sharded. With shards, `average` averages the first shard, next to the
first learner, and `average_1`, `average_2`, … average one each next to the others. Every
number is the same sum in the same order, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl_devices import Kernel, kernel
from pearl_devices.buffers import specs
from pearl_devices.kernels import KINDS, kind_of
from pearl_devices.kernels.data_parallel import networks
from pearl_devices.kernels.record import size_bytes

AVERAGE, LEARN = "average", "learn"

Reduction = Literal["star", "shards"]

ADD_S = 1.2e-10
"""Seconds that a reduction takes per number of one learner's gradient: 0.09 to 0.13 ns for 67,586
to 4,210,690 numbers, with 2, 4 and 8 learners (torch's variant, 2 x AMD EPYC, 2026-11-23)."""
SHARD_S = 1e-5
"""Additional seconds per shard of a network, for calls and counts (assumed)."""


def added_tasks(learners: int) -> tuple[str, ...]:
    """Return the names of the tasks that `learners` learners add to a graph, for any reduction."""
    if learners < 2:
        return ()
    each = range(learners)
    return (*map(_gradient, each), *map(_mean, each), *(_step(i) for i in each[1:]))


def _gradient(learner: int) -> str:
    return f"gradient_{learner}"


def _mean(shard: int) -> str:
    return f"{AVERAGE}_{shard}" if shard else AVERAGE


def _step(learner: int) -> str:
    return f"{LEARN}_{learner}" if learner else LEARN


def learner_of(of: Kernel) -> int | None:
    """Return the number of the learner to which a kernel belongs; None if it belongs to none."""
    number = of.dims.get("learner")
    return number if isinstance(number, int) else None


def learning_tasks(names: Iterable[str], graph: TaskGraph) -> tuple[str, ...]:
    """Return these tasks, and if `learn` is one of them, the tasks that learners add to a
    graph."""
    found = tuple(names)
    parts = [t.name for t in graph.tasks if kind_of(t.kernel).structure == "shared"]
    return (*found, *(t for t in parts if t not in found)) if LEARN in found else found


def share_out(
    graph: TaskGraph, learners: int, reduction: Reduction | None = None, *, apart: bool = False
) -> TaskGraph:
    """Return the graph with `learners` learners; unchanged for one.

    reduction: of the gradients; None: the faster one (`choose_reduction`).
    apart: whether the learners may be on several hosts.

    Raises:
        SpecError: the algorithm's gradient steps cannot be shared, its batch cannot be split into
            equal parts, or its networks cannot be split into shards.
    """
    if learners == 1:
        return graph
    before = next((t for t in graph.tasks if kind_of(t.kernel).structure == "gradient"), None)
    problems = list(_obstacles(graph, before, learners))
    if problems or before is None:
        raise SpecError(*(f"limits.learners: given {learners}; {p}" for p in problems))
    learnt = list(networks(specs(before.kernel)).values())
    if reduction is None:
        reduction = choose_reduction(learners, learnt, apart=apart)
    elif reduction == "shards" and min(learnt) < learners:
        raise SpecError(
            f"limits.reduction: given shards; a network of {min(learnt)} numbers has none for "
            f"each of {learners} learners: choose star"
        )
    steps = before.kernel.dim("steps")
    sends = any(e.bytes for e in graph.edges if e.src == before.name)
    sizes = {**before.kernel.dims, "learners": learners, **({"td": 1} if sends else {})}
    cut = reduction == "shards"
    sizes |= {"shards": 1} if cut else {}

    def part(family: str, **own: int) -> Kernel:
        of = before.kernel
        name = f"{family}.{kind_of(of).algorithm}"
        return kernel(name, {**sizes, **own}, program=of.program, args=of.args, modules=of.modules)

    each = range(learners)
    (state,) = before.writes
    states = [state, *(f"{state}_{i}" for i in each[1:])]
    gradients = [
        Task(_gradient(i), part("learner_gradient", learner=i), reads=(states[i],)) for i in each
    ]
    # A reduction is next to its learner. The first is at home, where losses are read.
    means = [
        Task(_mean(i), part("all_reduce", **({"learner": i} if cut else {})), group=_mean(i))
        for i in (each if cut else each[:1])
    ]
    moves = [
        Task(
            _step(i),
            part("learner_step", learner=i),
            writes=(states[i],),
            group=_mean(i) if i < len(means) else None,
        )
        for i in each
    ]
    tasks = [
        new for t in graph.tasks for new in ((*gradients, *means, *moves) if t is before else (t,))
    ]
    edges = [new for e in graph.edges for new in _replace_edge(e, before.name, steps, gradients)]
    edges += [*_data_edges(gradients, means), *_data_edges(means, moves)]
    edges += [Edge(_step(i), _gradient(i), tokens_seq=1) for i in each]
    edges += [Edge(_step(i), _step(i), tokens_seq=1) for i in each[1:]]
    return replace(
        graph,
        tasks=tuple(tasks),
        edges=tuple(edges),
        states={**graph.states, **dict.fromkeys(states[1:], graph.states[state])},
        fusions=tuple(f for f in graph.fusions if before.name not in f.tasks),
    )


def _replace_edge(e: Edge, name: str, steps: int, gradients: list[Task]) -> Iterator[Edge]:
    """The edges that replace an edge of the task with all gradient steps of a firing, if each of
    `steps` is a firing. Inputs go to every learner, outputs come from the reduction, and edges
    without data connect to the first learner's step."""
    if e.src == e.dst or name not in (e.src, e.dst):
        yield replace(e, src=LEARN, dst=LEARN) if e.src == e.dst == name else e
    elif e.dst == name:
        e = replace(e, production=e.production * steps, tokens_seq=e.tokens_seq * steps)
        if not e.bytes:
            yield replace(e, dst=LEARN)
        else:
            for t in gradients:
                share = 1 / len(gradients) if kind_of(t.kernel).rows(t.kernel) else 1.0
                yield replace(e, dst=t.name, bytes=e.bytes * share, limit=None)
    else:
        e = replace(e, consumption=e.consumption * steps, tokens_seq=e.tokens_seq * steps)
        yield replace(e, src=AVERAGE if e.bytes else LEARN)


def _data_edges(senders: list[Task], readers: list[Task]) -> Iterator[Edge]:
    """An edge from each sender to each reader, with the arrays that both share."""
    reads = [(t.name, specs(t.kernel)) for t in readers]
    for t in senders:
        arrays, sent = specs(t.kernel), kind_of(t.kernel).sent(t.kernel)
        for name, read in reads:
            yield Edge(
                t.name, name, bytes=float(sum(size_bytes(arrays[n]) for n in sent if n in read))
            )


def choose_reduction(learners: int, learnt: Iterable[int], *, apart: bool = False) -> Reduction:
    """Return the reduction with the smaller predicted time.

    learnt: sizes of the networks. apart: whether the learners may be on several hosts.

    Between hosts all messages pass home. A star sends every gradient and every mean over a link
    once; shards send as many bytes in more messages. On one host nothing is sent: in a star one
    core adds all numbers of all learners, with shards each learner's core adds its part.
    """
    sizes = list(learnt)
    if apart or min(sizes) < learners:
        return "star"
    saved_s = ADD_S * sum(sizes) * (learners - 1)
    return "shards" if saved_s > SHARD_S * len(sizes) * learners else "star"


def _obstacles(graph: TaskGraph, task: Task | None, learners: int) -> Iterator[str]:
    """Yield the reasons why the gradient steps of a graph cannot be shared, one line each."""
    if task is None:
        yield f"{graph.name} takes no gradient steps that learners could share: 1 is allowed"
        return
    of = task.kernel
    if not kind_of(of).averaged:
        why = (
            "its networks take their steps one after another, each with the result of the step "
            "before, and only one mean per gradient step is exchanged"
            if of.kind in KINDS
            else "its record does not declare that its loss is the mean over the rows of a batch"
        )
        able = [k.algorithm for k in KINDS.values() if k.averaged]
        yield f"{graph.name} cannot share its gradient steps: {why}; choose {' or '.join(able)}"
        return
    if of.dims.get("stops"):
        yield (
            f"{graph.name} ends its gradient steps by target_kl, the divergence over a whole "
            "minibatch, which no single learner computes: leave target_kl at 0"
        )
    if of.dims.get("kept"):
        yield (
            f"{graph.name} adds up its gradient one vector step after another, as returns of n "
            "steps let it: choose returns gae or monte_carlo"
        )
    batch = of.dim("batch")
    if batch % learners:
        parts = [n for n in range(2, min(batch, 64) + 1) if batch % n == 0]
        ways = f"divides by {', '.join(map(str, parts))}" if parts else "divides by none up to 64"
        yield (
            f"a gradient step is on {batch} rows, which learners must share equally; {batch} "
            f"{ways}: choose one of these, or another batch"
        )
