"""The game of two worlds: a mechanism runs many times, each time in world 0 or 1 by a fair coin, and an attack tells.

A game of this kind is a source of pairs: it proposes pairs of neighbouring inputs, and runs the mechanism on one of
the two. Everything else is here: the search for pairs that tell most, runs with known coins from which the attack
learns, fresh runs with secret coins, their scores in reading order, and the same without the mechanism's noise.
A run that fails is an outcome, since a record may cause it. The seed and the number of a run determine it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, measuring, tossing, unit
from dpaudit.claims import Claim, PrivacyCurve, Relation
from dpaudit.engine.attacks.stated_law import stated_odds
from dpaudit.engine.games.outcomes import MIN_FAILED_BATCH, Observed, Outcomes, Runs
from dpaudit.engine.games.protocol import NOISELESS_TRIALS, GameTraits, Played, Reading, Setting, require_units
from dpaudit.engine.games.reference import CoinResponse, Reference, Response
from dpaudit.engine.games.run_scores import (
    ManyCandidates,
    Worth,
    in_scope,
    judge_candidate,
    known_move,
    score_trials,
    scored_trials,
)
from dpaudit.engine.games.search import (
    FEWEST_RUNS,
    MIN_SCORED_RUNS,
    Strength,
    Tried,
    halving_rounds,
    pair_worth,
    paired_coins,
    promising,
    rounds,
    strength,
)
from dpaudit.errors import InputError, RunError, require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.teachers import has_separate_teachers

T = TypeVar("T")


@dataclass(frozen=True)
class Proposing:
    """Runs with one seed in both worlds that look for further pairs.

    Attributes:
        pairs: Largest number of pairs to propose, >= 1.
        runs: Number of runs, >= 0.
        weighing: Number of further runs that weigh rare forms of the result, >= 0.
        trials: Number of fresh trials for which these are weighed.
    """

    pairs: int
    runs: int
    weighing: int = 0
    trials: int = 0


MAX_TRIALS = 10_000_000
MIN_PARALLEL_RUNS = 10_000
"""Number of search runs from which separate units evaluate the candidates of an attack."""


@dataclass(frozen=True)
class PairTraits(GameTraits):
    """Facts about a game of two worlds, with usual values; see `GameTraits`."""

    attack: str = "output-set"
    estimator: str = "fair-coins"
    independent_trials: bool = True
    repeats_calls: bool = True
    helps: str = "more `trials`"


@dataclass(frozen=True)
class TwoWorlds:
    """Base of the games of two worlds. `pairs` and `run` must be given; the rest a game may override.

    A game whose attack learns, or which chooses among pairs, has a field `search`: the number of runs with known coins.

    Attributes:
        trials: Number of scored runs of the mechanism, each with a separate coin, in 2 .. 10,000,000.
        stack: Number of runs in one unit, >= 1; a learner with teachers has one.
    """

    trials: int = 1000
    stack: int = 64
    traits: ClassVar[GameTraits]
    parts: ClassVar[tuple[str, ...]] = ("target",)
    """Parts of the data that `pairs` and `run` get, in this order."""
    optional_parts: ClassVar[tuple[str, ...]] = ()
    """Further parts; None stands for one without rows."""
    search_share: ClassVar[float] = 0.0
    """Share of the search runs that choose among pairs; 0 if `pairs` gives only the pairs to use."""
    used_pairs: ClassVar[int] = 1
    """Number of pairs that fresh runs use in turn; after few search runs, the best pair is uncertain."""
    couples_seeds: ClassVar[bool] = True
    """True if runs that choose among pairs are in both worlds with one seed; False for a coin and a seed each."""
    ranks_by_strength: ClassVar[bool] = False
    """True if several measures rank pairs (`strength`); False for one (`worth`)."""
    learns_once: ClassVar[bool] = True
    """True if a confirmatory run reuses the pairs and search runs of the first pass."""
    plays_without_noise: ClassVar[bool] = True
    """True if the mechanism also runs without its noise, which shows what the audit can detect."""
    measures_failures: ClassVar[bool] = False
    """True if the share of failed runs is a measurement, `failed_share`."""

    def __post_init__(self) -> None:
        require(2 <= self.trials <= MAX_TRIALS, f"trials must be in 2 .. {MAX_TRIALS:,}", trials=self.trials)
        require(self.stack >= 1, "stack must be >= 1", stack=self.stack)
        if hasattr(self, "search"):
            fewest = FEWEST_RUNS if self.search_share else 4
            allowed = f"search must be in {fewest} .. {MAX_TRIALS:,}"
            require(fewest <= self.search <= MAX_TRIALS, allowed, search=self.search)
        require(self.limit_s is None or self.limit_s > 0, "a time limit must be > 0 s", limit=self.limit_s)
        if hasattr(self, "relation"):
            relation = None if self.relation is None else Relation(self.relation)
            fits = relation in (None, Relation.ADD_REMOVE, Relation.REPLACE)
            require(fits, "relation must be add-remove or replace", relation=relation)
            object.__setattr__(self, "relation", relation)
            self.state(relation=relation or Relation.ADD_REMOVE)

    def state(self, **facts: Any) -> None:
        """Set facts of the game (`GameTraits`) that depend on its fields."""
        object.__setattr__(self, "traits", replace(self.traits, **facts))

    def for_claim(self, claim: Claim) -> Self:
        """Return the game with the claim's relation, if it has a field `relation` that is None."""
        if claim.relation is Relation.LABEL or getattr(self, "relation", claim.relation) is not None:
            return self
        return replace(self, relation=claim.relation.of_two_inputs)  # type: ignore[call-arg]

    # A source of pairs

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[Any]:
        """Yield pairs of neighbouring inputs, in order of promise; each is a frozen dataclass that can be stored.

        The annotation names the class of the pairs. Each unit that needs pairs makes them again with an equal `rng`.
        """
        raise NotImplementedError

    def run(self, mechanism: Any, pair: Any, runs: Runs) -> Outcomes | Outcome[Outcomes]:
        """Run the mechanism on a pair, once for each coin of `runs`, in that order; notes are optional."""
        raise NotImplementedError

    # What a game may override

    def runs_per_unit(self, mechanism: Any) -> int:
        """Return the number of runs in one unit: one for a learner whose training is that of many teachers."""
        return 1 if has_separate_teachers(mechanism) else self.stack

    @property
    def limit_s(self) -> float | None:
        """Time limit of one run in seconds, after which it fails; None for no limit except that of the unit."""
        return None

    @property
    def reads_full_digits(self) -> bool:
        """True if the attack sees all digits, including low bits; else numbers are rounded to a grid (`Rounding`)."""
        return False

    def worth(self, curve: PrivacyCurve, attack: Any, pair: Any, outcomes: Outcomes) -> float:
        """Return the worth of a pair by its search runs, larger for more evidence; -inf if it cannot be used."""
        return pair_worth(curve, attack, outcomes, full_digits=self.reads_full_digits)

    def notes(
        self, mechanism: Any, rows: tuple[Any, ...], chosen: Sequence[Any], offered: int, tried: Outcomes | None
    ) -> tuple[str, ...]:
        """Return sentences for the report about the chosen pairs, out of those that were offered.

        Args:
            tried: The runs that chose the pairs, on these alone; the subject is the place of the pair. None without.
        """
        if tried is None or self.ranks_by_strength:  # see `judged`
            return ()
        return (f"data sets chosen: {' and '.join(pair.name for pair in chosen)}, out of {offered} pairs",)

    def proposing(self, mechanism: Any) -> Proposing | None:
        """Return how many runs `propose` may make, and how many pairs it gives at most; None for no proposals."""
        return None

    def propose(
        self, mechanism: Any, rows: tuple[Any, ...], proposing: Proposing, seed: Seed, compute: Compute
    ) -> Iterator[Any] | Outcome[Iterator[Any]]:
        """Return further pairs that runs with one seed in both worlds have found, the most promising first."""
        raise NotImplementedError

    def strength(
        self, curve: PrivacyCurve, attack: Any, mechanism: Any, pair: Any, outcomes: Outcomes, compute: Compute
    ) -> Strength | None:
        """Return how strongly the search runs of a pair distinguish the worlds; None if it cannot be used.

        `attack` is None while pairs have too few runs for it.
        """
        return strength(curve, attack, outcomes, full_digits=self.reads_full_digits)

    def ranking(
        self, size: int, tried: Sequence[Tried], strengths: Sequence[Strength], *, by_scores: bool
    ) -> list[int]:
        """Return the positions of the pairs that remain, the best first."""
        return promising(size, tried, strengths, by_scores=by_scores)

    def judged(self, chosen: Sequence[Tried], tried: Sequence[Tried], strengths: Sequence[Strength]) -> tuple[str, ...]:
        """Return sentences for the report about the chosen pairs, out of the last ones that were tried."""
        return ()

    def prepared(self, mechanism: Any, pair: Any, outcomes: Outcomes | None, compute: Compute) -> Any:
        """Return a chosen pair with what its search runs tell about it; None if there were none."""
        return pair

    @property
    def pairs_need_shadows(self) -> bool:
        """True if `pairs` gets the results of the shadow models, after the parts of the data."""
        return False

    def shadow_models(self, setting: Setting, work: Work, seed: Seed, pairs: Unit | None) -> tuple[Unit, ...]:
        """Return units of runs without a pair's coin, on which attacks learn: shadow models.

        The method is called twice: before the pairs are chosen (None), and if that gives no units, with the pairs.
        """
        return ()

    def scores(self, attack: Any, observed: Observed) -> NDArray[np.float64]:
        """Return the score of each fresh run on a pair, larger for world 1."""
        mechanism, pair = observed.mechanism, observed.pair
        stated, move = stated_odds(mechanism, pair, observed.compute), known_move(pair)
        full_digits = self.reads_full_digits
        return score_trials(attack, observed.learned, observed.fresh, stated, move, full_digits=full_digits).score

    @staticmethod
    def scores_by_view(attack: Any, observed: Observed, view: Callable[[Outcomes], Any]) -> NDArray[np.float64]:
        """Return an attack's scores of fresh runs; a failed run counts for world 1, whose record may cause the failure.

        Args:
            view: Function that makes the attacker's view of runs that did not fail.
        Raises: RunError if the attack returns NaN.
        """
        fresh, failed = observed.fresh, observed.fresh.fault != ""
        visible = None if failed.all() else view(fresh.where(~failed))
        return scored_trials(attack, visible, number=fresh.number, truth=fresh.truth, failed=failed).score

    def metrics(self, outcomes: Outcomes, rows: tuple[Any, ...]) -> Mapping[str, float]:
        """Return measurements of the fresh runs of a unit, such as utility."""
        return {"failed_share": float((outcomes.fault != "").mean())} if self.measures_failures else {}

    def metric_names(self, rows: tuple[Any, ...]) -> tuple[str, ...]:
        """Return the names of all measurements that `metrics` may have."""
        return ("failed_share",) if self.measures_failures else ()

    def response(self, setting: Setting) -> Response:
        """Return the response from which the sensitivity is planned."""
        return CoinResponse()

    def finished(self, played: Played, setting: Setting, work: Work, pairs: Unit) -> Played:
        """Return the plan, with what this game alone adds to it."""
        return played

    # The plan

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Return lower limits of the number of units and of those with scores, for a target set of `rows` rows."""
        return -(-self.trials // self.stack) + 1, 1

    def play(self, setting: Setting, work: Work) -> Played:
        played, pairs = self._planned(setting, work)
        ceiling: tuple[Unit, ...] = ()
        if self.plays_without_noise and setting.noiseless is not None:
            # The pairs are chosen again: with noise, near ties may do as well as ties.
            fewer = {name: min(getattr(self, name), NOISELESS_TRIALS) for name in self._counts if name != "stack"}
            ceiling = replace(self, **fewer)._planned(setting.noiseless, work, ", without noise")[0].evidence
        reference = Reference(self.response(setting), self.trials, "trials")
        played = replace(played, ceiling=ceiling, noiseless=bool(ceiling), reference=reference)
        return self.finished(played, setting, work, pairs)

    @property
    def _counts(self) -> tuple[str, ...]:
        """The fields that affect no single run; units do not depend on them, so that a longer audit reuses units."""
        return ("trials", "stack", *(("search",) if hasattr(self, "search") else ()))

    def _planned(self, setting: Setting, work: Work, suffix: str = "") -> tuple[Played, Unit]:
        """Return the units of the fresh runs, of their scores, of shadow models and of choices; and of the pairs."""
        seed = setting.search_seed if self.learns_once else setting.seed
        shadows = self.shadow_models(setting, work, seed, None)
        pairs, learned, unspent, choices = self._chosen(setting, work, seed, shadows, suffix)
        shadows = shadows or self.shadow_models(setting, work, seed, pairs)
        learned += self._runs(setting, work, pairs, unspent, seed.child("search", "runs"), f"search runs{suffix}")
        fresh = self._runs(setting, work, pairs, self.trials, setting.seed.child("fresh"), f"fresh runs{suffix}")
        worths = self._candidate_worths(setting, work, pairs, learned, unspent)
        in_order = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_runs,
                *self._source(setting)[:2],
                setting.informed_attack,
                pairs,
                learned,
                runs,
                worths,
                shadows,
                label=f"scores of {runs[0].label if in_order else f'{self.trials} fresh runs{suffix}'}",
                resources=setting.resources.without_gpu,
            )
            for runs in ([(unit,) for unit in fresh] if in_order else [fresh])
        )
        return Played(scores, trainings=fresh, shadows=shadows, choices=choices), pairs

    def _source(self, setting: Setting) -> tuple[TwoWorlds, Any, tuple[Any, ...]]:
        """Return the arguments that units have in common: the game, the mechanism, and placeholders of the rows."""
        source = replace(self, **{name: getattr(type(self), name) for name in self._counts})
        required = (setting.required_part(part) for part in self.parts)
        return source, setting.mechanism, (*required, *(setting.part_argument(part) for part in self.optional_parts))

    def _runs(self, setting: Setting, work: Work, pairs: Unit, count: int, seed: Seed, label: str) -> tuple[Unit, ...]:
        per_unit = self.runs_per_unit(setting.mechanism)
        require_units(-(-count // per_unit))
        source = self._source(setting)
        return work.split(make_runs, count, per_unit, *source, pairs, seed=seed, label=label, **setting.unit_options)

    def _chosen(
        self, setting: Setting, work: Work, seed: Seed, shadows: tuple[Unit, ...], suffix: str
    ) -> tuple[Unit, tuple[Unit, ...], int, tuple[Unit, ...]]:
        """Return units of the pairs to use, and of search runs on them; the number of runs left; units with notes."""
        source, cheap = self._source(setting), setting.resources.without_gpu
        options, returns = setting.unit_options, type(self).pairs
        pair_seed, places, proposed, tried = seed.child("pairs"), None, tuple[Unit, ...](), tuple[Unit, ...]()
        unspent = int(getattr(self, "search", 0))
        proposing = self.proposing(setting.mechanism) if self.search_share else None
        if proposing is not None:
            unspent -= proposing.runs + proposing.weighing
            own_seed, label = seed.child("proposed"), f"pairs by runs with one seed{suffix}"
            unit = work.add(propose_pairs, *source, proposing, seed=own_seed, label=label, returns=returns, **options)
            proposed = (unit,)
        plan, skipped = self._search_rounds(setting, pair_seed, proposing)
        for turn, (size, count, remaining) in enumerate(plan):
            tried += work.split(
                try_pairs,
                size,
                max(1, min(-(-size // 4), self.stack // max(1, count))),
                *source,
                proposed,
                places,
                skipped=(0, 0) if turn else skipped,
                count=count,
                pair_seed=pair_seed,
                seed=seed.child("search", "pairs", turn),
                label=f"{size} pairs tried, {count} runs each{suffix}: pairs",
                **options,
            )
            unspent -= size * count
            places = work.add(
                shortlist,
                *source,
                proposed,
                setting.attack,
                self._search_curve(setting.mechanism),
                remaining,
                tried,
                final=turn == len(plan) - 1,
                pair_seed=pair_seed,
                label=f"best {remaining} of {size} pairs{suffix}",
                resources=cheap,
            )
        if plan:
            label = f"search runs on the best pairs{suffix}"
            tried = (work.add(runs_on, places, tried, label=label, resources=cheap),)
        label, before = f"neighbouring inputs{suffix}", shadows if self.pairs_need_shadows else ()
        arguments = (*source, proposed, places, tried, before)
        pairs = work.add(take_pairs, *arguments, seed=pair_seed, label=label, returns=returns, resources=cheap)
        choices = (*proposed, *((places,) if places is not None else ()), pairs)
        return pairs, tried, max(0, unspent), choices

    def _search_rounds(
        self, setting: Setting, pair_seed: Seed, proposing: Proposing | None
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
        """Return the rounds of the search among pairs, as `rounds`, and the pairs that are skipped, as in `try_pairs`.

        There are no rounds if there is nothing to choose.
        """
        if not self.search_share:
            return [], (0, 0)
        rows = tuple(getattr(setting.parts, part) for part in (*self.parts, *self.optional_parts))
        offered = sum(1 for _ in self.pairs(setting.mechanism, rows, pair_seed.rng()))
        runs = int(self.search_share * getattr(self, "search", 0))
        if offered <= self.used_pairs and not self.ranks_by_strength:
            return [], (0, 0)
        if not self.couples_seeds:  # few runs with a coin each may lack a world
            return [(offered, runs // offered, self.used_pairs)], (0, 0)
        if not self.ranks_by_strength:
            return halving_rounds(runs, offered, self.used_pairs), (0, 0)
        spent, more = (proposing.runs + proposing.weighing, proposing.pairs) if proposing else (0, 0)
        plan = rounds(runs - spent, offered, self.used_pairs, more)
        first = plan[0][0] - more
        return plan, (first, offered - first)

    def _search_curve(self, mechanism: Any) -> PrivacyCurve:
        """Return the claim against which pairs are compared; that of epsilon 1 if there is none."""
        try:
            claim = mechanism.claim()
        except InputError:
            claim = Claim(1.0)
        if claim.is_point and math.isinf(claim.epsilon):
            claim = Claim(1.0)
        return self.traits.compared(replace(claim, relation=self.traits.relation)).claim.curve

    def _candidate_worths(
        self, setting: Setting, work: Work, pairs: Unit, learned: tuple[Unit, ...], runs: int
    ) -> tuple[Unit, ...]:
        """Return one unit for each candidate of the attack, which evaluates it; () if one unit is as fast."""
        if runs < MIN_PARALLEL_RUNS or not isinstance(setting.attack, ManyCandidates):
            return ()
        candidates = setting.attack.candidates()
        return tuple(
            work.add(
                judge_candidate,
                candidate,
                setting.mechanism,
                pairs,
                learned,
                full_digits=self.reads_full_digits,
                label=f"worth of candidate {number}/{len(candidates)}",
                resources=setting.resources.without_gpu,
            )
            for number, candidate in enumerate(candidates if len(candidates) > 1 else (), 1)
        )


@dataclass(frozen=True, eq=False)
class Places:
    """Places of pairs among those that are offered, the best first."""

    places: NDArray[np.int64]


@unit
def propose_pairs(
    game: TwoWorlds, mechanism: Any, rows: tuple[Any, ...], proposing: Proposing, compute: Compute, *, seed: Seed
) -> Outcome[Iterator[Any]]:
    """Return the pairs that runs with one seed in both worlds have found."""
    with limited_threads(compute.threads):
        proposed = with_notes(game.propose(mechanism, rows, proposing, seed, compute))
        return replace(proposed, value=iter(list(proposed.value)))


def _numbered(
    game: TwoWorlds, mechanism: Any, rows: tuple[Any, ...], proposed: tuple[Sequence[Any], ...], seed: Seed
) -> Iterator[tuple[int, Any, bool]]:
    """Yield each pair with its place, first those that are offered; True if it was proposed."""
    offered = ((pair, False) for pair in game.pairs(mechanism, rows, seed.rng()))
    by_search = ((pair, True) for pair in itertools.chain(*proposed))
    for place, (pair, is_proposed) in enumerate(itertools.chain(offered, by_search)):
        yield place, pair, is_proposed


@unit
def try_pairs(
    game: TwoWorlds,
    mechanism: Any,
    rows: tuple[Any, ...],
    proposed: tuple[Sequence[Any], ...],
    places: Places | None,
    compute: Compute,
    *,
    skipped: tuple[int, int],
    count: int,
    first: int,
    last: int,
    pair_seed: Seed,
    seed: Seed,
) -> Iterator[Outcomes]:
    """Run each of some pairs `count` times, two with one seed; the subject is the pair's place.

    The pairs are those with numbers `first` to `last` - 1 of `places`, or of all pairs but those that are skipped: a
    number of them, from a place on.
    """
    if places is None:
        wanted = [place + (skipped[1] if place >= skipped[0] else 0) for place in range(first, last)]
    else:
        wanted = places.places[first:last].tolist()
    number = np.arange(count)
    for place, pair, _ in _numbered(game, mechanism, rows, proposed, pair_seed):
        if place in wanted:
            paired, own_seed = game.couples_seeds, seed.child(place)
            truth = paired_coins(count) if paired else own_seed.child("coins").rng().random(count) < 0.5
            runs = Runs(truth, number, own_seed, rows, compute, game.limit_s, paired)
            parts = runs.parts(game.stack + game.stack % 2)
            with limited_threads(compute.threads):
                outcomes = Outcomes.joined([with_notes(game.run(mechanism, pair, part)).value for part in parts])
            yield replace(outcomes, subject=np.full(count, place))


def with_notes(result: T | Outcome[T]) -> Outcome[T]:
    """Return what a game gave, with its notes if there are any."""
    return result if isinstance(result, Outcome) else Outcome(result)


@unit
def shortlist(
    game: TwoWorlds,
    mechanism: Any,
    rows: tuple[Any, ...],
    proposed: tuple[Sequence[Any], ...],
    attack: Any,
    curve: PrivacyCurve,
    remaining: int,
    tried: tuple[Sequence[Outcomes], ...],
    compute: Compute,
    *,
    final: bool,
    pair_seed: Seed,
) -> Outcome[Places]:
    """Return the strongest pairs by all their runs, among those of the last round.

    Raises: RunError if no pair can be used.
    """
    by_place: dict[int, list[Outcomes]] = {}
    for outcomes in itertools.chain(*tried):
        by_place.setdefault(int(outcomes.subject[0]), []).append(outcomes)
    most = max(map(len, by_place.values()), default=0)
    last = [
        Tried(
            place,
            pair,
            in_scope(Outcomes.joined(by_place[place]).renumbered(), full_digits=game.reads_full_digits),
            is_proposed,
        )
        for place, pair, is_proposed in _numbered(game, mechanism, rows, proposed, pair_seed)
        if len(by_place.get(place, ())) == most > 0
    ]
    by_scores = final or min((len(each.outcomes.truth) for each in last), default=0) >= MIN_SCORED_RUNS
    measured: list[Strength | None] = []
    with limited_threads(compute.threads):
        for each in last:
            if game.ranks_by_strength:
                judge = attack if by_scores else None
                measured.append(game.strength(curve, judge, mechanism, each.pair, each.outcomes, compute))
            else:
                worth = game.worth(curve, attack, each.pair, each.outcomes)
                measured.append(None if worth == -math.inf else Strength(0.0, 0.0, 0.0, excess=worth))
    usable = [(each, strength) for each, strength in zip(last, measured, strict=True) if strength is not None]
    if not usable:
        failures = [failure for outcomes in itertools.chain(*tried) for failure in outcomes.failures]
        raise RunError(f"the code fails on all pairs of inputs that were tried. {' '.join(failures[:1])}".rstrip())
    last, strengths = [each for each, _ in usable], [strength for _, strength in usable]
    if game.ranks_by_strength:
        best = game.ranking(remaining, last, strengths, by_scores=by_scores)
    else:
        best = sorted(range(len(last)), key=lambda place: -strengths[place].excess)[:remaining]
    notes = game.judged([last[place] for place in best], last, strengths) if final else ()
    return Outcome(Places(np.array([last[place].place for place in best], np.int64)), notes=notes)


@unit
def runs_on(places: Places, tried: tuple[Sequence[Outcomes], ...]) -> Outcomes:
    """Return the search runs on the chosen pairs; the subject is the place among them."""
    parts = [
        replace(outcomes, subject=np.full(len(outcomes.truth), position))
        for position, place in enumerate(places.places.tolist())
        for outcomes in itertools.chain(*tried)
        if outcomes.subject[0] == place
    ]
    return Outcomes.joined(parts)


@unit
def take_pairs(
    game: TwoWorlds,
    mechanism: Any,
    rows: tuple[Any, ...],
    proposed: tuple[Sequence[Any], ...],
    places: Places | None,
    tried: tuple[Outcomes, ...],
    shadows: tuple[Any, ...],
    compute: Compute,
    *,
    seed: Seed,
) -> Outcome[Iterator[Any]]:
    """Return the pairs at these places, or all that are offered, each with what its search runs tell about it."""
    outcomes = Outcomes.joined(tried) if tried else None
    with limited_threads(compute.threads):
        offered = [pair for _, pair, _ in _numbered(game, mechanism, (*rows, *shadows), proposed, seed)]
        chosen = []
        for position, pair in enumerate(offered if places is None else [offered[place] for place in places.places]):
            on_pair = None
            if outcomes is not None:
                on_pair = in_scope(outcomes.where(outcomes.subject == position), full_digits=game.reads_full_digits)
            chosen.append(game.prepared(mechanism, pair, on_pair, compute))
    return Outcome(iter(chosen), notes=game.notes(mechanism, rows, chosen, len(offered), outcomes))


def coins_of_runs(last: int, seed: Seed) -> NDArray[np.bool_]:
    """Return the coins of runs 0 to `last` - 1."""
    return seed.child("coins").rng().random(last) < 0.5


def coins_of_scores(replays: Sequence[Scores], arguments: Mapping[str, Any]) -> list[NDArray[np.bool_]] | None:
    """Return the coins of scored runs by the seed of the runs, which are numbered."""
    (seed,) = {runs["seed"] for runs in arguments["fresh"]}
    coins = coins_of_runs(max(runs["last"] for runs in arguments["fresh"]), seed)
    return [coins[scores.canary] for scores in replays]


@unit
@measuring(lambda game, rows: game.metric_names(rows))
def make_runs(
    game: TwoWorlds,
    mechanism: Any,
    rows: tuple[Any, ...],
    pairs: Sequence[Any],
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[Outcomes]:
    """Make runs `first` to `last` - 1, on the pairs in turn, each in a world by a fair coin.

    Raises: TrainingError if all of them fail in the same way.
    """
    number, coins = np.arange(first, last), coins_of_runs(last, seed)
    parts, notes = [], tuple[str, ...]()
    for place, pair in enumerate(pairs):
        mine = number % len(pairs) == place
        if mine.any():
            runs = Runs(coins[first:][mine], number[mine], seed.child("runs"), rows, compute, game.limit_s)
            with limited_threads(compute.threads):
                results = with_notes(game.run(mechanism, pair, runs))
            parts.append(
                results.value if len(pairs) == 1 else replace(results.value, subject=np.full(mine.sum(), place))
            )
            notes += results.notes
    outcomes = Outcomes.joined(parts)
    outcomes.require_some_success()
    return Outcome(outcomes, notes=notes, metrics=game.metrics(outcomes, rows), failures=outcomes.failures)


@unit
@tossing(coins_of_scores)
def score_runs(
    game: TwoWorlds,
    mechanism: Any,
    attack: Any,
    pairs: Sequence[Any],
    learned: tuple[Outcomes, ...],
    fresh: tuple[Outcomes, ...],
    worths: tuple[Worth, ...],
    shadows: tuple[Any, ...],
    compute: Compute,
) -> Outcome[Iterator[Scores]]:
    """Return the scores of fresh runs as one replay; the attack learns from search runs on the same pair.

    Raises: RunError if all runs failed.
    """
    runs = Outcomes.joined(fresh)
    searched = Outcomes.joined(learned) if learned else runs.where(np.zeros(len(runs.truth), np.bool_))
    failed = np.concatenate([searched.fault, runs.fault]) != ""
    alike = len(np.unique(np.concatenate([searched.ending, runs.ending]))) == 1
    if failed.all() and alike and len(failed) >= MIN_FAILED_BATCH:
        raise RunError(f"each of {len(runs.truth)} runs failed. The first: {runs.failures[0]}")
    chosen = attack.best([each.worth for each in worths]) if worths else attack
    score = np.zeros(len(runs.truth))
    with limited_threads(compute.threads):
        for place, pair in enumerate(pairs):
            mine, before = ((outcomes.subject == place) | (len(pairs) == 1) for outcomes in (runs, searched))
            if mine.any():
                on_pair = searched.where(before), runs.where(mine)
                observed = Observed(mechanism, pair, *on_pair, shadows, compute)
                score[mine] = game.scores(chosen, observed)
    usual = (searched if len(searched.truth) else runs).usual_ending
    odd = (runs.ending != usual) & (runs.ending == np.char.add(runs.width.astype(str), " numbers"))
    unlike = runs.where(odd)
    words = zip(unlike.name, unlike.ending, strict=True)
    failures = tuple(f"{name}: it returned {ending}, most runs {usual}" for name, ending in words)
    return Outcome(iter((scored(0, runs.truth, score, runs.number),)), failures=failures)
