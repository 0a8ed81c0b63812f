"""Bounds of membership attacks on models without privacy: single statistics, and the combination that is learned.

    python -m benchmarks.membership_attacks ADULT [--models 5] [--draws 2] | \\
        python -m tools.rows membership-attacks.csv --keys 3 --trials games \\
        --program "python -m benchmarks.membership_attacks ADULT"

ADULT is the folder with UCI's files. For each model and data set, `models` models are trained on the canaries that
separate fair coins select. Each plays the audited model once, with the others as shadow models. A single attack gets
the better of the guess rules `both-tails` and `member-only`, as if known beforehand; the learned attack gets the rule
of the game. The mean bounds are printed, and the learned one's ratio to the best single attack's mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from dpaudit import from_sklearn
from dpaudit.engine.data.adult import Adult
from dpaudit.engine.games.one_run.answers import MembershipView, ShadowAnswers
from dpaudit.engine.games.one_run.learned_membership import LearnedMembership, statistics_of
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.tables import CatBoost

MAX_CANARIES = 1_200
MORE_DRAWS = 5
"""Factor on the draws of models that train in milliseconds, whose bounds vary most."""
CHEAP = {"neighbours", "tree", "logistic"}
SINGLE = {"probability": 0, "calibrated loss": 3, "probability beyond shadow models": 4, "RMIA": 6, "LiRA": 7}
"""Single attacks, by their column in `statistics_of`."""
PAIRS = (
    ("forest", "made"),
    ("forest", "adult"),
    ("forest", "cancer"),
    ("boosting", "made"),
    ("boosting", "adult"),
    ("network", "digits"),
    ("network", "adult"),
    ("neighbours", "digits"),
    ("neighbours", "adult"),
    ("tree", "made"),
    ("tree", "adult"),
    ("logistic", "cancer"),
    ("logistic", "made"),
)


def standardised(classifier: Any) -> Any:
    """Return the model of a classifier on standardised columns."""
    return from_sklearn(make_pipeline(StandardScaler(), classifier), categories="one-hot")


MODELS: dict[str, Callable[[], Any]] = {
    "forest": lambda: from_sklearn(RandomForestClassifier(50)),
    "boosting": lambda: CatBoost(),
    "network": lambda: standardised(MLPClassifier((64,), max_iter=200)),
    "neighbours": lambda: standardised(KNeighborsClassifier(5)),
    "tree": lambda: from_sklearn(DecisionTreeClassifier(min_samples_leaf=2)),
    "logistic": lambda: standardised(LogisticRegression(C=10, max_iter=500)),
}


def load(name: str, adult: str) -> Examples:
    """Return all rows of a data set."""
    if name == "adult":
        return Adult(adult, rows=3_000).load()
    if name == "made":
        features, labels = make_classification(3_000, n_informative=6, flip_y=0.2, random_state=0)
    else:
        features, labels = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    return Examples(features.astype(np.float32), labels.astype(np.int64), int(labels.max()) + 1)


def bound_of(score: NDArray[np.float64], member: NDArray[np.bool_], guess: Any = "signed") -> float:
    """Return the lower bound from the scores of one training, which are stored in single precision."""
    method = SimultaneousGuessCount(guess=guess)
    return method.bound([method.tally(Scores(score.astype(np.float32), member))]).lower


def bounds(model: str, rows: Examples, models: int, seed: int) -> list[dict[str, float]]:
    """Return the bounds of each attack on each of `models` trained models."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    count = min(MAX_CANARIES, int(0.6 * len(rows)))
    canaries, reference = rows.take(order[:count]), rows.take(order[count:])
    coins = rng.random((models, count)) < 0.5
    seeds = np.random.SeedSequence(seed).spawn(models + 1)

    def answers(trained_on: Examples, number: int) -> NDArray[np.float32]:
        trained = MODELS[model]().fit(trained_on, seed=seeds[number], compute=Compute())
        return np.asarray(trained.probabilities(canaries.features), np.float32)

    target = np.stack([answers(canaries.take(coins[number]), number) for number in range(models)])
    proxy = answers(reference, models)
    results = []
    for number in range(models):
        others = np.arange(models) != number
        view = MembershipView(target[number], proxy, canaries.labels, ShadowAnswers(target[others], coins[others]))
        assert view.shadows is not None
        statistics = statistics_of(target[number], view, view.shadows)
        result = {
            name: max(bound_of(statistics[:, column], coins[number], guess) for guess in ("both-tails", "member-only"))
            for name, column in SINGLE.items()
        }
        results.append(result | {"learned": bound_of(LearnedMembership().score(view), coins[number])})
    return results


def main() -> None:
    """Print a row for each model and data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adult")
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--draws", type=int, default=2)
    options = parser.parse_args()
    print(f"| model | data | canaries | games | {' | '.join(SINGLE)} | learned | ratio to the best |")
    print("| --- " * (len(SINGLE) + 6) + "|")
    for model, name in PAIRS:
        rows = load(name, options.adult)
        draws = options.draws * (MORE_DRAWS if model in CHEAP else 1)
        results = [result for seed in range(draws) for result in bounds(model, rows, options.models, seed)]
        mean = {attack: float(np.mean([result[attack] for result in results])) for attack in results[0]}
        ratio = mean["learned"] / max(mean[attack] for attack in SINGLE)
        numbers = " | ".join(f"{mean[attack]:.2f}" for attack in (*SINGLE, "learned"))
        count = min(MAX_CANARIES, int(0.6 * len(rows)))
        print(f"| {model} | {name} | {count:,} | {len(results)} | {numbers} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
