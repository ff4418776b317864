"""The three sentences at the top of a page: what you get, what limits it, what would help most."""

from __future__ import annotations

from pearl.formatting import count, listed, number, si
from pearl.planning.plans import Lane, Placement, Plan
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.bands_text import gap_text, rate_band
from pearl.report.document import LeadSentence
from pearl.report.figures.ratios import comparisons
from pearl.report.figures.timeline import iteration_s

GET, GOT = "What you get", "What you got"
LIMITS, HELPS = "What limits it", "What would help most"

FORGOTTEN = 0.9
"""If the last policy has a smaller share of the best return, the run forgot its best policy."""
NOTHING = 0.02
"""A change that gains a smaller share of speed is not mentioned (assumed)."""
NEVER_WAITS = 0.98
"""Load from which a lane sets the pace, even if the plan names a cycle as its bound."""
MOSTLY = 0.5
"""If a lane waits for a larger share of its time, the lane does not set the pace."""
NEGLIGIBLE = 0.005
"""If a lane waits for a smaller share of its time, sentences say that it never waits."""
BUSY = 0.1
"""Share of time without a core from which the host counts as busy."""


def plan_lead(plan: Plan, help_sentence: LeadSentence | None = None) -> tuple[LeadSentence, ...]:
    """Return the lead of a plan. help_sentence: from an explanation; by default from the plan."""
    return (_gets(plan), limit_sentence(plan), help_sentence or _plan_help(plan))


def run_lead(run: Run) -> tuple[LeadSentence, ...]:
    """Return the lead of a run: the result first, and bad news in its first words."""
    if run.status == "failed" and not run.env_steps:  # nothing ran that could be limited
        return (_got(run), _run_help(run))
    return (_got(run), _run_limit(run), _run_help(run))


def percent(share: float) -> str:
    """Return a rounded share for sentences: `72 %`, `0.4 %`."""
    value = 100 * share
    whole = (abs(value) >= 9.5 and not 99 < value < 99.95) or value == 0
    text = f"{value:.0f}" if whole else f"{value:.1f}"
    return f"{text}{words.BLANK}%".replace("-", "−")


def _rate(plan: Plan) -> str:
    if plan.value_unit == "s":
        return si(plan.value, "s")
    return f"{rounded(plan.value)} {plan.value_unit}"


def rounded(value: float) -> str:
    """Return two or three digits, as in speech: `9,600`."""
    if value >= 1000:
        digits = 10.0 ** (len(f"{value:.0f}") - 3)
        value = round(value / digits) * digits
    return count(value)


def where(plan: Plan) -> str:
    """Return where the tasks run, in one phrase: `with step on the CPU and all else on the GPU`."""
    places: dict[str, list[str]] = {}
    for t in plan.tasks:
        name = t.task
        if name not in places.setdefault(t.device, []):
            places[t.device].append(name)
    names = {d: the_device(plan, d) for d in places}
    if len(places) == 1:
        device = next(iter(places))
        lanes = [k for k in plan.lanes if k.width and k.device == device]
        cores = sum(k.width for k in lanes)
        if lanes and lanes[0].width_unit == "cores":
            return f"with everything on {count(cores)} CPU core{'s' if cores > 1 else ''}"
        return f"with everything on {names[device]}"
    most = max(places, key=lambda d: len(places[d]))
    rest = [f"{listed(some)} on {names[d]}" for d, some in places.items() if d != most]
    return f"with {listed(rest)} and all else on {names[most]}"


def the_device(plan: Plan, device: str) -> str:
    """Return a device in a sentence: `the GPU`; a custom name without the article."""
    name = words.device_name(device, plan.simulated)
    return f"the {name}" if name[:2].isupper() else name


def _gets(plan: Plan) -> LeadSentence:
    if plan.value_unit == "s":
        answer, reason = f"The first iteration takes {si(plan.value, 's')}", ""
    else:
        answer, reason = f"About {_rate(plan)}", ""
        ends = rate_band(plan)
        if ends:
            reason = f", likely {rounded(ends[0])} to {rounded(ends[1])}"
    reason += f", {where(plan)}"
    if plan.status != "optimal":
        least = "" if plan.gap < 0.0005 else "at most "
        reason += f"; a better plan may exist, by {least}{gap_text(plan)}"
    return LeadSentence(GET, answer, f"{reason}.")


