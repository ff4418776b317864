"""Signals as a terminal gives them, also where the tests were started by `nohup` or a shell's `&`,
which leave some ignored: a run leaves ignored signals ignored, and the tests send signals. A host
whose times are known, so that plans are the same in every session. And tests that need what is not
installed are skipped (`tests.needs`)."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import settings

from pearl_devices import compile_target
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.host import timed_rows, user_code_timing
from tests import calibrations
from tests.ray_cluster import Cluster, entered, raylets

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


pytest_plugins = ["tests.needs", "tests.profiler"]

# The same examples in each session; `pytest --hypothesis-profile default` draws others.
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write", action="store_true", help="write generated files that tests compare with"
    )


LIMIT_S = 180.0
"""Wall seconds of a test of a protocol or a wait, on the busiest machine; five times as long if it
is slow."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a sweep, the first of every N cases is not slow. And a fault of a protocol is a failure,
    not a test that hangs."""
    for _, cases in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        for number, case in enumerate(cases):
            if (sweep := case.get_closest_marker("sweep")) and number % sweep.args[0]:
                case.add_marker(pytest.mark.slow)
    if not config.pluginmanager.hasplugin("timeout"):
        return
    for item in items:
        if item.path.parent.name in ("runtime", "cluster"):
            limit_s = LIMIT_S * (5 if item.get_closest_marker("slow") else 1)
            item.add_marker(pytest.mark.timeout(limit_s, func_only=True))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no later collection of garbage visits it. Collections
    are rare, since the usual ones take a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def this_host_is_calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans of this host follow from the times of an imagined machine, and no first use measures
    for tens of seconds. What is compiled stays where it is kept."""
    usual, here = cache_folder().absolute(), tmp_path_factory.mktemp("cache")
    for kept in ("gpu-stand-in", "gpu-code", "fpga-rtl"):
        (usual / kept).mkdir(mode=0o700, parents=True, exist_ok=True)
        (here / kept).symlink_to(usual / kept)
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("NUMBA_CACHE_DIR"):
            patch.setenv("NUMBA_CACHE_DIR", str(usual))
        patch.setenv("PEARL_CACHE_DIR", str(here))
        calibrations.keep()
        yield


@pytest.fixture(autouse=True)
def nothing_is_passed_over() -> Iterator[None]:
    """A test that trains on a busy host plans from the data sheet. The next one does not."""
    yield
    on_demand = sys.modules.get("pearl_estimators.host.calibrator")
    if on_demand is not None:
        on_demand._skipped.clear()


@pytest.fixture
def user_code_in_a_process() -> Iterator[None]:
    """Within a test that asks for this fixture, user code is timed in a process of its own, as for
    users."""
    forget_user_code()
    yield
    forget_user_code()


def forget_user_code() -> None:
    timed_rows.path().unlink(missing_ok=True)
    timed_rows.unstored.clear()
    user_code_timing._failed.clear()
    user_code_timing._spent_s[0] = 0.0


@pytest.fixture(autouse=True)
def user_code_is_timed_briefly(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "user_code_in_a_process" not in request.fixturenames:
        monkeypatch.setattr(user_code_timing, "run_in_child", calibrations.time_briefly)


@pytest.fixture
def cpu_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a test that asks for this fixture, kernels may use all instructions of the host."""
    for name in (compile_target.NAME, compile_target.FEATURES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_plan_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may change what plans follow from in ways that no plan of another process sees."""
    if memory := sys.modules.get("pearl.planner.plan_cache"):
        monkeypatch.setattr(memory, "KEPT", 0)


@pytest.fixture(scope="session")
def nodes_of_the_session() -> Iterator[Cluster]:
    with raylets() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_nodes(nodes_of_the_session: Cluster) -> Iterator[Cluster]:
    """The Ray cluster of this session, entered: nodes a and b with one core each, which no test may
    kill."""
    with entered(nodes_of_the_session) as cluster:
        yield cluster
