"""Sentences of an answer, made from its record: the same on every page, card and file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dpaudit.claims import Claim, Relation, Scope
from dpaudit.engine.answer.record import Confirmation, Record, Test, Verb
from dpaudit.errors import error_of_code, printable
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Comparison, CurveLimits, Finding, Validity

LEAST_P, MOST_P = 1e-6, 0.2
"""Smallest p-value that is computed, and the largest that is printed as a number."""
POWER = 0.9
"""Probability of detection at which sensitivity is stated."""
MOST_SCALED = 8.0
"""Largest factor on the noise that is tried."""
CURVE_DELTAS, CURVE_ALARMS = (0.0, 1e-5, 1e-3, 0.01, 0.1), (0.001, 0.01, 0.1, 0.3)
"""Deltas and false positive rates at which the whole curve is printed."""
NOT_SHOWN = (
    "A low bound is not evidence of privacy: it measures one attack on one data set.",
    "An upper end, where one is printed, bounds what this attack shows, never the mechanism's privacy loss.",
)
"""Notes at the foot of every report."""

_SUSPECTS = "Treat the claim as false. Check noise scale, query sensitivity, clipping, accounting and seeds, then "
_SAYS_NOTHING = "This audit says nothing about the claim."
_AGAIN = {
    Verb.RUN: "run the audit again with another seed: `dpaudit run --seed 1`",
    Verb.CHECK: "check again with another seed: `dpaudit check --seed 1`",
    Verb.ESTIMATE: "train again with new coins and estimate from the new scores",
    Verb.SYNTHETIC: "split the records again, fit the generator again and audit its table",
    Verb.TEXTS: "train again with new canaries and estimate from the new model",
    Verb.TRAINING: "audit another training with another `seed`",
}
"""Ways to repeat a test with fresh randomness."""
_MORE = {
    Verb.RUN: "state more trials, canaries or rows in the spec",
    Verb.CHECK: "`dpaudit check --effort thorough`",
    Verb.ESTIMATE: "score more rows",
    Verb.SYNTHETIC: "use more rows in both files",
    Verb.TEXTS: "plant more canaries (`n`)",
    Verb.TRAINING: "more steps, or more `coins`",
}
"""Ways to detect smaller leaks, unless the test knows a better one."""
_CLAIM = {
    Verb.RUN: "`claim` in the spec",
    Verb.CHECK: "`dpaudit check --claim 1`",
    Verb.ESTIMATE: "`dpaudit estimate --claim 1`",
    Verb.SYNTHETIC: "`dpaudit synthetic --claim 1`",
    Verb.TEXTS: "`claim=1`",
    Verb.TRAINING: "`noise`",
}
"""Ways to state a claim."""
_NEXT_BY_RULE = {
    "state-between-calls": "Draw new noise in each call from the generator or seed that it gets: no cache, no noise "
    "stored in a module, no `hash` of texts or bytes. Then check again.",
    "results-change": "Make each call depend on its rows and generator alone: no counter, clock or cache. Then check "
    "again in a new process.",
    "independence-not-stated": "Name the method: `--method two-samples` if each row comes from a separate training, "
    "`--method random-subset` if a shuffled split chose the rows of one training, else `--method "
    "simultaneous-guess-count`, for many canaries of one training, each with its coin.",
    "split-not-random": "Split the records (all rows of a person together) uniformly at random, fit the generator "
    "again on one part, and audit it with the other part.",
    "without-noise": "Add noise to every gradient of every step: call `step` of the private optimizer, and give it all "
    "trained parameters. Then train and audit again.",
    "other-training": "State a claim for this sampling and these steps, by an accountant that covers them, or change "
    "the training. Then audit again.",
    "proxy": "Do what the reason says, then run the audit again.",
    "unreadable-results": "Return numbers, text, arrays, tables or plain objects, or give the object a `summary`.",
}
_REASON_BY_RULE = {
    "independence-not-stated": "the default method `{test.assumed_method}` holds only if each row comes from a "
    "separate training, which was not stated",
    "split-not-random": "{test.split_doubt}. Right guesses may come from that alone",
    "stated-noise": "the noise of the training steps is not the stated noise (p < 1e-6)",
    "without-noise": "{test.without_noise}",
    "other-training": "the claim is about another training: {test.differs_from_claim}",
    "results-change": "results change from call to call: the first pass exceeds the claim by more than chance explains "
    "(p <= 1e-6), and the confirmatory run does not. The code may keep state, such as a counter or a clock",
    "digits-cannot-tell": "the test {test.name}, on unrounded results, rejects the claim and the test on rounded "
    "results does so in its first pass alone; the results are whole numbers, so the cause is not floating-point digits",
    "average-record": "the test {test.name} rejects the claim, and the test of the worst record that was found does "
    "not",
}
_OPEN_CONFIRMATION = {
    Confirmation.LESS_CONFIDENT: "the bound exceeds the claim, but not at the stricter confidence that a violation "
    "needs",
    Confirmation.CLOSE: "the bound of the confirmatory run exceeds the claim only at the lower confidence of the first "
    "pass",
    Confirmation.MISSING: "the first pass exceeds the claim, and the confirmatory run did not finish: it failed, or "
    "the budget ended",
}
NO_COMPARISON = "unknown: this test has no reference run without privacy"
NO_DIFFERENCE = "unknown: no difference was seen{}, so the results do not show which leak this test would detect"
VALIDITY = {
    Validity.EXACT: "computed exactly",
    Validity.FINITE_SAMPLE: "finite-sample",
    Validity.ASYMPTOTIC: "asymptotic: valid for many trials only",
    Validity.CREDIBLE: "credible: may exceed the truth more often than stated",
    Validity.CONDITIONAL_ON_FAMILY: "valid only if the trade-off function is of the stated family; rejects no claim",
    Validity.CONDITIONAL_ON_MODEL: "valid only if votes follow the fitted distribution",
    Validity.CONDITIONAL_ON_PROXY: "valid only if the proxy matches the true label distribution",
    Validity.AS_PUBLISHED: "WARNING: as published, chosen on the samples it is measured on; not a valid bound",
}
"""Validity of a bound in words."""
_QUESTIONS = {
    Relation.LABEL: "which of two labels a record had",
    Relation.REPLACE: "which of two records was used",
    Relation.ADD_REMOVE: "whether a record was used",
    Relation.ZERO_OUT: "whether a record contributed",
}
_SIDE = {
    Scope.FLOATING_POINT: "digits far below the noise tell more than the claim allows",
    Scope.BEYOND_SCHEMA: "rows that the schema does not allow give away more than the claim allows",
    Scope.AVERAGE_RECORD: "an ordinary row among ordinary rows gives away more than the claim allows",
}
_HINT = {
    Scope.FLOATING_POINT: "Round results to a fixed step, or add noise in whole steps.",
    Scope.BEYOND_SCHEMA: "Reject or clip such rows before computing, or allow them in the schema (`nullable`, `any`).",
    Scope.AVERAGE_RECORD: "A row need not be unusual to be detected.",
}


DETAILS = ("p-value", "not run")
"""Labels of lines that are printed only with `--verbose`; pages and files have them."""


# One answer


def aligned(first: str, lines: Iterable[tuple[str, str]]) -> str:
    """Return a first line with labelled lines below it, texts aligned in one column."""
    labelled = [(label, printable(text)) for label, text in lines if text]
    width = max((len(label) for label, _ in labelled), default=0)
    return "\n".join([printable(first), *(f"  {label:<{width}}  {text}" for label, text in labelled)])


def lines(record: Record, verdict: str, rule: str, test: Test | None, side: Sequence[Test]) -> list[tuple[str, str]]:
    """Return (label, text) of every line of an answer, in order."""
    if test is None:
        reason = "no test was run: every test failed, or the budget was too short"
        return [("reason", reason), ("next", next_step(record, verdict, rule, test))]
    several = len(record.tests) > 1
    why_not_run = "the claim is already rejected" if verdict == "VIOLATION" else "the budget was spent"
    why_not_run = "another test had rejected the claim" if rule == "state-between-calls" else why_not_run
    all_lines = [
        ("error", _error_of_code(test) if verdict == "FAILED" else ""),
        ("claim", claim_line(test)),
        ("part", f"the claim allows each step {claim_in_words(test.claimed)}" if test.meaning_for_whole else ""),
        ("lower bound", bound_line(test)),
        ("test", test.name if several and test.name != record.name else ""),
        ("evidence", evidence_line(test, verdict)),
        ("p-value", p_value_line(test)),
        *(("reason", text) for text in reasons(record, verdict, rule, test)),
        *(("caution", text) for text in cautions(test)),
        ("where", " ".join(test.leak_location) if test.leak_location and verdict == "VIOLATION" else ""),
        ("sensitivity", sensitivity_line(test, verdict)),
        *((other.scope.value, side_line(other)) for other in side),
        *((other.scope.value, _open_side_test(other)) for other in record.tests if other.scope is not Scope.CLAIM),
        *((other.scope.value, average_line(other)) for other in record.tests if other not in side),
        ("stated-noise", next((test.noise.line for test in record.noisy), "")),
        ("points-to", "; ".join(test.noise.points_to) if test.noise and verdict in ("VIOLATION", "UNDECIDED") else ""),
        ("budget", record.cut if verdict != "VIOLATION" else ""),
        ("not run", f"skipped, because {why_not_run}: {'; '.join(record.not_played)}" if record.not_played else ""),
        ("next", next_step(record, verdict, rule, test)),
    ]
    return [(label, text) for label, text in all_lines if text]


def headline(test: Test | None, verdict: str) -> str:
    """Return claim and bound in one line; for a test of a part, the consequence for the whole."""
    if test is None:
        return "no test was run"
    if test.meaning_for_whole:
        relation = "give away more than" if verdict == "VIOLATION" else "were not seen to give away more than"
        relation = "may give away more than" if verdict == "UNDECIDED" and test.exceeds else relation
        return f"{test.meaning_for_whole[0]}; its steps {relation} their share"
    return claimed_and_observed(test)


def claimed_and_observed(test: Test) -> str:
    """Return the claimed and the observed value at the same point of the claim."""
    comparison, claim = test.comparison, test.compared.claim
    if comparison is None or test.deciding_finding is None:
        return printable(f"no bound: {_error_of_code(test) or _failed(test)}")
    if not test.claims_something:
        return f"nothing claimed, observed {test.deciding_finding.headline}"
    if math.isinf(comparison.claimed):
        claimed = f"the claim says nothing about {comparison.quantity} at {comparison.where};"
    elif comparison.quantity == "epsilon" and (test.compared.note or not _same_point(claim, comparison)):
        stated = f"claimed epsilon {test.claimed.epsilon:g} at delta={test.claimed.delta:g} ({test.claimed.relation})"
        claimed = f"{stated}, which allows {comparison.claimed:g} ({claim.relation}) at {comparison.where},"
    else:
        claimed = f"claimed {comparison.quantity} {comparison.claimed:g},"
    repeated = (
        test.confirmation in (Confirmation.CLOSE, Confirmation.NOT_CONFIRMED)
        and test.at_first_confidence
        and not test.changes
    )
    return f"{claimed} observed {comparison.words}{', confirmatory run' if repeated else ''}"


def sentence(test: Test | None, verdict: str) -> str:
    """Return the result in a sentence for a reader without statistics."""
    if test is None or test.finding is None:
        return "The audit did not finish, so nothing is known about the claim."
    guesses = guesses_in_words(test, verdict)
    if verdict == "INCONCLUSIVE" and test.unreadable:
        return "The code returned results that could not be read, so this audit says nothing about the claim."
    if verdict == "INCONCLUSIVE":
        return "This audit could not have found a violation, so it says nothing about the claim."
    if verdict == "UNDECIDED" and not test.exceeds and test.without_noise:
        return "Steps of the training had no noise, which the claim needs; whether it is broken is not known yet."
    if verdict == "UNDECIDED" and not test.exceeds and test.differs_from_claim and not test.rejects_stated_noise:
        return "The training is not the one that the claim is about; whether the claim is broken is not known yet."
    if verdict == "UNDECIDED" and not test.exceeds:
        return "The noise is not the noise that was stated; whether the claim is broken is not known yet."
    if verdict == "UNDECIDED":
        return f"{guesses or 'More was seen than the claim allows.'} It is not known yet whether the claim is broken."
    if guesses:
        return guesses
    comparison = test.comparison
    if comparison is None or verdict == "NO CLAIM":
        return "Nothing was claimed; the bound says how much leaks at least."
    if test.meaning_for_whole and comparison.quantity == "total variation":
        least, most = format_lower(50 * (1 + comparison.observed), 1), 50 * (1 + comparison.claimed)
        detected = f"In at least {least} % of the steps an attacker guesses correctly whether a record was used"
        return f"{detected}; the claim allows at most {most:.3g} %; guessing gives 50 %."
    if verdict == "VIOLATION":
        least = format_lower(comparison.observed)
        return f"At least {comparison.quantity} {least} leaks; the claim allows {_claimed_number(comparison)}."
    return "This audit found no leak larger than the claim allows."


def guesses_in_words(test: Test, verdict: str) -> str:
    """Return the success rate of the attacker, in a sentence; "" if no guesses were counted.

    The number of guesses with the largest bound is chosen afterwards, so its share of right guesses may exceed the
    claim by chance. It is printed only if the bound exceeds the claim too; otherwise the share that the bound proves.
    """
    counts = {} if test.deciding_finding is None or test.meaning_for_whole else dict(test.deciding_finding.counts)
    if not counts.get("guesses") or "correct" not in counts or test.comparison is None:
        return ""
    claim, guesses, correct = test.compared.claim, int(counts["guesses"]), int(counts["correct"])
    abstained = max(0, int(counts.get("canaries", guesses)) - guesses)
    question = _QUESTIONS[claim.relation]
    if test.compared.differ_in:
        question = "on which of two neighbouring tables a function was called"
    states_share = claim.is_point and not claim.delta and math.isfinite(claim.epsilon)
    allowed = f"; the claim allows at most {_share_of(claim.epsilon):.3g} % on average" if states_share else ""
    chance, attacker = f"{allowed}; guessing gives 50 %.", f"Asked {question}, an attacker"
    if verdict in ("VIOLATION", "UNDECIDED") and test.comparison.exceeds:
        others = f", and abstained on {abstained:,} other records" if abstained else ""
        share = f"{correct:,} of {guesses:,} guesses ({100 * correct / guesses:.3g} %)"
        return f"{attacker} was right in {share}{others}{chance}"
    tried = f"{guesses + abstained:,} trials"
    if test.comparison.quantity != "epsilon" or getattr(test.deciding_finding, "delta", False):
        return f"{attacker} proved no more than the lower bound, from {tried}."
    if test.comparison.observed <= 0:
        return f"{attacker} was not proved better than chance, from {tried}{chance}"
    proved = format_lower(_share_of(test.comparison.observed), 1)
    return f"{attacker} is proved right in at least {proved} % of guesses, from {tried}{chance}"


def _share_of(epsilon: float) -> float:
    """Return the share of right guesses, in percent, that pure epsilon-DP allows on average."""
    return 100 / (1 + math.exp(-epsilon))


# Its lines


def claim_line(test: Test) -> str:
    """Return the claim as stated, with its conversion if the test has another neighbouring relation.

    For a test of a part, return the claim about the whole.
    """
    if test.meaning_for_whole:
        return test.meaning_for_whole[0].removeprefix("claimed ")
    if not test.claims_something:
        return "none"
    converted = f"; {test.compared.note}" if test.compared.note else ""
    neighbours = f"; neighbours differ in {test.compared.differ_in}" if test.compared.differ_in else ""
    return f"{claim_in_words(test.claimed)}{neighbours}{converted}"


def claim_in_words(claim: Claim) -> str:
    """Return a claim such as "epsilon <= 4 (label, delta = 0)"."""
    curve = "" if claim.is_point else f"{claim.curve}, "
    return f"epsilon <= {claim.epsilon:g} ({curve}{claim.relation}, delta = {claim.delta:g})"


def bound_line(test: Test) -> str:
    """Return the lower bound with its confidence and validity."""
    finding, comparison = test.deciding_finding, test.comparison
    if finding is None or comparison is None:
        return f"none: {_failed(test)}"
    run = ", confirmatory run" if test.confirmation is Confirmation.CONFIRMED and test.repeated is not None else ""
    words = comparison.words if test.claims_something else finding.headline
    as_stated = comparison.quantity == "epsilon" and _same_point(test.compared.claim, comparison)
    allowed_there = (
        "" if as_stated or not test.claims_something else f", where the claim allows {_claimed_number(comparison)}"
    )
    part = "one step: " if test.meaning_for_whole else ""
    condition = ", if rows are independent trials" if test.assumed_method else ""
    sure = certainty(finding)
    if test.split_doubt:
        sure = sure.replace(VALIDITY[Validity.CONDITIONAL_ON_PROXY], "valid only if the split was random after all")
    return f"{part}{words}{allowed_there} ({sure}{condition}{run})"


def _error_of_code(test: Test) -> str:
    """Return the first error of the audited code in the errors of failed units; "" without one."""
    return next(filter(None, (error_of_code(each.error) for each in test.tried_failures)), "")


def _failed(test: Test) -> str:
    """Return the number of failed units of a test, with the first error."""
    first = next((f": {each.error}" for each in test.tried_failures if each.error and not _error_of_code(test)), "")
    return f"{len(test.tried_failures)} of {test.units[1]} pieces of work failed{first}"


def _same_point(claim: Claim, comparison: Comparison) -> bool:
    return math.isclose(comparison.claimed, claim.epsilon, rel_tol=1e-9)


def _claimed_number(comparison: Comparison) -> str:
    return f"{comparison.quantity} {comparison.claimed:.4g}" if math.isfinite(comparison.claimed) else "anything"


def certainty(finding: Finding) -> str:
    """Return the confidence and validity of a finding in words."""
    confidence = f"{100 * finding.confidence:.5g} % confidence" if finding.confidence else ""
    return ", ".join(filter(None, [confidence, VALIDITY[finding.validity]]))


def evidence_line(test: Test, verdict: str) -> str:
    """Return the counts that the bound rests on."""
    guesses = guesses_in_words(test, verdict)
    if guesses:
        return guesses.rstrip(".")
    if test.deciding_finding is None:
        return ""
    counts = dict(test.deciding_finding.counts)
    members, named = counts.get("members", 0), counts.get("members among as many highest scores")
    if named is not None and counts.get("replays", 1) == 1:
        return (
            f"Of the {members:,} records with the highest scores, {named:,} were members; of all "
            f"{members + counts['others']:,} records, {members:,} were"
        )
    return ", ".join(f"{name} {value:,}" for name, value in counts.items())


def p_value_line(test: Test) -> str:
    """Return the p-value of the claim; "" if none was computed."""
    p = test.first_p_value if test.changes else test.p_value
    otherwise_explained = test.on_proxy or test.keeps_state or test.split_doubt
    if p is None or not test.claims_something or test.finding is None or otherwise_explained:
        return ""  # other explanations than a broken claim are not part of the probability
    words = f"above {MOST_P:g}" if p >= 1 else "at most 1e-6" if p <= LEAST_P else f"at most {p:.2g}"
    condition = " and rows are independent trials" if test.assumed_method else ""
    return f"{words} (probability of evidence as strong as this if the claim holds{condition})"


def reasons(record: Record, verdict: str, rule: str, test: Test) -> list[str]:
    """Return the reasons why the verdict is weaker than the bound suggests, in sentences."""
    reason_lines = [_REASON_BY_RULE[rule].format(test=test)] if rule in _REASON_BY_RULE else []
    if rule == "state-between-calls" and test.state is not None:
        reason_lines.append(test.state.words)
    elif rule == "proxy":
        reason_lines.append(_proxy_reason(test))
    elif rule == "confirmation-open":
        reason_lines.append(_OPEN_CONFIRMATION.get(test.confirmation, _OPEN_CONFIRMATION[Confirmation.MISSING]))
    elif rule == "unreadable-results":
        reason_lines += [f"results could not be read: {words}" for words in test.unreadable[:3]]
    elif rule == "cannot-detect":
        reason_lines.append(_blind_reason(test))
    if verdict in ("NO VIOLATION FOUND", "INCONCLUSIVE"):
        reason_lines += [
            f"the first pass{f' of {other.name}' if len(record.tests) > 1 else ''} exceeded the claim "
            f"({other.finding.comparison(other.compared.claim.curve).words}), and the confirmatory run did not"
            for other in record.readable
            if other.confirmation is Confirmation.NOT_CONFIRMED and other.finding is not None
        ]
        if len(record.tests) > 1 and all(other.meaning_for_whole for other in record.readable):
            reason_lines.append("no test covered the training from end to end")
    failed = [other.name for other in record.of_claim if other.finding is None]
    if failed and verdict != "FAILED":
        why = next((f": {error}" for other in record.of_claim if (error := _error_of_code(other))), "")
        reason_lines.append(f"these tests failed and say nothing: {', '.join(failed)}{why}")
    if verdict == "VIOLATION" and test.state is not None and test.state.words:
        reason_lines.append(test.state.words)
    return reason_lines


def _proxy_reason(test: Test) -> str:
    why = "the bound exceeds the claim, but an inaccurate proxy could explain it"
    if test.confirmation is Confirmation.MISSING and test.planted_next:
        return f"{why}, and planted labels, which need no proxy, did not reject the claim"
    if test.control_lost:
        return f"{why}. The control failed; run the audit again"
    other = "the game with planted labels" if test.planted_next else "`confirm: true`"
    if test.rows_needed is None:
        use = f"play {other}" if test.planted_next else f"set {other}"
        return f"{why}. No number of held-out rows would decide it: use a better proxy, or {use}, which needs none"
    have = f"there are {test.control.rows:,}" if test.control else "there are none (`split: {test: ...}`)"
    return f"{why}. About {test.rows_needed:,} held-out rows would decide it, {have}; {other} needs no proxy"


def _blind_reason(test: Test) -> str:
    sensitivity = test.sensitivity
    if sensitivity.blind:
        return sensitivity.blind
    if sensitivity.reference_failed:
        return "the reference run failed, so it is unknown whether a leak would be detected"
    comparison = None if sensitivity.maximum is None else sensitivity.maximum.comparison(test.compared.claim.curve)
    if comparison is None:
        return "no test could have rejected the claim"
    return (
        f"the maximum detectable {comparison.quantity} is {format_upper(comparison.observed)} at {comparison.where}, "
        f"and the claim allows {_claimed_number(comparison)}"
    )


def cautions(test: Test) -> list[str]:
    """Return cautions about the bound, in sentences."""
    caution_lines = []
    if test.control_lost:
        caution_lines.append(
            "the control on held-out rows failed: a proxy that differs from the truth would not be noticed"
        )
    if test.control is not None:
        caution_lines += test.control.lines[1:]
    if test.split_doubt and not test.is_open:
        caution_lines.append(f"{test.split_doubt}; the bound may come from that alone")
    if test.failed_trials:
        caution_lines.append(
            f"{len(test.failed_trials):,} calls or trainings failed; a failure is scored like any other outcome"
        )
    if test.tried_failures and test.finding is not None:
        first = test.tried_failures[0]
        caution_lines.append(f"{len(test.tried_failures):,} units failed, the first: {first.label}: {first.error}")
    return [text for text in caution_lines if text]


def sensitivity_line(test: Test, verdict: str) -> str:
    """Return the detectable noise scaling and the maximum detectable epsilon."""
    sensitivity, finding = test.sensitivity, test.deciding_finding
    if finding is None or finding.confidence is None:
        return ""  # an exact computation misses nothing
    if sensitivity.reference_failed and verdict == "VIOLATION":
        return ""  # the reference run is skipped once the claim is rejected
    if sensitivity.reference_failed:
        return "unknown: the reference run that measures the maximum detectable epsilon failed"
    if sensitivity.one_outcome and verdict != "VIOLATION":
        return "unknown: all results were the same"
    parts = []
    if sensitivity.no_difference and verdict != "VIOLATION":
        where = f" {sensitivity.tried}" if sensitivity.tried else ""
        parts.append(NO_DIFFERENCE.format(where))
        if where and not sensitivity.noiseless:
            return parts[0]  # other tables may tell more than right guesses about these
    elif sensitivity.factor is not None:
        parts.append(" ".join(filter(None, (factor_in_words(sensitivity.factor), sensitivity.tried))))
    elif sensitivity.maximum is None and verdict in ("NO VIOLATION FOUND", "INCONCLUSIVE"):
        parts.append(NO_COMPARISON)
    parts += [_maximum_in_words(test), sensitivity.detectable if verdict != "VIOLATION" else ""]
    return "; ".join(filter(None, parts))


def factor_in_words(factor: float) -> str:
    """Return which noise would be detected: `factor` times too small; inf if not even `MOST_SCALED` times."""
    power = f"({100 * POWER:.0f} % power)"
    if factor == math.inf:
        return f"would not detect noise scaled down {MOST_SCALED:g} times {power}"
    return f"would detect noise scaled down {format_upper(factor, 2)} times or more {power}"


def number_in_words(epsilon: float) -> str:
    """Return a maximum detectable epsilon, rounded up."""
    return "unlimited" if math.isinf(epsilon) else format_upper(epsilon, 2)


def _maximum_in_words(test: Test) -> str:
    """Return the maximum detectable epsilon at the point of the claim that it exceeds most; "" if it is unknown.

    For a rejected claim, at the point of the bound, and "" if below it.
    """
    sensitivity, claim, comparison = test.sensitivity, test.compared.claim, test.comparison
    if sensitivity.maximum is None:
        return ""
    maximum = None if comparison is None or not comparison.exceeds else test.maximum_at(comparison)
    if maximum is not None and comparison is not None and maximum.observed < comparison.observed:
        return ""  # it was measured with fewer trials or at another confidence
    maximum = maximum or sensitivity.maximum.comparison(claim.curve)
    at_another_delta = math.isfinite(claim.epsilon) and not _same_point(claim, maximum)
    at = f" at {maximum.where}, where the claim allows {_claimed_number(maximum)}" if at_another_delta else ""
    noiseless = " (measured without noise)" if sensitivity.noiseless else ""
    return f"maximum detectable {maximum.quantity} {number_in_words(maximum.observed)}{at}{noiseless}"


def side_line(test: Test) -> str:
    """Return a side finding: the leak outside of the claim's scope, its bound, and advice."""
    finding = test.deciding_finding
    bound = "" if finding is None or test.comparison is None else f": {test.comparison.words} ({certainty(finding)})"
    where = " ".join(test.leak_location) or _HINT[test.scope]
    return f"{_SIDE[test.scope]}{bound}. {where}"


