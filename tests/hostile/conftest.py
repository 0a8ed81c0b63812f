"""Fixtures: a reader, and a run folder of another user."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hostile.reader import Reader

SPEC = """\
name: from a stranger
seed: 3
data: {name: digits}
game: {name: label-canaries, canaries: 50, replays: 2}
mechanism: {name: randomized-response, epsilon: 1.0}
run: {runner: in-process, figures: false}
"""


@pytest.fixture(scope="session")
def foreign_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of another user on another machine; copy it, never write to it."""
    maker = Reader(tmp_path_factory.mktemp("maker"))
    (maker.work / "spec.yaml").write_text(SPEC)
    folder = maker.work / "run"
    assert maker.opens("run", "spec.yaml", "--output", folder, "--quiet", WATCHED_LOG="").code == 0
    return folder


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """Return a reader without any foreign file."""
    return Reader(tmp_path)


@pytest.fixture
def folder(reader: Reader, foreign_folder: Path) -> Path:
    """Return the reader's copy of the foreign run folder: complete, finished and harmless."""
    return Path(shutil.copytree(foreign_folder, reader.stranger / "run", symlinks=True))
