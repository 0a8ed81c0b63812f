"""The compiled loop of Theorem 16: the window of the binomial law that weighs most for its width."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def steepest_window(n: int, start: int, skipped: int, mass: float, heap: float, odds: float) -> float:
    """max over j of Pr[top - j < Bin(n, beta) <= top] / j, with top = start + skipped and j > skipped.

    Args:
        n, odds: The law; odds = beta / (1 - beta).
        start: Highest value whose mass is counted singly, >= 0.
        skipped: Number of values above `start` in every window, >= 0.
        mass: Pr[Bin = start].
        heap: Mass of the skipped values, or more.
    Returns: The largest average. The law has one mode, so the averages fall for good once the next mass is below them.
    """
    total = heap + mass
    width = skipped + 1.0
    best = total / width
    for value in range(start, 0, -1):
        mass *= value / ((n - value + 1) * odds)
        if mass < best and value <= (n + 1) * odds / (1 + odds):
            break
        total += mass
        width += 1
        best = max(best, total / width)
    return best
