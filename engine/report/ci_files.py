"""Results of a run for CI services: JUnit XML, SARIF 2.1.0, and a summary in Markdown."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import dpaudit
from dpaudit.engine.answer.answer_words import advice
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.answer.verdict import Answer, Verdict
from dpaudit.errors import printable, printable_lines
from dpaudit.plain_files import write_user_file

_IN_JUNIT = {
    Verdict.VIOLATION: "failure",
    Verdict.UNDECIDED: "failure",
    Verdict.FAILED: "error",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.NO_CLAIM: "skipped",
}
_IN_SARIF = {
    Verdict.VIOLATION: "error",
    Verdict.UNDECIDED: "warning",
    Verdict.FAILED: "warning",
    Verdict.INCONCLUSIVE: "note",
}
RESULTS_KEPT = "; the results are in the run folder"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ZERO_WIDTH_SPACE = "&#8203;"  # because renderers look for mentions and addresses after unescaping
# An entity for the backslash, because some renderers ignore the end of a table cell after two backslashes.
_AS_TEXT = str.maketrans({sign: f"\\{sign}" for sign in "`*_[]{}|~!$>#@^"} | {"&": "&amp;", "<": "&lt;", "\\": "&#92;"})
_OPENS_A_BLOCK = re.compile(r"([-+=]|\d+[.)])")  # at the beginning of a line


def write_for_ci(
    report: Report, subject: str, *, junit: Path | None = None, sarif: Path | None = None, summary: Path | None = None
) -> None:
    """Write the requested files.

    FAILED and INCONCLUSIVE do not pass: they are an error and a skipped test in JUnit, a warning and a note in SARIF.

    Args:
        report: Report of the run; several tests of one claim give one joint verdict.
        subject: Audited object: the path of a spec, "module:name", or a mechanism in words.
        junit: Path of the JUnit XML.
        sarif: Path of the SARIF 2.1.0 file.
        summary: Path of the Markdown; an existing file is appended to, as CI services expect.
    Raises: RunError if a file cannot be written.
    """
    if junit is not None:
        write_user_file(junit, _junit(report), RESULTS_KEPT)
    if sarif is not None:
        write_user_file(sarif, _sarif(report, subject), RESULTS_KEPT)
    if summary is not None:
        write_user_file(summary, _markdown(report).encode(), RESULTS_KEPT, append=True)


def _junit(report: Report) -> bytes:
    answers = report.answers
    kinds = [_IN_JUNIT.get(answer.verdict, "") for answer in answers]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite = ET.Element("testsuite", name=printable(report.name), tests=str(len(answers)), time=f"{report.seconds:.3f}")
    suite.attrib |= {name: str(kinds.count(kind)) for name, kind in counts.items()}
    for answer, kind in zip(answers, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname=printable(report.name), name=printable(answer.name))
        if kind:
            ET.SubElement(case, kind, message=printable(answer.headline), type=answer.verdict).text = answer.text()
        else:
            ET.SubElement(case, "system-out").text = answer.text()
        warnings = [printable(f"{scope}: {answer.line(scope.value)}") for scope in answer.side]
        if warnings:
            ET.SubElement(case, "system-err").text = "\n".join(f"WARNING {line}" for line in warnings)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _sarif(report: Report, subject: str) -> bytes:
    results, rules = [], dict[str, str]()
    for answer in report.answers:
        findings = (
            [(_rule(answer.verdict), _IN_SARIF[answer.verdict], answer.text())] if answer.verdict in _IN_SARIF else []
        )
        rules |= {_rule(answer.verdict): str(answer.verdict)} if findings else {}
        findings += [(f"side-{scope}", "warning", answer.line(scope.value)) for scope in answer.side]
        rules |= {f"side-{scope}": f"Side finding: {scope}" for scope in answer.side}
        results += [
            {
                "ruleId": rule,
                "level": level,
                # SARIF reads `[words](address)` as a link.
                "message": {"text": printable_lines(text).replace("](", "] (")},
                "locations": [_location(subject, answer.name)],
                "partialFingerprints": {"audit/v1": printable(f"{answer.name} {rule}")},
            }
            for rule, level, text in findings
        ]
    helps = {str(verdict): advice(verdict) for verdict in Verdict}
    described = [
        {"id": rule, "shortDescription": {"text": words}, "help": {"text": helps.get(words, words)}}
        for rule, words in rules.items()
    ]
    driver = {"name": "dpaudit", "version": dpaudit.__version__, "rules": described}
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2).encode() + b"\n"


def _location(subject: str, audit: str) -> dict[str, Any]:
    """Return the location of a subject: its file, relative to the working folder, and the line of its code or audit.

    A subject without a file has a logical location with its name.
    """
    module, _, name = subject.partition(":")
    of_code = re.compile(rf"\s*(async\s+)?(def|class)\s+{re.escape(name) or '$.'}\b")
    of_spec = re.compile(rf".*\bname:\s*[\"']?{re.escape(audit)}[\"']?\s*([,}}#].*)?$")
    for path, begins in ((subject, of_spec), (f"{module.replace('.', '/')}.py", of_code)):
        with contextlib.suppress(OSError, ValueError):  # not a path, or not text
            if Path(path).is_file():
                text = Path(path).read_text(encoding="utf-8").splitlines()
                line = next((number for number, each in enumerate(text, 1) if begins.match(each)), 1)
                uri = quote(Path(path).as_posix())
                return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}}
    return {"logicalLocations": [{"fullyQualifiedName": printable(subject)}]}


def _rule(verdict: Verdict) -> str:
    return verdict.lower().replace(" ", "-")


def _markdown(report: Report) -> str:
    """Return a table of verdicts, and below it the lines of each answer as a list."""
    answers = report.answers
    rows = [
        f"|{markdown_text(answer.name)}|**{answer.verdict}**|{markdown_text(answer.headline)}|" for answer in answers
    ]
    blocks = [
        f"## Privacy audit: {markdown_text(report.name)}",
        "\n".join(["|audit|verdict|finding|", "|-|-|-|", *rows]),
        *(_listed(answer) for answer in answers),
        f"Seed {report.seed}, {report.seconds:.0f} s, dpaudit {dpaudit.__version__}.",
    ]
    return "\n\n".join(blocks) + "\n\n"


def _listed(answer: Answer) -> str:
    """Return the lines of an answer as a Markdown list; side findings begin with a warning."""
    scopes = {scope.value for scope in answer.side}
    lines = [f"**{markdown_text(answer.name)}**: {markdown_text(answer.sentence)}", ""]
    for label, text in answer.below_sentence:
        marked = f"⚠ {label}" if label in scopes else label
        lines.append(f"- {marked}: {markdown_text(text)}")
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    """Return `text` as one line of Markdown, for a heading, a table cell or a list item.

    Links, images, bare addresses, e-mail addresses, mentions and references (`@name`, `#12`), HTML, table pipes, code,
    emphasis, formulas, and lists or headings at the beginning of the line are shown as plain characters.
    """
    line = " ".join(printable(text).split()).translate(_AS_TEXT)
    if opening := _OPENS_A_BLOCK.match(line):
        sign = opening.group()
        line = f"{sign[:-1]}\\{sign[-1]}{line[len(sign) :]}"
    line = re.sub(r"\\([@#!])(?=\w)", rf"\\\1{_ZERO_WIDTH_SPACE}", line)
    line = re.sub(r"(?i)(www)\.", rf"\1{_ZERO_WIDTH_SPACE}.", line)
    return line.replace("://", f":{_ZERO_WIDTH_SPACE}//")
