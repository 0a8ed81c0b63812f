"""Values of a stranger's `bounds.json`: valid ones are shown, and others are refused with their place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.engine.answer import stated_values
from dpaudit.engine.answer.stated_values import StatedValue, checksum_note
from dpaudit.engine.run.model_card import ModelCard, records_in
from dpaudit.engine.run.run_status import run_status
from dpaudit.errors import AuditError, SpecError

LONG = 10**399  # an integer of 400 digits: JSON accepts it, but it exceeds the largest float


def forge(folder: Path, content: bytes) -> None:
    """Replace `bounds.json` and its checksum in the last event."""
    path, log = folder / "bounds.json", folder / "events.jsonl"
    log.write_text(log.read_text().replace(checksum_note(path.read_bytes()), checksum_note(content)))
    path.write_bytes(content)


def card(folder: Path) -> str:
    card = ModelCard.of(folder)
    return card.markdown() + card.page()


VERBS: dict[str, Callable[[Path], object]] = {
    "status": lambda folder: str(run_status(folder)),
    "card": card,
    "records": lambda folder: str(records_in(folder, top=20, rate=0.05, audit=None)),
}
PLACES: dict[str, tuple[str, ...]] = {
    # fields that lead to a value, and the commands that read it
    "seed": ("card",),
    "name": ("card",),
    "results": ("status", "card", "records"),
    "results.0": ("status", "card", "records"),
    "results.0.name": ("status", "card", "records"),
    "results.0.verdict": ("status", "card", "records"),
    "results.0.claim": ("card", "records"),
    "results.0.claim.epsilon": ("card", "records"),
    "results.0.claim.delta": ("card", "records"),
    "results.0.claim.curve": ("card", "records"),
    "results.0.claim.relation": ("card", "records"),
    "results.0.compared_with": ("records",),
    "results.0.compared_with.epsilon": ("records",),
    "results.0.compared_with.delta": ("records",),
    "results.0.finding.lower": ("card",),
    "results.0.finding.delta": ("card",),
    "results.0.answer": ("card",),
    "results.0.answer.sentence": ("card",),
    "results.0.answer.lines": ("card",),
    "results.0.answer.lines.0": ("card",),
    "results.0.answer.lines.0.0": ("card",),
    "results.0.answer.lines.0.1": ("card",),
    "results.0.assumes": ("card",),
    "results.0.game": ("card",),
}
NUMBERS = ("seed", "epsilon", "delta", "lower")
ODD: dict[str, Any] = {
    "400 digits": LONG,
    "-400 digits": -LONG,
    "1e999": math.inf,
    "-1e999": -math.inf,
    "NaN": math.nan,
    "true": True,
    "-1000": -1000,
    "-0.5": -0.5,
    "a word": "a word",
    "'nan'": "nan",
    "null": None,
    "[]": [],
    "{}": {},
    "a list": [1.0, 2.0],
    "a list of lists": [[[[1]]]],
    "a mapping": {"epsilon": 1.0},
    "a long word": "9" * 300_000,
    "a surrogate": "\ud800",
}
MAY_BE = {
    "results.0.finding.lower": {"-1000", "-0.5", "1e999", "-1e999", "null"},
    "results.0.finding.delta": {"null"},
    "results.0.claim.epsilon": {"1e999"},  # no claim
    "results.0.compared_with.epsilon": {"1e999"},
}


def changed(report: Any, place: str, value: Any) -> bytes:
    *way, last = place.split(".")
    inside = report
    for step in way:
        inside = inside[int(step)] if step.isdigit() else inside[step]
    inside[int(last) if last.isdigit() else last] = value
    return json.dumps(report).encode()


@pytest.fixture
def report(folder: Path) -> Any:
    return json.loads((folder / "bounds.json").read_text())


@pytest.mark.parametrize("place", PLACES)
def test_odd_values_are_shown_or_refused_in_one_line(folder: Path, report: Any, place: str) -> None:
    """Refusals of impossible numbers name their place."""
    last = place.rpartition(".")[2]
    for words, value in ODD.items():
        forge(folder, changed(json.loads(json.dumps(report)), place, value))
        for verb in PLACES[place]:
            process = ended(VERBS[verb], folder)
            if last in NUMBERS and words not in MAY_BE.get(place, ()):
                assert isinstance(process, SpecError), (verb, words, process)
                assert last in str(process), (verb, words, process)
                assert "`dpaudit report`" in str(process), (verb, words, process)


def ended(verb: Callable[[Path], object], folder: Path) -> object:
    """Return the answer of a function, or the text of its refusal; other errors propagate."""
    try:
        return verb(folder)
    except AuditError as err:
        return err if len(str(err)) < 1000 else f"too long a sentence: {str(err)[:200]}"


@pytest.mark.parametrize(
    "content",
    [
        b'{"results": ' + b"[" * 200_000,
        b'{"results": [], "more": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"results": [' + b"9" * 5000 + b"]}",
        b'{"results": [' + b"{}," * 2_000_001 + b"{}]}",
        b'{"results": [' + b'{"name": "x", "verdict": "VIOLATION"},' * 30_000 + b'{"name": "x", "verdict": "FAILED"}]}',
        b"[]",
        b"3",
        b'"results"',
        b"\x80\x04\x95",
    ],
    ids=["deep list", "deep mapping", "5000 digits", "many values", "many results", "list", "number", "text", "bytes"],
)
def test_an_invalid_report_is_not_shown(folder: Path, content: bytes) -> None:
    forge(folder, content)
    assert "bounds.json is not a valid report; " in str(run_status(folder))
    for verb in ("card", "records"):
        with pytest.raises(SpecError, match=r"must be a run folder with a report: bounds\.json is not a valid report"):
            VERBS[verb](folder)


def test_a_card_of_many_audits_needs_linear_time(folder: Path, report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the audits need twice the comparisons of names."""
    reads: list[str] = []
    name = StatedValue.name
    monkeypatch.setattr(StatedValue, "name", lambda stated: reads.append(stated.at) or name(stated))
    counts = []
    for many in (50, 100):
        report["results"] = [report["results"][0] | {"name": f"audit {number}"} for number in range(many)]
        forge(folder, json.dumps(report).encode())
        reads.clear()
        assert len(ModelCard.of(folder).lines) == many
        counts.append(len(reads))
    assert counts[1] == 2 * counts[0]


