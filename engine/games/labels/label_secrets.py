"""Game "label-secrets": the attacker guesses a secret with several equally likely values from one release.

Membership, an attribute and a whole record are one game. They differ in the values of the secret: two labels of a row,
all labels of a row, or all labels of several rows. The mechanism runs once for each secret.
Source: after Guerra-Balboa et al. (2026), arXiv:2603.12142, by its abstract.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, Relation
from dpaudit.engine.games.labels.label_designs import release_labels
from dpaudit.engine.games.protocol import BAG_MECHANISMS, LABEL_MECHANISMS, GameTraits, Played, Setting
from dpaudit.errors import InputError, SpecError, require
from dpaudit.estimators.arguments import require_one_of
from dpaudit.estimators.label_reconstruction.secrets import SecretGuesses
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import Bags
from dpaudit.mechanisms.protocols import BagMechanism, LabelMechanism
from dpaudit.registry import register

Ints = NDArray[np.int64]
Secret = Literal["membership", "attribute", "reconstruction"]

MAX_VALUES = 4_096
"""Largest number of values of a secret."""
MAX_RUNS = 10_000_000
TOGETHER = (2, 4, 8)
STACK = 5_000
"""Largest number of releases in a unit, about a second."""


@dataclass(frozen=True, eq=False)
class SecretRuns:
    """Releases about n secrets."""

    secret: Ints  # number of the planted value, shape (n,)
    released: Ints  # symbols that a release gives of what it depends on, shape (n, m)

    @classmethod
    def joined(cls, parts: tuple[SecretRuns, ...]) -> SecretRuns:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("secret", "released")))


@dataclass(frozen=True, eq=False)
class SecretView:
    """View of an attacker who guesses n secrets."""

    search: SecretRuns  # releases with known secrets
    released: Ints  # symbols of the secrets to guess, shape (n, m)
    # what each symbol depends on by each value of the secret: a label or a sum of labels, shape (N, m)
    values: Ints
    shows: ClassVar[str] = "releases of labels, each about a secret with several equally likely values"


@register("attack", "likeliest-secret", source="Bayes' rule for a uniform prior, by a law that is learned")
@dataclass(frozen=True)
class LikeliestSecret:
    """Guess the likeliest value of each secret, by the shares of released symbols in search runs."""

    view: ClassVar[type[SecretView]] = SecretView

    def score(self, view: SecretView) -> NDArray[np.float64]:
        """Return the number of the guessed value of each secret, shape (n,)."""
        logs = np.zeros((len(view.released), len(view.values)))
        symbols = 1 + max(int(view.released.max()), int(view.search.released.max()))
        for column, labels in enumerate(view.values.T):
            counts = np.ones((labels.max() + 1, symbols))
            np.add.at(counts, (labels[view.search.secret], view.search.released[:, column]), 1)
            logs += np.log(counts / counts.sum(axis=1, keepdims=True))[labels][:, view.released[:, column]].T
        return np.asarray(logs.argmax(axis=1), np.float64)


@register("game", "label-secrets", source="After Guerra-Balboa et al. (2026), arXiv:2603.12142")
@dataclass(frozen=True)
class LabelSecrets:
    """Game in which the attacker guesses a secret: if a label was replaced, one of all labels, or several labels.

    Attributes:
        secret: "membership" for one of two labels of a row, drawn beforehand; "attribute" for one of all labels of a
            row; "reconstruction" for all labels of several rows.
        labels: Number of rows whose labels are reconstructed: 2, 4 or 8. The claim is converted by group privacy.
        trials: Number of secrets to guess, in 1 .. 10,000,000, each with a release of its own.
        search: Number of releases with known secrets, in 1 .. 10,000,000, from which the attacker learns.
        rows: Number of target rows in a release, >= 1; a bag must hold the secret rows.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond uniform secrets and releases that share no state: the challenger draws each secret, "
        "and the attacker knows all other labels.",
        views={LABEL_MECHANISMS: SecretView, BAG_MECHANISMS: SecretView},
        attack="likeliest-secret",
        estimator="reconstruction",
        evidence=SecretGuesses,
        repeats_calls=True,
        helps="more `trials`",
    )

    secret: Secret = "attribute"
    labels: int = 2
    trials: int = 20_000
    search: int = 5_000
    rows: int = 32

    def __post_init__(self) -> None:
        require_one_of("secret", self.secret, get_args(Secret))
        require(self.labels in TOGETHER, "labels must be 2, 4 or 8", labels=self.labels)
        for name in ("trials", "search"):
            count = getattr(self, name)
            require(1 <= count <= MAX_RUNS, f"{name} must be in 1 .. {MAX_RUNS:,}", **{name: count})
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        object.__setattr__(self, "traits", replace(type(self).traits, records=self.secret_rows))

    @property
    def secret_rows(self) -> int:
        """Number of rows whose labels depend on the secret."""
        return self.labels if self.secret == "reconstruction" else 1

    def values(self, classes: int, seed: Seed) -> Ints:
        """Return the labels of the secret rows for each value of the secret, shape (N, m)."""
        if self.secret == "membership":
            return seed.child("pair").rng().permutation(classes)[:2, None]
        return np.array(list(itertools.product(range(classes), repeat=self.secret_rows)), np.int64)

    def play(self, setting: Setting, work: Work) -> Played:
        target, cheap = setting.parts.target, setting.resources.without_gpu
        count = 2 if self.secret == "membership" else target.classes**self.secret_rows
        in_bags = self.traits.capability_of(setting.mechanism) is BAG_MECHANISMS
        if in_bags and target.classes != 2:
            raise SpecError(f"bags need labels of two classes, {target.name} has {target.classes}. Merge classes")
        try:  # fail before any release
            require(2 <= count <= MAX_VALUES, f"a secret must have 2 to {MAX_VALUES:,} values", values=count)
            self.released(setting.mechanism, self.used(target), setting.seed.child("planning").rng(), in_bags=in_bags)
        except InputError as err:
            raise SpecError(f"{target.name}: {err}") from err

        def releases(runs: int, seed: Seed, label: str) -> tuple[Unit, ...]:
            arguments = release_secrets, runs, STACK, self, setting.mechanism, setting.required_part("target")
            options: dict[str, Any] = {"label": label, "resources": cheap, "after": setting.after}
            return work.split(*arguments, in_bags=in_bags, pair_seed=setting.search_seed, seed=seed, **options)

        def guesses(attack: Any, label: str) -> tuple[Unit, ...]:
            options: dict[str, Any] = {"label": label, "resources": cheap}
            values = {"classes": target.classes, "in_bags": in_bags, "pair_seed": setting.search_seed}
            return (work.add(guess_secrets, self, attack, search, fresh, **values, **options),)

        search = releases(self.search, setting.search_seed.child("search"), "releases with known secrets")
        fresh = releases(self.trials, setting.seed.child("fresh"), "releases about secrets")
        ceiling = guesses(None, "what a mechanism without privacy would show")
        evidence = guesses(setting.attack, "guesses of secrets")
        return Played(evidence, trainings=(*search, *fresh), ceiling=ceiling)

    def used(self, target: Examples) -> Examples:
        """Return the rows of a release; their labels are 0 except the secret ones."""
        return target.take(np.arange(min(self.rows, len(target))))

    def released(
        self, mechanism: Any, used: Examples, rng: np.random.Generator, *, in_bags: bool
    ) -> tuple[Ints, LabelMechanism]:
        """Return the secret rows, shape (m,), and a mechanism that releases a number for each row.

        Raises: InputError if there are too few rows, or no bag holds as many.
        """
        rows = np.arange(len(used))
        if in_bags:
            bags = mechanism.bags(used, rng=rng)
            mechanism, rows = CountsOfBags(mechanism, bags), np.flatnonzero(bags.assignment == bags.sizes.argmax())
        require(rows.size >= self.secret_rows, "the rows, or a bag, must hold all secret labels", rows=rows.size)
        return rows[: self.secret_rows], mechanism


