"""Tests that every source of pairs inherits, and a way to play a game of two worlds in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources
from dpaudit.actors.work import Work, value_of
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.partition import Parts
from dpaudit.engine.games.protocol import Reading, Setting
from dpaudit.engine.games.two_worlds import TwoWorlds
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute


def played_scores(
    game: TwoWorlds, mechanism: Any, target: Any, *, test: Any = None, attack: Any = None, seed: int = 0
) -> Scores:
    """Return the scores of the fresh runs of a game on these rows."""
    none = target.take(np.arange(0))
    parts = Parts(target, none, none if test is None else test, none)
    setting = Setting(
        mechanism, None, attack or OutputSet(), None, parts, True, Seed(seed), Resources(), 1_000, Reading.TOGETHER
    )
    work, tables = Work(), dict[str, Any]()
    (evidence,) = game.play(setting, work).evidence
    needed = {evidence.key}
    for unit in reversed(work.units.values()):
        needed |= set(unit.needs) if unit.key in needed else set()
    for key in (key for key in work.units if key in needed):
        tables[key] = work.units[key].task.run(Inputs(parts.shared(), tables), Compute())
    (scores,) = value_of(evidence, tables[evidence.key])
    return scores
