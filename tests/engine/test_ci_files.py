"""JUnit, SARIF and Markdown files of a run, as a CI service reads them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dpaudit.claims import Claim, ConvertedClaim, Relation, Scope
from dpaudit.engine.answer.record import Confirmation, Sensitivity
from dpaudit.engine.answer.run_report import JointVerdict, Report
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.cli.main import main
from dpaudit.engine.report.ci_files import write_for_ci
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.engine.request.error_budget import JointTest
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import audit
from dpaudit.errors import VerdictError, printable

SPEC = Path("examples/violations/half-scale.yaml")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a report with one true claim and one false claim."""
    spec: AuditSpec = load_spec(SPEC)
    return audit(replace(spec, run=replace(spec.run, figures=False)), output=tmp_path_factory.mktemp("run"), quiet=True)


def test_a_violation_fails_in_junit(report: Report, tmp_path: Path) -> None:
    write_for_ci(report, str(SPEC), junit=tmp_path / "found.xml")
    (suite,) = ET.parse(tmp_path / "found.xml").getroot()
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "0",
    }
    honest, false = suite
    assert honest.find("failure") is None
    failure = false.find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "VIOLATION"
    assert failure.attrib["message"] == report.results[1].headline
    assert "Treat the claim as false" in str(failure.text)
    assert failure.text == report.results[1].answer.text()


