"""Gradient steps of DQN and DDPG as programs of the simulated FPGA's learner.

`dqn` and `ddpg` place the matrices and write the program of one gradient step, in the order of
`primitives.updates`. `transfer` writes the programs that load or store parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pearl_devices.fpga.program import (
    MOST_ROWS,
    PLACES,
    PROGRAM_WORDS,
    Instruction,
    Matrix,
    Memory,
    Shape,
)
from pearl_devices.kernel import Kernel

HEAD, TARGET_HEAD, GRADIENT, IN_A, IN_B = 8, 16, 4, 1, 2
"""Destinations of the result of a product; `where` of the instruction is their sum."""

FIRST_AND_LAST = (True, True)
"""Rows that are the whole batch are its first and its last."""


@dataclass(frozen=True)
class PlacedNet:
    """A dense network on the engine.

    widths: input first.
    weights: the parameters of each layer, with the bias as the last row.
    inputs: the input of each layer in memory A, first layer first.
    out: the output in memory A.
    deltas: the derivative of each layer's output in memory B.
    """

    widths: tuple[int, ...]
    weights: tuple[Matrix, ...]
    inputs: tuple[Matrix, ...]
    out: Matrix
    deltas: tuple[Matrix, ...]


@dataclass(frozen=True)
class LearnerProgram:
    """A learner: its engine, networks by name, memories, and the program of one gradient step.

    blocks_a, blocks_b: blocks of memory A and of memory B.
    blocks_w: blocks of each memory of targets, moments and gradients.
    heads: rows of the outputs' memories.
    batch, double: sizes of the kernel.
    rows: rows of a sub-batch; the last may have fewer. The sums of a gradient continue from one
        sub-batch to the next, so sub-batches change no bit.
    """

    shape: Shape
    nets: Mapping[str, PlacedNet]
    batch: int
    rows: int
    double: bool
    program: tuple[Instruction, ...]
    blocks_a: int
    blocks_b: int
    blocks_w: int
    heads: int
    observation: int
    action: int

    @property
    def cycles(self) -> int:
        """Cycles of one gradient step from start to idle, without stalls of the stream."""
        return 1 + sum(i.cycles(self.shape) for i in self.program)

    @property
    def name(self) -> str:
        """`arrayN`; with sub-batches of R rows, `arrayN-subR`."""
        return f"array{self.shape.array}" + (f"-sub{self.rows}" if self.rows < self.batch else "")

    @property
    def sub_batches(self) -> list[range]:
        """The rows of each."""
        return _sub_batches(self.batch, self.rows)

    @property
    def rows_again(self) -> int:
        """Rows of observations that the stream brings a second time. The actor of DDPG needs them:
        a sub-batch of the critic overwrites the one before."""
        return self.batch if self.action and self.rows < self.batch else 0

    @property
    def beats(self) -> int:
        """Rows of the batch stream in one gradient step."""
        return sum(i.walked(self.shape.array) for i in self.program if i.op == "load")

    @property
    def stream_words(self) -> int:
        """Words in a row of the stream."""
        return max(4, self.shape.array)

    def blocks(self) -> int:
        """Number of DSP blocks, one per float32 multiply-add.

        The array has n², each lane of Adam 11, the gradient's norm n + 2, the loss 4, and tanh with
        its gradient 6.
        """
        n = self.shape.array
        return n * n + 11 * self.shape.lanes + n + 2 + 4 + (6 if self.action else 0)


def _layer(net: PlacedNet, layer: int, rows: int, n: int, **more: int | bool) -> Instruction:
    """Return the product of a layer's forward pass over `rows` rows."""
    i, weights = net.widths[layer], net.weights[layer]
    hidden = layer < len(net.weights) - 1
    x = net.inputs[layer]
    made = Instruction(
        "mul", k=i + 1, ct=weights.across, rl=(rows - 1) % n + 1, rt=-(-rows // n),
        cl=(net.widths[layer + 1] - 1) % n + 1,
        abase=x.base, a_sr=x.across, a_sk=1, acol=True, ones=True,
        bbase=weights.base, b_sc=1, b_sk=weights.across, brow=True,
        where=IN_A if hidden else HEAD, relu=hidden,
        dbase=net.inputs[layer + 1].base if hidden else 0,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def _forward(net: PlacedNet, rows: int, n: int, first: int = 0, **last: int) -> list[Instruction]:
    """Return a forward pass. first: offset of the input in blocks. last: fields of the last
    product."""
    found = [_layer(net, layer, rows, n) for layer in range(len(net.weights))]
    found[0] = replace(found[0], abase=found[0].abase + first)
    found[-1] = replace(found[-1], **last)  # type: ignore[arg-type]
    return found


def _of_target(program: list[Instruction]) -> list[Instruction]:
    return [replace(i, from_target=True) if i.op == "mul" else i for i in program]


def _sub_batches(batch: int, rows: int) -> list[range]:
    return [range(first, min(first + rows, batch)) for first in range(0, batch, rows)]


def _backward(
    net: PlacedNet, batch: int, n: int, part: tuple[bool, bool] = FIRST_AND_LAST, *,
    gradient: bool = True,
) -> list[Instruction]:  # fmt: skip
    """Return the backward pass, last layer first: gradients of parameters (if `gradient`) and of
    activations. The gradient of a layer's activations overwrites them in memory A.

    part: whether these rows are the first of the batch, and the last.
    """
    found, down = [], -(-batch // n)
    for layer in range(len(net.weights) - 1, -1, -1):
        i, o, weights = net.widths[layer], net.widths[layer + 1], net.weights[layer]
        x, d = net.inputs[layer], net.deltas[layer]
        if gradient:
            found.append(Instruction(
                "mul", k=batch if part[0] else batch + n, rt=weights.down, ct=weights.across,
                rl=i % n + 1, cl=(o - 1) % n + 1, abase=x.base, a_sr=1, a_sk=x.across, ones=True,
                bbase=d.base, b_sc=1, b_sk=d.across, brow=True, where=GRADIENT,
                dbase=weights.base, dbase2=weights.base, variant=not part[0], waits=not part[1],
            ))  # fmt: skip
        if layer:
            after = net.out if layer == len(net.weights) - 1 else net.inputs[layer + 1]
            found.append(Instruction(
                "mul", k=o, rt=down, ct=x.across, rl=(batch - 1) % n + 1, cl=(i - 1) % n + 1,
                abase=after.base, a_sr=after.across, a_sk=1, acol=True,
                bbase=weights.base, b_sc=weights.across, b_sk=1,
                where=IN_A | IN_B, masks=True, dbase=x.base, dbase2=net.deltas[layer - 1].base,
            ))  # fmt: skip
    return found


def _optimise(net: PlacedNet, n: int) -> list[Instruction]:
    """Return the optimiser step: clip, load the constants of the step, update all parameters."""
    found = [Instruction("norm"), Instruction("load", where=6)]
    for layer, w in enumerate(net.weights):
        waits = layer == len(net.weights) - 1
        found.append(
            Instruction(
                "adam",
                dbase=w.base,
                rt=w.down,
                ct=w.across,
                rl=net.widths[layer] % n + 1,
                waits=waits,
            )
        )
    return found


def _rows(where: int, batch: int, across: int, base: int, n: int) -> Instruction:
    return Instruction(
        "load", where=where, rt=-(-batch // n), ct=across, rl=(batch - 1) % n + 1, dbase=base
    )


def _net(
    widths: tuple[int, ...], x: Matrix, rows: int, batch: int, a: Memory, w: Memory
) -> PlacedNet:
    weights = tuple(w.matrix(i + 1, o) for i, o in pairwise(widths))
    inputs = (x, *(a.matrix(rows, width) for width in widths[1:-1]))
    return PlacedNet(widths, weights, inputs, a.matrix(batch, widths[-1]), ())


def _deltas(net: PlacedNet, batch: int, b: Memory) -> PlacedNet:
    return replace(net, deltas=tuple(b.matrix(batch, width) for width in net.widths[1:]))


def _check(outputs: int, rows: int, n: int) -> None:
    """Raise ValueError if the outputs do not fit into a row, or the rows into a counter."""
    if outputs > n:
        raise ValueError(
            f"an array of {n} × {n} elements computes at most {n} outputs, not {outputs}; more "
            "outputs need a larger array"
        )
    if rows > MOST_ROWS:
        raise ValueError(f"a batch of {rows} rows: an engine supports at most {MOST_ROWS}")


def _parts(batch: int, rows: int) -> list[tuple[int, tuple[bool, bool]]]:
    """Return the rows of each sub-batch, and whether it is the first, and the last."""
    found = _sub_batches(batch, rows)
    return [(len(part), (part is found[0], part is found[-1])) for part in found]


def _checked(learner: LearnerProgram) -> LearnerProgram:
    """Return the learner; raise ValueError if its program, with the instructions that load and
    store the parameters, is too long."""
    matrices = sum(len(net.weights) for net in learner.nets.values())
    need = len(learner.program) + 6 * matrices + 1
    if need > PROGRAM_WORDS:
        raise ValueError(
            f"a batch of {learner.batch} rows in sub-batches of {learner.rows} needs {need} "
            f"instructions; an engine has room for {PROGRAM_WORDS}"
        )
    return learner


def dqn(
    widths: tuple[int, ...], batch: int, double: bool, shape: Shape, rows: int = 0
) -> LearnerProgram:
    """Return the learner of DQN, plain or double (`primitives.updates.dqn`).

    rows: of a sub-batch; 0: the whole batch.
    """
    n, rows = shape.array, min(rows or batch, batch)
    _check(widths[-1], rows, n)
    a, w = Memory(n), Memory(n)
    down = -(-rows // n)
    x = a.matrix(2 * down * n, widths[0])
    net = _net(widths, x, down * n + rows if double else rows, rows, a, w)
    b = replace(w)
    net = _deltas(net, rows, b)
    program = list[Instruction]()
    for count, part in _parts(batch, rows):
        down = -(-count // n)  # the padding between both halves included
        half, passed = down * x.across, down * n + count if double else count
        program += [
            _rows(0, count, x.across, x.base, n),
            _rows(0, count, x.across, x.base + half, n),
            _rows(5, count, 1, 0, n),
            *_of_target(_forward(net, count, n, half, where=TARGET_HEAD)),
            *_forward(net, passed, n),
            Instruction(
                "loss", k=count, cl=widths[-1], abase=down, dbase=net.out.base,
                dbase2=net.deltas[-1].base, variant=double,
            ),
            *_backward(net, count, n, part),
        ]  # fmt: skip
    program += [*_optimise(net, n), Instruction("halt")]
    heads = 2 * -(-rows // n) * n
    return _checked(LearnerProgram(
        shape, {"q": net}, batch, rows, double, tuple(program), a.blocks, b.blocks, w.blocks,
        heads, widths[0], 0,
    ))  # fmt: skip


def ddpg(
    actor: tuple[int, ...], critic: tuple[int, ...], batch: int, shape: Shape, rows: int = 0
) -> LearnerProgram:
    """Return the learner of DDPG (`primitives.updates.ddpg`): a critic step, then an actor step.

    rows: of a sub-batch; 0: the whole batch.
    """
    n, seen, act, rows = shape.array, actor[0], actor[-1], min(rows or batch, batch)
    _check(act, rows, n)
    a, w = Memory(n), Memory(n)
    x, x_next = a.matrix(rows, critic[0]), a.matrix(rows, critic[0])
    mu, q = _net(actor, x, rows, rows, a, w), _net(critic, x, rows, rows, a, w)
    b = replace(w)
    mu, q = _deltas(mu, rows, b), _deltas(q, rows, b)
    ahead = x_next.base - x.base
    first, last = seen // n, (critic[0] - 1) // n
    tail = last - first + 1
    after = q.inputs[1] if len(q.weights) > 1 else q.out
    critics, actors = list[Instruction](), list[Instruction]()
    for count, part in _parts(batch, rows):
        squash = Instruction(
            "squash", k=count, cl=act, lane0=seen % n, dbase=x.base + first, d_sr=x.across,
            variant=True,
        )  # fmt: skip
        loss = Instruction("loss", k=count, cl=1, dbase=q.out.base, dbase2=q.deltas[-1].base)
        seen_rows = _rows(0, count, x.across, x.base, n)
        critics += [
            seen_rows,
            _rows(0, count, x.across, x_next.base, n),
            _rows(5, count, 1, 0, n),
            *_of_target(_forward(mu, count, n, ahead)),
            replace(squash, dbase=x_next.base + first, variant=False),
            *_of_target(_forward(q, count, n, ahead, where=TARGET_HEAD)),
            *_forward(q, count, n),
            loss,
            *_backward(q, count, n, part),
        ]
        if rows < batch:
            actors.append(seen_rows)
        actors += [
            *_forward(mu, count, n),
            squash,
            *_forward(q, count, n),
            replace(loss, waits=True),
            *_backward(q, count, n, gradient=False),
            Instruction(  # gradient of the action: a few columns of the first layer
                "mul", k=critic[1], rt=-(-count // n), ct=tail, rl=(count - 1) % n + 1, cl=n,
                abase=after.base, a_sr=after.across, a_sk=1, acol=True,
                bbase=q.weights[0].base + first * q.weights[0].across,
                b_sc=q.weights[0].across, b_sk=1, where=TARGET_HEAD,
            ),
            Instruction(
                "back", k=count, cl=act, lane0=seen % n, ct=tail, dbase=mu.out.base,
                dbase2=mu.deltas[-1].base, d_sr=1,
            ),
            *_backward(mu, count, n, part),
        ]  # fmt: skip
    program = *critics, *_optimise(q, n), *actors, *_optimise(mu, n), Instruction("halt")
    heads = tail * -(-rows // n) * n
    return _checked(LearnerProgram(
        shape, {"actor": mu, "critic": q}, batch, rows, False, program, a.blocks, b.blocks,
        w.blocks, heads, seen, act,
    ))  # fmt: skip


def transfer(learner: LearnerProgram, op: str, place: str) -> tuple[Instruction, ...]:
    """Return the program that loads or stores (`op`) all parameters (place B), targets (T) or
    moments (M, V)."""
    at, n = PLACES.index(place), learner.shape.array
    walks = [
        Instruction(
            op, where=at, dbase=w.base, rt=w.down, ct=w.across, rl=net.widths[layer] % n + 1
        )
        for net in learner.nets.values()
        for layer, w in enumerate(net.weights)
    ]
    return (*walks, Instruction("halt"))


def acting(widths: tuple[int, ...], rows: int, shape: Shape) -> LearnerProgram:
    """Return the engine of a forward pass only. The host chooses actions from the outputs."""
    n = shape.array
    _check(widths[-1], rows, n)
    a, w = Memory(n), Memory(n)
    down = -(-rows // n)
    x = a.matrix(rows, widths[0])
    net = _net(widths, x, rows, rows, a, w)
    program = (
        _rows(0, rows, x.across, x.base, n),
        *_forward(net, rows, n),
        replace(_rows(PLACES.index("heads"), rows, 1, 0, n), op="store"),
        Instruction("halt"),
    )
    return LearnerProgram(
        shape, {"q": net}, rows, rows, False, program, a.blocks, w.blocks, w.blocks, down * n,
        widths[0], 0,
    )  # fmt: skip


def of_dqn(kernel: Kernel, shape: Shape, rows: int = 0) -> LearnerProgram:
    """Return the learner of a kernel update.dqn. rows: of a sub-batch; 0: the whole batch."""
    double = bool(kernel.dim("double"))
    return dqn(kernel.layers(), kernel.dim("batch"), double, shape, rows)


def of_ddpg(kernel: Kernel, shape: Shape, rows: int = 0) -> LearnerProgram:
    """Return the learner of a kernel update.ddpg. rows: of a sub-batch; 0: the whole batch."""
    actor, critic = kernel.layers("actor"), kernel.layers("critic")
    return ddpg(actor, critic, kernel.dim("batch"), shape, rows)


def of_acting(kernel: Kernel, shape: Shape) -> LearnerProgram:
    """Return the engine of an inference kernel."""
    return acting(kernel.layers(), kernel.dim("envs"), shape)
