"""Files of `docs/data` written from the results of a reproduction: the stored files equal their commands' output."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dpaudit.registry import catalogue
from papers import data_files, ml_audit_appendix
from papers.reproduction import Options
from tools import rows
from tools.rows import DATA, Row, note_origin, origins, read_rows


def test_a_file_is_what_its_command_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over counts are equal on every machine. Larger numbers of trainings, which take longer, are skipped."""
    monkeypatch.setattr(ml_audit_appendix, "RUNS", (100,))
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(DATA / "index.csv", folder)
    monkeypatch.setattr(rows, "DATA", folder)
    monkeypatch.setattr(rows, "note_origin", lambda origin: note_origin(origin, folder))
    ml_audit_appendix.coverage(Options(tmp_path / "made" / "ml-audit", say=lambda text: None))
    name = "paper-ml-audit-coverage.csv"
    data_files.main(str(tmp_path / "made"), name)
    expected = [row for row in read_rows(DATA / name) if row.settings()["trainings a world"] == "100"]
    assert read_rows(folder / name) == expected != []
    assert origins(folder)[name].program == f"dpaudit reproduce ml-audit coverage; {data_files.written_by(name)}"


def registered_items(program: str) -> bool:
    """True if every item of the program's `dpaudit reproduce` commands is registered."""
    items = re.findall(r"dpaudit reproduce ([\w-]+ [\w-]+)", program)
    return bool(items) and {*items} <= {*catalogue("reproduction")}


def test_every_file_is_kept_and_its_line_names_its_commands() -> None:
    sources = origins()
    for name, source in data_files.FILES.items():
        assert sources[name].program == data_files.program(name)
        assert registered_items(source.program), source.program
        assert read_rows(DATA / name)
    assert {name for name in sources if name.startswith("paper-")} - set(data_files.FILES) == {"paper-overview.csv"}


def test_results_that_are_not_there_are_named(tmp_path: Path) -> None:
    for source in data_files.FILES.values():
        with pytest.raises(SystemExit, match="must be there; run the commands"):
            list(source.rows(tmp_path))
    with pytest.raises(SystemExit, match=r"give RESULTS and one of .*, got paper-nothing.csv"):
        data_files.main("paper-nothing.csv")


CELL = "learner,epsilon,seed,paper,paper_deviation,as_published,as_published_deviation,best_fraction,"
CELL += "best_fraction_deviation,bound,bound_deviation,exceeds_claim,never_seen,beyond,constant_predictor,"
CELL += "constant_predictor_deviation,constant_bound,constant_model,"
CELL += "test_accuracy,test_log_loss,failed\n"
TRAINED = "A,inf,0,{},1.046,0.11,1.0,0.1,0.639,0.15,false,0.009,0.0,0.026,0.05,0.019,false,0.9,0.1266,\n"
AGAIN = "A,inf,1,{},1.246,0.11,1.1,0.1,0.839,0.15,false,0.019,0.1,0.036,0.05,0.029,false,0.9,0.1286,\n"
CONSTANT = "B,0.1,0,{},0.0,0.0,0.0,0.0,0.0,0.0,false,0.0,0.0,0.0,0.0,0.0,true,0.9,0.3194,\n"


def measured(folder: Path, *cells: str) -> dict[tuple[str, str, str], Row]:
    for item, paper in {"table-2": "1.37,0.14", "table-5": "0.13,nan"}.items():
        place = folder / "observational-label" / item
        place.mkdir(parents=True)
        lines = [cell.format("nan,nan" if cell == CONSTANT else paper) for cell in cells]
        (place / f"{item}.csv").write_text(CELL + "".join(lines), encoding="utf-8")
    return {
        (row.settings().get("learner", ""), row.settings()["source"], row.what): row
        for row in data_files.clicks(folder)
    }


def test_a_bound_is_rounded_down_and_a_constant_model_shows_none(tmp_path: Path) -> None:
    by_cell = measured(tmp_path, TRAINED, CONSTANT)
    cells = {key: (row.value, row.interval) for key, row in by_cell.items()}
    assert cells["A", "ours, as published", "bound on epsilon"] == ("1.05", "± 0.11")
    assert cells["A", "ours, best fraction", "bound on epsilon"] == ("1.00", "± 0.10")
    assert cells["A", "ours, if the proxy is right", "bound on epsilon"] == ("0.63", "± 0.15")
    assert cells["A", "rows never seen", "bound on epsilon"] == ("0.00", "")
    assert cells["A", "constant predictor", "bound on epsilon"] == ("0.01", "")
    assert cells["A", "constant predictor, as published", "bound on epsilon"] == ("0.03", "± 0.05")
    assert cells["A", "ours", "log-loss"] == ("0.127", "")
    assert (
        cells["B", "paper", "bound on epsilon"]
        == cells["B", "ours, if the proxy is right", "bound on epsilon"]
        == ("–", "")
    )
    assert cells["B", "ours", "log-loss"] == ("0.319 (constant)", "")
    assert (
        by_cell["A", "ours, if the proxy is right", "bound on epsilon"].setting
        == "log=Kaggle, 3,200 rows; learner=A; source=ours, if the proxy is right; epsilon=∞"
    )


