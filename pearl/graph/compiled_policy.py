"""The functions of `policy_iteration`, compiled. Importing it loads numba."""

from __future__ import annotations

from pearl.graph import policy_iteration
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

sort_cyclic = _native(policy_iteration.sort_cyclic)
start_policy = _native(policy_iteration.start_policy)
improve_policy = _native(policy_iteration.improve_policy)
