"""The audits that a user requests, validated once, with defaults filled in."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.claims import Claim
from dpaudit.claims.scope import Scope
from dpaudit.consent import CLUSTER
from dpaudit.engine.data.partition import Partition, loaded_rows
from dpaudit.engine.games.one_run.rules import OneRunRules
from dpaudit.engine.games.protocol import Game, GameTraits, StopRule
from dpaudit.engine.request.build import build, with_absolute_paths
from dpaudit.engine.request.describe import describe
from dpaudit.engine.request.error_budget import ErrorBudget, JointTest
from dpaudit.engine.request.plain_yaml import to_yaml
from dpaudit.engine.request.sweep import Sweep
from dpaudit.errors import InputError, SpecError, require, shortened
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.scores import ScoreEstimator, Scores
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.protocols import Claiming, StepLearner
from dpaudit.registry import catalogue, load

MAX_AT_ONCE = 10_000_000
"""Most releases, trials or canaries of a game that does not divide them into units."""

MAX_SEED = 10**18
"""A spec's YAML has whole numbers of at most 18 digits."""


Runner: TypeAlias = Literal["auto", "in-process", "processes", "ray"]


CONFIRMATORY_GAME = "label-canaries"
"""The confirmatory game, which assumes nothing about the data."""


ACCOUNTANT = "accountant"
"""Stands for a claim: the one that the accountant of a training reports."""


@dataclass(frozen=True)
class Audit:
    """One audit: a mechanism, its claim, the game it is played in, and how the evidence becomes a bound.

    Attributes:
        mechanism: What is audited: a registered name, `{name: ..., fields}`, or one's own object.
        data: The data set: a registered name, `{name: ..., fields}`, `Examples`, arrays (X, y), a scikit-learn Bunch,
            or `dpaudit.table(frame, label=...)`.
        game: The experiment; "label-inference" by default.
        proxy: Where the adversary's reference comes from; a logistic regression by default, None in games without one.
        attack: The adversary; the game's usual one by default.
        estimator: From scores to a bound; its `delta` and `confidence` are filled in from the claim and the spec. The
            game's usual one by default.
        split: Which share of the data plays which part.
        claim: Overrides what the mechanism states of itself. "accountant": what the accountant of one training says,
            made when the spec is (`from_opacus`), on as few rows as a training of the audit may have.
        confirm: Whether a claim that an observational game finds exceeded, or leaves open, is tested once more with
            planted labels (`label-canaries`) in the same run: that game takes nothing on trust.
        stop: When to stop before all trials are run, for the estimator "betting"; None runs them all.
        name: For reports; unique within a spec.
    """

    mechanism: Any = field(metadata={"kind": "mechanism"})
    data: Any = field(metadata={"kind": "data"})
    game: Any = field(default="label-inference", metadata={"kind": "game"})
    proxy: Any = field(default="model", metadata={"kind": "proxy"})
    attack: Any = field(default=None, metadata={"kind": "attack"})
    estimator: Any = field(default=None, metadata={"kind": "estimator"})
    split: Partition = Partition()
    claim: Claim | Literal["accountant"] | None = None
    confirm: bool = False
    stop: StopRule | None = None
    name: str = "audit"

    def __post_init__(self) -> None:
        check_fields(self)

    def effective_claim(self) -> Claim:
        """Return the claim that the bound is compared with."""
        claim: Any = self.claim or self.mechanism.claim()
        return cast(Claim, claim)


