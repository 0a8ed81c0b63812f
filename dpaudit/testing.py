"""What a mechanism, an attack, an estimator or a game of your own must hold: checks to call in its tests.

    from dpaudit.testing import check_mechanism

    def test_my_mechanism() -> None:
        check_mechanism(MyMechanism(epsilon=1.0))

Each raises AssertionError with a sentence that says what must hold.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.actors.values import decode, encode
from dpaudit.actors.work import Call, value_of
from dpaudit.claims import Claim
from dpaudit.engine.games.protocol import Fits
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.audit_spec import Audit, AuditSpec, RunOptions
from dpaudit.engine.request.build import build
from dpaudit.engine.request.describe import describe
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.scores import ScoreEstimator, Scores
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.protocol import VotingPredictor
from dpaudit.mechanisms.protocols import LabelMechanism, Learner

FALSE_FAILURE = 1e-6  # probability that a check of counts fails although all is well
SIMULATED = (Validity.FINITE_SAMPLE, Validity.EXACT)


def must(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def check_mechanism(mechanism: Any, data: Examples | None = None, *, seed: int = 0) -> None:
    """A label mechanism or a learner: what it claims, and that its seed alone decides what it gives out.

    Args:
        mechanism: An instance; anything with a method `claim` is checked for what all mechanisms share.
        data: What it is run on; 200 rows of three numbers and two classes by default.
        seed: Of the runs.
    """
    name = type(mechanism).__name__
    claim = mechanism.claim() if callable(getattr(mechanism, "claim", None)) else None
    must(isinstance(claim, Claim), f"{name}.claim() must give a dpaudit.Claim, got {claim!r}")
    must(mechanism.claim() == claim, f"{name}.claim() must give the same claim every time")
    check_part(mechanism, "mechanism")
    data = _two_groups() if data is None else data
    predicts = isinstance(mechanism, VotingPredictor)  # its `release` gives the law of an answer
    if isinstance(mechanism, LabelMechanism) and not predicts:
        _check_decided(name, "release", data, lambda given: _released(mechanism, given, seed))
    elif isinstance(mechanism, Learner):
        own = np.random.SeedSequence(seed)  # the very same object twice: nothing may remember how often it was asked
        _check_decided(name, "fit", data, lambda given: _trained(mechanism, given, own))


def check_part(part: Any, kind: str) -> None:
    """What parts of all kinds ("mechanism", "attack", ...) share: frozen, sent to other processes, read from a spec."""
    name = type(part).__name__
    frozen = getattr(getattr(type(part), "__dataclass_params__", None), "frozen", False)
    must(frozen, f"{name} must be a frozen dataclass: what was planned must not change while it is run")
    try:
        sent = pickle.loads(pickle.dumps(part))
    except Exception as err:
        raise AssertionError(f"{name} must be able to go to another process: {type(err).__name__}: {err}") from err
    must(describe(sent) == describe(part), f"{name} must be the same after it went to another process")
    top = "<locals>" not in type(part).__qualname__
    must(top, f"{name} must be defined at the top of a module, so that a spec can name it")
    try:
        read = build(kind, describe(part))
    except Exception as err:
        raise AssertionError(f"{name} must be what a spec can write and read again: {err}") from err
    must(read == part, f"{name} must be equal to what a spec makes of its description, {describe(part)}")


def _check_decided(name: str, method: str, data: Examples, run: Callable[[Examples], NDArray[Any]]) -> None:
    given = data.with_(features=copy.deepcopy(data.features), labels=data.labels.copy())
    before = np.random.get_state()
    try:
        np.random.seed(1)
        first = run(given)
        untouched = given.with_().digest == data.with_().digest  # anew: that of the same object is kept
        must(untouched, f"{name}.{method} must not write into its data: the rows serve other runs as well")
        np.random.seed(2)
        again = run(given)
    finally:
        np.random.set_state(before)
    must(
        np.array_equal(first, again),
        f"{name}.{method} must give the same for the same seed: whatever it draws comes from the seed it is given, and "
        "it remembers nothing",
    )


def _released(mechanism: LabelMechanism, data: Examples, seed: int) -> NDArray[Any]:
    name = type(mechanism).__name__
    rng = np.random.default_rng(seed)
    labels = np.asarray(mechanism.release(data.labels, classes=data.classes, rng=rng))
    whole = labels.shape == data.labels.shape and np.issubdtype(labels.dtype, np.integer)
    must(whole, f"{name}.release must give one whole number for each label, got {labels.dtype} of {labels.shape}")
    within = bool((labels >= 0).all() and (labels < data.classes).all())
    must(within, f"{name}.release must give labels in 0 .. {data.classes - 1}")
    return labels.copy()


def _trained(learner: Learner, data: Examples, seed: np.random.SeedSequence) -> NDArray[Any]:
    name = type(learner).__name__
    model = learner.fit(data, seed=seed, compute=Compute(), validation=data)
    must(hasattr(model, "probabilities"), f"{name}.fit must give a model with a method `probabilities(features)`")
    answers = np.asarray(model.probabilities(data.features))
    shape = (len(data), data.classes)
    must(answers.shape == shape, f"a model of {name} must answer with an array of shape {shape}, got {answers.shape}")
    sums = bool(np.isfinite(answers).all() and (answers >= 0).all() and np.allclose(answers.sum(1), 1, atol=1e-4))
    must(sums, f"a model of {name} must answer with probabilities that sum to 1 in each row")
    return answers.copy()


def _two_groups() -> Examples:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3)).astype(np.float32)
    return Examples(features, (features[:, 0] + rng.normal(size=200) > 0).astype(np.int64), 2)


def check_attack(attack: Any, view: Any, *, rows: int) -> None:
    """An attack: a number for each of `rows` things at stake, decided by the game's view, which it leaves as it is."""
    name, kind = type(attack).__name__, getattr(attack, "view", None)
    must(isinstance(kind, type), f"{name} must say what it sees: a class variable `view`, a class")
    must(isinstance(getattr(kind, "shows", None), str), f"{name}.view must say in words what it `shows`")
    must(isinstance(view, kind), f"{name} must be checked with what it sees, {kind.__name__}")  # type: ignore[arg-type, union-attr]
    check_part(attack, "attack")
    before = pickle.dumps(view)
    first = np.array(attack.score(view), copy=True)
    must(pickle.dumps(view) == before, f"{name}.score must not write into what it sees")
    numbers = first.shape == (rows,) and np.issubdtype(first.dtype, np.floating) and not np.isnan(first).any()
    must(bool(numbers), f"{name}.score must give one number for each of {rows}, got {first.dtype} of {first.shape}")
    again = np.asarray(attack.score(view))
    must(np.array_equal(first, again), f"{name}.score must be decided by what it sees: it gave other scores")


