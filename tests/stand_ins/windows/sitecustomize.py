"""A stand-in for Windows, with this folder on PYTHONPATH: no forks, no Unix modules, no /proc."""

import builtins
import ctypes
import io
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

os.environ["PEARL_SYSTEM"] = "windows"
UNIX = ("fcntl", "resource", "_posixshmem", "termios", "pwd", "grp")
KNOW = ("psutil", "torch", "multiprocessing")
"""Libraries that have code of their own for Windows."""


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        frame = sys._getframe(1)
        while name in UNIX and frame is not None:
            if frame.f_globals.get("__name__", "").startswith(KNOW):
                return
            frame = frame.f_back
        if name in UNIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return


with suppress(ModuleNotFoundError):
    import psutil  # noqa: F401 (its modules for Linux are loaded before the names go)
for name in UNIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Finder)

LACKING = {
    os: "fork eventfd memfd_create pidfd_open sched_getaffinity sched_setaffinity "
    "killpg setsid getuid geteuid fchmod fchown wait4 set_blocking O_NOFOLLOW O_NONBLOCK O_NOCTTY",
    signal: "SIGHUP SIGALRM SIGCHLD setitimer pthread_kill",
    select: "poll epoll",
}
for module, names in LACKING.items():
    for name in names.split():
        delattr(module, name)


def register_at_fork(**functions):  # torch asks which system this is, not whether the call exists
    if sys._getframe(1).f_globals.get("__name__", "").startswith("pearl"):
        raise AttributeError("module 'os' has no attribute 'register_at_fork'")


os.register_at_fork = register_at_fork
_dll, _opens = ctypes.CDLL, {"open": builtins.open}


class CDLL(_dll):
    def __init__(self, name, *given, **more):
        if name is None:
            raise TypeError("a stand-in for Windows: a library has a name")
        super().__init__(name, *given, **more)


ctypes.CDLL = CDLL


def _hidden(path):
    hidden = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc", "/sys/"))
    return hidden and not sys._getframe(2).f_globals.get("__name__", "").startswith(KNOW)


def _open(path, *given, **more):
    if _hidden(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    return _opens["open"](path, *given, **more)


io.open = builtins.open = _open
_popen = subprocess.Popen.__init__


def _start(self, *given, pass_fds=(), **more):
    if pass_fds:
        raise ValueError("pass_fds not supported on Windows.")
    _popen(self, *given, **more)


subprocess.Popen.__init__ = _start
