"""What the user asks for: one or several audits, from YAML or Python, validated once, defaults filled in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from dpaudit.claims import Claim, claim_under
from dpaudit.engine.data.in_memory import data_source, found_again
from dpaudit.engine.spec.build import build, build_dataclass, describe
from dpaudit.engine.spec.partition import Partition
from dpaudit.engine.spec.stop_rule import StopRule
from dpaudit.errors import SpecError, did_you_mean, require
from dpaudit.estimators.two_world.betting import Betting


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
        claim: Overrides what the mechanism states of itself.
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
    claim: Claim | None = None
    stop: StopRule | None = None
    name: str = "audit"

    def promised(self) -> Claim:
        """The claim the bound is compared with."""
        claim: Claim = self.claim or self.mechanism.claim()
        return claim


@dataclass(frozen=True)
class RunOptions:
    """Where the work runs; none of it changes a result, except `cpus_per_worker` in the last digits.

    Attributes:
        runner: "ray" runs units on a pool of actors; "in-process" one after another, here.
        workers: How many actors; None takes what the cluster has room for.
        cpus_per_worker: CPU threads of a unit, >= 1.
        gpus_per_worker: GPUs of a unit, >= 0; a fraction shares one.
        address: Address of a running Ray cluster; None starts a local one (or uses RAY_ADDRESS).
        keep_scores: Whether every score is stored. Without, only the counts are: for millions of canaries.
        figures: Whether the report draws each audit's figures (a second or two an audit).
    """

    runner: Literal["ray", "in-process"] = "ray"
    workers: int | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0
    address: str | None = None
    keep_scores: bool = True
    figures: bool = True

    def __post_init__(self) -> None:
        require(self.workers is None or self.workers >= 1, "workers must be >= 1", workers=self.workers)
        require(self.cpus_per_worker >= 1, "cpus_per_worker must be >= 1", cpus_per_worker=self.cpus_per_worker)
        require(self.gpus_per_worker >= 0, "gpus_per_worker must be >= 0", gpus_per_worker=self.gpus_per_worker)


@dataclass(frozen=True)
class AuditSpec:
    """A named set of audits that share a seed, a confidence and a place to run.

    Attributes:
        audits: At least one; names are unique.
        name: For reports and the default run folder.
        seed: Everything random follows from it, >= 0.
        confidence: Stated confidence of each bound, in (0, 1).
        run: Where the work runs.
    """

    audits: tuple[Audit, ...]
    name: str = "audit"
    seed: int = 0
    confidence: float = 0.95
    run: RunOptions = RunOptions()

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed must be >= 0", seed=self.seed)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        if not self.audits:
            raise SpecError("a spec must have at least one audit: give `mechanism` at the top, or a list `audits`")
        names = [audit.name for audit in self.audits]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SpecError(f"each audit must have a name of its own, {', '.join(twice)} is used twice")
        object.__setattr__(
            self, "audits", tuple(self._complete(audit, index) for index, audit in enumerate(self.audits))
        )

    def _complete(self, audit: Audit, index: int) -> Audit:
        """Builds what is still a name or a mapping, and fills in delta and confidence."""
        at = f"audits[{index}] ({audit.name})"
        game = build("game", audit.game, at=f"{at}.game")
        given = {part.name: getattr(audit, part.name) for part in fields(Audit) if "kind" in part.metadata}
        given["game"] = game
        given["data"] = data_source(audit.data)
        given["attack"] = audit.attack or getattr(game, "usual_attack", "label-inference")
        given["proxy"] = audit.proxy if getattr(game, "uses_proxy", True) else None
        estimator = audit.estimator or getattr(game, "usual_estimator", "one-run")
        parts = {
            part.name: build(part.metadata["kind"], given[part.name], at=f"{at}.{part.name}")
            for part in fields(Audit)
            if "kind" in part.metadata and part.name != "estimator"
        }
        built = replace(audit, **parts, estimator=estimator)
        if not hasattr(built.mechanism, "claim"):
            raise SpecError(f"{at}.mechanism must state its claim: give it a method `claim() -> Claim`")
        if not isinstance(built.promised(), Claim):
            raise SpecError(f"{at}.mechanism.claim() must give a dpaudit.Claim, got {built.promised()!r}")
        claim = claim_under(built.promised(), built.game.relation, audit=at).claim
        defaults = {"delta": claim.delta, "confidence": self.confidence}
        estimator = build("estimator", estimator, at=f"{at}.estimator", defaults=defaults)
        if not hasattr(estimator, "tally"):
            raise SpecError(
                f"{at}.estimator must read scores, got {estimator.registered_name}, which reads tables of counts; use "
                "`dpaudit estimate` for those"
            )
        if estimator.delta < claim.delta:
            raise SpecError(
                f"{at}.estimator.delta must be at least the claim's delta {claim.delta:g}, got {estimator.delta:g}: a "
                "claim that may fail with probability delta says nothing at a smaller one"
            )
        if audit.stop is not None and not isinstance(estimator, Betting):
            raise SpecError(
                f"{at}.stop needs `estimator: betting`: another bound, looked at while trials come in, errs more often "
                "than it says"
            )
        if audit.stop is not None and not getattr(game, "independent_trials", False):
            raise SpecError(f"{at}.stop needs a game of independent trials, one training each: ind-mia or mia")
        if not getattr(game, "independent_trials", False) and getattr(estimator, "independent_trials", False):
            raise SpecError(
                f"{at}.estimator must be one for many canaries of one training (one-run, ...), got "
                f"{describe(estimator).get('name')}, which takes scores for independent trials; the game is one of "
                "dependent ones: ind-mia and mia have independent trials"
            )
        return replace(built, estimator=estimator)

    def to_yaml(self) -> str:
        """The spec in words; `load_spec` reads it back."""
        return yaml.safe_dump(describe(self), sort_keys=False, allow_unicode=True)


def load_spec(source: str | Path | Mapping[str, Any]) -> AuditSpec:
    """Reads a spec from a YAML file or a mapping.

    Top-level `mechanism`, `data`, `game`, `proxy`, `attack`, `estimator`, `split`, `claim` and `stop` are defaults for
    every entry of `audits`; without `audits` they are the one audit. Paths in it may use `~` and `$VARIABLES`.

    Raises: SpecError naming the field.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as err:
        raise SpecError(f"{path} must be a readable spec file: {err.strerror or err}") from err
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise SpecError(f"{path} must be YAML: {' '.join(str(err).split())}") from err
    if not isinstance(content, Mapping):
        raise SpecError(f"{path} must hold a mapping with `mechanism` or `audits`, got {type(content).__name__}")
    spec = _from_mapping({"name": path.stem, **content})
    # The spec of a run folder lies beside the rows that were given in memory.
    found = tuple(replace(audit, data=found_again(audit.data, path.parent)) for audit in spec.audits)
    return replace(spec, audits=found)