@dataclass(frozen=True)
class RunOptions:
    """Where the work runs; none of it changes a result, except `cpus_per_worker` in the last digits.

    Attributes:
        runner: "in-process" runs units one after another, here; "processes" on several processes of this machine; "ray"
            on a pool of actors. "auto" times the first units in this process (code of yours: in a process of its own)
            and then chooses once: Ray runs the rest if that ends the run at least 30 s earlier, else that process does.
            With GPUs or a cluster, "auto" is Ray from the start.
        workers: How many processes or actors; None takes what the machine or the cluster has room for.
        cpus_per_worker: CPU threads of a unit, >= 1.
        gpus_per_worker: GPUs of a unit, >= 0; a fraction shares one.
        address: Address of a running Ray cluster; None starts a local one (or uses RAY_ADDRESS).
        keep_scores: Whether every score is stored. Without, only the counts are: for millions of canaries.
        figures: Whether the report draws figures (a second or two an audit); those of grids and sweeps it always does.
        time_limit_s: Seconds a unit may run, > 0, before it is ended and tried once more; None: 30 times the slowest of
            its kind so far, at least 600.
        repeats: How many units are run twice and compared, where that is cheap, >= 0.
    """

    runner: Runner = "auto"
    workers: int | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0
    address: str | None = field(default=None, metadata=CLUSTER)
    keep_scores: bool = True
    figures: bool = True
    time_limit_s: float | None = None
    repeats: int = 2

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.workers is None or self.workers >= 1, "workers must be >= 1", workers=self.workers)
        require(self.cpus_per_worker >= 1, "cpus_per_worker must be >= 1", cpus_per_worker=self.cpus_per_worker)
        require(self.repeats >= 0, "repeats must be >= 0", repeats=self.repeats)
        require(
            self.time_limit_s is None or self.time_limit_s > 0,
            "time_limit_s must be > 0",
            time_limit_s=self.time_limit_s,
        )
        require(self.gpus_per_worker >= 0, "gpus_per_worker must be >= 0", gpus_per_worker=self.gpus_per_worker)
        shares_gpu = self.gpus_per_worker and self.runner == "processes"  # which of them has which GPU, Ray knows alone
        require(not shares_gpu, "a unit with a GPU must run on Ray or in-process", runner=self.runner)

    def runner_if_settled(self) -> Runner:
        """Return the runner; "auto" if the work has to decide."""
        needs_ray = self.gpus_per_worker or self.address or os.environ.get("RAY_ADDRESS")
        return "ray" if self.runner == "auto" and needs_ray else self.runner

    @property
    def concurrency(self) -> int:
        """Number of units that run at the same time on this machine."""
        return self.workers or max(1, (os.cpu_count() or 1) // self.cpus_per_worker)


@dataclass(frozen=True)
class AuditSpec:
    """A named set of audits that share a seed, a confidence and a place to run.

    Attributes:
        audits: At least one; names are unique.
        name: For reports and the default run folder.
        seed: Everything random follows from it, in 0 .. 10^18 - 1.
        confidence: Stated confidence of each bound, in (0, 1); where there are several tests of one claim, of the one
            verdict.
        run: Where the work runs.
        together: Says that the audits are tests of one claim and end in one verdict, as `dpaudit check` makes them;
            None for audits that have nothing to do with each other.
        sweep: Says that the audits are configurations of one sweep, which share the error, as `dpaudit sweep` makes
            them; None for others.
    """

    audits: tuple[Audit, ...]
    name: str = "audit"
    seed: int = 0
    confidence: float = 0.95
    run: RunOptions = RunOptions()
    together: JointTest | None = None
    sweep: Sweep | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.seed < MAX_SEED, "seed must be in 0 .. 10^18 - 1", seed=self.seed)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        if not self.audits:
            raise SpecError("a spec must have at least one audit: give `mechanism` at the top, or a list `audits`")
        names = [audit.name for audit in self.audits]
        repeated_names = sorted(name for name, count in Counter(names).items() if count > 1)
        if repeated_names:
            raise SpecError(f"each audit must have a name of its own, {', '.join(repeated_names)} is used twice")
        object.__setattr__(
            self, "audits", tuple(self._complete(audit, index) for index, audit in enumerate(self.audits))
        )
        self._require_joint_test()
        self._require_sweep()
        if self.together is not None or self.sweep is not None:
            for scope in dict.fromkeys(map(self._scope, self.audits)):
                audits = [audit for audit in self.audits if self._scope(audit) is scope]
                self.error_budget(scope).require_within({audit.name: audit.estimator.confidence for audit in audits})

    def error_budget(self, scope: Scope = Scope.CLAIM) -> ErrorBudget:
        """Return the shares of the error; in a check, of the tests of one scope."""
        if self.sweep is not None:
            return ErrorBudget(self.confidence, self.sweep.count)
        if self.together is not None:
            sharing = sum(self._scope(audit) is scope for audit in self.audits)
            return ErrorBudget(self.confidence, sharing, self.together.screening)
        return ErrorBudget(self.confidence)

    def _scope(self, audit: Audit) -> Scope:
        """Return what an audit is about."""
        return Scope.CLAIM if self.together is None else self.together.scope(audit.name)

    def _require_sweep(self) -> None:
        """Refuse audits that are not those of the sweep's configurations."""
        if self.sweep is None:
            return
        if self.together is not None or any(audit.confirm for audit in self.audits):
            raise SpecError("a sweep has one audit for each configuration: leave `confirm` and `check` out")
        audited = [configuration.name for configuration in self.sweep.audited()]
        if audited != [audit.name for audit in self.audits]:
            raise SpecError("the audits of a sweep must be its audited configurations, in their order")
        for audit in self.audits:
            if audit.game.traits.evidence is not Scores or getattr(audit.estimator, "confidence", None) is None:
                raise SpecError(
                    f"a sweep needs a game that ends in a lower bound on epsilon, {_part_name(audit.game)} does not"
                )

    def _require_joint_test(self) -> None:
        """Refuse tests whose claims differ, and numbers that cannot grow in a confirmatory run."""
        if self.together is None:
            return
        first = self.audits[0]
        unknown = sorted(self.together.again.keys() - {audit.name for audit in self.audits})
        if unknown:
            raise SpecError(f"together.again names {unknown[0]!r}, which is no audit of the spec")
        if all(audit.name in self.together.side for audit in self.audits):
            raise SpecError("together.side names every audit: leave at least one audit to the claim")
        for audit in self.audits:
            self.confirmatory(audit)
        same = all(
            audit.effective_claim() == first.effective_claim()
            and describe(audit.mechanism) == describe(first.mechanism)
            for audit in self.audits
        )
        require(same, "audits that are tests of one claim must have the same mechanism and claim")

    def _complete(self, audit: Audit, index: int) -> Audit:
        """Return the audit with every part built and every default filled in; refuse parts that do not fit."""
        at = f"audits[{index}] ({audit.name})"
        game: Game = build("game", audit.game, location=f"{at}.game")
        _require_size(game, at)
        proxy = audit.proxy if game.traits.uses_proxy else None
        if not isinstance(getattr(game, "traits", None), GameTraits):
            raise SpecError(f"{at}.game must have a field `traits` of class dpaudit.engine.games.protocol.GameTraits")
        attack = getattr(game, "usual_attack", game.traits.attack) if audit.attack is None else audit.attack
        data = as_data_source(audit.data)
        audit = replace(audit, game=game, data=data, attack=attack, proxy=proxy)
        parts = {
            part.name: with_absolute_paths(
                build(part.metadata["kind"], getattr(audit, part.name), location=f"{at}.{part.name}")
            )
            for part in fields(Audit)
            if "kind" in part.metadata and part.name != "estimator"
        }
        audit = replace(audit, **parts)
        audit = with_accountant_claim((audit,), self.seed, at)[0]
        stated = _stated_claim(audit, at)
        if hasattr(game, "for_claim"):  # its rules depend on the claim
            game = game.for_claim(stated)
            audit = replace(audit, game=game)
        claim = game.traits.compared(stated, audit=at).claim
        _require_compatible(audit, at)
        defaults = {
            "delta": claim.delta,
            "confidence": self.error_budget(self._scope(audit)).first_pass,
            "sharing": _sharing(audit),
        }
        chosen = game.traits.estimator_against(claim) if audit.estimator is None else audit.estimator
        estimator = build("estimator", chosen, location=f"{at}.estimator", defaults=defaults)
        audit = replace(audit, estimator=estimator)
        _require_estimator(audit, claim, at)
        if audit.confirm:
            self._complete(_confirmation_of(audit, at), index)
        return audit

    def confirmation(self, audit: Audit) -> Audit:
        """Return the audit that follows an audit with `confirm`: the same mechanism with planted labels."""
        return self._complete_follow_up(audit, _confirmation_of(audit, audit.name))

    def confirmatory(self, audit: Audit) -> Audit:
        """Return the repeat of a test of a joint claim, at the stricter confidence of the verdict."""
        assert self.together is not None
        return self._complete_follow_up(audit, _repeat_of(audit, self.together.again.get(audit.name, {})))

    def _complete_follow_up(self, audit: Audit, follow_up: Audit) -> Audit:
        index = next(place for place, other in enumerate(self.audits) if other is audit)
        if self.together is not None:
            confidence = self.error_budget(self._scope(audit)).confirmatory(audit.estimator.confidence)
            follow_up = replace(follow_up, estimator=replace(follow_up.estimator, confidence=confidence))
        return self._complete(follow_up, index)

    def to_yaml(self) -> str:
        """Return the spec as YAML, which `load_spec` reads back.

        Raises: SpecError if it holds an object that YAML cannot describe.
        """
        words = describe(self)
        # An audit without a name would be given one by its mechanism when the spec is read.
        named = [
            {"name": audit.name, **described} for audit, described in zip(self.audits, words["audits"], strict=True)
        ]
        try:
            return to_yaml({**words, "audits": named})
        except SpecError as err:
            raise _unserializable_error(self.audits, err) from err


