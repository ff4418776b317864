"""The kinds of search: `sweep`, `asha`, `tournament`, with checked options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pearl.errors import SpecError
from pearl.population.members import Population
from pearl.population.schedulers import GridScheduler, RunStage, Scheduler, SuccessiveHalving, rungs
from pearl.population.tournament import Tournament
from pearl.spec.user_code import build_graph
from pearl_devices.validation import check_type

ASHA = ("eta", "min_steps")
TOURNAMENT = ("rounds", "members", "board")
MOST_ROUNDS = 100_000
"""Limit of the rounds of all members together (assumed)."""


def search_kind(
    asha: Mapping[str, int] | None, tournament: Mapping[str, int] | None
) -> tuple[str, dict[str, int]]:
    """Return the kind of search and its options.

    Raises:
        SpecError: both are given, or an option is missing, unknown or not a whole number.
    """
    if asha is not None and tournament is not None:
        raise SpecError("asha and tournament are both given; leave one of them out")
    for kind, options, names in (("asha", asha, ASHA), ("tournament", tournament, TOURNAMENT)):
        if options is None:
            continue
        if problems := check_type(kind, options, Mapping, f"a mapping of {', '.join(names)}"):
            raise SpecError(*problems)
        wrong = [n for n in names if type(options.get(n)) is not int or options[n] < 1]
        if wrong or set(options) != set(names):
            raise SpecError(
                f"{kind} is {dict(options)!r}; {', '.join(names)} must be whole numbers above 0"
            )
        return kind, dict(options)
    return "sweep", {}


def check(
    kind: str, options: Mapping[str, int], population: Population, *, seeds_given: bool
) -> None:
    """Check that this kind of search fits a population.

    Raises:
        SpecError: it does not; with a line for every problem.
    """
    problems = []
    for s in population.settings:
        if not s.system.train.final_episodes:
            problems.append(
                f"{s.name}: train.final_episodes is 0, but a sweep compares runs by their "
                "final evaluation; set it to 10, for example"
            )
    steps = [s.system.train.steps for s in population.settings]
    if kind != "sweep":
        if not population.over:
            problems.append(f"{kind} compares settings, but nothing varies; give --over (`over`)")
        if len(set(steps)) > 1:
            problems.append(f"{kind} divides the env steps itself, so train.steps cannot be varied")
    if kind == "asha":
        if options["eta"] < 2:
            problems.append(f"asha: eta is {options['eta']}; at least 2 is needed")
        if options["min_steps"] >= min(steps):
            problems.append(
                f"asha: min_steps is {options['min_steps']}; it must be less than train.steps, "
                f"{min(steps)}"
            )
    if kind == "tournament":
        if seeds_given:
            problems.append(
                "tournament: members have consecutive seeds; give the first as train.seed"
            )
        if options["rounds"] > min(steps):
            problems.append(
                f"tournament: rounds is {options['rounds']}; at most train.steps, {min(steps)}, "
                "are possible, because the rounds divide these env steps"
            )
        if options["rounds"] * options["members"] > MOST_ROUNDS:
            problems.append(f"tournament: at most {MOST_ROUNDS:,} rounds are allowed in all")
        first = build_graph(population.settings[0].system)
        if any(build_graph(s.system) != first for s in population.settings[1:]):
            problems.append(
                f"tournament: {', '.join(population.over)}: a member resumes from the checkpoint "
                "of another member, but these values change the sizes of its arrays; vary options "
                "such as learning_rate"
            )
    if problems:
        raise SpecError(*dict.fromkeys(problems))


def members(population: Population, options: Mapping[str, int]) -> list[RunStage]:
    """List the first round of each member. Settings take turns; seeds rise by one."""
    steps = -(-population.settings[0].system.train.steps // options["rounds"])
    digits = len(str(options["members"]))
    stages = []
    for number in range(options["members"]):
        s = population.settings[number % len(population.settings)]
        name, seed = f"member-{number + 1:0{digits}}", population.seeds[0] + number
        stages.append(RunStage(name, s.name, s.values, seed, steps))
    return stages


def scheduler(
    kind: str, options: Mapping[str, int], population: Population, runs: Sequence[RunStage]
) -> Scheduler:
    """Make the scheduler of a population. runs: of a plain sweep, in order."""
    if kind == "sweep":
        return GridScheduler(runs)
    if kind == "asha":
        steps = population.settings[0].system.train.steps
        marks = rungs(options["min_steps"], steps, options["eta"])
        return SuccessiveHalving(population.runs(), marks, options["eta"])
    return Tournament(
        members(population, options),
        rounds=options["rounds"],
        size=options["board"],
        over=population.over,
        seed=population.seeds[0],
    )
