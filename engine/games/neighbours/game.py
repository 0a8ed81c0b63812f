"""Two neighbouring data sets, thousands of trainings on either, and an output set that is learned from them.

The poisoning chooses D and D' before anything is trained. Search trainings, whose world is known, teach the attack
which outputs speak for D'; fresh ones, each on D or D' by its own fair coin, are what it is judged by.
Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", Algorithm 1.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import special

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, Relation
from dpaudit.engine.data.columns import UNKNOWN
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Poisoning,
    PoisoningSearch,
    Worlds,
    farther,
    for_learner,
)
from dpaudit.engine.games.neighbours.poisonings.rows import Automatic
from dpaudit.engine.games.neighbours.stated_law import STATED_LAW, StatedOdds, stated_odds
from dpaudit.engine.games.neighbours.summaries import Samples, TrainingBatch, sample_batch, sample_summaries
from dpaudit.engine.games.neighbours.world_scores import SummaryGame, clips_records, held_out_evidence, separation
from dpaudit.engine.games.protocol import (
    LEARNERS,
    Capability,
    CheckTest,
    GameTraits,
    PlantedNoise,
    Played,
    Setting,
)
from dpaudit.errors import InputError, RunError, SpecError, require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.mechanisms.adapters.own_training import OwnTraining
from dpaudit.mechanisms.adapters.scikit_learn import SklearnClassifier
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import SampledLearner, StatedLaw, SummarisedLearner
from dpaudit.mechanisms.ranges import NoiseByEpsilon
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register

SAMPLED = Capability(SampledLearner, "learners with batch sampling (with methods `claim` and `sample_summaries`)")
SUMMARISED = Capability(SummarisedLearner, "learners summed up as vectors (with methods `claim` and `summarise`)")

Scale = Literal["box", "ball", "none"]
MAX_CATEGORIES = 100
"""One column each; rarer ones of the same column share the last."""
COPIES = (1, 2, 4, 8)
MIN_CANDIDATE_TRAININGS = 16
"""Trainings on each candidate of a search, one half on D and the other with the same seeds on D'."""
ROUND_SURVIVORS = (6, 2)
"""Candidates that are left after the first and the second round of a search."""
CHECK_TRAININGS = 6_000
"""Trainings of a check, search and fresh together: those of other people's libraries take some milliseconds each."""


USER_LEARNER_CHECK_TRAININGS = 2_400
"""The same of a learner of one's own that is asked for its answers."""


USER_LEARNERS = tuple(
    Capability(adapter, f"training functions and estimators of one's own (`{adapter.made_by}`)")
    for adapter in (OwnTraining, SklearnClassifier)
)
EPSILON_FACTORS = 2.0 ** (np.arange(-12, 13) / 4)
"""Of the mechanism's epsilon, at which noise is planted: from an eighth to eight times."""
PLANTED_TRAININGS = 2_000
"""Trainings at each of them, half of them on either data set."""
ODDS_GROUPS = 50
"""Into which their log-odds are grouped."""


def _check_test(
    capability: Capability,
    claim_relation: Relation,
    data_relation: Relation,
    variant: str,
    trainings: int = CHECK_TRAININGS,
) -> CheckTest:
    return CheckTest(
        capability,
        (claim_relation,),
        "leaks of a few chosen records by all released numbers or answers together: too little noise, exact counts",
        trainings=trainings,
        scales={"trials": 0.5, "search": 0.5},
        variant=variant,
        growth_on_repeat={"trials": 2.0},
        game={"poisoning": {"name": "automatic", "relation": str(data_relation), "share": 0.55}, "stack": 500},
    )


CHECK_TESTS = tuple(
    _check_test(capability, claim_relation, data_relation, variant)
    for capability in (SAMPLED, SUMMARISED)
    for claim_relation, data_relation, variant in (
        (Relation.LABEL, Relation.LABEL, ""),
        (Relation.REPLACE, Relation.REPLACE, ""),
        (Relation.ADD_REMOVE, Relation.ADD_REMOVE, "records that come"),
        (Relation.ADD_REMOVE, Relation.REPLACE, "records replaced"),
    )
) + tuple(
    _check_test(capability, data_relation, data_relation, "", USER_LEARNER_CHECK_TRAININGS)
    for capability in USER_LEARNERS
    for data_relation in (Relation.REPLACE, Relation.ADD_REMOVE)
)


