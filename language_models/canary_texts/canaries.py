"""Canary texts with their coins: a frozen value that is saved to and loaded from a file of JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import DataError, InputError, PathExistsError, printable, require, shortened
from dpaudit.field_checks import checked_argument, checked_arguments, checked_path, whole_numbers
from dpaudit.language_models.canary_texts.planting import POSITIONS, with_records
from dpaudit.language_models.canary_texts.rates import CONVICTING, maximum_bound
from dpaudit.language_models.canary_texts.source import CanaryKind, CanaryText, TextSource
from dpaudit.plain_files import read_named_file

Unit = Literal["record", "user"]
"""Subject of the claim: one text, or all texts of one user."""
FORMAT = "dpaudit-canaries-2"
MAX_REPEAT = 2**16
"""Largest number of copies of a text."""
_FIELDS: Mapping[str, Any] = {
    "texts": tuple[tuple[CanaryText, ...], ...],
    "planted": NDArray[np.bool_],
    "unit": Unit,
    "seed": int,
    "rate": float,
    "kinds": tuple[str, ...],
    "joined_seeds": tuple[int, ...],
    "chat": bool,
}
"""Types of the fields of `Canaries`, but of those that are one number or many."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Secrets, and a coin for each: heads is planted in the training data, tails is kept out of it.

    `a + b` joins canaries of several kinds. The coins are the answer to the guessing game. Keep the file of the
    canaries from the attacker, and change nothing about a canary because of its coin.

    Attributes:
        texts: Texts of each canary; several if a canary is a user with several texts.
        planted: The coins, shape (canaries,).
        repeat: Copies of each planted text of a canary, >= 1, shape (canaries,); one number stands for all canaries.
        unit: Subject of the claim. "record": a claim about one text is compared by group privacy if a canary is several
            texts or copies. "user": the claim is about all texts of a user at once.
        seed: Seed of texts, coins and positions.
        rate: Probability of heads, in (0, 1/2].
        kinds: Name of the kind of each canary; one name stands for all.
        draw: Number of the draw that the texts of each canary come from, shape (canaries,); one number stands for all.
            Texts of one draw follow one law, so exposure ranks a secret among those of its draw.
        joined_seeds: Seeds of the canaries that were joined; () if none were.
        chat: True if the texts are chats in a chat template.
    """

    texts: tuple[tuple[CanaryText, ...], ...]
    planted: NDArray[np.bool_]
    repeat: NDArray[np.int64] = field(default_factory=lambda: np.ones(1, dtype=np.int64))
    unit: Unit = "record"
    seed: int = 0
    rate: float = 0.5
    kinds: tuple[str, ...] = ("own",)
    draw: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    joined_seeds: tuple[int, ...] = ()
    chat: bool = False

    def __post_init__(self) -> None:
        for name, hint in _FIELDS.items():
            object.__setattr__(self, name, checked_argument(name, getattr(self, name), hint))
        require(len(self.texts) > 0 and all(self.texts), "each canary must have at least one text")
        require(
            self.planted.shape == (len(self.texts),) and self.planted.dtype == np.bool_,
            "canaries must have one coin each",
            coins=self.planted.shape,
            canaries=len(self.texts),
        )
        repeat, draw = (_whole_numbers(name, getattr(self, name), len(self.texts)) for name in ("repeat", "draw"))
        require(
            bool((repeat >= 1).all() and (repeat <= MAX_REPEAT).all()),
            f"repeat must be one whole number in [1, {MAX_REPEAT:,}], or one for each canary",
            repeat=self.repeat,
        )
        object.__setattr__(self, "repeat", repeat)
        require(0 < self.rate <= 0.5, "rate must be in (0, 1/2]", rate=self.rate)
        require(
            len(self.kinds) in (1, len(self.texts)),
            "kinds must be one value, or one for each canary",
            kinds=len(self.kinds),
        )
        object.__setattr__(self, "draw", draw)
        object.__setattr__(self, "kinds", self.kinds * (len(self.texts) // len(self.kinds)))
        counts = Counter(text.secret_tokens for _, text in self.all_texts)
        secret, copies = counts.most_common(1)[0]
        require(
            copies == 1,
            "the secrets of all texts must be different",
            do="make longer secrets, or fewer of them",
            tokens=secret,
        )
        for values in (self.planted, repeat, draw):
            values.setflags(write=False)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def all_texts(self) -> list[tuple[int, CanaryText]]:
        """Number of the canary and text, of all texts in their order."""
        return [(canary, text) for canary, texts in enumerate(self.texts) for text in texts]

    @property
    def added_records(self) -> NDArray[np.int64]:
        """Number of records that each canary adds to the training data, copies included, shape (canaries,)."""
        return self.repeat * np.array([len(texts) for texts in self.texts], dtype=np.int64)

    @property
    def records(self) -> int:
        """Largest number of records that one canary adds to the training data, copies included."""
        return int(self.added_records.max())

    @property
    def digest(self) -> str:
        """SHA-256 of texts, coins and settings."""
        return hashlib.sha256(b"".join(self._lines())).hexdigest()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of the secrets of each canary, shape (canaries,)."""
        owner, sizes = zip(*((canary, len(text.secret_tokens)) for canary, text in self.all_texts), strict=True)
        return np.bincount(owner, weights=sizes).astype(np.int64)

    def __add__(self, other: Canaries) -> Canaries:
        """Return the canaries of both, for one training.

        Raises: InputError for different units, rates or forms, or for equal seeds, whose coins would be equal.
        """
        if not isinstance(other, Canaries):
            return NotImplemented
        require(self.unit == other.unit, "joined canaries must have one unit", units=[self.unit, other.unit])
        require(self.rate == other.rate, "joined canaries must have one rate", rates=[self.rate, other.rate])
        require(self.chat == other.chat, "joined canaries must all be chats, or none of them")
        seeds = (*(self.joined_seeds or (self.seed,)), *(other.joined_seeds or (other.seed,)))
        require(
            len(set(seeds)) == len(seeds),
            "joined canaries must have different seeds, since equal seeds give equal coins",
            do="leave out `seed`",
            seeds=seeds,
        )
        seed = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))
        return Canaries(
            self.texts + other.texts,
            np.concatenate([self.planted, other.planted]),
            np.concatenate([self.repeat, other.repeat]),
            self.unit,
            seed,
            self.rate,
            self.kinds + other.kinds,
            np.concatenate([self.draw, other.draw + self.draw.max() + 1]),
            seeds,
            self.chat,
        )

    def __str__(self) -> str:
        secret = np.mean([len(text.secret_tokens) for _, text in self.all_texts])
        coins = "fair coins" if self.rate == 0.5 else f"coins of probability {self.rate:g}"
        kinds = " and ".join(dict.fromkeys(self.kinds))
        return (
            f"{len(self)} canaries of the kind {kinds}, {int(self.planted.sum())} of them planted by {coins}, "
            f"{' or '.join(map(str, np.unique(self.repeat)))} time(s) each; secrets of {secret:.3g} tokens on average"
        )

    @checked_arguments
    def maximum_epsilon(self, *, delta: float = 0.0, confidence: float = CONVICTING) -> float:
        """Return the maximum detectable epsilon: the bound if every coin is guessed in perfect order.

        A claim above it cannot be rejected: make more canaries. It is about log(canaries) - 2 for every `rate`, and
        does not grow with `repeat`. It is that of the default order of guesses; one attack alone shows less.
        """
        return maximum_bound(self.planted, self.rate, delta=delta, confidence=confidence).lower

    @checked_arguments
    def into(self, dataset: Any, *, pad_to: int | None = None, pad_token: int = 0) -> Any:
        """Return a data set of the same type with `repeat` copies of the planted texts at random positions.

        `with_records` describes the types of data sets, the form that the texts take, and the arguments.
        """
        repeat = np.where(self.planted, self.repeat, 0).tolist()
        copies = [text for texts, count in zip(self.texts, repeat, strict=True) for text in texts * count]
        rng = np.random.default_rng(np.random.SeedSequence(self.seed).spawn(POSITIONS + 1)[POSITIONS])
        return with_records(copies, dataset, rng, chat=self.chat, pad_to=pad_to, pad_token=pad_token)

    @checked_arguments
    def save(self, path: str | Path) -> None:
        """Write the canaries as JSON lines: settings, one line for each canary, and the SHA-256 of these lines.

        The file tells which canaries were planted. Raises: FileExistsError if the file exists.
        """
        try:
            with Path(path).open("xb") as file:
                file.write(self.content)
        except FileExistsError as err:
            raise PathExistsError(f"{shortened(str(path))} exists already; name a new file") from err
        except (OSError, ValueError) as err:
            why = getattr(err, "strerror", None) or err
            raise InputError(f"canaries cannot be written to {shortened(str(path))}: {why}; name another path") from err

    @classmethod
    def load(cls, path: str | Path) -> Canaries:
        """Return the canaries of a file that `save` wrote. Raises: DataError if it is damaged or another file."""
        return cls.of_content(read_named_file(checked_path("path", path)), printable(shortened(str(path))))

    @property
    def content(self) -> bytes:
        """Lines of the file that `save` writes."""
        body = b"".join(self._lines())
        return body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"

    @classmethod
    def of_content(cls, content: bytes, where: str) -> Canaries:
        """Return the canaries of the content of a file, named `where` in errors."""
        head, _, end = content.rstrip(b"\n").rpartition(b"\n")
        body = head + b"\n"
        if _json(end, where, "the last line").get("sha256") != hashlib.sha256(body).hexdigest():
            raise DataError(
                f"{where} must end with the checksum of its lines; it is damaged or was changed: copy it again"
            )
        first, *lines = body.splitlines()
        settings = _json(first, where, "line 1")
        if settings.pop("format", None) != FORMAT:
            raise DataError(f"{where} must be a file of canaries in the format {FORMAT}")
        canaries = [_json(line, where, f"line {number}") for number, line in enumerate(lines, 2)]
        try:
            return cls(
                tuple(tuple(map(_canary_text, canary["texts"])) for canary in canaries),
                np.array([canary["planted"] for canary in canaries], dtype=np.bool_),
                np.array([canary["repeat"] for canary in canaries], dtype=np.int64),
                kinds=tuple(str(canary["kind"]) for canary in canaries),
                draw=np.array([canary["draw"] for canary in canaries], dtype=np.int64),
                **{name: kind(settings[name]) for name, kind in _SETTINGS.items()},
            )
        except (KeyError, TypeError, ValueError) as err:
            raise DataError(f"{where} must hold canaries that `save` wrote: {err}") from err

    def _lines(self) -> Iterator[bytes]:
        settings = {"format": FORMAT, **{name: getattr(self, name) for name in _SETTINGS}}
        yield json.dumps(settings).encode() + b"\n"
        columns = self.texts, self.planted.tolist(), self.repeat.tolist(), self.kinds, self.draw.tolist()
        for texts, planted, repeat, kind, draw in zip(*columns, strict=True):
            canary = {"planted": planted, "repeat": repeat, "kind": kind, "draw": draw}
            yield json.dumps({**canary, "texts": [asdict(text) for text in texts]}).encode() + b"\n"


