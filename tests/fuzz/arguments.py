"""Cases of public functions and methods with odd arguments: answered, or refused in a sentence."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import dpaudit
from dpaudit.language_models.mechanisms.token_statistics import TokenStatistics
from tests.fuzz.odd_values import ANY, Odd, anything
from tests.fuzz.outcome import Outcome, outcome

TEXTS = [f"the {first} of {last}" for first in "abcdefgh" for last in "stuvwxyz"]
FRAME = pd.DataFrame({"age": np.arange(40.0), "city": ["Bern", "Oslo", "Rome", "Lyon"] * 10})
CHARACTERS = 128


class Characters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("ascii"))

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("ascii", "replace")

    def __len__(self) -> int:
        return CHARACTERS


class Network(torch.nn.Module):
    """A language model of a few thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(CHARACTERS, 4)
        self.head = torch.nn.Linear(4, CHARACTERS)

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return self.head(self.embedding(input_ids))


@cache
def secrets() -> dpaudit.Canaries:
    """Return twelve canaries."""
    return dpaudit.canaries(Characters(), n=12, kind="random-tokens", length=6, seed=3)


@cache
def statistics(seed: int = 0) -> TokenStatistics:
    """Return their log-probabilities under a small model."""
    torch.manual_seed(seed)
    return dpaudit.text_statistics(Network(), secrets())


def batch() -> dict[str, Any]:
    """Return a batch with the first planted canary."""
    tokens = torch.tensor([list(secrets().texts[int(np.flatnonzero(secrets().planted)[0])][0].tokens)])
    return {"input_ids": tokens, "labels": tokens}


def _step(record: dpaudit.LossRecord, model: Any, optimizer: Any) -> str:
    """Record one step of a training."""
    with record.of(model, optimizer):
        model(batch()["input_ids"], labels=batch()["labels"])
    return str(record)


def _audited(model: Any, batches: Any, tokenizer: Any, optimizer: Any) -> str:
    """Audit a training of one step."""
    audit = dpaudit.TextAudit(secrets(), claim=1.0)
    with audit.of(model, batches=batches, tokenizer=tokenizer, optimizer=optimizer):
        model(batch()["input_ids"], labels=batch()["labels"])
    return str(audit.result)


def _record() -> dpaudit.LossRecord:
    record = dpaudit.LossRecord(secrets())
    record.add(batch())
    return record


