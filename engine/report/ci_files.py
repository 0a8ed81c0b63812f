"""What a run found, for the pages of a CI service: JUnit XML, SARIF 2.1.0, and a summary in Markdown."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import dpaudit
from dpaudit.engine.reading.run_report import Report
from dpaudit.engine.reading.verdict import NEXT, Verdict
from dpaudit.engine.report.markdown import markdown_text
from dpaudit.errors import printable
from dpaudit.plain_files import add_asked, write_asked

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
KEPT = "; what was found is in the run folder"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def write_for_ci(
    report: Report, subject: str, *, junit: Path | None = None, sarif: Path | None = None, summary: Path | None = None
) -> None:
    """Writes the files that were asked for.

    FAILED and INCONCLUSIVE are no pass: an error and a skipped test in JUnit, a warning and a note in SARIF.

    Args:
        report: What was found; of tests of one claim the joint verdict is the one line.
        subject: What was audited: the path of a spec, "module:name", or a mechanism in words.
        junit: Where JUnit XML goes.
        sarif: Where SARIF 2.1.0 goes.
        summary: Where Markdown goes; it is added to a file that is there, as CI services have it.
    Raises: RunError when a file cannot be written.
    """
    if junit is not None:
        write_asked(junit, _junit(report), KEPT)
    if sarif is not None:
        write_asked(sarif, _sarif(report, subject), KEPT)
    if summary is not None:
        add_asked(summary, _markdown(report).encode(), KEPT)


def _junit(report: Report) -> bytes:
    lines = report.told
    kinds = [_IN_JUNIT.get(line.verdict, "") for line in lines]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite = ET.Element("testsuite", name=printable(report.name), tests=str(len(lines)), time=f"{report.seconds:.3f}")
    suite.attrib |= {name: str(kinds.count(kind)) for name, kind in counts.items()}
    for line, kind in zip(lines, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname=printable(report.name), name=printable(line.name))
        if kind:
            ET.SubElement(case, kind, message=printable(line.headline), type=line.verdict).text = line.said
        else:
            ET.SubElement(case, "system-out").text = line.said
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _sarif(report: Report, subject: str) -> bytes:
    told = [line for line in report.told if line.verdict in _IN_SARIF]
    rules = [
        {"id": _rule(verdict), "shortDescription": {"text": str(verdict)}, "help": {"text": NEXT[verdict]}}
        for verdict in _IN_SARIF
        if any(line.verdict is verdict for line in told)
    ]
    results = [
        {
            "ruleId": _rule(line.verdict),
            "level": _IN_SARIF[line.verdict],
            "message": {"text": _without_links(f"{printable(line.name)}: {line.said}")},
            "locations": [_location(subject, line.name)],
            "partialFingerprints": {"audit/v1": printable(line.name)},
        }
        for line in told
    ]
    driver = {"name": "dpaudit", "version": dpaudit.__version__, "rules": rules}
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2).encode() + b"\n"


def _without_links(text: str) -> str:
    """Return `text` without what SARIF takes for a link in plain text, `[words](address)`."""
    return text.replace("](", "] (")


def _location(subject: str, audit: str) -> dict[str, Any]:
    """The file that is there for a subject, as seen from here, and the line of its code or of the audit; or a name."""
    module, _, name = subject.partition(":")
    of_code = re.compile(rf"\s*(async\s+)?(def|class)\s+{re.escape(name) or '$.'}\b")
    of_spec = re.compile(rf".*\bname:\s*[\"']?{re.escape(audit)}[\"']?\s*([,}}#].*)?$")
    for path, begins in ((subject, of_spec), (f"{module.replace('.', '/')}.py", of_code)):
        with contextlib.suppress(OSError, ValueError):  # words that can be no path, bytes that are no text
            if Path(path).is_file():
                text = Path(path).read_text(encoding="utf-8").splitlines()
                line = next((number for number, each in enumerate(text, 1) if begins.match(each)), 1)
                uri = quote(Path(path).as_posix())
                return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}}
    return {"logicalLocations": [{"fullyQualifiedName": printable(subject)}]}


def _rule(verdict: Verdict) -> str:
    return verdict.lower().replace(" ", "-")


def _markdown(report: Report) -> str:
    lines = report.told
    rows = [f"|{markdown_text(line.name)}|**{line.verdict}**|{markdown_text(line.headline)}|" for line in lines]
    after = [
        f"- {markdown_text(line.name)}: {markdown_text(said)}"
        for line in lines
        if line.by is not None
        for said in (line.by.plainly, line.by.seen, line.by.located)
        if said
    ]
    next_steps = [f"- {verdict}: {NEXT[verdict]}" for verdict in dict.fromkeys(line.verdict for line in lines)]
    blocks = (
        f"## Privacy audit: {markdown_text(report.name)}",
        "\n".join(["|audit|verdict|what was found|", "|-|-|-|", *rows]),
        "\n".join(after),
        "\n".join(["What next:", "", *next_steps]),
        f"Seed {report.seed}, {report.seconds:.0f} s, dpaudit {dpaudit.__version__}.",
    )
    return "\n\n".join(block for block in blocks if block) + "\n\n"
