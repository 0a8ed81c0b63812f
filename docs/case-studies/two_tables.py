"""What the scripts beside this file share: how often one event happens on each of two tables. Standard library only.

A result is a number, a text, or a tuple of both. The first half of the runs chooses the event that speaks most for a
difference: a text that is equal, or a number that is above or below a threshold. The second half counts it.
"""

import math
import platform
from bisect import bisect_left, bisect_right


def compare(name, call, d, d_prime, claim, runs, delta=0.0, alpha=0.001):
    """Prints the counts, and the epsilon they show at `delta`: wrong with probability at most `alpha`."""
    results = [[outcome(call, rows) for _ in range(runs)] for rows in (d, d_prime)]
    half = runs // 2
    words, event, *_ = max(events(*(part[:half] for part in results)), key=promise)
    hits, other = (sum(map(event, part[half:])) for part in results)
    bound = shown(hits, other, runs - half, delta, alpha)
    verdict = "MORE THAN CLAIMED" if bound > claim else "within the claim"
    print(f"{name}: {words}: {hits} and {other} of {runs - half} runs each")
    print(f"    epsilon >= {math.floor(100 * bound) / 100:.2f} of {claim:g}: {verdict}")
    print(f"    (wrong with probability <= {alpha:g}; delta {delta:g}; Python {platform.python_version()})")


def outcome(call, rows):
    """A result as a tuple; a failure is the name of its class."""
    try:
        result = call(rows)
    except Exception as err:
        return ("raises " + type(err).__name__,)
    return tuple("nan" if part != part else part for part in (result if isinstance(result, tuple) else (result,)))


def events(d, d_prime):
    """Candidates: in words, as a test of a result, and how often each happens on the two tables."""
    for place in range(max(map(len, d + d_prime))):
        a, b = ([result[place] for result in part if len(result) > place] for part in (d, d_prime))
        for text in {value for value in a + b if isinstance(value, str)}:
            yield f"'{text}'", lambda r, i=place, t=text: len(r) > i and r[i] == t, a.count(text), b.count(text)
        a, b = (sorted(value for value in part if not isinstance(value, str)) for part in (a, b))
        both = sorted(a + b)
        for t in {both[i * (len(both) - 1) // 400] for i in range(401)} if both else ():
            for sign, cut in ((">=", bisect_left), (">", bisect_right)):
                above = len(a) - cut(a, t), len(b) - cut(b, t)
                yield f"number {place} {sign} {t:.6g}", threshold(place, t, sign, True), *above
                below = cut(a, t), cut(b, t)
                yield f"number {place} not {sign} {t:.6g}", threshold(place, t, sign, False), *below


def promise(event):
    """Roughly what `shown` would say of it: enough to choose by."""
    hits, other = max(event[2:]), min(event[2:])
    return (hits - 4 * math.sqrt(hits)) / (other + 4 * math.sqrt(other) + 8)


def threshold(place, t, sign, wanted):
    def test(result):
        if len(result) <= place or isinstance(result[place], str):
            return False
        return (result[place] >= t if sign == ">=" else result[place] > t) == wanted

    return test


def shown(hits, other, n, delta, alpha):
    """Log of the larger rate over the smaller one, by exact (Clopper-Pearson) limits of alpha / 4 each."""
    hits, other = max(hits, other), min(hits, other)
    low, high = lower_limit(hits, n, alpha / 4) - delta, 1 - lower_limit(n - other, n, alpha / 4)
    return max(0.0, math.log(low / high)) if low > 0 else 0.0


def lower_limit(hits, n, alpha):
    """The rate at which so many hits, or more, have probability alpha."""
    low, high = 0.0, hits / n
    for _ in range(50):
        rate = (low + high) / 2
        low, high = (rate, high) if tail(hits, n, rate) < alpha else (low, rate)
    return low


def tail(hits, n, rate):
    """Pr[Binomial(n, rate) >= hits], for a rate of at most hits / n: the terms fall from the first on."""
    if hits == 0 or rate == 0:
        return float(hits == 0)
    first = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    total = term = math.exp(first + hits * math.log(rate) + (n - hits) * math.log1p(-rate))
    for k in range(hits, n):
        term *= (n - k) / (k + 1) * rate / (1 - rate)
        total += term
        if term < 1e-17 * total:
            break
    return total
