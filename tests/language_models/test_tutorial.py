"""The notebook of the tutorial runs, and its page lora.md shows what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl  # slow to import, so not within the time of a test

from tools.notebook import load, page, printed, run, with_outputs

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "lora.ipynb"
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")


def beginnings(outputs: list[str]) -> list[str]:
    """Return the first word of each output that is the same in every run."""
    return [text.split()[0] for text in outputs if text and not text.startswith("{")]


def test_the_tutorial_runs_and_convicts_a_training_without_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = load(NOTEBOOK)
    outputs = run(notebook, {"SFTTrainer": trl.SFTTrainer})
    assert any(text.startswith("VIOLATION  100 text canaries") for text in outputs), "\n".join(outputs)
    assert any("a sequence ended before the end of the secret" in text for text in outputs)
    assert (tmp_path / "audit" / "report.html").exists()
    stored = [printed(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert beginnings(outputs) == beginnings(stored)
    assert [bool(text) for text in outputs] == [bool(text) for text in stored]


def test_the_page_is_that_of_the_notebook() -> None:
    assert NOTEBOOK.with_suffix(".md").read_text(encoding="utf-8") == page(load(NOTEBOOK), NOTEBOOK.name)


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    texts = ["a = 2\nprint(a)\na + 1", "# nothing", "a"]
    cells = [{"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]}]
    cells += [{"cell_type": "code", "source": [text], "outputs": []} for text in texts]
    notebook = {"cells": cells, "nbformat": 4}
    outputs = run(notebook, {})
    assert outputs == ["2\n3\n", "", "2\n"]
    executed = with_outputs(notebook, outputs)
    assert page(executed, "a.ipynb").startswith(
        "# Title\n\nText.\n\n```python\na = 2\nprint(a)\na + 1\n```\n\n    2\n    3\n\n```python\n# nothing\n```\n\n```"
    )
    assert [cell["execution_count"] for cell in executed["cells"][1:]] == [1, 2, 3]
