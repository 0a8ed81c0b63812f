"""A package that is missing is named before anything runs, with the command that installs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dpaudit
from dpaudit.engine.cli.main import main
from dpaudit.engine.request.build import build
from dpaudit.errors import AuditError, InputError
from dpaudit.locations import imported, require_packages
from tests.loops import Cases

ENDPOINT = {"name": "endpoint", "url": "http://localhost:9/v1", "model_name": "x"}
FOLDER = {"name": "pretrained", "path": "/no/such/folder"}
TEXT_GAME: dict[str, Any] = {
    "name": "texts",
    "data": {"name": "made-sentences", "rows": 40},
    "mechanism": {"name": "fine-tuning", "trainer": {"name": "lora"}},
    "game": {"name": "text-canaries", "canaries": 10, "trainings": 1},
    "split": {"target": 1.0, "reference": 0.0, "test": 0.0},
    "run": {"runner": "in-process", "figures": False},
}
LABELS = {
    "data": {"name": "gaussian-mixture", "rows": 40},
    "mechanism": {"name": "randomized-response", "epsilon": 1.0},
    "proxy": "true-posterior",
    "game": {"name": "label-canaries", "replays": 1},
}


def test_parts_name_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cases() as cases:
        for package, extra, kind, part in [
            ("peft", "finetuning", "mechanism", {"name": "fine-tuning", "trainer": "lora"}),
            ("opacus", "opacus", "mechanism", {"name": "fine-tuning", "trainer": "opacus-lora"}),
            ("transformers", "text", "mechanism", {"name": "fine-tuning", "trainer": "full", "base": FOLDER}),
            ("transformers", "text", "base-model", "tiny-transformer"),
            ("opacus", "opacus", "mechanism", {"name": "opacus-dp-sgd", "epsilon": 1.0}),
            ("httpx", "endpoint", "language-model", ENDPOINT),
            ("tenacity", "endpoint", "language-model", ENDPOINT),
        ]:
            with cases.case(f"{package} {part}"), monkeypatch.context() as patch:
                built = build(kind, part)
                require_packages(built)
                patch.setitem(sys.modules, package, None)
                with pytest.raises(InputError, match=rf"needs the package {package}; .*dpaudit\[{extra}\]"):
                    require_packages(built)
                with pytest.raises(InputError, match=rf"needs the package {package}"):
                    imported(package, extra)


def test_nothing_runs_without_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    runs = {
        "audit": lambda: dpaudit.audit(TEXT_GAME, output=tmp_path / "run", quiet=True),
        "check": lambda: dpaudit.check("fine-tuning", output=tmp_path / "run", quiet=True),
        "sweep": lambda: dpaudit.sweep(
            TEXT_GAME, {"mechanism.trainer.rank": [1, 2]}, output=tmp_path / "run", quiet=True
        ),
    }
    with Cases() as cases:
        for name, run in runs.items():
            with cases.case(name), pytest.raises(AuditError, match=r"needs the package peft; .*dpaudit\[finetuning\]"):
                run()
            assert not list(tmp_path.rglob("units"))


def test_results_that_cannot_be_logged_are_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({**TEXT_GAME, **LABELS}))
    result = CliRunner().invoke(main, ["run", str(spec), "-o", str(tmp_path / "run"), "--mlflow", "x"])
    assert "needs the package mlflow" in result.output + result.stderr
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()
