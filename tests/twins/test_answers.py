"""The record of slow twins: read by quick tests, compared by nightly tests, refused if stale."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from mpmath import mp, mpf

from tests.nightly import SWITCH
from tests.twins import answers, record
from tests.twins.answers import FOLDER, StaleRecord

IMPORTS = (
    "from mpmath import mp\nfrom tests.twins.answers import recorded\nfrom tests.twins.other_twin import anything\n"
)
TWIN = f"""{IMPORTS}
CALLS = []

@recorded
def root(x, *, digits=30):
    CALLS.append(x)
    with mp.workdps(digits):
        return [mp.sqrt(x), 0.1 + 0.2, mp.inf]

@recorded
def fourth_root(x):
    return [mp.sqrt(root(x)[0])]

@recorded
def third(x):
    return mp.mpf(x) / 3
"""
OTHER = "anything = 1\n"
COMMAND = r"Run `python -m tests\.twins\.record`"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of twins with recorded answers to root(2) and fourth_root(2)."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(answers, "HERE", tmp_path)
    monkeypatch.setattr(answers, "FOLDER", tmp_path / "recorded")
    monkeypatch.setattr(answers._State, "noted", None)
    (tmp_path / "small_twin.py").write_text(TWIN)
    (tmp_path / "other_twin.py").write_text(OTHER)
    with answers.noting() as noted:
        twin(tmp_path).root(2)
        twin(tmp_path).fourth_root(2)
    answers.write(noted, answers.FOLDER)
    answers.recorded_answers.cache_clear()
    return tmp_path


def twin(folder: Path) -> ModuleType:
    """Return the twin module as a new process would import it."""
    answers.recorded_answers.cache_clear()
    text = (folder / "small_twin.py").read_text().replace(IMPORTS.splitlines()[-1], "")
    module = ModuleType("tests.twins.small_twin")
    exec(text, module.__dict__)
    return module


def test_recorded_answer_is_read_to_its_last_digit(folder: Path) -> None:
    module = twin(folder)
    root, decimal, endless = module.root(2)
    assert abs(root - mp.sqrt(mpf(2))) < 1e-15
    with mp.workdps(30):
        assert abs(root - mp.sqrt(2)) < mpf(10) ** -28
    assert (decimal, endless) == (0.1 + 0.2, mp.inf)
    assert module.CALLS == []


def test_running_twin_computes_the_twins_it_calls_and_records_only_its_answer(folder: Path) -> None:
    assert set(json.loads((folder / "recorded/small_twin.json").read_text())["answers"]) == {
        "root(2)",
        "fourth_root(2)",
    }


@pytest.mark.parametrize(
    ("change", "question"),
    [
        (lambda folder: (folder / "small_twin.py").write_text(TWIN.replace("0.2", "0.3")), "root"),
        (lambda folder: (folder / "other_twin.py").write_text("anything = 2\n"), "root"),
        (lambda folder: (folder / "recorded/small_twin.json").unlink(), "root"),
    ],
    ids=["the twin changed", "a twin it uses changed", "no record"],
)
@pytest.mark.parametrize("switch", ["", "yes"])
def test_stale_record_is_refused_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: object, question: str, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    change(folder)  # type: ignore[operator]
    with pytest.raises(StaleRecord, match=COMMAND):
        twin(folder).root(2)


def test_unrecorded_question_is_refused_with_the_command(folder: Path) -> None:
    for arguments, options in (((3,), {}), ((2.0,), {}), ((2,), {"digits": 29})):
        with pytest.raises(StaleRecord, match=rf"is not recorded.*{COMMAND}"):
            twin(folder).root(*arguments, **options)


def test_nightly_run_computes_and_must_agree_with_the_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "yes")
    module = twin(folder)
    assert module.root(2)[1] == 0.1 + 0.2
    assert module.root(3)[0] > 1.7, "only nightly tests may ask an unrecorded question"
    assert module.CALLS == [2, 3]
    path = folder / "recorded/small_twin.json"
    path.write_text(path.read_text().replace("1.41421356237309504880", "1.41421356237309504890"))
    with pytest.raises(StaleRecord, match=rf"is recorded.*{COMMAND}"):
        twin(folder).root(2)


@pytest.mark.parametrize("digits", [5, 15, 40])
def test_answer_does_not_depend_on_the_current_precision(
    folder: Path, monkeypatch: pytest.MonkeyPatch, digits: int
) -> None:
    monkeypatch.setenv(SWITCH, "yes")
    with mp.workdps(digits):
        third = twin(folder).third(1)
    with mp.workdps(40):
        assert abs(third - mpf(1) / 3) < mpf(10) ** -28


def test_values_without_a_text_form_are_refused(folder: Path) -> None:
    with pytest.raises(TypeError, match="must be asked with numbers, text and lists, got function"):
        twin(folder).root(lambda: 2)
    with pytest.raises(TypeError, match="must be numbers and lists of them, got dict"):
        answers.encoded({})


def test_every_record_in_the_repository_is_current() -> None:
    paths = sorted(FOLDER.glob("*.json"))
    assert paths
    for path in paths:
        assert answers.recorded_answers(path.stem), path.name


@pytest.mark.parametrize("code", [0, 1])
def test_command_writes_the_answers_unless_a_test_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    module = twin(folder)

    def run(arguments: list[str]) -> int:
        assert any(argument.endswith("test_against_twins.py") for argument in arguments)
        module.root(7)
        module.root(2)
        return code

    monkeypatch.setattr(pytest, "main", run)
    assert record.main() == code
    assert ("left as it was" in capsys.readouterr().err) == bool(code)
    written = json.loads((folder / "recorded/small_twin.json").read_text())["answers"]
    assert set(written) == ({"root(2)", "fourth_root(2)"} if code else {"root(2)", "root(7)"})
    assert module.CALLS == [7], "recorded answers of the same twin are not recomputed"
