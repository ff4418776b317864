"""The solver alone: where should the stages of a small video pipeline run?

Three tasks, two devices and the link between them; all times and powers are made up. Run it:
`python examples/placement_without_rl.py`.
"""

import pearl


def mode(task: str, device: str, milliseconds: float, joules: float) -> pearl.Mode:
    """One way to run a task: on `device`, in so much time, for so much energy above idle."""
    cost = pearl.Estimate(latency_s=milliseconds * 1e-3, energy_j=joules)
    return pearl.Mode((task,), device, "given", 1, cost)


def main() -> pearl.Plan:
    platform = pearl.Platform(
        "laptop",
        devices=(
            pearl.Device("cpu", "null", width=2, max_lanes=2, idle_power_w=5, active_power_w=25),
            pearl.Device("gpu", "null", idle_power_w=10, active_power_w=60),
        ),
        links=(pearl.Link("cpu", "gpu", latency_s=1e-4, bytes_per_s=8e9),),
    )
    graph = pearl.TaskGraph(
        "video",
        tasks=tuple(pearl.Task(n, pearl.Kernel(n)) for n in ("decode", "detect", "draw")),
        edges=(
            pearl.Edge("decode", "detect", bytes=6e6),  # one frame a firing
            pearl.Edge("detect", "draw", bytes=1e4),
            pearl.Edge("draw", "decode", tokens_seq=2),  # at most two frames in flight
        ),
    )
    costs = pearl.CostTable(
        platform,
        (
            mode("decode", "cpu", 4.0, 0.04),
            mode("decode", "gpu", 2.0, 0.10),
            mode("detect", "cpu", 30.0, 0.30),
            mode("detect", "gpu", 5.0, 0.25),
            mode("draw", "cpu", 2.0, 0.02),
        ),
    )
    plan = pearl.solve(graph, costs, objective="throughput")
    for task in plan.tasks:
        print(f"{task.task:8} on {task.lane:6} {task.seconds * 1e3:6.2f} ms")
    print(f"one frame every {plan.period_s * 1e3:.2f} ms, {plan.status}, bound by", end=" ")
    print(f"{plan.bottleneck.kind} {plan.bottleneck.name}")
    return plan


if __name__ == "__main__":
    main()
