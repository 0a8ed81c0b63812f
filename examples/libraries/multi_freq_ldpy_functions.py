"""multi-freq-ldpy, tested with 0.2.5. Rows: "array" of values 0 to 3 or of bits; the answer is the last report."""

from __future__ import annotations

from typing import Any

import numpy as np
from multi_freq_ldpy.mdim_freq_est.RSpFD_solution import RSpFD_GRR_Client, RSpFD_UE_zero_Client
from multi_freq_ldpy.mdim_freq_est.SPL_solution import SPL_GRR_Client
from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
from multi_freq_ldpy.pure_frequency_oracles.HE import HE_Client
from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Client
from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client
from numba import njit


def _values(rows: Any, low: int, high: int) -> list[int]:
    """The first column, as whole numbers of the domain."""
    return [int(value) for value in np.clip(np.nan_to_num(rows[:, 0]), low, high)]


@njit  # type: ignore[untyped-decorator]
def _seed(seed: int) -> None:
    np.random.seed(seed)


def _last(rows: Any, rng: Any) -> int:
    """Seed the generator of compiled code, and return the value of the last user."""
    _seed(int(rng.integers(2**31)))
    return _values(rows, 0, 3)[-1]


def generalised_response(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return GRR_Client(_last(rows, rng), 4, epsilon) if len(rows) else None


def oue(rows: Any, rng: Any, epsilon: float = 1.0, optimal: bool = True) -> Any:
    return UE_Client(_last(rows, rng), 4, epsilon, optimal) if len(rows) else None


def subset_selection(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """The subset as four bits."""
    return np.isin(np.arange(4), SS_Client(_last(rows, rng), 4, epsilon)) if len(rows) else None


def laplace_histogram(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return HE_Client(_last(rows, rng), 4, epsilon) if len(rows) else None


def _tuple(rows: Any, rng: Any) -> tuple[list[int], list[int]]:
    """Return the bits of the last user, one for each column, and the size of each domain."""
    _seed(int(rng.integers(2**31)))
    return [int(value >= 0.5) for value in np.nan_to_num(rows[-1])], [2] * rows.shape[1]


def split_budget(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """Reports of all attributes of the last user, with a part of epsilon for each."""
    if not len(rows):
        return None
    bits, sizes = _tuple(rows, rng)
    return SPL_GRR_Client(bits, sizes, len(bits), epsilon)


def sampled_with_fakes(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """RS+FD: the report of one attribute that is drawn at random, among fake reports of the others."""
    if not len(rows):
        return None
    bits, sizes = _tuple(rows, rng)
    return RSpFD_GRR_Client(bits, sizes, len(bits), epsilon)


def sampled_with_zero_fakes(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """RS+FD with unary encoding; fakes are reports of no value."""
    if not len(rows):
        return None
    bits, sizes = _tuple(rows, rng)
    return np.concatenate(RSpFD_UE_zero_Client(bits, sizes, len(bits), epsilon))
