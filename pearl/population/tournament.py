"""A tournament without generations: a bounded leaderboard from which every next round begins.

After ElegantRL-Podracer (Liu et al. 2021, arXiv 2112.05923) and population-based training
(Jaderberg et al. 2017, arXiv 1711.09846). No member waits for another: a round that has ended
enters the board, and the slot that it leaves begins the next round at once, from a run of the board
(exploit) with options changed (explore).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pearl.population.schedulers import RunStage

FACTORS = (0.8, 1.25)
"""By one of these a number is multiplied; Jaderberg et al. 2017 take 0.8 and 1.2."""


@dataclass(frozen=True)
class LeaderboardEntry:
    """A place of the board: a round that has ended, and its score."""

    round: RunStage
    score: float


class Tournament:
    """Rounds of members, each from the leaderboard as it then is.

    members: the first round of each; `steps` is that of one round.
    rounds: how many each member has.
    size: places of the board. Of equal scores the earlier stands higher.
    over: key → the values that members began with. Explored numbers stay between the least and the
        largest; other values are drawn from these.
    seed: of all draws.
    board: the standings, best first.
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
        begun = first if at == 1 else self._from_board(first, at)
        self._under_way[begun.run] = number, at
        return begun

    def _from_board(self, first: RunStage, at: int) -> RunStage:
        draw = random.Random(f"{self._seed} {self._drawn}")
        self._drawn += 1
        run, seed = f"{first.run}-round-{at}", draw.getrandbits(62)
        if not self.board:
            why = "nothing is on the board: it begins anew"
            return RunStage(run, run, first.values, seed, first.steps, None, why)
        place = draw.randrange(len(self.board))
        parent = self.board[place].round
        values = {key: self._explored(draw, key, value) for key, value in parent.values.items()}
        why = f"from {parent.run}, {place + 1} of {len(self.board)} on the board"
        return RunStage(run, run, values, seed, parent.steps + first.steps, parent.run, why)

    def _explored(self, draw: random.Random, key: str, value: object) -> object:
        given = self._over[key]
        numbers = [float(v) for v in given if isinstance(v, int | float) and v is not True]
        if isinstance(value, float) and len(numbers) == len(given):
            return min(max(value * draw.choice(FACTORS), min(numbers)), max(numbers))
        return draw.choice(given)

    def ended(self, stretch: RunStage, score: float | None) -> None:
        number, at = self._under_way.pop(stretch.run)
        if score is not None:
            standings = (*self.board, LeaderboardEntry(stretch, score))
            self.board = tuple(sorted(standings, key=lambda s: -s.score)[: self._size])
        if at < self._rounds:
            self._free.append((number, at + 1))