def test_values_are_checked() -> None:
    parse = StatedValue.parse
    stated = parse(b'{"a": [1, 2.5, "inf", true, "x", null, -0.0], "b": 1e999}', "FILE", remedy="write it again")
    whole_number, real, infinite, flag, word, nothing, zero = stated["a"].items()
    assert (
        whole_number.integer(0, 1),
        whole_number.number(),
        real.number(0, 3),
        infinite.number(),
        zero.number(0),
    ) == (
        1,
        1,
        2.5,
        math.inf,
        0,
    )
    assert stated["b"].number(0) == math.inf
    for wrong in (
        lambda: whole_number.integer(2, 3),
        lambda: real.integer(0, 3),
        lambda: flag.integer(0, 3),
        lambda: flag.number(),
        lambda: word.number(),
        lambda: nothing.number(),
        lambda: infinite.number(0, 5),
        lambda: whole_number.text(),
        lambda: whole_number["c"],
        lambda: whole_number.items(),
        lambda: stated["none"].text(),
    ):
        with pytest.raises(SpecError, match=r"^FILE: .* must be .*, got .*; write it again$"):
            wrong()
    assert "a[4]" in str(word.refusal("must be", "x"))
    with pytest.raises(SpecError, match="FILE must be JSON, got"):
        parse(b"{", "FILE")


def test_a_file_of_too_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stated_values, "MAX_VALUES", 10)
    assert StatedValue.parse(b"[1,2,3]", "FILE").value == [1, 2, 3]
    with pytest.raises(SpecError, match=r"must hold at most .* 10 values"):
        StatedValue.parse(b"[" + b"{}," * 20, "FILE")  # and it is not valid JSON