def _unserializable_error(audits: Sequence[Audit], err: SpecError) -> SpecError:
    """Return the error of a spec that cannot be written, which names the attribute of the user's object at fault."""
    for audit in audits:
        for part in ("mechanism", "data", "proxy", "attack", "game", "estimator"):
            for name, value in getattr(getattr(audit, part), "__dict__", {}).items():
                try:
                    to_yaml({name: describe(value)})
                except SpecError:
                    return SpecError(
                        f"{audit.name}: {part}.{name} must be a number, text, or a list or mapping of these, got an "
                        f"object of {type(value).__name__}: a run folder keeps an object by its attributes; store how "
                        f"`{name}` is made instead, and make it inside a method"
                    )
    return err


def with_accountant_claim(audits: tuple[Audit, ...], seed: int, at: str) -> tuple[Audit, ...]:
    """Return audits of one mechanism on the same data with its accountant's claim and steps, from trainings made now.

    A claim "accountant" becomes that of a training on the fewest rows of any audit. If a game watches steps, they are
    those of a training on the target's rows.
    """
    first = audits[0]
    mechanism, by_accountant = first.mechanism, first.claim == ACCOUNTANT
    if by_accountant:
        require_accountant(mechanism, at)
    games: list[Game] = [build("game", audit.game, location=f"{at}.game") for audit in audits]
    watched = any(face.protocol is StepLearner for game in games for face in game.traits.views)
    if not by_accountant and not (watched and hasattr(mechanism, "with_steps_of")):
        return audits
    data = loaded_rows(build("data", first.data, location=f"{at}.data"), seed)
    target = first.split.divide(data, Seed(seed).child("split").rng()).target
    fewest = len(target)
    for game in games if by_accountant else ():
        if game.traits.run_on is None:
            raise SpecError(
                f"{at}.claim: accountant needs a game that trains on rows of the data, not {_part_name(game)}"
            )
        fewest = min(fewest, game.traits.run_on(game, len(target))[1])
    sequence = Seed(seed).child("accountant").sequence()
    try:
        if by_accountant:
            mechanism = mechanism.held_to_accountant(target.take(np.arange(fewest)), seed=sequence)
        if watched and mechanism.claimed_steps(len(target)) is None:
            mechanism = mechanism.with_steps_of(target, seed=sequence)
    except InputError as err:
        raise SpecError(f"{at}.claim: {err}") from err
    except Exception as err:  # of the caller's code
        must = f"{at}.mechanism must train on {len(target):,} rows of the data, for its accountant to be asked"
        raise SpecError(f"{must}: {type(err).__name__}: {err}") from err
    return tuple(replace(audit, mechanism=mechanism, claim=None if by_accountant else audit.claim) for audit in audits)