def average_line(test: Test) -> str:
    """Return the bound for an average record, for comparison with that of the worst one; "" for other tests."""
    finding = test.finding
    if test.scope is not Scope.AVERAGE_RECORD or finding is None or test.comparison is None or test.is_open:
        return ""
    words = finding.comparison(test.compared.claim.curve).words if test.claims_something else finding.headline
    return f"{words} ({certainty(finding)}) for an ordinary row, in place of the worst one"


def _open_side_test(test: Test) -> str:
    """Return why a test of a side finding has no result or an open one; "" if it is decided."""
    if test.is_open and test.finding is not None:
        first = test.finding.comparison(test.compared.claim.curve).words
        return f"undecided: the first pass shows {first}, and no confirmatory run confirms it"
    if test.finding is not None:
        return ""
    return f"no result: {_failed(test)}" if test.tried_failures else "no result"


def next_step(record: Record, verdict: str, rule: str, test: Test | None) -> str:
    """Return advice on what to do now, by what the verb of the record offers."""
    again, more = _AGAIN[record.verb], _MORE[record.verb]
    if test is not None and test.sensitivity.helps:
        helps = test.sensitivity.helps
        more = f"{more}; for this game alone: {helps}" if record.verb is Verb.CHECK else f"use {helps}"
    if rule in _NEXT_BY_RULE:
        return _NEXT_BY_RULE[rule]
    if verdict == "VIOLATION":
        return f"{_SUSPECTS}{again}."
    if verdict == "FAILED":
        return "Correct what failed and run the audit again: finished work is kept."
    if verdict == "NO CLAIM":
        return f"State a claim to compare the bound with it: {_CLAIM[record.verb]}."
    if verdict == "INCONCLUSIVE":
        return f"{_SAYS_NOTHING} To detect a leak: {more}."
    if verdict == "UNDECIDED":
        first = "Check the noise scale and the clipping of each step. " if rule == "stated-noise" else ""
        if record.verb is Verb.CHECK:
            return f"{first}Repeat the tests with more trials until they decide: `dpaudit check --until-decided`."
        return f"{first}More evidence may decide it: {more}. For that, {again}."
    return f"This is no proof of privacy. To detect smaller leaks: {more}."


