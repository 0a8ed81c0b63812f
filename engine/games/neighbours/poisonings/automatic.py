"""The search over data sets: every poisoning that fits is tried, and what shows most goes to the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, fitted
from dpaudit.engine.games.neighbours.poisonings.records import InsertRecords
from dpaudit.errors import require
from dpaudit.registry import catalogue, load, register

INCLUDED: Mapping[Relation, tuple[Relation, ...]] = {
    Relation.LABEL: (Relation.LABEL,),
    Relation.REPLACE: (Relation.LABEL, Relation.REPLACE),
    Relation.ADD_REMOVE: (Relation.ADD_REMOVE,),
}
"""Poisonings of which relations make neighbours of a relation: a changed label is a replaced record."""


@register("poisoning", "automatic", source="Lu et al. (2022), section 4.1; the search by trainings is ours")
@dataclass(frozen=True)
class Automatic:
    """Tries every poisoning that fits on a part of the search trainings, and takes the one that shows most.

    What is tried has its own trainings, and so have the attack and the verdict: choosing costs no confidence.
    Poisonings that refuse the data, and those all of whose trainings fail, are left out.

    Attributes:
        relation: How the data sets may differ: "label", "replace" (labels among it) or "add-remove".
        share: Of the search trainings of the game, spent on trying and evenly so, in (0, 1).
        among: Names of the poisonings that are tried; () tries all there are.
    """

    searches: ClassVar[bool] = True

    relation: Relation = Relation.LABEL
    share: float = 0.5
    among: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation(self.relation))
        object.__setattr__(self, "among", tuple(self.among))
        require(0 < self.share < 1, "share must be in (0, 1)", share=self.share)
        own = getattr(type(self), "registered_name", "")
        require(own not in self.among, f"among must name poisonings other than {own}", among=self.among)

    def candidates(self, mechanism: Any) -> dict[str, Poisoning]:
        """What is tried on a mechanism, by name, in the order of the names."""
        names = self.among or tuple(catalogue("poisoning"))
        parts: dict[str, Any] = {name: load("poisoning", name) for name in names}
        made = {name: part() for name, part in parts.items() if not getattr(part, "searches", False)}
        found: dict[str, Poisoning] = {
            name: fitted(poisoning, mechanism)
            for name, poisoning in made.items()
            if poisoning.relation in INCLUDED[self.relation]
        }
        if self.relation is Relation.ADD_REMOVE:
            found |= {
                f"coming {name}": fitted(InsertRecords(poisoning), mechanism)
                for name, poisoning in made.items()
                if poisoning.relation is not Relation.ADD_REMOVE
            }
            found.pop(InsertRecords.registered_name, None)  # type: ignore[attr-defined]  # one of those that were just made
        require(bool(found), f"no poisoning makes {self.relation} neighbours", among=names)
        return found
