"""Canary texts: every kind, planting in every kind of data set, and the file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from scipy.stats import binom
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerFast

import dpaudit
from dpaudit.errors import DataError, InputError, SpecError
from dpaudit.language_models.canary_texts.canaries import Canaries, new_tokens
from dpaudit.language_models.canary_texts.source import TextSource
from tests.language_models.small_language_models import domain_texts, small_model, small_tokenizer
from tests.loops import Cases

TEXTS = domain_texts(60)


def canaries_of(kind: str = "rare-suffix", n: int | None = 40, **options: object) -> Canaries:
    if kind in ("rare-suffix", "new-token"):
        options = {"context": 5, "texts": TEXTS, **options}
    return dpaudit.canaries(small_tokenizer(), n, kind, seed=3, **options)  # type: ignore[arg-type]


class Characters:
    """A tokenizer that is no one of transformers: a token is a byte of text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("latin-1"))

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("latin-1")

    def __len__(self) -> int:
        return 256


def test_every_kind_draws_different_secrets_that_the_tokenizer_reads_back(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    model = small_model(tokenizer, hidden=32, layers=1)
    own_file = tmp_path / "own.jsonl"
    own_file.write_text("\n".join(json.dumps({"text": f"the s{i % 20} v1 w{i}", "secret": f"w{i}"}) for i in range(30)))
    settings = {
        "random-tokens": {"length": 6, "context": 2},
        "rare-suffix": {"texts": TEXTS, "context": 5, "length": 4},
        "new-token": {"texts": TEXTS, "context": 5},
        "high-temperature": {"base": model, "texts": TEXTS, "context": 4, "length": 5},
        "file": {"path": str(own_file), "n": None},
    }
    with Cases() as cases:
        for kind, options in settings.items():
            with cases.case(kind):
                canaries = dpaudit.canaries(tokenizer, kind=kind, seed=1, **{"n": 30, **options})  # type: ignore[arg-type]
                assert len(canaries) == 30
                texts = [text for _, text in canaries.all_texts]
                assert len({text.secret_tokens for text in texts}) == 30
                for text in texts:
                    assert tuple(tokenizer.encode(text.text)) == text.tokens
                    assert text.context + text.secret == text.text
                    assert 1 <= text.start < text.stop == len(text.tokens)
                    assert tokenizer.unk_token_id not in text.tokens
        assert all(text.secret.startswith(" <canary-") for _, text in canaries_of("new-token").all_texts)


def test_a_new_token_can_stand_several_times_in_its_text() -> None:
    tokenizer = small_tokenizer()
    vocabulary = len(tokenizer)
    canaries = dpaudit.canaries(tokenizer, 20, "new-token", context=1, length=3, texts=TEXTS, seed=4)
    for number, (_, text) in enumerate(canaries.all_texts):
        assert text.secret_tokens == (vocabulary + number,) * 3
        assert tuple(tokenizer.encode(text.text)) == text.tokens
        assert text.start == 1
    assert new_tokens(canaries, small_tokenizer()) == list(range(vocabulary, vocabulary + 20))
    assert new_tokens(canaries, tokenizer) == []


def test_prefixes_are_those_of_the_domain_and_suffixes_are_rare() -> None:
    canaries = canaries_of(n=60)
    beginnings = {" ".join(text.split()[:5]) for text in TEXTS}
    assert {text.context for _, text in canaries.all_texts} == beginnings
    words = Counter(word for _, text in canaries.all_texts for word in text.secret.split())
    assert sum(count for word, count in words.items() if word[0] == "w") > 0.6 * words.total()


def test_high_temperature_samples_are_rarer_than_samples_at_temperature_1() -> None:
    tokenizer = small_tokenizer()
    model = small_model(tokenizer, hidden=32, layers=1)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # a model with clear preferences
    options = {"base": model, "length": 6}
    cold, hot = (
        dpaudit.canaries(tokenizer, 40, "high-temperature", temperature=temperature, seed=0, **options)  # type: ignore[arg-type]
        for temperature in (1.0, 8.0)
    )
    means = [np.nanmean(dpaudit.text_statistics(model, canaries).log_probability) for canaries in (cold, hot)]
    assert means[1] < means[0] - 1


def test_a_tokenizer_of_characters_is_enough() -> None:
    canaries = dpaudit.canaries(Characters(), 20, "random-tokens", seed=0)
    assert all(len(text.tokens) == 20 for _, text in canaries.all_texts)


def test_secrets_of_a_byte_level_tokenizer_are_those_that_it_reads_back() -> None:
    """Random tokens are often read back as others, and a chat template that strips blanks changes them."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    model.train_from_iterator([f"{text} Some words; others, too {n}." for n, text in enumerate(TEXTS)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    canaries = dpaudit.canaries(tokenizer, 60, "rare-suffix", texts=TEXTS, context=5, length=6, seed=0)
    assert all(tuple(tokenizer.encode(text.text)) == text.tokens for _, text in canaries.all_texts)

    def batch(text: str) -> dict[str, list[list[int]]]:
        tokens = tokenizer.encode(text)
        return {"input_ids": [tokens], "labels": [tokens]}

    assert dpaudit.preflight(canaries, map(batch, canaries.into(TEXTS))).problems == []
    questions = canaries.into([{"prompt": "a", "completion": "b"}])
    stripped = [batch(f"User: {part['prompt'].strip()}\nModel: {part['completion'].strip()}") for part in questions]
    problems = dpaudit.preflight(canaries, stripped, tokenizer=tokenizer).problems
    assert len(problems) > 5
    assert {problem.reason for problem in problems} == {"retokenised"}


def test_special_tokens_in_front_of_a_text_are_part_of_its_tokens() -> None:
    class Opened(Characters):
        all_special_ids = (1,)

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1] * add_special_tokens + super().encode(text)

        def decode(self, tokens: list[int], clean_up_tokenization_spaces: bool = True) -> str:
            assert not clean_up_tokenization_spaces
            return super().decode(tokens)

    source = TextSource(Opened())
    assert source.opening == (1,)
    text = source.canary_text(source.encode("ab"), source.encode("cd"))
    assert text is not None
    assert text.tokens == (1, *b"abcd")
    assert text.secret_tokens == tuple(b"cd")
    assert text.text == "abcd"


def test_coins_are_fair_and_do_not_depend_on_the_texts() -> None:
    """False failure < 1e-6: the number of heads is Binomial(4000, 1/2)."""
    coins = np.concatenate([dpaudit.canaries(Characters(), 400, "random-tokens", seed=s).planted for s in range(10)])
    assert binom.ppf(5e-7, 4000, 0.5) <= coins.sum() <= binom.ppf(1 - 5e-7, 4000, 0.5)
    first, second = (dpaudit.canaries(Characters(), 400, "random-tokens") for _ in range(2))
    assert first.seed != second.seed
    assert (first.planted != second.planted).any()


def test_planted_texts_stand_at_random_places_among_the_others_in_their_order() -> None:
    canaries = canaries_of(n=40, repeat=3)
    planted = [canaries.texts[canary][0].text for canary in np.flatnonzero(canaries.planted)]
    dataset = canaries.into(TEXTS)
    assert [text for text in dataset if text not in planted] == TEXTS
    assert Counter(text for text in dataset if text in planted) == dict.fromkeys(planted, 3)
    places = [place for place, text in enumerate(dataset) if text in planted]
    assert places != sorted(places)[:1] + list(range(len(places) - 1))
    assert min(places) < 10 < len(dataset) - 10 < max(places)
    assert canaries.into(TEXTS) == dataset


def test_copies_may_differ_from_canary_to_canary(tmp_path: Path) -> None:
    canaries = canaries_of(n=31, repeat=(1, 4, 16))
    assert canaries.repeat.tolist() == [*(1, 4, 16) * 10, 1]
    assert canaries.records == 16
    counts = Counter(canaries.into(TEXTS))
    for texts, planted, repeat in zip(canaries.texts, canaries.planted, canaries.repeat, strict=True):
        assert counts[texts[0].text] == (repeat if planted else 0)
    canaries.save(tmp_path / "canaries.jsonl")
    assert dpaudit.Canaries.load(tmp_path / "canaries.jsonl").repeat.tolist() == canaries.repeat.tolist()
    tokens = [{"input_ids": [text.tokens], "labels": [text.tokens]} for _, text in canaries.all_texts]
    record = dpaudit.preflight(
        canaries, [batch for batch, heads in zip(tokens, canaries.planted, strict=True) if heads]
    )
    rare = np.flatnonzero(canaries.planted & (canaries.repeat > 1))
    assert [(problem.canary, problem.reason) for problem in record.problems] == [(canary, "rare") for canary in rare]


def test_users_have_several_texts_that_are_planted_together() -> None:
    canaries = canaries_of(n=20, records=3, unit="user")
    assert {len(texts) for texts in canaries.texts} == {3}
    assert canaries.records == 3
    dataset = set(canaries.into(TEXTS))
    for texts, planted in zip(canaries.texts, canaries.planted, strict=True):
        assert {text.text in dataset for text in texts} == {bool(planted)}


class Blocks(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 5

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.full((30,), place)
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


def test_planted_texts_take_the_form_of_the_examples() -> None:
    canaries = canaries_of(n=12)
    text = next(texts[0] for texts, planted in zip(canaries.texts, canaries.planted, strict=True) if planted)
    count, tokens = int(canaries.planted.sum()), list(text.tokens)
    forms: list[tuple[object, object]] = [
        ("a text", text.text),
        ({"text": "a"}, {"text": text.text}),
        ({"prompt": "a", "completion": "b"}, {"prompt": text.context, "completion": text.secret}),
        ({"input_ids": [1], "labels": [1]}, {"input_ids": tokens, "labels": tokens}),
    ]
    with Cases() as cases:
        for form, expected in forms:
            with cases.case(form):
                dataset = canaries.into((form,) * 3)
                assert isinstance(dataset, tuple)
                assert len(dataset) == 3 + count
                assert expected in dataset
    dataset = canaries.into(Blocks(), pad_to=30, pad_token=7)
    assert len(dataset) == 5 + count
    examples = [dataset[place] for place in range(len(dataset))]
    padded = next(example for example in examples if example["input_ids"][: len(tokens)].tolist() == tokens)
    assert padded["input_ids"].tolist() == tokens + [7] * (30 - len(tokens))
    assert padded["labels"].tolist() == tokens + [-100] * (30 - len(tokens))
    assert padded["attention_mask"].sum() == len(tokens)
    assert torch.utils.data.default_collate(examples)["input_ids"].shape == (5 + count, 30)


def test_planting_in_a_data_set_of_hugging_face() -> None:
    canaries = canaries_of(n=12)
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    planted = canaries.into(dataset)
    assert list(planted["text"]) == canaries.into(TEXTS)
    assert planted.features == dataset.features
    assert len(dataset) == len(TEXTS)
    tokens = dataset.map(lambda row: {"input_ids": small_tokenizer().encode(row["text"])}, remove_columns="text")
    assert [small_tokenizer().decode(row) for row in canaries.into(tokens)["input_ids"]] == canaries.into(TEXTS)
    with pytest.raises(InputError, match=r"\['source'\]; remove the others"):
        canaries.into(dataset.add_column("source", ["web"] * len(dataset)))
    with pytest.raises(InputError, match="turn a stream into a list"):
        canaries.into(dataset.to_iterable_dataset())


def test_a_saved_file_gives_the_same_canaries(tmp_path: Path) -> None:
    canaries = canaries_of(n=20, records=2, repeat=4, unit="user")
    canaries.save(tmp_path / "canaries.jsonl")
    loaded = dpaudit.Canaries.load(tmp_path / "canaries.jsonl")
    assert loaded.digest == canaries.digest
    assert loaded.texts == canaries.texts
    assert loaded.planted.tolist() == canaries.planted.tolist()
    assert str(loaded) == str(canaries)
    with pytest.raises(FileExistsError):
        canaries.save(tmp_path / "canaries.jsonl")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "canaries.jsonl"
    canaries_of(n=20).save(path)
    content = path.read_bytes()
    flipped = content.replace(b'"planted": true', b'"planted": false', 1)
    assert flipped != content
    with Cases() as cases:
        for name, damaged in {
            "a coin": flipped,
            "cut off": content[:-100],
            "empty": b"",
            "other": b"[1]\n{}\n",
        }.items():
            with cases.case(name):
                path.write_bytes(damaged)
                with pytest.raises(DataError, match="must"):
                    dpaudit.Canaries.load(path)


def test_wrong_arguments_are_explained(tmp_path: Path) -> None:
    own_file = tmp_path / "own.jsonl"
    own_file.write_text('{"text": "the s1 w1", "secret": "s1"}')
    with Cases() as cases:
        for message, error, call in [
            ("n must be a whole number >= 1, got 0", InputError, lambda: canaries_of(n=0)),
            ("repeat must be a whole number >= 1", InputError, lambda: canaries_of(repeat=(1, 0))),
            ("repeat must be a whole number or a list", InputError, lambda: canaries_of(repeat=1.5)),
            ("did you mean 'rare-suffix'", Exception, lambda: canaries_of("rare-sufix")),
            ("has no field 'lenght'", SpecError, lambda: canaries_of(lenght=3)),
            ("continues texts of the domain", InputError, lambda: canaries_of(texts=())),
            ("texts must be a list", InputError, lambda: canaries_of(texts="a b c")),
            ("sampled from `base`", InputError, lambda: canaries_of("high-temperature")),
            ("only .* secrets could be written", InputError, lambda: canaries_of("random-tokens", n=400, length=1)),
            ("must end with its secret", DataError, lambda: canaries_of("file", n=None, path=str(own_file))),
            ("need a tokenizer of transformers", InputError, lambda: new_tokens_of_characters()),
            ("examples must be texts", InputError, lambda: canaries_of().into([1, 2])),
            ("turn a stream into a list", InputError, lambda: canaries_of().into(iter("ab"))),
            ("choose a split", InputError, lambda: canaries_of().into(datasets.DatasetDict(train=hugging_face()))),
            ("turn a stream into a list", InputError, lambda: canaries_of().into(hugging_face().to_iterable_dataset())),
            ("a table into examples", InputError, lambda: canaries_of().into({"text": list(TEXTS)})),
            ("a table into examples", InputError, lambda: canaries_of().into(hugging_face().to_pandas())),
            ("turn a stream", InputError, lambda: canaries_of().into(Stream())),
            ("must be a list of texts", InputError, lambda: canaries_of().into("a text")),
            ("got content", InputError, lambda: canaries_of().into(hugging_face().rename_column("text", "content"))),
            ("must fit into pad_to=3", InputError, lambda: canaries_of().into([{"input_ids": [1]}], pad_to=3)),
        ]:
            with cases.case(message), pytest.raises(error, match=message):
                call()


def hugging_face() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(TEXTS)})


class Stream(IterableDataset[str]):
    """A stream whose length is known."""

    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)

    def __len__(self) -> int:
        return len(TEXTS)


def new_tokens_of_characters() -> Canaries:
    return dpaudit.canaries(Characters(), 5, "new-token", texts=TEXTS, context=5)
