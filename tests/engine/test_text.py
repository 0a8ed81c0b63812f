"""Text data: what the file says is read, numbers of words depend on nothing else, what is wrong is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binom

from dpaudit.engine.data.generated import MEAN_WORDS, MadePhrases
from dpaudit.engine.data.texts import CountedWords, Sst2, word_numbers
from dpaudit.errors import DataError, InputError

TRAIN = 'sentence\tlabel\nhide new secretions \t0\nthat "loves its characters , \t1\nNew Film . \t1\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.tsv").write_text(TRAIN)
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(b"sentence\tlabel\nit 's a journey . \t1\n"))
    (tmp_path / "test.tsv").write_text("no movement , no yuks\t0\na gem\t1\n")
    return tmp_path


def test_texts_become_rows_of_word_numbers(folder: Path) -> None:
    data = Sst2(str(folder), length=4, vocabulary=1000).load()
    assert (data.name, data.classes, data.class_names) == ("sst-2", 2, ("negative", "positive"))
    assert data.labels.tolist() == [0, 1, 1]
    numbers = data.features
    assert isinstance(numbers, np.ndarray)
    assert (numbers.shape, numbers.dtype) == ((3, 4), np.float32)
    assert (numbers > 0).tolist() == [[True] * 3 + [False], [True] * 4, [True] * 3 + [False]]
    assert numbers[0, 1] == numbers[2, 0]  # new, New
    assert numbers[1, 1] == word_numbers(['"loves'], length=1, vocabulary=1000)[0, 0]  # a quote is a letter


def test_headings_and_compression_are_optional(folder: Path) -> None:
    assert len(Sst2(str(folder), part="dev").load()) == 1
    assert Sst2(str(folder), part="test").load().labels.tolist() == [0, 1]
    assert len(Sst2(str(folder / "dev.tsv.gz")).load()) == 1
    assert Sst2(str(folder), rows=2).load().labels.tolist() == [0, 1]


def test_a_text_has_the_same_numbers_whatever_stands_beside_it(folder: Path) -> None:
    alone, among = Sst2(str(folder), rows=1).load().features, Sst2(str(folder)).load().features
    assert isinstance(alone, np.ndarray)
    assert isinstance(among, np.ndarray)
    np.testing.assert_array_equal(alone[0], among[0])


def test_raw_texts_are_a_table(folder: Path) -> None:
    data = Sst2(str(folder), raw=True).load()
    assert isinstance(data.features, pa.Table)
    assert data.features.to_pydict()["sentence"][0] == "hide new secretions"
    assert data.take([2]).features.to_pydict() == {"sentence": ["New Film ."]}  # type: ignore[union-attr]


def test_hashes_fill_the_vocabulary_evenly() -> None:
    """False failure < 1e-6: the largest of 99 cells, each binomial(20,000, 1/99), at 1e-8."""
    numbers = word_numbers([f"word{i}" for i in range(20_000)], length=1, vocabulary=100)
    counts = np.bincount(numbers[:, 0].astype(int), minlength=100)
    assert counts[0] == 0
    assert counts[1:].max() <= binom.isf(1e-8, 20_000, 1 / 99)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\ngood\t2\n", r"line 2, column 'label': must be 0 or 1, got '2'"),
        ("sentence\tlabel\ngood\t1\n \t0\n", r"line 3, column 'sentence': must be a text, is empty"),
        (
            "index\tsentence\n0\tgood\n",
            r"line 1: must have the columns sentence and label, has index, sentence; GLUE's",
        ),
        ("good\t1\nbad\t0\tx\n", r"line 2: must have 2 columns separated by tabs, got 3"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        Sst2(str(path)).load()


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"part": "validation"}, "part must be"),
        ({"length": 0}, "length must be >= 1"),
        ({"vocabulary": 1}, "vocabulary must be in"),
    ):
        with pytest.raises(InputError, match=message):
            Sst2("x", **settings)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"must hold dev.tsv"):
        Sst2(str(tmp_path), part="dev").load()


def test_made_phrases_follow_their_law() -> None:
    """False failure < 1e-6: mean length and share of positives, each within 6 deviations."""
    data = MadePhrases(rows=20_000, length=40).load(seed=1)
    numbers = data.features
    assert isinstance(numbers, np.ndarray)
    assert numbers.dtype == np.float32
    assert abs((numbers > 0).sum(1).mean() - MEAN_WORDS) < 6 * np.sqrt((MEAN_WORDS - 1) / 20_000)
    most = float((numbers == 1).sum() / (numbers == 3).sum())
    assert 1.8 < most < 2.2  # shares 1/2 and 1/4, 1,000s of each
    assert data.digest == MadePhrases(rows=20_000, length=40).load(seed=1).digest
    assert data.digest != MadePhrases(rows=20_000, length=40).load(seed=2).digest


def test_made_phrases_are_texts_of_the_same_words() -> None:
    numbers, texts = MadePhrases(rows=50).load(seed=3), MadePhrases(rows=50, raw=True).load(seed=3)
    assert isinstance(numbers.features, np.ndarray)
    assert isinstance(texts.features, pa.Table)
    assert texts.labels.tolist() == numbers.labels.tolist()
    first = [f"w{number:.0f}" for number in numbers.features[0] if number]
    assert texts.features["sentence"][0].as_py() == " ".join(first)


def test_counted_words_bring_texts_of_one_topic_together(tmp_path: Path) -> None:
    words = (("ball game", "match ball", "game score"), ("market share", "stock market", "share price"))
    rows = [f"the {phrase} of {phrase}\t{topic}" for topic, phrases in enumerate(words) for phrase in phrases]
    (tmp_path / "test.tsv").write_text("\n".join(rows) + "\n")
    news = Sst2(str(tmp_path), part="test", raw=True)
    data = CountedWords(news, news, dimensions=2, words=30).load()
    assert (data.name, data.categorical) == ("sst-2", ())
    assert isinstance(data.features, np.ndarray)
    assert data.features.dtype == np.float32
    likeness = data.features @ data.features.T
    assert likeness[:3, :3].min() > 0.9
    assert likeness[:3, 3:].max() < 0.5
    with pytest.raises(InputError, match="dimensions must be < the words and texts of public"):
        CountedWords(news, news, dimensions=6).load()
