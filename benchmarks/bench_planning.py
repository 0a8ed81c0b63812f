"""Cost before a run: the expected bound of an audit of 100,000 canaries (goal 2 s), and the start-up of commands.

python -m benchmarks.bench_planning
"""

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

from dpaudit.engine.games.reference import CoinResponse, Reference
from dpaudit.engine.planning.power import expected_bound, outlook
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
COMMANDS = (
    ("dpaudit --help", 0.15, ("--help",)),
    ("dpaudit plan, 150 rows", 1.2, ("plan", "plain.yaml")),
    ("dpaudit estimate, 10,000 scores", 1.5, ("estimate", "scores.csv")),
    ("dpaudit run in process, 150 rows, no figures", 2.5, ("run", "plain.yaml", "-o", "run", "--quiet")),
    ("dpaudit run in process, 150 rows", 2.5, ("run", "drawn.yaml", "-o", "run", "--quiet")),
)


def run() -> list[tuple[str, float, str]]:
    """Return (name, processor seconds, note) of each measurement."""
    return [*_outlooks(), *_commands()]


def _outlooks() -> Iterator[tuple[str, float, str]]:
    reference = Reference(CoinResponse(), CANARIES, "canaries", REPLAYS)
    for what, estimator in (("one-run", OneRun()), ("one-run, delta 1e-5", OneRun(delta=1e-5)), ("band", Band())):
        expected_bound(estimator, reference, 1.0)  # compiles
        seconds = []
        for _ in range(RUNS):
            began = time.process_time()
            outlook(estimator, reference, 1.0)
            seconds.append(time.process_time() - began)
        yield what, min(seconds), f"claim 1, {CANARIES:,} canaries, {REPLAYS} replays"


def _commands() -> Iterator[tuple[str, float, str]]:
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


def _seconds(words: tuple[str, ...], folder: Path) -> float:
    """Return the processor seconds of one command and its child processes."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    bytecode = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "dpaudit", *words]
    before = os.times()
    subprocess.run(command, cwd=folder, env=os.environ | bytecode, capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    for measured, seconds, note in run():
        print(f"{seconds:6.2f} s  {measured} ({note})")
