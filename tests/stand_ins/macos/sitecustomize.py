"""A stand-in for macOS, with this folder on PYTHONPATH: the portable part, and no forks."""

import os
from multiprocessing import context

os.environ["PEARL_SYSTEM"] = "portable"


def fork():
    raise OSError("a stand-in for macOS: libraries that have used Accelerate do not survive a fork")


os.fork = fork
context._default_context._default_context = context._concrete_contexts["spawn"]
for name in ("eventfd", "memfd_create", "pidfd_open", "sched_getaffinity", "sched_setaffinity"):
    delattr(os, name)
