"""The number of threads of this process that can run at the same time."""

from __future__ import annotations

import math

from pearl_devices.discover import slurm_cpus
from pearl_devices.system import host_system


def usable_cpu_count() -> int:
    """CPUs of the affinity mask, limited by the quota of the control groups and by Slurm; at least
    1."""
    given = [len(host_system.usable_cpus()), host_system.cpu_quota(), slurm_cpus()[0]]
    return max(1, min(math.floor(n) for n in given if n is not None))
