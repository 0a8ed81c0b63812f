"""Canaries for a tokenizer: the function `dpaudit.canaries`."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.request.build import build
from dpaudit.errors import require, shortened
from dpaudit.field_checks import checked_argument, refused_if_failing
from dpaudit.language_models.canary_texts.canaries import Canaries, Unit, drawn_canaries
from dpaudit.language_models.canary_texts.source import TextSource

MAX_TEXTS = 10_000_000
"""Largest number of texts of all canaries."""


def canaries(
    tokenizer: Any,
    n: int | None = None,
    kind: str = "new-token",
    repeat: int | Sequence[int] | NDArray[np.int64] = 1,
    *,
    records: int = 1,
    unit: Unit = "record",
    texts: Collection[str] = (),
    base: Any = None,
    rate: float = 0.5,
    chat: bool = False,
    seed: int | None = None,
    **options: object,
) -> Canaries:
    """Return secrets for a tokenizer, with a coin for each that says if it is planted in the training data.

        canaries = dpaudit.canaries(tokenizer, n=1000, kind="rare-suffix", texts=domain_texts)
        canaries += dpaudit.canaries(tokenizer, n=500, kind="random-tokens", repeat=(1, 4, 16))
        dataset = canaries.into(dataset)

    Args:
        tokenizer: A tokenizer of transformers; or an object with `encode(text)`, `decode(tokens)` and `len()`.
        n: Number of canaries, >= 1; about `rate` times `n` of them are planted. Default: 1,000, or all of a file. It
            decides how large an epsilon can be detected: about log(n) - 1.4 for every rate.
        kind: `dpaudit list text-canaries` shows the kinds.
        repeat: Copies of each planted text, >= 1. Several numbers, such as (1, 4, 16), go to the canaries in turn.
        records: Texts of each canary, >= 1: more than one makes each canary a user.
        unit: Subject of the claim: "record", one text; or "user", all texts and copies of a canary. A claim about one
            text is compared by group privacy if a canary is several, so the largest `records` times `repeat` must then
            be a power of two.
        texts: Texts of the domain, which the kinds "new-token", "rare-suffix" and "high-temperature" continue. Take
            texts that are not training data, which would teach the contexts of canaries that were kept out.
        base: The model before training, from which "high-temperature" samples.
        rate: Probability that a canary is planted, in (0, 1/2]. A smaller one plants fewer of as many texts; those
            that are kept out cost a forward pass, and no training. For as many planted texts it gives larger bounds.
        chat: True for data sets of `messages`: each text is written in the tokenizer's chat template, with the context
            as the user's message and the secret as the answer. It is planted and scored in these tokens.
        seed: Seed of texts, coins and positions; by default a new random one, so that coins are unknown.
        options: Fields of the kind: `context=16`, `length=8`, `path="canaries.jsonl"`.
    Raises: InputError for an argument out of range, SpecError for an unknown kind or option.
    """
    require(n is None or n >= 1, "n must be a whole number >= 1", n=n)
    require(0 < rate <= 0.5, "rate must be in (0, 1/2]", rate=rate)
    require(records >= 1, "records must be a whole number >= 1", records=records)
    texts_in_all = (1 if n is None else n) * records
    require(texts_in_all <= MAX_TEXTS, f"n times records must be at most {MAX_TEXTS:,}", texts=texts_in_all)
    copies = np.atleast_1d(np.asarray(repeat))
    require(
        copies.dtype.kind in "iu" and copies.ndim == 1 and copies.size > 0 and bool((copies >= 1).all()),
        "repeat must be a whole number >= 1, or several of them",
        repeat=repeat,
    )
    require(not isinstance(texts, str), "texts must be a list of texts, got one text")
    with refused_if_failing("reading `texts`"):
        domain = tuple(texts)
    domain = checked_argument("texts", domain, tuple[str, ...])
    require(seed is None or seed >= 0, "seed must be >= 0", seed=seed)
    seed = secrets.randbits(63) if seed is None else seed
    canary_kind = build("text-canary", {"name": kind, **options}, location=shortened(f"kind {kind}"))
    source = TextSource(tokenizer, domain, base, chat)
    return drawn_canaries(
        canary_kind, source, canaries=n, repeat=copies.tolist(), records=records, unit=unit, rate=rate, seed=seed
    )
