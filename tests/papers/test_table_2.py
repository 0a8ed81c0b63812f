"""Table 2 of arXiv:2206.05199 at a tiny size: messages, files, printed figures, and a second call without work."""

from __future__ import annotations

import gzip
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
import pytest

from dpaudit.engine.data.generated import MadePhrases
from dpaudit.engine.data.images import Cifar10, FashionMnist
from dpaudit.engine.data.texts import Sst2
from dpaudit.engine.report import page
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.mechanisms.models.networks import SmallCnn
from papers import bayesian_pictures, bayesian_table_2
from papers.bayesian_table_2 import METHODS, PRINTED, Line, Size
from papers.data.encoded_sentences import EncodedSentences
from papers.reproduction import Options

TINY = Size(trials=24, shadows=8, stack=12, rows=200)


def options(output: Path, data: Path | None, messages: list[str]) -> Options:
    return Options(output, data, run=RunOptions("in-process"), say=messages.append)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two folders in one: 60 pictures of clothes and 60 phrases."""
    rng = np.random.default_rng(0)
    clothes, texts = tmp_path / "data" / "fashion_mnist", tmp_path / "data" / "sst2"
    for folder in (clothes, texts):
        folder.mkdir(parents=True)
    images, labels = rng.integers(0, 256, (60, 28, 28), np.uint8), rng.integers(0, 10, 60, np.uint8)
    sizes = b"".join(size.to_bytes(4, "big") for size in images.shape)
    (clothes / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + sizes + images.tobytes()))
    (clothes / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + (60).to_bytes(4, "big") + labels.tobytes())
    lines = [f"{' '.join(map(str, rng.integers(0, 99, 5)))}\t{label}" for label in rng.integers(0, 2, 60)]
    (texts / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))
    return tmp_path / "data"


@pytest.mark.nightly
def test_the_table_is_made_resumed_and_says_what_it_costs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bayesian_table_2.SIZES, "small", TINY)
    monkeypatch.setattr(
        page, "write_page", lambda report, folder, draw: (folder / "report.html").write_text(report.name)
    )
    messages: list[str] = []
    reproduction = bayesian_table_2.table_2(options(tmp_path / "out", data, messages))
    assert messages[0].startswith("Cost: 128 trainings (8 shadow models and 24 audited ones for each of 4 cells)")
    assert [path.name for path in reproduction.files] == ["table-2.md", "table-2.csv", "table-2.png", "report.html"]
    assert all(path.stat().st_size > 0 for path in reproduction.files)
    assert (
        "| CIFAR-10 | No DP | paper | (1.8, 5.3) | 3.5 | (1.9, 5) | 3.1 | −11% | (2.2, 4.5) | 2.3 | −40% |"
        in reproduction.text
    )
    for row in ("| fashion-mnist | No DP | as published |", "| sst-2 | ε = 8 | fixed threshold |"):
        assert row in reproduction.text
    table = pacsv.read_csv(reproduction.files[1]).to_pylist()
    assert len(table) == 4 * 3 * 3
    assert all(row["lower"] <= row["upper"] for row in table)
    units = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("units/*.parquet")}
    again = bayesian_table_2.table_2(options(tmp_path / "out", data, messages))
    assert again.text == reproduction.text
    figure = bayesian_pictures.figure_1(options(tmp_path / "out", data, messages))  # of the same trainings
    tp, fp, tn, fn = (int(count) for count in re.findall(r"(?:tp|fp|tn|fn) (\d+)", figure.text))
    assert tp + fp + tn + fn == TINY.trials
    assert figure.files[0].stat().st_size > 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("units/*.parquet")} == units


def test_data_are_found_by_what_a_folder_holds(data: Path, tmp_path: Path) -> None:
    size = bayesian_table_2.SIZES["small"]
    messages: list[str] = []
    chosen_options = options(tmp_path, data, messages)
    assert bayesian_table_2._images(chosen_options, size).data == FashionMnist(str(data / "fashion_mnist"), rows=2000)
    assert bayesian_table_2._text(chosen_options, size).data == Sst2(str(data / "sst2"), rows=2000, vocabulary=2048)
    none = options(tmp_path, None, messages)
    assert bayesian_table_2._images(none, size).data.registered_name == "digits"
    assert bayesian_table_2._text(none, size).data == MadePhrases(2000, vocabulary=2048)


def test_colour_pictures_get_a_convolution_and_texts_a_language_model_where_there_is_one(
    data: Path, tmp_path: Path
) -> None:
    for name, file in (("cifar10", "data_batch_1.bin"), ("model", "model.safetensors")):
        (data / name).mkdir(exist_ok=True)
        (data / name / file).write_bytes(b"")
    (data / "model" / "config.json").write_text('{"num_hidden_layers": 30}')
    chosen_options, size = options(tmp_path, data, []), bayesian_table_2.SIZES["small"]
    images, text = bayesian_table_2._images(chosen_options, size), bayesian_table_2._text(chosen_options, size)
    assert isinstance(images.data, Cifar10)
    assert isinstance(images.plain.model, SmallCnn)
    assert isinstance(text.data, EncodedSentences)
    assert (text.data.layer, text.data.path) == (15, str(data / "model"))
    assert (text.data.texts.part, text.data.public.part) == ("train", "test")
    assert bayesian_table_2.in_use(text.data) == "sst-2 (2,000 rows) as encoded-sentences"


def test_at_the_papers_scale_it_says_what_a_gpu_would_take(tmp_path: Path) -> None:
    messages: list[str] = []
    paper_options = Options(tmp_path, None, "paper", say=messages.append)
    size = bayesian_table_2.SIZES["paper"]
    studies = (bayesian_table_2._images(paper_options, size), bayesian_table_2._text(paper_options, size))
    cost = bayesian_table_2._cost(studies, size, paper_options)
    assert cost.startswith("Cost: 6,144 trainings (512 shadow models and 1024 audited ones for each of 4 cells)")
    assert "GPU hours" in cost


def test_intervals_of_a_known_table() -> None:
    """Widths and reductions follow from the counts."""
    line = Line("images", "No DP", "fixed threshold", bayesian_table_2._intervals((400, 60, 452, 112)))
    direct = epsilon_interval(400, 60, 452, 112, delta=1e-5, confidence=0.9, method="bayesian")
    assert line.intervals[2] == (direct.lower, direct.upper)
    assert line.reduction("clopper-pearson") == 0
    assert 0 < line.reduction("jeffreys") < line.reduction("bayesian") < 1


def test_printed_widths_are_the_papers() -> None:
    """Printed widths and reductions agree with the intervals, up to the rounding of the ends."""
    widths = {
        ("images", "No DP"): (3.5, 3.1, 2.3),
        ("images", "ε = 8"): (7.5, 5.6, 3.9),
        ("text", "No DP"): (math.inf, math.inf, 5.25),
        ("text", "ε = 8"): (math.inf, math.inf, 8.4),
    }
    for (kind, learner), intervals in PRINTED.items():
        line = Line(kind, learner, "paper", intervals)
        for method, width in zip(METHODS, widths[kind, learner], strict=True):
            assert line.width(method) == pytest.approx(width, abs=0.1)
    assert math.isnan(Line("text", "No DP", "paper", PRINTED["text", "No DP"]).reduction("bayesian"))
