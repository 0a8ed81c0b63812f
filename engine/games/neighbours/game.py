"""Game "neighbours": thousands of trainings on two neighbouring data sets D and D', told apart by a learned output set.

A poisoning chooses D and D' before any training. The attack learns from search trainings, whose data set is known. It
then scores fresh trainings, each on D or D' by a separate fair coin.
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
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.attacks.stated_law import STATED_LAW, stated_odds
from dpaudit.engine.data.columns import UNKNOWN
from dpaudit.engine.games.neighbours.coupled_seeds import CandidateWorlds, CoupledTrainings, predicted_candidates
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Poisoning,
    PoisoningSearch,
    Worlds,
    farther,
    for_learner,
)
from dpaudit.engine.games.neighbours.poisonings.rows import Automatic
from dpaudit.engine.games.neighbours.summaries import TrainingBatch, sample_batch, sample_summaries
from dpaudit.engine.games.neighbours.world_scores import SummaryGame
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.protocol import (
    LEARNERS,
    Capability,
    CheckTest,
    GameTraits,
    PlantedNoise,
    Played,
    Setting,
)
from dpaudit.engine.games.search import clips_records, coupled_move, held_out_evidence, separation
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
"""Largest number of categories with separate columns; rarer categories of a column share one more."""
COPIES = (1, 2, 4, 8)
MIN_CANDIDATE_TRAININGS = 16
"""Fewest trainings on each candidate of a search: half on D, and half on D' with the same seeds."""
ROUND_SURVIVORS = (6, 2)
"""Number of candidates after the first and the second round of a search."""
MIN_COUPLED_TRAININGS, MAX_COUPLED_TRAININGS = 40, 1_000
"""Smallest and largest number of trainings with coupled seeds, by which a search predicts the effects of records."""
MAX_PREDICTED = 9
"""Number of candidates with the largest predicted effects that get trainings in a search."""
CHECK_TRAININGS = 6_000
"""Search and fresh trainings of a check; trainings by common libraries take some milliseconds."""
USER_LEARNER_TRAININGS, SLOW_LEARNER_TRAININGS = 12_000, 2_400
"""Search and fresh trainings of a check of a user's learner, and those that a slow one gets at least.

A pure claim of 1 with noise for 2, spread over the directions of 6 numbers, needs about 5,000 fresh trainings.
"""
USER_LEARNERS = tuple(
    Capability(adapter, f"user training functions and estimators (`{adapter.made_by}`)")
    for adapter in (OwnTraining, SklearnClassifier)
)
EPSILON_FACTORS = 2.0 ** (np.arange(-12, 13) / 4)
"""Multiples of the mechanism's epsilon at which its sensitivity to noise is simulated."""
PLANTED_TRAININGS = 2_000
"""Trainings at each of these epsilons, half of them on each data set."""
ODDS_GROUPS = 50
"""Number of groups of their log-odds."""


def _check_test(
    capability: Capability,
    claim_relation: Relation,
    data_relation: Relation,
    variant: str,
) -> CheckTest:
    """Return a test of learners sampled in bulk, or of learners that train once for each summary."""
    in_bulk = capability is SAMPLED
    return CheckTest(
        capability,
        (claim_relation,),
        "leaks of a few chosen records by all released numbers or answers together: too little noise, exact counts",
        trainings=CHECK_TRAININGS if in_bulk else USER_LEARNER_TRAININGS,
        slow_trainings=0 if in_bulk else SLOW_LEARNER_TRAININGS,
        scales={"trials": 0.5, "search": 0.5} if in_bulk else {"trials": 0.6, "search": 0.4},
        variant=variant,
        growth_on_repeat={"trials": 2.0},
        search_field="search",
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
    _check_test(capability, data_relation, data_relation, "")
    for capability in USER_LEARNERS
    for data_relation in (Relation.REPLACE, Relation.ADD_REMOVE)
)


