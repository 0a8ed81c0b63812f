"""Results of a run for a model card (Markdown with YAML front matter, and a page to print), and its leaking records.

All quote the run folder, which anyone may have written. It is parsed as data and nothing runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dpaudit.actors.storage.bounded_parquet import read_bounded
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.engine.answer.answer_words import NOT_SHOWN, advice, mu_line
from dpaudit.engine.answer.stated_values import StatedValue
from dpaudit.engine.answer.verdict import COLOURS, Verdict
from dpaudit.engine.report.ci_files import markdown_text
from dpaudit.engine.request.audit_spec import MAX_SEED, slug
from dpaudit.engine.run.run_status import VERDICTS_BY_SEVERITY, RunStatus, claim_point, run_status
from dpaudit.errors import DataError, RunError, SpecError, shortened

if TYPE_CHECKING:
    from dpaudit.engine.answer.records import Records

NO_PROOF = "No proof of privacy: an audit can reject a claim, it cannot confirm one."
REJECTED = "A claim is rejected: more leaks than was promised."
AGAIN = "your training with dpaudit.TrainingAudit"
"""Command that audits another training."""
MAX_ON_PAGE = 8
"""Most audits on the printed page."""
MAX_DETAILED = 3
"""Most audits for which the printed page gives details."""


@dataclass(frozen=True)
class CardLine:
    """A verdict with its details."""

    name: str
    verdict: Verdict
    claim: str
    bound: str
    epsilon: float | None  # lower bound at `delta`; None if the finding has none
    delta: float | None
    sentence: str  # the result in plain language
    printed: tuple[tuple[str, str], ...]  # label and text of each line of the answer
    assumes: str
    audited: str  # mechanism, data and game


@dataclass(frozen=True)
class ModelCard:
    """Verdicts of a run, their origin, and the command that reproduces them.

    Attributes:
        name: The spec's name.
        lines: The verdicts, the most severe first; a check has one for all its tests.
        facts: Date, version and fingerprints by name.
        command: Command that reruns the audits.
        cautions: Limits of these values, for the reader.
    """

    name: str
    lines: tuple[CardLine, ...]
    facts: Mapping[str, str]
    command: str
    cautions: tuple[str, ...]

    @classmethod
    def of(cls, place: str | Path) -> ModelCard:
        """Build the card of a run folder, a path or a URI; nothing runs.

        Raises: SpecError if it is no run folder, or has no report; RunError if it cannot be read.
        """
        status = run_status(place)
        outcomes, report = status.outcomes, status.report
        by_name = {result["name"].name(): result for result in report["results"].items()}
        lines = [_line(name, *outcome, by_name, report["joint"]) for name, outcome in outcomes.items()]
        lines.sort(key=lambda line: -VERDICTS_BY_SEVERITY.index(line.verdict))
        if not status.plan_metadata and report["training"]:  # of a run, the fingerprints are in its plan
            facts = {name: report["training"][name].text(500) for name in report["training"].names()}
            return cls(report["name"].text(120), tuple(lines), facts, AGAIN, status.cautions)
        command = f"dpaudit run spec.yaml --seed {report['seed'].integer(0, MAX_SEED - 1)}"
        return cls(report["name"].text(120), tuple(lines), _facts(status), command, status.cautions)

    @property
    def means(self) -> str:
        """Meaning of the card in a sentence."""
        return REJECTED if any(line.verdict is Verdict.VIOLATION for line in self.lines) else NO_PROOF

    @property
    def caution(self) -> str:
        """Sentence on the limits of a low bound; "" if every claim is rejected."""
        return "" if all(line.verdict is Verdict.VIOLATION for line in self.lines) else NOT_SHOWN[0]

    def markdown(self) -> str:
        """Return the block: YAML between two lines `---`, then Markdown."""
        import yaml

        audits = [
            {
                "name": line.name,
                "verdict": str(line.verdict),
                "claim": line.claim,
                "found": line.bound,
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
                **{name.replace(" ", "_"): text for name, text in self.facts.items()},
                "command": self.command,
            }
        }
        # Without folding, no text of the run folder can start a line of the file.
        block = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1 << 20)
        rows = [
            f"| {escaped(line.name)} | **{line.verdict}** | {escaped(line.claim)} | {escaped(line.bound)} |"
            for line in self.lines
        ]
        parts = (
            f"---\n{block}---",
            f"## Privacy audit: {escaped(self.name)}",
            f"**{self.means}** {self.caution}".strip(),
            "\n".join(["| audit | verdict | claim | shown |", "| - | - | - | - |", *rows]),
            "\n".join(point for line in self.lines for point in _points(line)),
            "\n".join(f"- {name.capitalize()}: {escaped(text)}" for name, text in self.facts.items()),
            f"Run again, with the spec, the code and the data of these fingerprints: `{self.command}`",
            *self.cautions,
        )
        return "\n\n".join(parts) + "\n"

    def page(self) -> str:
        """Return an A4 page in HTML: the most severe verdicts first, and the number of verdicts left out."""
        from dpaudit.engine.report.page import escaping

        lines = self.lines[:MAX_ON_PAGE]
        template = escaping("dpaudit.engine.report").get_template("card.html.j2")
        rendered: str = template.render(
            card=self,
            lines=lines,
            told=lines if len(self.lines) <= MAX_DETAILED else (),
            left_out=len(self.lines) - len(lines),
            next_steps={line.verdict.value: advice(line.verdict) for line in lines},
            colours={verdict.value: COLOURS[verdict] for verdict in Verdict},
            means=self.means,
            not_shown=self.caution,
        )
        return rendered


def _line(name: str, verdict: Verdict, claim: str, by_name: Mapping[str, StatedValue], joint: StatedValue) -> CardLine:
    """Return a verdict with its details in `bounds.json`; for a check, with the details of the deciding test."""
    if joint and name not in by_name:
        test = joint["rests_on"].name() if joint["rests_on"] else next(iter(by_name))
        if test not in by_name:
            raise joint["rests_on"].refusal("must be the name of a result", repr(shortened(test)))
        result = by_name[test]
        if verdict is Verdict.VIOLATION:
            result = by_name.get(f"{test}, confirmatory run", result)
        answer = joint["answer"]
    else:
        result = by_name[name]
        answer = result["answer"]
    sentence = answer["sentence"].text(400)
    finding = result["finding"]
    lower, delta = (finding["lower"], finding["delta"]) if finding else (finding, finding)
    pairs = map(_pair, answer["lines"].items())
    printed = tuple(pair for pair in pairs if pair[1] != sentence.rstrip("."))
    if result["mu"] and (gaussian := mu_line(result["mu"].number(0))):
        printed += (("Gaussian DP", gaussian.removeprefix("Gaussian DP: ")),)
    return CardLine(
        shortened(name),
        verdict,
        shortened(claim),
        next((text for label, text in printed if label == "lower bound"), "no bound"),
        None if lower.value is None else lower.number(),
        None if delta.value is None else delta.number(0, 1),
        sentence,
        printed,
        result["assumes"].text(400),
        shortened(f"{result['mechanism'].text()} on {result['data'].text()}; {result['game'].text()}", 400),
    )


def _by_label(printed: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return lines by their label, several of one label joined."""
    labels = dict.fromkeys(label for label, _ in printed)
    return {label: "; ".join(text for text_label, text in printed if text_label == label) for label in labels}