def test_violation_is_an_error_in_sarif_and_a_pass_is_omitted(report: Report, tmp_path: Path) -> None:
    write_for_ci(report, str(SPEC), sarif=tmp_path / "found.sarif")
    sarif = json.loads((tmp_path / "found.sarif").read_text())
    assert sarif["version"] == "2.1.0"
    (run,) = sarif["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("violation", "error")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["violation"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(SPEC)
    assert "half the scale" in SPEC.read_text().splitlines()[place["region"]["startLine"] - 1]
    assert "half the scale" in result["message"]["text"]


@pytest.mark.parametrize(
    ("subject", "where"),
    [
        ("audit one.yaml", {"artifactLocation": {"uri": "audit%20one.yaml"}, "region": {"startLine": 1}}),
        ("own.noisy:count", {"artifactLocation": {"uri": "own/noisy.py"}, "region": {"startLine": 3}}),
        ("own.noisy:counts", {"artifactLocation": {"uri": "own/noisy.py"}, "region": {"startLine": 1}}),
        ("elsewhere:count", None),
        ("{name: randomized-response, epsilon: 1}", None),
        ("a" * 5000, None),
    ],
)
def test_sarif_names_the_file_if_it_exists(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: str, where: object
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    for name in ("audit one.yaml", "own/noisy.py"):
        (tmp_path / name).write_text("import math\n\ndef count(rows, rng):\n    return len(rows)\n")
    write_for_ci(report, subject, sarif=tmp_path / "found.sarif")
    ((result,),) = (run["results"] for run in json.loads((tmp_path / "found.sarif").read_text())["runs"])
    (place,) = result["locations"]
    assert place.get("physicalLocation") == where
    assert place.get("logicalLocations") == (None if where else [{"fullyQualifiedName": subject}])


def test_leak_location_is_in_every_file(report: Report, tmp_path: Path) -> None:
    honest, false = report.results
    located = replace(
        report, results=(replace(honest, leak_location=("nowhere",)), replace(false, leak_location=("in row 7.",)))
    )
    files = {name: tmp_path / name for name in ("junit", "sarif", "summary")}
    write_for_ci(located, "it", **files)
    for name, file in files.items():
        assert re.search(r"where:? +in row 7\\?\.", file.read_text()), name
        assert "nowhere" not in file.read_text(), name
    with pytest.raises(VerdictError, match=r"(?s)VIOLATION  half the scale\n.*\n  where +in row 7\."):
        located.raise_for_verdict()


def test_summary_is_appended_to_the_file(report: Report, tmp_path: Path) -> None:
    (tmp_path / "summary.md").write_text("# Before\n\n")
    write_for_ci(report, str(SPEC), summary=tmp_path / "summary.md")
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("# Before\n\n## Privacy audit: half the scale\n\n|audit|verdict|finding|")
    assert "|half the scale|**VIOLATION**|" in text
    assert "|honest|**NO VIOLATION FOUND**|" in text
    visible_text = "".join(token.content for token in tokens_of(text) if token.type == "text")
    assert report.results[1].answer.sentence in visible_text
    assert report.results[0].answer.line("sensitivity")
    assert all(text in visible_text for result in report.results for _, text in result.answer.lines)


NOTHING_CLAIMED = Claim(math.inf, relation=Relation.LABEL)


@pytest.mark.parametrize(
    ("verdict", "number", "changes", "kind", "level"),
    [
        (Verdict.FAILED, 0, {"finding": None}, "error", "warning"),
        (Verdict.INCONCLUSIVE, 0, {"sensitivity": Sensitivity(reference_failed=True)}, "skipped", "note"),
        (Verdict.UNDECIDED, 1, {"confirmation": Confirmation.MISSING}, "failure", "warning"),
        (Verdict.NO_CLAIM, 0, {"compared": ConvertedClaim(NOTHING_CLAIMED)}, "skipped", None),
    ],
)
def test_verdict_without_evidence_is_not_a_pass(
    report: Report, tmp_path: Path, verdict: Verdict, number: int, changes: Any, kind: str, level: str | None
) -> None:
    single = replace(report, results=(replace(report.results[number], **changes),))
    assert single.results[0].verdict is verdict
    write_for_ci(single, "it", junit=tmp_path / "j.xml", sarif=tmp_path / "s.sarif")
    ((case,),) = ET.parse(tmp_path / "j.xml").getroot()
    assert case.find(kind) is not None
    (run,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    assert [result["level"] for result in run["results"]] == ([level] if level else [])


def test_side_finding_is_a_warning_in_a_pass(report: Report, tmp_path: Path) -> None:
    honest, false = report.results
    digits, again = replace(false, name="digits"), replace(false, name="digits, confirmatory run")
    together = JointTest(side={"digits": Scope.FLOATING_POINT})
    joint = JointVerdict("checked", (honest, digits), {"digits": again}, together, 0.999)
    assert joint.verdict is Verdict.NO_VIOLATION
    checked = replace(report, joint=joint, results=(honest, digits, again))
    files = {name: tmp_path / name for name in ("junit", "sarif", "summary")}
    write_for_ci(checked, "it", **files)
    ((case,),) = ET.parse(files["junit"]).getroot()
    assert case.find("failure") is None
    assert str(case.findtext("system-err")).startswith("WARNING floating-point: digits far below the noise")
    (run,) = json.loads(files["sarif"].read_text())["runs"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [("side-floating-point", "warning")]
    assert "- ⚠ floating-point: " in files["summary"].read_text()


def test_names_are_escaped(report: Report, tmp_path: Path) -> None:
    odd = replace(report, name="<b>&|\x1b[31m\x00", results=(replace(report.results[1], name="a|b <i> \x07"),))
    write_for_ci(odd, "it", junit=tmp_path / "j.xml", sarif=tmp_path / "s.sarif", summary=tmp_path / "s.md")
    ((case,),) = ET.parse(tmp_path / "j.xml").getroot()
    assert "a|b <i>" in case.attrib["name"]
    assert json.loads((tmp_path / "s.sarif").read_text())["runs"]
    text = (tmp_path / "s.md").read_text()
    assert "<" not in text
    assert "a\\|b" in text
    assert not {"\x1b", "\x00", "\x07"} & set(text)


HOSTILE = (
    "[words](https://evil.example) ![seen](https://evil.example/p.png) <https://evil.example> [a]: /b",
    "https://evil.example www.evil.example _www.evil.example ftp://evil.example me@evil.example @everyone #12 !34",
    "`code` ``more`` **bold** _it_ ~~no~~ $x$ | cell | \\",
    "a\\|b \\`c\\` &lt;b&gt; &#64;all <script>alert(1)</script> <!-- <img src=x onerror=alert(1)>",
    "# heading", "- list", "+ list", "12. list", "3) list", "> quoted", "---", "===", "    code", "```", "~~~", "| a |",
    "first\n\n# second\n- third\n\n    fourth",
)  # fmt: skip
LINKED_AFTERWARDS = re.compile(r"(?i)\w://|www\.|@\w|#\d|!\d")
"""Text that services turn into links after Markdown has been parsed."""


def tokens_of(markdown: str) -> list[Token]:
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    return [part for token in parsed for part in (token, *(token.children or ()))]


@pytest.mark.parametrize("words", HOSTILE)
def test_foreign_text_is_escaped_in_a_summary(report: Report, tmp_path: Path, words: str) -> None:
    def written(name: str, error: str) -> list[Token]:
        (tmp_path / "s.md").unlink(missing_ok=True)
        (renamed,) = (replace(report.results[1], name=name, leak_location=(error,)),)
        write_for_ci(replace(report, name=name, results=(renamed,)), "it", summary=tmp_path / "s.md")
        return tokens_of((tmp_path / "s.md").read_text())

    plain, odd = written("one", "two"), written(words, words)
    assert [token.type for token in odd] == [token.type for token in plain]
    texts = [token.content for token in odd if token.type == "text"]
    assert not [text for text in texts if LINKED_AFTERWARDS.search(text)]
    heading, *_, where = [text.replace("\u200b", "") for text in texts if one_line(words) in text.replace("\u200b", "")]
    assert heading == f"Privacy audit: {one_line(words)}"
    assert where.endswith(one_line(words))


def one_line(words: str) -> str:
    return " ".join(printable(words).split())


def test_foreign_text_is_not_a_link_in_sarif(report: Report, tmp_path: Path) -> None:
    odd = replace(report, results=(replace(report.results[1], name="[words](https://evil.example)"),))
    write_for_ci(odd, "it", sarif=tmp_path / "s.sarif")
    ((result,),) = (run["results"] for run in json.loads((tmp_path / "s.sarif").read_text())["runs"])
    assert result["message"]["text"].startswith("VIOLATION  [words] (https://evil.example)\n")


def test_command_writes_the_files_and_exits_with_the_code_of_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.read_text())
    arguments = ["run", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "run"), "--quiet", "--fail-on-violation"]
    files = [
        "--junit",
        str(tmp_path / "j.xml"),
        "--sarif",
        str(tmp_path / "s.sarif"),
        "--summary",
        str(tmp_path / "s.md"),
    ]
    ended = CliRunner().invoke(main, [*arguments, *files])
    assert ended.exit_code == 1, ended.output
    assert {path.name for path in tmp_path.iterdir()} >= {"j.xml", "s.sarif", "s.md"}
