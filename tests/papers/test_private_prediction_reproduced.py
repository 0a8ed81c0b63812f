"""Figures 2 to 6 of the paper on private prediction, made small: every file, and the orders that must hold."""

from __future__ import annotations

import csv
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.errors import InputError, SpecError
from papers import noisy_argmax_figures, private_prediction
from papers.reproduction import Options, Reproduction
from tests import nightly


def options(folder: Path) -> Options:
    return Options(folder, run=RunOptions("in-process"), say=lambda text: None)


def rows_of(reproduction: Reproduction) -> list[dict[str, str]]:
    assert all(path.stat().st_size > 0 for path in reproduction.files)
    table = next(path for path in reproduction.files if path.suffix == ".csv")
    with table.open() as file:
        return list(csv.DictReader(file))


def test_the_noisy_argmax_by_itself(tmp_path: Path) -> None:
    second = rows_of(noisy_argmax_figures.figure_2(options(tmp_path)))
    for row in second:
        assert 0 <= float(row["2-cut"]) <= float(row["exact"]) <= float(row["data-dependent"])
        assert float(row["data-dependent"]) <= float(row["data-independent"])
    sixth = {float(row["order"]): row for row in rows_of(noisy_argmax_figures.figure_6(options(tmp_path)))}
    assert float(sixth[2]["exact"]) == pytest.approx(0.23956, abs=5e-6)
    for row in sixth.values():
        for method in ("2-cut", "2-cut, as published", "k-cut", "k-cut, Goodman"):
            assert 0.9 * float(row["exact"]) < float(row[method]) <= float(row["exact"])


def test_a_two_cut_loses_half_where_six_classes_are_tied(tmp_path: Path) -> None:
    reproduction = noisy_argmax_figures.cuts(options(tmp_path))
    rows = {(row["votes"], row["direction"], int(row["answers"]), row["order"]): row for row in rows_of(reproduction)}
    assert len(rows) == 72
    assert reproduction.files[0].name == "cuts.png"
    for row in rows.values():
        assert 0 <= float(row["2-cut, as published"]) <= float(row["2-cut"]) <= float(row["exact"])
        assert float(row["k-cut"]) <= float(row["exact"])
    tied = rows["all tied", "from the votes", 10**8, "2"]
    assert float(tied["2-cut"]) < 0.5 * float(tied["exact"]) < 0.99 * float(tied["k-cut"])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private_prediction.SIZES, "small", private_prediction.Size(300, 6, 2, 4, 3))


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny")
def test_leaks_of_votes_by_algorithm_and_adversary(tmp_path: Path) -> None:
    """Figure 4 trains nothing: its adversaries are in the runs of figure 3."""
    for figure, bars in ((private_prediction.figure_3, 2), (private_prediction.figure_4, 1)):
        check_bars(figure(options(tmp_path)), dict.fromkeys(("PATE", "CaPC", "PromptPATE"), bars))


def check_bars(reproduction: Reproduction, bars: Mapping[str, int]) -> None:
    rows = rows_of(reproduction)
    assert {name: sum(row["algorithm"] == name for row in rows) for name in bars} == bars
    for row in rows:
        values = {name: float(row[name]) for name in ("2-cut", "exact", "claim")}
        assert 0 <= values["2-cut"] <= values["exact"] <= values["claim"]
        if row["algorithm"] != "Private-kNN":
            assert values["exact"] <= float(row["data-dependent"]) <= values["claim"] + 1e-12
    assert ("stand-in" in reproduction.text) == ("PromptPATE" in bars)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_no_more_is_asked_than_the_test_part_has(scale: Literal["small", "paper"], tmp_path: Path) -> None:
    requested = replace(options(tmp_path), scale=scale)
    subjects = private_prediction.voting_subjects(requested) + private_prediction.neighbour_subjects(requested)
    assert {subject.algorithm for subject in subjects} == {"PATE", "CaPC", "PromptPATE", "Private-kNN"}
    for subject in subjects:
        assert private_prediction._queries(subject, requested) <= len(subject.data.load(seed=0)) // 10


@pytest.mark.usefixtures("tiny")
def test_figures_by_order_are_read_off_the_runs_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not nightly.on():  # a dozen pictures take three seconds
        monkeypatch.setattr(private_prediction, "_lines_by_order", lambda *_: None)
        monkeypatch.setattr(private_prediction.style, "save", _not_drawn)
    requested = replace(options(tmp_path), only=("Private-kNN",))
    reproduction = private_prediction.figures_7_to_31(requested)
    rows = rows_of(reproduction)
    assert {int(row["figure"]) for row in rows} == set(range(25, 32))
    assert {row["query"] for row in rows if row["figure"] in ("25", "27")} == {"worst"}
    for row in rows:
        assert 0 <= float(row["2-cut"]) <= float(row["exact"]) <= float(row["claim"])
    units = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("units/*")}
    check_bars(private_prediction.figure_5(requested), {"Private-kNN": 5})
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("units/*")} == units


