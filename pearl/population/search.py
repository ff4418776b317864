"""The ways of searching: `sweep`, `asha`, `tournament`, with their options checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pearl.errors import SpecError
from pearl.population.members import Population
from pearl.population.schedulers import Grid, RunStage, Scheduler, SuccessiveHalving, rungs
from pearl.population.tournament import Tournament
from pearl.spec.user_code import build_graph
from pearl_devices.validation import mistyped

ASHA = ("eta", "min_steps")
TOURNAMENT = ("rounds", "members", "board")
MOST_ROUNDS = 100_000
"""Rounds of all members together at most (assumed)."""


def kind_of(
    asha: Mapping[str, int] | None, tournament: Mapping[str, int] | None
) -> tuple[str, dict[str, int]]:
    """The way of searching and its options.

    Raises:
        SpecError: both are given, or an option is missing, unknown or no whole number.
    """
    if asha is not None and tournament is not None:
        raise SpecError("asha and tournament are both given; a population is searched in one way")
    for kind, given, names in (("asha", asha, ASHA), ("tournament", tournament, TOURNAMENT)):
        if given is None:
            continue
        if problems := mistyped(kind, given, Mapping, f"a mapping of {', '.join(names)}"):
            raise SpecError(*problems)
        wrong = [n for n in names if type(given.get(n)) is not int or given[n] < 1]
        if wrong or set(given) != set(names):
            raise SpecError(
                f"{kind} is {dict(given)!r}; {', '.join(names)} are needed, whole numbers from 1 on"
            )
        return kind, dict(given)
    return "sweep", {}


def check(kind: str, options: Mapping[str, int], asked: Population, *, seeds_given: bool) -> None:
    """Check that a population can be searched in this way.

    Raises:
        SpecError: a line for everything in the way.
    """
    problems = []
    for s in asked.settings:
        if not s.system.train.final_episodes:
            problems.append(
                f"{s.name}: train.final_episodes is 0, and runs are compared by their final "
                "evaluation; set it to 10, say"
            )
    steps = [s.system.train.steps for s in asked.settings]
    if kind != "sweep":
        if not asked.over:
            problems.append(f"{kind} compares settings, and nothing varies; give --over (`over`)")
        if len(set(steps)) > 1:
            problems.append(f"{kind} decides over env steps, so train.steps cannot be varied")
    if kind == "asha":
        if options["eta"] < 2:
            problems.append(f"asha: eta is {options['eta']}; at least 2 is needed")
        if options["min_steps"] >= min(steps):
            problems.append(
                f"asha: min_steps is {options['min_steps']}; fewer than train.steps, which is "
                f"{min(steps)}, are needed"
            )
    if kind == "tournament":
        if seeds_given:
            problems.append("tournament: seeds are of its members: give train.seed, the first one")
        if options["rounds"] > min(steps):
            problems.append(
                f"tournament: rounds is {options['rounds']}; at most train.steps are possible, "
                f"which is {min(steps)}, for a round has its share of them"
            )
        if options["rounds"] * options["members"] > MOST_ROUNDS:
            problems.append(f"tournament: at most {MOST_ROUNDS:,} rounds are allowed in all")
        first = build_graph(asked.settings[0].system)
        if any(build_graph(s.system) != first for s in asked.settings[1:]):
            problems.append(
                f"tournament: {', '.join(asked.over)}: a member goes on from the checkpoint of "
                "another, which these values give other sizes; vary options such as learning_rate"
            )
    if problems:
        raise SpecError(*dict.fromkeys(problems))


def members(asked: Population, options: Mapping[str, int]) -> list[RunStage]:
    """The first rounds of a tournament. Settings are given out in turn; seeds rise by one."""
    steps = -(-asked.settings[0].system.train.steps // options["rounds"])
    digits = len(str(options["members"]))
    found = []
    for number in range(options["members"]):
        s = asked.settings[number % len(asked.settings)]
        name, seed = f"member-{number + 1:0{digits}}", asked.seeds[0] + number
        found.append(RunStage(name, s.name, s.values, seed, steps))
    return found


def scheduler(
    kind: str,
    options: Mapping[str, int],
    asked: Population,
    runs: Sequence[RunStage],
) -> Scheduler:
    """The scheduler of a population. runs: of a sweep, in their order."""
    if kind == "sweep":
        return Grid(runs)
    if kind == "asha":
        steps = asked.settings[0].system.train.steps
        marks = rungs(options["min_steps"], steps, options["eta"])
        return SuccessiveHalving(asked.runs(), marks, options["eta"])
    return Tournament(
        members(asked, options),
        rounds=options["rounds"],
        size=options["board"],
        over=asked.over,
        seed=asked.seeds[0],
    )
