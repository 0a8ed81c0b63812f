"""Two neighbouring data sets, thousands of trainings on either, and an output set that is learned from them.

The poisoning chooses D and D' before anything is trained. Search trainings, whose world is known, teach the attack
which outputs speak for D'; fresh ones, each on D or D' by its own fair coin, are what it is judged by.
Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", Algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Relation
from dpaudit.engine.data.columns import UNKNOWN
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, PoisoningSearch, Worlds, fitted
from dpaudit.engine.games.neighbours.poisonings.rows import Automatic
from dpaudit.engine.games.neighbours.summaries import SAMPLED, SUMMARISED, Samples, sample_summaries
from dpaudit.engine.games.protocol import LEARNERS, Capability, CheckTest, Fits, Played, Reading, Setting, require_units
from dpaudit.engine.games.trials import MAX_TRIALS, TrialGame, grouped_for_reading, scored_trials
from dpaudit.errors import InputError, RunError, SpecError, require, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

Scale = Literal["box", "ball", "none"]
MAX_CATEGORIES = 100
"""One column each; rarer ones of the same column share the last."""
COPIES = (1, 2, 4, 8)
MIN_TRIED = 16
"""Trainings on each candidate of a search: half to learn from, half to judge by."""
JUDGED_APART = 10_000
"""Search trainings from which on the candidates of an attack are judged by units of their own: 0.3 s and more."""
TRAININGS_OF_TEST = 6_000
"""Trainings of a check, search and fresh together: those of other people's libraries take some milliseconds each."""


def _check_test(face: Capability, claimed: Relation, differ: Relation, variant: str) -> CheckTest:
    return CheckTest(
        face,
        (claimed,),
        "what the released numbers as a whole tell of a few chosen records: noise too small, exact counts",
        trainings=TRAININGS_OF_TEST,
        scales={"trials": 0.5, "search": 0.5},
        variant=variant,
        game={"poisoning": {"name": "automatic", "relation": str(differ)}, "stack": 500},
    )


CHECK_TESTS = tuple(
    _check_test(face, claimed, differ, variant)
    for face in (SAMPLED, SUMMARISED)
    for claimed, differ, variant in (
        (Relation.LABEL, Relation.LABEL, ""),
        (Relation.REPLACE, Relation.REPLACE, ""),
        (Relation.ADD_REMOVE, Relation.ADD_REMOVE, "records that come"),
        (Relation.ADD_REMOVE, Relation.REPLACE, "records replaced"),
    )
)


