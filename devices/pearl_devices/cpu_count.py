"""The number of threads of this process that can run at the same time."""

from __future__ import annotations

import math
from pathlib import Path

from pearl_devices.discover import cpu_quota, usable_cpus


def usable_cpu_count(root: Path = Path("/")) -> int:
    """CPUs of the affinity mask, limited by the quota of the control groups; at least 1."""
    quota = cpu_quota(root)
    cpus = len(usable_cpus())
    return cpus if quota is None else max(1, min(cpus, math.floor(quota)))
