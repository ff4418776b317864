"""A product and a sum with one rounding, said in the source.

No compiler's flag allows fusion, because LLVM chooses by the processor which products it fuses, and
so the processor would decide bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pearl_devices.primitives.numba_internals import get_or_insert_function


def _multiply_add(typing, a, b, c):
    """a · b + c of three floats of one type: fused if the host can, else rounded twice."""
    if a not in (types.float32, types.float64) or not a == b == c:
        raise TypingError(f"multiply_add takes three floats of one type, not {a}, {b} and {c}")

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FloatType() if a == types.float32 else ir.DoubleType()
        name = f"llvm.fmuladd.f{a.bitwidth}"
        fused = get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(fused, given)

    return a(a, b, c), generate


multiply_add: Any = intrinsic(_multiply_add)