def largest_task(plan: Plan, tasks: tuple[str, ...] = ()) -> Placement:
    """Return the task with the largest share of an iteration, among `tasks` if there are any."""
    some = [t for t in plan.tasks if t.task in tasks] or plan.tasks
    return max(some, key=lambda t: t.share_of_period)


def limit_sentence(plan: Plan) -> LeadSentence:
    """Return what limits an iteration."""
    b, period = plan.bottleneck, si(plan.period_s, "s")
    if plan.pace_s is not None and plan.pace_s >= plan.period_s:
        reason = f": iterations start {si(plan.pace_s, 's')} apart to respect it; devices wait."
        return LeadSentence(LIMITS, "The limit on power", reason)
    most = largest_task(plan, b.tasks)
    part = f"{words.task_word(most)} takes {percent(most.share_of_period)} of each {period}"
    if b.kind == "link":
        link = f"The link {b.name}"
        reason = f": its messages take all of each {period}."
        return LeadSentence(LIMITS, link, reason)
    busiest = max((k for k in plan.lanes if k.width), key=lambda k: k.load, default=None)
    lane = bounding_lane(plan)
    if lane is not None:
        name = words.lane_name(plan, lane.lane)
        others = [k for k in plan.lanes if k.lane != lane.lane and k.width]
        idle = ""
        if others:
            least = max(others, key=lambda k: k.load)
            idle = f"; the {words.lane_name(plan, least.lane)} is busy {percent(least.load)}"
        waits = _waits(1 - lane.load)
        return LeadSentence(LIMITS, f"The {name}", f": it {waits}, and {part}{idle}.")
    stations = [t for t in b.tasks if ">" not in t]
    around = " → ".join(dict.fromkeys(stations)) or b.name
    busy = (
        f" The {words.lane_name(plan, busiest.lane)} is busy {percent(busiest.load)} of the time."
        if busiest
        else ""
    )
    reason = f" ({around}): each call waits for the one before, and {part}.{busy}"
    return LeadSentence(LIMITS, "One chain of calls", reason)


def bounding_lane(plan: Plan) -> Lane | None:
    """Return the lane that sets the pace of a plan; None if a link or a chain of calls does."""
    b = plan.bottleneck
    if b.kind == "cycle":
        busiest = max((k for k in plan.lanes if k.width), key=lambda k: k.load, default=None)
        return busiest if busiest is not None and busiest.load >= NEVER_WAITS else None
    return next((k for k in plan.lanes if k.lane == b.name and k.width), None)


def _waits(share: float) -> str:
    return "never waits" if share < NEGLIGIBLE else f"waits {percent(share)} of the time"


def faster_gain(share: float) -> float:
    """Return the gain in speed if a task with this share of the time takes a fifth less."""
    return 1 / (1 - 0.2 * min(share, 1.0)) - 1


def _plan_help(plan: Plan) -> LeadSentence:
    """Return the help from the shares of the plan: exact if one lane sets the pace, else a
    bound."""
    most = largest_task(plan, plan.bottleneck.tasks)
    gain = faster_gain(most.share_of_period)
    exact = plan.bottleneck.kind == "lane" and len([k for k in plan.lanes if k.width]) == 1
    upto = "" if exact else "up to "
    reason = f" gives {upto}+{percent(gain)}; `pearl plan --explain` tries every other change."
    answer = f"{_name_call(most.task)} 20{words.BLANK}% faster"
    return LeadSentence(HELPS, f"{answer[:1].upper()}{answer[1:]}", reason)


def _name_call(word: str) -> str:
    """Return `a learn call` or `an act call`."""
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word} call"


