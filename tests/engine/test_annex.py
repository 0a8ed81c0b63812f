"""The annex of a run: each answer is from the run folder, or "not tested"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpaudit import AuditSpec, RunOptions, audit
from dpaudit.engine.cli.main import main
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.annex import NO_COMPLIANCE, NOT_TESTED, Annex
from dpaudit.engine.run.driver import resume
from dpaudit.engine.run.registration import register


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a registered run with one violation, whose name is markup."""
    spec: AuditSpec = load_spec(Path("examples/violations/half-scale.yaml"))
    spec = replace(spec, name="<b>half</b>", run=RunOptions(runner="in-process", figures=False))
    folder = tmp_path_factory.mktemp("annex") / "run"
    register(spec, unit="one label of a patient", output=folder, registry=folder.parent / "registrations.jsonl")
    resume(folder, quiet=True)
    return folder


def answers(annex: Annex) -> dict[str, tuple[str, ...]]:
    return {heading: texts for _, section in annex.sections for heading, texts in section}


def test_answers_are_from_the_run_or_not_tested(run: Path) -> None:
    annex = Annex.of(run)
    by_heading = answers(annex)
    assert by_heading["Unit of privacy"] == ("one label of a patient",)
    tested = by_heading["Algorithms: do they keep the claimed parameters?"]
    assert len(tested) == len(annex.card.lines)
    assert any("VIOLATION" in text for text in tested)
    assert by_heading["Testing: attribute inference"]
    assert by_heading["Testing: membership inference"] == ()
    assert any("a receipt is there" in text for text in by_heading["Documentation of the tests"])
    text = annex.markdown()
    assert NO_COMPLIANCE in text
    for heading, texts in by_heading.items():
        following = text[text.index(f"- **{heading}**") :].splitlines()[1]
        assert (following == f"    - {NOT_TESTED}") == (not texts), heading


def test_a_run_without_registration_says_so(tmp_path: Path) -> None:
    spec: AuditSpec = load_spec(Path("examples/violations/half-scale.yaml"))
    audit(replace(spec, run=RunOptions(runner="in-process", figures=False)), output=tmp_path / "run", quiet=True)
    by_heading = answers(Annex.of(tmp_path / "run"))
    assert by_heading["Unit of privacy"][0].startswith("not stated")
    assert by_heading["Documentation of the tests"][-1] == "no receipt"


def test_the_command_writes_markdown_and_a_page(run: Path, tmp_path: Path) -> None:
    files = tmp_path / "annex.md", tmp_path / "annex.html"
    result = CliRunner().invoke(main, ["annex", str(run), "-o", str(files[0]), "--html", str(files[1])])
    assert result.exit_code == 0, result.output
    markdown, page = (file.read_text(encoding="utf-8") for file in files)
    assert markdown == Annex.of(run).markdown()
    assert "<b>half</b>" not in markdown + page
    assert "&lt;b&gt;half&lt;/b&gt;" in page
    assert NO_COMPLIANCE in page