@register("game", "neighbours", source="Lu et al. (2022), Algorithm 1; fair coins for the fresh samples are ours")
@dataclass(frozen=True)
class Neighbours(TrialGame):
    """Two neighbouring data sets, chosen beforehand: on which of them was a learner trained, whose summary is shown?

    Plays every learner: one drawn in bulk, one that is summed up as a vector, and any other by what its models answer.
    A training that raises, or gives no numbers, or a vector of another length than most, counts as the worst guess.

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

    fits: ClassVar[Fits] = Fits(
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

    trials: int = 20_000
    stack: int = 2_500
    search: int = 20_000
    poisoning: Poisoning | PoisoningSearch = field(default=Automatic(), metadata={"kind": "poisoning"})
    copies: int = 1
    scale: Scale = "box"
    training_limit_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(4 <= self.search <= MAX_TRIALS, f"search must be in 4 .. {MAX_TRIALS:,}", search=self.search)
        require(self.copies in COPIES, "copies must be 1, 2, 4 or 8", copies=self.copies)
        limit = self.training_limit_s
        require(limit is None or limit > 0, "training_limit_s must be > 0", training_limit_s=limit)
        # The poisoning decides how the data sets differ, and so what a claim says of them.
        own = replace(type(self).fits, relation=self.poisoning.relation, records=self.copies)
        if self.copies > 1:
            own = replace(
                own, helps=f"{own.helps}, or fewer `copies`: what is claimed of one grows with them, delta above all"
            )
        object.__setattr__(self, "fits", own)

    def play(self, setting: Setting, work: Work) -> Played:
        worlds, left = self._worlds(setting, work)
        search = self._samples(setting, work, sample_summaries, worlds, "search", left)
        judged = self._judged(setting, work, search, left)
        fresh = self._samples(setting, work, sample_summaries, worlds, "fresh", self.trials)
        alone = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_summaries,
                setting.attack,
                search,
                trials,
                judged,
                label=f"scores of {trials[0].label if alone else f'{self.trials} fresh samples'}",
                resources=setting.resources.on_cpus,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        searched = isinstance(self.poisoning, PoisoningSearch)
        return Played(scores, trainings=fresh, choices=(worlds,) if searched else (), reference=self.reference())

    def _worlds(self, setting: Setting, work: Work) -> tuple[Unit, int]:
        """The two data sets, and how many search trainings finding them leaves."""
        if isinstance(self.poisoning, PoisoningSearch):
            return self._best_worlds(setting, work, self.poisoning)
        poisoning = fitted(self.poisoning, setting.mechanism)
        return self._choice(setting, work, choose_worlds, poisoning, "neighbouring data sets"), self.search

    def _best_worlds(self, setting: Setting, work: Work, search: PoisoningSearch) -> tuple[Unit, int]:
        candidates = search.candidates(setting.mechanism)
        each = int(self.search * search.share) // len(candidates)
        if each < MIN_TRIED:
            least = -(-MIN_TRIED * len(candidates) // search.share)
            raise SpecError(
                f"search must be at least {least:.0f} to try {len(candidates)} poisonings, got {self.search}; give "
                "more, name fewer (`among`), or one `poisoning`"
            )
        offers, tried = [], []
        for name, poisoning in candidates.items():
            offer = self._choice(setting, work, offer_worlds, poisoning, f"neighbouring data sets by {name}")
            offers.append(offer)
            tried.append(self._samples(setting, work, try_summaries, offer, f"{name} tried", each))
        best = work.add(
            take_best,
            setting.attack,
            tuple(candidates),
            tuple(offers),
            tuple(tried),
            label=f"best of {len(offers)} poisonings",
            resources=setting.resources.on_cpus,
        )
        return best, self.search - each * len(candidates)

    def _choice(
        self, setting: Setting, work: Work, function: Callable[..., Any], poisoning: Poisoning, label: str
    ) -> Unit:
        return work.add(
            function,
            poisoning,
            self.copies,
            self.scale,
            setting.required("target"),
            seed=setting.seed.child("worlds"),
            label=label,
            **setting.running,
        )

    def _samples(
        self, setting: Setting, work: Work, function: Callable[..., Any], worlds: Unit, part: str, trials: int
    ) -> tuple[Unit, ...]:
        require_units(-(-trials // self.stack))
        return work.split(
            function,
            trials,
            self.stack,
            setting.mechanism,
            worlds,
            self.training_limit_s,
            seed=setting.seed.child(part),
            label=f"{part} samples",
            **setting.running,
        )

    def _judged(self, setting: Setting, work: Work, search: tuple[Unit, ...], samples: int) -> tuple[Unit, ...]:
        """The units that judge the candidates of an attack, each its own; none where one unit is as quick."""
        if not isinstance(setting.attack, ManyCandidates) or samples < JUDGED_APART:
            return ()
        candidates = setting.attack.candidates()
        if len(candidates) == 1:
            return ()
        return tuple(
            work.add(
                judge_candidate,
                candidate,
                search,
                label=f"worth of candidate {number + 1}/{len(candidates)}",
                resources=setting.resources.on_cpus,
            )
            for number, candidate in enumerate(candidates)
        )


@unit
def choose_worlds(
    poisoning: Poisoning, copies: int, scale: Scale, target: Examples, compute: Compute, *, seed: Seed
) -> Worlds:
    data: Examples = as_numbers(target, scale)
    require(copies < len(data), "copies must be fewer than the rows", copies=copies, rows=len(data))
    with threadpool_limits(compute.threads):
        worlds = poisoning.worlds(data, copies, seed.rng())
    return worlds.within(0.0, 1.0) if scale == "box" else worlds


def as_numbers(data: Examples, scale: Scale) -> Examples:
    """The same rows as float32 of shape (n, d): categories become columns of 0 and 1.

    The range is that of all rows, which the audit takes for public, as the paper does. In a "box" each column is from 0
    to 1; in a "ball" from -1 to 1, then every row divided by the largest length; by "none" they are as they were.
    """
    features = np.column_stack(_columns(data)) if isinstance(data.features, pa.Table) else data.features
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


def _columns(data: Examples) -> list[NDArray[np.float64]]:
    table = data.features
    assert isinstance(table, pa.Table)
    found: list[NDArray[np.float64]] = []
    for name in table.column_names:
        if name not in data.categorical:
            found.append(table[name].to_numpy().astype(np.float64))
            continue
        words = table[name].fill_null(UNKNOWN).to_pylist()
        common = sorted(word for word, _ in Counter(words).most_common(MAX_CATEGORIES))
        code = {word: place for place, word in enumerate(common)}
        places = np.array([code.get(word, len(common)) for word in words])
        found += [(places == place).astype(np.float64) for place in range(places.max() + 1)]
    return found


@runtime_checkable
class ManyCandidates(Protocol):
    """An attack that is one of several, each judged by the search samples alone."""

    def candidates(self) -> Sequence[Any]:
        """Each by itself."""
        ...

    def best(self, worth: Sequence[float]) -> Any:
        """The candidate that is worth most."""
        ...


@dataclass(frozen=True)
class Worth:
    """What a candidate is worth, as the attack measures it."""

    worth: float


@unit
def judge_candidate(candidate: Any, search: tuple[Samples, ...]) -> Worth:
    """What one candidate of a `ManyCandidates` is worth on the search samples."""
    known, truth = Samples.joined(search).usual()
    return Worth(candidate.worth(SummaryView(known, truth, known[:0])))


@unit
def score_summaries(
    attack: Any, search: tuple[Samples, ...], fresh: tuple[Samples, ...], judged: tuple[Worth, ...]
) -> Outcome[Iterator[Scores]]:
    """The attack learns on the search samples and scores the fresh ones: one replay."""
    searched, trials = Samples.joined(search), Samples.joined(fresh)
    usual = searched.usual_width
    view = SummaryView(*searched.usual(), trials.of_width(usual))
    chosen = attack.best([each.worth for each in judged]) if judged else attack
    scores = scored_trials(chosen, view, number=trials.number, truth=trials.truth, failed=trials.width != usual)
    odd = (
        f"{name}: it gave {width} numbers, most gave {usual}"
        for name, width in zip(trials.name.tolist(), trials.width.tolist(), strict=True)
        if width not in (usual, -1)
    )
    return Outcome(iter((scores,)), failures=tuple(odd))


@dataclass(frozen=True, eq=False)
class Offer:
    """Two data sets that may be taken."""

    worlds: Worlds | None  # None where the poisoning does not fit
    refused: str = ""  # why not


@dataclass(frozen=True, eq=False)
class Tried:
    """Trainings on two data sets that may be taken."""

    samples: Samples | None  # None where there are no data sets, or all trainings failed
    refused: str = ""  # why there is nothing


@unit
def offer_worlds(
    poisoning: Poisoning, copies: int, scale: Scale, target: Examples, compute: Compute, *, seed: Seed
) -> Offer:
    try:
        return Offer(choose_worlds(poisoning, copies, scale, target, compute, seed=seed))
    except InputError as err:
        return Offer(None, str(err))


@unit
def try_summaries(
    mechanism: Any, offer: Offer, limit_s: float | None, compute: Compute, *, first: int, last: int, seed: Seed
) -> Tried:
    if offer.worlds is None:
        return Tried(None, offer.refused)
    try:
        made = sample_summaries(mechanism, offer.worlds, limit_s, compute, first=first, last=last, seed=seed)
    except TrainingError as err:
        return Tried(None, str(err))
    return Tried(made.value)


@unit
def take_best(
    attack: Any,
    names: tuple[str, ...],
    offers: tuple[Offer, ...],
    tried: tuple[tuple[Tried, ...], ...],
    compute: Compute,
) -> Outcome[Worlds]:
    """The data sets of the poisoning that shows most, by the bound; where no bound shows anything, by right guesses.

    Search and fresh trainings come afterwards, with other seeds, so the verdict pays nothing for the choice. The first
    of equals is taken; the notes say what was tried.

    Raises: RunError when no poisoning fits.
    """
    shown, refused, worlds = {}, {}, {}
    for name, offer, parts in zip(names, offers, tried, strict=True):
        reasons = [part.refused for part in parts if part.samples is None]
        if offer.worlds is None or reasons:
            refused[name] = reasons[0]
            continue
        worlds[name] = offer.worlds
        with threadpool_limits(compute.threads):
            samples = [part.samples for part in parts if part.samples is not None]
            shown[name] = what_it_shows(attack, Samples.joined(samples))
    if not shown:
        raise RunError(f"no poisoning fits: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")
    best = max(shown, key=lambda name: shown[name])
    words = [f"{name} {format_lower(bound)} ({right:.0%} right)" for name, (bound, right) in shown.items()]
    words += [f"{name} does not fit: {shortened(why)}" for name, why in refused.items()]
    told = f"of {len(offers)} poisonings {best} was taken; bounds on their own trainings: {', '.join(words)}"
    return Outcome(worlds[best], notes=(told,))


def what_it_shows(attack: Any, trainings: Samples) -> tuple[float, float]:
    """The bound of every second training, learned from the others, and the share of right guesses among them."""
    summaries, truth = trainings.usual()
    judged = np.arange(len(truth)) % 2 == 1
    if min(len(np.unique(truth[part])) for part in (judged, ~judged)) < 2:
        return 0.0, 0.5
    scores = attack.score(SummaryView(summaries[~judged], truth[~judged], summaries[judged]))
    estimator = FairCoins()
    bound = estimator.bound([estimator.tally(Scores(scores, truth[judged]))])
    return bound.lower, float(((scores > 0) == truth[judged]).mean())
