"""Search for two neighbouring data sets by trainings that share a seed.

If a learner draws all noise from its seed, two trainings with one seed differ by the effect of the records alone: the
move. Trainings with several seeds on one data set show the noise. The move in units of the noise predicts how well the
two data sets can be told apart, after a handful of trainings instead of hundreds.

A choice has several data sets that differ in one record. One training on each of k data sets gives the moves of all
k (k - 1) / 2 pairs. The search costs no confidence: the verdict uses fresh trainings only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.claims import Relation
from dpaudit.engine.games.joint_noise import JointNoise
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds, box, features_of, replace_rows, shortened_rows
from dpaudit.engine.games.outcomes import Outcomes, Runs, checked, failure, result_of
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner
from dpaudit.mechanisms.queries.row_function import CallOutcome

Floats = NDArray[np.float64]
Places = tuple[int, int]

NOISE_SEEDS = 10
"""Trainings with different seeds on one data set, which show the noise."""
MOVE_SEEDS = 2
"""Trainings on each other data set of the first choice, with the first of those seeds; one for later choices."""
FEW_ROWS, MIN_ROWS = 21, 4
"""Rows of crafted data sets."""
RARE_ROWS = 2
"""Rows of the rare class in unbalanced data sets; code may refuse a single class."""
FAR_SIDES, FARTHER = 1e4, 1e3
"""Distance of far records from the box, in its sides, and the factor to records that are even farther."""
FAR_TRAININGS = 120
"""Trainings from which on far records are tried."""
NEAR_SIDES, WIDE_SIDES = 10.0, 100.0
"""Distances, in sides of the box, at which code with narrow and with wide limits on records limits them already."""
MAX_UNCOUPLED = 0.5
"""Largest difference between the moves of two seeds, as a share of the noise, if the learner follows its seed."""
MAX_FAILING = 3
"""Largest number of candidates of which trainings on one data set fail."""
OFFERED_PER_TURN = 3
"""Data sets of poisonings that are tried after each crafted choice."""
SMALLEST_PROBABILITY = 1e-45
"""Smallest probability whose logarithm is taken."""
MAX_PROBE_COLUMNS = 16
"""Largest number of columns in which models are probed one by one."""
SMALL_STEP = 0.05
"""Length of steps from the middle and the lower corner at which models are probed, in sides of the box."""


@dataclass(frozen=True, eq=False)
class CandidateWorlds:
    """Two data sets of a search."""

    name: str  # name of the poisoning, or description of the data sets
    worlds: Worlds
    farther: Worlds | None = None  # if records lie outside the box: the data sets with records farther away


@dataclass(frozen=True, eq=False)
class Record:
    """A record in which data sets differ.

    Attributes:
        name: Description of its place and class.
        features: Its features, shape (d,).
        label: Its class.
        farther: For a record outside the box: features even farther outside. None inside the box.
    """

    name: str
    features: NDArray[np.float32]
    label: int
    farther: NDArray[np.float32] | None = None


NO_RECORD = None
"""In place of the record of a data set that lacks it."""


@dataclass(frozen=True, eq=False)
class Choice:
    """Data sets that differ in one record, or in copies of it.

    Attributes:
        name: Description of the common rows.
        others: The common rows.
        records: The record of each data set.
        pairs: D and D' of all neighbours among the data sets, by their positions.
        points: Points at which models predict, shape (m, d).
        copies: Number of records that differ.
        longest: Largest length of a row; longer ones are shortened. None for no limit.
        worlds: The only pair, if a poisoning made it; the other fields but `name` are not used then.
    """

    name: str
    others: Examples
    records: tuple[Record | None, ...]
    pairs: tuple[Places, ...]
    points: NDArray[np.float32]
    copies: int = 1
    longest: float | None = None
    worlds: Worlds | None = None

    @classmethod
    def of_worlds(cls, name: str, worlds: Worlds) -> Choice:
        return cls(name, worlds.rows, (NO_RECORD, NO_RECORD), ((0, 1),), worlds.points, worlds=worlds)

    @property
    def far_places(self) -> tuple[int, ...]:
        """Positions of data sets whose record is outside the box."""
        return tuple(place for place, record in enumerate(self.records) if record and record.farther is not None)

    def data_set(self, place: int, *, farther: bool = False) -> Examples:
        """Return the data set at a position; its records are the first rows. With `farther`, they are farther away."""
        if self.worlds is not None:
            return self.worlds.world(bool(place))
        record, others = self.records[place], self.others
        if record is not NO_RECORD:
            point = record.farther if farther and record.farther is not None else record.features
            features = np.concatenate([np.repeat(point[None], self.copies, 0), features_of(others)])
            labels = np.concatenate([np.full(self.copies, record.label, np.int64), others.labels])
            others = others.with_(features=features, labels=labels)
        return others if self.longest is None else shortened_rows(others, self.longest)

    def pair_name(self, places: Places) -> str:
        if self.worlds is not None:
            return self.name
        first, second = (record.name if record else "no record" for record in (self.records[place] for place in places))
        return f"{self.name}: {first}, or {second}"

    def worlds_of(self, places: Places, *, farther: bool = False) -> Worlds:
        """Return the neighbours at these positions as one table. With `farther`, far records are farther away."""
        if self.worlds is not None:
            return self.worlds
        world_zero, world_one = (self.data_set(place, farther=farther) for place in places)
        differing = np.arange(self.copies)
        rows_zero = world_zero.take(differing) if len(world_zero) == len(world_one) else None
        return replace_rows(world_one, differing, rows_zero, world_one.take(differing), self.points)


@dataclass(frozen=True, eq=False)
class PredictedPair:
    """Neighbouring data sets with the predicted effect of their difference.

    Attributes:
        choice: The choice that they belong to.
        places: Positions of D and D' in it.
        sum_of_moves: Sum over numbers of move over noise: the loss of independent Laplace noise, up to a factor.
        length_of_move: Length of the move in standard deviations of the noise: the loss of normal noise.
    """

    choice: Choice
    places: Places
    sum_of_moves: float
    length_of_move: float


def crafted_choices(
    data: Examples, relation: Relation, copies: int, *, far: bool, longest: float | None = None
) -> Iterator[Choice]:
    """Return choices of common rows with records at extreme places, the most general first.

    The common rows are those of the data, or crafted: few or many, at the middle of the box, in one corner, all but
    one in one corner or halved between two corners, with balanced classes or nearly all in one class. A learner
    with a bound on its gradients has its full sensitivity where the common rows are balanced around the record, or
    where both records are misclassified.

    Args:
        data: Rows of numbers.
        relation: How the data sets differ.
        copies: Number of records that differ.
        far: True to add records far outside the box around the data.
        longest: Largest length of a row; None for no limit.
    """
    low, high = box(data)
    records: tuple[Record | None, ...] = tuple(_records(low, high, far=far))
    pairs: tuple[Places, ...] = tuple(itertools.combinations(range(len(records)), 2))
    if relation is Relation.LABEL:
        of_place = [None if record is None else record.features.tobytes() for record in records]
        pairs = tuple((first, second) for first, second in pairs if of_place[first] == of_place[second])
    elif relation is Relation.ADD_REMOVE:
        records = (NO_RECORD, *records)
        pairs = tuple((0, place) for place in range(1, len(records)))
    for name, others in _common_rows(data, copies):
        yield Choice(name, others, records, pairs, _probe_points(low, high), copies, longest)


def _records(low: NDArray[np.float32], high: NDArray[np.float32], *, far: bool) -> Iterator[Record]:
    """Return records at the corners of the box, next to its middle, in it and far outside, of two classes."""
    middle, half = (low + high) / 2, (high - low) / 2
    columns = np.arange(len(low))
    alternating, first = np.where(columns % 2 == 1, -1.0, 1.0), np.where(columns == 0, 1.0, 0.0)
    directions = {
        "the lower corner": -np.ones(len(low)),
        "the upper corner": np.ones(len(low)),
        "every other column down": alternating,
        "every other column up": -alternating,
        "the first column down": -first,
        "the first column up": first,
    }
    used = set()
    for name, direction in directions.items():
        if direction.tobytes() in used:
            continue
        used.add(direction.tobytes())
        inside, beyond, farther = (
            (middle + scale * half * direction).astype(np.float32) for scale in (1.0, FAR_SIDES, FARTHER * FAR_SIDES)
        )
        for label in (0, 1):
            yield Record(f"{name} (class {label})", inside, label)
        if far:
            for label in (0, 1):
                yield Record(f"far beyond {name} (class {label})", beyond, label, farther)
    for label in (0, 1):
        yield Record(f"the middle (class {label})", middle.astype(np.float32), label)


def _common_rows(data: Examples, copies: int) -> Iterator[tuple[str, Examples]]:
    """Return the names and rows of data sets without the record."""
    low, high = box(data)
    middle = (low + high) / 2
    many = len(data) - copies
    few = min(FEW_ROWS - 1, many)
    yield "the data", data.take(np.arange(copies, len(data)))
    for count, place, classes in (
        (many, "the middle", "nearly all of class 0"),
        (few, "the lower corner", "balanced"),
        (few, "two corners", "balanced"),
        (few, "the lower corner, one at the upper", "balanced"),
        (many, "the middle", "balanced"),
        (many, "two corners", "one class in each"),
        (few, "the middle", "nearly all of class 0"),
        (many, "the lower corner", "nearly all of class 0"),
        (few, "the lower corner", "nearly all of class 0"),
        (many, "the lower corner", "balanced"),
        (few, "two corners", "one class in each"),
        (few, "the middle", "balanced"),
        (MIN_ROWS - 1, "two corners", "balanced"),
        (many, "the middle", "nearly all of class 1"),
        (few, "the lower corner", "nearly all of class 1"),
        (many, "two corners", "balanced"),
    ):
        if count < MIN_ROWS - 1:
            continue
        upper = np.arange(count) < (1 if place.endswith("one at the upper") else count // 2)
        start = middle if place == "the middle" else low
        features = np.where(
            upper[:, None], high if "upper" in place or place == "two corners" else start, start
        ).astype(np.float32)
        labels = np.arange(count) // 2 % data.classes if place == "two corners" else np.arange(count) % data.classes
        if classes == "one class in each":
            labels = upper.astype(np.int64)
        elif classes != "balanced":
            common = int(classes[-1])
            labels = np.where(np.arange(count) < RARE_ROWS, 1 - common, common)
        yield f"{count} rows at {place}, {classes}", data.with_(features=features, labels=labels.astype(np.int64))


def _probe_points(low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the corners, the middle, and steps along single columns; they determine a linear model."""
    side, middle = high - low, (low + high) / 2
    columns = np.arange(min(len(low), MAX_PROBE_COLUMNS))
    steps = np.zeros((len(columns), len(low)), np.float32)
    steps[columns, columns] = side[columns]
    moved = (low + steps, middle + SMALL_STEP * steps, low + SMALL_STEP * steps)
    return np.concatenate([low[None], high[None], middle[None], *moved]).astype(np.float32)


