"""The bars of the tournament in virtual time, with fixed seeds."""

import pytest

from benchmarks.tournament import CASES, IDLE, compared


@pytest.mark.parametrize(("members", "slots", "asked"), CASES)
def test_a_tournament_without_a_barrier_has_so_many_more_rounds(members, slots, asked):
    gain, idle = compared(members, slots, 0)
    assert gain >= asked
    assert idle <= IDLE
    assert compared(members, slots, 0) == (gain, idle)
