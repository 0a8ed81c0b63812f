"""`dpaudit init` writes specs that can be planned; `dpaudit doctor` checks the installation."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from dpaudit.engine.cli import init_and_doctor
from dpaudit.engine.cli.main import main
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.request.loading import load_spec

ROOT = Path(__file__).parent.parent.parent


def dpaudit(*words: str, answers: str = "") -> Result:
    return CliRunner().invoke(main, list(words), input=answers)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # a user class adds its folder to the path


@pytest.mark.parametrize("answers", ["\n\n\n", "randomized-response\n2.5\niris\n"])
def test_a_spec_from_three_answers_can_be_planned(answers: str) -> None:
    result = dpaudit("init", answers=answers)
    assert result.exit_code == 0, result.output
    assert "dpaudit plan audit.yaml" in result.output
    (entry,) = make_plan(load_spec("audit.yaml")).audits
    wanted = 2.5 if "2.5" in answers else 1.0
    assert entry.audit.mechanism.epsilon == wanted


def test_options_replace_questions(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('age,"clicked: yes, or no"\n' + "1,0\n2,1\n3,0\n4,1\n5,1\n" * 20)
    result = dpaudit("init", "mine.yaml", "--mechanism", "randomized-response", "--epsilon", "1", "--data", "rows.csv")
    assert result.exit_code == 0, result.output
    (entry,) = make_plan(load_spec("mine.yaml")).audits
    assert entry.audit.data.label == "clicked: yes, or no"


def test_a_user_class_states_its_own_claim(tmp_path: Path) -> None:
    (tmp_path / "keeps_labels.py").write_text(
        "from dpaudit import Claim\nclass Keeps:\n    def claim(self):\n        return Claim(1.0)\n"
        "    def release(self, labels, *, classes, rng):\n        return labels\n"
    )
    assert dpaudit("init", "--mechanism", "keeps_labels:Keeps", "--data", "iris").exit_code == 0
    assert make_plan(load_spec("audit.yaml")).units


@pytest.mark.parametrize("label", ["Größe", "\N{GRINNING FACE}", "a\x7fb", "x: {y}, #z", "'", "$HOME", "null", "1"])
def test_any_label_survives_yaml(label: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'\ufeffage,"{label}"\n1,0\n2,1\n', encoding="utf-8")
    assert dpaudit("init", "--mechanism", "lp-1st", "--epsilon", "1.23456789", "--data", "rows.csv").exit_code == 0
    (audit,) = load_spec("audit.yaml").audits
    assert audit.data.label == label
    assert audit.mechanism.epsilon == 1.23456789


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,Größe\n1,0\n".encode("latin-1"), "must be UTF-8 text; convert the file to UTF-8"),
        ("age,clicked\n1,0\n".encode("utf-16")[:-1], "must be whole text in UTF-16"),
        (b"age," + b"x" * 200_000 + b"\n1,0\n", "is not a text table (field larger than field limit (131072))"),
        (b"age," * 3_000_000 + b"clicked", "must have lines of at most 8,388,608 characters"),
        (b"", "is empty"),
        (b"\n\n\n", "is empty"),
    ],
    ids=["latin-1", "utf-16", "long field", "long line", "empty", "blank lines"],
)
def test_an_invalid_csv_file_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    result = dpaudit("init", "--mechanism", "lp-1st", "--epsilon", "1", "--data", "rows.csv")
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert result.output.count("\n") == 1, result.output
    assert not (tmp_path / "audit.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mechanism", "x:{y}\nz", "--data", "iris"], "must be a name of `dpaudit list mechanisms`"),
        (["--mechanism", "lp-1sst"], "must be a name of `dpaudit list mechanisms`"),
        (["--mechanism", "lp-1st", "--epsilon", "1", "--data", "nowhere.csv"], "must be a name of `dpaudit list data`"),
        (["--mechanism", "a: b:C", "--data", "iris"], "must be a name of `dpaudit list mechanisms`"),
        (["--mechanism", "a\nname: b:C", "--data", "iris"], "must be a name of `dpaudit list mechanisms`"),
        (["--mechanism", "lp-1st", "--epsilon", "nan", "--data", "iris"], "epsilon must be a finite number > 0"),
        (["--mechanism", "lp-1st", "--epsilon", "inf", "--data", "iris"], "epsilon must be a finite number > 0"),
    ],
)
def test_invalid_answers_are_refused_and_nothing_is_written(words: list[str], message: str, tmp_path: Path) -> None:
    result = dpaudit("init", *words)
    assert (result.exit_code, message in result.output) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    result = dpaudit("init", "none/audit.yaml", "--mechanism", "lp-1st", "--epsilon", "1", "--data", "iris")
    assert (result.exit_code, "none/audit.yaml must be a file that can be written" in result.output) == (3, True)


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    result = dpaudit("init", "--mechanism", "lp-1st", "--epsilon", "1", "--data", "iris")
    assert (result.exit_code, "exists already" in result.output) == (2, True)
    assert not (tmp_path / "elsewhere.yaml").exists()


@pytest.mark.parametrize("name", ["rows: of, {mine} # \U0001f600\u2028\x85.csv", "'\"\\ - rows.csv", "1.5"])
def test_any_file_or_column_name_survives_yaml(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f'age,"{name.replace(chr(34), chr(34) * 2)}"\n' + "1,0\n2,1\n" * 20, newline="")
    result = dpaudit("init", "a\nname: b.yaml", "--mechanism", "lp-1st", "--epsilon", "1", "--data", name)
    assert result.exit_code == 0, result.output
    spec = load_spec("a\nname: b.yaml")
    assert (spec.audits[0].data.label, Path(spec.audits[0].data.path).name) == (name, name)
    assert spec.name == "my audit of lp-1st"


def test_doctor_reports_installed_packages() -> None:
    result = dpaudit("doctor")
    assert result.exit_code == 0, result.output
    for detail in ("Python", "torch", "ray", "processors", "memory", "disk", "GPU"):
        assert f"ok      {detail}: " in result.output


@pytest.mark.ray
def test_doctor_runs_a_task_on_ray_and_lists_its_nodes(ray_cluster: None) -> None:
    result = dpaudit("doctor", "--ray")
    assert result.exit_code == 0, result.output
    assert "ok      Ray session: started and ran a task in " in result.output
    assert "ok      Ray nodes: 1 with 2 CPUs" in result.output


def test_doctor_names_missing_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    absent = {"opacus", "mlflow-skinny", "mlflow", "diffprivlib", "aiohttp-cors"}

    def without_extras(package: str) -> str:
        if package in absent:
            raise importlib.metadata.PackageNotFoundError
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", without_extras)
    monkeypatch.delenv("DPAUDIT_DIFFPRIVLIB_PYTHON", raising=False)
    result = dpaudit("doctor")
    assert result.exit_code == 0, result.output
    line = 'without extra opacus: not installed, needed for `from_opacus` and training by Opacus; pip install "opacus"'
    assert line in result.output
    assert (
        'without extra cluster: not installed, needed for `dpaudit submit`, `logs` and `stop`; pip install "ray[def'
        in (result.output)
    )
    assert (
        "without extra diffprivlib: not installed, needed for models of diffprivlib; `make diffprivlib`"
        in result.output
    )
    absent.remove("mlflow")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "mlflow" else without_extras(name))
    assert "ok      extra mlflow: " in dpaudit("doctor").output


def test_doctor_lists_every_extra_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for name, *_ in init_and_doctor.EXTRAS} == extras.keys() - {"dev", "docs"}
    for name, _, install, _ in init_and_doctor.EXTRAS:
        assert any(needed.startswith(install) for needed in extras[name])


def test_doctor_exits_with_3_if_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without_ray(package: str) -> str:
        if package == "ray":
            raise importlib.metadata.PackageNotFoundError
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", without_ray)
    monkeypatch.setattr(init_and_doctor, "MEMORY_GB", 1e9)
    result = dpaudit("doctor")
    assert result.exit_code == 3
    assert "MISSING ray: not installed; pip install ray" in result.output
    assert "MISSING memory: " in result.output


def test_doctor_checks_every_package_of_the_project() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(line).name for line in needed} == set(init_and_doctor.NEEDED)


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("numpy", "MISSING numpy: 1.0 is too old; pip install 'numpy>=2.0'"),
        ("pydantic", "MISSING pydantic: 1.0 is too old; pip install 'pydantic>=2.11'"),
        ("trl", "without extra finetuning: trl 1.0 is too old for audits of a fine-tuning by Trainer"),
        ("transformers", "without extra text: transformers 1.0 is too old for local language models"),
    ],
)
def test_doctor_names_versions_that_are_too_old(package: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0" if name == package else version(name))
    result = dpaudit("doctor")
    assert line in result.output
    assert result.exit_code == (3 if line.startswith("MISSING") else 0)