def advice(verdict: str) -> str:
    """Return advice for any run with this verdict."""
    return next_step(Record(""), verdict, "", None)


def mu_line(mu: float | None) -> str:
    """Return a limit on mu of Gaussian DP in a sentence; "" if there is none."""
    return f"Gaussian DP: every mu below {format_lower(mu)} is rejected by the same evidence" if mu else ""


def curve_line(finding: Finding) -> str:
    """Return what a bound shows at other deltas and false positive rates in a sentence; "" without such evidence."""
    limits = next((each for each in getattr(finding, "evidence", ()) if isinstance(each, CurveLimits)), None)
    if limits is None or not limits.epsilon(0.0):
        return ""
    epsilons = ", ".join(f"{format_lower(limits.epsilon(delta))} at {delta:g}" for delta in CURVE_DELTAS)
    misses = zip(limits.misses(np.array(CURVE_ALARMS)).tolist(), CURVE_ALARMS, strict=True)
    rates = ", ".join(f"{format_upper(miss)} at {alarm:g}" for miss, alarm in misses)
    return f"whole curve, all values at once: epsilon >= {epsilons} (delta); miss rate <= {rates} (false positives)"


def details_of(finding: Finding, test: Test) -> list[str]:
    """Return the method, selection, counts and notes of a finding."""
    counts = ", ".join(f"{name} {value:,}" for name, value in finding.counts)
    at_delta = finding.comparison_at_delta(test.compared.claim.curve) if isinstance(finding, Bound) else test.comparison
    repeated = test.deciding_finding is not finding
    return [
        ""
        if repeated or test.comparison == at_delta
        else f"the bound at the delta of the estimator: {finding.headline}",
        f"{finding.method}, {finding.selection}; {counts}",
        *finding.notes,
    ]
