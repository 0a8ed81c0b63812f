"""Private predictors as a user would write them: noisy votes of neighbours and of teachers, and their defects."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit import Claim, Relation, from_predictor
from dpaudit.claims import GaussianDP
from tests.bank import Case

PURE = Claim(1.0, relation=Relation.ADD_REMOVE)
REPLACED = Claim(1.0, relation=Relation.REPLACE)
GAUSSIAN = Claim.of(GaussianDP(0.5), relation=Relation.ADD_REMOVE, delta=1e-6)
NEAR_GAUSSIAN = Claim(1.0, 1e-5, relation=Relation.ADD_REMOVE)


class Neighbours:
    """The 15 nearest records vote by their labels; one record moves two counts by one."""

    scale = 2.0  # 2 / epsilon

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        near = np.argsort(((X - query) ** 2).sum(axis=1), kind="stable")[:15]
        return np.bincount(y[near], minlength=2).astype(float)

    def noise(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        return rng.laplace(0, self.scale, 2)

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        votes = self.count(query, *data, rng)
        return int(np.argmax(votes + self.noise(query, *data, rng)))


def changed(honest: type = Neighbours, **parts: Any) -> type:
    """Return a predictor with other methods or settings."""
    return type("Changed", (honest,), parts)


def noise_of(noise: Callable[..., Any]) -> type:
    """Return neighbours whose noise is a function of predictor, query, records and generator."""
    return changed(noise=noise)


def voted(choose: Callable[..., Any]) -> type:
    """Return neighbours whose answer is a function of exact votes and of a call that draws noise."""

    def answer(self: Any, query: Any, data: Any, rng: Any) -> int | None:
        chosen = choose(self.count(query, *data, rng), lambda: self.noise(query, *data, rng))
        return None if chosen is None else int(chosen)

    return changed(answer=answer)


BARE = noise_of(lambda self, query, X, y, rng: 0.0)
"""The winner is released without noise."""


class NoiseOfTheWinner(Neighbours):
    """Noise is added to the largest count alone, as if it moved alone."""

    scale = 1.0

    def answer(self, query: Any, data: Any, rng: Any) -> int:
        votes = self.count(query, *data, rng)
        votes[votes.argmax()] += rng.laplace(0, self.scale)
        return int(votes.argmax())


def seeded(self: Any, number: float) -> Any:
    """Return the noise of neighbours that a number determines."""
    return np.random.default_rng(int(number) % 2**32).laplace(0, self.scale, 2)


class NoiseDrawnOnce(Neighbours):
    """All queries share the noise of the first one."""

    first_noise: Any = None

    def noise(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        if self.first_noise is None:
            self.first_noise = super().noise(query, X, y, rng)
        return self.first_noise


class NoisyScreening(Neighbours):
    """Screening and answer are both noisy, with half of the budget each."""

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        votes = self.count(query, *data, rng)
        if votes.max() + rng.laplace(0, 2.0) < 10:
            return None
        return int(np.argmax(votes + rng.laplace(0, 4.0, 2)))


class WeightedByDistance(Neighbours):
    """Near neighbours have more than one vote; the noise is for one vote."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        distance = ((X - query) ** 2).sum(axis=1)
        near = np.argsort(distance, kind="stable")[:15]
        return np.bincount(y[near], weights=1 / (0.1 + distance[near]), minlength=2)


class WithinARadius(Neighbours):
    """All records within a distance vote; if there are none, the answer says so."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        near = ((X - query) ** 2).sum(axis=1) <= 0.25
        return np.bincount(y[near], minlength=2).astype(float)

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        if not self.count(query, *data, rng).sum():
            return None
        return super().answer(query, data, rng)


class KnowsItsRecords(Neighbours):
    """A query that is a training record gets that record's label."""

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        same = np.flatnonzero((data[0] == query).all(axis=1))
        return int(data[1][same[-1]]) if len(same) == 1 else super().answer(query, data, rng)


class DrawnUntilRight(Neighbours):
    """Noise is redrawn up to three times, until the answer is correct."""

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        exact = int(self.count(query, *data, rng).argmax())
        for _ in range(3):
            answer = super().answer(query, data, rng)
            if answer == exact:
                break
        return answer