def _whole_numbers(name: str, values: object, count: int) -> NDArray[np.int64]:
    """Return one whole number, or `count` of them, as an array of the shape (count,)."""
    numbers = whole_numbers(name, values)
    require(numbers.size in (1, count), f"{name} must be one whole number, or one for each canary", given=numbers.size)
    return np.broadcast_to(numbers.ravel(), count).copy()


_SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "unit": str,
    "seed": int,
    "rate": float,
    "joined_seeds": tuple,
    "chat": bool,
}


def _json(line: bytes, where: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"{where} must hold a JSON object in each line, {place} holds none")
    return value


def _canary_text(values: Mapping[str, Any]) -> CanaryText:
    """Return the text with these fields; each must have its type."""
    words = {name: values[name] for name in ("text", "context", "secret")}
    numbers = [*values["tokens"], values["start"], values["stop"]]
    if not all(type(word) is str for word in words.values()) or not all(type(number) is int for number in numbers):
        raise TypeError("texts must be words, and tokens and places whole numbers")
    assert {part.name for part in fields(CanaryText)} == {*words, "tokens", "start", "stop"}
    return CanaryText(tokens=tuple(values["tokens"]), start=values["start"], stop=values["stop"], **words)


def drawn_canaries(
    kind: CanaryKind,
    source: TextSource,
    *,
    canaries: int | None,
    repeat: Sequence[int],
    records: int,
    unit: Unit,
    rate: float,
    seed: int,
) -> Canaries:
    """Return canaries of a kind with their coins; `dpaudit.canaries` describes the arguments."""
    text_seed = np.random.SeedSequence(seed).spawn(POSITIONS + 1)[0]
    texts = kind.draw(source, canaries=canaries, records=records, rng=np.random.default_rng(text_seed))
    coins = drawn_coins(len(texts), rate, seed)
    name = str(getattr(kind, "registered_name", type(kind).__name__))
    repeats = np.resize(np.asarray(repeat), len(texts))
    return Canaries(tuple(texts), coins, repeats, unit, seed, rate=rate, kinds=(name,), chat=source.chat)


def drawn_coins(count: int, rate: float, seed: int) -> NDArray[np.bool_]:
    """Return the coins of `count` canaries that were drawn with a seed."""
    coin_seed = np.random.SeedSequence(seed).spawn(POSITIONS + 1)[1]
    return np.asarray(np.random.default_rng(coin_seed).random(count) < rate)


@dataclass(frozen=True)
class StoredCanaries:
    """Canaries as a result of a unit.

    Attributes:
        content: The lines of `Canaries.save`.
    """

    content: str

    @classmethod
    def of(cls, canaries: Canaries) -> StoredCanaries:
        return cls(canaries.content.decode())

    def load(self) -> Canaries:
        """Return the canaries, which are checked again."""
        return Canaries.of_content(self.content.encode(), "the canaries of a unit")


def new_tokens(canaries: Canaries, tokenizer: Any) -> list[int]:
    """Return the tokens of secrets that the tokenizer does not know, in ascending order."""
    vocabulary = len(tokenizer)
    return sorted({token for _, text in canaries.all_texts for token in text.secret_tokens if token >= vocabulary})
