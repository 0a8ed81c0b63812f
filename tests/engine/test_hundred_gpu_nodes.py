"""Unit costs and joined trainings of the simulated hundred GPU nodes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.hundred_gpu_nodes import (
    Rates,
    _steps_of_part,
    deaths,
    kind_of,
    learner_of,
    small_plans,
    work_of,
)
from benchmarks.simulated_ray import Cluster, Work, play
from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Work as Graph
from dpaudit.actors.work import unit
from dpaudit.engine.planning.plan import make_plan
from dpaudit.mechanisms.learners.pate import PateFm
from papers import image_tables
from papers.reproduction import Options
from papers.training_operations import training_flops
from tests.actors.test_simulated_cluster import FREE

ON_GPU = Resources(1, 1.0)
FEW = PateFm(1.0, teachers=40, teacher_steps=100, student_steps=500)


@dataclass(frozen=True)
class Votes:
    count: int


@unit
def teach(learner: Any, *, first: int, last: int) -> Votes:
    return Votes(last - first)


@unit
def tally(votes: tuple[Votes, ...]) -> Votes:
    return Votes(sum(vote.count for vote in votes))


@unit
def study(learner: Any, votes: Votes) -> Votes:
    return votes


def training_in_units() -> tuple[Unit, ...]:
    """Return four units of ten teachers each, the tally of their votes on a CPU, and the student."""
    graph = Graph()
    teachers = graph.split(teach, 40, 10, FEW, label="teachers", resources=ON_GPU)
    votes = graph.add(tally, teachers, label="votes", resources=Resources())
    student = graph.add(study, FEW, votes, label="student", resources=ON_GPU)
    return (*teachers, votes, student)


def test_the_parts_of_a_training_have_all_its_steps() -> None:
    units = {part.key: part for part in training_in_units()}
    steps = [_steps_of_part(part, FEW, units) for part in units.values() if learner_of(part) is not None]
    assert steps == [1000, 1000, 1000, 1000, 500]
    assert sum(steps) == FEW.teachers * FEW.teacher_steps + FEW.student_steps


def test_the_derived_time_limit_ends_a_training_of_another_size() -> None:
    """Four short trainings set a limit of 30 times their length, which the fifth one of the same kind exceeds."""
    graph = Graph()
    units = tuple(
        graph.add(teach, FEW, first=number, last=number + 1, label=f"{number}", resources=ON_GPU) for number in range(5)
    )
    seconds = {part.key: 100_000.0 if part.label == "4" else 100.0 for part in units}
    work = Work(units, seconds, dict.fromkeys(seconds, 0), {})
    assert "TimeLimit" in play(work, Cluster(5), FREE).failed[units[4].key]
    assert not play(work, Cluster(5), FREE, time_limit_s=1e9).failed


@pytest.mark.nightly
def test_costs_of_the_units_of_a_real_plan(tmp_path: Path) -> None:
    """A training costs its operations at the stated speed, up to its spread; other units by their kind."""
    plan = next(small_plans(tmp_path))
    with_gpus = image_tables.on_gpus(Options(tmp_path, scale="paper", run=plan.spec.run)).run
    plan = make_plan(replace(plan.spec, run=with_gpus))
    entry = plan.audits[0]
    (training,) = entry.game.trainings
    work = work_of(plan, Rates(1e6, 4.0, defaultdict(lambda: 1e-6), {kind_of(training): 10.0}))
    rows = dict(entry.rows)["target"]
    expected = training_flops(entry.audit.mechanism, rows, (1, 8, 8)) / 1e6
    assert abs(math.log(work.seconds[training.key] / expected)) < 0.5  # five deviations of the spread
    assert work.result_bytes[training.key] == 10 * rows
    counted = [part for part in plan.units if not part.resources.gpus]
    assert counted
    assert all(0 < work.seconds[part.key] < 0.2 for part in counted)
    assert work.gpu_seconds == pytest.approx(sum(work.seconds[part.key] for part in plan.units if part.resources.gpus))
    assert play(work, Cluster(3), FREE, time_limit_s=1e9).finished == len(plan.units)


def test_one_node_in_ten_dies_within_the_run() -> None:
    times = deaths(1000.0, 50)
    assert len(times) == 5
    assert all(0 <= at <= 1000 for at in times.values())
    assert np.unique(list(times)).size == 5
