"""The parts of a task graph: tasks, edges that carry bytes, rates and tokens, and fusions.

Synchronous dataflow (Lee and Messerschmitt 1987). See `docs/theory.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pearl.errors import SpecError
from pearl.graph.limits import SLACK_LIMITS
from pearl_devices import Kernel
from pearl_devices.validation import explain_misfit, is_names, is_whole, quote

RESERVED = ">+#"
"""Characters that no task name may contain: transfers are called `src>device`, fused calls `a+b`,
copies of a split task `task#0`."""


@dataclass(frozen=True)
class Replica:
    """The identity of a copy of a split task.

    task: name of the split task.
    replica: number of the copy, from 0.
    shares: environments of all copies.
    """

    task: str
    replica: int
    shares: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """A kernel that fires repeatedly.

    Attributes:
        name: not empty, without the characters of `RESERVED`.
        kernel: the computation of one firing; default an unknown kernel with the task's name, for
            modes with given times.
        reads: names of mutable states (`TaskGraph.states` gives their bytes). All tasks of one
            state run on one device, except a copying task for the states that it writes.
        writes: names of mutable states that it writes.
        copies: the task copies one state to another (sync) and stays with the state it reads.
        group: tasks of one group run on one device.
        environments: environments of one firing, which replicas may share out; 0: never split.
        part: identity of a copy made by `pearl.planning.replicas`; None for a whole task.

    Raises:
        SpecError: a field has another type, or the name is empty or reserved.
    """

    name: str
    kernel: Kernel = None  # type: ignore[assignment]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    copies: bool = False
    group: str | None = None
    environments: int = 0
    part: Replica | None = None

    def __post_init__(self) -> None:
        if self.kernel is None:
            object.__setattr__(self, "kernel", Kernel(str(self.name)))
        problems = [
            f"task {quote(self.name)}: {name} is {quote(getattr(self, name))}; {needed} is needed"
            for name, fits, needed in (
                ("name", isinstance(self.name, str), "text"),
                ("kernel", isinstance(self.kernel, Kernel), "a Kernel"),
                ("reads", is_names(self.reads), "a tuple of the names of states"),
                ("writes", is_names(self.writes), "a tuple of the names of states"),
                ("copies", isinstance(self.copies, bool), "True or False"),
                ("group", self.group is None or isinstance(self.group, str), "text or None"),
                (
                    "environments",
                    is_whole(self.environments) and self.environments >= 0,
                    "a whole number of at least 0",
                ),
            )
            if not fits
        ]
        if problems:
            raise SpecError(*problems)
        object.__setattr__(self, "reads", tuple(self.reads))
        object.__setattr__(self, "writes", tuple(self.writes))
        found = [c for c in RESERVED if c in self.name] if self.part is None else []
        if not self.name or found:
            what = f"holds {' and '.join(map(repr, found))}" if found else "is empty"
            raise SpecError(
                f"task {self.name!r}: its name {what}; give it another: plans write "
                "transfers as 'src>device', fused calls as 'a+b' and copies as 'task#0'"
            )

    @property
    def home(self) -> tuple[str, ...]:
        """The states whose device must be the task's device."""
        return self.reads if self.copies else tuple(dict.fromkeys(self.reads + self.writes))


