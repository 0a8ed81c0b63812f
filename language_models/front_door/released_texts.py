"""Canaries in a release of texts: the private texts held them, and the attacker has nothing but the release.

A model counted from the release scores all canaries. Counting is post-processing: the texts go in, and no coin does. So
what the release keeps private stays private in the scores, and the bound on its epsilon holds for finite samples. It
says nothing of the weights of the generator, which leak as much or more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError, require
from dpaudit.estimators.extraction.shares import Share, larger_share_p_value
from dpaudit.estimators.measures import Measure
from dpaudit.field_checks import refused_if_failing
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.data.plain_texts import TextsFile
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from dpaudit.language_models.mechanisms.word_sequences import Words, WordSequences, words_of

Release = str | Path | Collection[str]
"""Texts, or the path of a file that holds them."""


@dataclass(frozen=True, eq=False)
class ReleaseScores:
    """Scores of the texts of canaries by a release.

    Attributes:
        statistics: Log-probabilities of the words of the secrets under a model counted from the release.
        copied: True for each text whose secret stands in the release, shape (texts,).
        texts: Number of texts of the release.
    """

    statistics: TokenStatistics
    copied: NDArray[np.bool_]
    texts: int


def texts_of(release: Release, name: str) -> tuple[str, ...]:
    """Return the texts of a release; `name` is that of the argument.

    Raises: InputError for anything but texts, DataError for a file that holds none.
    """
    if isinstance(release, str | Path):
        return TextsFile(str(release)).load().texts
    with refused_if_failing(f"reading `{name}`"):
        texts = tuple(release)
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"`{name}` must be a list of texts, or the path of a file of texts")
    require(any(text.strip() for text in texts), f"`{name}` must hold at least one text that is not empty")
    return texts


def release_scores(texts: tuple[str, ...], canaries: Canaries) -> ReleaseScores:
    """Return the scores of the texts of all canaries, planted or not, by these texts."""
    model = WordSequences(texts)
    divided = [(words_of(text.context), _secret(text.secret)) for _, text in canaries.all_texts]
    rows = [model.log_probabilities(context, secret) for context, secret in divided]
    values = np.full((len(rows), max(map(len, rows))), np.nan)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    unknown = np.full_like(values, np.nan)
    copied = model.holds([secret for _, secret in divided])
    return ReleaseScores(TokenStatistics(values, unknown, unknown), copied, len(texts))


def _secret(secret: str) -> Words:
    return words_of(secret) or (secret,)


def copied_measures(copied: NDArray[np.bool_], planted: NDArray[np.bool_], *, confidence: float) -> list[Measure]:
    """Return the share of planted texts whose secret stands in the release; texts never planted are the control.

    Args:
        copied, planted: As in `ReleaseScores` and for the same texts, shape (texts,).
        confidence: Two-sided confidence of the interval, in (0, 1).
    """
    if not 0 < planted.sum() < planted.size:
        return []
    share, control = (Share.of(copied[group], confidence=confidence) for group in (planted, ~planted))
    method = (
        f"{share.hits} of {share.texts} planted secrets stand in the release; never planted: {control.hits} of "
        f"{control.texts}, p = {larger_share_p_value(share, control):.2g}"
    )
    return [Measure("copied", share.hits / share.texts, share.lower, share.upper, confidence, method)]
