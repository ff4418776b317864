"""The marker `slow` says what the last recorded profile says (`tests/profiler.py`)."""

import json

from tests.profiler import KEPT, MARKED, SLOW_S


def test_a_test_is_marked_slow_if_it_took_more_than_five_cpu_seconds(request):
    costs = json.loads(KEPT.read_text())
    marked = request.config.stash[MARKED]
    unmarked = [t for t, slow in marked.items() if not slow and costs.get(t, 0.0) > SLOW_S]
    needless = [t for t, slow in marked.items() if slow and costs.get(t, 0.0) <= SLOW_S]
    assert (unmarked, needless) == ([], [])
