"""A tournament without generations: every new round starts from a run on a bounded leaderboard.

After ElegantRL-Podracer (Liu et al. 2021, arXiv 2112.05923) and population-based training
(Jaderberg et al. 2017, arXiv 1711.09846). No member waits for another. A round that has ended
enters the leaderboard. Its slot starts the next round at once, from a run on the leaderboard
(exploit) with perturbed options (explore).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pearl.population.schedulers import RunStage

FACTORS = (0.8, 1.25)
"""One of these factors perturbs a number; Jaderberg et al. 2017 use 0.8 and 1.2."""


@dataclass(frozen=True)
class LeaderboardEntry:
    """A place on the leaderboard.

    round: the round that has ended.
    score: mean return of the policy at the end of the round.
    """

    round: RunStage
    score: float


class Tournament:
    """Rounds of members, each from a run that is on the leaderboard when the round starts.

    members: the first round of each; its `steps` are the env steps of every round.
    rounds: of each member.
    size: places on the leaderboard. Of equal scores, the earlier one ranks higher.
    over: key → the values that the members start with. A perturbed number stays between the least
        and the largest of them; any other value is sampled from them.
    seed: of all random decisions.
    board: the leaderboard, best first.
    """

    def __init__(
        self,
        members: Sequence[RunStage],
        *,
        rounds: int,
        size: int,
        over: Mapping[str, Sequence[object]],
        seed: int,
    ) -> None:
        self._members, self._rounds, self._size = tuple(members), rounds, size
        self._over, self._seed = dict(over), seed
        self._free = deque((number, 1) for number in range(len(members)))
        self._number = {m.run: number for number, m in enumerate(members)}
        self._under_way: dict[str, tuple[int, int]] = {}
        self._drawn = 0
        self.board: tuple[LeaderboardEntry, ...] = ()

    def next(self) -> RunStage | None:
        if not self._free:
            return None
        number, at = self._free.popleft()
        first = self._members[number]
        stage = first if at == 1 else self._from_board(first, at)
        self._under_way[stage.run] = number, at
        return stage

    def _from_board(self, first: RunStage, at: int) -> RunStage:
        draw = random.Random(f"{self._seed} {self._drawn}")
        self._drawn += 1
        run, seed = f"{first.run}-round-{at}", draw.getrandbits(62)
        if not self.board:
            reason = "the leaderboard is empty: starts with new weights"
            return RunStage(run, run, first.values, seed, first.steps, None, reason)
        place = draw.randrange(len(self.board))
        parent = self.board[place].round
        values = {key: self._perturbed(draw, key, value) for key, value in parent.values.items()}
        reason = f"from {parent.run}, {place + 1} of {len(self.board)} on the leaderboard"
        return RunStage(run, run, values, seed, parent.steps + first.steps, parent.run, reason)

    def _perturbed(self, draw: random.Random, key: str, value: object) -> object:
        values = self._over[key]
        numbers = [float(v) for v in values if isinstance(v, int | float) and v is not True]
        if isinstance(value, float) and len(numbers) == len(values):
            return min(max(value * draw.choice(FACTORS), min(numbers)), max(numbers))
        return draw.choice(values)

    def on_end(self, stage: RunStage, score: float | None) -> None:
        number, at = self._under_way.pop(stage.run)
        if score is not None:
            entries = (*self.board, LeaderboardEntry(stage, score))
            self.board = tuple(sorted(entries, key=lambda s: -s.score)[: self._size])
        if at < self._rounds:
            self._free.append((number, at + 1))