@register("game", "neighbours", source="Lu et al. (2022), Algorithm 1; fair coins for the fresh samples are ours")
@dataclass(frozen=True)
class Neighbours(SummaryGame):
    """Game in which the attacker guesses which of two neighbouring data sets a learner was trained on.

    A training is observed as a summary vector: sampled in bulk, returned by the learner, or made of the model's
    predictions. A training that raises, or returns no numbers or a vector of unusual length, is an outcome too.

    Attributes:
        trials: Number of fresh trainings, each on D or D' by a separate coin, in 2 .. 10,000,000; the paper has N on
            each data set, which are 2 N trials.
        stack: Number of trainings in one unit, >= 1; a unit should take seconds.
        search: Number of search trainings, in 4 .. 10,000,000; a search among poisonings uses a share of them.
        poisoning: Choice of D and D'.
        copies: Number of records in which D and D' differ: 1, 2, 4 or 8. Claims are converted by group privacy.
        scale: Scaling of the features: columns in 0 .. 1 ("box"), rows of length at most 1 ("ball"), or "none".
        training_limit_s: Time limit of a single training in seconds, > 0; a longer training fails. None for no limit
            except that of the unit, which ends the whole batch.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh samples were drawn. The range of the data is public.",
        views={SAMPLED: SummaryView, SUMMARISED: SummaryView, LEARNERS: SummaryView},
        attack="output-set",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=CHECK_TESTS,
    )

    samples: ClassVar[Any] = staticmethod(sample_summaries)
    learns_once: ClassVar[bool] = True

    trials: int = 20_000
    stack: int = 2_500
    poisoning: Poisoning | PoisoningSearch = field(default=Automatic(), metadata={"kind": "poisoning"})
    copies: int = 1
    scale: Scale = "box"
    training_limit_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.copies in COPIES, "copies must be 1, 2, 4 or 8", copies=self.copies)
        # The poisoning decides how the data sets differ, and so which claim holds for them.
        traits = replace(type(self).traits, relation=self.poisoning.relation or Relation.LABEL, records=self.copies)
        if self.copies > 1:
            traits = replace(
                traits,
                helps=f"{traits.helps}, or fewer `copies`: the converted claim grows with them, especially its delta",
            )
        object.__setattr__(self, "traits", traits)

    @property
    def limit_s(self) -> float | None:
        return self.training_limit_s

    def for_claim(self, claim: Claim) -> Neighbours:
        """Return the game for the neighbouring relation of the claim, if a search among poisonings leaves it open."""
        search = self.poisoning
        return replace(self, poisoning=search.for_claim(claim)) if isinstance(search, PoisoningSearch) else self

    def play(self, setting: Setting, work: Work) -> Played:
        worlds, search_trainings = self._worlds(replace(setting, seed=setting.search_seed), work)
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
        """Return the unit that chooses D and D', and the number of remaining search trainings."""
        if isinstance(self.poisoning, PoisoningSearch):
            return self._best_worlds(setting, work, self.poisoning)
        poisoning = for_learner(self.poisoning, setting.mechanism)
        return self._choice(setting, work, choose_worlds, poisoning, "neighbouring data sets"), self.search

    def _best_worlds(self, setting: Setting, work: Work, search: PoisoningSearch) -> tuple[Unit, int]:
        """Choose D and D' by successive halving: each round spends equally many trainings on fewer candidates."""
        candidates = search.candidates(setting.mechanism)
        trainings = int(self.search * search.share)
        coupled_trainings = 0
        # Bulk sampling has one seed for a batch. Named poisonings are the only ones to try.
        if not isinstance(setting.mechanism, SampledLearner) and not search.among:
            coupled_trainings = min(trainings // 2, MAX_COUPLED_TRAININGS)
            coupled_trainings = coupled_trainings if coupled_trainings >= MIN_COUPLED_TRAININGS else 0
            trainings -= coupled_trainings
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
        if coupled_trainings:
            offers = work.add(
                predict_candidates,
                setting.mechanism,
                offers,
                search.relation or Relation.LABEL,
                self.copies,
                self.scale,
                setting.required_part("target"),
                self.limit_s,
                trainings=coupled_trainings,
                count=min(len(candidates), MAX_PREDICTED),
                seed=setting.seed.child("coupled seeds"),
                label="neighbouring data sets by coupled seeds",
                **setting.unit_options,
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
        tried = sum(survivors * count for survivors, count in zip(rounds, trainings_each, strict=True))
        return best, self.search - tried - coupled_trainings

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
    """Return the rows with float32 features of shape (n, d); categories become columns of 0 and 1.

    Features are scaled by their range over all rows, which the audit treats as public, as the paper does. "box" scales
    columns to 0 .. 1. "ball" scales columns to -1 .. 1 and divides rows by the largest length. "none" does not scale.
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
    # Slightly shorter than 1: rounding to 32 bits must not make a row longer than 1.
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
class CandidateTrainings:
    """Pairs of trainings on the data sets of one candidate: on D, then on D' with the same seed."""

    samples: Outcomes | None  # None if there are no data sets, or all trainings failed
    refused: str = ""  # reason why there are no samples


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
def predict_candidates(
    mechanism: Any,
    offers: Sequence[CandidateWorlds],
    relation: Relation,
    copies: int,
    scale: Scale,
    target: Examples,
    limit_s: float | None,
    compute: Compute,
    *,
    trainings: int,
    count: int,
    seed: Seed,
) -> Iterator[CandidateWorlds]:
    """Return the candidates with the largest predicted effects, then the refused offers.

    They are the offers and crafted data sets. All offers are returned if the learner does not follow its seed.
    """
    data = as_numbers(target, scale)
    coupled = CoupledTrainings(mechanism, trainings, seed=seed, limit_s=limit_s, compute=compute)
    with limited_threads(compute.threads):
        try:
            predicted = predicted_candidates(
                coupled,
                data,
                offers,
                relation=relation,
                copies=copies,
                far=scale == "box",
                longest=1.0 if scale == "ball" else None,
                count=count,
            )
        except TrainingError:
            predicted = None
    if not predicted:
        yield from offers
        return
    yield from predicted
    yield from (offer for offer in offers if offer.worlds is None)


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
    """Run trainings `first` to `last` - 1 on the candidate at `place`, every second one on D'."""
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
                    None, "the code does not limit its input, so records outside the box are not tried"
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
    """Return at most `count` candidates for the next round, then the refused ones.

    A third has the strongest evidence: by the attack, or without one by the single number that separates the worlds
    best. The others have the largest distance between trainings with the same seed.
    """
    samples, refused = _samples_and_refusals(offers, tried)
    distances = {place: separation(trainings) for place, trainings in samples.items()}
    evidence = {place: (rank_shift, 0.0) for place, (_, rank_shift) in distances.items()}
    if attack is not None:
        evidence = _evidence(attack, mechanism, offers, samples, compute)
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
    """Return the data sets of the poisoning with the largest bound.

    Ties are decided by the distance between trainings with one seed, which has no noise if the learner draws it from
    the seed, or else by the share of correct guesses. Search and fresh trainings run afterwards with other seeds, so
    the choice costs no confidence.

    Raises: RunError if no poisoning fits.
    """
    samples, refused = _samples_and_refusals(offers, tried)
    evidence = _evidence(attack, mechanism, offers, samples, compute)
    if not evidence:
        raise RunError(f"no poisoning fits: {'; '.join(f'{offer.name}: {offer.refused}' for offer in refused)}")
    moves = {place: coupled_move(trainings) for place, trainings in samples.items()}
    distances = {
        place: separation(samples[place])[0] if len(moves[place]) else accuracy
        for place, (_, accuracy) in evidence.items()
    }
    place = max(evidence, key=lambda place: (evidence[place][0], distances[place]))
    best = offers[place]
    descriptions = [
        f"{offers[place].name} {format_lower(bound)} ({accuracy:.0%} right)"
        for place, (bound, accuracy) in evidence.items()
    ]
    descriptions += [f"{offer.name} does not fit: {shortened(offer.refused)}" for offer in refused]
    note = f"poisoning chosen: of {candidate_count} poisonings {best.name} was taken; bounds on search trainings: "
    note += ", ".join(descriptions)
    assert best.worlds is not None
    return Outcome(replace(best.worlds, move=moves[place].astype(np.float32)), notes=(note,))


def _samples_and_refusals(
    offers: Sequence[CandidateWorlds], tried: tuple[tuple[CandidateTrainings, ...], ...]
) -> tuple[dict[int, Outcomes], list[CandidateWorlds]]:
    """Return the samples of each candidate by position, and the refused candidates with their reasons."""
    samples, refused = {}, []
    for place, offer in enumerate(offers):
        parts = tried[place] if place < len(tried) else ()
        reasons = [part.refused for part in parts if part.samples is None]
        if offer.worlds is None or reasons or not parts:
            refused.append(CandidateWorlds(offer.name, None, refused=offer.refused or next(iter(reasons), "")))
        else:
            samples[place] = Outcomes.joined([part.samples for part in parts if part.samples is not None])
    return samples, refused


def _evidence(
    attack: Any, mechanism: Any, offers: Sequence[Any], samples: dict[int, Outcomes], compute: Compute
) -> dict[int, tuple[float, float]]:
    """Return the held-out bound and share of correct guesses of each candidate."""
    with limited_threads(compute.threads):
        return {
            place: held_out_evidence(attack, trainings, stated_odds(mechanism, offers[place].worlds, compute))
            for place, trainings in samples.items()
        }


def can_plant_noise(mechanism: Any, attack: Any) -> bool:
    """True if the mechanism can be sampled at other epsilons and states its law, and the attack uses the law."""
    protocols = (StatedLaw, SampledLearner, NoiseByEpsilon)
    return all(isinstance(mechanism, protocol) for protocol in protocols) and STATED_LAW in getattr(
        attack, "classifiers", ()
    )


@unit
def plant_noise(mechanism: Any, worlds: Worlds, compute: Compute, *, seed: Seed) -> PlantedNoise:
    """Return log-odds of the mechanism at smaller and larger epsilons on the chosen data sets."""
    epsilons = mechanism.epsilon * EPSILON_FACTORS
    log_odds = [
        _grouped_log_odds(replace(mechanism, epsilon=float(epsilon)), worlds, compute, seed) for epsilon in epsilons
    ]
    return PlantedNoise(np.repeat(epsilons, ODDS_GROUPS), np.concatenate(log_odds))


def _grouped_log_odds(mechanism: Any, worlds: Worlds, compute: Compute, seed: Seed) -> NDArray[np.float64]:
    """Return the mean log-odds of equal groups of trainings, shape (ODDS_GROUPS,)."""
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
