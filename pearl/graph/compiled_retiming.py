"""The functions of `retiming`, compiled. Importing this module loads numba."""

from __future__ import annotations

from pearl.graph import retiming
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

order_nodes = _native(retiming.order_nodes)
shift_nodes = _native(retiming.shift_nodes)
write_cycle = _native(retiming.write_cycle)
push_starts = _native(retiming.push_starts)
run_iterations = _native(retiming.run_iterations)
