"""TimeRL (Silvestre et al. 2025, arXiv 2501.05408): returns of 8 steps in place of Monte Carlo."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bars import Part, at_least
from benchmarks.literature import COLUMNS, command
from benchmarks.rollout_windows import RETURNS, faster, overlap, rollout_bytes


def run(quick: bool, data: Path | None) -> Part:
    """The part. quick: the plans alone, without runs."""
    whole, window = (rollout_bytes(returns) for returns in RETURNS.values())
    saved = whole / window
    here = f"bytes kept of a rollout of 1,000 vector steps, windows of 8: {saved:.0f}× less"
    claimed = "16× less peak memory of a GPU"
    rows = [["TimeRL (Tempo)", claimed, here, "counted", command("windows")]]
    bars = [at_least("bytes kept of a rollout, Monte Carlo over 8 steps", saved, 16, "{:.0f}")]
    found = overlap(0 if quick else 3)
    both = list(found.values())
    predicted = both[1]["predicted"] / both[0]["predicted"]
    bars.append(at_least("8 steps over Monte Carlo, predicted", predicted, 1.3))
    here = f"A2C, 2 lanes, environments of 200 us: 8 steps are {predicted:.2f}× faster"
    claimed = "up to 47× the speed of existing systems"
    rows.append(["TimeRL (Tempo)", claimed, here, "modelled", command("windows")])
    if not quick:
        measured = faster(found)
        here = f"the same: {measured:.2f}× faster"
        rows.append(["TimeRL (Tempo)", claimed, here, "measured", command("windows")])
        bars.append(at_least("8 steps over Monte Carlo, measured", measured, 1.3))
    left_out = ["the runs of both plans"] if quick else []
    return Part("literature: time-indexed dependences", COLUMNS, rows, bars, left_out)