def summarised(mechanism: Any, worlds: Worlds, runs: Runs) -> Outcomes:
    """Train once for each coin, on D or D', and return the summaries."""
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, worlds, runs)
    if not isinstance(mechanism, SummarisedLearner):
        # The log-odds that the models of any learner predict at the points.
        pairs = zip(runs.truth.tolist(), runs.seeds(), strict=True)
        trainings = [TrainingRun(worlds.row_numbers(world), seed) for world, seed in pairs]
        models = train_runs(mechanism, worlds.rows, trainings, compute=runs.compute)
        return runs.gave([_answers(model, worlds) for model in models], dtype=np.float32)

    def summary(world: bool, seed: Seed) -> Any:
        # A copy for each training: it may modify its data.
        train, points = worlds.world(world).writable(), worlds.points.copy()
        return mechanism.summarise(train, points, seed=seed.sequence(), compute=runs.compute)

    return runs.each(summary, dtype=np.float32)


def _in_bulk(mechanism: SampledLearner, worlds: Worlds, runs: Runs) -> Outcomes:
    """Sample the summaries of each world together, from one seed; in paired runs, both worlds share it."""
    results: list[CallOutcome] = [CallOutcome("nothing", np.empty(0))] * len(runs.truth)
    seed = runs.seed.child(int(runs.number[0]))
    for world in (False, True):
        places, data = np.flatnonzero(runs.truth == world), worlds.world(world)
        if not len(places):
            continue
        of_seed = seed.child(0 if runs.paired else int(world)).sequence()
        try:
            vectors = mechanism.sample_summaries(data, worlds.points, len(places), seed=of_seed, compute=runs.compute)
            of_world = [checked(vector) for vector in vectors]
        except BaseException as err:  # user code may raise anything; the exception is the outcome of these trials
            of_world = [failure(err)] * len(places)
        for place, result in zip(places.tolist(), of_world, strict=True):
            results[place] = result
    return runs.gave(results, dtype=np.float32)