def check_game(audit: Audit, *, seed: int = 0) -> None:
    """A game: its plan is decided by the spec and the seed, and what its units leave by their arguments alone.

    Args:
        audit: A small audit that plays it: some trainings of a second at most. All of it is run, twice.
        seed: Of the audit.
    """
    plan = _planned(audit, seed)
    game, name = plan.spec.audits[0].game, type(plan.spec.audits[0].game).__name__
    check_part(game, "game")
    fits: Fits = game.fits
    must(fits.assumes.endswith("."), f"{name}.fits.assumes must be a sentence: it is printed beside every bound")
    for view in fits.views.values():
        must(isinstance(getattr(view, "shows", None), str), f"{name}.fits.views: {view} must say what it `shows`")
    must(bool(plan.audits[0].game.evidence), f"{name}.play must plan units that leave evidence")
    keys = [unit.key for unit in plan.units]
    must(keys == [unit.key for unit in _planned(audit, seed).units], f"{name}.play must plan the same units every time")
    shared_seeds = _seeds(plan) & _seeds(_planned(audit, seed + 1))
    must(not shared_seeds, f"{name}.play must give runs of the mechanism seeds that follow from the audit's own seed")
    evidence, again = _played(plan), _played(plan)
    must(
        [encode([each], type(each)) for each in evidence] == [encode([each], type(each)) for each in again],
        f"the units of {name} must give the same for the same arguments, on any worker and in any order",
    )
    kind = fits.evidence
    must(all(isinstance(each, kind) for each in evidence), f"{name} must leave {kind.__name__}, as its `fits` says")
    if kind is Scores:
        _check_coins(name, evidence)


