"""Log-probabilities of tokens under a language model, computed in batches of texts of similar length.

A model is a causal language model of transformers (or any torch module that returns logits), a function, or an object
with the method `token_log_probabilities`, such as `EndpointLogProbabilities`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError, require
from dpaudit.field_checks import refused_if_failing

BATCH_TOKENS = 4096
"""Tokens in a batch, padding included."""
LOGITS, GPU_LOGITS = 2**20, 2**28
"""Logits that are turned to log-probabilities at a time on a CPU, whose cache they should fit, and on a GPU."""


@dataclass(frozen=True)
class TokenSpan:
    """A text in tokens, and its tokens whose log-probabilities are computed.

    Attributes:
        tokens: All tokens of the text.
        start, stop: The span `tokens[start:stop]`, 1 <= start < stop. The first token of a text has no log-probability.
    """

    tokens: tuple[int, ...]
    start: int
    stop: int

    def __post_init__(self) -> None:
        require(
            1 <= self.start < self.stop <= len(self.tokens),
            "a span must begin at token 1 or later and end within the text",
            start=self.start,
            stop=self.stop,
            tokens=len(self.tokens),
        )


@dataclass(frozen=True, eq=False)
class TokenStatistics:
    """Log-probabilities of the spans of texts; all arrays have the shape (texts, longest span), NaN beyond a span.

    Attributes:
        log_probability: Log-probability of each token given those before it, in nats.
        mean: Mean of the log-probability of a token drawn from the model at this place; NaN if only the log-probability
            of the text's own tokens is known.
        deviation: Standard deviation of the same; NaN likewise.
        sampled: Log-probability that a sampler draws the token, -inf if it never does; NaN if no rule was given.
        sampling: The rule of the sampler; None if none was given.
    """

    log_probability: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    sampled: NDArray[np.float64] | None = None
    sampling: SamplingRule | None = None

    @property
    def has_moments(self) -> bool:
        """True if mean and deviation are known."""
        return bool(np.isfinite(self.mean[np.isfinite(self.log_probability)]).all())

    def __len__(self) -> int:
        return int(self.log_probability.shape[0])


@runtime_checkable
class HasTokenLogProbabilities(Protocol):
    """A model that computes log-probabilities of tokens itself."""

    def token_log_probabilities(self, texts: Sequence[Sequence[int]]) -> Sequence[Sequence[float]]:
        """Return the log-probability of each token of each text; that of the first token is not used."""
        ...


class SamplingRule(Protocol):
    """A rule that draws the next token from its logits."""

    def log_probabilities(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of each token's probability of being drawn, shape as `logits`."""
        ...


def token_statistics(
    model: Any,
    spans: Sequence[TokenSpan],
    *,
    batch_tokens: int = BATCH_TOKENS,
    sampling: SamplingRule | None = None,
) -> TokenStatistics:
    """Return the log-probabilities of spans of texts under a model.

    Args:
        model: A torch module that maps `input_ids` of shape (texts, tokens) to logits, or to an output with `logits`;
            or an object with `token_log_probabilities`; or a function of one list of tokens that returns the
            log-probability of each token, shape (tokens,), or of every token of the vocabulary after each place, shape
            (tokens, vocabulary).
        spans: Texts in tokens.
        batch_tokens: Largest number of tokens in a batch of a torch module, padding included.
        sampling: Rule by which a sampler draws tokens from the model; None leaves its log-probabilities out.
    Raises: InputError for another kind of model, log-probabilities that are not finite, or a rule of sampling without
        the log-probabilities of the whole vocabulary.
    """
    require(batch_tokens >= 1, "batch_tokens must be >= 1", batch_tokens=batch_tokens)
    return joined_statistics(spans, _by_text(model, spans, batch_tokens, sampling), sampling)


def joined_statistics(
    spans: Sequence[TokenSpan],
    by_text: Iterable[tuple[int, NDArray[np.float64]]],
    sampling: SamplingRule | None = None,
) -> TokenStatistics:
    """Return the statistics of spans from the values of each text, shape (3, span), with a rule of sampling (4, span).

    Raises: InputError if a log-probability is not finite.
    """
    longest = max((span.stop - span.start for span in spans), default=0)
    values = np.full((3 if sampling is None else 4, len(spans), longest), np.nan)
    for row, moments in by_text:
        values[:, row, : moments.shape[1]] = moments
    log_probability, mean, deviation, *sampled = values
    statistics = TokenStatistics(log_probability, mean, deviation, sampled[0] if sampled else None, sampling)
    sizes = np.array([span.stop - span.start for span in spans])
    infinite = ~np.isfinite(statistics.log_probability) & (np.arange(longest) < sizes[:, None])
    require(
        not infinite.any(),
        "log-probabilities must be finite",
        do="check that the model was trained without overflow and knows all tokens",
        texts=int(infinite.any(axis=1).sum()),
    )
    return statistics


