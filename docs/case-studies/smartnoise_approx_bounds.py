"""SmartNoise SQL 1.0.0, approx_bounds: an infinite value raises an error (issue #574; run in 1.0.10 for the fix)."""

import math
from importlib.metadata import version

from snsql.sql._mechanisms.approx_bounds import approx_bounds
from two_tables import compare


def released(rows):
    low, high = approx_bounds(rows, 1.0)
    return ("none",) if low is None else (low, high)


plain = 50 * [0.5]
infinite = [*plain[1:], math.inf]
# One row is replaced: at most twice the epsilon of a row that is added or removed.
compare(f"SmartNoise SQL {version('smartnoise-sql')}", released, plain, infinite, claim=2, runs=1_000)
