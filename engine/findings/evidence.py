"""Evidence as Arrow: one codec for each kind that a game may leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from dpaudit.actors.values import decode, encode
from dpaudit.engine.findings.score_table import ScoreTable
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.estimators.answers import AnswerCounts
from dpaudit.estimators.posteriors import Posteriors
from dpaudit.estimators.scores import Scores, StepScores


class EvidenceTable(Protocol):
    """How one kind of evidence travels and is stored."""

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, each with what it is."""
        ...

    def encode(self, evidence: Iterable[Any]) -> pa.Table:
        """The table of several pieces of evidence."""
        ...

    def decode(self, table: pa.Table) -> Iterator[Any]:
        """The pieces one at a time, in order."""
        ...


@dataclass(frozen=True)
class Stored:
    """Evidence as every other value is stored."""

    kind: type[Any]
    schema: ClassVar[pa.Schema] = pa.schema([])

    def encode(self, evidence: Iterable[Any]) -> pa.Table:
        """The table of several pieces of evidence."""
        return encode(evidence, self.kind)

    def decode(self, table: pa.Table) -> Iterator[Any]:
        """The pieces, in order."""
        return iter(decode(table, self.kind))


CODECS: dict[type[Any], EvidenceTable] = {
    Scores: ScoreTable(),
    StepScores: ScoreTable(StepScores),
    AnswerCounts: Stored(AnswerCounts),
    AnsweredQuery: Stored(AnsweredQuery),
    Posteriors: Stored(Posteriors),
}
"""The codec of each kind of evidence."""
