"""Exposure and extraction of the secrets of canaries, measured on the same training as the bound on epsilon.

* **Exposure.** Each planted secret is ranked among the canaries of its own draw that were never planted, by the
  log-likelihood ratio to the base model (by the log-probability without one). Texts of a draw follow one law. So
  without any leak the rank is uniform, and rank / candidates is an exact p-value of each secret. The p-values of
  different secrets share their references, hence they are dependent, and no bound on epsilon is made of them.
  The rank of the secret with the median exposure is binomial given the model and the planted texts, because the other
  texts are independent of both. Hence its Clopper-Pearson interval. Texts of a file follow no law and have no exposure.
* **Extraction.** The exact probability that sampling after its context writes a secret, from one forward pass. A text
  counts as extracted by n samples if they contain it with probability >= 1/2. Texts that were never planted are the
  control (`estimators.extraction.shares`).

Source: Carlini et al. (2019), arXiv:1802.08232; Hayes et al. (2024), arXiv:2410.19482.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.extraction.exposure import exposure_bits, exposure_interval
from dpaudit.estimators.extraction.sampling import queries_needed
from dpaudit.estimators.extraction.shares import DiscoverableExtraction, Share, larger_share_p_value
from dpaudit.estimators.measures import Measure
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.canary_texts.view import TextView

WITHOUT_LAW = ("file", "own")
"""Kinds whose texts were not drawn from one law."""


@dataclass(frozen=True, eq=False)
class Exposures:
    """Ranks of planted secrets among the canaries of their draw that were never planted.

    Attributes:
        canary: Numbers of the planted canaries, shape (secrets,).
        rank: Rank of each among itself and the others, 1 = most exposed; ties count against it; shape (secrets,).
        candidates: Number of canaries that it is ranked among, itself included, shape (secrets,).
    """

    canary: Ints
    rank: Ints
    candidates: Ints

    @classmethod
    def none(cls) -> Exposures:
        """Return no ranks."""
        return cls(*np.zeros((3, 0), np.int64))

    @property
    def bits(self) -> Floats:
        """Exposure of each secret, log2(candidates) - log2(rank), shape (secrets,)."""
        return np.asarray(exposure_bits(self.rank, self.candidates), np.float64)

    @property
    def p_value(self) -> Floats:
        """Exact p-value of "nothing was learned about this secret", for each secret on its own, shape (secrets,)."""
        return np.asarray(self.rank / self.candidates)

    @property
    def table(self) -> pa.Table:
        """One row for each planted secret: canary, rank, among (candidates), exposure in bits, p_value."""
        columns = {"canary": self.canary, "rank": self.rank, "among": self.candidates}
        return pa.table({**columns, "exposure": self.bits, "p_value": self.p_value})

    def measures(self, canaries: Canaries, measured: NDArray[np.bool_], confidence: float) -> list[Measure]:
        """Return the median exposure of some canaries, one measure for each draw.

        Args:
            canaries: All canaries.
            measured: True for the canaries that are measured, shape (canaries,).
            confidence: Two-sided confidence of each interval on its own, in (0, 1).
        """
        chosen, draws = measured[self.canary], canaries.draw[self.canary]
        numbers = np.unique(draws[chosen]).tolist()
        medians = []
        for number in numbers:
            rows = np.flatnonzero(chosen & (draws == number))
            middle = rows[np.argsort(-self.rank[rows], kind="stable")[(rows.size - 1) // 2]]
            rank, candidates = int(self.rank[middle]), int(self.candidates[middle])
            interval = exposure_interval(rank, candidates, confidence=confidence)
            method = (
                f"bits, at most {np.log2(candidates):.2f} measurable; {rows.size} planted secrets among "
                f"{candidates - 1} that were never planted"
            )
            kind = canaries.kinds[int(self.canary[middle])]
            name = "median exposure" if len(numbers) == 1 else f"median exposure, draw {number} ({kind})"
            bits = float(exposure_bits(rank, candidates))
            medians.append(Measure(name, bits, float(interval.lower), float(interval.upper), confidence, method))
        return medians


def exposures(canaries: Canaries, view: TextView) -> Exposures:
    """Return the exposures of the planted canaries whose draw has a law and canaries that were never planted.

    The score of a user with several texts is the sum over the texts.
    """
    by_text = np.nansum(view.trained.log_probability, axis=1)
    if view.base is not None:
        by_text = by_text - np.nansum(view.base.log_probability, axis=1)
    score = np.bincount([canary for canary, _ in canaries.all_texts], weights=by_text)
    has_law = ~np.isin(canaries.kinds, WITHOUT_LAW)
    ranked: list[Ints] = []
    for number in np.unique(canaries.draw[has_law]).tolist():
        of_draw = has_law & (canaries.draw == number)
        secrets, others = np.flatnonzero(of_draw & canaries.planted), np.sort(score[of_draw & ~canaries.planted])
        if others.size:
            rank = 1 + others.size - np.searchsorted(others, score[secrets], side="left")
            ranked.append(np.stack([secrets, rank, np.full(secrets.size, others.size + 1)]))
    return Exposures(*np.concatenate([np.zeros((3, 0), np.int64), *ranked], axis=1).astype(np.int64))


def extraction_measures(
    log_probability: Floats, planted: NDArray[np.bool_], *, rule: str, confidence: float
) -> list[Measure]:
    """Return the shares of planted texts that n samples extract, next to the share of texts never planted.

    Args:
        log_probability: Logarithm of the probability of each text after its context, -inf if sampling never writes it,
            shape (texts,).
        planted: True for planted texts, shape (texts,); the others are the control.
        rule: The rule of sampling, in words.
        confidence: Two-sided confidence of each interval on its own, in (0, 1).
    """
    if not 0 < planted.sum() < planted.size:
        return []
    usual = DiscoverableExtraction()
    needed = np.atleast_1d(np.asarray(queries_needed(np.minimum(log_probability, 0.0), usual.probability)))
    shares = []
    for samples in usual.queries:
        share, control = (Share.of(needed[group] <= samples, confidence=confidence) for group in (planted, ~planted))
        compared = f"never planted: {control.hits} of {control.texts}, p = {larger_share_p_value(share, control):.2g}"
        method = f"{share.hits} of {share.texts} planted texts with probability >= {usual.probability:g}; {compared}"
        limits = share.hits / share.texts, share.lower, share.upper
        shares.append(Measure(f"extracted, n={samples}", *limits, confidence, f"{method}; n samples, {rule}"))
    return shares