def _got(run: Run) -> LeadSentence:
    returns, solution = run.returns, run.solution
    mean, last = returns.get("eval_mean"), returns.get("last_eval_mean")
    if run.status in ("failed", "interrupted"):
        steps = f" after {count(run.env_steps)} env steps"
        if run.status == "failed":
            return LeadSentence(GOT, f"The run failed{steps}", f": {run.message or 'no reason'}.")
        return LeadSentence(GOT, f"The run was interrupted{steps}", "; `--resume` continues it.")
    if mean is None:
        value = returns.get("mean_last_20")
        if value is None:
            return LeadSentence(GOT, f"{count(run.env_steps)} env steps", ", no episode complete.")
        text = f"A training return of {number(value)}"
        return LeadSentence(GOT, text, ", the mean of the last 20 episodes; nothing was evaluated.")
    answer = f"A policy that scores {number(mean)}"
    parts = []
    if solution is not None and solution.threshold is not None:
        if solution.threshold_s is None and mean < solution.threshold:
            parts.append(f"below the threshold of {solution.threshold:g}")
        elif solution.threshold_s is not None:
            solved = f"{solution.threshold:g}, which counts as solved"
            parts.append(f"after {si(solution.threshold_s, 's')} the run had reached {solved}")
    elif solution is not None and solution.best_s is not None:
        parts.append(f"found after {si(solution.best_s, 's')}")
    text = "".join(f"{'; ' if part.startswith('after') else ', '}{part}" for part in parts)
    if last is not None and not returns.get("best_is_last") and _forgot(mean, last):
        text += "; later training forgot it, so use policy_best, not the last one "
        text += f"({number(last)})"
    return LeadSentence(GOT, answer, f"{text}.")


def _forgot(best: float, last: float) -> bool:
    return last < best - (1 - FORGOTTEN) * abs(best)


def waited(run: Run) -> float:
    """Return the share of the iteration in which the run was ready and had no core."""
    return (run.drift.waited or 0.0) if run.drift is not None else 0.0


def learnt_nothing(run: Run) -> bool:
    """Whether a run came to its end without a gradient step, though its plan has them."""
    learns = run.plan.rates.get("updates_per_s", 0.0) > 0
    return learns and run.updates == 0 and run.env_steps > 0 and run.status in ("done", "stopped")


def _run_limit(run: Run) -> LeadSentence:
    """Return what limits a run; a run outside its band states this first."""
    plan, measured = run.plan, iteration_s(run)
    if learnt_nothing(run):
        reason = f" in {count(run.env_steps)} env steps: all were before `learning_starts`."
        return LeadSentence(LIMITS, "No gradient step", reason)
    if run.simulated or not measured:
        return limit_sentence(plan)
    taken = waited(run)
    if taken >= BUSY:
        net_s = measured * (1 - taken)
        least_s = plan.bands.period_s[0] if plan.bands and plan.bands.period_s else plan.period_s
        reason = f": they used its core for {percent(taken)} of the time"
        if net_s < least_s:
            reason += ", too much to judge the prediction."
        else:
            reason += f"; without them an iteration takes {net_s / plan.period_s:.2f}"
            reason += f"{words.BLANK}× the predicted time."
        return LeadSentence(LIMITS, "Other programs on this host", reason)
    whole = next((r for r in comparisons(run) if not r.task), None)
    if whole is not None and whole.has_band and not whole.inside:
        off = run.plan.period_s / measured - 1
        worse = "slower" if off < 0 else "faster"
        text = f"{percent(abs(off))} {worse} than predicted"
        return LeadSentence(LIMITS, text, f", outside the band; {_bound_phrase(run)}.")
    lane = bounding_lane(plan)
    if lane is not None and (share := _waiting_share(run, lane)) >= MOSTLY:
        reason = f": the {words.lane_name(plan, lane.lane)}, by the plan the busiest, "
        reason += f"waits {percent(share)} of the time."
        return LeadSentence(LIMITS, "Cores and devices that wait for each other", reason)
    answer = limit_sentence(plan).answer
    return LeadSentence(LIMITS, answer, f": {_bound_phrase(run, 'it')}.")


