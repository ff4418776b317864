"""A gradient step with two critics as nine tasks, instead of one task `learn`.

    act1 ──┬──> value1 ──┬──> critic1 ──┬──> climb1 ──┬──> learn
    act2 ──┴──> value2 ──┴──> critic2 ──┴──> climb2 ──┘

act1, act2: the actor's next and present actions, each for half of the rows. value1, value2: values
of the next actions by the target critics. critic1, critic2: gradient steps towards the smaller
value, then value and slope of the present actions. climb1, climb2: the actor's gradient along the
slopes, for half of the rows. update: the actor's step.

A critic's parameters, moments and target are a state of its own, so both critics may run at once.
"""

from dataclasses import replace

import numpy as np

from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Task
from pearl_devices import kernel
from pearl_devices.kernels import KINDS, KernelKind, kind_of
from pearl_devices.kernels.counting import size
from pearl_devices.kernels.record import matches, size_bytes
from pearl_devices.primitives.math.nets import backward, forward, scratch
from pearl_devices.primitives.math.rng import normals, stream_base
from pearl_devices.primitives.updates.critics import (
    critic_step,
    descend,
    follow_target,
    join,
    net_of,
    rules_of,
)

TASKS = (
    ("act", "learner", False),
    ("value", "critic", False),
    ("critic", "critic", True),
    ("climb", "learner", False),
)
"""Pairs of tasks; their state, the actor's or that of each critic; whether they write it."""

LEARNING = (
    "sample",
    *(f"{name}{i}" for name, _, _ in TASKS for i in (1, 2)),
    "learn",
    "sync",
)


def messages(k):
    """The arrays that the tasks send each other, for k steps of B rows."""
    steps, rows, act, half = k.dim("steps"), k.dim("batch"), k.dim("act"), k.dim("batch") // 2
    inputs, widths, found = k.dim("obs") + act, k.layers("actor"), dict[str, tuple[int, ...]]()
    for i in (1, 2):
        found |= {f"act{i}.next": (steps, half, inputs), f"act{i}.bonus": (steps, half)}
        found |= {f"act{i}.own": (half, inputs), f"act{i}.pass": (half * sum(widths[1:]),)}
        found |= {f"act{i}.noise": (half, act), f"act{i}.squashed": (half, act)}
        found |= {f"act{i}.log_prob": (half,), f"value{i}.next": (steps, rows)}
        found |= {f"critic{i}.td": (steps, rows), f"critic{i}.own": (rows,)}
        found |= {f"critic{i}.slope": (rows, act), f"climb{i}.loss": (1,)}
        found |= {f"climb{i}.grad": (size(k, "actor"),)}
    return {name: (shape, "float32") for name, shape in found.items()}


def record(program, reads, writes, sends):
    """A kind whose arrays are some of `update`'s, of the messages, and a random stream."""

    def arrays(k):
        known = KINDS[f"update.{k.args['of']}"].arrays(k) | messages(k)
        known |= dict.fromkeys(("rng.act1", "rng.act2"), ((2,), "uint64"))
        return {n: spec for n, spec in known.items() if matches(n, (*reads, *writes, *sends))}

    return KernelKind(
        arrays=arrays,
        writes=(*writes, *sends),
        sends=sends,
        variants={"native": f"examples.twin_critics.{program}"},
    )


def of_critic(i):
    """The kinds of a critic's two tasks."""
    target, values = f"learner.critic{i}.target", ("value1.next", "value2.next")
    value = record("branches:value", (target, "act1.next", "act2.next"), (), (f"value{i}.",))
    acts = ("act1.bonus", "act2.bonus", "act1.own", "act2.own")
    mine = (f"learner.critic{i}", f"learner.critic{i}.", f"loss.critic{i}")
    reads = ("batch.", *acts, *values, "hyper.", "act.")
    return value, record("branches:critic", reads, mine, (f"critic{i}.",))


(VALUE1, CRITIC1), (VALUE2, CRITIC2) = map(of_critic, (1, 2))


