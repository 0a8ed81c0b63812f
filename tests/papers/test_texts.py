"""Published texts: files are read correctly, and errors name the fault."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.errors import DataError, InputError
from dpaudit.mechanisms.predictors.language_model import Task
from papers.data.texts import AgNews, DBpedia, Trec

ARTICLES = '"3","Fears for pension","Unions say, they are ""disappointed""."\n"1","","A vote."\n'


def test_news_are_read_with_and_without_titles(tmp_path: Path) -> None:
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(ARTICLES.encode()))
    (tmp_path / "train_sample.tsv").write_text('A ball game.\tSports\n"Say ""chip""."\tSci/Tech\n')
    data = AgNews(str(tmp_path), part="test", raw=True).load()
    assert (data.name, data.labels.tolist(), data.class_names[2]) == ("ag-news", [2, 0], "Business")
    assert isinstance(data.features, pa.Table)
    assert data.features["text"].to_pylist() == ['Unions say, they are "disappointed".', "A vote."]
    titled = AgNews(str(tmp_path), part="test", raw=True, titles=True).load().features
    assert isinstance(titled, pa.Table)
    assert titled["text"][0].as_py() == 'Fears for pension. Unions say, they are "disappointed".'
    sample = AgNews(str(tmp_path), raw=True).load()
    assert isinstance(sample.features, pa.Table)
    assert (sample.labels.tolist(), sample.features["text"][1].as_py()) == ([1, 3], 'Say "chip".')
    numbers = AgNews(str(tmp_path), rows=1, length=5).load().features
    assert isinstance(numbers, np.ndarray)
    assert (numbers > 0).tolist() == [[True] * 3 + [False] * 2]
    with pytest.raises(InputError, match=r"titles must be false for a file \.tsv"):
        AgNews(str(tmp_path), titles=True).load()


def test_what_is_wrong_with_news_is_named(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text('"5","t","d"\n')
    with pytest.raises(DataError, match=r"line 1, column 'class': must be one of 1, 2, 3, 4, got '5'"):
        AgNews(str(tmp_path), part="test").load()
    (tmp_path / "test.csv").write_text('"1","t","d"\n"2","t",""\n')
    with pytest.raises(DataError, match=r"line 2, column 'description': must be a text, is empty"):
        AgNews(str(tmp_path), part="test").load()


def test_an_encyclopedia_is_read_in_its_three_forms(tmp_path: Path) -> None:
    """Official (quoted, from 1), bare (cut at the first comma, from 0), and with titles behind a bar."""
    official = '1,"E. D. Abbott Ltd"," Abbott, of ""Farnham""."\n14,"A title",Text.\n'
    (tmp_path / "train.csv").write_text(official)
    (tmp_path / "titled_dev.tsv.gz").write_bytes(
        gzip.compress(b'sentences \t labels\nCud | An album . "So" \t 11\nNo bar \t 0\n')
    )
    (tmp_path / "bare.csv").write_text('2,A singer , "so called" ,\tborn 1944 .\n13, A book .\n')

    def labels_and_texts(name: str = "", **settings: Any) -> tuple[list[int], list[str]]:
        data = DBpedia(str(tmp_path / name), raw=True, **settings).load()
        assert (data.name, data.classes) == ("dbpedia", 14)
        assert isinstance(data.features, pa.Table)
        return data.labels.tolist(), data.features["text"].to_pylist()

    assert labels_and_texts() == ([0, 13], ['Abbott, of "Farnham".', "Text."])
    assert labels_and_texts(titles=True, rows=1) == ([0], ['E. D. Abbott Ltd. Abbott, of "Farnham".'])
    assert labels_and_texts(part="dev") == ([11, 0], ['An album . "So"', "No bar"])
    assert labels_and_texts(part="dev", titles=True)[1][0] == 'Cud. An album . "So"'
    assert labels_and_texts("bare.csv") == ([2, 13], ['A singer , "so called" , born 1944 .', "A book ."])
    with pytest.raises(InputError, match="titles must be false for a file without quotes"):
        labels_and_texts("bare.csv", titles=True)
    (tmp_path / "bare.csv").write_text("2,A singer\n14,An official number\n")
    with pytest.raises(DataError, match=r"line 2: must begin with one of 0, .*, 13, got '14'"):
        labels_and_texts("bare.csv")
    (tmp_path / "train.csv").write_text('15,"t","d"\n')
    with pytest.raises(DataError, match=r"line 1, column 'class': must be one of 1 to 14, got '15'"):
        labels_and_texts()


def test_questions_are_read_with_their_coarse_kind(tmp_path: Path) -> None:
    lines = (
        "DESC:manner How did serfdom develop : slowly ?\nHUM:ind Who was Saint-Exup\xe9ry ?\n\nABBR:exp What is it ?\n"
    )
    (tmp_path / "train_5500.label").write_bytes(lines.encode("latin-1"))
    data = Trec(str(tmp_path), raw=True).load()
    assert isinstance(data.features, pa.Table)
    assert (data.name, data.class_names[2], data.labels.tolist()) == ("trec", "DESC", [2, 3, 0])
    assert data.features["text"].to_pylist()[:2] == ["How did serfdom develop : slowly ?", "Who was Saint-Exup\xe9ry ?"]
    assert Task.of_data(data.name, data.class_names, data.classes).names[2] == "Description"
    assert isinstance(Trec(str(tmp_path), rows=1).load().features, np.ndarray)
    for wrong, words in (
        ("DESC:manner", "line 2: must be a text, is empty"),
        ("How ?", "line 2: must begin with one of ABBR, ENTY, DESC, HUM, LOC, NUM, got 'How"),
    ):
        (tmp_path / "TREC_10.label").write_text(f"NUM:dist How far ?\n{wrong}\n")
        with pytest.raises(DataError, match=words):
            Trec(str(tmp_path), part="test").load()