def _bound_phrase(run: Run, subject: str = "") -> str:
    """What sets the pace of a run, by what was measured. subject: of the clause on a lane."""
    plan, most = run.plan, _largest_measured(run)
    lane = bounding_lane(plan)
    if plan.bottleneck.kind == "link":
        waits = f"by the plan, messages over {plan.bottleneck.name} set the pace"
    elif lane is None:
        waits = "each call waits for the one before"
    else:
        subject = subject or f"the {words.lane_name(plan, lane.lane)}"
        waits = f"{subject} {_waits(_waiting_share(run, lane))}"
    return f"{waits}, and {most[0]} takes {percent(most[1])} of each iteration"


def _waiting_share(run: Run, lane: Lane) -> float:
    """The share of its time that a lane waited for others, as measured or else as predicted."""
    own = next((k for k in run.lanes if k.lane.partition(" (")[0] == lane.lane), None)
    running_s = own.wall_s - own.held_s if own is not None else 0.0
    if own is None or running_s <= 0:
        return 1 - lane.load
    return own.waiting_s / running_s


def _largest_measured(run: Run) -> tuple[str, float]:
    """The task with most of the measured time, on the lane that sets the pace if one does."""
    lane = bounding_lane(run.plan)
    own = {t.task for t in run.plan.tasks if lane is None or t.lane == lane.lane}
    rows = [r for r in comparisons(run) if r.task in own]
    if not rows:
        most = largest_task(run.plan)
        return words.task_word(most), most.share_of_period
    best, running = max(rows, key=lambda r: r.share), 1 - waited(run)
    single = len([k for k in run.plan.lanes if k.width]) == 1
    whole = max(sum(r.share for r in rows), running) if single else running
    return best.name, min(best.share / (whole or 1.0), 1.0)


def _run_help(run: Run) -> LeadSentence:
    """Return the change that saves most: an earlier stop, a free core, or a faster call."""
    if run.status == "failed":
        return LeadSentence(HELPS, "Fixing the failure", "; Details describe it.")
    if learnt_nothing(run):
        reason = " (`--steps`), or fewer of `algorithm.learning_starts`: nothing was learnt."
        return LeadSentence(HELPS, "More env steps", reason)
    solution, options = run.solution, []
    end_s = max(solution.end_s if solution is not None else run.wall_s, 1e-9)
    training_s = end_s
    if solution is not None:
        apart = (solution.plan_s, solution.bind_s, solution.evaluation_s, solution.checkpoint_s)
        training_s = max(end_s - sum(apart), 0.0)
    if solution is not None and solution.threshold_s is not None and run.stopped is None:
        saved = 1 - solution.threshold_s / end_s
        text = f" would have saved {percent(saved)} of {si(end_s, 's')} (`--stop-at-return`)"
        options.append((saved, "Stopping once solved", text))
    if waited(run) >= BUSY:
        lost_s = waited(run) * training_s
        text = f" would save {si(lost_s, 's')} of the {si(end_s, 's')}"
        options.append((lost_s / end_s, "A dedicated core", text))
    if solution is not None:
        saved = solution.plan_s / end_s
        text = f" saves most of the {si(solution.plan_s, 's')} of planning, {percent(saved)} "
        text += "of the run"
        options.append((saved, "Keeping the plan (`--plan plan.json`)", text))
        saved = solution.bind_s / end_s
        text = f" skips most of the {si(solution.bind_s, 's')} of compiling, {percent(saved)} "
        text += "of the run"
        options.append((saved, "Running it again", text))
    most = _largest_measured(run)
    tail = ""
    if waited(run) < BUSY:
        gain = faster_gain(most[1])
        word = _name_call(most[0].partition(words.BLANK)[0])
        upto = "up to " if len([k for k in run.plan.lanes if k.width]) > 1 else ""
        tail = f"{word} 20{words.BLANK}% faster gives {upto}+{percent(gain)}"
    best = max(options, default=None)
    if best is not None and (best[0] >= 0.15 or waited(run) >= BUSY):
        speed = f"; for speed, {tail}." if tail else "."
        return LeadSentence(HELPS, best[1], f"{best[2]}{speed}")
    if faster_gain(most[1]) < NOTHING:
        return LeadSentence(HELPS, "No single change", ": no part takes much of the time.")
    return LeadSentence(HELPS, f"{tail[:1].upper()}{tail[1:]}", " env steps/s.")