@register("game", "neighbours", source="Lu et al. (2022), Algorithm 1; fair coins for the fresh samples are ours")
@dataclass(frozen=True)
class Neighbours(SummaryGame):
    """Two neighbouring data sets, chosen beforehand: on which of them was a learner trained, whose summary is shown?

    Plays every learner: one drawn in bulk, one that is summed up as a vector, and any other by what its models answer.
    A training that raises, or gives no numbers, or a vector of another length than most, is an outcome as any other.

    Attributes:
        trials: Fresh trainings, each on D or D' by its own coin, in 2 .. 10,000,000; the paper's N of each are 2 N.
        stack: Trainings of one unit, >= 1: seconds of work.
        search: Trainings the attack learns from, in 4 .. 10,000,000; a poisoning that is searched for takes its share.
        poisoning: How D and D' are chosen.
        copies: In how many records they differ: 1, 2, 4 or 8; the claim follows by group privacy.
        scale: The range of the numbers: each column from 0 to 1 ("box"), rows of length at most 1 ("ball"), or "none".
        training_limit_s: Seconds, > 0, after which a training that is run by itself is ended and has failed; None: only
            the unit's limit holds, which ends the whole batch.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh samples were drawn. The range of the data is taken for public.",
        views={SAMPLED: SummaryView, SUMMARISED: SummaryView, LEARNERS: SummaryView},
        attack="output-set",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=CHECK_TESTS,
    )

    samples: ClassVar[Any] = staticmethod(sample_summaries)

    trials: int = 20_000
    stack: int = 2_500
    poisoning: Poisoning | PoisoningSearch = field(default=Automatic(), metadata={"kind": "poisoning"})
    copies: int = 1
    scale: Scale = "box"
    training_limit_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.copies in COPIES, "copies must be 1, 2, 4 or 8", copies=self.copies)
        # The poisoning decides how the data sets differ, and so what a claim says of them.
        traits = replace(type(self).traits, relation=self.poisoning.relation or Relation.LABEL, records=self.copies)
        if self.copies > 1:
            traits = replace(
                traits,
                helps=f"{traits.helps}, or fewer `copies`: what is claimed of one grows with them, delta above all",
            )
        object.__setattr__(self, "traits", traits)

    @property
    def limit_s(self) -> float | None:
        return self.training_limit_s

    def for_claim(self, claim: Claim) -> Neighbours:
        """With data sets that differ as the claim says, where a search leaves that open."""
        search = self.poisoning
        return replace(self, poisoning=search.for_claim(claim)) if isinstance(search, PoisoningSearch) else self

    def play(self, setting: Setting, work: Work) -> Played:
        worlds, search_trainings = self._worlds(setting, work)
        fresh, scores = self.fresh_and_scores(setting, work, worlds, search_trainings)
        noiseless_scores = self.without_noise(setting, work, worlds, search_trainings)
        planted = None
        if can_plant_noise(setting.mechanism, setting.attack):
            planted = work.add(
                plant_noise,
                setting.mechanism,
                worlds,
                seed=setting.seed.child("planted"),
                label="noise that is too small on purpose",
                resources=setting.resources.without_gpu,
            )
        return Played(
            scores,
            trainings=fresh,
            ceiling=noiseless_scores,
            noiseless=bool(noiseless_scores),
            planted=planted,
            choices=(worlds,) if isinstance(self.poisoning, PoisoningSearch) else (),
            reference=self.reference(),
        )

    def _worlds(self, setting: Setting, work: Work) -> tuple[Unit, int]:
        """The two data sets, and how many search trainings finding them leaves."""
        if isinstance(self.poisoning, PoisoningSearch):
            return self._best_worlds(setting, work, self.poisoning)
        poisoning = for_learner(self.poisoning, setting.mechanism)
        return self._choice(setting, work, choose_worlds, poisoning, "neighbouring data sets"), self.search

    def _best_worlds(self, setting: Setting, work: Work, search: PoisoningSearch) -> tuple[Unit, int]:
        """Halving: a few trainings on each candidate, as many in all on the few that are left, then on the last two."""
        candidates = search.candidates(setting.mechanism)
        trainings = int(self.search * search.share)
        if not search.among:
            candidates = dict(
                itertools.islice(
                    candidates.items(), max(1, trainings // ((len(ROUND_SURVIVORS) + 1) * MIN_CANDIDATE_TRAININGS))
                )
            )
        rounds = [len(candidates), *(survivors for survivors in ROUND_SURVIVORS if survivors < len(candidates))]
        trainings_each = [2 * (trainings // len(rounds) // count // 2) for count in rounds]
        if trainings_each[0] < MIN_CANDIDATE_TRAININGS:
            least = -(-MIN_CANDIDATE_TRAININGS * len(rounds) * len(candidates) // search.share)
            raise SpecError(
                f"search must be at least {least:.0f} to try {len(candidates)} poisonings, got {self.search}. "
                "Increase it, name fewer poisonings in `among`, or set a single `poisoning`"
            )
        offers: Any = tuple(
            self._choice(setting, work, offer_worlds, poisoning, f"neighbouring data sets by {name}", name)
            for name, poisoning in candidates.items()
        )
        samples: tuple[tuple[Unit, ...], ...] = ()
        for number, (survivors, count) in enumerate(zip(rounds, trainings_each, strict=True)):
            if number:
                attack = setting.attack if number > 1 else None
                label = f"best {survivors} of {len(candidates)} poisonings"
                offers = work.add(
                    shortlist,
                    attack,
                    setting.mechanism,
                    survivors,
                    offers,
                    samples,
                    label=label,
                    resources=setting.resources.without_gpu,
                )
            samples = tuple(
                self.sampled_in_parts(
                    setting, work, try_summaries, offers, f"tried {number + 1}.{place + 1}", count, place=place
                )
                for place in range(survivors)
            )
        label = f"best of {len(candidates)} poisonings"
        arguments = (take_best, setting.attack, setting.mechanism, len(candidates), offers, samples)
        best = work.add(*arguments, label=label, resources=setting.resources.without_gpu)
        return best, self.search - sum(
            survivors * count for survivors, count in zip(rounds, trainings_each, strict=True)
        )

    def _choice(
        self, setting: Setting, work: Work, function: Callable[..., Any], poisoning: Poisoning, label: str, *name: str
    ) -> Unit:
        return work.add(
            function,
            *name,
            poisoning,
            self.copies,
            self.scale,
            setting.required_part("target"),
            seed=setting.seed.child("worlds"),
            label=label,
            **setting.unit_options,
        )


@unit
def choose_worlds(
    poisoning: Poisoning, copies: int, scale: Scale, target: Examples, compute: Compute, *, seed: Seed
) -> Worlds:
    data: Examples = as_numbers(target, scale)
    require(copies < len(data), "copies must be fewer than the rows", copies=copies, rows=len(data))
    with limited_threads(compute.threads):
        worlds = poisoning.worlds(data, copies, seed.rng())
    if scale == "ball":
        return worlds.shortened_to(1.0)
    return worlds.clipped(0.0, 1.0) if scale == "box" and farther(poisoning) is None else worlds


def as_numbers(data: Examples, scale: Scale) -> Examples:
    """The same rows as float32 of shape (n, d): categories become columns of 0 and 1.

    The range is that of all rows, which the audit takes for public, as the paper does. In a "box" each column is from 0
    to 1; in a "ball" from -1 to 1, then every row divided by the largest length; by "none" they are as they were.
    """
    features = np.column_stack(_numeric_columns(data)) if isinstance(data.features, pa.Table) else data.features
    flat = np.asarray(features, np.float64).reshape(len(data), -1)
    flat = np.where(np.isnan(flat), np.nanmean(flat, axis=0), flat)
    return Examples(_scaled(flat, scale).astype(np.float32), data.labels, data.classes, data.name)


def _scaled(flat: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    if scale == "none":
        return flat
    lower, upper = flat.min(0), flat.max(0)
    unit: NDArray[np.float64] = (flat - lower) / np.where(upper > lower, upper - lower, 1.0)
    if scale == "box":
        return unit
    centred: NDArray[np.float64] = 2 * unit - 1
    # A hair shorter than 1: rounding to 32 bits must not lengthen any.
    longest = float(np.linalg.norm(centred, axis=1).max()) * (1 + 1e-6)
    return centred / longest


def _numeric_columns(data: Examples) -> list[NDArray[np.float64]]:
    table = data.features
    assert isinstance(table, pa.Table)
    columns: list[NDArray[np.float64]] = []
    for name in table.column_names:
        if name not in data.categorical:
            columns.append(table[name].to_numpy().astype(np.float64))
            continue
        categories = table[name].fill_null(UNKNOWN).to_pylist()
        common = sorted(category for category, _ in Counter(categories).most_common(MAX_CATEGORIES))
        code = {category: place for place, category in enumerate(common)}
        places = np.array([code.get(category, len(common)) for category in categories])
        columns += [(places == place).astype(np.float64) for place in range(places.max() + 1)]
    return columns


@dataclass(frozen=True, eq=False)
class CandidateWorlds:
    """Two data sets that may be taken."""

    name: str  # of the poisoning
    worlds: Worlds | None  # None where the poisoning does not fit
    farther: Worlds | None = None  # where records lie beyond the box: the same, with records farther away
    refused: str = ""  # why there are none


@dataclass(frozen=True, eq=False)
class CandidateTrainings:
    """Trainings on two data sets that may be taken, each two of them with one seed: on D, then on D'."""

    samples: Samples | None  # None where there are no data sets, or all trainings failed
    refused: str = ""  # why there is nothing


