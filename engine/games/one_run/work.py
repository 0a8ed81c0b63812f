"""What the units of a one-run game do: ask the proxy, run the mechanism, play replays.

What is replayed is put together where it is played: points, what the proxy says of them, and answers, which are the
mechanism's, or silence, or the truth.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.one_run.answers import Answers, LabelRelease, Predictions, checked_release
from dpaudit.engine.games.one_run.distinguisher import Distinguisher, Round
from dpaudit.engine.games.one_run.rules import CanarySetup, OneRunRules, Predictor, ProxyRules, R, Replayed
from dpaudit.errors import require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, own_features
from dpaudit.mechanisms.protocols import Model

LEARNED_ROUNDS = 8
"""Rounds a classifier learns from: fresh bits and draws on the same rows."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The points both models are asked about.

    Attributes:
        canaries: Rows of the training data, m of them.
        fresh: Points shown in their place, m or none.
        held_out: Rows of the control, which the mechanism never saw; None when it is not played.
        reference: The reference part, where the question at stake is worded with its help.
    """

    canaries: Examples
    fresh: Examples
    held_out: Examples | None
    reference: Examples | None

    def ask(self, model: Predictor) -> NDArray[np.float32]:
        """Answers for canaries, fresh points and held-out rows, below each other; shape (points, classes)."""
        asked = [self.canaries, self.fresh, *([self.held_out] if self.held_out is not None else [])]
        return np.concatenate([model(points) for points in asked if len(points)]).astype(np.float32)

    @property
    def shown(self) -> int:
        """How many points can be shown: the canaries and the fresh points."""
        return len(self.canaries) + len(self.fresh)


@unit
def queries_of(
    rules: ProxyRules, target: Examples, test: Examples | None, fresh: Examples | None, reference: Examples | None
) -> Queries:
    """The points of a game; `fresh` are those drawn elsewhere than from the test part."""
    canaries = rules.canaries_of(target)
    source = next(part for part in (fresh, test, canaries) if part is not None)
    count = len(canaries)
    return Queries(canaries, rules.fresh_of(source, count), rules.held_out_of(test, count), reference)


@unit
def ask_proxy(
    rules: ProxyRules,
    proxy: Any,
    data: Any,
    queries: Queries,
    reference: Examples | None,
    compute: Compute,
    *,
    seed: Seed,
) -> Predictions:
    """The proxy's probabilities of what is at stake, at every point the adversary may be shown.

    Args:
        rules: Say what is at stake.
        proxy: Trained on the reference part, or known.
        data: The data set's description.
        queries: The points.
        reference: The reference part; None when it has no rows.
        compute: Where it runs.
        seed: Of the proxy.
    """
    predict = proxy.predictor(
        reference=None if reference is None else rules.proxy_task(reference, reference).writable(),
        data=data,
        seed=seed.sequence(),
        compute=compute,
    )
    return Predictions(queries.ask(lambda points: predict(rules.proxy_task(points, reference))))


@unit
def train_model(
    rules: ProxyRules,
    mechanism: Any,
    queries: Queries,
    target: Examples,
    test: Examples | None,
    validation: Examples | None,
    compute: Compute,
    *,
    design_seed: Seed,
    seed: Seed,
) -> Outcome[Predictions]:
    """One training of a learner; its answers at every point the adversary may be shown are taken right where it ran.

    Args:
        rules: Decide the intervention.
        mechanism: What is audited.
        queries: The points.
        target: The data before the intervention.
        test: What its utility is measured on.
        validation: For early stopping.
        compute: Where it runs.
        design_seed: Of the draws that decide the training data.
        seed: Of the training.
    """
    model = mechanism.fit(
        rules.intervened(target, design_seed).writable(),
        seed=seed.sequence(),
        compute=compute,
        validation=None if validation is None else validation.writable(),
    )
    require(
        isinstance(model, Model),
        f"{type(mechanism).__qualname__}.fit must give a model with a method `probabilities(features)`",
        model=type(model).__qualname__,
    )

    def predict(examples: Examples) -> NDArray[np.float64]:
        answers: NDArray[np.float64] = model.probabilities(own_features(examples.features))
        return answers

    asked = queries.ask(lambda points: rules.model_answers(predict, points, queries.reference))
    return Outcome(Predictions(asked), metrics=utility(model, test) if test is not None else {})


@unit
def release_labels(
    rules: ProxyRules, mechanism: Any, target: Examples, *, design_seed: Seed, seed: Seed
) -> LabelRelease:
    """One release of a label mechanism: the released labels of the canaries."""
    train = rules.intervened(target, design_seed)
    rng = np.random.default_rng(seed.sequence())
    released = mechanism.release(train.labels.copy(), classes=train.classes, rng=rng)
    release = checked_release(released, train, type(mechanism).__qualname__)
    return release.at(slice(rules.canary_count(target)))


def utility(model: Model, test: Examples) -> dict[str, float]:
    """Accuracy and mean log-loss (nats, probabilities cut at 1e-15) on held-out examples."""
    probabilities = model.probabilities(own_features(test.features))
    at_label = probabilities[np.arange(len(test)), test.labels]
    return {
        "test_accuracy": float(np.mean(probabilities.argmax(axis=1) == test.labels)),
        "test_log_loss": float(-np.mean(np.log(np.clip(at_label, 1e-15, 1.0)))),
    }


@unit
def silence(kind: type[Answers], reference: Predictions) -> Answers:
    """Answers of some kind that say nothing, for every point: the attack has the proxy alone."""
    return kind.silent(*reference.probabilities.shape)


@unit
def truth(rules: ProxyRules, kind: type[Answers], queries: Queries, *, design_seed: Seed) -> Answers:
    """Answers of a mechanism without privacy: of each canary what is at stake, as it is trained with."""
    canaries = rules.proxy_task(queries.canaries, queries.reference)
    planted = rules.design(canaries, design_seed.rng()).labels
    return kind.telling(canaries.labels if planted is None else planted, canaries.classes)


@unit
def run_mechanism(rules: Any, mechanism: Any, target: Any, compute: Compute, *, design_seed: Seed, seed: Seed) -> Any:
    """One run of the mechanism, and what it gave out, as the game asks for it.

    Args:
        rules: Decide the intervention, and what is released.
        mechanism: What is audited.
        target: The data before the intervention.
        compute: Where it runs.
        design_seed: Of the draws that decide the training data.
        seed: Of the run.
    """
    train = rules.intervened(target, design_seed)
    return rules.released(mechanism, train, rules.canaries_of(target), seed=seed, compute=compute)


@unit
def release_replayed(rules: OneRunRules[R], target: R, release: Any) -> Replayed[R]:
    """The canaries, and what the mechanism gave out."""
    canaries = rules.canaries_of(target)
    return Replayed(CanarySetup(canaries, canaries.take(np.arange(0))), release)


@unit
def canaries_replayed(
    rules: ProxyRules, queries: Queries, reference: Predictions, answers: Answers
) -> Replayed[Examples]:
    """The canaries, or fresh points in their place."""
    canaries = rules.proxy_task(queries.canaries, queries.reference)
    proxy = reference.probabilities[: queries.shown]
    setup = CanarySetup(canaries, queries.fresh, cumulative(proxy[: len(canaries)]))
    return Replayed(setup, answers.at(slice(queries.shown)), proxy)


@unit
def held_out_replayed(
    rules: ProxyRules, queries: Queries, reference: Predictions, answers: Answers
) -> Replayed[Examples]:
    """Rows the mechanism never saw: what the attack shows there, it owes to the proxy's shift."""
    assert queries.held_out is not None
    rows = slice(queries.shown, None)
    proxy = reference.probabilities[rows]
    setup = CanarySetup(rules.proxy_task(queries.held_out, queries.reference), queries.held_out, cumulative(proxy))
    return Replayed(setup, answers.at(rows), proxy)