def _answers(model: Any, worlds: Worlds) -> CallOutcome:
    """Return logits or log-probabilities minus those of the last class, shape (m (K - 1),)."""
    if isinstance(model, TrainingError):
        return CallOutcome(type(model.__cause__ or model).__name__, np.empty(0), str(model))

    def scale() -> Any:
        if isinstance(model, LogitModel):
            values = model.logits(worlds.points.copy()).astype(np.float64)
        else:
            values = np.log(np.maximum(model.probabilities(worlds.points.copy()), SMALLEST_PROBABILITY))
        return (values[:, :-1] - values[:, -1:]).ravel()

    return result_of(scale)


class CoupledTrainings:
    """Trainings of a mechanism in which the same number means the same seed.

    Args:
        trainings: Largest number of trainings.
    """

    def __init__(self, mechanism: Any, trainings: int, *, seed: Seed, limit_s: float | None, compute: Compute) -> None:
        self.left = trainings
        self._mechanism, self._seed, self._limit_s, self._compute = mechanism, seed, limit_s, compute

    def train(self, data: Examples, points: NDArray[np.float32], count: int) -> Outcomes:
        """Return the summaries of trainings on `data` with the first `count` seeds."""
        self.left -= count
        every = np.ones(len(data), np.bool_)
        runs = Runs(np.zeros(count, np.bool_), np.arange(count), self._seed, (), self._compute, self._limit_s)
        return summarised(self._mechanism, Worlds(data, every, every, points), runs)

    def follow_the_seed(self, data: Examples, points: NDArray[np.float32]) -> bool:
        """True if two trainings with one seed on one data set give the same numbers."""
        first, second = (self.train(data, points, 1) for _ in range(2))
        return bool(first.ending[0] == second.ending[0] and np.array_equal(first.vector, second.vector))

    def limit_records(self, data: Examples, points: NDArray[np.float32]) -> bool:
        """True if code limits records: ones far outside the box and ones much farther outside have the same effect.

        All records are far outside, two thirds of them on one side, with a class for each side. Without a limit, a
        model that separates them shrinks with their distance. A single far record would not tell: a bounded loss limits
        its effect. At `WIDE_SIDES` such a model has nearly vanished, so there effects must be equal but
        for rounding.
        """
        low, high = box(data)
        middle, half = (low + high) / 2, (high - low) / 2
        upper = np.minimum(np.arange(FEW_ROWS - 1) % 3, 1)
        side = np.where(upper == 1, 1.0, -1.0)[:, None] * half
        results = []
        for distance in (0.0, NEAR_SIDES, WIDE_SIDES, FAR_SIDES):
            rows = data.with_(features=(middle + distance * side).astype(np.float32), labels=upper.astype(np.int64))
            results.append(self.train(rows, points, 1))
        if len({samples.ending[0] for samples in results}) > 1 or not len(results[0].vector):
            return False
        none, near, wide, far = (samples.vector.astype(np.float64) for samples in results)
        tolerance = 0.25 * np.abs(near - none) + 0.02 * np.abs(near - none).max()
        is_equal = (np.abs(far - near) <= tolerance).all() or np.abs(far - wide).max() <= 1e-5 * np.abs(
            wide - none
        ).max()
        return bool(is_equal and (far != none).any())

    def predicted(self, choice: Choice, seeds: int, *, tests_clipping: bool) -> tuple[list[PredictedPair], float]:
        """Return all pairs of a choice with their predictions, and how far moves depend on the seed.

        That dependence is the median difference between moves by two seeds, in units of the difference of trainings
        with two seeds; 0 with a single seed. With `tests_clipping`, records outside the box are used if records even
        farther outside have the same effect.
        """
        places = range(len(choice.records))
        for start in (0, places[-1]):  # code may fail with the first record
            noise = self.train(choice.data_set(start), choice.points, NOISE_SEEDS)
            usual = noise.usual_ending
            if len(noise.vector) and (noise.ending[:seeds] == usual).all():
                break
        else:
            return [], 0.0
        base = _matrix(noise, usual)
        moves: list[Floats | None] = []
        for place in places:
            samples = noise if place == start else self.train(choice.data_set(place), choice.points, seeds)
            same = bool((samples.ending[:seeds] == usual).all())
            moves.append(_matrix(samples, usual)[:seeds] - base[:seeds] if same else None)
        usable = [
            place
            for place in places
            if place not in choice.far_places
            or not tests_clipping
            or self._is_clipped(choice.data_set(place, farther=True), choice.points, usual, moves[place], base)
        ]
        sizes, pairs = JointNoise.of(base), list[PredictedPair]()
        for both in choice.pairs:
            first, second = (moves[place] for place in both)
            if not set(both) <= set(usable) or (first is None and second is None):  # trainings on both fail
                continue
            if first is None or second is None:
                pairs.append(PredictedPair(choice, both, np.inf, np.inf))
            else:
                move = (second - first).mean(0)
                pairs.append(PredictedPair(choice, both, sizes.sum_of_moves(move), sizes.length_of_move(move)))
        inside = [move for place, move in enumerate(moves) if place not in (start, *choice.far_places)]
        return pairs, _seed_dependence(inside, base)

    def _is_clipped(
        self, rows: Examples, points: NDArray[np.float32], usual: str, move: Floats | None, base: Floats
    ) -> bool:
        """True if a record even farther outside the box has the same effect."""
        if move is None:
            return False
        farther = self.train(rows, points, 1)
        if farther.ending[0] != usual:
            return False
        return np.allclose(_matrix(farther, usual)[0], base[0] + move[0], rtol=1e-3, atol=1e-9)