def _not_drawn(figure: object, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(b"not drawn")


def test_figures_7_to_31_are_as_many_as_the_papers() -> None:
    numbers = [
        first + place
        for first, (_, adversaries) in private_prediction.SERIES.items()
        for place in range(sum(map(len, adversaries.values())))
    ]
    assert numbers == list(range(7, 32))


def test_only_must_name_something(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--only must name"):
        private_prediction.figure_5(replace(options(tmp_path), only=("nothing",)))


def test_data_must_hold_what_the_figures_take(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="with mnist or sst2/ in it"):
        private_prediction.figure_3(replace(options(tmp_path / "out"), data=tmp_path / "out"))
    with pytest.raises(SpecError, match="needs the data set mnist: give --data"):
        private_prediction.lenet_5(options(tmp_path))


def test_teachers_noise_answers_and_networks_are_the_papers(tmp_path: Path) -> None:
    """Appendix D.1 and D.2: 250 teachers and sigma 40, for CIFAR-10 200 and 25; 200 answers of PromptPATE."""
    for name in ("mnist", "fashion_mnist", "cifar10", "sst2"):
        (tmp_path / name).mkdir()
    requested = replace(options(tmp_path), data=tmp_path)
    subjects = {subject.name: subject for subject in private_prediction.voting_subjects(requested)}
    settings = {name: (subject.predictor.teachers, subject.predictor.sigma) for name, subject in subjects.items()}
    assert settings == {
        **{f"{who}\n{on}": (250, 40.0) for who in ("PATE", "CaPC") for on in ("MNIST", "Fashion-MNIST")},
        **{f"{who}\nCIFAR-10": (200, 25.0) for who in ("PATE", "CaPC")},
        "PromptPATE\nSST-2": (200, 30.0),
    }
    assert {subject.algorithm: subject.answers for subject in subjects.values()} == {
        "PATE": 1_000,
        "CaPC": 1_000,
        "PromptPATE": 200,
    }
    queries = {name: private_prediction._queries(subject, requested) for name, subject in subjects.items()}
    assert (queries["PATE\nMNIST"], queries["CaPC\nCIFAR-10"], queries["PromptPATE\nSST-2"]) == (200, 50, 200)
    paper = replace(requested, scale="paper")
    networks = {
        subject.on: type(subject.predictor.model).__name__
        for subject in private_prediction.voting_subjects(paper)
        if subject.algorithm == "PATE"
    }
    assert networks == {"MNIST": "LeNet5", "Fashion-MNIST": "WideResNet16x4", "CIFAR-10": "WideResNet16x4"}
    assert [private_prediction._queries(subject, paper) for subject in private_prediction.voting_subjects(paper)] == [
        *[1_000] * 6,
        200,
    ]


def test_texts_are_the_states_of_a_language_model_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    requested = replace(options(tmp_path), data=tmp_path)
    (counted,) = private_prediction.neighbour_subjects(requested)
    assert (counted.on, type(counted.data).__name__) == ("SST-2", "CountedWords")
    (tmp_path / "small-model").mkdir()
    (tmp_path / "small-model" / "model.safetensors").touch()
    (tmp_path / "small-model" / "config.json").write_text('{"num_hidden_layers": 30}')
    (encoded,) = private_prediction.neighbour_subjects(requested)
    assert (encoded.on, encoded.data.layer) == ("SST-2, small-model", 15)
    (prompted,) = private_prediction.voting_subjects(requested)
    assert (prompted.on, private_prediction._queries(prompted, requested)) == ("SST-2, small-model", 20)


@pytest.mark.nightly
def test_lenet_5_teaches_on_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up images in MNIST's files; PATE and CaPC give both adversarial bars and the best natural one."""
    size = private_prediction.Size(300, 6, 2, 2, 1)
    monkeypatch.setitem(private_prediction.SIZES, "small", size)
    monkeypatch.setitem(private_prediction.SMALLER, "MNIST, LeNet-5", size)
    monkeypatch.setattr(private_prediction, "_votes", lambda name: {"teachers": 10, "sigma": 4.0})
    (tmp_path / "mnist").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (300, 28, 28), dtype=np.uint8)
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(
        struct.pack(">4I", 0x803, *images.shape) + images.tobytes()
    )
    labels = bytes(number % 10 for number in range(300))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 300) + labels)
    reproduction = private_prediction.lenet_5(replace(options(tmp_path / "out"), data=tmp_path))
    check_bars(reproduction, {"PATE": 3, "CaPC": 3})
    assert {(row["data"], row["queries"], row["answers"]) for row in rows_of(reproduction)} == {
        ("MNIST, LeNet-5", "6", "1000")
    }


def test_claims_over_real_orders_are_those_of_the_closed_form(tmp_path: Path) -> None:
    """GNMax claims a / sigma^2 for an answer; a dense grid of orders has its least epsilon."""
    rows = [
        {name: text if name == "predictor" else float(text) for name, text in row.items()}
        for row in rows_of(private_prediction.claims(Options(tmp_path)))
    ]
    by_name = {row["predictor"]: row for row in rows}
    orders = np.linspace(1.001, 60, 400_001)
    for name, sigma in {"PATE and CaPC, MNIST and Fashion-MNIST": 40.0, "PATE and CaPC, CIFAR-10": 25.0}.items():
        cost = np.log1p(-1 / orders) - (np.log(1e-6) + np.log(orders)) / (orders - 1)
        assert by_name[name]["real orders"] == pytest.approx((1000 * orders / sigma**2 + cost).min(), abs=1e-6)
    for row in rows:
        assert row["real orders"] <= row["integer orders"] <= row["orders of the figures"] + 1e-12
