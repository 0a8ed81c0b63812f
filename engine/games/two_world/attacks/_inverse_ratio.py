"""Compiled inverse ratios p(x) (1 + e^-phi) in float32, sixteen at a time: what many models answer to a population.

Every number takes the same operations, wherever in an array it stands: equal points have equal ones, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

_LANES = 16
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(32), _LANES)
_SERIES = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
"""Of e^x for |x| <= ln(2) / 2, highest power first: Cephes' `expf`."""


def _everywhere(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [float(np.float32(value))] * _LANES)


def _write_sixteen(context: Any, phi: Any, marginal: Any, out: Any) -> Any:
    """Writes sixteen of them, from addresses: infinite for phi < -88, NaN for NaN."""

    def generate(target: Any, code: Any, signature: Any, arguments: Any) -> Any:
        phi, marginal, out = (code.inttoptr(address, _FLOATS.as_pointer()) for address in arguments)

        def named(name: str, *values: Any) -> Any:
            name = f"llvm.{name}.v{_LANES}f32"
            kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(values))
            return code.call(code.module.globals.get(name) or ir.Function(code.module, kind, name), values)

        x = code.fneg(code.load(phi, align=4))
        inside = code.select(code.fcmp_ordered(">", x, _everywhere(-87)), x, _everywhere(-87))
        inside = code.select(code.fcmp_ordered("<", inside, _everywhere(88)), inside, _everywhere(88))
        whole = named("rint", code.fmul(inside, _everywhere(1.4426950408889634)))
        rest = named("fma", whole, _everywhere(-0.693359375), inside)
        rest = named("fma", whole, _everywhere(2.12194440e-4), rest)
        power = _everywhere(_SERIES[0])
        for coefficient in _SERIES[1:]:
            power = named("fma", power, rest, _everywhere(coefficient))
        bits = code.add(code.fptosi(whole, _INTS), ir.Constant(_INTS, [127] * _LANES))
        scale = code.bitcast(code.shl(bits, ir.Constant(_INTS, [23] * _LANES)), _FLOATS)
        power = code.fmul(power, scale)
        power = code.select(code.fcmp_ordered(">", x, _everywhere(88)), _everywhere(np.inf), power)
        power = code.select(code.fcmp_ordered("ord", x, x), power, x)
        found = code.fmul(code.load(marginal, align=4), code.fadd(power, _everywhere(1)))
        code.store(found, out, align=4)
        return target.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


_sixteen: Any = intrinsic(_write_sixteen)


@njit(cache=True, nogil=True, error_model="numpy")
def inverse_ratios(phi: NDArray[np.float32], marginal: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Writes marginal (1 + e^-phi) of each point to `out`, to about 1e-7 of it; all contiguous, shape (n,)."""
    end = len(phi) // _LANES * _LANES
    for i in range(0, end, _LANES):
        _sixteen(phi.ctypes.data + 4 * i, marginal.ctypes.data + 4 * i, out.ctypes.data + 4 * i)
    left = len(phi) - end
    if left:
        few = np.zeros((3, _LANES), np.float32)
        few[0, :left], few[1, :left] = phi[end:], marginal[end:]
        _sixteen(few.ctypes.data, few.ctypes.data + 4 * _LANES, few.ctypes.data + 8 * _LANES)
        out[end:] = few[2, :left]


@njit(cache=True, nogil=True, error_model="numpy")
def above(least: NDArray[np.float32], phi: NDArray[np.float32], marginal: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many of a row's inverse ratios are above its least; contiguous, shapes (T,), (T, P) and (P,) to (T,)."""
    counts = np.zeros(len(least), np.int64)
    found = np.empty(len(marginal), np.float32)
    for row in range(len(least)):
        inverse_ratios(phi[row], marginal, found)
        bar, count = least[row], 0
        for i in range(len(found)):
            count += found[i] > bar
        counts[row] = count
    return counts