def _by_text(
    model: Any, spans: Sequence[TokenSpan], batch_tokens: int, sampling: SamplingRule | None
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the number of each text with its values: log-probability, mean, deviation and, if there is a rule, sampled.

    They have the shape (3 or 4, span).
    """
    if isinstance(model, HasTokenLogProbabilities) and not isinstance(model, type):
        with refused_if_failing("`token_log_probabilities` of the model"):
            every = list(model.token_log_probabilities([span.tokens for span in spans]))
            answers = [np.asarray(answer, dtype=np.float64) for answer in every]
        require(len(answers) == len(spans), "a model must answer for each text", texts=len(spans), got=len(answers))
        for row, (span, answer) in enumerate(zip(spans, answers, strict=True)):
            yield row, _of_values(answer, span, sampling)
    elif is_module(model):
        yield from batched_statistics(model, spans, batch_tokens, sampling=sampling)
    elif callable(model):
        for row, span in enumerate(spans):
            with refused_if_failing("the model, a function of a list of tokens,"):
                values = np.asarray(model(list(span.tokens)), dtype=np.float64)
            yield row, _of_values(values, span, sampling)
    else:
        raise InputError(
            "a language model must be a torch module, a function of a list of tokens, or an object with "
            f"token_log_probabilities, got {type(model).__name__}"
        )


def is_module(model: Any) -> bool:
    """True if a model is a torch module; torch is not imported."""
    return any(
        (base.__module__, base.__name__) == ("torch.nn.modules.module", "Module") for base in type(model).__mro__
    )


def _of_values(values: NDArray[np.float64], span: TokenSpan, sampling: SamplingRule | None) -> NDArray[np.float64]:
    """Return the values of one text, as in `_by_text`, from the answer of a function."""
    tokens = len(span.tokens)
    require(
        values.shape[:1] == (tokens,) and values.ndim in (1, 2),
        "a function of tokens must return an array of shape (tokens,) or (tokens, vocabulary)",
        shape=values.shape,
        tokens=tokens,
    )
    if values.ndim == 1:
        require(
            sampling is None,
            "a rule of sampling needs the log-probabilities of the whole vocabulary",
            do="leave out `sampling`, or pass a model that returns them",
        )
        log_probability = values[span.start : span.stop]
        unknown = np.full_like(log_probability, np.nan)
        return np.stack([log_probability, unknown, unknown])
    rows = values[span.start - 1 : span.stop - 1]
    total = np.log(np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)) + rows.max(axis=1)
    require(
        bool(np.allclose(total, 0, atol=1e-3)),
        "the log-probabilities after a place must sum to 1 over the vocabulary",
        do="return log-probabilities, not logits",
        largest_error=float(np.abs(total).max()),
    )
    probability, finite = np.exp(rows), np.where(np.isneginf(rows), 0.0, rows)
    mean = (probability * finite).sum(axis=1)
    variance = (probability * (finite - mean[:, None]) ** 2).sum(axis=1)
    targets = list(span.tokens[span.start : span.stop])
    every = [rows] if sampling is None else [rows, sampling.log_probabilities(rows)]
    log_probability, *sampled = (table[np.arange(len(rows)), targets] for table in every)
    return np.stack([log_probability, mean, np.sqrt(variance), *sampled])


def batched_statistics(
    module: Any,
    spans: Sequence[TokenSpan],
    batch_tokens: int,
    *,
    sampling: SamplingRule | None = None,
    before: Callable[[list[int]], object] | None = None,
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the number of each text with its values, as in `joined_statistics`.

    Texts are padded on the right, in batches of similar length; `before` receives the numbers of the texts of the next
    batch.
    """
    import torch

    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    keeps_last = "logits_to_keep" in inspect.signature(module.forward).parameters
    with evaluating(module), torch.inference_mode():
        for rows in _batches([len(span.tokens) for span in spans], batch_tokens):
            if before is not None:
                before(rows)
            width = max(len(spans[row].tokens) for row in rows)
            tokens, present = np.zeros((2, len(rows), width), np.int64)
            for place, row in enumerate(rows):
                tokens[place, : len(spans[row].tokens)] = spans[row].tokens
                present[place, : len(spans[row].tokens)] = 1
            # The logits before the first span of the batch are not needed, and a vocabulary makes them large.
            first = min(spans[row].start for row in rows) - 1 if keeps_last else 0
            further = {"logits_to_keep": width - first} if keeps_last else {}
            inputs, mask = (torch.from_numpy(values).to(device) for values in (tokens, present))
            logits = logits_of(module, inputs, mask, further)
            sizes = [spans[row].stop - spans[row].start for row in rows]
            places = np.repeat(np.arange(len(rows)), sizes)
            positions = np.concatenate([np.arange(spans[row].start, spans[row].stop) for row in rows])
            moments = _moments(logits, places, positions - 1 - first, tokens[places, positions], sampling)
            for row, values in zip(rows, np.split(moments, np.cumsum(sizes)[:-1], axis=1), strict=True):
                yield row, values


def logits_of(module: Any, tokens: Any, present: Any, further: dict[str, Any]) -> Any:
    """Return the logits of a torch module, shape (texts, tokens, vocabulary); `present` is 0 at padding."""
    takes_mask = "attention_mask" in inspect.signature(module.forward).parameters
    with refused_if_failing("the model, called with tokens,"):
        output = module(tokens, **({"attention_mask": present} if takes_mask else {}), **further)
    logits = getattr(output, "logits", output)
    require(
        len(getattr(logits, "shape", ())) == 3 and len(logits) == len(tokens),
        "a torch module must return logits of shape (texts, tokens, vocabulary)",
        got=tuple(getattr(logits, "shape", ())) or type(logits).__name__,
    )
    return logits


def _moments(
    logits: Any,
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
    targets: NDArray[np.int64],
    sampling: SamplingRule | None,
) -> NDArray[np.float64]:
    """Return the log-probability of the targets, and its mean and deviation at each place, shape (3, targets).

    With a rule of sampling, a fourth row has the log-probability that it draws the target.

    `logits[places[k], positions[k]]` are those of the target k.
    """
    import torch

    at_place, at_position, wanted = (
        torch.from_numpy(values).to(logits.device) for values in (places, positions, targets)
    )
    size, parts = max(1, (GPU_LOGITS if logits.is_cuda else LOGITS) // logits.shape[-1]), []
    for first in range(0, len(targets), size):
        part = slice(first, first + size)
        after = torch.log_softmax(logits[at_place[part], at_position[part]].float(), dim=-1)
        probability, finite = after.exp(), after.clamp_min(-1e4)  # -inf times a probability of 0 would be NaN
        mean = (probability * finite).sum(-1)
        deviation = ((probability * (finite - mean[:, None]) ** 2).sum(-1)).sqrt()
        moments = torch.stack([after.gather(1, wanted[part, None])[:, 0], mean, deviation]).double().cpu().numpy()
        if sampling is not None:
            by_token = sampling.log_probabilities(after.double().cpu().numpy())
            moments = np.vstack([moments, by_token[np.arange(len(by_token)), targets[part]]])
        parts.append(moments)
    return np.concatenate(parts, axis=1)


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of the texts of each batch, shortest texts first."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[row] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@contextlib.contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Switch dropout off, and restore the mode of every part afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def sampled_tokens(
    module: Any,
    contexts: Sequence[Sequence[int]],
    length: int,
    *,
    temperature: float,
    seed: int,
    allowed: Sequence[int],
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[int]]:
    """Return `length` tokens after each context, drawn from a torch module at a temperature.

    Args:
        module: As in `token_statistics`.
        contexts: Tokens to continue, all of one length >= 1.
        temperature: Divisor of the logits, > 0; large values make improbable tokens frequent.
        seed: Seed of the draws.
        allowed: Tokens that may be drawn.
    """
    import torch

    require(0 < temperature < math.inf, "temperature must be > 0", temperature=temperature)
    require(is_module(module), "canaries must be sampled from a torch module", model=type(module).__name__)
    require(len({len(context) for context in contexts}) <= 1, "contexts must have one length")
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    drawable = torch.tensor(allowed)
    generator = torch.Generator().manual_seed(seed % 2**63)
    keeps_last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(module.forward).parameters else {}
    samples: list[list[int]] = []
    with evaluating(module), torch.inference_mode():
        for rows in _batches([len(context) + length for context in contexts], batch_tokens):
            tokens = torch.tensor([list(contexts[row]) for row in rows], device=device)
            for _ in range(length):
                logits = logits_of(module, tokens, torch.ones_like(tokens), keeps_last)[:, -1].float().cpu()
                probability = torch.softmax(logits[:, drawable] / temperature, -1)
                following = drawable[torch.multinomial(probability, 1, generator=generator)]
                tokens = torch.cat([tokens, following.to(device)], dim=1)
            samples += tokens[:, -length:].tolist()
    return samples