def test_several_trainings_have_a_median_and_a_range(tmp_path: Path) -> None:
    by_cell = measured(tmp_path, TRAINED, AGAIN)
    bound = by_cell["A", "ours, if the proxy is right", "bound on epsilon"]
    assert (bound.value, bound.interval, bound.trials) == ("0.73", "(0.63, 0.83)", "2 trainings, 100 replays each")
    published = by_cell["A", "ours, as published", "bound on epsilon"]
    assert (published.value, published.interval) == ("1.15", "(1.05, 1.25)")
    assert by_cell["A", "ours", "log-loss"].interval == "(0.127, 0.129)"
    assert by_cell["A", "paper", "bound on epsilon"].interval == "± 0.14"
    assert list(data_files.clicks(tmp_path))[-2].value == "0.341", "found by the authors' package, by bisection"


def test_what_response_tells_at_the_same_auc_is_counted(tmp_path: Path) -> None:
    heads = (
        'data,mechanism,multiplicative advantage,additive advantage,"response, multiplicative","response, additive"\n'
    )
    rows_of = {
        "figure-2": 'criteo-synthetic,"llp, bags of 8",inf,0.00093,nan,nan\n',
        "figure-3": "h.csv.gz,response,1,0.1,nan,nan\nh.csv.gz,llp,2.5,0.10,1.0,0.12\nh.csv.gz,llp,0.9,0.13,1.0,0.12\n",
    }
    for item, text in rows_of.items():
        folder = tmp_path / "label-inference" / item
        folder.mkdir(parents=True)
        (folder / f"{item}.csv").write_text(heads + text, encoding="utf-8")
    assert list(data_files.label_inference_figure_2(tmp_path)) == [
        Row("figure=2; data=generated clicks", "counts, multiplicative", "∞", "", "5 releases"),
        Row("figure=2; data=generated clicks", "counts, additive", "0.00093", "", "5 releases"),
    ]
    assert list(data_files.label_inference_figure_3(tmp_path)) == [
        Row("figure=3; data=Higgs", "settings compared", "2"),
        Row("figure=3; data=Higgs", "response tells less, multiplicative", "1"),
        Row("figure=3; data=Higgs", "median difference, nats", "+0.70"),
        Row("figure=3; data=Higgs", "response tells less, additive", "1"),
        Row("figure=3; data=Higgs", "median difference", "-0.005"),
    ]


def test_a_comparison_of_attacks_has_the_control_where_there_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "observational-label" / "figure-1"
    folder.mkdir(parents=True)
    heads = "learner,epsilon,attack,bound,as_published,as_published_deviation,observational,conditional,never_seen,"
    heads += "constant_predictor,constant_published,test_log_loss\n"
    lines = "LP-1ST,inf,label inference,1.2349,1.5,0.1,true,true,0.0129,0.0259,0.0355,2\n"
    lines += "LP-1ST,inf,membership,0.4,0.6,0.1,true,true,0.0349,0.0259,0.0355,2\n"
    lines += "LP-1ST,inf,membership on pictures,0.3,0.6,0.1,true,false,nan,nan,nan,2\n"
    lines += "LP-1ST,inf,planted,0.5,0.6,0.1,false,false,nan,nan,nan,2\n"
    (folder / "figure-1.csv").write_text(heads + lines, encoding="utf-8")
    written = list(data_files.attacks_compared(tmp_path))
    values = {(row.settings()["attack"], row.what): row.value for row in written}
    assert values["label inference", "if the proxy is right"] == "1.234"
    assert values["planted", "labels planted at random"] == "0.500"
    assert values["membership on pictures", "rows divided at random"] == "0.300"
    assert values["membership", "reference model alone"] == "0.034"
    assert values["label inference", "rows never seen"] == "0.012"
    assert values["label inference", "constant predictor"] == "0.025"
    assert not {("planted", "rows never seen"), ("planted", "constant predictor")} & {*values}


def test_figure_1_of_label_inference_has_both_advantages_of_each_setting(tmp_path: Path) -> None:
    folder = tmp_path / "label-inference" / "figure-1"
    folder.mkdir(parents=True)
    text = (
        'data,mechanism,multiplicative advantage,additive advantage\nadult,"llp-laplace, bags of 8, ε = 0.5",0.499,0.01'
    )
    (folder / "figure-1.csv").write_text(text, encoding="utf-8")
    key = "mechanism=Laplace; setting=bags of 8, ε = 0.5; data=adult"
    assert list(data_files.label_inference_figure_1(tmp_path)) == [
        Row("mechanism=response; setting=ε = 1; data=not named", "additive, printed", "0.00095"),
        Row(key, "additive", "0.01000"),
        Row(key, "multiplicative", "0.499"),
    ]