@unit
def offer_worlds(
    name: str, poisoning: Poisoning, copies: int, scale: Scale, target: Examples, compute: Compute, *, seed: Seed
) -> CandidateWorlds:
    try:
        near, far = (
            None if variant is None else choose_worlds(variant, copies, scale, target, compute, seed=seed)
            for variant in (poisoning, farther(poisoning))
        )
    except InputError as err:
        return CandidateWorlds(name, None, refused=str(err))
    return CandidateWorlds(name, near, far)


@unit
def try_summaries(
    mechanism: Any,
    offers: Sequence[CandidateWorlds],
    limit_s: float | None,
    compute: Compute,
    *,
    place: int,
    first: int,
    last: int,
    seed: Seed,
) -> CandidateTrainings:
    """Trainings `first` to `last` - 1 on the offer at `place`, every second one on D'."""
    offer = offers[place] if place < len(offers) else CandidateWorlds("", None)
    if offer.worlds is None:
        return CandidateTrainings(None, offer.refused)
    truth = np.arange(first, last) % 2 == 1
    batch = TrainingBatch(offer.worlds, truth, first, seed, compute, limit_s, paired=True)
    try:
        samples = sample_batch(mechanism, batch).value
        if first == 0 and offer.farther is not None:
            far_samples = sample_batch(mechanism, replace(batch, worlds=offer.farther)).value
            if not clips_records(samples, far_samples):
                return CandidateTrainings(
                    None, "the code does not limit what it is given: it is not asked beyond the box"
                )
    except TrainingError as err:
        return CandidateTrainings(None, str(err))
    return CandidateTrainings(samples)