def _check_coins(name: str, evidence: Sequence[Scores]) -> None:
    """Of the first replay, since others may share their coins; false failure <= 1e-6."""
    from scipy.stats import binom  # slow to import

    truth = evidence[0].truth
    fewest, heads = int(binom.ppf(FALSE_FAILURE / 2, truth.size, 0.5)), int(truth.sum())
    fair = fewest <= heads <= truth.size - fewest
    must(fair, f"the coins of {name} must be fair, {heads} of {truth.size} fell on world 1")


def _planned(audit: Audit, seed: int) -> Plan:
    options = RunOptions(runner="in-process", figures=False)
    return make_plan(AuditSpec((audit,), seed=seed, run=options))


def _seeds(plan: Plan) -> set[str]:
    """Of the runs of the mechanism."""
    runs = [unit.task for unit in plan.audits[0].game.trainings if isinstance(unit.task, Call)]
    return {str(run.argument("seed")) for run in runs} - {"None"}


def _played(plan: Plan) -> list[Any]:
    """The evidence, by copies of all units that went to another process, one after another."""
    tables: dict[str, pa.Table] = {}
    for unit in plan.units:
        task = pickle.loads(pickle.dumps(unit.task))
        inputs = Inputs({name: plan.shared[name] for name in unit.shared}, {key: tables[key] for key in unit.needs})
        tables[unit.key] = task.run(inputs, Compute())
    evidence: list[Any] = []
    for unit in plan.audits[0].game.evidence:
        assert isinstance(unit.task, Call)
        value = value_of(unit, tables[unit.key])
        evidence += value if unit.task.kind.many else [value]
    return evidence


def check_estimator(estimator: Any, *, games: int = 300, rows: int = 400) -> None:
    """An estimator of scores: counts that order and storing do not change, and a bound that holds as often as it says.

    The bound is taken in `games` games of `rows` fair coins against a mechanism whose privacy is known exactly: with
    probability `estimator.delta` it shows the bit, else it answers by randomised response of epsilon 1, so that it is
    (1, delta)-private and no better. A bound that is `finite-sample` or `exact` exceeds 1 in more games than are
    allowed with probability below 1e-6. One that says less of itself is not simulated.
    """
    name = type(estimator).__name__
    must(isinstance(estimator, ScoreEstimator), f"{name} must be a ScoreEstimator to be checked here")
    for part in ("evidence", "tally_type"):
        must(dataclasses.is_dataclass(getattr(estimator, part, None)), f"{name}.{part} must be a dataclass")
    check_part(estimator, "estimator")
    scores = _exact_game(1.0, estimator.delta, rows, np.random.default_rng(0))
    _check_tally(estimator, scores)
    tally = estimator.tally(scores)
    bound = estimator.bound([tally])
    must(bound.lower >= 0, f"{name} must give a bound of at least 0, got {bound.lower}")
    must(estimator.find([tally]).lower == bound.lower, f"{name}.find must give the bound of {name}.bound")
    lost = estimator.bound([tally], lost=1).lower
    must(lost <= bound.lower, f"{name}: a lost replay counts as having shown nothing, it must not raise the bound")
    surer = dataclasses.replace(estimator, confidence=1 - (1 - estimator.confidence) / 10)
    lower = surer.bound([surer.tally(scores)]).lower
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
    must(estimator.bound([stored]).lower == bound, f"{name}: a tally that was stored must give the same bound")
    order = np.random.default_rng(1).permutation(scores.score.size)
    moved = estimator.tally(Scores(scores.score[order], scores.truth[order], scores.replay, scores.canary[order]))
    must(estimator.bound([moved]).lower == bound, f"{name}.tally must not depend on the order in which rows come")


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
        f"at most {allowed} of {games} games, it was in {misses}",
    )


def _exact_game(epsilon: float, delta: float, rows: int, rng: np.random.Generator) -> Scores:
    """Fair coins, and a mechanism that is exactly (epsilon, delta)-private for each."""
    truth = rng.random(rows) < 0.5
    told = np.where(rng.random(rows) < 1 / (1 + np.exp(-epsilon)), truth, ~truth)
    shown = rng.random(rows) < delta
    return Scores(np.where(shown, np.where(truth, 2.0, -2.0), np.where(told, 1.0, -1.0)), truth)
