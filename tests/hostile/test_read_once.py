"""Files covered by a hash or by consent are opened once, so that a later replacement has no effect."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit import audit, restore_sweep, sweep
from dpaudit.consent import FULL_CONSENT, Consent
from dpaudit.engine.request.plain_yaml import YamlFile
from dpaudit.engine.run.driver import report_again, resume
from dpaudit.engine.run.model_card import ModelCard
from dpaudit.engine.run.run_folder import SPEC, consent_for
from dpaudit.engine.run.run_status import run_status
from dpaudit.engine.sweep.request import FILE, sealed
from dpaudit.errors import AuditError

PLAIN: dict[str, Any] = {
    "name": "read once",
    "data": {"name": "gaussian-mixture", "rows": 200},
    "mechanism": {"name": "randomized-response", "epsilon": 1.0},
    "proxy": "true-posterior",
    "game": {"name": "label-inference", "replays": 4},
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "run": {"runner": "in-process", "figures": False},
}
SWEEP = {
    **PLAIN,
    "data": {"name": "iris"},
    "mechanism": {"name": "lp-1st", "epsilon": 1.0, "model": "recall"},
    "proxy": "model",
    "game": {"name": "label-canaries", "canaries": 30, "replays": 2},
    "split": {"target": 0.5, "reference": 0.25, "test": 0.25},
    "grid": {"mechanism.epsilon": [0.5, 2.0]},
}
EVIL = """\
import pathlib
pathlib.Path({mark!r}).write_text("ran")
class M:
    def claim(self): ...
"""


class Swapper:
    """Counts the openings of a file and replaces it just before the `first` one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stop()
        for module in (builtins, io):  # `Path.open` calls the second one
            monkeypatch.setattr(module, "open", self._counted(builtins.open))
        monkeypatch.setattr(os, "open", self._counted(os.open))

    def start(self, path: Path, content: bytes, *, first: int) -> None:
        """Replace the file at `path` by `content` at its opening with number `first`, counted from 1."""
        other = path.parent.with_name("swapped in")
        other.write_bytes(content)
        self.path, self.other, self.first, self.opens = str(path), other, first, 0

    def stop(self) -> None:
        self.path, self.other, self.first, self.opens = "", Path(), 0, 0

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def opening(path: Any, *arguments: Any, **options: Any) -> Any:
            by_itself = options.get("opener") is None  # `open` would call the opener, which is counted
            if self.path and by_itself and not isinstance(path, int) and os.fsdecode(path) == self.path:
                self.opens += 1
                if self.opens >= self.first and self.other.exists():
                    os.replace(self.other, self.path)
            return function(path, *arguments, **options)

        return opening


@pytest.fixture
def swapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swapper:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Swapper(monkeypatch)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that a stranger's importable module would write."""
    path = tmp_path / "mark"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "evil_read_once.py").write_text(EVIL.format(mark=str(path)))
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.delitem(sys.modules, "evil_read_once", raising=False)
    return path


def with_code(content: bytes) -> bytes:
    """Return the spec of a run folder or a sweep's file with code added."""
    values = yaml.safe_load(content)
    parts = values["audits"][0] if "audits" in values else values
    parts["mechanism"] = {"name": "evil_read_once:M"}
    text = yaml.safe_dump(values, sort_keys=False)
    return text.encode() if "audits" in values else sealed(text)


@pytest.mark.parametrize("first", [2, 3])
@pytest.mark.parametrize("verb", [report_again, resume])
def test_a_spec_replaced_after_hashing_is_not_run(
    swapper: Swapper, tmp_path: Path, mark: Path, verb: Callable[..., Any], first: int
) -> None:
    """The folder belongs to the reader, so its original spec may run, but not a replacement."""
    folder = tmp_path / "run"
    audit(PLAIN, output=folder, quiet=True)
    spec = folder / SPEC
    swapper.start(spec, with_code(spec.read_bytes()), first=first)
    options = {} if verb is report_again else {"quiet": True}
    verb(folder, **options)
    assert (swapper.opens, mark.exists()) == (1, False)


@pytest.mark.parametrize("first", [2, 3])
def test_a_sweep_replaced_after_hashing_is_not_run(swapper: Swapper, tmp_path: Path, mark: Path, first: int) -> None:
    folder = tmp_path / "swept"
    sweep(SWEEP, output=folder, quiet=True)
    swapper.start(folder / FILE, with_code((folder / FILE).read_bytes()), first=first)
    restore_sweep(folder, quiet=True)
    assert (swapper.opens, mark.exists()) == (1, False)


@pytest.mark.parametrize("name", [SPEC, FILE])
def test_a_file_replaced_after_writing_is_not_recorded_as_own(swapper: Swapper, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    swapper.start(folder / name, b"name: of a stranger\n", first=1)
    if name == SPEC:
        audit(PLAIN, output=folder, quiet=True)
    else:
        sweep(SWEEP, output=folder, quiet=True)
    assert swapper.opens == 0
    swapper.stop()
    written = YamlFile.read(folder / name)
    assert consent_for(written, Consent()) is FULL_CONSENT
    assert consent_for(YamlFile(folder / name, written.content + b"\n"), Consent()) is not FULL_CONSENT


def test_the_last_event_has_the_hash_of_the_written_content(swapper: Swapper, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    audit(PLAIN, output=folder, quiet=True)
    swapper.start(folder / "bounds.json", b'{"results": []}', first=1)
    report_again(folder)
    assert swapper.opens == 0
    swapper.stop()
    assert "the checksum in the run's last event" in str(run_status(folder))


@pytest.mark.parametrize("name", ["plan.parquet", "events.jsonl", "bounds.json"])
@pytest.mark.parametrize("verb", [run_status, ModelCard.of])
def test_a_card_uses_the_checked_files(
    swapper: Swapper, tmp_path: Path, verb: Callable[[Path], Any], name: str
) -> None:
    folder = tmp_path / "run"
    audit(PLAIN, output=folder, quiet=True)
    expected = str(verb(folder))
    swapper.start(folder / name, b"", first=2)
    assert str(verb(folder)) == expected
    assert swapper.opens == 1


def test_a_plan_is_read_once(swapper: Swapper, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    audit(PLAIN, output=folder, quiet=True)
    swapper.start(folder / "plan.parquet", b"", first=2)
    report_again(folder)
    assert swapper.opens == 1


def test_a_spec_replaced_by_a_link_is_not_followed(swapper: Swapper, tmp_path: Path) -> None:
    """`require_plain` checks the folder first; the file is then opened without following links."""
    folder = tmp_path / "run"
    audit(PLAIN, output=folder, quiet=True)
    (folder / SPEC).rename(tmp_path / "secret.yaml")
    (folder / SPEC).symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(AuditError, match="must be a plain file, it is a link"):
        YamlFile.read_plain(folder / SPEC)


def test_a_large_spec_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / SPEC
    with path.open("wb") as file:
        file.write(b"#" * 2_000_000)
    for reader in (YamlFile.read, YamlFile.read_plain):
        with pytest.raises(AuditError, match="must have at most 200,000 characters"):
            reader(path).value()
