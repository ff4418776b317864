"""Which GPUs should run which part of a large language model's RL loop?

A pool of GPUs is one device, a group of them a lane, and a number of GPUs for a component a mode.
Components on one group take turns; groups work side by side. PEARL plans such a loop from the
seconds that somebody measured; it does not run it.
`python examples/llm_placement.py [FILE.json [KEY=VALUE …]]` changes keys of the file, such as
`gpus=64 lag=1`; `docs/placement.md` says what this model holds and what it leaves out.
"""

import json
import sys
from itertools import combinations, pairwise
from pathlib import Path

import pearl

ONE_STEP_OFF = {  # Qwen2.5-Math-7B on 16 H20, seconds an iteration by number of GPUs; source:
    # verl-project/verl@a74fc52e75e3, docs/advance/one_step_off.md
    "name": "verl, one step off", "gpus": 16, "lag": 1,
    "times": {
        "rollout": {16: 321, 4: 458},
        "old_log_prob": {16: 88, 12: 108},
        "update_actor": {16: 286, 12: 337},
    },
}  # fmt: skip


def read(instance: dict) -> dict:
    """Graph, costs and limits for `pearl.solve`. Keys of an instance, of which two are needed:

    gpus: GPUs of the pool. times: component → GPUs → seconds of one iteration on so many.
    after: component → the components that it waits for; by default each waits for the one before
    it, in the order of `chain` or else of `times`.
    firings: parts in which an iteration is streamed (1); a part takes 1/firings of the time.
    lag: iterations that the weights of a rollout may be old (0: on policy). groups: most groups.
    gpu_gb: memory of a GPU. sharded_gb: component → GB that its GPUs share out.
    each_gb: component → GB that every GPU of it holds.
    transfer_s: weights from the last component to the first, where these are on two groups.
    switch_s: for each pair of components on one group, once an iteration.
    apart: pairs of components that never share a group.
    """
    if missing := {"gpus", "times"} - set(instance):
        raise SystemExit(f"this instance has no {', '.join(sorted(missing))}; see the keys of read")
    gpus, times = int(str(instance["gpus"]).split()[0]), instance["times"]
    firings, names = int(instance.get("firings") or 1), list(instance.get("chain") or times)
    before = instance.get("after") or {b: [a] for a, b in pairwise(names)}
    first = [n for n in names if not before.get(n)]
    last = [n for n in names if not any(n in some for some in before.values())]
    edges = [pearl.Edge(a, b) for b, some in before.items() for a in some]
    edges += [pearl.Edge(n, "sync", consumption=firings) for n in last]
    edges += [pearl.Edge("sync", n, firings, tokens_seq=firings, limit="policy_lag") for n in first]
    tasks = tuple(pearl.Task(n) for n in [*names, "sync"])
    graph = pearl.TaskGraph(str(instance.get("name", "loop")), tasks, tuple(edges))
    pool = pearl.Device(
        "pool",
        width=gpus,
        width_unit="GPUs",
        max_lanes=min(gpus, int(instance.get("groups") or len(names))),
        unit_memory_bytes=1e9 * instance.get("gpu_gb", float("inf")),
    )
    sharded, each = instance.get("sharded_gb", {}), instance.get("each_gb", {})
    modes = [pearl.Mode.of("sync", "pool", 0.0)]
    for n in names:
        for k, seconds in ((int(k), s) for k, s in times[n].items() if int(k) <= gpus):
            kept = 1e9 * (sharded.get(n, 0.0) / k + each.get(n, 0.0))
            modes.append(pearl.Mode.of(n, "pool", seconds / firings, width=k, unit_bytes=kept))
    transfer, switch = instance.get("transfer_s", 0.0), instance.get("switch_s", 0.0)
    costs = pearl.CostTable(
        pearl.Platform("GPUs", (pool,)),
        tuple(modes),
        apart_extra_s={("sync", n): transfer for n in dict.fromkeys([*first, *last])},
        shared_extra_s=dict.fromkeys(combinations(names, 2), switch / firings),
    )
    apart = tuple(tuple(pair) for pair in instance.get("apart", ()))
    limits = pearl.Limits(policy_lag=int(instance.get("lag", 0)), apart=apart)
    return {"graph": graph, "costs": costs, "limits": limits}


def groups_of(plan: pearl.Plan) -> list[tuple[list[str], int]]:
    """The components of each group and its number of GPUs; a sync alone is no group."""
    found = [(list(dict.fromkeys(e.task for e in k.order)), k.width) for k in plan.lanes]
    groups = [([n for n in names if n != "sync"], gpus) for names, gpus in found]
    return [group for group in groups if group[0]]


def main() -> pearl.Plan:
    given = json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else ONE_STEP_OFF
    given |= {k: json.loads(v) for k, _, v in (word.partition("=") for word in sys.argv[2:])}
    plan = pearl.solve(**read(given))
    for names, gpus in groups_of(plan):
        print(f"{gpus:4} GPUs: {', '.join(names)}")
    print(f"an iteration every {plan.period_s:.6g} s, {plan.status}, gap {plan.gap:.2%}")
    plan.gantt("placement.svg", iterations=2)
    return plan


if __name__ == "__main__":
    main()