@dataclass(frozen=True)
class Edge:
    """A channel of tokens from task `src` to task `dst`.

    Attributes:
        src: name of the task that produces.
        dst: name of the task that consumes.
        production: tokens per firing of src.
        consumption: tokens per firing of dst.
        tokens_seq: initial tokens of the sequential program.
        slack: relaxation on top, in firings of the rarer side.
        bytes: bytes per firing of src; 0 for an edge that only orders.
        limit: the key of `Limits` that bounds the slack; None: no slack.
        reach: which tokens of an iteration a firing of dst reads, t being its last: 0 for point t,
            n for window t..t+n, None for suffix t..T. The last token of the iteration ends a
            window.

    Raises:
        SpecError: a field has another type, or a number is out of range.
    """

    src: str
    dst: str
    production: int = 1
    consumption: int = 1
    tokens_seq: int = 0
    slack: int = 0
    bytes: float = 0.0
    limit: str | None = None
    reach: int | None = 0

    def __post_init__(self) -> None:
        for name in ("src", "dst"):
            if not isinstance(getattr(self, name), str):
                raise SpecError(
                    f"edge {quote(self.src)} → {quote(self.dst)}: {name} is "
                    f"{quote(getattr(self, name))}; the name of a task is needed"
                )
        where = f"edge {self.src} → {self.dst}"
        for name in ("production", "consumption", "tokens_seq", "slack"):
            value = getattr(self, name)
            if not is_whole(value):
                raise SpecError(
                    f"{where}: {name} is {quote(value)}; a whole number is needed, at most 2^53"
                )
            if type(value) is not int:  # numpy's
                object.__setattr__(self, name, int(value))
        if self.limit is not None and self.limit not in SLACK_LIMITS:
            raise SpecError(
                f"{where}: limit is {quote(self.limit)}; it names what bounds the slack, one of "
                f"{', '.join(SLACK_LIMITS)}"
            )
        if self.production < 1 or self.consumption < 1:
            raise SpecError(
                f"{where}: rates are {self.production} → {self.consumption}; at least 1 each"
            )
        if self.tokens_seq < 0 or self.slack < 0:
            raise SpecError(
                f"{where}: tokens {self.tokens_seq}, slack {self.slack}; both must be at least 0"
            )
        if wrong := explain_misfit(self.bytes):
            raise SpecError(f"{where}: bytes {wrong}")
        if self.reach is not None and not (is_whole(self.reach) and self.reach >= 0):
            raise SpecError(
                f"{where}: reach is {quote(self.reach)}; needed is 0 (point t), a whole number n "
                "above it (window t..t+n), or None (suffix t..T)"
            )

    @property
    def tokens(self) -> int:
        return self.tokens_seq + self.slack * max(self.production, self.consumption)

    def tokens_needed(self, firing: int, per_iteration: int) -> int:
        """Tokens, initial ones included, that firing `firing` (from 0) of dst waits for.

        Args:
            per_iteration: firings of dst in one iteration.
        """
        end = (firing + 1) * self.consumption
        if self.reach == 0:
            return end
        whole = (firing // per_iteration + 1) * per_iteration * self.consumption
        return whole if self.reach is None else min(end + self.reach, whole)

    @property
    def is_channel(self) -> bool:
        """Whether the edge carries data between two tasks, so that its buffer has a capacity."""
        return self.bytes > 0 and self.src != self.dst

    @property
    def least_capacity(self) -> int:
        """Least tokens that a channel must hold so that its tasks can fire for ever."""
        p, c = self.production, self.consumption
        return self.tokens + p + c - math.gcd(p, c)


@dataclass(frozen=True)
class Fusion:
    """A set of tasks that may run as one call per iteration, on one lane (a fused mode).

    Attributes:
        name: for messages.
        tasks: the names of its tasks.
        kernel: the computation of one call; default an unknown kernel with the fusion's name, for
            modes with given times.
        shares: task → its share of a call's time in plans, 1 in total. None: by the tasks' own
            costs.

    Raises:
        SpecError: a field has another type, or the shares are not those of its tasks.
    """

    name: str
    tasks: tuple[str, ...]
    kernel: Kernel = None  # type: ignore[assignment]
    shares: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        where, tasks = f"fusion {quote(self.name)}", self.tasks
        if self.kernel is None:
            object.__setattr__(self, "kernel", Kernel(str(self.name)))
        if not is_names(tasks) or len(set(tasks)) < max(2, len(tasks)):
            raise SpecError(f"{where}: tasks is {quote(tasks)}; it must name several, each once")
        if not isinstance(self.kernel, Kernel):
            raise SpecError(f"{where}: kernel is {quote(self.kernel)}; a Kernel is needed")
        object.__setattr__(self, "tasks", tuple(tasks))
        if self.shares is not None:
            given = self.shares if isinstance(self.shares, Mapping) else {}
            sound = set(given) == set(tasks) and not any(explain_misfit(s) for s in given.values())
            if not sound or abs(math.fsum(given.values()) - 1) > 1e-9:
                raise SpecError(
                    f"{where}: shares are {quote(self.shares)}; they need a number of at least 0 "
                    f"for each of {', '.join(tasks)}, 1 in all"
                )
            object.__setattr__(self, "shares", MappingProxyType(dict(given)))