def require_accountant(mechanism: Any, at: str) -> None:
    """Refuse the claim "accountant" for a mechanism without an accountant."""
    if not hasattr(mechanism, "held_to_accountant"):
        raise SpecError(f"{at}.claim: accountant needs a mechanism made by `from_opacus`, got {_part_name(mechanism)}")


def as_data_source(value: object) -> Any:
    """Return the data of an audit: words and data sets unchanged, rows of the caller as a data set."""
    if type(value) in (str, dict) or hasattr(type(value), "registered_name"):
        return value
    from dpaudit.engine.data.in_memory import data_source  # most specs have no rows in them

    return data_source(value)


def with_stored_rows(data: Any, folder: Path) -> Any:
    """Return the data with its rows; those without a file or recipe are in the run folder."""
    return data.found_in(folder) if _in_memory(data) else data


def store_rows(data: Any, folder: Path) -> None:
    """Write rows without a file or recipe into a run folder."""
    if _in_memory(data):
        data.keep(folder)


def _in_memory(data: Any) -> bool:
    """True for `InMemory`, recognised by its name since most specs do not load the class."""
    return bool(type(data).__dict__.get("registered_name") == "in-memory")


def _require_size(game: Game, at: str) -> None:
    """Refuse numbers of a game that one unit would have to hold in memory at once.

    Other numbers are limited by the units they make, or marked by the metadata `held` as drawn in bulk.
    """
    if isinstance(game, OneRunRules):
        return
    for part in fields(game):  # type: ignore[arg-type]
        value = getattr(game, part.name)
        if part.metadata.get("held", True) and isinstance(value, int) and value > MAX_AT_ONCE:
            raise SpecError(f"{at}.game: {part.name} must be at most {MAX_AT_ONCE:,}, got {shortened(f'{value:,}')}")


