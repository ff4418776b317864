"""Programs of child processes, for tests."""

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from pearl_devices.system import host_system


def tell() -> int:
    """Write what this process is into the file that is its first argument."""
    about = {
        "arguments": sys.argv[1:],
        "variable": os.environ.get("PEARL_TEST_WORD"),
        "folder": os.getcwd(),
        "cores": host_system.usable_cpus(),
        "group": os.getpgid(0) == os.getpid(),
        "threads": psutil.Process(os.getppid()).num_threads(),
        "drawn": [float(np.random.random()), random.random()],
        "path": sys.path,
    }
    Path(sys.argv[1]).write_text(json.dumps(about))
    print("said")
    return 3


def copy() -> None:
    """Copy the file descriptor that is the first pair of numbers to standard output."""
    os.write(1, os.read(int(sys.argv[1].partition("=")[2]), 100))


def fail() -> None:
    raise RuntimeError("on purpose")


def sleep() -> None:
    """Say that it is there, and sleep."""
    print("asleep", flush=True)
    time.sleep(600)
