"""A gradient step with two critics as eight tasks, instead of one task `update`.

    ahead1, ahead2 ──> value1, value2 ──> critic1, critic2 ──> update
                                   own ───^

ahead1, ahead2: next actions, each for half of the rows. value1, value2: their values by the target
critics. own: the actor's present actions. critic1, critic2: gradient steps towards the smaller
value; then the critics that the actor follows give value and slope of the present actions. update:
the actor's step along the slopes.

A critic's parameters, moments and target are a state of its own, so both may run at once.
"""

from dataclasses import replace

import numpy as np

from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Task
from pearl_devices import kernel
from pearl_devices.kernels import KINDS, KernelKind, kind_of
from pearl_devices.kernels.record import matches, size_bytes
from pearl_devices.primitives.math.nets import backward, forward, scratch
from pearl_devices.primitives.math.rng import normals, stream_base
from pearl_devices.primitives.updates.critics import (
    critic_step,
    follow_target,
    join,
    net_of,
    rules_of,
)

TASKS = ("ahead1", "ahead2", "own", "value1", "value2", "critic1", "critic2", "update")


def messages(k):
    """The arrays that the tasks send each other: k steps of B rows, or the rows of the last."""
    steps, rows, act = k.dim("steps"), k.dim("batch"), k.dim("act")
    inputs, actor = k.dim("obs") + act, sum(k.layers("actor")[1:])
    shapes = {"own.input": (rows, inputs), "own.acts": (rows * actor,), "own.log_prob": (rows,)}
    shapes |= {"own.noise": (rows, act), "own.squashed": (rows, act)}
    for i in (1, 2):
        shapes |= {f"ahead{i}.input": (steps, rows // 2, inputs)}
        shapes |= {f"ahead{i}.bonus": (steps, rows // 2)}
        shapes |= {f"value{i}.next": (steps, rows), f"critic{i}.td": (steps, rows)}
    for i in range(1, k.dim("followed") + 1):
        shapes |= {f"critic{i}.own": (rows,), f"critic{i}.slope": (rows, act)}
    return {name: (shape, "float32") for name, shape in shapes.items()}


def record(program, reads, writes, sends):
    """A kind whose arrays are some of `update`'s, of the messages, and a random stream."""

    def arrays(k):
        known = KINDS[f"update.{k.args['of']}"].arrays(k) | messages(k)
        known |= dict.fromkeys(("rng.ahead1", "rng.ahead2", "rng.own"), ((2,), "uint64"))
        alone = program.endswith("critic") and k.dim("number") > k.dim(
            "followed"
        )  # the actor does not follow this critic
        used = [n for n in known if matches(n, (*reads, *writes, *sends))]
        return {n: known[n] for n in used if not (alone and n.startswith("own."))}

    variants = {"native": f"examples.twin_critics.{program}"}
    return KernelKind(arrays=arrays, writes=(*writes, *sends), sends=sends, variants=variants)


def of_critic(i):
    """The kinds of a critic's two tasks."""
    target = f"learner.critic{i}.target"
    inputs = ("ahead1.input", "ahead2.input")
    value = record("branches:value", (target, *inputs), (), (f"value{i}.next",))
    reads = ("batch.", "ahead1.bonus", "ahead2.bonus", "value1.next", "value2.next")
    reads = (*reads, "own.input", "hyper.", "act.")
    mine = (f"learner.critic{i}", f"learner.critic{i}.", f"loss.critic{i}")
    return value, record("branches:critic", reads, mine, (f"critic{i}.",))


(VALUE1, CRITIC1), (VALUE2, CRITIC2) = map(of_critic, (1, 2))


def split(loop, module, *, steps, followed):
    """The loop of an algorithm with its task `update` in eight. module: of this folder, with the
    kinds AHEAD1, AHEAD2, OWN and UPDATE. steps: gradient steps between two of the actor. followed: critics
    whose slope the actor's step needs, 1 or 2."""
    whole = loop.task("update").kernel
    if whole.dim("steps") != steps or loop.updates != steps:
        raise SpecError(
            f"algorithm: an iteration of {loop.name} has {loop.updates} gradient steps, and the "
            f"critics' tasks take {steps} at a time: set num_envs × replay_ratio to {steps}, and "
            "replay.kind to uniform"
        )
    if whole.dim("batch") % 4:
        raise SpecError(
            f"algorithm.batch_size: given {whole.dim('batch')}; a multiple of 4 is needed"
        )
    made = []
    for name in TASKS:
        number = int(name[-1]) if name[-1] in "12" else 0
        critics = name.startswith(("value", "critic"))
        kind = f"examples.twin_critics.{'branches' if critics else module}:{name.upper()}"
        state = f"critic{number}" if critics else "learner"
        states = {"writes" if name in ("critic1", "critic2", "update") else "reads": (state,)}
        sizes = {**whole.dims, "number": number, "followed": followed}
        made.append(Task(name, kernel(kind, sizes, args={"of": loop.name}), **states))
    chain = [loop.task("replay_sample"), *made]
    edges = [e for e in loop.edges if (e.src, e.dst) != ("replay_sample", "update")]
    for place, sender in enumerate(chain):
        kind, arrays = kind_of(sender.kernel), kind_of(sender.kernel).arrays(sender.kernel)
        for reader in chain[place + 1 :]:
            both = {*kind.sent(sender.kernel)} & {*kind_of(reader.kernel).arrays(reader.kernel)}
            if both:
                size = sum(size_bytes(arrays[name]) for name in both)
                edges.append(Edge(sender.name, reader.name, bytes=float(size)))
    back = [("update", name) for name in ("ahead1", "ahead2", "own")]
    back += [(f"critic{i}", f"{what}{i}") for i in (1, 2) for what in ("value", "critic")]
    edges += [Edge(src, dst, tokens_seq=1) for src, dst in back]
    place = [t.name for t in loop.tasks].index("update")
    tasks = (*loop.tasks[:place], *made, *loop.tasks[place + 1 :])
    third = loop.states["learner"] / 3
    states = {**loop.states, "learner": third, "critic1": third, "critic2": third}
    return replace(loop, tasks=tasks, edges=tuple(edges), states=states, fusions=())


def half_of(k):
    """Where the rows of `ahead1` or `ahead2` lie in a batch."""
    half = k.dim("batch") // 2
    return slice(0, half) if k.dim("number") == 1 else slice(half, 2 * half)


def draw(rng, start, noise):
    """Fill `noise` (rows, A) with the normals of this firing from number `start` on."""
    normals(np.uint64(stream_base(rng[0], rng[1])), start, noise.reshape(-1))
    rng[1] += np.uint64(1)


def value(k, a):
    """Bind the values of the next actions by a target critic."""
    name, half = f"critic{k.dim('number')}", k.dim("batch") // 2
    widths, target = np.array(k.layers(name), np.int64), a[f"learner.{name}.target"]
    acts, values = scratch(k.layers(name), half)[0], a[f"value{k.dim('number')}.next"]

    def fire():
        for s in range(k.dim("steps")):
            for rows, i in ((values[s, :half], 1), (values[s, half:], 2)):
                rows[:] = forward(target, widths, a[f"ahead{i}.input"][s], acts, False)[:, 0]

    return fire


def critic(k, a):
    """Bind a critic's gradient steps, then the value of the present actions and its slope."""
    name, rows, act = f"critic{k.dim('number')}", k.dim("batch"), k.dim("act")
    net, td = net_of(name, k, a), a[f"{name}.td"]
    rules = rules_of({**a, "loop.stop": np.zeros(2, np.int64), "learner.step": net.steps})
    inputs, parts = np.zeros((rows, k.dim("obs") + act), np.float32), np.zeros(rows, np.float32)
    wanted, none = np.zeros(rows, np.float32), np.zeros(0, np.float32)

    def fire():
        td[:] = 0.0
        for s in range(k.dim("steps")):
            least = np.minimum(a["value1.next"][s], a["value2.next"][s])
            least += np.concatenate((a["ahead1.bonus"][s], a["ahead2.bonus"][s]))
            wanted[:] = a["batch.reward"][s] + a["batch.discount"][s] * least
            join(a["batch.obs"][s], a["batch.action"][s], inputs)
            critic_step(net, inputs, wanted, a["batch.weight"][s], td[s], parts, rules)
        follow_target(net, rules)
        if k.dim("number") <= k.dim("followed"):
            present = a["own.input"]
            a[f"{name}.own"][:] = forward(net.params, net.layers, present, net.acts, False)[:, 0]
            net.deltas[:rows] = -1.0 / rows
            rest = (rows, rows, net.deltas, none, np.int64(act), a[f"{name}.slope"], False)
            backward(net.params, net.layers, present, net.acts, *rest)

    return fire
