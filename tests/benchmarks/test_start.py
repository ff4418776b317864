"""The bar of a first run."""

from __future__ import annotations

import pytest

from benchmarks.start import Start, whole_run


@pytest.mark.parametrize(
    ("cpu_s", "timed", "met"), [(19.0, True, True), (21.0, True, False), (19.0, False, False)]
)
def test_a_whole_first_run_counts_only_with_the_timing_after_it(
    cpu_s: float, timed: bool, met: bool
) -> None:
    bar = whole_run("ppo_cartpole", [Start(12.0, 11.0, 20.0, cpu_s, timed)])
    assert bar.met is met
    assert ("the host was busy" in bar.measured) is not timed
