"""Data sets with the planted canaries at random positions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpaudit.errors import InputError, require
from dpaudit.language_models.canary_texts.source import CanaryText, chat_of
from dpaudit.language_models.mechanisms.fine_tuning.records import NO_LOSS

POSITIONS = 2
"""Number of the stream of random positions among the seeds of canaries; 0 draws texts and 1 draws coins."""
MAX_TOKENS = 2**20


def with_records(
    copies: Sequence[CanaryText],
    dataset: Any,
    rng: np.random.Generator,
    *,
    chat: bool = False,
    pad_to: int | None = None,
    pad_token: int = 0,
) -> Any:
    """Return a data set of the same type with these texts at random positions.

    The order of the other examples stays, and the data set is not changed. A text takes the form of the first
    example:

    * a text: the text.
    * a mapping with "input_ids": its tokens, with "labels" equal to the tokens and "attention_mask" if the example has
      them. Values are tensors where the example has tensors.
    * a mapping with "prompt" and "completion": context and secret, as texts or as lists of messages.
    * a mapping with "messages": the context as the user's message, the secret as the answer.
    * a mapping with "text": the text.

    Messages need texts that were written in the chat template (`chat=True`), so that they are scored in its tokens.

    Args:
        dataset: A list or tuple of examples, a `Dataset` of Hugging Face, or a map-style data set of torch.
        rng: Draws the order of the texts and their positions.
        chat: True if the texts are chats in a chat template.
        pad_to: Length to which tokens of these texts are padded: labels with -100, attention with 0. None: no padding.
        pad_token: Token of the padding.
    Raises: InputError for another data set or form of examples, or a text longer than `pad_to`.
    """
    form, size = _first_example(dataset)
    copies = [copies[place] for place in rng.permutation(len(copies))]
    total = size + len(copies)
    is_planted = np.zeros(total, dtype=np.bool_)
    is_planted[rng.choice(total, len(copies), replace=False)] = True
    # Place of each example in the data set followed by the copies.
    places = np.where(is_planted, size + np.cumsum(is_planted) - 1, np.cumsum(~is_planted) - 1)
    _require_form(form, chat)
    records = [_like(form, text, pad_to, pad_token) for text in copies]
    if isinstance(dataset, list | tuple):
        every = [*dataset, *records]
        return type(dataset)(every[place] for place in places)
    if type(dataset).__module__.partition(".")[0] == "datasets":
        return _into_hugging_face(dataset, records, places.tolist())
    from torch.utils.data import ConcatDataset, Subset

    return Subset(ConcatDataset([dataset, records]), places.tolist())  # type: ignore[list-item]  # a list is map-style


def _first_example(dataset: Any) -> tuple[Any, int]:
    """Return the first example and their number. Raises: InputError for anything but a data set of examples."""
    try:
        size, form = len(dataset), dataset[0] if len(dataset) else None
    except Exception as err:  # data sets of users raise anything
        raise InputError(
            "canaries can be planted in a list, a `Dataset` of Hugging Face or a map-style data set of torch, got "
            f"{type(dataset).__name__}; turn a stream into a list and a table into examples, and choose a split of a "
            "DatasetDict"
        ) from err
    require(not isinstance(dataset, str | bytes), "the data set must be a list of texts", got=type(dataset).__name__)
    require(size > 0, "the data set must hold at least one example, whose form the canaries take")
    return form, size


def _require_form(form: Any, chat: bool) -> None:
    """Raise InputError if the examples are messages and the texts are not, or the other way round."""
    columns = form.keys() if isinstance(form, Mapping) and "input_ids" not in form else ()
    pair = {"prompt", "completion"} <= set(columns)
    messages = (pair and not isinstance(form["prompt"], str)) or (not pair and "messages" in columns)
    require(
        chat or not messages,
        "canaries for examples of messages must be written in the chat template",
        do="make them with `dpaudit.canaries(tokenizer, ..., chat=True)`",
        columns=", ".join(map(str, columns)),
    )
    require(
        not chat or messages or not pair,
        "canaries in a chat template cannot be planted as prompt and completion in plain text",
        do="make them without chat=True",
    )


def _like(form: Any, text: CanaryText, pad_to: int | None, pad_token: int) -> Any:
    """Return the text in the form of an example."""
    if isinstance(form, str):
        return text.text
    if isinstance(form, Mapping):
        if "input_ids" in form:
            return _tokens_like(form, text, pad_to, pad_token)
        if {"prompt", "completion"} <= form.keys():
            if isinstance(form["prompt"], str):
                return {"prompt": text.context, "completion": text.secret}
            question, answer = chat_of(text.context, text.secret)
            return {"prompt": [question], "completion": [answer]}
        if "messages" in form:
            return {"messages": chat_of(text.context, text.secret)}
        if "text" in form:
            return {"text": text.text}
    columns = ", ".join(map(str, form)) if isinstance(form, Mapping) else type(form).__name__
    raise InputError(
        "examples must be texts, or mappings with input_ids, text, messages, or prompt and completion, got "
        f"{columns}; plant canaries before examples are turned into another form"
    )


def _tokens_like(form: Mapping[str, Any], text: CanaryText, pad_to: int | None, pad_token: int) -> dict[str, Any]:
    tokens = list(text.tokens)
    require(pad_to is None or pad_to <= MAX_TOKENS, f"pad_to must be at most {MAX_TOKENS:,}", pad_to=pad_to)
    require(
        pad_to is None or len(tokens) <= pad_to,
        f"the texts of canaries must fit into pad_to={pad_to} tokens",
        do="make shorter canaries",
        tokens=len(tokens),
    )
    padding = 0 if pad_to is None else pad_to - len(tokens)
    columns = {
        "input_ids": tokens + [pad_token] * padding,
        "labels": tokens + [NO_LOSS] * padding,
        "attention_mask": [1] * len(tokens) + [0] * padding,
    }
    others = form.keys() - columns.keys()
    require(not others, "examples of tokens may have input_ids, labels and attention_mask", also=sorted(others))
    record: dict[str, Any] = {name: values for name, values in columns.items() if name in form}
    for name, example in form.items():
        if hasattr(example, "new_tensor"):
            record[name] = example.new_tensor(record[name])
        elif isinstance(example, np.ndarray):
            record[name] = np.array(record[name], dtype=example.dtype)
    return record


def _into_hugging_face(dataset: Any, records: Sequence[Mapping[str, Any]], places: Sequence[int]) -> Any:
    library = importlib.import_module("datasets")
    missing = set(dataset.column_names) - records[0].keys() if records else set()
    require(
        not missing,
        "columns of the data set must be those that canaries have",
        do="remove the others with `remove_columns`",
        also=sorted(missing),
    )
    if not records:
        return dataset
    planted = library.Dataset.from_list([dict(record) for record in records], features=dataset.features)
    return library.concatenate_datasets([dataset, planted]).select(places)