def _from_mapping(content: Mapping[str, Any]) -> AuditSpec:
    content = _expanded(content)
    of_spec = {field.name for field in fields(AuditSpec)} - {"audits"}
    of_audit = {field.name for field in fields(Audit)} - {"name"}
    unknown = sorted(set(content) - of_spec - of_audit - {"audits"})
    if unknown:
        known = sorted(of_spec | of_audit | {"audits"})
        raise SpecError(
            f"a spec has no field {unknown[0]!r}; it has {', '.join(known)}{did_you_mean(unknown[0], known)}"
        )
    shared = {name: value for name, value in content.items() if name in of_audit}
    entries = content.get("audits", [{}] if "mechanism" in shared else [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SpecError("`audits` must be a list of mappings")
    audits = []
    for index, entry in enumerate(entries):
        merged = {**shared, **entry}
        merged.setdefault("name", _default_name(merged, index))
        for needed in ("mechanism", "data"):
            if needed not in merged:
                raise SpecError(f"audits[{index}] ({merged['name']}) needs `{needed}`")
        audits.append(_audit(merged, f"audits[{index}] ({merged['name']})"))
    options = {name: value for name, value in content.items() if name in of_spec}
    made: AuditSpec = build_dataclass(AuditSpec, {"audits": tuple(audits), **options}, at="spec")
    return made


def _audit(entry: Mapping[str, Any], at: str) -> Audit:
    parts = {field.name for field in fields(Audit) if "kind" in field.metadata}
    plain = {name: value for name, value in entry.items() if name not in parts}
    checked = build_dataclass(_AuditWords, plain, at=at)
    return Audit(
        **{name: value for name, value in entry.items() if name in parts},
        split=checked.split,
        claim=checked.claim,
        stop=checked.stop,
        name=checked.name,
    )


@dataclass(frozen=True)
class _AuditWords:
    """The fields of an audit that are no registered parts."""

    split: Partition = Partition()
    claim: Claim | None = None
    stop: StopRule | None = None
    name: str = "audit"


def _default_name(entry: Mapping[str, Any], index: int) -> str:
    mechanism = entry.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, Mapping) else mechanism
    if not isinstance(name, str):
        name = "" if name is None else type(name).__name__
    return f"{index + 1} {name}".strip()


def _expanded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: os.path.expanduser(os.path.expandvars(item))
            if key == "path" and isinstance(item, str)
            else _expanded(item)
            for key, item in value.items()
        }
    return [_expanded(item) for item in value] if isinstance(value, list) else value


def slug(name: str) -> str:
    """A name as a file name, unique even where only punctuation differs."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
    while "--" in plain:
        plain = plain.replace("--", "-")
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
