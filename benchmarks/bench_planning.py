"""Cost before a run: the expected bound of an audit of 100,000 canaries (goal 2 s), and the start-up of commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import Measured, least_seconds
from dpaudit.engine.answer.sensitivity import expected_bound, outlook
from dpaudit.engine.games.reference import CoinResponse, Reference
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.two_world.two_sample import Band

CANARIES, REPLAYS, RUNS = 100_000, 100, 3
TIMES, ADDITIONS = 5, 10_000_000
SPEC = """\
mechanism: {name: randomized-response, epsilon: 1.0}
data: {name: iris}
game: {name: label-canaries}
run: {runner: in-process%s}
"""
CHECK = """\
import sys
import dpaudit
from tests.bank.planted import FLAT_DIGITS, HONEST

print(dpaudit.check(HONEST["dp-sgd"].defect(), FLAT_DIGITS, output=sys.argv[1], quiet=True).joint.verdict.value)
"""
COMMANDS = (
    ("dpaudit --help", 0.15, ("--help",)),
    ("dpaudit plan, 150 rows", 1.2, ("plan", "plain.yaml")),
    ("dpaudit estimate, 10,000 scores", 1.5, ("estimate", "scores.csv")),
    ("dpaudit run in process, 150 rows, no figures", 2.5, ("run", "plain.yaml", "-o", "run", "--quiet")),
    ("dpaudit run in process, 150 rows", 2.5, ("run", "drawn.yaml", "-o", "run", "--quiet")),
)


def run() -> list[Measured]:
    """Return (name, processor seconds, note) of each measurement."""
    return [*_outlooks(), *_commands(), _honest_check()]


def _outlooks() -> Iterator[Measured]:
    reference = Reference(CoinResponse(), CANARIES, "canaries", REPLAYS)
    for what, estimator in (("one-run", OneRun()), ("one-run, delta 1e-5", OneRun(delta=1e-5)), ("band", Band())):
        expected_bound(estimator, reference, 1.0)  # compiles
        seconds = least_seconds(lambda chosen=estimator: outlook(chosen, reference, 1.0), RUNS, clock=time.process_time)
        yield what, seconds, f"claim 1, {CANARIES:,} canaries, {REPLAYS} replays"


def _commands() -> Iterator[Measured]:
    began = time.process_time()
    for number in range(ADDITIONS):
        _ = number + 1
    yield "ten million additions in Python", time.process_time() - began, "how quick this processor is"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plain.yaml").write_text(SPEC % ", figures: false")
        (folder / "drawn.yaml").write_text(SPEC % "")
        member = np.arange(10_000) % 2
        scores = np.random.default_rng(1).normal(size=member.size) + member
        np.savetxt(folder / "scores.csv", np.c_[scores, member], "%.6f,%d", header="score,member", comments="")
        for what, goal, words in COMMANDS:
            _seconds(words, folder)  # writes bytecode, as an installed package has
            yield what, min(_seconds(words, folder) for _ in range(TIMES)), f"goal {goal}"


def _honest_check() -> Measured:
    """Measure a check of an honest mechanism, DP-SGD on digits with default settings, by the clock."""
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), _of_children()
        words = [sys.executable, "-c", CHECK, str(Path(folder) / "run")]
        verdict = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        seconds, spent = time.perf_counter() - began, _of_children() - before
    note = f"{verdict}; {spent:.0f} s of processor time on {os.cpu_count()} cores (goal 120 s by the clock)"
    return "check of an honest DP-SGD on digits, by the clock", seconds, note


def _of_children() -> float:
    """Return the processor seconds of ended child processes."""
    times = os.times()
    return times.children_user + times.children_system


def _seconds(words: tuple[str, ...], folder: Path) -> float:
    """Return the processor seconds of one command and its child processes."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    bytecode = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "dpaudit", *words]
    before = _of_children()
    subprocess.run(command, cwd=folder, env=os.environ | bytecode, capture_output=True, check=True)
    return _of_children() - before
