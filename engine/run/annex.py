"""Annex of a run for a file: measurements by the headings of three published frameworks, and what was not tested.

Every answer is from the run folder, or "not tested". It is never a statement of compliance.
Source: NIST SP 800-226 (2025); EDPB, opinion 28/2024, section 3.2.2; Regulation (EU) 2024/1689, article 15, annex IV.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpaudit.actors.storage.mirror import FileStore
from dpaudit.claims import Relation
from dpaudit.engine.answer.stated_values import StatedValue
from dpaudit.engine.run.model_card import CardLine, ModelCard, escaped
from dpaudit.engine.run.registration import RECEIPT, REGISTRATION

NOT_TESTED = "not tested"
NO_COMPLIANCE = (
    "These are measurements of one audit, by the headings of three frameworks. It is no statement of compliance with "
    "any of them, and no proof of privacy."
)
REGURGITATION = re.compile(r"extraction|exposure")

Section = tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]
"""A framework, and its headings with answers."""


@dataclass(frozen=True)
class Annex:
    """Answers of a run.

    Attributes:
        card: Its verdicts and fingerprints.
        unit: Unit of privacy as registered; "" if the run is not registered.
        has_receipt: True if the run has a receipt.
    """

    card: ModelCard
    unit: str
    has_receipt: bool

    @classmethod
    def of(cls, place: str | Path) -> Annex:
        """Return the annex of a run folder, a path or a URI; nothing runs.

        Raises: SpecError if it is no run folder, or has no report; RunError if it cannot be read.
        """
        card, store = ModelCard.of(place), FileStore.at(place)
        with store.explain_errors("must be a run folder that can be read"):
            registration, receipt = store.content(REGISTRATION), store.content(RECEIPT)
        unit = "" if registration is None else StatedValue.parse(registration, REGISTRATION)["unit"].text(200)
        return cls(card, unit, receipt is not None)

    @property
    def sections(self) -> tuple[Section, ...]:
        """Frameworks with their headings and answers."""
        tested = self._each(lambda line: f"{line.name}: {line.verdict}, {line.bound}; {line.audited}")
        unit = self.unit or "not stated: dpaudit register --unit records it before a run"
        sensitivity = self._labelled("sensitivity")
        implementation = (*self._labelled("floating-point"), *self._labelled("beyond-schema"))
        timing = self._labelled("timing")
        scope = self._each(lambda line: f"{line.name}: {line.assumes}")
        nist = (
            ("Privacy parameters (claimed)", self._each(lambda line: f"{line.name}: {line.claim}")),
            ("Unit of privacy", (unit,)),
            ("Threat model of the tests", scope),
            ("Algorithms: do they keep the claimed parameters?", tested),
            ("Smallest violation that would have been detected", sensitivity),
            ("Implementation: floating point, rows that the schema does not allow", implementation),
            ("Implementation: timing side channels", timing),
            ("Utility and bias", ()),
            ("Data security, access control, data collection", ()),
        )
        edpb = (
            ("Design: sources, minimisation, methods of training, outputs", ()),
            ("Analysis: documents, code review", ()),
            ("Testing: membership inference", self._attacks(lambda relation: relation != Relation.LABEL)),
            ("Testing: attribute inference", self._attacks(lambda relation: relation == Relation.LABEL)),
            ("Testing: exfiltration and model inversion", ()),
            ("Testing: regurgitation of training data", self._regurgitation()),
            ("Documentation of the tests", self._documents()),
        )
        act = (
            ("Annex IV, 2 (g): procedures, data and metrics of validation and testing", tested),
            ("Annex IV, 2 (g): test logs and reports, dated and signed", self._documents()),
            ("Annex IV, 3: limits of the measured performance", (self.card.means, *self.card.cautions[:1])),
            ("Article 15 (5): resistance to confidentiality attacks", (*tested, *sensitivity)),
            ("Article 15 (5): other attacks (poisoning, evasion)", ()),
        )
        return (
            ("NIST SP 800-226, evaluation of differential privacy", nist),
            ("EDPB, opinion 28/2024, section 3.2.2", edpb),
            ("Regulation (EU) 2024/1689 (AI Act)", act),
        )

    def markdown(self) -> str:
        """Return the annex in Markdown."""
        parts = [f"# Privacy audit, annex: {escaped(self.card.name)}", NO_COMPLIANCE]
        for title, answers in self.sections:
            parts.append(f"## {title}")
            parts += [
                "\n".join([f"- **{heading}**", *(f"    - {escaped(text)}" for text in texts or (NOT_TESTED,))])
                for heading, texts in answers
            ]
        return "\n\n".join(parts) + "\n"

    def page(self) -> str:
        """Return the annex as a page in HTML."""
        from dpaudit.engine.report.page import escaping

        template = escaping("dpaudit.engine.report").get_template("annex.html.j2")
        rendered: str = template.render(annex=self, warning=NO_COMPLIANCE, not_tested=NOT_TESTED)
        return rendered

    def _each(self, words: Callable[[CardLine], str]) -> tuple[str, ...]:
        return tuple(words(line) for line in self.card.lines)

    def _labelled(self, label: str) -> tuple[str, ...]:
        return tuple(f"{line.name}: {text}" for line in self.card.lines for name, text in line.printed if name == label)

    def _attacks(self, fits: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the outcomes whose claim is about neighbours that fit; a label is an attribute."""
        claims = {line.name: dict(line.printed).get("claim", "") for line in self.card.lines}
        relations = [(line, re.search(r"\(([\w-]+), delta", claims[line.name])) for line in self.card.lines]
        chosen = [line for line, relation in relations if relation and fits(relation[1])]
        return tuple(f"{line.name}: {line.verdict}, {line.bound}" for line in chosen)

    def _regurgitation(self) -> tuple[str, ...]:
        chosen = [line for line in self.card.lines if REGURGITATION.search(f"{line.bound} {line.audited}")]
        return tuple(f"{line.name}: {line.verdict}, {line.bound}" for line in chosen)

    def _documents(self) -> tuple[str, ...]:
        facts = tuple(f"{name}: {text}" for name, text in self.card.facts.items())
        receipt = "a receipt is there: dpaudit verify RUN checks it, ssh-keygen -Y sign signs it"
        return (*facts, f"run again by: {self.card.command}", receipt if self.has_receipt else "no receipt")
