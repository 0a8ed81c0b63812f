"""A bound from canary texts and a trained language model: the function `dpaudit.estimate_text`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation, claim_under, parse_claim
from dpaudit.engine.answer.record import Record, Verb
from dpaudit.engine.estimate.estimating import IN_THIS_ORDER, NOT_IN_THIS_ORDER, Estimate, estimates
from dpaudit.engine.estimate.reading import (
    COINS,
    DEFAULT_GUESS,
    GUESS_ORDER,
    PLANTED_RECORDS,
    PLANTING_RATE,
    RARE_COINS,
    Question,
)
from dpaudit.engine.estimate.results import estimates_by, shared_error
from dpaudit.engine.estimate.tables import SourceTable
from dpaudit.engine.request.build import build, build_dataclass
from dpaudit.errors import InputError, printable_lines, require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.extraction.sampling import Sampling
from dpaudit.estimators.one_run.guess_band import MAX_DELTA
from dpaudit.estimators.scores import SharedOrders
from dpaudit.field_checks import checked_argument
from dpaudit.language_models.attacks.text_attacks import LEARNED
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.loss_record import LossRecord
from dpaudit.language_models.canary_texts.rates import CONVICTING, FAIR, canaries_needed
from dpaudit.language_models.canary_texts.view import TextView, attack_scores, order_of_all
from dpaudit.language_models.front_door.memorization import Exposures, exposures, extraction_measures
from dpaudit.language_models.front_door.released_texts import (
    Release,
    ReleaseScores,
    copied_measures,
    release_scores,
    texts_of,
)
from dpaudit.language_models.mechanisms.fine_tuning.records import TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.update_products import (
    UpdateProducts,
    known_change,
    update_products,
)
from dpaudit.language_models.mechanisms.token_statistics import (
    BATCH_TOKENS,
    TokenStatistics,
    is_module,
    token_statistics,
)
from dpaudit.plain_files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

ATTACKS = ("calibrated-loss", "loss-difference", "reference-ratio", "min-k-plus-plus", "largest-token")
"""Attacks that are used by default if they have what they need; the order of guesses begins with the first one."""
BY = ("repeat", "kind", "length")
"""Values of a canary by which bounds of slices are given."""
SLICES = "slices; all {} bounds hold together with confidence {:.4g} each"
BY_COPIES = '`by="repeat"`, so that the claim about one record is compared at each number of copies on its own'
ALL = "all canaries"
"""Name of the bound of all canaries in a list of slices."""
MORE_CANARIES = "more canaries (`n`), or for a large epsilon as many planted ones at a smaller `rate`"
NEEDED = "`n={:,}` or more, with `rate={:g}` to plant about as many of them as of the present {:,}"
TRAINED_BASE = (
    "the base is the model with its adapter off, but {} outside of the adapter ({}) were trained too and stay changed "
    '(`bias="all"` or "lora_only" in PEFT, or unfrozen by hand). Attacks that compare with the base may be weaker'
)
"""Note on a PEFT model that is not the base model with its adapter off."""
PASS_BASE = "pass a copy of the model from before the training as `base`"
UNCHECKED = (
    "not checked that every planted canary received loss: record the training with `LossRecord` and pass the record as "
    "`training`"
)
NOT_LEARNED = (
    "a learned order of all canaries is not proved here: it needs an even draw of the coins, and canaries times delta "
    f"<= {MAX_DELTA}. Slices that meet both have it"
)
NO_RELATION = "texts have no labels: the claim is read as one about adding or removing a record"
RELEASED = "{:,} released texts; the canaries must have been among the private texts that the release was made from"
USERS = "a canary is a user: {} record(s) with copies; the claim is about all records of a user at once"


@dataclass(frozen=True)
class TextEstimate(Estimate):
    """A bound on epsilon from canary texts; `print` shows it with all notes, measures and slices.

    The verdict rests on the bounds of all canaries and of the slices, which hold together. Exposure and extraction are
    among the measures; they decide nothing.

    Attributes:
        attack_scores: Scores of the canaries by each attack, shape (canaries,).
        slices: Bounds of the slices by name, such as "repeat=4"; the reason in words for a slice without a bound.
        exposures: Ranks of the planted secrets among those that were never planted.
        scores: Table with one row for each canary, from which `dpaudit estimate` computes the same bounds.
        texts: Table with the log-probability of each text, for the estimator `discoverable-extraction`; empty for a
            release.
        by: Names of the canaries' values that define slices.
    """

    attack_scores: Mapping[str, Floats] = field(default_factory=dict, compare=False)
    slices: Mapping[str, Estimate | str] = field(default_factory=dict, compare=False)
    exposures: Exposures = field(default_factory=Exposures.none, compare=False)
    scores: pa.Table = field(default_factory=lambda: pa.table({}), compare=False)
    texts: pa.Table = field(default_factory=lambda: pa.table({}), compare=False)
    by: tuple[str, ...] = ()
    verb: ClassVar[Verb] = Verb.TEXTS

    @property
    def slice_bounds(self) -> dict[str, Estimate]:
        """Bounds of the slices that have one."""
        return {name: bound for name, bound in self.slices.items() if isinstance(bound, Estimate)}

    @property
    def record(self) -> Record:
        """Record of the bounds of all canaries and of the slices as tests of the claim."""
        tests = [self.as_test(self.name), *(bound.as_test(name) for name, bound in self.slice_bounds.items())]
        return Record(self.name, tuple(tests), verb=self.verb)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each number, as `Estimate.to_frame`, and the slice; "" for all canaries."""
        import pandas as pd

        frames = {"": super().to_frame(), **{name: bound.to_frame() for name, bound in self.slice_bounds.items()}}
        return pd.concat([frame.assign(slice=name) for name, frame in frames.items()], ignore_index=True)

    def save(self, folder: str | Path) -> None:
        """Write the answer, a page, and tables from which `dpaudit estimate` computes the same bounds, to a new folder.

        The files tell which canaries were planted. Raises: FileExistsError if the folder exists.
        """
        Path(folder).mkdir(parents=True)
        self.write(Path(folder))

    def write(self, folder: Path) -> None:
        """Write the files of `save` to an existing folder."""
        from dpaudit.engine.estimate.results import to_json, write_page  # slow to import

        tables = {"scores": self.scores, "texts": self.texts, "exposure": self.exposures.table}
        for name, table in tables.items():
            if table.num_columns == 0:
                continue
            write_atomically(folder / f"{name}.parquet", partial(pq.write_table, table))
        texts = {
            "answer.txt": f"{self.text(verbose=True)}\n\n{self.commands}\n",
            "answer.json": to_json(self.name, [self], {ALL: self, **self.slices} if self.slices else {}),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        write_page(folder / "report.html", self.name, [], {"": self, **self.slices})

    @property
    def commands(self) -> str:
        """Commands that compute the bounds and the extraction again from the files of `save`.

        With a claim, the last bounds are those that a violation needs.
        """
        claim = "" if self.claim is None else " --claim CLAIM"
        delta = "" if self.claim is not None and self.delta == self.claim.delta else f" --delta {self.delta!r}"
        first = f"dpaudit estimate scores.parquet{claim}{delta}"
        lines = []
        for bound in (self, self.convicting) if self.convicting else (self,):
            lines.append(f"{first} --confidence {bound.confidence!r}")
            if self.slices:
                of_slices = 1 - len(self.slices) * (1 - bound.confidence)
                lines.append(f"{first} --confidence {of_slices!r} --by {','.join(self.by)}")
        return "\n".join([*lines, *(["dpaudit estimate texts.parquet"] if self.texts.num_columns else [])])

    def text(self, *, verbose: bool = False) -> str:
        """Return the verdict with labelled lines below it; `verbose` adds the bounds and measures of all slices."""
        lines = [super().text(verbose=verbose)]
        if self.slices:
            lines.append(f"  {SLICES.format(len(self.slices) + 1, self.confidence)}")
        for name, bound in self.slices.items():
            if isinstance(bound, str):
                lines.append(f"  {name}: {bound}")
                continue
            claim = "" if bound.claim is None else f"; claim {bound.claim}"
            lines.append(f"  {name}: {bound.verdict}, {bound.headline}{claim}")
            lines += [f"    {measure}" for measure in bound.measures if verbose]
        return "\n".join(map(printable_lines, lines))


def text_statistics(
    model: Any,
    canaries: Canaries,
    *,
    batch_tokens: int = BATCH_TOKENS,
    sampling: Sampling | Mapping[str, float] | None = None,
) -> TokenStatistics:
    """Return the log-probabilities of all secrets under a model, planted or not, one row for each text.

    `estimate_text` takes the result in place of the model: the base model is then scored once for many trainings.

    Args:
        model: As in `estimate_text`.
        canaries: The canaries.
        batch_tokens: Tokens in a batch, padding included.
        sampling: As in `estimate_text`; for the trained model only.
    """
    spans = [text.span for _, text in canaries.all_texts]
    return token_statistics(model, spans, batch_tokens=batch_tokens, sampling=_rule(sampling))


def estimate_text(
    model: Any = None,
    base: Any = None,
    canaries: Canaries | None = None,
    *,
    release: Release | None = None,
    claim: Claim | float | tuple[float, float] | str | None = None,
    training: LossRecord | None = None,
    reference: Any = None,
    attacks: Sequence[str | Mapping[str, Any]] = ATTACKS,
    order: str | None = None,
    by: str | Sequence[str] = (),
    sampling: Sampling | Mapping[str, float] | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    batch_tokens: int = BATCH_TOKENS,
) -> TextEstimate:
    """Return a lower bound on epsilon from one training of a language model with canaries, or from a release of texts.

    Args:
        model: The trained model: a torch module such as one of transformers; a function of a list of tokens that
            returns log-probabilities, shape (tokens,) or (tokens, vocabulary); an object with
            `token_log_probabilities`; or the result of `text_statistics`.
        base: The model before training, in the same forms; None if `model` is a PEFT model, whose adapter is switched
            off, or if no attack needs it. With `release`: other texts of the same domain, in the same forms, that no
            canary was near; or None.
        canaries: The canaries, as they were planted.
        release: In place of `model`: texts that were made from the private texts, or the path of a file of them (JSON
            lines, Parquet or lines of text). A model counted from these texts scores the canaries, so the bound is one
            on the epsilon of the release. A model that you train on the release goes to `model` instead.
        claim: Claim to compare with: a `Claim`; epsilon at `delta`; (epsilon, delta); or "mu=1", "rho=0.5". It is about
            adding or removing a record, or with the unit "user" all records of a user.
        training: Record of the loss that canaries received in training. The audit is INCONCLUSIVE if a planted canary
            received none, unless the bound exceeds the claim.
        reference: Another model that never saw the canaries, in the same forms.
        attacks: Names of attacks, or mappings with `name` and fields; those that lack what they need are left out.
        order: Name of the attack whose scores order the guesses; or "learned", which combines all attacks as the coins
            revealed so far suggest, and needs fair coins. Default: "learned" with fair coins and several attacks,
            else the first attack. Where canaries times delta exceed 0.1, a learned order is not proved, and the first
            attack guesses alone.
        by: Also give one bound for each "repeat", "kind" or "length" (tokens of the secret), or for each combination of
            several of them. All bounds share the error. A claim about one record is compared with a slice at the
            slice's own number of records. Choose it before you see results.
        sampling: Rule by which an attacker samples, for the extraction probabilities: a mapping with `temperature`,
            `top_k` and `top_p`. Default: plain sampling.
        delta: Delta of the bound, in [0, 1). Default: that of the claim, else 0.
        confidence: Smallest probability with which all bounds are below the true epsilon, in (0, 1). The verdict is
            VIOLATION only if a bound exceeds its claim at 99.9 % too; else it is UNDECIDED.
        batch_tokens: Tokens in a batch of a torch module, padding included.
    Returns: The bound with its verdict, AUC, true-positive rates, exposure and extraction; `print` shows all of them.
    Raises: InputError for an argument out of range, SpecError for an unknown attack or a claim about something else.
    """
    delta = checked_argument("delta", delta, float | None)
    if canaries is None:
        raise InputError("`canaries` must be the canaries that were planted, got None")
    released = None
    if release is not None:
        require(model is None, "pass either the trained `model` or a `release` of texts")
        released = release_scores(texts_of(release, "release"), canaries)
        model = released.statistics
        base = None if base is None else release_scores(texts_of(base, "base"), canaries).statistics
    columns = (by,) if isinstance(by, str) else tuple(by)
    unknown = [name for name in columns if name not in BY]
    require(not unknown, f"`by` must be among {', '.join(BY)}", by=", ".join(unknown))
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
    view = _view(model, base, reference, canaries, batch_tokens, _rule(sampling))
    parts = {part.registered_name: part for part in (build("text-attack", attack) for attack in attacks)}
    if any("update" in part.needs for part in parts.values()):
        view = replace(view, update=_update(model, base, canaries, batch_tokens))
    scores = attack_scores(canaries, view, parts)
    first = next(iter(scores))
    order = order or (LEARNED if canaries.rate == FAIR and len(scores) > 1 else first)
    require(order in (LEARNED, *scores), f"order must be {LEARNED!r} or one of {', '.join(scores)}", order=order)
    require(
        order != LEARNED or canaries.rate == FAIR,
        "the learned order needs fair coins (rate 1/2)",
        do="name one attack as `order`",
        rate=canaries.rate,
    )
    guesses = order_of_all(scores, canaries.planted) if order == LEARNED else None
    table = _score_table(canaries, scores[first if order == LEARNED else order], guesses)
    method = COINS if canaries.rate == FAIR else RARE_COINS
    options = {"guess": DEFAULT_GUESS} if method == COINS and guesses is None else {}
    question = Question(
        method,
        delta,
        confidence,
        options=options,
        claim=promise,
        convicting=CONVICTING if promise is not None and confidence < CONVICTING else None,
    )
    slices = estimates_by(table, question, columns, others=1) if columns else {}
    (whole,) = estimates(table, shared_error(question, len(slices) + 1))
    assert isinstance(whole, Estimate)
    guessed_by = order if order != LEARNED or IN_THIS_ORDER in whole.notes else first
    whole = replace(whole, notes=tuple(note for note in whole.notes if note not in (IN_THIS_ORDER, NOT_IN_THIS_ORDER)))
    blind, without_noise = ("", "") if training is None else (training.blind_to(model), training.without_noise)
    changed_base = _trained_base(model, base)
    helps = PASS_BASE if changed_base else ""
    audit = _TextAudit(canaries, view, blind, without_noise, helps, order != LEARNED, released)
    of_slices = {
        name: audit.finished(bound, audit.rows_of(rows), ()) if isinstance(bound, Estimate) else str(bound)
        for (name, bound), rows in zip(slices.items(), table.slices(columns).values() if columns else (), strict=True)
    }
    details = [f"order of guesses: {guessed_by}; attacks: {', '.join(scores)}"]
    details += [] if training is None else [training.summary]
    notes += [*changed_base, *details]
    notes += [NOT_LEARNED] if guessed_by != order else []
    if training is None:
        notes += [UNCHECKED if released is None else RELEASED.format(released.texts)]
    else:
        notes += training.remarks_on(model)
    finished = audit.finished(whole, np.ones(len(canaries), np.bool_), notes)
    values = {part.name: getattr(finished, part.name) for part in fields(Estimate) if part.init}
    return TextEstimate(
        **values | {"name": f"{len(canaries)} text canaries", "details": (*whole.details, *details)},
        attack_scores=scores,
        slices=of_slices,
        exposures=audit.exposures,
        scores=table.columns,
        texts=audit.texts,
        by=columns,
    )


@dataclass(frozen=True)
class _TextAudit:
    """Everything that measures and advice of a bound are made of."""

    canaries: Canaries
    view: TextView
    blind: str
    without_noise: str
    helps: str
    one_attack: bool
    released: ReleaseScores | None = None

    @cached_property
    def exposures(self) -> Exposures:
        return exposures(self.canaries, self.view)

    @cached_property
    def _owner(self) -> Ints:
        return np.array([canary for canary, _ in self.canaries.all_texts])

    @cached_property
    def _log_probability(self) -> Floats:
        """Log-probability that sampling writes each secret, shape (texts,)."""
        trained = self.view.trained
        return np.asarray(np.nansum(trained.log_probability if trained.sampled is None else trained.sampled, axis=1))

    @cached_property
    def texts(self) -> pa.Table:
        """One row for each text: log-probability, planted, and the columns of slices; no rows for a release."""
        if self.released is not None:
            return pa.table({})
        columns = {"log_probability": self._log_probability, "planted": self.canaries.planted[self._owner]}
        by = {name: values[self._owner] for name, values in _slice_columns(self.canaries).items()}
        return pa.table({**columns, "canary": self._owner, **by})

    def rows_of(self, rows: SourceTable) -> NDArray[np.bool_]:
        """Return True for the canaries of a slice of the score table, shape (canaries,)."""
        measured = np.zeros(len(self.canaries), np.bool_)
        measured[rows.integers("canary")] = True
        return measured

    def finished(self, bound: Estimate, measured: NDArray[np.bool_], notes: Sequence[str]) -> Estimate:
        """Return the bound of some canaries with all measures, advice and notes."""
        values: dict[str, Any] = {"notes": (*bound.notes, *notes), "helps": self.helps or self._helps(bound, measured)}
        values["without_noise"] = "" if self.blind else self.without_noise
        usual = bound.measures if measured.all() else ()
        texts = measured[self._owner]
        planted = self.canaries.planted[self._owner][texts]
        if self.released is not None:
            extracted = copied_measures(self.released.copied[texts], planted, confidence=bound.confidence)
        else:
            rule = _rule_in_words(self.view.trained.sampling)
            by_text = self._log_probability[texts]
            extracted = extraction_measures(by_text, planted, rule=rule, confidence=bound.confidence)
        exposed = self.exposures.measures(self.canaries, measured, bound.confidence)
        values["measures"] = (*usual, *exposed, *extracted)
        if self.blind:
            values |= {"blind": self.blind, "detectable": None, "helps": ""}
        return replace(bound, **values)

    def _helps(self, bound: Estimate, measured: NDArray[np.bool_]) -> str:
        """Return advice on how to detect more: slices by copies, or how many canaries at which rate."""
        mixed = self.canaries.unit == "record" and np.unique(self.canaries.added_records[measured]).size > 1
        if mixed and bound.claim is not None:
            return BY_COPIES
        if bound.claim is None or bound.maximum is None or bound.maximum.violation_point(bound.claim.curve) is not None:
            return MORE_CANARIES
        count = int(np.count_nonzero(measured))
        needed = canaries_needed(
            bound.claim.curve,
            canaries=count,
            rate=self.canaries.rate,
            delta=bound.delta,
            confidence=(bound.convicting or bound).confidence,
            one_attack=self.one_attack,
        )
        return MORE_CANARIES if needed is None else NEEDED.format(*needed, count)


def _slice_columns(canaries: Canaries) -> dict[str, NDArray[Any]]:
    """Return a value of each canary for each column of `BY`, shape (canaries,)."""
    values = (canaries.repeat, np.array(canaries.kinds), canaries.lengths)
    return dict(zip(BY, values, strict=True))


def _score_table(canaries: Canaries, score: Floats, guesses: SharedOrders | None) -> SourceTable:
    """Return the table of scores, with the coins' probability, records and values by which it can be sliced.

    It has one row for each canary, in the order of the canaries, and their orders of guesses unless they are None.
    """
    columns: dict[str, NDArray[Any]] = {}
    if guesses is not None:
        columns[GUESS_ORDER] = guesses.score
        further = np.empty((0, 0)) if guesses.further is None else guesses.further.T
        columns |= {f"{GUESS_ORDER}_{number}": order for number, order in enumerate(further, 2)}
    columns[PLANTING_RATE] = np.full(len(canaries), canaries.rate)
    if canaries.unit == "record":
        columns[PLANTED_RECORDS] = canaries.added_records
    columns |= _slice_columns(canaries)
    return SourceTable.of_arrays(score=score, member=canaries.planted, canary=np.arange(len(canaries)), **columns)


def _rule(sampling: Sampling | Mapping[str, float] | None) -> Sampling | None:
    """Return the rule of sampling; None for plain sampling, whose log-probabilities are always known."""
    rule = build_dataclass(Sampling, sampling, location="sampling") if isinstance(sampling, Mapping) else sampling
    return None if rule in (None, Sampling()) else rule


def _rule_in_words(sampling: Any) -> str:
    if sampling is None:
        return "plain sampling"
    top_k = "" if sampling.top_k is None else f", top-k {sampling.top_k}"
    return f"temperature {sampling.temperature:g}{top_k}{f', top-p {sampling.top_p:g}' if sampling.top_p < 1 else ''}"


def _claim_about(canaries: Canaries, claim: object, delta: float | None) -> tuple[Claim | None, list[str]]:
    """Return the claim about one record, or about one user, and notes on how it was read.

    Raises: InputError if it implies nothing about as many records as one canary.
    """
    promise = checked_argument("claim", claim, Claim | float | tuple[float, float] | str | None)
    if promise is None:
        return None, []
    promise = parse_claim(promise, Relation.ADD_REMOVE, delta=delta or 0.0)
    notes = []
    if promise.relation is Relation.LABEL:  # the default of `Claim`
        promise, notes = replace(promise, relation=Relation.ADD_REMOVE), [NO_RELATION]
    if promise.relation is not Relation.ADD_REMOVE:
        converted = claim_under(promise, Relation.ADD_REMOVE)
        promise, notes = converted.claim, [*notes, converted.note]
    if canaries.unit == "user":
        notes = [*notes, USERS.format(canaries.records)]
    records = 1 if canaries.unit == "user" else canaries.records
    Question(delta=delta, claim=claim_under(promise, Relation.ADD_REMOVE, records=records).claim)  # it checks both
    return promise, notes


def _view(
    model: Any, base: Any, reference: Any, canaries: Canaries, batch_tokens: int, sampling: Sampling | None
) -> TextView:
    def statistics(source: Any, rule: Sampling | None = None) -> TokenStatistics | None:
        if source is None:
            return None
        if not isinstance(source, TokenStatistics):
            return text_statistics(source, canaries, batch_tokens=batch_tokens, sampling=rule)
        require(
            len(source) == len(canaries.all_texts),
            "log-probabilities must be those of the texts of these canaries",
            texts=len(canaries.all_texts),
            rows=len(source),
        )
        require(
            rule is None or source.sampling == rule,
            "the log-probabilities of the trained model must be those of `sampling`",
            do="compute them by `text_statistics(model, canaries, sampling=...)`",
        )
        return source

    trained = statistics(model, sampling)
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


def _trained_base(model: Any, base: Any) -> list[str]:
    """Return a note if switching the adapter of a PEFT model off does not give back the model before training."""
    if base is not None or not (hasattr(model, "peft_config") and hasattr(model, "disable_adapter")):
        return []

    def trainable() -> set[str]:
        return {name for name, values in model.base_model.named_parameters() if values.requires_grad}

    names = trainable()
    with model.disable_adapter():  # parameters of the adapter are frozen then
        names &= trainable()
    if not names and any(getattr(part, "bias", "none") != "none" for part in model.peft_config.values()):
        names = {"biases"}  # loaded for inference
    return [TRAINED_BASE.format(f"{len(names)} parameters", ", ".join(sorted(names)[:3]))] if names else []


def _update(model: Any, base: Any, canaries: Canaries, batch_tokens: int) -> UpdateProducts | None:
    """Return products with the change of weights; None if the model or its initial weights are not known."""
    change = known_change(model, base) if is_module(model) else {}
    if not change:
        return None
    texts = [TrainingText(text.tokens) for _, text in canaries.all_texts]
    return update_products(model, change, texts, batch_tokens=batch_tokens)