@dataclass(frozen=True, eq=False)
class CountsOfBags:
    """Releases for each row the released count of its bag, rounded to a whole number."""

    mechanism: BagMechanism
    bags: Bags

    def claim(self) -> Claim:
        return self.mechanism.claim()

    def release(self, labels: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        counts = np.rint(self.mechanism.release_counts(self.bags.counts(labels, 2), rng=rng)[:, 1])
        return np.asarray(counts.astype(np.int64)[self.bags.assignment])


@unit
def release_secrets(
    game: LabelSecrets,
    mechanism: Any,
    target: Examples,
    *,
    first: int,
    last: int,
    in_bags: bool,
    pair_seed: Seed,
    seed: Seed,
) -> Outcome[SecretRuns]:
    """Make releases `first` to `last` - 1, each about a secret of its own."""
    used, values = game.used(target), game.values(target.classes, pair_seed)
    symbols = len(used) + 1 if in_bags else target.classes  # a count is at most the number of rows
    secret = seed.child("secrets", first).rng().integers(0, len(values), last - first)
    released, failures = [], list[str]()
    for number, value in zip(range(first, last), secret.tolist(), strict=True):
        labels, run = np.zeros(len(used), np.int64), seed.child(number)
        rows, releasing = game.released(mechanism, used, run.child("bags").rng(), in_bags=in_bags)
        labels[rows] = values[value]
        result = release_labels(releasing, labels, symbols, run.child("noise"))
        released.append(result.numbers[rows[:1] if in_bags else rows].astype(np.int64))
        failures += [f"release {number} (seed {run}): {result.fault}"] if result.fault else []
    return Outcome(SecretRuns(secret, np.array(released)), failures=tuple(failures))


@unit
def guess_secrets(
    game: LabelSecrets,
    attack: Any,
    search: tuple[SecretRuns, ...],
    fresh: tuple[SecretRuns, ...],
    *,
    classes: int,
    in_bags: bool,
    pair_seed: Seed,
) -> Iterator[SecretGuesses]:
    """Return the counts of guesses of all secrets as one replay; without an attack, those without any privacy."""
    values, runs = game.values(classes, pair_seed), SecretRuns.joined(fresh)
    guess = runs.secret
    if attack is not None:
        depends_on = values.sum(axis=1, keepdims=True) if in_bags else values
        guess = attack.score(SecretView(SecretRuns.joined(search), runs.released, depends_on))
    require(guess.shape == runs.secret.shape, "the attack must give one number for each secret", shape=guess.shape)
    yield SecretGuesses(int(np.count_nonzero(guess == runs.secret)), len(guess), len(values))