class BudgetSpent(Neighbours):
    """After ten answers there is no noise."""

    queries = 0

    def noise(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        self.queries += 1
        return super().noise(query, X, y, rng) if self.queries <= 10 else 0.0


class NoSubsampling(Neighbours):
    """The scale is right for neighbours among a fifth of the records; all vote."""

    rate = 0.2

    @property
    def scale(self) -> float:  # type: ignore[override]
        return 2 / math.log1p((math.e - 1) / self.rate)


class Subsampling(NoSubsampling):
    """Neighbours among a fifth of the records, drawn for each answer."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        sampled = rng.random(len(y)) < self.rate
        return super().count(query, X[sampled], y[sampled], rng)


class Exponential:
    """The exponential mechanism on the votes of the 15 nearest."""

    factor = 0.5

    def answer(self, query: Any, data: Any, rng: Any) -> int:
        votes = Neighbours.count(self, query, *data, rng)  # type: ignore[arg-type]
        weights = np.exp(self.factor * (votes - votes.max()))
        return int(rng.random() < weights[1] / weights.sum())


class Teachers:
    """Ten teachers with record i at teacher i mod 10; each votes for the nearer class mean. One vote moves."""

    teachers = 10
    scale = 2.0
    means: Any = None

    def parts(self, n: int, rng: Any) -> Any:
        return [np.arange(teacher, n, self.teachers) for teacher in range(self.teachers)]

    def taught(self, X: Any, y: Any) -> Any:
        return [X[y == label].mean(axis=0) if (y == label).any() else np.full(X.shape[1], 1e6) for label in (0, 1)]

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        if self.means is None:
            self.means = [self.taught(data[0][rows], data[1][rows]) for rows in self.parts(len(data[1]), rng)]
        votes = [int(((query - mean_1) ** 2).sum() < ((query - mean_0) ** 2).sum()) for mean_0, mean_1 in self.means]
        return self.released(np.bincount(votes, minlength=2).astype(float), rng)

    def released(self, votes: Any, rng: Any) -> int | None:
        return int(np.argmax(votes + rng.laplace(0, self.scale, 2)))


class TeachersAtRandom(Teachers):
    """Each record goes to a teacher drawn at random."""

    def parts(self, n: int, rng: Any) -> Any:
        teacher = rng.integers(0, self.teachers, n)
        return [np.flatnonzero(teacher == teacher_number) for teacher_number in range(self.teachers)]


BARE_TEACHERS = changed(Teachers, released=lambda self, votes, rng: int(votes.argmax()))
"""The winning class is released without noise."""


class OverlappingTeachers(Teachers):
    """Each record is in four of the parts."""

    def parts(self, n: int, rng: Any) -> Any:
        parts = super().parts(n, rng)
        return [np.concatenate([parts[(first + more) % self.teachers] for more in range(4)]) for first in range(10)]


class GaussianTeachers(Teachers):
    """Normal noise of deviation 2 sqrt(2) on two counts that move by one: 0.5-GDP."""

    sigma = 2 * math.sqrt(2)

    def released(self, votes: Any, rng: Any) -> int:
        return int(np.argmax(votes + rng.normal(0, self.sigma, 2)))


class Votes:
    """Counts of the labels within a distance; noise is added by the audit."""

    weight = 1

    def votes(self, queries: Any, data: Any, rng: Any) -> Any:
        X, y = data
        near = ((queries[:, None] - X[None]) ** 2).sum(axis=2) <= 0.25
        return self.weight * np.stack([(near & (y == label)).sum(axis=1) for label in (0, 1)], axis=1)


@functools.lru_cache(maxsize=100_000)
def _memoised(query: bytes, X: bytes, y: bytes) -> int:
    rows = np.frombuffer(y, np.int64)
    table = np.frombuffer(X, np.float32).reshape(len(rows), -1)
    point = np.frombuffer(query, np.float32)
    answer = Neighbours().answer(point, (table, rows), np.random.default_rng())
    assert answer is not None
    return answer


class Memoised:
    """Honest in one call: the process memoises the answer to a query about data."""

    def answer(self, query: Any, data: Any, rng: Any) -> int:
        X, y = (np.ascontiguousarray(part) for part in data)
        return _memoised(np.asarray(query, np.float32).tobytes(), X.astype(np.float32).tobytes(), y.tobytes())


_KEPT: dict[bytes, Any] = {}


class KeptNoise(Neighbours):
    """Honest in one call: the noise of a query is drawn once in the process."""

    def noise(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        key = np.asarray(query).tobytes() + np.asarray(X).tobytes() + np.asarray(y).tobytes()
        if key not in _KEPT:
            _KEPT[key] = super().noise(query, X, y, rng)
        return _KEPT[key]


MAJORITY_OF_FIVE = voted(lambda votes, noise: sum(int(np.argmax(votes + noise())) for _ in range(5)) >= 3)
"""The most frequent of five noisy answers, each with the full budget."""


class ScaledByTheData(Neighbours):
    """Features are scaled by the records' range, so an outlier decides which records are near."""

    def range(self, X: Any) -> tuple[Any, Any]:
        return X.min(axis=0), X.max(axis=0)

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        low, high = self.range(X)
        wide = np.where(high > low, high - low, 1.0)
        return super().count((query - low) / wide, (X - low) / wide, y, rng)


def _case(defect: Any, twin: Any = None, claim: Claim = PURE, **more: Any) -> Case:
    """Return a case with two classes."""
    make_twin = None if twin is None else (lambda: from_predictor(twin, claim))
    return Case(lambda: from_predictor(defect, claim), make_twin, **more)


BANK = {
    "without noise": _case(BARE, Neighbours, true=math.inf),
    "without noise, replaced": _case(BARE, Neighbours, REPLACED, true=math.inf),
    "without noise, delta": _case(BARE, Neighbours, NEAR_GAUSSIAN, true=math.inf),
    "half the noise": _case(changed(scale=1.0), true=2.0),
    "half the noise, replaced": _case(changed(scale=1.0), claim=REPLACED, true=2.0),
    "noise of the winner alone": _case(NoiseOfTheWinner),
    "seeded by the query": _case(
        noise_of(lambda self, query, X, y, rng: seeded(self, np.abs(query).sum() * 1e6)), true=math.inf
    ),
    "seeded by the data": _case(
        noise_of(
            lambda self, query, X, y, rng: seeded(self, np.abs(X).sum() * 1e3 + y.sum() + np.abs(query).sum() * 1e6)
        ),
        true=math.inf,
    ),
    "noise drawn once": _case(NoiseDrawnOnce),
    "normal for Laplace": _case(
        noise_of(lambda self, query, X, y, rng: rng.normal(0, self.scale, 2)),
        missed="epsilon is exceeded in the tails alone, where few trials are",
    ),
    "exact screening": _case(
        voted(lambda votes, noise: None if votes.max() < 10 else np.argmax(votes + noise())),
        NoisyScreening,
        true=math.inf,
    ),
    "exact where clear": _case(
        voted(lambda votes, noise: np.argmax(votes if abs(votes[1] - votes[0]) >= 5 else votes + noise()))
    ),
    "weighted by distance": _case(WeightedByDistance),
    "within a radius": _case(WithinARadius, changed(WithinARadius, answer=Neighbours.answer), true=math.inf),
    "knows its records": _case(KnowsItsRecords, true=math.inf),
    "drawn until right": _case(DrawnUntilRight),
    "budget spent": _case(BudgetSpent, true=math.inf),
    "no subsampling": _case(NoSubsampling, Subsampling, true=math.log1p((math.e - 1) / 0.2)),
    "exponential without the half": _case(changed(Exponential, factor=1.0), Exponential, true=2.0),
    "teachers without noise": _case(BARE_TEACHERS, Teachers, true=math.inf),
    "teachers without noise, replaced": _case(BARE_TEACHERS, TeachersAtRandom, REPLACED, true=math.inf),
    "overlapping teachers": _case(OverlappingTeachers, TeachersAtRandom, true=4.0),
    "shifting teachers": _case(
        changed(Teachers, parts=lambda self, n, rng: np.array_split(np.arange(n)[::-1], self.teachers))
    ),
    "teachers that agree": _case(
        changed(
            Teachers,
            released=lambda self, votes, rng: (
                None if abs(votes[0] - votes[1]) <= 2 else Teachers.released(self, votes, rng)
            ),
        ),
        true=math.inf,
    ),
    "half of normal noise": _case(changed(GaussianTeachers, sigma=math.sqrt(2)), GaussianTeachers, GAUSSIAN),
    "no normal noise": _case(changed(GaussianTeachers, sigma=0.0), None, GAUSSIAN, true=math.inf),
    "votes counted three times": Case(
        lambda: from_predictor(changed(Votes, weight=3), GAUSSIAN, sigma=2.0),
        lambda: from_predictor(Votes, GAUSSIAN, sigma=2.0),
    ),
    "one draw for all classes": _case(
        noise_of(lambda self, query, X, y, rng: rng.laplace(0, self.scale)), true=math.inf
    ),
    "classes with votes": _case(
        voted(lambda votes, noise: np.argmax(np.where(votes > 0, votes + noise(), -np.inf))), true=math.inf
    ),
    "majority of five": _case(MAJORITY_OF_FIVE, changed(MAJORITY_OF_FIVE, scale=10.0)),
    "scaled by the data": _case(
        ScaledByTheData,
        changed(ScaledByTheData, range=lambda self, X: (np.full(X.shape[1], -10.0), np.full(X.shape[1], 10.0))),
    ),
    "noise on shares": _case(noise_of(lambda self, query, X, y, rng: 15 * rng.laplace(0, self.scale / len(y), 2))),
    "bounded noise": _case(
        noise_of(
            lambda self, query, X, y, rng: np.clip(rng.laplace(0, self.scale, 2), -2 * self.scale, 2 * self.scale)
        ),
        voted(lambda votes, noise: np.clip(votes + noise(), 0, 15).argmax()),
        true=math.inf,
    ),
}
