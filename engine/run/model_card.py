"""What a run found, for a model card: a block of Markdown with YAML in front of it, and one page to print.

Both are made of what the run folder says, which may be a stranger's: it is text, and nothing of it runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpaudit.engine.reading.answer_words import NEXT, NOT_SHOWN
from dpaudit.engine.reading.stated_values import StatedValue
from dpaudit.engine.reading.verdict import COLOURS, Verdict
from dpaudit.engine.report.markdown import markdown_text
from dpaudit.engine.request.audit_spec import MAX_SEED
from dpaudit.engine.run.watching import WORSE, Found, RunStatus, run_status
from dpaudit.errors import SpecError, shortened

NO_PROOF = "No proof of privacy: an audit can reject a claim, it cannot confirm one."
REJECTED = "A claim is rejected: more leaks than was promised."
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
    sentence: str  # what was found, for a reader who knows no statistics
    printed: tuple[tuple[str, str], ...]  # the lines of the answer: label and text
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
        found, report = status.found, status.report
        by_name = {result["name"].name(): result for result in report["results"].items()}
        lines = [_line(name, one, by_name, report["joint"]) for name, one in found.items()]
        lines.sort(key=lambda line: -WORSE.index(line.verdict))
        command = f"dpaudit run spec.yaml --seed {report['seed'].integer(0, MAX_SEED - 1)}"
        return cls(report["name"].text(120), tuple(lines), _facts(status), command, status.cautions)

    @property
    def means(self) -> str:
        """What the card means, in a sentence."""
        return REJECTED if any(line.verdict is Verdict.VIOLATION for line in self.lines) else NO_PROOF

    @property
    def caution(self) -> str:
        """What a low bound does not mean; "" if every claim is rejected."""
        return "" if all(line.verdict is Verdict.VIOLATION for line in self.lines) else NOT_SHOWN[0]

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
                "sentence": line.sentence,
                "answer": _by_label(line.printed),
                "assumes": line.assumes,
                "audited": line.audited,
            }
            for line in self.lines
        ]
        front = {
            "privacy_audit": {
                "means": self.means,
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
            f"**{self.means}** {self.caution}".strip(),
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
            means=self.means,
            not_shown=self.caution,
        )
        return rendered


def _line(name: str, found: Found, by_name: Mapping[str, StatedValue], joint: StatedValue) -> _Line:
    """A verdict with what stands of it in `bounds.json`; of tests of one claim, that of the test it rests on."""
    if joint and name not in by_name:
        test = joint["rests_on"].name() if joint["rests_on"] else next(iter(by_name))
        if test not in by_name:
            raise joint["rests_on"].refusal("must be the name of a result", repr(shortened(test)))
        told = by_name[test]
        if found.verdict is Verdict.VIOLATION:
            told = by_name.get(f"{test}, confirmatory run", told)
        answer = joint["answer"]
    else:
        told = by_name[name]
        answer = told["answer"]
    sentence = answer["sentence"].text(400)
    pairs = map(_pair, answer["lines"].items())
    printed = tuple(pair for pair in pairs if pair[1] != sentence.rstrip("."))
    return _Line(
        shortened(name),
        found.verdict,
        "none" if found.claim.epsilon == math.inf else shortened(found.claim),
        next((text for label, text in printed if label == "lower bound"), "no bound"),
        *_bound(told["finding"]),
        sentence,
        printed,
        told["assumes"].text(400),
        shortened(f"{told['mechanism'].text()} on {told['data'].text()}; {told['game'].text()}", 400),
    )


def _by_label(printed: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return lines by their label, several of one label joined."""
    labels = dict.fromkeys(label for label, _ in printed)
    return {label: "; ".join(text for each, text in printed if each == label) for label in labels}


def _pair(line: StatedValue) -> tuple[str, str]:
    """Return label and text of a line."""
    parts = list(line.items())
    if len(parts) != 2:
        raise line.refusal("must be a label and a text", f"{len(parts)} values")
    label, text = parts
    return label.text(40), text.text(600)


def _bound(finding: StatedValue) -> tuple[float | None, float | None]:
    """The lower bound and its delta, where the finding has them."""
    if not finding:
        return None, None
    lower, delta = finding["lower"], finding["delta"]
    return (
        None if lower.value is None else lower.number(),
        None if delta.value is None else delta.number(0, 1),
    )


def _facts(status: RunStatus) -> dict[str, str]:
    """When and by what it was found, and what data, code, spec and results are known by."""
    try:
        about = json.loads(status.made_from[b"record"])
        own = {str(name): str(digest)[:16] for name, digest in about["own"].items()}
        shared, version, spec = sorted(map(str, about["shared"])), str(about["version"]), str(about["spec"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise SpecError(f"{shortened(status.place)} must have a plan.parquet of this version; run it again") from err
    facts = {
        "date": "" if status.heard is None else f"{status.heard:%Y-%m-%d}",
        "version": f"dpaudit {version}",
        "data": ", ".join(shared),
        "code": ", ".join(f"{name} {digest}" for name, digest in own.items()) or "of dpaudit alone",
        "spec": f"spec.yaml sha256:{spec}",
        "results": status.noted,
    }
    return {name: shortened(said, 500) for name, said in facts.items() if said}


def _points(line: _Line) -> list[str]:
    """What belongs to a verdict, as a list."""
    told = {
        "Found": line.sentence,
        **{label.capitalize(): text for label, text in _by_label(line.printed).items()},
        "Assumed": line.assumes,
        "Audited": line.audited,
    }
    points = (f"  - {_text(what)}: {_text(said)}" for what, said in told.items() if said)
    return [f"- {_text(line.name)}", *points]


def _text(said: str) -> str:
    """Return a line of Markdown without markup, with signs of comparison in place of their ASCII forms."""
    return markdown_text(said.replace(">=", "≥").replace("<=", "≤"))
