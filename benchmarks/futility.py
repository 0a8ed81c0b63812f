"""Lost power and saved trainings from stopping hopeless tests, on streams of scores with a known leak.

    python -m benchmarks.futility | python -m tools.rows futility.csv --keys 3 --trials streams \\
        --program "python -m benchmarks.futility"

`betting` reads each stream to its end in eight parts, as in the first pass of a check. The program also records the
part at which `hopeless` would have stopped the stream. A stream is "lost" if it rejects by its end but would have been
stopped earlier.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.answer.stopping import is_hopeless
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.betting import Betting

STREAMS, PARTS, TRIALS, CONFIDENCE, DELTA = 1_000, 8, 1_024, 0.99, 1e-5
CASES = (
    (0.91, "normals", 0.0),
    (0.91, "normals", 0.25),
    (0.91, "normals", 1.2),
    (0.91, "a share far out", 0.08),
    (0.91, "a share far out", 0.1),
    (0.91, "answers at random", 1.2),
    (0.91, "answers at random", 1.3),
    (0.1, "normals", 0.0),
    (0.1, "answers at random", 0.4),
    (0.1, "a share far out", 0.05),
    (4.0, "normals", 0.0),
    (4.0, "answers at random", 5.5),
)
"""Claimed epsilon, kind of leak, and its size: distance of two normals, share of exposed members, or epsilon."""


def stream(leak: str, size: float, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores and truths of all trials."""
    truth, noise = rng.random(TRIALS) < 0.5, rng.normal(size=TRIALS)
    if leak == "normals":
        return noise + size * truth, truth
    if leak == "a share far out":
        return noise + 20 * (truth & (rng.random(TRIALS) < size)), truth
    return ((rng.random(TRIALS) < 1 / (1 + math.exp(-size))) == truth).astype(np.float64), truth


def run_stream(claimed: float, leak: str, size: float, seed: int) -> tuple[bool, float, float]:
    """Return whether a stream rejects by its end, the share read with the rule, and the share read without it."""
    score, truth = stream(leak, size, np.random.default_rng([seed, CASES.index((claimed, leak, size))]))
    test, each = Betting(DELTA, CONFIDENCE), TRIALS // PARTS
    state, ended = test.start(), 1.0
    for part in range(PARTS):
        rows = slice(part * each, (part + 1) * each)
        state = test.update(state, Scores(score[rows], truth[rows], canary=np.arange(TRIALS)[rows]))
        share = (part + 1) / PARTS
        if test.lower(state) > claimed:
            return True, min(ended, share), share
        if share < ended and is_hopeless(test.log_wealth(state, claimed), share, CONFIDENCE):
            ended = share
    return False, ended, 1.0


def main() -> None:
    """Print the table."""
    print("| claimed | scores | leak | streams | refuted | lost | trials read, share | without the rule |")
    print("| --- " * 8 + "|")
    for claimed, leak, size in CASES:
        each = [run_stream(claimed, leak, size, seed) for seed in range(STREAMS)]
        refuted = sum(rejects for rejects, _, _ in each)
        lost_rejections = sum(rejects and ended < share for rejects, ended, share in each)
        used, whole = (float(np.mean(shares)) for shares in list(zip(*each, strict=True))[1:])
        print(
            f"| {claimed:g} | {leak} | {size:g} | {STREAMS} | {refuted} | {lost_rejections} | "
            f"{used:.2f} | {whole:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
