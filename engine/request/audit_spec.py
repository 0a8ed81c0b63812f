"""Specs of audits: checked once and completed with defaults."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import ResourceRequest, Resources
from dpaudit.claims import Claim, Relation, Scope
from dpaudit.consent import CLUSTER
from dpaudit.engine.data.partition import Partition, loaded_rows
from dpaudit.engine.games.coins import Coins
from dpaudit.engine.games.protocol import Game, GameTraits, StopRule
from dpaudit.engine.request.build import build, describe, with_absolute_paths
from dpaudit.engine.request.error_budget import ErrorBudget, JointTest
from dpaudit.engine.request.plain_yaml import to_yaml
from dpaudit.engine.request.sweep import Sweep
from dpaudit.errors import AuditError, InputError, SpecError, require, shortened
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.scores import Scores
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.adapters.user_code import code_of, lacks_claim
from dpaudit.mechanisms.protocols import Claiming, LabelMechanism, StepLearner
from dpaudit.registry import catalogue, load

USUAL_GAME, GAME_WITHOUT_CLAIM = "label-inference", "membership"
"""Games that are played by default, for a mechanism with a claim and without one."""

MAX_AT_ONCE = 10_000_000
"""Maximum releases, trials or canaries of a game that does not divide them into units."""

MAX_SEED = 10**18
"""Seeds are below this limit, since whole numbers in a spec's YAML have at most 18 digits."""

Runner: TypeAlias = Literal["auto", "in-process", "processes", "ray"]

CONFIRMATORY_GAME = "label-canaries"
"""Registered name of the confirmatory game, which makes no assumption about the data."""

ACCOUNTANT = "accountant"
"""Stands for the claim that the accountant of a training reports."""


@dataclass(frozen=True)
class Audit:
    """One audit: a mechanism, its claim, a game, an attack and an estimator.

    Attributes:
        mechanism: Mechanism to audit: a registered name, `{name: ..., fields}`, or your object.
        data: The data set: a registered name, `{name: ..., fields}`, `Examples`, arrays (X, y), a scikit-learn Bunch,
            or `dpaudit.table(frame, label=...)`.
        game: Experiment that is run. Default: "label-inference"; for a classifier of `from_sklearn`, `from_torch` or
            `from_callable` without a claim "membership", which measures how much the model leaks.
        proxy: Source of the adversary's reference predictions, used by some games. Default: a
            logistic regression, calibrated on held-out rows of the reference part.
        attack: The adversary. Default: the usual attack of the game.
        estimator: Turns scores into a bound. Its `delta` and `confidence` default to those of the claim and the spec.
            Default: the usual estimator of the game.
        split: Shares of the data for the target, the reference and the test.
        claim: Claim to test instead of the mechanism's. Default: that of the mechanism; for a classifier without one,
            nothing is claimed. "accountant" trains once, when the spec is built, and takes the claim that the
            accountant reports (`from_opacus`). That training has as few rows as any of the audit.
        confirm: Repeat a test that rejects the claim, or leaves it open, with planted labels (`label-canaries`) in the
            same run. That game makes no assumption about the data.
        stop: Rule for stopping before all trials have run, for the estimator "betting". None runs all trials.
        name: Name in reports, unique within a spec.
        resources: Resources of each unit that runs the mechanism, instead of those of `run.resources`. Fields that are
            absent are those of `run.resources`. Units of a label mechanism, which trains nothing, hold CPUs alone.
        metrics: Your metrics of utility on the test part, which a sweep may optimise: from a name to a function, or its
            path "module:name". It takes labels, integers of shape (n,), and probabilities, shape (n, classes), and
            returns a number.
    """

    mechanism: Any = field(metadata={"kind": "mechanism"})
    data: Any = field(metadata={"kind": "data"})
    game: Any = field(default=None, metadata={"kind": "game"})
    proxy: Any = field(default="calibrated", metadata={"kind": "proxy"})
    attack: Any = field(default=None, metadata={"kind": "attack"})
    estimator: Any = field(default=None, metadata={"kind": "estimator"})
    split: Partition = Partition()
    claim: Claim | Literal["accountant"] | None = None
    confirm: bool = False
    stop: StopRule | None = None
    name: str = "audit"
    resources: ResourceRequest | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.metrics:
            require(name.isidentifier(), "names of metrics must be letters, digits and _, such as macro_f1", name=name)
        metrics = {
            name: code_of(metric, field=f"metrics.{name}", arguments=("labels", "probabilities"))
            for name, metric in self.metrics.items()
        }
        object.__setattr__(self, "metrics", metrics)

    def effective_claim(self) -> Claim:
        """Return the claim that the bound is compared with."""
        claim: Any = self.claim or self.mechanism.claim()
        return cast(Claim, claim)


