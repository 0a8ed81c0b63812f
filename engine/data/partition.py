"""Division of a data set into parts: target, reference, test and validation."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.consent import hide_variable_values
from dpaudit.errors import DataError, SpecError, require, shortened
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.examples import Examples, Rows
from dpaudit.registry import register


def loaded_rows(data: Any, seed: int) -> Rows:
    """Return the rows of a data set of a spec; error messages hide the values of variables."""
    try:
        rows: Rows = data.load(seed=seed)
    except DataError as err:
        raise DataError(hide_variable_values(str(err), data)) from None  # the cause would show the values
    except MemoryError as err:
        raise DataError(f"the data {shortened(data)} do not fit into memory; ask for fewer rows") from err
    if not isinstance(rows, Rows):
        raise DataError(
            "the data's method `load` must return dpaudit.Examples, or rows with `name`, `digest`, `take` and a "
            f"length; got {type(rows).__name__}"
        )
    return rows


@dataclass(frozen=True)
class Partition:
    """Division of a data set by shares of its rows, which sum to at most 1.

    Attributes:
        target: Share on which the mechanism runs; its first rows are the canaries.
        reference: Share on which the attacker trains the reference model.
        test: Share that measures the model's utility and holds the fresh points of membership games.
        validation: Share for early stopping, with true labels.
        order: "random" to assign rows by the audit's seed; "given" to keep their order (a split by time, with the
            reference first).
    """

    target: float = 0.4
    reference: float = 0.4
    test: float = 0.2
    validation: float = 0.0
    order: Literal["random", "given"] = "random"

    def __post_init__(self) -> None:
        check_fields(self)
        shares = (self.target, self.reference, self.test, self.validation)
        require(all(0 <= share <= 1 for share in shares), "shares of the data must be in [0, 1]", shares=shares)
        require(
            sum(shares) <= 1 + 1e-9,
            "shares of the data must sum to at most 1",
            target=self.target,
            reference=self.reference,
            test=self.test,
            validation=self.validation,
        )
        require(self.target > 0, "the target share must be > 0", target=self.target)

    def divide(self, data: Rows, rng: np.random.Generator) -> Parts:
        """Return the parts of a data set. Rows in shards are neither read nor drawn."""
        count = len(data)
        state = json.dumps(rng.bit_generator.state) if self.order == "random" else ""
        ends = np.cumsum([0.0, self.reference, self.validation, self.target, self.test])
        cuts = np.minimum(np.round(ends * count).astype(int), count).tolist()
        ranges = [RowRange(count, state, first, last) for first, last in itertools.pairwise(cuts)]
        take = getattr(data, "take_range", lambda rows: data.take(rows.positions().astype(np.int64)))
        reference, validation, target, test = map(take, ranges)
        if not len(target):
            raise SpecError(
                f"the target share {self.target:g} of {count} rows is empty; use more data or a larger share"
            )
        return Parts(target, reference, test, validation)


@functools.lru_cache(maxsize=1)
def _shuffled(count: int, state: str) -> NDArray[np.unsignedinteger[Any]]:
    """Return what `Generator.permutation` draws in a state, which is JSON, in up to 4 bytes a row instead of 8."""
    rng = np.random.default_rng()
    rng.bit_generator.state = json.loads(state)
    rows = np.arange(count, dtype=np.min_scalar_type(count))
    rng.shuffle(rows)
    rows.flags.writeable = False
    return rows


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a data set in a random or the given order, which every process draws itself."""

    count: int  # rows of the data set
    state: str  # of the generator that shuffles them, as JSON; "" for the given order
    first: int
    last: int  # behind the last row

    def positions(self) -> NDArray[np.unsignedinteger[Any]]:
        """Return the positions of the rows in the data set, shape (last - first,)."""
        if self.state:
            return _shuffled(self.count, self.state)[self.first : self.last]
        return np.arange(self.first, self.last, dtype=np.min_scalar_type(self.count))


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of one data set, each of the same class as the data set."""

    target: Any
    reference: Any
    test: Any
    validation: Any

    def shared(self) -> dict[str, Rows]:
        """Return each part that has rows, by its shared name."""
        return {self.name(part): getattr(self, part) for part in PART_NAMES if len(getattr(self, part))}

    def name(self, part: str) -> str:
        """Return the shared name of a part; "" if it has no rows."""
        rows: Rows = getattr(self, part)
        return shared_name(part, rows) if len(rows) else ""

    def names(self, *parts: str) -> tuple[str, ...]:
        """Return the shared names of these parts, without empty ones."""
        return tuple(name for name in map(self.name, parts) if name)


def shared_name(part: str, rows: Rows) -> str:
    """Return the name under which units share a large input: its part and a hash of its content."""
    return f"{part}:{rows.digest[:24]}"


PART_NAMES = ("target", "reference", "test", "validation")


@register("data", "joined", source="the day before and the day itself; a training part and a test part")
@dataclass(frozen=True)
class Joined:
    """Rows of one data set, followed by those of another with the same columns and classes.

    With a split in the given order, the first one can be the reference part or the second one the test part.

    Attributes:
        first: First data set.
        second: Second data set.
    """

    first: Any = field(metadata={"kind": "data"})
    second: Any = field(metadata={"kind": "data"})

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows of both, each loaded with this seed.

        Raises: DataError if their columns or classes differ.
        """
        first, second = self.first.load(seed=seed), self.second.load(seed=seed)
        if isinstance(first.features, pa.Table) and isinstance(second.features, pa.Table):
            fit = first.features.schema.equals(second.features.schema)
        else:
            fit = isinstance(first.features, np.ndarray) and isinstance(second.features, np.ndarray)
            fit = fit and first.features.shape[1:] == second.features.shape[1:]
        if not fit or (first.classes, first.categorical) != (second.classes, second.categorical):
            raise DataError(
                f"joined data sets must have the same columns and classes, got {first.name} with {first.classes} "
                f"classes and {second.name} with {second.classes}"
            )
        if isinstance(first.features, pa.Table):
            features: Any = pa.concat_tables([first.features, second.features]).combine_chunks()
        else:
            features = np.concatenate([first.features, second.features])
        labels = np.concatenate([first.labels, second.labels])
        both: Examples = first.with_(features=features, labels=labels)
        return both
