"""RESPECT (Yin et al. 2023, arXiv 2304.04716): a scheduler that reinforcement learning trains."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.bars import Part, at_most
from benchmarks.literature import COLUMNS, command

ROOT = Path(__file__).parents[2]


def run(quick: bool, data: Path | None) -> Part:
    """The part. quick: a short training, and fewer graphs that are smaller."""
    sys.path.insert(0, str(ROOT))
    import pearl
    from examples.learned_scheduler.__main__ import compare

    set_ = {"train.steps": 100_000} if quick else {}
    spec = ROOT / "examples/learned_scheduler/spec.yaml"
    with tempfile.TemporaryDirectory() as folder:
        trained = pearl.compile(spec, set=set_).train(out=folder)
        policy = pearl.Policy.load(folder, trust=True)
    small = compare(policy, (8, 16), 10 if quick else 100, 20.0)
    large = compare(policy, (350, 350), 1, 3.0 if quick else 20.0)
    here = (
        f"trained in {trained.cpu_s:.0f} CPU-s; 8 to 16 nodes: {small['mean']:.3f} × the solver's "
        f"bottleneck ({small['proven']:.0f} proven optimal), {1e3 * small['learned_s']:.1f} ms a "
        f"graph, the solver {1e3 * small['solved_s']:.0f} ms; 350 nodes: {large['mean']:.3f} ×, "
        f"{large['learned_s']:.2f} s, the solver {large['solved_s']:.1f} s"
    )
    claimed = "optimal schedules up to 930× faster than exact methods, trained on synthetic graphs"
    row = ["RESPECT", claimed, here, "bottlenecks modelled, times measured", command("learned")]
    bars = [
        at_most("bottleneck over the optimum, small graphs", small["mean"], 1.05, "{:.3f}"),
        at_most("bottleneck over the best known, 350 nodes", large["mean"], 1.15, "{:.3f}"),
    ]
    return Part("literature: learned scheduling", COLUMNS, [row], bars)
