"""Sums of the calls of a lane."""

from pearl.planning.lane_times import CallTime, LaneTime


def test_the_times_of_a_lane_are_the_sums_of_its_calls() -> None:
    calls = (CallTime("a", 3, 1.0, 2.0, 4.0, 8.0), CallTime("b", 5, 16.0, 32.0, 64.0, 128.0))
    lane = LaneTime("cpu.0", 999.0, calls, 0.25, 0.5, 0.75, 0.125)
    sums = lane.busy_s, lane.whole_python_s, lane.transfer_s, lane.waiting_s
    assert sums == (17.0, 0.5 + 34.0, 68.0, 136.0)
