"""The search of the game `neighbours` over poisonings: each is tried on trainings of its own, the best one is taken.

What is tried learns on one half of its trainings and is judged on the other by the bound it would give; where no bound
shows anything, by how many guesses are right. Search and fresh trainings come afterwards, with other seeds, so the
verdict pays nothing for the choice.

Source: Lu et al. (2022), section 4.1, the maximisation over data sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.actors.unit import Inputs
from dpaudit.engine.games.neighbours_units import ChooseWorlds, SampleSummaries, usual_width
from dpaudit.engine.games.summaries import summaries_in, summary_widths
from dpaudit.engine.views.summary_view import SummaryView
from dpaudit.errors import InputError, RunError, shortened
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.protocols import Compute, TrainingError

REFUSED = b"refused"
"""Metadata of an empty table: why there is nothing."""
TOLD = b"told"
"""Metadata of the table of the best: what the report says of the choice."""


@dataclass(frozen=True)
class OfferWorlds(ChooseWorlds):
    """Makes two data sets that may be taken, or says why not."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A worlds table, or an empty one."""
        try:
            return super().run(inputs, compute)
        except InputError as err:
            return _nothing(str(err))


@dataclass(frozen=True)
class TrySummaries(SampleSummaries):
    """Trainings on two data sets that may be taken."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """As `SampleSummaries`, or an empty table where there are no data sets or all trainings failed."""
        reason = _refusal(inputs.tables[self.worlds])
        if reason:
            return _nothing(reason)
        try:
            return super().run(inputs, compute)
        except TrainingError as err:
            return _nothing(str(err))


@dataclass(frozen=True)
class Offer:
    """A poisoning that was tried.

    Attributes:
        name: For people.
        worlds: Key of the unit that made its data sets.
        samples: Keys of the units with trainings on them.
    """

    name: str
    worlds: str
    samples: tuple[str, ...]


@dataclass(frozen=True)
class TakeBest:
    """The data sets of the poisoning that shows most.

    Attributes:
        attack: What tells the worlds apart.
        offers: What was tried, in a fixed order; the first of equals is taken.
    """

    attack: Any
    offers: tuple[Offer, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A worlds table; what was tried, in words, in its metadata.

        Raises: RunError when no poisoning fits.
        """
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        shown, refused = {}, {}
        for offer in self.offers:
            tables = [inputs.tables[key] for key in offer.samples]
            reasons = [reason for reason in map(_refusal, tables) if reason]
            if reasons:
                refused[offer.name] = reasons[0]
                continue
            with threadpool_limits(compute.threads):
                shown[offer.name] = what_it_shows(self.attack, pa.concat_tables(tables).combine_chunks())
        if not shown:
            raise RunError(f"no poisoning fits: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")
        best = max(shown, key=lambda name: shown[name])
        (worlds,) = (offer.worlds for offer in self.offers if offer.name == best)
        words = [f"{name} {format_lower(bound)} ({right:.0%} right)" for name, (bound, right) in shown.items()]
        words += [f"{name} does not fit: {shortened(why)}" for name, why in refused.items()]
        told = f"of {len(self.offers)} poisonings {best} was taken; bounds on their own trainings: {', '.join(words)}"
        return inputs.tables[worlds].replace_schema_metadata({TOLD: told})


def what_it_shows(attack: Any, trainings: pa.Table) -> tuple[float, float]:
    """The bound of every second training, learned from the others, and the share of right guesses among them."""
    there = trainings.filter(pa.array(summary_widths(trainings) == usual_width(trainings)))
    truth, every = there["truth"].to_numpy(), np.ones(there.num_rows, np.bool_)
    summaries, judged = summaries_in(there, every), np.arange(there.num_rows) % 2 == 1
    if min(len(np.unique(truth[part])) for part in (judged, ~judged)) < 2:
        return 0.0, 0.5
    scores = attack.score(SummaryView(summaries[~judged], truth[~judged], summaries[judged]))
    estimator = FairCoins()
    bound = estimator.bound([estimator.tally(Scores(scores, truth[judged]))])
    return bound.lower, float(((scores > 0) == truth[judged]).mean())


def _nothing(reason: str) -> pa.Table:
    return pa.table({"trial": pa.array([], pa.int32())}).replace_schema_metadata({REFUSED: reason})


def _refusal(table: pa.Table) -> str:
    """Why there is nothing; "" where there is something."""
    stored: dict[bytes, bytes] = table.schema.metadata or {}
    return stored.get(REFUSED, b"").decode()