def _confirmation_of(audit: Audit, at: str) -> Audit:
    """Return the audit of the same mechanism with planted labels; other parts are unchanged or defaults."""
    if not isinstance(audit.game, OneRunRules):
        raise SpecError(f"{at}.confirm is for games of one training, {_part_name(audit.game)} has many; leave it out")
    usual: GameTraits = load("game", CONFIRMATORY_GAME).traits
    return replace(
        audit,
        game={"name": CONFIRMATORY_GAME, "replays": max(audit.game.replays, 1), "canaries": audit.game.canaries},
        attack=audit.attack if audit.game.traits.attack == usual.attack else None,
        confirm=False,
        name=f"{audit.name}, confirmed by {CONFIRMATORY_GAME}",
    )


def _repeat_of(audit: Audit, factors: Mapping[str, float]) -> Audit:
    """Return the test with some numbers of its game multiplied by factors."""
    for name in factors:
        if not isinstance(getattr(audit.game, name, None), int):
            raise SpecError(f"together.again: {_part_name(audit.game)} has no number {name!r} that could grow")
    grown = {name: max(1, round(factor * getattr(audit.game, name))) for name, factor in factors.items()}
    return replace(audit, game=replace(audit.game, **grown), name=f"{audit.name}, confirmatory run")


def _stated_claim(audit: Audit, at: str) -> Claim:
    if audit.claim is None and not isinstance(audit.mechanism, Claiming):
        raise SpecError(f"{at}.mechanism must state its claim: give it a method `claim() -> Claim`")
    claim: Any = audit.effective_claim()
    if not isinstance(claim, Claim):
        raise SpecError(f"{at}.mechanism.claim() must give a dpaudit.Claim, got {claim!r}")
    return claim


