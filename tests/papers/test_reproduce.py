"""Every table is reproduced end to end at a tiny size, with all files and our figures next to the printed ones."""

from __future__ import annotations

import csv
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.criteo import Criteo, CriteoSynthetic
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.data.images import Cifar10, FashionMnist
from dpaudit.engine.data.partition import Joined
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.errors import DataError, InputError, SpecError, UnknownNameError
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.models.networks import SmallCnn
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.registry import catalogue
from papers import criteo_tables, image_tables, label_tables, needs
from papers.data.picture_strips import Cifar10Strips
from papers.reproduction import Options, Reproduction
from papers.training_operations import forward_flops
from papers.uncorrected_bounds import BEST_FRACTION, DELTA, PUBLISHED, uncorrected

ROOT = Path(__file__).parents[2]


def column(printed: label_tables.Printed, at: int) -> label_tables.Printed:
    return {learner: (row[at],) for learner, row in printed.items()}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One epsilon for each table: 1 for click logs, where the domain prior leaves one label, and 10 for images."""
    monkeypatch.setattr(label_tables, "REPLAYS", 3)
    for name, value in {
        "EPSILONS": (1.0,),
        "BOUNDS": column(criteo_tables.BOUNDS, 4),
        "LOG_LOSS": column(criteo_tables.LOG_LOSS, 4),
        "SMALL_ROWS": 3000,
        "SEEDS": 2,
        "SMALL_TEACHERS": 2,
        "SMALL_CLUSTERS": 1,
        "MODEL": CatBoost(iterations=2, depth=3),
        "PROXY": CatBoost(iterations=2, depth=3),
    }.items():
        monkeypatch.setattr(criteo_tables, name, value)
    network = SmallCnn(epochs=1)
    for name, value in {
        "EPSILONS": (10.0,),
        "BOUNDS": column(image_tables.BOUNDS, 1),
        "ACCURACY": column(image_tables.ACCURACY, 1),
        "SMALL": network,
        "SMALL_PROXY": network,
        "SMALL_PATE_FM": replace(
            image_tables.SMALL_PATE_FM, teachers=2, teacher_steps=2, student_steps=2, threshold=0.0
        ),
    }.items():
        monkeypatch.setattr(image_tables, name, value)


def rows_of(reproduction: Reproduction) -> list[dict[str, str]]:
    with next(path for path in reproduction.files if path.suffix == ".csv").open() as file:
        return list(csv.DictReader(file))


def check_files(reproduction: Reproduction, name: str) -> None:
    assert [path.name for path in reproduction.files] == [
        *(f"{name}.{kind}" for kind in ("md", "csv", "html", "png")),
        "report.html",
    ]
    assert all(path.stat().st_size > 0 for path in reproduction.files)
    assert reproduction.files[0].read_text() == reproduction.text
    text = reproduction.files[2].read_text()
    assert text.count("<svg") == 1
    assert "src=" not in text, "the page stands alone"


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny")
def test_tables_2_and_5_come_from_the_same_trainings(tmp_path: Path) -> None:
    messages: list[str] = []
    options = Options(tmp_path, run=RunOptions(runner="in-process"), say=messages.append)
    bounds = criteo_tables.table_2(options)
    check_files(bounds, "table-2")
    assert messages[0].startswith("Cost: 18 CatBoost trainings")
    assert [row["seed"] for row in rows_of(bounds)] == ["0"] * 5 + ["1"] * 5
    cells = {row["learner"]: row for row in rows_of(bounds)}
    assert list(cells) == list(criteo_tables.BOUNDS)
    assert cells["LP-1ST"]["paper"] == "0.34"
    assert all(float(row["bound"]) >= 0 and row["failed"] == "" for row in cells.values())
    assert cells["LP-1ST (domain prior)"]["constant_model"] == "true"
    assert "| LP-1ST (domain prior) | paper | – |\n|  | ours, as published | – |" in bounds.text
    assert "k* = 1" in bounds.text
    units = sorted(tmp_path.glob("criteo-small/seed-*/units/*"))
    assert {path.parts[-3] for path in units} == {"seed-0", "seed-1"}
    losses = criteo_tables.table_5(options)
    check_files(losses, "table-5")
    assert sorted(tmp_path.glob("criteo-small/seed-*/units/*")) == units, "nothing is trained again"
    assert rows_of(losses)[0]["paper"] == "0.362"
    assert 0 < float(rows_of(losses)[0]["test_log_loss"]) < 3


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny")
def test_tables_1_and_4_come_from_the_same_trainings(tmp_path: Path) -> None:
    options = Options(tmp_path, run=RunOptions(runner="in-process"), say=lambda text: None)
    check_files(image_tables.table_1(options), "table-1")
    accuracies = image_tables.table_4(options)
    check_files(accuracies, "table-4")
    cells = {row["learner"]: row for row in rows_of(accuracies)}
    assert list(cells) == list(image_tables.ACCURACY)
    assert cells["ALIBI"]["paper"] == "87.1"
    assert all(0 <= float(row["test_accuracy"]) <= 1 for row in cells.values())


def test_each_cell_is_one_training_with_its_claim(tmp_path: Path) -> None:
    options = Options(tmp_path, run=RunOptions(runner="in-process"))
    study = replace(criteo_tables.study(options), data=CriteoSynthetic(2000))
    first, second = (make_plan(label_tables.requested_audits(study, seed, options)).audits for seed in (0, 1))
    claims = [epsilon for _ in study.learners for epsilon in study.epsilons]
    assert [audit.effective_claim.epsilon for audit in first] == pytest.approx([*claims, math.inf])
    assert first[-1].audit.name == "constant predictor"
    trainings = [{unit.key for audit in audits for unit in audit.game.trainings} for audits in (first, second)]
    assert not set.intersection(*trainings)


def test_what_is_published_is_computed_from_the_counts_of_the_valid_audit() -> None:
    """Compare with an audit with the selection of the paper, replay by replay."""
    rng = np.random.default_rng(4)
    truths = rng.random((5, 400)) < 0.5
    replays = [Scores(truth + rng.normal(0, 0.8, 400) - 0.5, truth, replay=at) for at, truth in enumerate(truths)]
    counted = [OneRun(DELTA).tally(scores) for scores in replays]
    means = {}
    for estimator in (PUBLISHED, BEST_FRACTION):
        alone = estimator.find([estimator.tally(scores) for scores in replays]).series["replays"]["alone"]
        means[estimator] = uncorrected(estimator, counted).mean
        assert means[estimator] == pytest.approx(alone.mean(), abs=1e-12)
    assert means[PUBLISHED] > means[BEST_FRACTION] > OneRun(DELTA).bound(counted).lower > 0


COUNTS = [PUBLISHED.tally(Scores(np.array([1.0, -1.0]), np.array([False, True])))]
"""Two wrong guesses."""


def trained(seed: int, bound: float, *, constant: bool = False) -> label_tables.Cell:
    control = SimpleNamespace(epsilon=0.75, beyond=SimpleNamespace(lower=0.25))
    result: Any = SimpleNamespace(
        epsilon=bound, control=control, guess_counts=(), verdict=Verdict.NO_VIOLATION, metrics={}, failures=()
    )
    constant_result: Any = SimpleNamespace(epsilon=0.012, guess_counts=COUNTS)
    return label_tables._cell("LP-1ST", 2.0, seed, result, constant_result, constant_model=constant)


def test_a_cell_says_what_rows_never_seen_show_and_what_is_beyond_them() -> None:
    cell = trained(0, 1.0)
    kinds = {kind.label: kind for kind in label_tables.KINDS_OF_BOUND}
    assert (cell.never_seen, cell.beyond) == (0.75, 0.25)
    assert [kinds[label].entry([cell]) for label in ("rows never seen", "beyond those")] == ["0.75", "0.25"]
    assert kinds["constant predictor"].entry([cell]) == "0.01"
    assert kinds["constant predictor, as published"].entry([cell]) == "0.00 ± 0.00"
    assert kinds["beyond those"].entry([replace(cell, constant=True)]) == label_tables.NONE


def test_several_trainings_have_a_median_and_a_range() -> None:
    bound = next(kind for kind in label_tables.KINDS_OF_BOUND if kind.label == label_tables.CONDITIONAL)
    cells = [trained(seed, bound) for seed, bound in enumerate((0.339, 0.9, 0.5))]
    assert bound.entry(cells) == "0.50 (0.33, 0.90)"
    assert bound.entry([*cells, trained(3, 0.0, constant=True)]) == "0.50 (0.33, 0.90)", "a constant model is left out"
    assert bound.entry([replace(cells[0], violation=True), *cells[1:]]).endswith("!")
    results = label_tables.StudyResults(
        SimpleNamespace(epsilons=(2.0,), seeds=3),  # type: ignore[arg-type]
        tuple(cells),
        None,  # type: ignore[arg-type]
    )
    assert results.of("LP-1ST") == [tuple(cells)]


@pytest.mark.parametrize("module", [criteo_tables, image_tables])
def test_the_printed_tables_have_a_figure_for_each_epsilon(module: object) -> None:
    for name in ("BOUNDS", "LOG_LOSS", "ACCURACY"):
        for row in getattr(module, name, {}).values():
            assert len(row) == len(module.EPSILONS)  # type: ignore[attr-defined]


def test_every_learner_states_the_claim_of_its_column(tmp_path: Path) -> None:
    for module in (criteo_tables, image_tables):
        study = module.study(Options(tmp_path))
        for make in study.learners.values():
            assert [make(epsilon).claim().epsilon for epsilon in study.epsilons] == list(study.epsilons)


def test_the_paper_scale_needs_data_and_states_its_cost(tmp_path: Path) -> None:
    for module in (criteo_tables, image_tables):
        with pytest.raises(SpecError, match="--data"):
            module.study(Options(tmp_path, scale="paper"))
    for name in ("cifar10", "criteo"):
        (tmp_path / name).mkdir()
    study = image_tables.study(Options(tmp_path, data=tmp_path, scale="paper"))
    assert "613 trainings" in study.cost
    assert "GPU hours" in study.cost
    for number in (0, 1):
        (tmp_path / "criteo" / f"day_{number}.gz").touch()
    days = criteo_tables.study(Options(tmp_path, data=tmp_path, scale="paper"))
    assert [part.path for part in (days.data.first, days.data.second)] == [
        str(tmp_path / "criteo" / f"day_{n}.gz") for n in (0, 1)
    ]
    assert days.canaries == 200_000
    assert days.split.target * 2_000_000 == 800_000
    small = criteo_tables.study(Options(tmp_path, data=tmp_path))
    assert (small.data.first.rows, small.data.second.rows, small.seeds) == (4_000, 6_000, 3)


def test_a_log_is_found_in_the_folder_of_all_sets(tmp_path: Path) -> None:
    folder = tmp_path / "criteo"
    folder.mkdir()
    options = Options(tmp_path / "out", data=tmp_path)
    assert criteo_tables.click_log(options) == Criteo(str(folder), 10_000)
    for name in ("train.txt.gz", "extra.txt.gz"):
        (folder / name).touch()
    options = Options(tmp_path / "out", data=tmp_path)
    parts = Joined(Criteo(str(folder / "train.txt.gz")), Criteo(str(folder / "extra.txt.gz")))
    assert criteo_tables.click_log(options) == parts
    (folder / "extra.txt.gz").unlink()
    assert criteo_tables.click_log(options) == Criteo(str(folder), 10_000)


def test_pictures_are_chosen_by_name(tmp_path: Path) -> None:
    assert isinstance(image_tables.study(Options(tmp_path, data=tmp_path)).data, Digits)
    for name in ("fashion_mnist", "cifar10"):
        (tmp_path / name).mkdir()
    options = Options(tmp_path, data=tmp_path)
    assert isinstance(image_tables.study(options).data, Cifar10)
    assert isinstance(image_tables.study(replace(options, only=("fashion_mnist",))).data, FashionMnist)
    (tmp_path / "cifar10" / "train").mkdir()
    (tmp_path / "cifar10" / "train" / "000.webp").touch()
    assert isinstance(image_tables.study(options).data, Cifar10Strips)
    with pytest.raises(InputError, match="--only must name cifar10 or fashion_mnist"):
        image_tables.study(replace(options, only=("svhn",)))


def test_every_reproduction_states_its_time_and_data() -> None:
    assert [*needs.NEEDS] == [*catalogue("reproduction")]
    lines = needs.listed(catalogue("reproduction").values()).splitlines()
    assert len(lines) == 2 + 2 * len(needs.NEEDS)
    for name, entry in needs.NEEDS.items():
        assert any(line.split()[:2] == name.split() and entry.line() in line for line in lines)
    assert needs.Needs("9 min", "3 h", "mnist").line() == "small 9 min, paper's size 3 h; data: mnist"
    assert needs.Needs("2 s", adds=("sst2",)).line() == "one size, 2 s; data: none; optional: sst2"


def test_names_that_are_not_there_have_three_near_ones() -> None:
    names = list(catalogue("reproduction"))
    assert needs.chosen(names, "bayesian", "table-2") == ["bayesian table-2"]
    assert len(needs.chosen(names, "bayesian", None)) == 7
    with pytest.raises(UnknownNameError, match="its nearest are bayesian, label-inference, private-prediction"):
        needs.chosen(names, "bayes", None)
    with pytest.raises(
        UnknownNameError, match=r"no 'table-3'; its nearest are table-\d, table-\d, table-\d\. `dpaudit"
    ):
        needs.chosen(names, "observational-label", "table-3")


def test_data_that_are_not_there_have_three_near_names(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="needs the data set mnist: give --data DATA"):
        Options(tmp_path).needed("mnist")
    with pytest.raises(SpecError, match=f"with mnist/ in it; {tmp_path} holds no folder"):
        Options(tmp_path, data=tmp_path).needed("mnist")
    for name in ("adult", "fashion_mnist", "Mnist", "sst2"):
        (tmp_path / name).mkdir()
    with pytest.raises(SpecError, match=r"its nearest names are Mnist, fashion_mnist, \w+\. Give the folder of all"):
        Options(tmp_path, data=tmp_path).needed("mnist")
    assert Options(tmp_path, data=tmp_path).needed("higgs", "adult") == tmp_path / "adult"


def test_a_folder_without_any_of_the_data_is_refused(tmp_path: Path) -> None:
    """The folder of one data set is no folder of all: data that are generated instead would not be what was asked."""
    with pytest.raises(SpecError, match=f"must be the folder of all data sets, {tmp_path}/none is no folder"):
        needs.require_data("observational-label table-1", tmp_path / "none")
    (tmp_path / "cifar10" / "train").mkdir(parents=True)
    needs.require_data("observational-label table-1", tmp_path)
    needs.require_data("bayesian figure-2", tmp_path / "cifar10")  # uses no data
    with pytest.raises(
        SpecError, match=r"folder cifar10 or fashion_mnist, .*cifar10 does not; its nearest names are train"
    ):
        needs.require_data("observational-label table-1", tmp_path / "cifar10")
    with pytest.raises(SpecError, match="folder higgs or adult or criteo"):
        needs.require_data("label-inference figure-1", tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    needs.require_data("bayesian table-2", tmp_path)


def test_flops_are_counted_from_the_layers() -> None:
    """A 3x3 convolution from 1 to 16 channels on 8x8, one from 16 to 32 on 4x4, a linear layer from 128 to 10."""
    by_hand = 2 * (9 * 1 * 16 * 64 + 9 * 16 * 32 * 16 + 128 * 10)
    assert forward_flops(SmallCnn(), (1, 8, 8)) == by_hand


def test_joined_data_are_one_after_the_other() -> None:
    first, second = CriteoSynthetic(300, day=0), CriteoSynthetic(200, day=1)
    both = Joined(first, second).load(seed=3)
    assert len(both) == 500
    assert both.take(np.arange(300)).digest == first.load(seed=3).digest
    assert both.take(np.arange(300, 500)).digest == second.load(seed=3).digest
    with pytest.raises(DataError, match="same columns"):
        Joined(first, GaussianMixture(rows=10)).load()


@pytest.mark.nightly
def test_a_reproduction_that_was_killed_goes_on(tmp_path: Path) -> None:
    """A run killed after five units resumes without repeating them, and its table equals that of an unbroken run."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from dpaudit.actors.events import EventKind\n"
        "from dpaudit.engine.request.audit_spec import RunOptions\n"
        "from papers.reproduction import Options\n"
        "from papers.ml_audit_appendix import copies\n"
        "done = []\n"
        "def heard(event):\n"
        "    done.extend([event] if event.kind is EventKind.UNIT_DONE else [])\n"
        "    if len(done) == int(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)\n"
        "copies(Options(Path(sys.argv[1]), run=RunOptions(runner='in-process'), listeners=[heard]))\n"
        "print(len(done))\n"
    )

    def reproduce_until(folder: str, stop: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / folder), str(stop)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    whole = reproduce_until("whole", stop=-1)
    assert reproduce_until("killed", stop=5).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed" / "copies" / "runs" / "units").glob("*.parquet"))) == 5
    rest = reproduce_until("killed", stop=-1)
    assert int(rest.stdout.splitlines()[-1]) == int(whole.stdout.splitlines()[-1]) - 5
    tables = [(tmp_path / folder / "copies" / "copies.csv").read_bytes() for folder in ("whole", "killed")]
    assert tables[0] == tables[1]


def test_the_reproductions_are_listed() -> None:
    assert {f"observational-label table-{number}" for number in (1, 2, 4, 5)} <= set(catalogue("reproduction"))
    assert math.isinf(criteo_tables.EPSILONS[0])