def _changed(value: Any, rng: random.Random) -> Any:
    """Return a copy of nested plain values with an odd value at one place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        return {**value, key: _changed(value[key], rng)} if rng.random() < 0.9 else {**value, "odd": 1}
    if isinstance(value, list) and value and rng.random() < 0.5:
        place = rng.randrange(len(value))
        return [*value[:place], _changed(value[place], rng), *value[place + 1 :]]
    return anything(rng).value


def _state() -> dict[str, Any]:
    audit = dpaudit.TextAudit(secrets())
    audit.base = statistics()
    audit.record.add(batch())
    return audit.state


def _planted(**fields: Any) -> str:
    return str(dpaudit.Canaries(**fields))


def good_calls(folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return functions with good arguments."""
    (folder / "own.jsonl").write_text('{"text": "the secret", "secret": "secret"}')
    secrets().save(folder / "saved.jsonl")
    claims = {"claim": 1.0, "order": "largest-token", "attacks": ["largest-token"], "confidence": 0.9, "by": "repeat"}
    fields = ("texts", "planted", "repeat", "unit", "seed", "rate", "kinds", "draw", "joined_seeds", "chat")
    random_tokens = {"n": 12, "kind": "random-tokens", "length": 5, "seed": 4, "rate": 0.5, "unit": "record"}
    return {
        "canaries": (
            dpaudit.canaries,
            {"tokenizer": Characters(), "n": 6, "kind": "random-tokens", "repeat": (1, 2), "records": 1}
            | {"unit": "record", "texts": TEXTS, "base": None, "rate": 0.5, "chat": False, "seed": 1, "length": 4},
        ),
        "canaries of texts": (
            dpaudit.canaries,
            {"tokenizer": Characters(), "n": 6, "kind": "rare-suffix", "texts": TEXTS, "context": 3, "length": 4},
        ),
        "canaries of a model": (
            dpaudit.canaries,
            {"tokenizer": Characters(), "n": 4, "kind": "high-temperature", "base": Network(), "texts": TEXTS}
            | {"context": 3, "length": 4, "temperature": 2.0},
        ),
        "canaries of a file": (
            dpaudit.canaries,
            {"tokenizer": Characters(), "kind": "file", "path": str(folder / "own.jsonl")},
        ),
        "Canaries": (_planted, {name: getattr(secrets(), name) for name in fields}),
        "Canaries +": (lambda **fields: str(secrets() + dpaudit.canaries(Characters(), **fields)), random_tokens),
        "Canaries.into": (secrets().into, {"dataset": TEXTS, "pad_to": None, "pad_token": 0}),
        "Canaries.into tokens": (secrets().into, {"dataset": [batch()], "pad_to": 40, "pad_token": 0}),
        "Canaries.save": (secrets().save, {"path": folder / "canaries.jsonl"}),
        "Canaries.load": (dpaudit.Canaries.load, {"path": folder / "saved.jsonl"}),
        "Canaries.maximum_epsilon": (secrets().maximum_epsilon, {"delta": 0.0, "confidence": 0.9}),
        "LossRecord": (
            dpaudit.LossRecord,
            {"canaries": secrets(), "tokenizer": Characters(), "shifted": False, "sampling_rate": 0.5},
        ),
        "LossRecord.add": (_record().add, {"batch": batch()["input_ids"], "labels": batch()["labels"]}),
        "LossRecord.add mapping": (lambda **columns: _record().add(columns), batch()),
        "LossRecord.of": (
            lambda model, optimizer: _step(_record(), model, optimizer),
            {"model": Network(), "optimizer": torch.optim.SGD(Network().parameters(), lr=0.1)},
        ),
        "LossRecord.around": (
            lambda batches: [*itertools.islice(_record().around(batches), 3)],
            {"batches": [batch()]},
        ),
        "LossRecord.collating": (lambda collate: _record().collating(collate), {"collate": list}),
        "LossRecord.merge": (_record().merge, {"other": _record()}),
        "LossRecord.joined": (_record().joined, {"states": [_record().state]}),
        "LossRecord.remarks_on": (_record().remarks_on, {"model": Network()}),
        "LossRecord.blind_to": (_record().blind_to, {"model": Network()}),
        "preflight": (
            dpaudit.preflight,
            {"canaries": secrets(), "batches": [batch()], "tokenizer": Characters()},
        ),
        "text_statistics": (
            dpaudit.text_statistics,
            {"model": Network(), "canaries": secrets(), "batch_tokens": 64, "sampling": {"temperature": 1.5}},
        ),
        "estimate_text": (
            dpaudit.estimate_text,
            {"model": statistics(), "base": statistics(1), "canaries": secrets(), "training": _record()}
            | {"reference": None, "sampling": None, "delta": 0.0, "batch_tokens": 64, "release": None, **claims},
        ),
        "TextAudit": (
            dpaudit.TextAudit,
            {"canaries": secrets(), "output": folder / "audit", "check_data": True, "sampling_rate": 0.5, **claims}
            | {"sampling": {"top_k": 3}, "delta": 0.0, "batch_tokens": 64, "reference": None},
        ),
        "TextAudit.of": (
            _audited,
            {"model": Network(), "batches": None, "tokenizer": Characters(), "optimizer": None},
        ),
        "TextAudit.restore": (dpaudit.TextAudit(secrets()).restore, {"state": _state()}),
        "TextAudit.end": (dpaudit.TextAudit(secrets()).end, {"model": statistics()}),
        "EndpointLogProbabilities": (
            dpaudit.EndpointLogProbabilities,
            {"url": "http://localhost:9/v1", "model_name": "x", "texts_per_request": 2, "parallel": 1}
            | {"key_variable": "NO_SUCH_KEY", "attempts": 1},
        ),
        "synthetic": (
            dpaudit.synthetic,
            {"train": FRAME[:20], "holdout": FRAME[20:], "synth": FRAME[::3], "claim": 3.0, "relation": "replace"}
            | {"groups": None, "strata": "city", "split": "random", "tuned_on_holdout": False}
            | {"columns": ["age", "city"], "target": "city", "confidence": 0.99, "seed": 0},
        ),
        "rows": (
            dpaudit.rows,
            {"table": FRAME, "schema": {"age": (0, 50), "city": ["Bern", "Oslo", "Rome", "Lyon"]}, "drop": ()}
            | {"name": "x"},
        ),
        "log_to_mlflow": (dpaudit.log_to_mlflow, {"result": None, "experiment": "x", "name": "y"}),
        "log_to_wandb": (dpaudit.log_to_wandb, {"result": None, "project": "x", "name": "y"}),
        "restore_sweep": (
            dpaudit.restore_sweep,
            {"folder": folder, "allow_code": False, "allow_network": False, "allow_files": False, "quiet": True},
        ),
        "check": (dpaudit.check, {"mechanism": "no-such-name", "schema": None, "relation": "replace", "form": "frame"}),
    }


@dataclass(frozen=True)
class Arguments:
    """Cases that call public functions and methods with one to three odd arguments."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        torch.manual_seed(0)
        calls = good_calls(folder)
        name = rng.choice(sorted(calls))
        function, good = calls[name]
        names = rng.sample(sorted(good), min(len(good), rng.choices((1, 2, 3), (6, 2, 1))[0]))
        odd = {argument: self._odd(good[argument], rng) for argument in names}
        values = {**good, **{argument: value.value for argument, value in odd.items()}}
        described = ", ".join(f"{argument} = {value.words}" for argument, value in odd.items())
        with warnings.catch_warnings(), contextlib.chdir(folder):
            warnings.simplefilter("ignore")
            result = outcome(lambda: str(function(**values)))
        return f"{name}: {described}", result

    def _odd(self, good: Any, rng: random.Random) -> Odd:
        """Return an odd value; in place of nested values also nested ones with an odd place."""
        if isinstance(good, dict | list) and rng.random() < 0.5:
            return Odd("changed", _changed(good, rng), ANY)
        if isinstance(good, Path) and rng.random() < 0.3:
            return Odd("missing folder", good / "no" / "such", ANY)
        return anything(rng)