def _matrix(samples: Outcomes, usual: str) -> Floats:
    return np.asarray(samples.where(samples.ending == usual).summaries(), np.float64)


def _seed_dependence(moves: Sequence[Floats | None], base: Floats) -> float:
    """Return the median difference between moves by two seeds, in units of the difference of their trainings."""
    moved = [move for move in moves if move is not None]
    if not moved or len(moved[0]) < 2:
        return 0.0
    by_seed = np.abs(base[1:] - base[:-1]).mean(0)
    differences = np.abs(np.stack([move[1] - move[0] for move in moved]))
    noisy = by_seed > 0
    return float(np.median(differences[:, noisy] / by_seed[noisy])) if noisy.any() else 0.0


def strongest(pairs: Sequence[PredictedPair], count: int) -> list[PredictedPair]:
    """Return the pairs with the largest predicted effects, by both predictions in turn, at most one of a choice each.

    Few pairs of which one data set fails come first: a failure may be due to chance. After the best pair of each
    choice, further ones fill the places that are left.
    """
    failing = [pair for pair in pairs if np.isinf(pair.length_of_move)]
    others = [pair for pair in pairs if not np.isinf(pair.length_of_move)]
    rankings = []
    for ranked in (
        sorted(others, key=lambda pair: -pair.length_of_move),
        sorted(others, key=lambda pair: -pair.sum_of_moves),
    ):
        best: dict[int, PredictedPair] = {}
        for pair in ranked:
            best.setdefault(id(pair.choice), pair)
        chosen = {id(pair) for pair in best.values()}
        rankings.append([*best.values(), *(pair for pair in ranked if id(pair) not in chosen)])
    in_turn = {id(pair): pair for turn in zip(*rankings, strict=True) for pair in turn}
    return [*failing[:MAX_FAILING], *in_turn.values()][:count]


