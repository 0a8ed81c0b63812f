"""The game of secret labels in many releases: the attacker learns from search releases and guesses in fresh ones.

A case states designs, which are data sets with secret labels, and chooses among them by search releases. Everything
else is here: fresh releases, guesses, and the same without the mechanism's noise. In each fresh release, the attacker
knows some labels. The others are canaries: each has a pair of labels, and a fair coin decides which one is planted.
A failed release is an outcome too.
Source: pairs of labels as in Malek et al. (2021), arXiv:2106.03408, but the challenger draws both labels.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.engine.games.labels.label_designs import (
    HIDDEN,
    ChannelView,
    Design,
    Ints,
    LabelReleases,
    PairedReleases,
    symbols_and_forms,
)
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.protocol import LABEL_MECHANISMS, NOISELESS_TRIALS, GameTraits, Played, Setting
from dpaudit.engine.games.reference import Reference
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.queries.row_function import CallOutcome

TRAINING_UNITS = 8
"""Number of units that train a learner for fresh releases; label mechanisms are fast and need one unit."""


@dataclass(frozen=True, eq=False)
class Searched:
    """Search releases of one design."""

    number: int  # place of the design among all
    releases: LabelReleases | None  # with known labels; None if the mechanism refused the design
    refused: str = ""  # reason of the refusal


@dataclass(frozen=True)
class LabelCoins:
    """Base of the games of secret labels in many releases. `designs` and `chosen` must be given."""

    traits: ClassVar[GameTraits]
    used_designs: ClassVar[int] = 1
    """Largest number of designs of which a label mechanism makes fresh releases."""

    search: int
    releases: int

    def designs(self, setting: Setting) -> tuple[Design, ...]:
        """Return the data sets among which the game chooses."""
        raise NotImplementedError

    def chosen(self, setting: Setting, work: Work, designs: tuple[Design, ...]) -> Unit:
        """Return the unit with the search releases of the chosen designs."""
        raise NotImplementedError

    def most_canaries(self, designs: tuple[Design, ...]) -> int:
        """Return the number of canaries after which no further fresh release is made."""
        return self.releases * designs[0].canaries

    def reference(self, setting: Setting, designs: tuple[Design, ...]) -> Reference | None:
        """Return the reference for planning the sensitivity; without one, the ceiling is what all labels would show."""
        return None

    def play(self, setting: Setting, work: Work) -> Played:
        quick = self.traits.capability_of(setting.mechanism) is LABEL_MECHANISMS
        cheap, parts = setting.resources.without_gpu, 1 if quick else TRAINING_UNITS
        designs, target = self.designs(setting), setting.required_part("target")
        sharing = self.traits.sharing(setting.mechanism) if self.traits.sharing else designs[0].canaries
        chosen = self.chosen(setting, work, designs)

        def releases(played: Setting, canaries: int, places: int, label: str) -> tuple[tuple[Unit, ...], ...]:
            """Return the units of fresh releases of each chosen design."""
            return tuple(
                tuple(
                    work.add(
                        release_fresh,
                        played.mechanism,
                        chosen,
                        designs,
                        target,
                        place=place,
                        most=self.releases,
                        canaries=canaries,
                        part=part,
                        parts=parts,
                        seed=played.seed.child("others" if place else "releases"),
                        label=f"{label}{' of a second data set' * place}{f' {part + 1}/{parts}' * (parts > 1)}",
                        resources=cheap if quick else setting.resources,
                        after=setting.after,
                    )
                    for part in range(parts)
                )
                for place in range(places)
            )

        canaries = self.most_canaries(designs)
        fresh = releases(setting, canaries, self.used_designs if quick else 1, "fresh releases")

        def guesses(attack: Any, units: tuple[tuple[Unit, ...], ...], label: str) -> Unit:
            return work.add(guess_releases, attack, chosen, units, sharing=sharing, label=label, resources=cheap)

        evidence = guesses(setting.attack, fresh, "guesses in fresh releases")
        ceiling: tuple[Unit, ...] = ()
        reference, bare = self.reference(setting, designs), setting.noiseless
        if bare is not None:
            fewer = releases(bare, min(canaries, NOISELESS_TRIALS), 1, "releases without noise")
            ceiling = (guesses(setting.attack, fewer, "guesses in releases without noise"),)
        elif reference is None:
            ceiling = (guesses(None, fresh, "what a mechanism without privacy would show"),)
        choices, trainings = ((chosen,), ()) if len(designs) > 1 else ((), (chosen,))
        return Played(
            (evidence,),
            trainings=(*trainings, *itertools.chain(*fresh)),
            ceiling=ceiling,
            noiseless=bare is not None,
            choices=choices,
            reference=reference,
        )


def known_releases(
    design: Design,
    mechanism: Any,
    target: Examples,
    compute: Compute,
    numbers: Sequence[int],
    seed: Seed,
    patience: int = sys.maxsize,
) -> tuple[LabelReleases, Outcomes]:
    """Make search releases with these numbers; return them together, and what each one gave.

    There are no more after the first `patience` releases if all of them failed.
    """
    planted = [design.planted(target.classes, seed.child(number, "labels").rng(), number) for number in numbers]
    release = design.release_by(mechanism, target, compute)
    outcomes = releases_of(release, planted[:patience], numbers[:patience], seed)
    if len(numbers) > patience and (outcomes.fault == "").any():
        more = releases_of(release, planted[patience:], numbers[patience:], seed)
        outcomes = Outcomes.joined([outcomes, more])
    symbols, form = symbols_and_forms(outcomes, design.size)
    facts, count = design.facts(target.classes, len(form)), design.symbols(mechanism, target.classes)
    return LabelReleases(symbols, np.stack(planted[: len(form)]), count, form, **facts), outcomes


def releases_of(
    release: Callable[[Ints, Seed], CallOutcome], labels: Sequence[Ints], numbers: Sequence[int], seed: Seed
) -> Outcomes:
    """Return a release of each labels, by the number of each."""
    results = [release(of, seed.child(number, "noise")) for of, number in zip(labels, numbers, strict=True)]
    names = [f"release {number} (seed {seed.child(number)})" for number in numbers]
    return Outcomes.of(results, np.zeros(len(results), np.bool_), name=names)


@unit
def release_fresh(
    mechanism: Any,
    chosen: Sequence[Searched],
    designs: tuple[Design, ...],
    target: Examples,
    compute: Compute,
    *,
    place: int,
    most: int,
    canaries: int,
    part: int,
    parts: int,
    seed: Seed,
) -> Outcome[PairedReleases]:
    """Make every `parts`-th fresh release of the chosen design at a place, starting with number `part`.

    There are at most `most` releases, and no more than `canaries` canaries need.
    """
    if place >= len(chosen):
        return Outcome(PairedReleases.of(np.empty((0, 0), np.int64), np.empty(0, np.int64)))
    design = designs[chosen[place].number]
    numbers = range(part, min(most, -(-canaries // design.canaries), design.most_releases), parts)
    draws = [design.pairs(target.classes, seed.child(number, "labels").rng(), number) for number in numbers]
    labels = [np.where(coin, first, second) for _, first, second, coin in draws]
    outcomes = releases_of(design.release_by(mechanism, target, compute), labels, numbers, seed)
    return Outcome(PairedReleases.of(*symbols_and_forms(outcomes, design.size), draws), failures=outcomes.failures)


@unit
def guess_releases(
    attack: Any, chosen: Sequence[Searched], fresh: tuple[tuple[PairedReleases, ...], ...], *, sharing: int
) -> Iterator[Scores]:
    """Return the scores of all canaries in fresh releases as one replay; the attack learns from search releases.

    Without an attack, they are those against a mechanism without privacy, which reveals each label. `sharing` is the
    largest number of canaries of one release; their numbers are consecutive.
    """
    scores, truths, numbers, count = list[NDArray[np.float64]](), list[NDArray[np.bool_]](), list[Ints](), 0
    for search, parts in zip(chosen, fresh, strict=False):
        paired = PairedReleases.joined(parts)
        hidden = paired.known == HIDDEN
        if not hidden.any():
            continue
        truths.append(paired.truth[hidden])
        if attack is None:
            scores.append(np.where(truths[-1], 1.0, -1.0))
        else:
            assert search.releases is not None
            scores.append(guess_labels(attack, search.releases, paired)[0])
        first = (count + np.arange(len(hidden)))[:, None] * sharing
        numbers.append((first + np.cumsum(hidden, axis=1) - 1)[hidden])
        count += len(hidden)
    if not scores:
        yield scored(0, np.array([True]), np.array([0.0]))  # no release succeeded: one uninformative guess
    else:
        yield scored(0, np.concatenate(truths), np.concatenate(scores), np.concatenate(numbers))


def guess_labels(
    attack: Any, search: LabelReleases, paired: PairedReleases
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores and truths of all canaries."""
    fresh = replace(search, released=paired.released, planted=paired.known, form=paired.form)
    canaries = fresh.canaries
    view = ChannelView(search, fresh, paired.first[canaries], paired.second[canaries])
    return attack.score(view), paired.truth[canaries]
