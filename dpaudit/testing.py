"""Checks to call in the tests of your own mechanism, attack, estimator or game.

    from dpaudit.testing import check_mechanism

    def test_my_mechanism() -> None:
        check_mechanism(MyMechanism(epsilon=1.0))

Each check raises AssertionError with the rule that is broken.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.actors.values import decode, encode
from dpaudit.actors.work import Call, value_of
from dpaudit.claims import Claim
from dpaudit.engine.games.protocol import GameTraits
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec, RunOptions
from dpaudit.engine.request.build import build, describe
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.protocol import VotingPredictor
from dpaudit.mechanisms.protocols import LabelMechanism, Learner

FALSE_FAILURE = 1e-6  # probability that a statistical check fails for a correct implementation
SIMULATED = (Validity.FINITE_SAMPLE, Validity.EXACT)


def must(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def check_mechanism(mechanism: Any, data: Examples | None = None, *, seed: int = 0) -> None:
    """Check the claim of a label mechanism or learner, and that its seed alone decides its output.

    Args:
        mechanism: An instance. Other classes with a method `claim` get only the checks that all mechanisms share.
        data: Data set to run it on; by default 200 rows with three features and two classes.
        seed: Seed of the runs.
    """
    name = type(mechanism).__name__
    claim = mechanism.claim() if callable(getattr(mechanism, "claim", None)) else None
    must(isinstance(claim, Claim), f"{name}.claim() must give a dpaudit.Claim, got {claim!r}")
    must(mechanism.claim() == claim, f"{name}.claim() must give the same claim every time")
    check_part(mechanism, "mechanism")
    if data is None:
        rng = np.random.default_rng(0)
        features = rng.normal(size=(200, 3)).astype(np.float32)
        data = Examples(features, (features[:, 0] + rng.normal(size=200) > 0).astype(np.int64), 2)
    predicts = isinstance(mechanism, VotingPredictor)  # its `release` is the distribution of an answer
    if isinstance(mechanism, LabelMechanism) and not predicts:
        _check_deterministic(name, "release", data, lambda examples: _release_labels(mechanism, examples, seed))
    elif isinstance(mechanism, Learner):
        seed_sequence = np.random.SeedSequence(seed)  # one object for both runs, to detect state between calls
        _check_deterministic(name, "fit", data, lambda examples: _fit_and_predict(mechanism, examples, seed_sequence))


def check_part(part: Any, kind: str) -> None:
    """Check that a part ("mechanism", "attack", ...) is frozen, picklable, and described and rebuilt by specs."""
    name = type(part).__name__
    frozen = getattr(getattr(type(part), "__dataclass_params__", None), "frozen", False)
    must(frozen, f"{name} must be a frozen dataclass, so that it cannot change between planning and running")
    try:
        unpickled = pickle.loads(pickle.dumps(part))
    except Exception as err:
        raise AssertionError(f"{name} must be picklable: {type(err).__name__}: {err}") from err
    must(describe(unpickled) == describe(part), f"{name} must be the same after pickling")
    at_module_level = "<locals>" not in type(part).__qualname__
    must(at_module_level, f"{name} must be defined at the top of a module, so that a spec can name it")
    try:
        rebuilt = build(kind, describe(part))
    except Exception as err:
        raise AssertionError(f"a spec must be able to describe and rebuild {name}: {err}") from err
    must(rebuilt == part, f"{name} must be equal to the instance rebuilt from its description, {describe(part)}")


def _check_deterministic(name: str, method: str, data: Examples, run: Callable[[Examples], NDArray[Any]]) -> None:
    copied = data.with_(features=copy.deepcopy(data.features), labels=data.labels.copy())
    before = np.random.get_state()
    try:
        np.random.seed(1)
        first = run(copied)
        untouched = copied.with_().digest == data.with_().digest  # new objects, because an object caches its digest
        must(untouched, f"{name}.{method} must not write into its data, which other runs share")
        np.random.seed(2)
        second = run(copied)
    finally:
        np.random.set_state(before)
    must(
        np.array_equal(first, second),
        f"{name}.{method} must give the same for the same seed: draw only from its generator or seed, and keep no "
        "state between calls",
    )


def _release_labels(mechanism: LabelMechanism, data: Examples, seed: int) -> NDArray[Any]:
    name = type(mechanism).__name__
    rng = np.random.default_rng(seed)
    labels = np.asarray(mechanism.release(data.labels, classes=data.classes, rng=rng))
    valid = labels.shape == data.labels.shape and np.issubdtype(labels.dtype, np.integer)
    must(valid, f"{name}.release must give one whole number for each label, got {labels.dtype} of {labels.shape}")
    within = bool((labels >= 0).all() and (labels < data.classes).all())
    must(within, f"{name}.release must give labels in 0 .. {data.classes - 1}")
    return labels.copy()


def _fit_and_predict(learner: Learner, data: Examples, seed: np.random.SeedSequence) -> NDArray[Any]:
    name = type(learner).__name__
    model = learner.fit(data, seed=seed, compute=Compute(), validation=data)
    must(hasattr(model, "probabilities"), f"{name}.fit must give a model with a method `probabilities(features)`")
    answers = np.asarray(model.probabilities(data.features))
    shape = (len(data), data.classes)
    must(answers.shape == shape, f"a model of {name} must answer with an array of shape {shape}, got {answers.shape}")
    valid = bool(np.isfinite(answers).all() and (answers >= 0).all() and np.allclose(answers.sum(1), 1, atol=1e-4))
    must(valid, f"a model of {name} must answer with probabilities that sum to 1 in each row")
    return answers.copy()


def check_attack(attack: Any, view: Any, *, rows: int) -> None:
    """Check that an attack scores each of `rows` candidates, depends only on `view`, and does not modify it."""
    name, kind = type(attack).__name__, getattr(attack, "view", None)
    must(isinstance(kind, type), f"{name} must have a class variable `view`, the class of its input")
    must(isinstance(getattr(kind, "shows", None), str), f"{name}.view must describe its content in a string `shows`")
    must(isinstance(view, kind), f"{name} must be checked with a view of class {kind.__name__}")  # type: ignore[arg-type, union-attr]
    check_part(attack, "attack")
    before = pickle.dumps(view)
    first = np.array(attack.score(view), copy=True)
    must(pickle.dumps(view) == before, f"{name}.score must not write into its view")
    numbers = first.shape == (rows,) and np.issubdtype(first.dtype, np.floating) and not np.isnan(first).any()
    must(bool(numbers), f"{name}.score must give one number for each of {rows}, got {first.dtype} of {first.shape}")
    second = np.asarray(attack.score(view))
    must(np.array_equal(first, second), f"{name}.score must depend only on its view: a second call gave other scores")


def check_game(audit: Audit, *, seed: int = 0) -> None:
    """Check that a game's plan depends only on spec and seed, and the results of its units only on their arguments.

    Args:
        audit: A small audit of the game, with a few trainings of at most a second. It is run twice.
        seed: Seed of the audit.
    """
    plan = _plan_of(audit, seed)
    game, name = plan.spec.audits[0].game, type(plan.spec.audits[0].game).__name__
    check_part(game, "game")
    fits: GameTraits = game.traits
    must(fits.assumes.endswith("."), f"{name}.traits.assumes must be a sentence: it is printed with every bound")
    for view in fits.views.values():
        must(isinstance(getattr(view, "shows", None), str), f"{name}.traits.views: {view} must have a string `shows`")
    must(bool(plan.audits[0].game.evidence), f"{name}.play must plan units that return evidence")
    keys = [unit.key for unit in plan.units]
    must(keys == [unit.key for unit in _plan_of(audit, seed).units], f"{name}.play must plan the same units every time")
    shared_seeds = _mechanism_seeds(plan) & _mechanism_seeds(_plan_of(audit, seed + 1))
    must(not shared_seeds, f"{name}.play must derive the seeds of the mechanism's runs from the audit's seed")
    evidence, replayed = _evidence_of(plan), _evidence_of(plan)
    must(
        [encode([value], type(value)) for value in evidence] == [encode([value], type(value)) for value in replayed],
        f"the units of {name} must give the same for the same arguments, on any worker and in any order",
    )
    kind = fits.evidence
    must(
        all(isinstance(value, kind) for value in evidence), f"{name} must return {kind.__name__}, as its `fits` states"
    )
    if kind is Scores:
        # Check the coins of the first replay, since others may share them; false failure <= 1e-6.
        from scipy.stats import binom  # slow to import

        truth = evidence[0].truth
        fewest, heads = int(binom.ppf(FALSE_FAILURE / 2, truth.size, 0.5)), int(truth.sum())
        fair = fewest <= heads <= truth.size - fewest
        must(fair, f"the coins of {name} must be fair, {heads} of {truth.size} fell on world 1")


def _plan_of(audit: Audit, seed: int) -> Plan:
    options = RunOptions(runner="in-process", figures=False)
    return make_plan(AuditSpec((audit,), seed=seed, run=options))


def _mechanism_seeds(plan: Plan) -> set[str]:
    runs = [unit.task for unit in plan.audits[0].game.trainings if isinstance(unit.task, Call)]
    return {str(run.argument("seed")) for run in runs} - {"None"}


def _evidence_of(plan: Plan) -> list[Any]:
    """Return the evidence of `plan`, computed by pickled copies of its units, one after another."""
    tables: dict[str, pa.Table] = {}
    for unit in plan.units:
        task = pickle.loads(pickle.dumps(unit.task))
        inputs = Inputs({name: plan.shared[name] for name in unit.shared}, {key: tables[key] for key in unit.needs})
        tables[unit.key] = task.run(inputs, Compute())
    evidence: list[Any] = []
    for unit in plan.audits[0].game.evidence:
        assert isinstance(unit.task, Call)
        value = value_of(unit, tables[unit.key])
        evidence += value if unit.task.result_type.many else [value]
    return evidence


def check_estimator(estimator: Any, *, games: int = 300, rows: int = 400) -> None:
    """Check that an estimator's tally is independent of row order and storage, and that its bound has its confidence.

    The coverage of the bound is simulated in `games` games of `rows` fair coins against an exactly (1, delta)-private
    mechanism: it reveals the bit with probability `estimator.delta`, else uses randomised response of epsilon 1. A
    correct estimator fails with probability below 1e-6. Only bounds with the validity `finite-sample` or `exact` are
    simulated.
    """
    name = type(estimator).__name__
    reads_scores = isinstance(estimator, Estimator) and estimator.evidence is Scores
    must(reads_scores, f"{name} must be an Estimator of Scores to be checked here")
    for part in ("evidence", "tally_type"):
        must(dataclasses.is_dataclass(getattr(estimator, part, None)), f"{name}.{part} must be a dataclass")
    check_part(estimator, "estimator")
    scores = _exact_game(1.0, estimator.delta, rows, np.random.default_rng(0))
    _check_tally(estimator, scores)
    tally = estimator.tally(scores)
    bound = estimator.bound([tally])
    must(bound.lower >= 0, f"{name} must give a bound of at least 0, got {bound.lower}")
    must(estimator.find([tally]).lower == bound.lower, f"{name}.find must give the bound of {name}.bound")
    bound_with_failure = estimator.bound([tally], failed_replays=1).lower
    must(bound_with_failure <= bound.lower, f"{name}.bound must not rise with failed replays")
    more_confident = dataclasses.replace(estimator, confidence=1 - (1 - estimator.confidence) / 10)
    lower = more_confident.bound([more_confident.tally(scores)]).lower
    must(lower <= bound.lower, f"{name} must not give a larger bound at a larger confidence")
    if bound.validity in SIMULATED:
        _check_coverage(estimator, games, rows)


def _check_tally(estimator: Any, scores: Scores) -> None:
    name = type(estimator).__name__
    before = scores.score.copy(), scores.truth.copy()
    tally = estimator.tally(scores)
    must(isinstance(tally, estimator.tally_type), f"{name}.tally must give a {estimator.tally_type.__name__}")
    untouched = np.array_equal(before[0], scores.score) and np.array_equal(before[1], scores.truth)
    must(untouched, f"{name}.tally must not write into the scores")
    (stored,) = decode(encode([tally], estimator.tally_type), estimator.tally_type)
    bound = estimator.bound([tally]).lower
    must(estimator.bound([stored]).lower == bound, f"{name}: a stored tally must give the same bound")
    order = np.random.default_rng(1).permutation(scores.score.size)
    reordered = estimator.tally(Scores(scores.score[order], scores.truth[order], scores.replay, scores.canary[order]))
    must(estimator.bound([reordered]).lower == bound, f"{name}.tally must not depend on the order of rows")


def _check_coverage(estimator: Any, games: int, rows: int) -> None:
    from scipy.stats import binom  # slow to import

    misses = 0
    for number in range(games):
        scores = _exact_game(1.0, estimator.delta, rows, Seed(7).child("coverage", number).rng())
        misses += bool(estimator.bound([estimator.tally(scores)]).lower > 1.0)
    allowed = int(binom.ppf(1 - FALSE_FAILURE, games, 1 - estimator.confidence))
    must(
        misses <= allowed,
        f"{type(estimator).__name__}: a bound of confidence {estimator.confidence:g} must be above the true epsilon in "
        f"at most {allowed} of {games} games, got {misses}",
    )


def _exact_game(epsilon: float, delta: float, rows: int, rng: np.random.Generator) -> Scores:
    """Return scores of fair coins from a mechanism that is exactly (epsilon, delta)-private for each coin."""
    truth = rng.random(rows) < 0.5
    answer = np.where(rng.random(rows) < 1 / (1 + np.exp(-epsilon)), truth, ~truth)
    revealed = rng.random(rows) < delta
    return Scores(np.where(revealed, np.where(truth, 2.0, -2.0), np.where(answer, 1.0, -1.0)), truth)
