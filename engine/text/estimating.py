"""A bound from canary texts and a trained language model: the function `dpaudit.estimate_text`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dpaudit.claims import Claim, Relation, claim_under
from dpaudit.claims.parsing import parse_claim
from dpaudit.engine.estimate.estimating import COINS, DEFAULT_GUESS, Estimate, Question, estimates
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.games.text.canaries import Canaries
from dpaudit.engine.games.text.guesses import attack_scores, order_of_all
from dpaudit.engine.games.text.loss_record import LossRecord
from dpaudit.engine.games.text.view import TextView
from dpaudit.engine.request.build import build
from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.measures import Measure, measures
from dpaudit.estimators.one_run.guess_band import MAX_DELTA
from dpaudit.estimators.scores import Scores
from dpaudit.field_checks import checked_argument
from dpaudit.mechanisms.language_models.token_statistics import BATCH_TOKENS, TokenStatistics, token_statistics

ATTACKS = ("calibrated-loss", "loss-difference", "reference-ratio", "min-k-plus-plus", "largest-token")
"""Attacks that are used by default if they have what they need; the first one gives the order of guesses."""
LEARNED = "learned"
"""Order of guesses that combines all attacks."""
UNCHECKED = (
    "not checked that every planted canary received loss: record the training with `LossRecord` and pass the record as "
    "`training`"
)
NO_RELATION = "texts have no labels: the claim is read as one about adding or removing a record"
USERS = "a canary is a user: {} record(s) with copies; the claim is about all records of a user at once"


@dataclass(frozen=True)
class TextEstimate(Estimate):
    """A bound on epsilon from canary texts; `print` shows it with all notes and measures.

    Attributes:
        attack_scores: Scores of the canaries by each attack, shape (canaries,).
    """

    attack_scores: Mapping[str, Floats] = field(default_factory=dict, compare=False)


def text_statistics(model: Any, canaries: Canaries, *, batch_tokens: int = BATCH_TOKENS) -> TokenStatistics:
    """Return the log-probabilities of all secrets under a model, planted or not, one row for each text.

    `estimate_text` takes the result in place of the model: the base model is then scored once for many trainings.

    Args:
        model: As in `estimate_text`.
        canaries: The canaries.
        batch_tokens: Tokens in a batch, padding included.
    """
    return token_statistics(model, [text.span for _, text in canaries.all_texts], batch_tokens=batch_tokens)


def estimate_text(
    model: Any,
    base: Any,
    canaries: Canaries,
    *,
    claim: Claim | float | tuple[float, float] | str | None = None,
    training: LossRecord | None = None,
    reference: Any = None,
    attacks: Sequence[str | Mapping[str, Any]] = ATTACKS,
    order: str | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    batch_tokens: int = BATCH_TOKENS,
) -> TextEstimate:
    """Return a lower bound on epsilon from one training of a language model with canaries.

    Args:
        model: The trained model: a torch module such as one of transformers; a function of a list of tokens that
            returns log-probabilities, shape (tokens,) or (tokens, vocabulary); an object with
            `token_log_probabilities`; or the result of `text_statistics`.
        base: The model before training, in the same forms; None if `model` is a PEFT model, whose adapter is switched
            off, or if no attack needs it.
        canaries: The canaries, as they were planted.
        claim: Claim to compare with: a `Claim`; epsilon at `delta`; (epsilon, delta); or "mu=1", "rho=0.5". It is about
            adding or removing a record, or with the unit "user" all records of a user.
        training: Record of the loss that canaries received in training. The audit is INCONCLUSIVE if a planted canary
            received none, unless the bound exceeds the claim.
        reference: Another model that never saw the canaries, in the same forms.
        attacks: Names of attacks, or mappings with `name` and fields; those that lack what they need are left out.
        order: Name of the attack whose scores order the guesses, by default the first one; or "learned", which combines
            all attacks as the coins revealed so far suggest, if canaries times delta is at most 0.1.
        delta: Delta of the bound, in [0, 1). Default: that of the claim, else 0.
        confidence: Smallest probability with which the bound is below the true epsilon, in (0, 1).
        batch_tokens: Tokens in a batch of a torch module, padding included.
    Returns: The bound with its verdict, AUC and true-positive rates; `print` shows all of them.
    Raises: InputError for an argument out of range, SpecError for an unknown attack or a claim about something else.
    """
    delta = checked_argument("delta", delta, float | None)
    require(
        training is None or training.canaries.digest == canaries.digest,
        "`training` must be the record of the same canaries",
    )
    require(
        0 < canaries.planted.sum() < len(canaries),
        "some canaries must be planted and some not",
        do="make more of them",
        planted=int(canaries.planted.sum()),
        canaries=len(canaries),
    )
    promise, notes = _claim_about(canaries, claim, delta)
    view = _view(model, base, reference, canaries, batch_tokens)
    parts = {part.registered_name: part for part in (build("text-attack", attack) for attack in attacks)}
    scores = attack_scores(canaries, view, parts)
    order = order or next(iter(scores))
    require(order in (LEARNED, *scores), f"order must be {LEARNED!r} or one of {', '.join(scores)}", order=order)
    if order == LEARNED:
        bound_delta = delta if delta is not None else 0.0 if promise is None else promise.delta
        require(
            len(canaries) * bound_delta <= MAX_DELTA,
            f"the learned order needs canaries times delta <= {MAX_DELTA}",
            do="name one attack as `order`",
            canaries=len(canaries),
            delta=bound_delta,
        )
        guesses, guess = order_of_all(scores, canaries.planted, seed=canaries.seed), "signed"
    else:
        guesses, guess = Scores(scores[order], canaries.planted), DEFAULT_GUESS
    table = SourceTable.of_arrays(score=guesses.score, member=guesses.truth, canary=guesses.canary)
    (result,) = estimates(table, Question(COINS, delta, confidence, options={"guess": guess}, claim=promise))
    assert isinstance(result, Estimate)
    blind = "" if training is None else training.blind_to(model)
    values = {part.name: getattr(result, part.name) for part in fields(Estimate) if part.init}
    values["notes"] = (
        *result.notes,
        *notes,
        f"order of guesses: {order}; attacks: {', '.join(scores)}",
        *((UNCHECKED,) if training is None else (training.summary, *training.remarks_on(model))),
    )
    if order == LEARNED:  # its scores are an order of guesses, so the measures are those of the first attack
        values["measures"] = _measures(Scores(next(iter(scores.values())), canaries.planted), result)
    if blind:
        values |= {"blind": blind, "detectable": None}
    return TextEstimate(**values | {"name": f"{len(canaries)} text canaries", "attack_scores": scores})


def _measures(scores: Scores, bound: Bound) -> tuple[Measure, ...]:
    seed = Scores.content_seed((scores.score, scores.truth))
    return measures([scores], confidence=bound.confidence, seed=seed, epsilon=bound.lower, delta=bound.delta)


def _claim_about(canaries: Canaries, claim: object, delta: float | None) -> tuple[Claim | None, list[str]]:
    """Return the claim that one about records or users makes about one canary, and notes on the conversion."""
    promise = checked_argument("claim", claim, Claim | float | tuple[float, float] | str | None)
    if promise is None:
        return None, []
    if isinstance(promise, int | float):
        promise = Claim(promise, delta or 0.0, Relation.ADD_REMOVE)
    else:
        promise = parse_claim(promise, Relation.ADD_REMOVE)
    notes = []
    if promise.relation is Relation.LABEL:  # the default of `Claim`
        promise, notes = replace(promise, relation=Relation.ADD_REMOVE), [NO_RELATION]
    if canaries.unit == "user":
        return promise, [*notes, USERS.format(canaries.records)]
    converted = claim_under(promise, Relation.ADD_REMOVE, records=canaries.records)
    return converted.claim, [*notes, *([converted.note] if converted.note else [])]


def _view(model: Any, base: Any, reference: Any, canaries: Canaries, batch_tokens: int) -> TextView:
    def statistics(source: Any) -> TokenStatistics | None:
        if source is None:
            return None
        if not isinstance(source, TokenStatistics):
            return text_statistics(source, canaries, batch_tokens=batch_tokens)
        require(
            len(source) == len(canaries.all_texts),
            "log-probabilities must be those of the texts of these canaries",
            texts=len(canaries.all_texts),
            rows=len(source),
        )
        return source

    trained = statistics(model)
    if trained is None:
        raise InputError("`model` must be the trained model, got None")
    if base is None and hasattr(model, "disable_adapter"):
        with model.disable_adapter():
            return TextView(trained, statistics(model), statistics(reference))
    if base is not None and base is model:
        raise InputError(
            "`base` must be the model before training, got the trained model itself; keep a copy of it before training"
        )
    return TextView(trained, statistics(base), statistics(reference))
