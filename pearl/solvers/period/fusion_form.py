"""The period form of every set of fused calls at once: a bound, and the set to try next."""

from __future__ import annotations

import math
from collections.abc import Collection

from pearl.graph.period import Unit
from pearl.planning.problem import Problem
from pearl.solvers.model.fusion_space import FusionSpace
from pearl.solvers.model.linear import Terms
from pearl.solvers.model.result import Candidate
from pearl.solvers.period.period_form import PeriodForm


class FusionForm(PeriodForm):
    """The program of the relaxed space of `fusion_space`.

    fused: fused call → terms with the value 1 if the plan runs it.
    """

    parts = True

    def __init__(self, fusions: FusionSpace, problem: Problem, known: Candidate | None) -> None:
        super().__init__(fusions.relaxed, problem, known)
        self.fused: dict[Unit, Terms] = {unit: [] for unit in fusions.units}
        unit_of = {tasks[0]: u for u, tasks in enumerate(self.space.expansion.units)}
        for call, m in fusions.calls:
            shares = []
            for t in call:
                u = unit_of[t]
                o = self.space.options[u].index(fusions.part(m, t))
                own = self.own[m.device]
                shares.append(
                    {-1 if own else k: self.x[u, o, k] for n, k in self._by_unit[u] if n == o}
                )
            first, *others = shares
            for share in others:
                for lane, v in first.items():
                    if v != share[lane]:
                        self.linear.add([(v, 1.0), (share[lane], -1.0)], 0.0, 0.0)
            self.fused[call] += [(v, 1.0) for v in first.values()]

    def choose(self, below: float, seconds: float) -> tuple[float, tuple[Unit, ...] | None, bool]:
        """Return (proven lower bound of the cost, fused calls, whether the solver finished) of the
        best set that is not excluded and costs at most `below`; None if there is no such set."""
        dual, x, finished = self.linear.minimise(self.objective_terms, below * self._unit, seconds)
        chosen = None
        if x is not None:
            chosen = tuple(
                unit for unit, terms in self.fused.items() if sum(x[v] for v, _ in terms) > 0.5
            )
        return dual / self._unit, chosen, finished

    def exclude(self, chosen: Collection[Unit], *, larger: bool = False) -> None:
        """Exclude a set of fused calls. larger: and every set that contains it."""
        row: Terms = []
        for unit, terms in self.fused.items():
            if unit in chosen or not larger:
                row += [(v, c if unit in chosen else -c) for v, c in terms]
        self.linear.add(row, -math.inf, len(chosen) - 1.0)
