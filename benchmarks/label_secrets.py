"""Measure reconstruction advantages of the five label mechanisms with a claim, at epsilon 1.

    python -m benchmarks.label_secrets [--number GAMES] [--write]

Each secret is played once with 20,000 guesses, and in GAMES games of 150 guesses, whose bounds vary most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from benchmarks.campaign import measurement
from dpaudit.actors.seed import Seed
from dpaudit.claims import PureDP
from dpaudit.engine.data.bundled import BreastCancer, Iris
from dpaudit.engine.games.labels.label_secrets import (
    LabelSecrets,
    LikeliestSecret,
    Secret,
    guess_secrets,
    release_secrets,
)
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.label_reconstruction.secrets import Reconstruction, SecretGuesses, largest_success
from dpaudit.mechanisms.labels.proportions import GeometricProportions, LaplaceProportions
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RandomizedResponse, RRWithPrior
from tools.rows import Row, setting

MECHANISMS: dict[str, tuple[Any, Any, bool]] = {
    "randomized-response": (RandomizedResponse(1.0), Iris(), False),
    "rr-with-prior": (RRWithPrior(1.0, (0.4, 0.3, 0.3)), Iris(), False),
    "one-hot-laplace": (OneHotLaplace(1.0), Iris(), False),
    "llp-laplace": (LaplaceProportions(epsilon=1.0), BreastCancer(), True),
    "llp-geometric": (GeometricProportions(epsilon=1.0), BreastCancer(), True),
}


def guesses_of(name: str, game: LabelSecrets, seed: int) -> SecretGuesses:
    """Return the counts of one game, without the engine."""
    mechanism, data, in_bags = MECHANISMS[name]
    target, seeds = data.load(seed=0), Seed(seed)
    options: dict[str, Any] = {"in_bags": in_bags, "pair_seed": seeds}
    search, fresh = (
        release_secrets(game, mechanism, target, first=0, last=count, seed=seeds.child(part), **options).value
        for part, count in (("search", game.search), ("fresh", game.trials))
    )
    (guesses,) = guess_secrets(game, LikeliestSecret(), (search,), (fresh,), classes=target.classes, **options)
    return guesses


def rows(number: int) -> Iterator[Row]:
    """Yield the advantage, what the claim allows and the bound of each secret, and the bounds above the truth."""
    estimator = Reconstruction()
    for name in MECHANISMS:
        for secret in get_args(Secret):
            where, game = setting({"mechanism": name, "secret": secret}), LabelSecrets(secret)
            counts = guesses_of(name, game, 1)
            bound = estimator.bound([counts])
            (success,) = bound.evidence
            curve = PureDP(1.0 * game.secret_rows)
            yield Row(where, "values", f"{counts.values}")
            yield Row(where, "advantage", format_lower(success.comparison(curve).observed), "", f"{counts.trials}")
            yield Row(where, "allowed", f"{largest_success(curve, counts.values) - 1 / counts.values:.3f}")
            yield Row(where, "bound", format_lower(bound.lower, 2), "", f"{counts.trials}")
            yield Row(where, "claim", f"{curve.bound:g}")
            small = LabelSecrets(secret, trials=150, search=60)
            bounds = [estimator.bound([guesses_of(name, small, seed)]) for seed in range(number)]
            wrong = sum(bound.lower > game.secret_rows for bound in bounds)
            yield Row(where, "bound above the truth", f"{wrong}", "", f"{number}")


if __name__ == "__main__":
    measurement(rows, number=200)
