"""Every verdict and kind of evidence, for every verb: short, without contradiction, with advice that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import click
import pytest

from dpaudit import Claim
from dpaudit.claims import Relation, Scope
from dpaudit.engine.answer.record import Record, Verb
from dpaudit.engine.answer.verdict import Answer, Verdict, decide
from dpaudit.engine.cli.main import main
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Validity
from tests.engine.answer_situations import SITUATIONS, alone, bound, record
from tests.loops import Cases

MOST_LINES = 8
DOUBTS = ("reason", "caution", "budget", "part", *(scope.value for scope in Scope))
BLUE = (Verdict.NO_VIOLATION, Verdict.INCONCLUSIVE, Verdict.NO_CLAIM)
COUNTS = Bound(3.1, 0.0, 0.95, "clopper-pearson", Validity.FINITE_SAMPLE, counts=(("tp", 9), ("fp", 9)))
EVIDENCE = {
    "most guesses right": bound(0.0, guesses=154, correct=129),
    "few guesses of many": replace(bound(0.3), counts=(("guesses", 17), ("correct", 13), ("canaries", 300))),
    "no right guess": bound(0.0, guesses=1, correct=0),
    "with delta": replace(bound(0.9), delta=1e-5),
    "counts": COUNTS,
}
"""Evidence by its kind; none of it rejects a claim of 4."""
COMMAND = re.compile(r"`dpaudit ([^`]+)`")


def answers() -> Iterator[tuple[str, Verb, Answer]]:
    """Yield a name, verb and answer of each situation, and of each kind of evidence that rejects no claim."""
    rows = Claim(4.0, relation=Relation.ADD_REMOVE)
    records = {name: situation.record for name, situation in SITUATIONS.items()}
    records |= {name: alone(record(finding.lower, rows, finding=finding)) for name, finding in EVIDENCE.items()}
    for name, each in records.items():
        for verb in Verb:
            yield f"{name}, {verb}", verb, decide(replace(each, verb=verb))


def test_answers_are_short() -> None:
    with Cases() as cases:
        for name, _, answer in answers():
            with cases.case(name):
                labels = [line.split()[0] for line in answer.text().splitlines()[1:]]
                doubts = sum(label in DOUBTS for label in labels)
                assert 1 + len(labels) <= MOST_LINES + doubts, answer.text()


def shares(text: str) -> list[float]:
    """Return all shares in percent."""
    return [float(share) for share in re.findall(r"([0-9.]+) %", text)]


def test_no_sentence_contradicts_its_verdict() -> None:
    """Under a verdict that is not against the claim, the share of right guesses is one that the bound proves."""
    printed = set()
    with Cases() as cases:
        for name, _, answer in answers():
            evidence = answer.line("evidence")
            for text in (answer.sentence, evidence):
                with cases.case(name):
                    printed.add((answer.verdict, "was right in" in text, "is proved right in" in text))
                    if answer.verdict in BLUE:
                        assert "was right in" not in text, text
                    if "is proved right in" in text and "allows at most" in text:
                        proved, allowed, *_ = shares(text)
                        assert 50 < proved <= allowed, text
    assert {(Verdict.VIOLATION, True, False), (Verdict.NO_VIOLATION, False, True)} <= printed


def test_advice_names_commands_and_options_of_its_verb() -> None:
    context, verbs = click.Context(main), set()
    with Cases() as cases:
        for name, verb, answer in answers():
            for advised in COMMAND.findall(" ".join((answer.next_step, *(text for _, text in answer.lines)))):
                with cases.case(f"{name}: {advised}"):
                    command = main.get_command(context, advised.split()[0])
                    assert command is not None
                    options = {option for parameter in command.params for option in parameter.opts}
                    assert set(re.findall(r"--[a-z-]+", advised)) <= options
                    assert advised.split()[0] == verb
                    verbs.add(verb)
    assert verbs >= {Verb.RUN, Verb.CHECK, Verb.ESTIMATE, Verb.SYNTHETIC}


@pytest.mark.parametrize("verb", Verb)
def test_nobody_is_told_to_do_what_the_verb_cannot(verb: Verb) -> None:
    advice = " ".join(decide(replace(each.record, verb=verb)).next_step for each in SITUATIONS.values())
    assert ("--until-decided" in advice) == (verb is Verb.CHECK)
    if verb in (Verb.ESTIMATE, Verb.SYNTHETIC, Verb.TEXTS):
        assert "another seed" not in advice
        assert "spec" not in advice.split()


def test_a_record_is_that_of_a_run_unless_stated() -> None:
    assert Record("audit").verb is Verb.RUN
