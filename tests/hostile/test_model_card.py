"""`dpaudit card` for a run, for several tests of one claim, and for a folder with hostile texts."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dpaudit.engine.answer.stated_values import checksum_note
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.run.model_card import NO_PROOF, REJECTED, ModelCard
from dpaudit.errors import SpecError
from tests.engine.test_page_in_a_browser import BROWSER, Markup, pages_of
from tests.hostile.reader import Reader

HOSTILE = (
    "a](javascript:alert(1)) ![x](https://evil.example/p.png) https://evil.example www.evil.example me@evil.example",
    "<script>alert(1)</script><img src=x onerror=alert(1)> <!-- &lt;b&gt;",
    "line\n---\nlicense: mit\n- x: &a [*a] !!python/object/apply:os.system ['id'] #",
    "'\" : {% raw %} {{ 7*7 }} | cell | `code` **bold** _it_ ~~no~~ \\",
    "\x1b[31m\u202eright to left\x00",
)


def forge(folder: Path, change: Callable[[Any], None]) -> ModelCard:
    """Return the card of a folder after a change of `bounds.json` and of its checksum in the log."""
    path = folder / "bounds.json"
    before = path.read_bytes()
    report = json.loads(before)
    change(report)
    path.write_text(json.dumps(report))
    log = folder / "events.jsonl"
    log.write_text(log.read_text().replace(checksum_note(before), checksum_note(path.read_bytes())))
    return ModelCard.of(folder)


def front_of(markdown: str) -> tuple[Any, list[Token]]:
    """Return the YAML front matter of a card, and the Markdown tokens of the rest."""
    _, block, body = re.split(r"^---$", markdown, maxsplit=2, flags=re.MULTILINE)
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body)
    return yaml.safe_load(block), [part for token in parsed for part in (token, *(token.children or ()))]


def test_a_card_repeats_the_report_and_how_to_reproduce_it(folder: Path) -> None:
    report = json.loads((folder / "bounds.json").read_text())
    (result,) = report["results"]
    (front,) = front_of(ModelCard.of(folder).markdown())[0].values()
    (card_audit,) = front["audits"]
    assert card_audit["verdict"] == result["verdict"]
    assert card_audit["claim"] == "epsilon 1 at delta 0 (1-DP, label)"
    assert card_audit["epsilon_at_least"] == result["finding"]["lower"]
    assert card_audit["found"] == card_audit["answer"]["lower bound"]
    assert card_audit["answer"]["lower bound"].endswith("(95 % confidence, finite-sample)")
    assert card_audit["sentence"] == result["answer"]["sentence"]
    lines = [(label, text) for label, text in result["answer"]["lines"] if f"{text}." != card_audit["sentence"]]
    assert list(card_audit["answer"].items()) == lines
    assert card_audit["assumes"] == result["assumes"]
    assert front["means"] == NO_PROOF
    assert front["command"] == "dpaudit run spec.yaml --seed 3"
    assert re.fullmatch(r"spec.yaml sha256:[0-9a-f]{64}", front["spec"])
    assert front["results"] == checksum_note((folder / "bounds.json").read_bytes())
    assert re.fullmatch(r"(\w+:[0-9a-f]{24}(, )?)+", front["data"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", front["date"])


def test_hostile_texts_are_escaped(reader: Reader, folder: Path) -> None:
    def change(report: Any) -> None:
        (result,) = report["results"]
        report["name"] = HOSTILE[0]
        claim = result["claim"]
        for words, name in zip(HOSTILE[1:4], ("mechanism", "data", "assumes"), strict=True):
            result[name] = words
        result["name"] = result["game"] = result["comparison"]["words"] = result["answer"]["sentence"] = " ".join(
            HOSTILE
        )
        result["answer"]["lines"] = [["lower bound", HOSTILE[0]], *([words[:40], words] for words in HOSTILE)]
        result["claim"] = claim | {"curve": HOSTILE[1], "relation": HOSTILE[0]}

    card = forge(folder, change)
    front, tokens = front_of(card.markdown())
    assert list(front) == ["privacy_audit"]
    assert "license" not in front["privacy_audit"]
    (card_audit,) = front["privacy_audit"]["audits"]
    assert "license: mit" in card_audit["audited"]
    kinds = {token.type for token in tokens}
    assert not kinds & {"link_open", "image", "html_inline", "html_block", "fence", "code_block", "s_open", "em_open"}
    assert [token.content for token in tokens if token.type == "code_inline" and "code" in token.content] == []
    assert len([token for token in tokens if token.type == "th_open"]) == 4
    assert len([token for token in tokens if token.type == "td_open"]) == 4
    assert not re.search(r"://|www\.", card.markdown().split("\n---\n")[-1])
    elements = Markup(card.page()).elements
    assert {tag for tag, _ in elements} & {"script", "img", "a", "iframe", "svg"} == set()
    assert [name for _, attributes in elements for name in attributes if name.startswith("on")] == []
    process = reader.opens("card", folder, "--html", reader.stranger / "card.html")
    process.harmless()
    assert process.code == 0, process.err
    assert "49" not in process.out.partition("## ")[2].partition("- Date")[0]


@pytest.mark.parametrize("verdict", [*Verdict])
def test_no_card_claims_a_proof(folder: Path, verdict: Verdict) -> None:
    card = forge(folder, lambda report: report["results"][0].update(verdict=str(verdict)))
    means = REJECTED if verdict is Verdict.VIOLATION else NO_PROOF
    for text in (card.markdown(), card.page()):
        assert means in text
        assert ("A low bound is not evidence of privacy" in text) is (verdict is not Verdict.VIOLATION)
        assert not re.search(r"(?i)\b(safe|passed|certified|guarantee\w*|compliant|is private)\b", text)
    assert card.markdown().index(means) < card.markdown().index("verdict:")


def test_tests_of_one_claim_have_one_verdict_by_the_confirmatory_run(folder: Path) -> None:
    def change(report: Any) -> None:
        first = report["results"][0] | {"verdict": "VIOLATION"}
        again = copy.deepcopy(first) | {"name": f"{first['name']}, confirmatory run", "assumes": "of the second"}
        again["finding"]["lower"] = 2.5
        report["results"] = [first, again]
        report["joint"] = {
            "verdict": "VIOLATION",
            "headline": "x: claimed epsilon 1, observed epsilon >= 2.500 at delta=0",
            "answer": {
                "sentence": "At least epsilon 2.5 leaks.",
                "lines": [
                    ["lower bound", "epsilon >= 2.500 at delta=0 (99.9 % confidence, confirmatory run)"],
                    ["reason", "a"],
                    ["reason", "b"],
                ],
            },
            "rests_on": first["name"],
        }

    card = forge(folder, change)
    (line,) = card.lines
    assert (line.name, line.epsilon, line.assumes) == ("from a stranger", 2.5, "of the second")
    assert line.sentence == "At least epsilon 2.5 leaks."
    assert "(99.9 % confidence, confirmatory run)" in line.bound
    assert "  - Reason: a; b" in card.markdown().splitlines()


def test_the_worst_results_come_first_and_omitted_ones_are_counted(folder: Path) -> None:
    def change(report: Any) -> None:
        many = [copy.deepcopy(report["results"][0]) | {"name": f"audit {number}"} for number in range(40)]
        many[33]["verdict"] = "VIOLATION"
        report["results"] = many

    card = forge(folder, change)
    assert card.lines[0].name == "audit 33"
    assert len(front_of(card.markdown())[0]["privacy_audit"]["audits"]) == 40
    assert "and 32 more" in card.page()
    assert "audit 33" in card.page()


@pytest.mark.parametrize("many", [3, 200])
@pytest.mark.skipif(BROWSER is None, reason="no browser on the path")
def test_a_card_is_at_most_one_page(folder: Path, tmp_path: Path, many: int) -> None:
    def change(report: Any) -> None:
        result = report["results"][0]
        for name in ("mechanism", "data", "game", "assumes"):
            result[name] = "W" * 900
        result["answer"]["sentence"] = "W" * 900
        result["answer"]["lines"] = [["W" * 90, "W" * 900]] * 12
        result["comparison"]["words"], report["name"] = "M" * 900, "W" * 900
        report["results"] = [copy.deepcopy(result) | {"name": f"{n}" + "W" * 300} for n in range(many)]
        for result, verdict in zip(report["results"], Verdict, strict=False):  # each adds a sentence
            result["verdict"] = str(verdict)

    page = forge(folder, change).page()
    assert pages_of(page, tmp_path) == 1
    assert "font:10pt" in page
    assert pages_of(page.replace("font:10pt", "font:12pt"), tmp_path) == 1, "another machine has wider fonts"
    unbounded = page.replace("height:272mm; overflow:hidden; contain:size;", "")
    assert pages_of(unbounded.replace("</body>", "<p>more</p>" * 60 + "</body>"), tmp_path) > 1, "it can be seen"


def test_a_folder_without_a_report_has_no_card(folder: Path) -> None:
    (folder / "bounds.json").unlink()
    with pytest.raises(SpecError, match="must be a run folder with a report"):
        ModelCard.of(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report.update(seed="x"),
        lambda report: report["results"][0].update(finding=[1]),
        lambda report: report["results"][0].pop("answer"),
        lambda report: report["results"][0].update(claim={}),
        lambda report: report.update(seed=float("inf")),
    ],
)
def test_an_invalid_report_is_refused_in_one_line(folder: Path, change: Callable[[Any], None]) -> None:
    with pytest.raises(SpecError, match=r"bounds\.json: .* must be .*, got .*; `dpaudit report` writes it again"):
        forge(folder, change)
