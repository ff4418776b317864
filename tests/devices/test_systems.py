"""Operating systems: one room knows them, its parts offer the same, and stand-ins run on them.

`tests/stand_ins` has a folder for each system that is not this one; with it on PYTHONPATH, a
process lacks what that system lacks.
"""

import ast
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pearl
from pearl_devices import discover
from pearl_devices.system import LINUX, host_system, part, sysctl
from pearl_devices.system.portable import OPEN_FILES
from tests.sources import ROOT

SYSTEM = ROOT / "devices" / "pearl_devices" / "system"
MODULES = {"fcntl", "msvcrt", "resource", "_posixshmem"}
CALLS = {
    "eventfd", "eventfd_read", "eventfd_write", "fchmod", "fchown", "fork", "geteuid", "getuid",
    "killpg", "memfd_create", "pidfd_open", "register_at_fork", "sched_getaffinity",
    "sched_setaffinity", "wait4", "waitpid", "O_NOFOLLOW", "O_NONBLOCK", "SIGHUP", "SOCK_SEQPACKET",
}  # fmt: skip
PORTABLE = [
    pytest.param("portable", id="portable"),
    pytest.param("linux", id="linux", marks=pytest.mark.skipif(
        not all(hasattr(os, call) for call in LINUX), reason="calls of Linux"
    )),
]  # fmt: skip


def names_of_systems(file: Path) -> set[str]:
    """What a file imports, calls or opens of one system alone."""
    tree, found = ast.parse(file.read_text()), set()
    texts = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names} & MODULES
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {node.attr} & CALLS if node.value.id in ("os", "signal", "socket") else set()
        elif isinstance(node, ast.Call):
            given = [a for a in node.args if isinstance(a, ast.Constant) and id(a) not in texts]
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("Path", "open", "read_text"):
                found |= {str(a.value) for a in given if str(a.value).startswith(("/proc", "/sys"))}
    return found


def test_one_room_knows_the_operating_systems():
    folders = [ROOT / "pearl", ROOT / "devices", ROOT / "estimators"]
    files = [f for folder in folders for f in sorted(folder.rglob("*.py"))]
    found = {f: names for f in files if (names := names_of_systems(f))}
    assert {f for f in found if f.parent != SYSTEM} == set()
    assert SYSTEM / "linux.py" in found


@pytest.mark.parametrize("name", [*PORTABLE, "windows"])
def test_every_part_tells_the_cores_and_what_this_process_has_used(name):
    system = part(name)
    assert system.chip().cores >= 1
    assert system.peak_bytes() > 1 << 20
    assert system.cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=1.0)
    assert system.own_cpu_s() > time.process_time() - 1.0  # ended children count too
    assert system.free_bytes()[0] > 1 << 20


@pytest.mark.parametrize("name", PORTABLE)
def test_memory_is_shared_by_its_handle(name):
    handle = part(name).share_memory("a test", 5000)
    other = os.dup(handle)
    with mmap.mmap(handle, 5000) as one, mmap.mmap(other, 5000) as same:
        one[4999] = 7
        assert same[4999] == 7
    os.close(handle)
    os.close(other)


@pytest.mark.parametrize("name", [*PORTABLE, "windows"])
def test_an_event_that_is_set_before_the_wait_ends_it_once(name):
    event = part(name).new_wake_event()
    for _ in range(100_000):  # more than a pipe holds
        event.set()
    begin_s = time.monotonic()
    event.wait(60.0)
    assert time.monotonic() - begin_s < 30.0
    while time.monotonic() - begin_s < 30.0:  # sets that one read did not take
        seen_s = time.monotonic()
        event.wait(0.05)
        if time.monotonic() - seen_s >= 0.05:
            break
    else:
        pytest.fail("the event stays set")
    event.close()


def test_what_a_system_does_not_count_is_not_told():
    for name in ("portable", "windows"):
        system = part(name)
        assert system.stolen_s() is system.all_queued_s() is system.queued_s(os.getpid(), 1) is None
        system.work_for_user()  # harmless where there is no such call