@dataclass(frozen=True)
class RunOptions:
    """Place and resources of a run; they do not change results, except CPUs and GPUs in the last digits.

    Attributes:
        runner: "in-process" runs units one after another in this process, "processes" in several processes of this
            machine, "ray" on a pool of actors. "auto" times the first units in this process (your code in a separate
            process), then chooses once: Ray if the run ends at least 30 s earlier on it. With GPUs, memory, custom
            resources or a cluster, "auto" is Ray from the start.
        workers: Number of processes or actors. None takes as many as fit on the machine or the cluster.
        resources: Resources of each unit that trains or runs a mechanism, unless `resources` next to the mechanism
            states others. Units that score, count or compute bounds hold the same CPUs and nothing else. Only Ray
            reserves memory and custom resources; other runners ignore them.
        address: Address of a running Ray cluster; None starts a local one (or uses RAY_ADDRESS).
        keep_scores: Store every score. If False, only counts are stored, for millions of canaries.
        figures: Draw figures in the report (a second or two per audit). Grids and sweeps always have figures.
        time_limit_s: Seconds that a unit may run, > 0, before it is ended and retried once. Default: 30 times the
            slowest unit of its kind so far, at least 600.
        repeats: Number of units, >= 0, that are run twice and compared, if that is cheap.
    """

    runner: Runner = "auto"
    workers: int | None = None
    resources: ResourceRequest = ResourceRequest()
    address: str | None = field(default=None, metadata=CLUSTER)
    keep_scores: bool = True
    figures: bool = True
    time_limit_s: float | None = None
    repeats: int = 2

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.workers is None or self.workers >= 1, "workers must be >= 1", workers=self.workers)
        require(self.repeats >= 0, "repeats must be >= 0", repeats=self.repeats)
        require(
            self.time_limit_s is None or self.time_limit_s > 0,
            "time_limit_s must be > 0",
            time_limit_s=self.time_limit_s,
        )
        self.require_runner_for(self.resources)

    def require_runner_for(self, resources: ResourceRequest) -> None:
        """Raise InputError if the runner cannot run units with these resources: only Ray assigns GPUs to units."""
        shares_gpu = resources.gpus and self.runner == "processes"
        require(not shares_gpu, "a unit with a GPU must run on Ray or in-process", runner=self.runner)

    def runner_if_settled(self, *others: ResourceRequest | None) -> Runner:
        """Return the runner; "auto" if the duration of the work decides.

        Args:
            others: Resources that are stated next to mechanisms.
        """
        requests = [self.resources, *(other.over(self.resources) for other in others if other is not None)]
        need_ray = any(request.per_unit().need_ray for request in requests)
        has_cluster = self.address or os.environ.get("RAY_ADDRESS")
        return "ray" if self.runner == "auto" and (need_ray or has_cluster) else self.runner

    def concurrency(self, cpus: int) -> int:
        """Return the number of units with `cpus` threads that run at the same time on this machine."""
        return self.workers or max(1, (os.cpu_count() or 1) // cpus)


@dataclass(frozen=True)
class AuditSpec:
    """A named set of audits that share a seed, a confidence and a place to run.

    Attributes:
        audits: At least one audit, with unique names.
        name: Name in reports and of the default run folder.
        seed: Seed of all randomness, in 0 .. 10^18 - 1.
        confidence: Confidence of each bound, in (0, 1), or of the one verdict if the audits test one claim.
        run: Place and resources of the run.
        together: Settings of audits that test one claim and give one verdict, as `dpaudit check` makes them. None for
            independent audits.
        sweep: The sweep whose configurations the audits are; they share the error. None for other audits.
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
            raise SpecError(f"each audit must have a unique name, {', '.join(repeated_names)} is used twice")
        object.__setattr__(
            self, "audits", tuple(self._complete(audit, index) for index, audit in enumerate(self.audits))
        )
        self._require_joint_test()
        self._require_sweep()
        if self.together is not None or self.sweep is not None:
            for scope in dict.fromkeys(map(self.scope_of, self.audits)):
                audits = [audit for audit in self.audits if self.scope_of(audit) is scope]
                self.error_budget(scope).require_within({audit.name: audit.estimator.confidence for audit in audits})

    @property
    def runner_if_settled(self) -> Runner:
        """Runner of the run; "auto" if the duration of the work decides."""
        return self.run.runner_if_settled(*(audit.resources for audit in self.audits))

    def resources_of(self, audit: Audit) -> Resources:
        """Return the resources of the units that run the mechanism of an audit of this spec."""
        stated = self.run.resources if audit.resources is None else audit.resources.over(self.run.resources)
        capability = audit.game.traits.capability_of(audit.mechanism)
        releases_labels = capability is not None and capability.protocol is LabelMechanism
        return stated.per_unit().without_gpu if releases_labels else stated.per_unit()

    def error_budget(self, scope: Scope = Scope.CLAIM) -> ErrorBudget:
        """Return the error budget of the audits; in a check, of the tests with one scope."""
        if self.sweep is not None:
            return ErrorBudget(self.confidence, self.sweep.count)
        if self.together is not None:
            sharing = sum(self.scope_of(audit) is scope for audit in self.audits)
            return ErrorBudget(self.confidence, sharing, self.together.screening)
        return ErrorBudget(self.confidence)

    def scope_of(self, audit: Audit) -> Scope:
        """Return the subject of an audit: the claim, or a side finding."""
        return Scope.CLAIM if self.together is None else self.together.scope(audit.name)

    def _require_sweep(self) -> None:
        """Refuse audits that do not match the configurations of the sweep."""
        if self.sweep is None:
            return
        if self.together is not None or any(audit.confirm for audit in self.audits):
            raise SpecError("a sweep has one audit for each configuration: remove `confirm` and `check`")
        audited = [configuration.name for configuration in self.sweep.audited()]
        if audited != [audit.name for audit in self.audits]:
            raise SpecError("the audits of a sweep must be its audited configurations, in their order")
        for audit in self.audits:
            if audit.game.traits.evidence is not Scores or getattr(audit.estimator, "confidence", None) is None:
                raise SpecError(
                    f"a sweep needs a game whose result is a lower bound on epsilon, {_part_name(audit.game)} does not"
                )

    def _require_joint_test(self) -> None:
        """Refuse tests with different claims, and fields that cannot grow in a confirmatory run."""
        if self.together is None:
            return
        first = self.audits[0]
        unknown = sorted(self.together.again.keys() - {audit.name for audit in self.audits})
        if unknown:
            raise SpecError(f"together.again names {unknown[0]!r}, which is not an audit of the spec")
        if all(audit.name in self.together.side for audit in self.audits):
            raise SpecError("together.side names every audit: at least one audit must test the claim")
        for audit in self.audits:
            self.confirmatory(audit)
        same = all(
            audit.effective_claim() == first.effective_claim()
            and describe(audit.mechanism) == describe(first.mechanism)
            for audit in self.audits
        )
        require(same, "audits that are tests of one claim must have the same mechanism and claim")

    def _complete(self, audit: Audit, index: int) -> Audit:
        """Return the audit with every part built and every default filled in; refuse incompatible parts."""
        at = f"audits[{index}] ({audit.name})"
        audit = replace(audit, mechanism=build("mechanism", audit.mechanism, location=f"{at}.mechanism"))
        chosen_game = default_game(audit) if audit.game is None else audit.game
        if audit.claim is None and lacks_claim(audit.mechanism):  # a classifier of which nothing is claimed
            audit = replace(audit, claim=Claim(math.inf, relation=Relation.ADD_REMOVE))
        game: Game = build("game", chosen_game, location=f"{at}.game")
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
        stated = stated_claim(audit.mechanism, cast("Claim | None", audit.claim), at)
        for name, value in (("for_data", audit.data), ("for_claim", stated)):  # on which settings of a game may depend
            game = getattr(game, name)(value) if hasattr(game, name) else game
        audit = replace(audit, game=game)
        claim = game.traits.compared(stated, audit=at).claim
        _require_compatible(audit, at)
        if hasattr(game, "for_attack"):  # its scores depend on the attack
            game = game.for_attack(audit.attack)
            audit = replace(audit, game=game)
        defaults = {
            "delta": claim.delta,
            "confidence": self.error_budget(self.scope_of(audit)).first_pass,
            "sharing": _sharing(audit),
            **getattr(game, "estimator_fields", {}),
        }
        chosen = game.traits.estimator_against(claim) if audit.estimator is None else audit.estimator
        estimator = build("estimator", chosen, location=f"{at}.estimator", defaults=defaults)
        audit = replace(audit, estimator=estimator)
        _require_estimator(audit, claim, at)
        if audit.resources is not None:
            self.run.require_runner_for(audit.resources)
        if audit.confirm:
            self._complete(_confirmation_of(audit, at), index)
        return audit

    def confirmation(self, audit: Audit) -> Audit:
        """Return the confirmatory audit of an audit with `confirm`: its mechanism with planted labels."""
        return self._complete_follow_up(audit, _confirmation_of(audit, audit.name))

    def confirmatory(self, audit: Audit) -> Audit:
        """Return the confirmatory run of a joint test, at the stricter confidence of the verdict."""
        assert self.together is not None
        factors = self.together.again.get(audit.name, {})
        for name in factors:
            if not isinstance(getattr(audit.game, name, None), int):
                raise SpecError(f"together.again: {_part_name(audit.game)} has no whole number {name!r} that can grow")
        grown = {name: max(1, round(factor * getattr(audit.game, name))) for name, factor in factors.items()}
        return self._complete_follow_up(
            audit, replace(audit, game=replace(audit.game, **grown), name=f"{audit.name}, confirmatory run")
        )

    def _complete_follow_up(self, audit: Audit, follow_up: Audit) -> Audit:
        index = next(place for place, other in enumerate(self.audits) if other is audit)
        if self.together is not None:
            confidence = self.error_budget(self.scope_of(audit)).confirmatory(audit.estimator.confidence)
            follow_up = replace(follow_up, estimator=replace(follow_up.estimator, confidence=confidence))
        return self._complete(follow_up, index)

    def to_yaml(self) -> str:
        """Return the spec as YAML, which `load_spec` reads back.

        Raises: SpecError if the spec holds an object that YAML cannot describe.
        """
        described_spec = describe(self)
        # `load_spec` would name an audit without a name after its mechanism.
        named = [
            {"name": audit.name, **described}
            for audit, described in zip(self.audits, described_spec["audits"], strict=True)
        ]
        try:
            return to_yaml({**described_spec, "audits": named})
        except SpecError as err:
            raise _unserializable_error(self.audits, err) from err


def _unserializable_error(audits: Sequence[Audit], err: SpecError) -> SpecError:
    """Return an error that names the attribute that YAML cannot describe; `err` if there is none."""
    for audit in audits:
        for part in ("mechanism", "data", "proxy", "attack", "game", "estimator"):
            for name, value in getattr(getattr(audit, part), "__dict__", {}).items():
                try:
                    to_yaml({name: describe(value)})
                except SpecError:
                    return SpecError(
                        f"{audit.name}: {part}.{name} must be a number, text, or a list or mapping of these, got an "
                        f"object of {type(value).__name__}. A run folder stores an object as its attributes: store the "
                        f"settings of `{name}` instead, and create it inside a method"
                    )
    return err


def with_accountant_claim(audits: tuple[Audit, ...], seed: int, at: str) -> tuple[Audit, ...]:
    """Return the audits with the claim and the steps of their accountant, which trains now if they need it.

    All audits have the same mechanism and data. A claim "accountant" becomes the claim of a training on the fewest rows
    of any audit. If a game watches steps, the steps come from a training on the target's rows.
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
                f"{at}: `claim: accountant` works only with a game that trains on rows of the data, got "
                f"{_part_name(game)}"
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
    except Exception as err:  # user code may raise anything
        requirement = f"{at}.mechanism must train on {len(target):,} rows of the data to report its accountant's claim"
        raise SpecError(f"{requirement}: {type(err).__name__}: {err}") from err
    return tuple(replace(audit, mechanism=mechanism, claim=None if by_accountant else audit.claim) for audit in audits)


def require_accountant(mechanism: Any, at: str) -> None:
    """Refuse the claim "accountant" for a mechanism without an accountant."""
    if not hasattr(mechanism, "held_to_accountant"):
        raise SpecError(
            f"{at}: `claim: accountant` works only with an Opacus mechanism (`name: opacus`, or `from_opacus` in "
            f"Python), got {_part_name(mechanism)}"
        )


def as_data_source(value: object) -> Any:
    """Return the data of an audit: names, mappings and data sets unchanged, rows in memory as a data set."""
    if type(value) in (str, dict) or hasattr(type(value), "registered_name"):
        return value
    from dpaudit.engine.data.in_memory import data_source  # most specs hold no rows

    return data_source(value)


def with_stored_rows(data: Any, folder: Path) -> Any:
    """Return the data with its rows, which are read from the run folder if no file or recipe has them."""
    return data.found_in(folder) if _in_memory(data) else data


def store_rows(data: Any, folder: Path) -> None:
    """Write the rows into a run folder if no file or recipe has them."""
    if _in_memory(data):
        data.keep(folder)


def _in_memory(data: Any) -> bool:
    """True for `InMemory`, which is recognised by name since most specs do not load the class."""
    return bool(type(data).__dict__.get("registered_name") == "in-memory")


def _require_size(game: Game, at: str) -> None:
    """Refuse settings of a game that would fill the memory of one unit.

    Settings with the metadata `held: False` are limited elsewhere.
    """
    if isinstance(game, Coins):
        return
    for part in fields(game):  # type: ignore[arg-type]
        value = getattr(game, part.name)
        if part.metadata.get("held", True) and isinstance(value, int) and value > MAX_AT_ONCE:
            raise SpecError(f"{at}.game: {part.name} must be at most {MAX_AT_ONCE:,}, got {shortened(f'{value:,}')}")


def _confirmation_of(audit: Audit, at: str) -> Audit:
    """Return the audit of the same mechanism with planted labels; other parts stay or become defaults."""
    if not isinstance(audit.game, Coins):
        raise SpecError(
            f"{at}.confirm is for games with one training, {_part_name(audit.game)} has many; remove `confirm`"
        )
    usual: GameTraits = load("game", CONFIRMATORY_GAME).traits
    return replace(
        audit,
        game={"name": CONFIRMATORY_GAME, "replays": max(audit.game.replays, 1), "canaries": audit.game.canaries},
        attack=audit.attack if audit.game.traits.attack == usual.attack else None,
        confirm=False,
        name=f"{audit.name}, confirmed by {CONFIRMATORY_GAME}",
    )


def default_game(audit: Audit) -> str:
    """Return the game of an audit that names none; a mechanism whose fields are still missing has a claim."""
    try:
        mechanism = build("mechanism", audit.mechanism, location="mechanism")
    except AuditError:
        return USUAL_GAME
    return GAME_WITHOUT_CLAIM if audit.claim is None and lacks_claim(mechanism) else USUAL_GAME


def stated_claim(mechanism: Any, claim: Claim | None, at: str) -> Claim:
    """Return the claim that is stated with a mechanism, or else its own. Raises: SpecError if it states none."""
    if claim is None and not isinstance(mechanism, Claiming):
        raise SpecError(f"{at}.mechanism must state its claim: add a method `claim() -> Claim`, or set `claim`")
    stated: Any = claim or mechanism.claim()
    if not isinstance(stated, Claim):
        raise SpecError(f"{at}.mechanism.claim() must return a dpaudit.Claim, got {stated!r}")
    return stated


def _require_compatible(audit: Audit, at: str) -> None:
    """Refuse a mechanism that the game cannot run, and an attack that needs another view."""
    fits: GameTraits = audit.game.traits
    face = fits.capability_of(audit.mechanism)
    if face is None:
        words = " or ".join(face.words for face in fits.views)
        raise SpecError(
            f"{at}.game {_part_name(audit.game)} needs {words}, got {_part_name(audit.mechanism)}; "
            + _names_that_fit("game", lambda other: other.traits.capability_of(audit.mechanism) is not None)
        )
    view = fits.views[face]
    if not (hasattr(audit.attack, "view") and hasattr(audit.attack, "score")):
        raise SpecError(
            f"{at}.attack must state its view: add a field `view`, which is {view.__module__}.{view.__name__} or a "
            "base of it, and a method `score(view)`"
        )
    if not issubclass(view, audit.attack.view):
        raise SpecError(
            f"{at}.attack {_part_name(audit.attack)} sees {audit.attack.view.shows}, the game {_part_name(audit.game)} "
            f"shows {view.shows}; " + _names_that_fit("attack", lambda other: issubclass(view, other.view))
        )


def _require_estimator(audit: Audit, claim: Claim, at: str) -> None:
    """Refuse an estimator that cannot read the game's evidence, or whose bound would be invalid for it."""
    estimator, independent = audit.estimator, audit.game.traits.independent_trials
    evidence = audit.game.traits.evidence
    if not isinstance(estimator, Estimator) or estimator.evidence is not evidence:
        evidence_read = estimator.evidence.words if isinstance(estimator, Estimator) else "tables of counts"
        raise SpecError(
            f"{at}.estimator must read {evidence.words}, got {_part_name(estimator)}, which reads {evidence_read}; use "
            "`dpaudit estimate` for those"
        )
    if estimator.evidence is Scores and estimator.delta < claim.delta:
        raise SpecError(
            f"{at}.estimator.delta must be at least the claim's delta {claim.delta:g}, got {estimator.delta:g}: the "
            "claim makes no statement at a smaller delta"
        )
    for name, value in getattr(audit.game, "estimator_fields", {}).items():
        if getattr(estimator, name, None) != value:
            raise SpecError(
                f"{at}.estimator must have {name}: {value} for the scores of this game, got "
                f"{_part_name(estimator)} with {getattr(estimator, name, None)}. Remove `estimator`"
            )
    most, sharing = _sharing(audit), getattr(estimator, "sharing", None)
    if sharing is not None and (most is None or sharing % most):
        raise SpecError(
            f"{at}.estimator.sharing must be absent, or a multiple of the canaries that share one training, "
            f"{most or 'all of them'}; got {sharing}"
        )
    if audit.stop is not None and not getattr(estimator, "anytime_valid", False):
        raise SpecError(
            f"{at}.stop needs `estimator: betting`: other bounds are not valid if they are read before all trials "
            "have run"
        )
    if audit.stop is not None and not independent:
        raise SpecError(f"{at}.stop needs a game of independent trials with one training each: ind-mia or mia")
    if not independent and getattr(estimator, "independent_trials", False):
        raise SpecError(
            f"{at}.estimator must be for many canaries of one training (one-run, ...), got {_part_name(estimator)}, "
            "which assumes independent trials; only ind-mia and mia have those"
        )


def _sharing(audit: Audit) -> int | None:
    """Maximum number of canaries that share a training; None if all do or the attack combines several."""
    sharing = audit.game.traits.sharing
    return sharing(audit.mechanism) if sharing and getattr(audit.attack, "each_release_alone", False) else None


def _part_name(part: object) -> str:
    """Return the name of a part in a spec."""
    words = describe(part)
    return str(words["name"]) if isinstance(words, dict) and "name" in words else type(part).__name__


def _names_that_fit(kind: str, fit: Callable[[Any], bool]) -> str:
    """Return text with the registered names of a kind that fit."""
    names = [name for name in catalogue(kind) if fit(load(kind, name))]
    return f"{kind}s that fit: {', '.join(names) or 'none'}"


def slug(name: str) -> str:
    """Return a file name for a name, unique even if names differ only in punctuation."""
    plain = "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
