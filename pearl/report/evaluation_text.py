"""Evaluations in words: where a run plays them, and the time until the first good result."""

from __future__ import annotations

from pearl.formatting import NONE, band, count, percent, si
from pearl.planning.plans import EvaluationPlacement
from pearl.planning.runs import TimeToSolution


def evaluation_row(e: EvaluationPlacement) -> tuple[str, ...]:
    """Return the row of evaluations, in the columns of the assignment."""
    return (
        "evaluation",
        "its own" if e.apart else "at pauses",
        e.device,
        e.variant,
        f"1 in {count(e.every)} iterations",
        f"up to {si(e.seconds, 's')}",
        band(e.low_s, e.high_s, "s"),
        NONE if e.apart else f"up to {percent(e.share)} more",
        e.rung,
        "length of episodes",
    )


def evaluation_sentence(e: EvaluationPlacement) -> str:
    """Return where evaluations are played, and their cost for the loop."""
    subject = f"evaluation, {count(e.episodes)} episodes in lock-step,"
    longest = f"{percent(e.share)} more time if every episode has the greatest allowed length"
    if not e.apart:
        return f"{subject} is played while the lanes wait: {longest}"
    fewer = f" in a run of at least {count(e.pays_from)} evaluations" if e.pays_from > 1 else ""
    return (
        f"{subject} is played in a separate process{fewer}, and its result is known one "
        f"interval later; if the lanes waited, it would take {longest}"
    )


def time_to_solution_text(solution: TimeToSolution) -> str:
    """Return the time of a run to the threshold of its environment, to its best policy and to its
    end, and the part of the time that was not training."""
    parts = []
    if solution.threshold_s is not None:
        parts.append(
            f"{si(solution.threshold_s, 's')} to a return of {solution.threshold:g} "
            f"(env step {count(solution.threshold_env_steps)})"
        )
    elif solution.threshold is not None:
        parts.append(f"a return of {solution.threshold:g} was not reached")
    if solution.best_s is not None and solution.best_mean is not None:
        parts.append(
            f"{si(solution.best_s, 's')} to the best, {count(solution.best_mean)} "
            f"(env step {count(solution.best_env_steps)})"
        )
    parts.append(f"{si(solution.end_s, 's')} to the end")
    names = ("planning", "compiling and binding", "evaluation", "checkpoints")
    durations = (solution.plan_s, solution.bind_s, solution.evaluation_s, solution.checkpoint_s)
    waits = [f"{si(each, 's')} {name}" for name, each in zip(names, durations, strict=True) if each]
    return ", ".join(parts) + (f"; not training: {', '.join(waits)}" if waits else "")