def split(loop, module, *, steps, followed):
    """The loop of an algorithm with its task `learn` in nine. module: of this folder, with the
    kinds of act, climb and update. steps: gradient steps between two of the actor. followed: 1 or 2
    critics, whose slopes the actor climbs."""
    whole, before = loop.task("learn").kernel, loop.task("sample")
    if whole.dim("steps") != steps or loop.updates != steps or whole.dim("batch") % 4:
        raise SpecError(
            f"algorithm: given {loop.updates} gradient steps in an iteration, on "
            f"{whole.dim('batch')} rows, which {module} of examples.twin_critics cannot split: set "
            f"num_envs × replay_ratio to {steps}, replay.kind to uniform, batch_size to a multiple "
            "of 4"
        )

    def made(name, i, state, writes):
        where = "branches" if state.startswith("critic") else module
        sizes = {**whole.dims, "number": i, "followed": followed}
        kind = f"examples.twin_critics.{where}:{name.upper()}"
        reads, writes = ((), (state,)) if writes else ((state,), ())
        work = kernel(kind, sizes, args={"of": loop.name})
        return Task(name, work, reads=reads, writes=writes)

    new = [
        made(f"{name}{i}", i, f"critic{i}" if state == "critic" else state, writes)
        for name, state, writes in TASKS
        for i in (1, 2)
    ]
    new.append(made("learn", 0, "learner", True))
    edges = [e for e in loop.edges if (e.src, e.dst) != (before.name, "learn")]
    for place, sender in enumerate([before, *new]):
        kind, arrays = kind_of(sender.kernel), kind_of(sender.kernel).arrays(sender.kernel)
        for reader in new[place:]:
            both = {*kind.sent(sender.kernel)} & {*kind_of(reader.kernel).arrays(reader.kernel)}
            if both:
                carried = float(sum(size_bytes(arrays[name]) for name in both))
                edges.append(Edge(sender.name, reader.name, bytes=carried))
    for i in (1, 2):
        back = (("learn", "act"), ("learn", "climb"), (f"critic{i}", "value"))
        edges += [Edge(src, f"{dst}{i}", tokens_seq=1) for src, dst in back]
        edges.append(Edge(f"critic{i}", f"critic{i}", tokens_seq=1))
    place, third = loop.tasks.index(loop.task("learn")), loop.states["learner"] / 3
    return replace(
        loop,
        tasks=(*loop.tasks[:place], *new, *loop.tasks[place + 1 :]),
        edges=tuple(edges),
        states={**loop.states, "learner": third, "critic1": third, "critic2": third},
        fusions=(),
    )


def half_of(k):
    """The rows of act1 or climb1, or of act2 or climb2."""
    half = k.dim("batch") // 2
    return slice((k.dim("number") - 1) * half, k.dim("number") * half)


def draw(rng, start, noise):
    """Fill `noise` (rows, A) with the normals of this firing from number `start` on."""
    normals(np.uint64(stream_base(rng[0], rng[1])), start, noise.reshape(-1))


def value(k, a):
    """Bind the values of the next actions by a target critic."""
    name, half = f"critic{k.dim('number')}", k.dim("batch") // 2
    widths, target = np.array(k.layers(name), np.int64), a[f"learner.{name}.target"]
    acts, values = scratch(k.layers(name), half)[0], a[f"value{k.dim('number')}.next"]

    def fire():
        for s in range(k.dim("steps")):
            for rows, i in ((values[s, :half], 1), (values[s, half:], 2)):
                rows[:] = forward(target, widths, a[f"act{i}.next"][s], acts, False)[:, 0]

    return fire


def critic(k, a):
    """Bind a critic's gradient steps, then the value of the present actions and its slope."""
    name, rows, act = f"critic{k.dim('number')}", k.dim("batch"), k.dim("act")
    net, td, half = net_of(name, k, a), a[f"{name}.td"], rows // 2
    rules = rules_of({**a, "loop.stop": np.zeros(2, np.int64), "learner.step": net.steps})
    inputs, parts = np.zeros((rows, k.dim("obs") + act), np.float32), np.zeros(rows, np.float32)
    wanted, none = np.zeros(rows, np.float32), np.zeros(0, np.float32)

    def fire():
        td[:] = 0.0
        for s in range(k.dim("steps")):
            least = np.minimum(a["value1.next"][s], a["value2.next"][s])
            least += np.concatenate((a["act1.bonus"][s], a["act2.bonus"][s]))
            wanted[:] = a["batch.reward"][s] + a["batch.discount"][s] * least
            join(a["batch.obs"][s], a["batch.action"][s], inputs)
            critic_step(net, inputs, wanted, a["batch.weight"][s], td[s], parts, rules)
        follow_target(net, rules)
        for i in (1, 2) if k.dim("number") <= k.dim("followed") else ():
            x, part = a[f"act{i}.own"], slice((i - 1) * half, i * half)
            a[f"{name}.own"][part] = forward(net.params, net.layers, x, net.acts, False)[:, 0]
            net.deltas[:half] = -1.0 / rows
            rest = (none, np.int64(act), a[f"{name}.slope"][part], False)
            backward(net.params, net.layers, x, net.acts, half, half, net.deltas, *rest)

    return fire


def update(k, a):
    """Bind the actor's step along both halves of its gradient."""
    actor = net_of("actor", k, a)
    rules = rules_of({**a, "loop.stop": np.zeros(2, np.int64)})

    def fire():
        a["batch.td"][:] = a["critic1.td"] + a["critic2.td"]
        a["learner.step"][0] += k.dim("steps")
        actor.loss[0] = a["climb1.loss"][0] + a["climb2.loss"][0]
        np.add(a["climb1.grad"], a["climb2.grad"], out=actor.grad)
        descend(actor, rules)
        if actor.target.size:
            follow_target(actor, rules)

    return fire
