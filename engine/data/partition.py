"""Which rows play which part: trained on, the adversary's own, held out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpaudit.errors import DataError, SpecError, require, shortened
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.examples import Rows
from dpaudit.variables import hide_variable_values


def loaded_rows(data: Any, seed: int) -> Rows:
    """The rows of a data set of a spec; no message shows the value of a variable."""
    try:
        rows: Rows = data.load(seed=seed)
    except DataError as err:
        raise DataError(
            hide_variable_values(str(err), data)
        ) from None  # its cause would show what the message must not
    except MemoryError as err:
        raise DataError(f"the data must fit into memory, {shortened(data)} do not; ask for fewer rows") from err
    if not isinstance(rows, Rows):
        raise DataError(
            "the data's method `load` must give dpaudit.Examples, or rows with `name`, `digest`, `take` and a length; "
            f"got {type(rows).__name__}"
        )
    return rows


@dataclass(frozen=True)
class Partition:
    """How a data set is divided; shares are of its rows and sum to at most 1.

    Attributes:
        target: Share the mechanism is run on; its first rows are the canaries.
        reference: Share the adversary trains M' on.
        test: Share that measures the model's utility; it also holds the fresh points of membership games.
        validation: Share for early stopping, with true labels.
        order: "random" draws the rows with the audit's seed; "given" keeps their order (a time split: reference first,
            as day 0 comes before day 1).
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
        """The parts of a data set."""
        count = len(data)
        rows = rng.permutation(count) if self.order == "random" else np.arange(count)
        ends = np.cumsum([0.0, self.reference, self.validation, self.target, self.test])
        cuts = np.minimum(np.round(ends * count).astype(int), count)
        reference, validation, target, test = (data.take(rows[first:last]) for first, last in itertools.pairwise(cuts))
        if not len(target):
            raise SpecError(
                f"the target share {self.target:g} of {count} rows is empty; use more data or a larger share"
            )
        return Parts(target, reference, test, validation)


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of one data set, each of the class of the whole; `shared` names each by its content."""

    target: Any
    reference: Any
    test: Any
    validation: Any

    def shared(self) -> dict[str, Rows]:
        """Every part that has rows, under the name units ask for it by."""
        return {self.name(part): getattr(self, part) for part in PART_NAMES if len(getattr(self, part))}

    def name(self, part: str) -> str:
        """The shared name of a part; "" when it has no rows."""
        rows: Rows = getattr(self, part)
        return shared_name(part, rows) if len(rows) else ""

    def names(self, *parts: str) -> tuple[str, ...]:
        """The shared names of those of the parts that have rows."""
        return tuple(name for name in map(self.name, parts) if name)


def shared_name(part: str, rows: Rows) -> str:
    """The name a large input is shared under: its part, and its content (it stands for it in a unit's key)."""
    return f"{part}:{rows.digest[:24]}"


PART_NAMES = ("target", "reference", "test", "validation")