@unit
def shortlist(
    attack: Any,
    mechanism: Any,
    count: int,
    offers: Sequence[CandidateWorlds],
    tried: tuple[tuple[CandidateTrainings, ...], ...],
    compute: Compute,
) -> Iterator[CandidateWorlds]:
    """The offers that go on to more trainings, `kept` of them at most, then those that were refused.

    Without an attack: by how far apart the trainings of one seed are, and by how well one number tells the worlds. With
    one: the offer that it tells apart best, and the one with the trainings farthest apart.
    """
    samples, refused = _samples_and_refusals(offers, tried)
    distances = {place: separation(trainings) for place, trainings in samples.items()}
    evidence = {place: (rank_shift, 0.0) for place, (_, rank_shift) in distances.items()}
    if attack is not None:
        with limited_threads(compute.threads):
            evidence = {
                place: held_out_evidence(attack, trainings, _stated_of(mechanism, offers[place], compute))
                for place, trainings in samples.items()
            }
    by_distance = sorted(distances, key=lambda place: -distances[place][0])
    by_attack = sorted(evidence, key=lambda place: (-evidence[place][0], -evidence[place][1]))
    first = by_attack[: max(1, count // 3)]
    yield from (offers[place] for place in [*first, *(place for place in by_distance if place not in first)][:count])
    yield from refused


@unit
def take_best(
    attack: Any,
    mechanism: Any,
    candidate_count: int,
    offers: Sequence[CandidateWorlds],
    tried: tuple[tuple[CandidateTrainings, ...], ...],
    compute: Compute,
) -> Outcome[Worlds]:
    """The data sets of the poisoning that shows most, by the bound; where no bound shows anything, by right guesses.

    Search and fresh trainings come afterwards, with other seeds, so the verdict pays nothing for the choice. The first
    of equals is taken; the notes say what was tried.

    Raises: RunError when no poisoning fits.
    """
    samples, refused = _samples_and_refusals(offers, tried)
    with limited_threads(compute.threads):
        evidence = {
            place: held_out_evidence(attack, trainings, _stated_of(mechanism, offers[place], compute))
            for place, trainings in samples.items()
        }
    if not evidence:
        raise RunError(f"no poisoning fits: {'; '.join(f'{offer.name}: {offer.refused}' for offer in refused)}")
    best = offers[max(evidence, key=lambda place: evidence[place])]
    descriptions = [
        f"{offers[place].name} {format_lower(bound)} ({accuracy:.0%} right)"
        for place, (bound, accuracy) in evidence.items()
    ]
    descriptions += [f"{offer.name} does not fit: {shortened(offer.refused)}" for offer in refused]
    notes = f"poisoning chosen: of {candidate_count} poisonings {best.name} was taken; bounds on their own trainings: "
    notes += ", ".join(descriptions)
    assert best.worlds is not None
    return Outcome(best.worlds, notes=(notes,))


def _samples_and_refusals(
    offers: Sequence[CandidateWorlds], tried: tuple[tuple[CandidateTrainings, ...], ...]
) -> tuple[dict[int, Samples], list[CandidateWorlds]]:
    """The trainings on each offer, by its place; and the offers that were refused, with the reason."""
    samples, refused = {}, []
    for place, offer in enumerate(offers):
        parts = tried[place] if place < len(tried) else ()
        reasons = [part.refused for part in parts if part.samples is None]
        if offer.worlds is None or reasons or not parts:
            refused.append(CandidateWorlds(offer.name, None, refused=offer.refused or next(iter(reasons), "")))
        else:
            samples[place] = Samples.joined([part.samples for part in parts if part.samples is not None])
    return samples, refused


def _stated_of(mechanism: Any, offer: CandidateWorlds, compute: Compute) -> StatedOdds | None:
    assert offer.worlds is not None
    return stated_odds(mechanism, offer.worlds, compute)


def can_plant_noise(mechanism: Any, attack: Any) -> bool:
    """Whether the mechanism can be drawn at another epsilon and says what its releases tell then, and the attack uses
    that."""
    protocols = (StatedLaw, SampledLearner, NoiseByEpsilon)
    return all(isinstance(mechanism, protocol) for protocol in protocols) and STATED_LAW in getattr(
        attack, "classifiers", ()
    )


@unit
def plant_noise(mechanism: Any, worlds: Worlds, compute: Compute, *, seed: Seed) -> PlantedNoise:
    """The mechanism at smaller and larger epsilons on the two data sets that were chosen."""
    epsilons = mechanism.epsilon * EPSILON_FACTORS
    log_odds = [
        _grouped_log_odds(replace(mechanism, epsilon=float(epsilon)), worlds, compute, seed) for epsilon in epsilons
    ]
    return PlantedNoise(np.repeat(epsilons, ODDS_GROUPS), np.concatenate(log_odds))


def _grouped_log_odds(mechanism: Any, worlds: Worlds, compute: Compute, seed: Seed) -> NDArray[np.float64]:
    """The log-odds of groups of trainings, as many in each, shape (LEVELS,)."""
    odds = stated_odds(mechanism, worlds, compute)
    assert odds is not None
    summaries_by_world = [
        mechanism.sample_summaries(
            worlds.world(world),
            worlds.points,
            PLANTED_TRAININGS // 2,
            seed=seed.child(int(world)).sequence(),
            compute=compute,
        )
        for world in (False, True)
    ]
    summaries = np.concatenate(summaries_by_world).astype(np.float32).astype(np.float64)
    probabilities = np.sort(special.expit(odds(summaries))).reshape(ODDS_GROUPS, -1).mean(1)
    return np.asarray(special.logit(probabilities))