def cumulative(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cumulative class probabilities of each row, the last one 1; shape (n, classes)."""
    sums = np.cumsum(probabilities, axis=1, dtype=np.float64)
    return sums / sums[:, -1:]


@unit
def play_replays(
    rules: OneRunRules[R], attack: Any, replayed: Replayed[R], *, design_seed: Seed, seed: Seed, first: int, last: int
) -> Iterator[Scores]:
    """Replays of one training: fresh bits and draws, the hint, the attack's scores.

    Args:
        rules: What is played.
        attack: The adversary.
        replayed: With what.
        design_seed: Of the draws that decided the training data.
        seed: Each replay has a child of its own.
        first: First replay.
        last: One past the last replay.
    """
    for replay, played in rounds_of(rules, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, played.score)


@unit
def play_distinguisher(
    rules: OneRunRules[R], attack: Any, replayed: Replayed[R], *, design_seed: Seed, seed: Seed, first: int, last: int
) -> Iterator[Scores]:
    """The same replays with a classifier in the attack's place, which learns from further rounds on other rows.

    Args:
        rules: What is played.
        attack: The adversary; the classifier knows what it says.
        replayed: With what.
        design_seed: Of the draws that decided the training data.
        seed: Each replay has a child of its own.
        first: First replay.
        last: One past the last replay.
    """
    learning = seed.child("learning")
    learned = rounds_of(rules, attack, replayed, design_seed, learning, range(LEARNED_ROUNDS))
    classifier = Distinguisher([played for _, played in learned], learning.child("parts").rng())
    for replay, played in rounds_of(rules, attack, replayed, design_seed, seed, range(first, last)):
        yield scored(replay, played.bits, classifier.score(played))


def rounds_of(
    rules: OneRunRules[R], attack: Any, replayed: Replayed[R], design_seed: Seed, seed: Seed, numbers: Iterable[int]
) -> Iterator[tuple[int, Round]]:
    """Rounds of the game with their numbers.

    Args:
        rules: What is played.
        attack: The adversary.
        replayed: With what.
        design_seed: Of the draws that decided the training data.
        seed: Each round has a child of its own.
        numbers: Of the rounds.
    """
    design = rules.design(replayed.setup.canaries, design_seed.rng())
    for number in numbers:
        draw = rules.draw(replayed.setup, design, seed.child(number).rng())
        shown = rules.hint(replayed.setup, design, draw)
        view = rules.view(replayed, shown)
        yield number, Round(view, attack.score(copy.deepcopy(view)), draw.bits)