def _require_compatible(audit: Audit, at: str) -> None:
    """Refuse a mechanism that the game cannot play, and an attack that needs another view than the game gives."""
    fits: GameTraits = audit.game.traits
    face = fits.capability_of(audit.mechanism)
    if face is None:
        words = " or ".join(face.words for face in fits.views)
        raise SpecError(
            f"{at}.game {_part_name(audit.game)} plays {words}, not {_part_name(audit.mechanism)}; "
            + _names_that_fit("game", lambda other: other.traits.capability_of(audit.mechanism) is not None)
        )
    view = fits.views[face]
    if not (hasattr(audit.attack, "view") and hasattr(audit.attack, "score")):
        raise SpecError(
            f"{at}.attack must say what it sees: give it a field `view`, which is or is a base of "
            f"{view.__module__}.{view.__name__}, and a method `score(view)`"
        )
    if not issubclass(view, audit.attack.view):
        raise SpecError(
            f"{at}.attack {_part_name(audit.attack)} sees {audit.attack.view.shows}, the game {_part_name(audit.game)} "
            f"shows {view.shows}; " + _names_that_fit("attack", lambda other: issubclass(view, other.view))
        )


def _require_estimator(audit: Audit, claim: Claim, at: str) -> None:
    """Refuse an estimator that cannot read the game's evidence, or whose bound would not be valid for it."""
    estimator, independent = audit.estimator, audit.game.traits.independent_trials
    evidence = audit.game.traits.evidence
    if not isinstance(estimator, Estimator) or estimator.evidence is not evidence:
        evidence_read = estimator.evidence.words if isinstance(estimator, Estimator) else "tables of counts"
        raise SpecError(
            f"{at}.estimator must read {evidence.words}, got {_part_name(estimator)}, which reads {evidence_read}; use "
            "`dpaudit estimate` for those"
        )
    if isinstance(estimator, ScoreEstimator) and estimator.delta < claim.delta:
        raise SpecError(
            f"{at}.estimator.delta must be at least the claim's delta {claim.delta:g}, got {estimator.delta:g}: a "
            "claim that may fail with probability delta says nothing at a smaller one"
        )
    most, sharing = _sharing(audit), getattr(estimator, "sharing", None)
    if sharing is not None and (most is None or sharing % most):
        raise SpecError(
            f"{at}.estimator.sharing must be left out, or a multiple of the canaries that share one training, "
            f"{most or 'all of them'}; got {sharing}"
        )
    if audit.stop is not None and not getattr(estimator, "anytime_valid", False):
        raise SpecError(
            f"{at}.stop needs `estimator: betting`: another bound, looked at while trials come in, errs more often "
            "than it says"
        )
    if audit.stop is not None and not independent:
        raise SpecError(f"{at}.stop needs a game of independent trials, one training each: ind-mia or mia")
    if not independent and getattr(estimator, "independent_trials", False):
        raise SpecError(
            f"{at}.estimator must be one for many canaries of one training (one-run, ...), got "
            f"{_part_name(estimator)}, which takes scores for independent trials; the game is one of "
            "dependent ones: ind-mia and mia have independent trials"
        )


def _sharing(audit: Audit) -> int | None:
    """Return the largest number of canaries that share a training; None if all do or the attack combines several."""
    sharing = audit.game.traits.sharing
    return sharing(audit.mechanism) if sharing and getattr(audit.attack, "each_release_alone", False) else None


def _part_name(part: object) -> str:
    """Return the name that a user gives a part."""
    words = describe(part)
    return str(words["name"]) if isinstance(words, dict) and "name" in words else type(part).__name__


def _names_that_fit(kind: str, fit: Callable[[Any], bool]) -> str:
    """Return a sentence with the registered names of a kind that would fit."""
    names = [name for name in catalogue(kind) if fit(load(kind, name))]
    return f"{kind}s that fit: {', '.join(names) or 'none'}"


def slug(name: str) -> str:
    """Return a name as a file name, unique even if names differ only in punctuation."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
    while "--" in plain:
        plain = plain.replace("--", "-")
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
