"""The number of threads of this process that can run at the same time."""

from __future__ import annotations

import math
from pathlib import Path

from pearl_devices.discover import cpu_quota, slurm_cpus, usable_cpus


def usable_cpu_count(root: Path = Path("/")) -> int:
    """CPUs of the affinity mask, limited by the quota of the control groups and by Slurm; at least
    1."""
    given = [len(usable_cpus()), cpu_quota(root), slurm_cpus()[0]]
    return max(1, min(math.floor(n) for n in given if n is not None))
