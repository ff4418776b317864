"""The solver alone: where should the stages of a small video pipeline run? All times are made up.

Run it: `python examples/placement_without_rl.py`.
"""

import pearl

LINK = pearl.Link("cpu", "gpu", latency_s=1e-4, bytes_per_s=8e9)
SECONDS = {
    "decode": {"cpu": 4e-3, "gpu": 2e-3},
    "detect": {"cpu": 30e-3, "gpu": 5e-3},
    "draw": {"cpu": 2e-3},
}


def main() -> pearl.Plan:
    platform = pearl.Platform(
        "laptop", (pearl.Device("cpu", width=2, max_lanes=2), pearl.Device("gpu")), (LINK,)
    )
    graph = pearl.TaskGraph(
        "video",
        tasks=(pearl.Task("decode"), pearl.Task("detect"), pearl.Task("draw")),
        edges=(
            pearl.Edge("decode", "detect", bytes=6e6),  # one frame a firing
            pearl.Edge("detect", "draw", bytes=1e4),
            pearl.Edge("draw", "decode", tokens_seq=2),  # at most two frames in flight
        ),
    )
    costs = pearl.CostTable.from_seconds(platform, SECONDS)
    plan = pearl.solve(graph, costs, objective="throughput")
    for task in plan.tasks:
        print(f"{task.task:8} on {task.lane:6} {task.seconds * 1e3:6.2f} ms")
    bound_by = f"{plan.bottleneck.kind} {plan.bottleneck.name}"
    print(f"one frame every {plan.period_s * 1e3:.2f} ms, {plan.status}, bound by {bound_by}")
    return plan


if __name__ == "__main__":
    main()
