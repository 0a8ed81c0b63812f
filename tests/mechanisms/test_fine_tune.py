"""Fine-tuning of a tiny transformer that the fixture creates."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.engine.data.texts import Sst2
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.pretrained import encode_sentences
from dpaudit.mechanisms.models.transformer_fine_tune import TransformerFineTune
from dpaudit.mechanisms.protocols import Trainer
from papers.data.encoded_sentences import EncodedSentences

CPU = Compute()
WORDS = ("good", "fine", "bad", "dull", "film", "plot", "the", "a")


def phrases(rows: int, seed: int) -> Examples:
    """Return phrases: positive with good or fine, negative with bad or dull."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    texts = [f"the {WORDS[2 * (1 - label) + rng.integers(2)]} {WORDS[rng.integers(4, 8)]}" for label in labels]
    return Examples(pa.table({"sentence": texts}), labels, 2, "phrases", categorical=("sentence",))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A RoBERTa of 16 units with random weights from one seed, and a tokenizer of words."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tiny-roberta")
    vocabulary = {word: number for number, word in enumerate(("<s>", "<pad>", "</s>", "<unk>", *WORDS))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    config = transformers.RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        pad_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    return str(folder)


def test_it_learns_and_is_decided_by_its_seed(pretrained: str) -> None:
    trainer = TransformerFineTune(path=pretrained, epochs=6, learning_rate=1e-2, batch_size=16, length=8)
    assert isinstance(trainer, Trainer)
    train, test = phrases(160, 0), phrases(60, 1)
    learned = trainer.fit(train, seed=SeedSequence(0), compute=CPU).probabilities(test.features)
    np.testing.assert_allclose(learned.sum(1), 1)
    assert (learned.argmax(1) == test.labels).mean() > 0.9
    short = replace(trainer, epochs=2)
    first, again, other = (
        short.fit(train, seed=SeedSequence(seed), compute=CPU).probabilities(test.features) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_a_folder_without_a_tokenizer_is_refused(pretrained: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="must hold a model and a tokenizer that transformers can load"):
        TransformerFineTune(path=str(tmp_path)).fit(phrases(4, 0), seed=SeedSequence(0), compute=CPU)


def test_a_wrong_path_is_refused(pretrained: str) -> None:
    trainer = TransformerFineTune(path="nowhere")
    with pytest.raises(InputError, match="path must be the folder of a pre-trained model, got 'nowhere'; set `path`"):
        trainer.fit(phrases(4, 0), seed=SeedSequence(0), compute=CPU)


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install dpaudit\[text\]"):
        TransformerFineTune(path="x").fit(phrases(4, 0), seed=SeedSequence(0), compute=CPU)


def test_features_must_be_texts() -> None:
    numbers = phrases(4, 0).with_(features=np.zeros((4, 3), np.float32))
    with pytest.raises(InputError, match="must be a table with one text column, got 'an array'"):
        TransformerFineTune(path="x").fit(numbers, seed=SeedSequence(0), compute=CPU)


def test_the_step_size_rises_and_decays_to_zero() -> None:
    trainer = replace(TransformerFineTune(path="x"), warm_up=0.1)
    rates = [trainer.rate_factor(step, 100) for step in range(100)]
    assert np.all(np.diff(rates[:10]) > 0)
    assert np.all(np.diff(rates[10:]) < 0)
    assert max(rates) == 1
    assert 0 < rates[-1] < 0.02


def test_a_sentence_vector_does_not_depend_on_its_batch(pretrained: str) -> None:
    """Padding changes the order of sums: 1e-5 is a hundred roundings of float32."""
    words = ["the good film", "a bad plot the a the dull plot", "fine"]
    together = encode_sentences(words, pretrained, length=16)
    assert (together.shape, together.dtype) == ((3, 16), np.float32)
    for row, text in enumerate(words):
        np.testing.assert_allclose(together[row], encode_sentences([text], pretrained, length=16)[0], atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-3


def test_layers_have_different_states_and_a_missing_layer_is_rejected(pretrained: str) -> None:
    words = ["the good film", "a bad plot"]
    last, first = (
        encode_sentences(words, pretrained, length=16),
        encode_sentences(words, pretrained, length=16, layer=0),
    )
    np.testing.assert_allclose(encode_sentences(words, pretrained, length=16, layer=1), last, atol=1e-6)
    assert np.abs(first - last).max() > 1e-3
    with pytest.raises(InputError, match=r"layer must be <= 1 for this model, got 2"):
        encode_sentences(words, pretrained, length=16, layer=2)


def test_vectors_of_texts_are_scaled_by_public_texts_alone(pretrained: str, tmp_path: Path) -> None:
    """A private text changes no other text's vector; a public one does."""

    def vectors(private: str, public: str) -> NDArray[np.float32]:
        for part, words in (("train", private), ("test", public)):
            (tmp_path / f"{part}.tsv").write_text(f"the good film\t1\n{words}\t0\na bad plot\t0\n")
        texts, labelled = (Sst2(str(tmp_path), part=part, raw=True) for part in ("train", "test"))
        data = EncodedSentences(texts, pretrained, length=16, layer=1, prompt="a film {text}", public=labelled)
        return np.asarray(data.load().features)

    first, other = vectors("fine", "the film"), vectors("the dull plot", "the film")
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(first[[0, 2]], other[[0, 2]], atol=1e-5)
    assert np.abs(first[1] - other[1]).max() > 1e-3
    assert np.abs(first - vectors("fine", "fine fine"))[[0, 2]].max() > 1e-3


def test_a_prompt_must_hold_the_text(pretrained: str) -> None:
    with pytest.raises(InputError, match=r"prompt must hold \{text\} once"):
        EncodedSentences(None, pretrained, prompt="a film")
