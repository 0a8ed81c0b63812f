"""Tests that every source of pairs inherits, and a way to play a game of two worlds in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Resources
from dpaudit.actors.work import Work, value_of
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.partition import Partition, Parts
from dpaudit.engine.games.protocol import Reading, Setting, StopRule
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


class PairSourceKit:
    """Base of the tests of a source of pairs.

    A subclass gives a small game, data, and mechanisms: one that leaks all, and others made by failing runs. All are
    played in this process, at a fixed seed: with another seed, a false rejection has probability at most 0.05.
    """

    game: ClassVar[TwoWorlds]
    data: ClassVar[Any]
    leaks: ClassVar[Any]
    always_fails: ClassVar[Any]
    fails_at_random: ClassVar[Any]
    fails_by_record: ClassVar[Any]
    attack: ClassVar[Any] = None
    split: ClassVar[Partition] = Partition(0.7, 0.0, 0.3)
    has_ceiling: ClassVar[bool] = False

    def audited(self, mechanism: Any, folder: Path, *, stop: StopRule | None = None, **fields: Any) -> Any:
        """Return the report of an audit."""
        settings: dict[str, Any] = {} if self.attack is None else {"attack": self.attack}
        settings |= {} if stop is None else {"stop": stop, "estimator": "betting"}
        entry = Audit(mechanism, self.data, game=replace(self.game, **fields), split=self.split, **settings)
        spec = AuditSpec((entry,), seed=1, run=RunOptions(runner="in-process", figures=False, repeats=0))
        return audit(spec, output=folder, quiet=True)

    def test_a_leak_is_found_and_its_run_is_resumed(self, tmp_path: Path) -> None:
        first = self.audited(self.leaks, tmp_path)
        (result,) = first.results
        assert result.verdict is Verdict.VIOLATION
        assert result.failed_trials == ()
        again = self.audited(self.leaks, tmp_path)
        assert (again.executed, again.results[0].epsilon) == (0, result.epsilon)

    def test_units_of_another_size_give_the_same_coins(self, tmp_path: Path) -> None:
        tables = [
            self.audited(self.leaks, tmp_path / str(stack), stack=stack).results[0].scores() for stack in (20, 50)
        ]
        truths = [table.sort_values("canary")["truth"].to_numpy() for table in tables]
        assert (truths[0] == truths[1]).all()
        assert 0.2 < truths[0].mean() < 0.8

    def test_reading_in_order_stops_at_a_leak(self, tmp_path: Path) -> None:
        report = self.audited(self.leaks, tmp_path, stop=StopRule(), stack=self.game.trials // 10)
        (result,) = report.results
        assert result.verdict is Verdict.VIOLATION
        assert len(result.scores()) < self.game.trials

    def test_code_that_always_fails_has_no_verdict(self, tmp_path: Path) -> None:
        (result,) = self.audited(self.always_fails, tmp_path).results
        assert result.verdict is Verdict.FAILED

    def test_runs_that_fail_at_random_are_no_violation(self, tmp_path: Path) -> None:
        (result,) = self.audited(self.fails_at_random, tmp_path).results
        assert result.verdict is Verdict.NO_VIOLATION
        assert len(result.failed_trials) > 0

    def test_runs_that_fail_by_the_record_are_a_violation(self, tmp_path: Path) -> None:
        (result,) = self.audited(self.fails_by_record, tmp_path).results
        assert result.verdict is Verdict.VIOLATION

    def test_the_ceiling_is_played_without_noise(self, tmp_path: Path) -> None:
        if not self.has_ceiling:
            pytest.skip("the game measures no ceiling")
        (result,) = self.audited(self.leaks, tmp_path).results
        assert result.sensitivity.noiseless
        assert result.sensitivity.maximum.lower > 2