def test_more_files_may_be_opened():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for soft, raised in ((256, OPEN_FILES), (OPEN_FILES + 1, OPEN_FILES + 1)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
            part("portable").raise_file_limit()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def told(**figures):
    """The kernel's answers: texts end with a zero byte, numbers are of four or eight bytes."""
    return {
        name.replace("__", "."): value.encode() + b"\0"
        if isinstance(value, str)
        else value.to_bytes(8, sys.byteorder)
        for name, value in figures.items()
    }


APPLE = told(
    machdep__cpu__brand_string="Apple M1",
    hw__memsize=16 << 30,
    hw__physicalcpu=8,
    hw__perflevel0__physicalcpu=4,
    hw__perflevel0__l1dcachesize=128 << 10,
    hw__perflevel0__l2cachesize=12 << 20,
)
INTEL = told(
    machdep__cpu__brand_string="Intel(R) Core(TM) i7-8569U CPU @ 2.80GHz",
    hw__memsize=16 << 30,
    hw__physicalcpu=4,
    hw__cpufrequency_max=2_800_000_000,
    hw__l1dcachesize=32 << 10,
    hw__l2cachesize=256 << 10,
)


@pytest.mark.parametrize(("kernel", "l1d_bytes", "l2_bytes", "clock_hz"), [
    (APPLE, 128 << 10, 12 << 20, None), (INTEL, 32 << 10, 256 << 10, 2.8e9),
])  # fmt: skip
def test_a_mac_tells_its_fast_cores_their_caches_and_its_memory(
    monkeypatch, kernel, l1d_bytes, l2_bytes, clock_hz
):
    monkeypatch.setattr(sysctl, "text", kernel.get)
    chip = sysctl.read_chip()
    assert chip.model in ("Apple M1", "Intel(R) Core(TM) i7-8569U CPU @ 2.80GHz")
    assert (chip.cores, chip.memory_bytes, chip.clock_hz) == (4, 16 * 2**30, clock_hz)
    assert chip.cache_bytes == {"l1d_bytes": l1d_bytes, "l2_bytes": l2_bytes}
    assert discover.cpu(chip).width == 4


def test_an_unknown_system_is_named():
    path = [place for place in sys.path if place and "stand_ins" not in place]
    run = subprocess.run(
        [sys.executable, "-c", "import pearl_devices.system"],
        env=os.environ | {"PEARL_SYSTEM": "plan9", "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    assert "PEARL_SYSTEM: unknown system 'plan9'; allowed: linux, portable, windows" in run.stderr


IMAGINED = """
from tests import calibrations
calibrations.keep()
from pearl.cli import main
main()
"""
"""`pearl` on a machine whose times are known, also where the stand-in hides which one it is."""


def run_on(system: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of `pearl` on the stand-in of a system; "" is this one. Stand-ins look like one
    machine, so each keeps its times in a cache of its own."""
    path = [str(ROOT / "tests" / "stand_ins" / system)] if system else []
    cache = Path(os.environ["PEARL_CACHE_DIR"]) / f"on {system or 'this one'}"
    return subprocess.run(
        [sys.executable, "-c", IMAGINED, *arguments],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([*path, *filter(None, sys.path)]),
            "PEARL_CACHE_DIR": str(cache),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )


BRIEF = ("algorithm.learning_starts=100", "train.final_episodes=1", "train.evaluate_every=0")
APART = ("limits.max_lanes=2", "limits.apart=[[step,learn]]", "train.lanes=processes")


def arrays(folder: Path) -> bytes:
    return (folder / "policy_last.safetensors").read_bytes()


def test_runs_on_the_stand_ins_are_those_of_this_machine(tmp_path):
    for system in ("macos", "windows", ""):
        train = ("train", "dqn_cartpole", "--steps", "300", *BRIEF)
        run = run_on(system, *train, "--out", str(tmp_path / f"run{system}"))
        assert run.returncode == 0, run.stderr
        assert arrays(tmp_path / f"run{system}") == arrays(tmp_path / "runmacos")
    for command in (("report",), ("eval", "--episodes", "1")):
        run = run_on("windows", command[0], str(tmp_path / "runwindows"), *command[1:])
        assert run.returncode == 0, run.stderr


HANGS = """
algorithm: {name: dqn, env: "tests.runtime.bad_envs:Bad", env_args: {kind: hang}, num_envs: 1,
  hidden: [8], batch_size: 8, learning_starts: 16, replay: {capacity: 400, kind: uniform}}
platform: host
limits: {max_lanes: 1, variants: {step: [gymnasium]}}
train: {steps: 400, evaluate_every: 0, final_episodes: 0, calibrate_after: false,
  env_time_limit: 1 s}
"""


def test_an_environment_that_windows_cannot_interrupt_is_named_and_ends_the_process(tmp_path):
    spec, plan = tmp_path / "spec.yaml", tmp_path / "plan.json"
    spec.write_text(HANGS.replace("hang", "fine"))
    pearl.plan(pearl.load(spec)).save(plan)  # timing one that hangs takes a minute
    spec.write_text(HANGS)
    given = (str(spec), "--plan", str(plan), "--out", str(tmp_path / "run"))
    run = run_on("windows", "train", *given)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert "'tests.runtime.bad_envs:Bad' of step, number 0, episode" in last
    assert "has not answered for 1 s" in last
    assert "Traceback" not in run.stderr


@pytest.mark.sweep(2)
@pytest.mark.parametrize("command", [
    ("sweep", "dqn_cartpole", "--seeds", "1,2"), ("train", "dqn_cartpole", *BRIEF, *APART),
    ("train", "dqn_cartpole", *BRIEF, "limits.variants={step: [processes]}"),
])  # fmt: skip
def test_what_windows_lacks_is_refused_with_the_way_out(tmp_path, command):
    run = run_on("windows", *command, "--out", str(tmp_path / "out"))
    assert run.returncode in (1, 2)
    assert "Windows starts no processes that share memory with PEARL; WSL does" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not host_system.FORKS, reason="compares with a system that forks")
def test_lanes_in_new_programs_compute_what_lanes_in_forks_do(tmp_path):
    for system in ("macos", ""):
        train = ("train", "dqn_cartpole", "--steps", "400", *BRIEF, *APART)
        run = run_on(system, *train, "--out", str(tmp_path / f"run{system}"))
        assert run.returncode == 0, run.stderr
    assert arrays(tmp_path / "runmacos") == arrays(tmp_path / "run")
