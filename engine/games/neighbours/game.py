"""Game "neighbours": thousands of trainings on two neighbouring data sets D and D', told apart by a learned output set.

A poisoning chooses D and D' before any training. The attack learns from search trainings, whose data set is known. It
then scores fresh trainings, each on D or D' by a separate fair coin.
Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", Algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import special

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, PrivacyCurve, Relation
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.attacks.stated_law import STATED_LAW, stated_odds
from dpaudit.engine.data.columns import UNKNOWN
from dpaudit.engine.games.neighbours.coupled_seeds import (
    CandidateWorlds,
    CoupledTrainings,
    predicted_candidates,
    summarised,
)
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Poisoning,
    PoisoningSearch,
    Worlds,
    farther,
    for_learner,
)
from dpaudit.engine.games.neighbours.poisonings.rows import Automatic
from dpaudit.engine.games.outcomes import Outcomes, Runs
from dpaudit.engine.games.protocol import (
    LEARNERS,
    Capability,
    CheckTest,
    PlantedNoise,
    Played,
    Setting,
)
from dpaudit.engine.games.search import (
    FEWEST_RUNS,
    MIN_RUNS_PER_PAIR,
    Strength,
    Tried,
    bounds_in_words,
    clips_records,
    coupled_move,
    paired_coins,
    strength,
)
from dpaudit.engine.games.two_worlds import PairTraits, Proposing, TwoWorlds
from dpaudit.errors import InputError, RunError, SpecError, require, shortened
from dpaudit.mechanisms.adapters.own_training import OwnTraining
from dpaudit.mechanisms.adapters.scikit_learn import SklearnClassifier
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import SampledLearner, StatedLaw, SummarisedLearner
from dpaudit.mechanisms.ranges import NoiseByEpsilon
from dpaudit.registry import register

SAMPLED = Capability(SampledLearner, "learners with batch sampling (with methods `claim` and `sample_summaries`)")
SUMMARISED = Capability(SummarisedLearner, "learners summed up as vectors (with methods `claim` and `summarise`)")

Scale = Literal["box", "ball", "none"]
MAX_CATEGORIES = 100
"""Largest number of categories with separate columns; rarer categories of a column share one more."""
COPIES = (1, 2, 4, 8)
MIN_CANDIDATE_TRAININGS = 3 * FEWEST_RUNS
"""Fewest trainings of a search for each poisoning that it tries, unless they are named."""
CLIPPED_TRAININGS = 16
"""Trainings that show if code limits its input, on data sets with far records, and as many with farther ones."""
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
class Neighbours(TwoWorlds):
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

    traits: ClassVar[PairTraits] = PairTraits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh samples were drawn. The range of the data is public.",
        views={SAMPLED: SummaryView, SUMMARISED: SummaryView, LEARNERS: SummaryView},
        check_tests=CHECK_TESTS,
    )

    ranks_by_strength: ClassVar[bool] = True

    trials: int = 20_000
    stack: int = 2_500
    search: int = 20_000
    poisoning: Poisoning | PoisoningSearch = field(default=Automatic(), metadata={"kind": "poisoning"})
    copies: int = 1
    scale: Scale = "box"
    training_limit_s: float | None = None

    def __post_init__(self) -> None:
        share = self.poisoning.share if isinstance(self.poisoning, PoisoningSearch) else 0.0
        object.__setattr__(self, "search_share", share)
        super().__post_init__()
        require(self.copies in COPIES, "copies must be 1, 2, 4 or 8", copies=self.copies)
        # The poisoning decides how the data sets differ, and so which claim holds for them.
        self.state(relation=self.poisoning.relation or Relation.LABEL, records=self.copies)
        if self.copies > 1:
            more = ", or fewer `copies`: the converted claim grows with them, especially its delta"
            self.state(helps=f"{self.traits.helps}{more}")

    @property
    def limit_s(self) -> float | None:
        return self.training_limit_s

    def for_claim(self, claim: Claim) -> Neighbours:
        """Return the game for the neighbouring relation of the claim, if a search among poisonings leaves it open."""
        search = self.poisoning
        return replace(self, poisoning=search.for_claim(claim)) if isinstance(search, PoisoningSearch) else self

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[Worlds]:
        """Yield the data sets of a single poisoning; those of a search among poisonings are proposed."""
        if not isinstance(self.poisoning, PoisoningSearch):
            yield self.chosen(for_learner(self.poisoning, mechanism), rows[0], rng)

    def chosen(self, poisoning: Poisoning, target: Examples, rng: np.random.Generator) -> Worlds:
        """Return the data sets of a poisoning."""
        data = as_numbers(target, self.scale)
        require(self.copies < len(data), "copies must be fewer than the rows", copies=self.copies, rows=len(data))
        worlds = poisoning.worlds(data, self.copies, rng)
        if self.scale == "ball":
            return worlds.shortened_to(1.0)
        return worlds.clipped(0.0, 1.0) if self.scale == "box" and farther(poisoning) is None else worlds

    def run(self, mechanism: Any, pair: Worlds, runs: Runs) -> Outcomes:
        return summarised(mechanism, pair, runs)

    def proposing(self, mechanism: Any) -> Proposing | None:
        search = self.poisoning
        if not isinstance(search, PoisoningSearch):
            return None
        trainings, coupled, count = int(self.search * search.share), 0, len(search.candidates(mechanism))
        if search.among:
            least = -(-MIN_RUNS_PER_PAIR * count // search.share)
            if self.search < least:
                raise SpecError(
                    f"search must be at least {least:.0f} to try {count} poisonings, got {self.search}. "
                    "Increase it, name fewer poisonings in `among`, or set a single `poisoning`"
                )
            return Proposing(count, 0)
        if not isinstance(mechanism, SampledLearner):  # bulk sampling has one seed for a batch
            coupled = min(trainings // 2, MAX_COUPLED_TRAININGS)
            coupled = coupled if coupled >= MIN_COUPLED_TRAININGS else 0
        return Proposing(min(count, max(1, (trainings - coupled) // MIN_CANDIDATE_TRAININGS)), coupled)

    def propose(
        self, mechanism: Any, rows: tuple[Any, ...], proposing: Proposing, seed: Seed, compute: Compute
    ) -> Outcome[Iterator[Worlds]]:
        """Return the data sets of poisonings, or those with the largest effects in trainings with one seed.

        The latter are crafted data sets too. Code must limit its input to be tried with records outside the box.

        Raises: RunError if no poisoning fits.
        """
        search = self.poisoning
        assert isinstance(search, PoisoningSearch)
        offers, refused = list[CandidateWorlds](), list[str]()
        for name, poisoning in list(search.candidates(mechanism).items())[: proposing.pairs]:
            far, rng_seed = farther(poisoning), seed.child("worlds")
            try:
                worlds = self.chosen(poisoning, rows[0], rng_seed.rng())
                beyond = None if far is None else self.chosen(far, rows[0], rng_seed.rng())
            except InputError as err:
                refused.append(f"{name}: {shortened(str(err))}")
                continue
            offers.append(CandidateWorlds(name, worlds, beyond))
        if not offers:
            raise RunError(f"no poisoning fits: {'; '.join(refused)}")
        predicted: list[CandidateWorlds] | None = None
        if proposing.runs:
            predicted = predicted_candidates(
                CoupledTrainings(mechanism, proposing.runs, seed=seed, limit_s=self.limit_s, compute=compute),
                as_numbers(rows[0], self.scale),
                offers,
                relation=search.relation or Relation.LABEL,
                copies=self.copies,
                far=self.scale == "box",
                longest=1.0 if self.scale == "ball" else None,
                count=min(proposing.pairs, MAX_PREDICTED),
            )
        count, clipped = CLIPPED_TRAININGS, list[Worlds]()
        runs = Runs(paired_coins(count), np.arange(count), seed.child("far"), (), compute, self.limit_s, paired=True)
        for each in predicted or offers:
            if each.farther is None or clips_records(
                summarised(mechanism, each.worlds, runs), summarised(mechanism, each.farther, runs)
            ):
                clipped.append(replace(each.worlds, name=each.name))
            else:
                refused.append(f"{each.name}: the code does not limit its input")
        notes = (f"poisonings left out: {'; '.join(refused)}",) if refused else ()
        return Outcome(iter(clipped), notes=notes)

    def strength(
        self, curve: PrivacyCurve, attack: Any, mechanism: Any, pair: Any, outcomes: Outcomes, compute: Compute
    ) -> Strength | None:
        if (outcomes.fault != "").all() and len(np.unique(outcomes.ending)) == 1:
            return None
        return strength(curve, attack, outcomes, stated_odds(mechanism, pair, compute))

    def judged(self, chosen: Sequence[Tried], tried: Sequence[Tried], strengths: Sequence[Strength]) -> tuple[str, ...]:
        bounds = bounds_in_words(tried, strengths)
        return (f"poisoning chosen: {chosen[0].pair.name}; bounds on search trainings: {bounds}",)

    def prepared(self, mechanism: Any, pair: Worlds, outcomes: Outcomes | None, compute: Compute) -> Worlds:
        """Return the data sets with the change of the summary, if trainings with one seed showed it."""
        return pair if outcomes is None else replace(pair, move=coupled_move(outcomes).astype(np.float32))

    def finished(self, played: Played, setting: Setting, work: Work, pairs: Unit) -> Played:
        """Return the plan with noise that is too small on purpose, where it can be planted."""
        if not can_plant_noise(setting.mechanism, setting.attack):
            return played
        planted = work.add(
            plant_noise,
            setting.mechanism,
            pairs,
            seed=setting.seed.child("planted"),
            label="noise that is too small on purpose",
            resources=setting.resources.without_gpu,
        )
        return replace(played, planted=planted)


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


def can_plant_noise(mechanism: Any, attack: Any) -> bool:
    """True if the mechanism can be sampled at other epsilons and states its law, and the attack uses the law."""
    protocols = (StatedLaw, SampledLearner, NoiseByEpsilon)
    return all(isinstance(mechanism, protocol) for protocol in protocols) and STATED_LAW in getattr(
        attack, "classifiers", ()
    )


@unit
def plant_noise(mechanism: Any, pairs: Sequence[Worlds], compute: Compute, *, seed: Seed) -> PlantedNoise:
    """Return log-odds of the mechanism at smaller and larger epsilons on the chosen data sets."""
    (worlds,) = pairs
    epsilons, log_odds = mechanism.epsilon * EPSILON_FACTORS, []
    for epsilon in epsilons.tolist():
        planted = replace(mechanism, epsilon=epsilon)
        odds = stated_odds(planted, worlds, compute)
        assert odds is not None
        summaries = [
            planted.sample_summaries(
                worlds.world(world),
                worlds.points,
                PLANTED_TRAININGS // 2,
                seed=seed.child(int(world)).sequence(),
                compute=compute,
            )
            for world in (False, True)
        ]
        rounded = np.concatenate(summaries).astype(np.float32).astype(np.float64)
        probabilities = np.sort(special.expit(odds(rounded))).reshape(ODDS_GROUPS, -1).mean(1)
        log_odds.append(special.logit(probabilities))
    return PlantedNoise(np.repeat(epsilons, ODDS_GROUPS), np.concatenate(log_odds))