def predicted_candidates(
    coupled: CoupledTrainings,
    data: Examples,
    offers: Sequence[CandidateWorlds],
    *,
    relation: Relation,
    copies: int,
    far: bool,
    longest: float | None,
    count: int,
) -> list[CandidateWorlds] | None:
    """Return at most `count` candidates with the largest predicted effects; None if moves depend on the seed.

    Args:
        coupled: Source of trainings.
        data: Rows of numbers, scaled as the game scales them.
        offers: Candidates of poisonings, which are predicted as well.
        relation: How crafted data sets differ.
        copies: Number of records in which they differ.
        far: True to try records far outside the box around the data, if the learner limits records.
        longest: Largest length of a row; None for no limit.
        count: Largest number of candidates.
    """
    first = next(crafted_choices(data, relation, copies, far=False, longest=longest))
    if not coupled.follow_the_seed(first.data_set(0), first.points):
        return None
    far = far and coupled.left >= FAR_TRAININGS and coupled.limit_records(data, first.points)
    first = next(crafted_choices(data, relation, copies, far=far, longest=longest))
    pairs, dependence = coupled.predicted(first, MOVE_SEEDS, tests_clipping=True)
    if dependence > MAX_UNCOUPLED:
        return None
    far = any(place in first.far_places for pair in pairs for place in pair.places)
    crafted = itertools.islice(crafted_choices(data, relation, copies, far=far, longest=longest), 1, None)
    rest = iter([Choice.of_worlds(offer.name, offer.worlds) for offer in offers if far or offer.farther is None])
    in_turn = ((choice, *itertools.islice(rest, OFFERED_PER_TURN)) for choice in crafted)
    for choice in itertools.chain(itertools.chain.from_iterable(in_turn), rest):
        if coupled.left < NOISE_SEEDS + len(choice.records) - 1:
            break
        pairs += coupled.predicted(choice, 1, tests_clipping=False)[0]
    far_offers = {offer.name: offer.farther for offer in offers}
    candidates = []
    for pair in strongest(pairs, count):
        choice, places = pair.choice, pair.places
        beyond = far_offers.get(choice.name)
        if choice.worlds is None and set(places) & set(choice.far_places):
            beyond = choice.worlds_of(places, farther=True)
        candidates.append(CandidateWorlds(choice.pair_name(places), choice.worlds_of(places), beyond))
    return candidates