def _pair(line: StatedValue) -> tuple[str, str]:
    """Return label and text of a line."""
    parts = list(line.items())
    if len(parts) != 2:
        raise line.refusal("must be a label and a text", f"{len(parts)} values")
    label, text = parts
    return label.text(40), text.text(600)


def _facts(status: RunStatus) -> dict[str, str]:
    """Return date, version, and fingerprints of data, code, spec and results."""
    try:
        about = json.loads(status.plan_metadata[b"record"])
        user_modules = {str(name): str(digest)[:16] for name, digest in about["own"].items()}
        shared, version, spec = sorted(map(str, about["shared"])), str(about["version"]), str(about["spec"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise SpecError(f"{shortened(status.place)} has no plan.parquet of this version. Run it again") from err
    facts = {
        "date": "" if status.last_event_at is None else f"{status.last_event_at:%Y-%m-%d}",
        "version": f"dpaudit {version}",
        "data": ", ".join(shared),
        "code": ", ".join(f"{name} {digest}" for name, digest in user_modules.items()) or "of dpaudit alone",
        "spec": f"spec.yaml sha256:{spec}",
        "results": status.recorded_checksum,
    }
    return {name: shortened(text, 500) for name, text in facts.items() if text}


def _points(line: CardLine) -> list[str]:
    """Return the lines of a Markdown list with the details of a verdict."""
    front_matter = {
        "Found": line.sentence,
        **{label.capitalize(): text for label, text in _by_label(line.printed).items()},
        "Assumed": line.assumes,
        "Audited": line.audited,
    }
    points = (f"  - {escaped(what)}: {escaped(text)}" for what, text in front_matter.items() if text)
    return [f"- {escaped(line.name)}", *points]


def escaped(text: str) -> str:
    """Return a line of Markdown with markup escaped and ≥, ≤ in place of >=, <=."""
    return markdown_text(text.replace(">=", "≥").replace("<=", "≤"))


def records_in(place: str | Path, *, top: int, rate: float, audit: str | None) -> Records:
    """Return `Report.records` of the run folder `place`, a path or a URI.

    Raises: SpecError if it is no run folder with a report, or its game does not tell records apart; RunError if no
        scores were kept.
    """
    from dpaudit.engine.answer.records import Records  # its statistics are slow to import

    status = run_status(place)
    status.outcomes  # noqa: B018 - refuses a run without a report
    store = FileStore.at(place)
    with store.explain_errors("must be a run folder that can be read"):
        spec = store.content("spec.yaml") or b""
        names = sorted(store.file_infos())
    name, game = Records.selected_audit(spec.decode(errors="replace"), audit)
    results = [result for result in status.report["results"].items() if result["name"].name() == name]
    if len(results) != 1:
        raise SpecError(f"{shortened(place)} must have a report of {shortened(name)!r}; `dpaudit report` writes it")
    claim = claim_point(results[0]["compared_with"])
    files = [file for file in names if file.startswith(f"scores/{slug(name)}/") and file.endswith(".parquet")]
    if not files:
        raise RunError(f"{shortened(place)} has no scores of {name!r}. Run the audit with keep_scores = true")
    tables = []
    for file in files:
        with store.explain_errors("must be a run folder that can be read"):
            content = store.content(file) or b""
        try:
            tables.append(read_bounded(pa.BufferReader(content), file, list(Records.COLUMNS)))
        except (pa.ArrowException, ValueError, KeyError) as err:
            raise DataError(f"{shortened(file)} is not a readable score table") from err
    return Records.of(name, game, claim, tables, top=top, rate=rate)
