"""What a run found, for a model card: a block of Markdown with YAML in front of it, and one page to print.

Both are made of what the run folder says, which may be a stranger's: it is text, and nothing of it runs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dpaudit.actors.events import events_in
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.actors.storage.places import inside
from dpaudit.engine.reading.noted import last_note
from dpaudit.engine.reading.run_report import NOT_SHOWN
from dpaudit.engine.reading.verdict import COLOURS, NEXT, Verdict
from dpaudit.engine.report.markdown import markdown_text
from dpaudit.engine.run.run_folder import PLAN, read_plan
from dpaudit.engine.run.watching import WORSE, Found, run_status
from dpaudit.errors import SpecError, shortened

NO_PROOF = "No proof of privacy: an audit can refute a claim, it cannot confirm one."
ON_PAGE, SHOWN = 8, 3
"""Audits on the page to print; so many at most are told with their details."""


@dataclass(frozen=True)
class _Line:
    """One verdict, and what belongs to it."""

    name: str
    verdict: Verdict
    claim: str
    found: str
    epsilon: float | None  # the lower bound, at `delta`; None where the finding is none
    delta: float | None
    sure: str  # confidence, and in what sense it is valid
    seen: tuple[str, ...]  # what could have been detected
    assumes: str
    audited: str  # the mechanism, its data and the game


@dataclass(frozen=True)
class ModelCard:
    """What a run found, where that comes from, and how it is found again.

    Attributes:
        name: The spec's name.
        lines: The verdicts, worst news first; of tests of one claim the one.
        facts: What it was made from: date, version, fingerprints.
        command: What runs it again.
        cautions: What a reader must know before believing the rest.
    """

    name: str
    lines: tuple[_Line, ...]
    facts: Mapping[str, str]
    command: str
    cautions: tuple[str, ...]

    @classmethod
    def of(cls, place: str | Path) -> ModelCard:
        """That of a run folder, a path or a URI; it is read, and nothing runs.

        Raises: SpecError where it is no run folder, or has no report; RunError where it cannot be read.
        """
        status = run_status(place)
        found = status.found
        try:
            lines = [_line(name, one, status.report) for name, one in found.items()]
            name, seed = shortened(status.report["name"]), int(status.report["seed"])
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as err:
            raise status.unreadable() from err
        lines.sort(key=lambda line: -WORSE.index(line.verdict))
        command = f"dpaudit run spec.yaml --seed {seed}"
        return cls(name, tuple(lines), _facts(place, status.heard), command, status.cautions)

    def markdown(self) -> str:
        """The block: YAML between two lines `---`, then Markdown."""
        import yaml

        audits = [
            {
                "name": line.name,
                "verdict": str(line.verdict),
                "claim": line.claim,
                "found": line.found,
                "epsilon_at_least": line.epsilon,
                "delta": line.delta,
                "certainty": line.sure,
                "detectable": list(line.seen),
                "assumes": line.assumes,
                "audited": line.audited,
            }
            for line in self.lines
        ]
        front = {
            "privacy_audit": {
                "means": NO_PROOF,
                "run": self.name,
                "audits": audits,
                **{name.replace(" ", "_"): said for name, said in self.facts.items()},
                "command": self.command,
            }
        }
        # Unfolded: a line of a text never begins a line of the file.
        block = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1 << 20)
        rows = [
            f"| {_text(line.name)} | **{line.verdict}** | {_text(line.claim)} | {_text(line.found)} |"
            for line in self.lines
        ]
        parts = (
            f"---\n{block}---",
            f"## Privacy audit: {_text(self.name)}",
            f"**{NO_PROOF}** {NOT_SHOWN[0]}",
            "\n".join(["| audit | verdict | claim | shown |", "| - | - | - | - |", *rows]),
            "\n".join(point for line in self.lines for point in _points(line)),
            "\n".join(f"- {name.capitalize()}: {_text(said)}" for name, said in self.facts.items()),
            f"Run again, with the spec, the code and the data of these fingerprints: `{self.command}`",
            *self.cautions,
        )
        return "\n\n".join(parts) + "\n"

    def page(self) -> str:
        """One page of A4 to print: all that fits, the worst news first, and how much is left out."""
        from dpaudit.engine.report.page import escaping

        shown = self.lines[:ON_PAGE]
        template = escaping("dpaudit.engine.report").get_template("card.html.j2")
        rendered: str = template.render(
            card=self,
            lines=shown,
            told=shown if len(self.lines) <= SHOWN else (),
            left_out=len(self.lines) - len(shown),
            next_steps={line.verdict.value: NEXT[line.verdict] for line in shown},
            colours={verdict.value: COLOURS[verdict] for verdict in Verdict},
            no_proof=NO_PROOF,
            not_shown=NOT_SHOWN[0],
        )
        return rendered


def _line(name: str, found: Found, report: Mapping[str, Any]) -> _Line:
    """A verdict with what stands of it in `bounds.json`; of tests of one claim, that of the test it rests on."""
    by_name = {one["name"]: one for one in report["results"]}
    joint = report["joint"]
    if joint:
        test = joint.get("rests_on") or next(iter(by_name))
        told = by_name[test]
        if found.verdict is Verdict.VIOLATION:
            told = by_name.get(f"{test}, confirmatory run", told)
        sure, seen = joint["how_sure"], joint["detectable"]
    else:
        told = by_name[name]
        sure, seen = told["certainty"], [told["seen"]]
    finding = told["finding"] or {}
    epsilon, delta = finding.get("lower"), finding.get("delta")
    return _Line(
        shortened(name),
        found.verdict,
        "none" if found.claim.epsilon == float("inf") else shortened(found.claim),
        shortened(found.observed, 400) or "no bound",
        None if epsilon is None else float(epsilon),
        None if delta is None else float(delta),
        shortened(sure, 400),
        tuple(shortened(one, 400) for one in seen if one),
        shortened(told["assumes"], 400),
        shortened(f"{told['mechanism']} on {told['data']}; {told['game']}", 400),
    )


def _facts(place: str | Path, heard: datetime | None) -> dict[str, str]:
    """When and by what it was found, and what data, code, spec and results are known by."""
    store = FileStore.at(place)
    with store.answering("must be a run folder that can be read"):
        plan, log = store.content(PLAN), store.content("events.jsonl")
    record = read_plan(plan or b"", inside(place, PLAN), ["key"]).schema.metadata or {}
    try:
        about = json.loads(record[b"record"])
        own = {str(name): str(digest)[:16] for name, digest in about["own"].items()}
        shared, version, spec = sorted(map(str, about["shared"])), str(about["version"]), str(about["spec"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise SpecError(f"{shortened(place)} must have a plan.parquet of this version; run it again") from err
    noted = last_note(event for event in events_in(io.BytesIO(log or b"")) if event is not None)
    facts = {
        "date": "" if heard is None else f"{heard:%Y-%m-%d}",
        "version": f"dpaudit {version}",
        "data": ", ".join(shared),
        "code": ", ".join(f"{name} {digest}" for name, digest in own.items()) or "of dpaudit alone",
        "spec": f"spec.yaml sha256:{spec}",
        "results": noted,
    }
    return {name: shortened(said, 500) for name, said in facts.items() if said}


def _points(line: _Line) -> list[str]:
    """What belongs to a verdict, as a list."""
    told = {
        "Certainty": line.sure,
        "What could have been detected": "; ".join(line.seen) or "not known",
        "Assumed": line.assumes,
        "Audited": line.audited,
    }
    points = (f"  - {what}: {_text(said)}" for what, said in told.items() if said)
    return [f"- {_text(line.name)}", *points, f"  - Next: {NEXT[line.verdict]}"]


def _text(said: str) -> str:
    """Return a line of Markdown without markup, with signs of comparison in place of their ASCII forms."""
    return markdown_text(said.replace(">=", "≥").replace("<=", "≤"))
