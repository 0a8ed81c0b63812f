"""The package without ray, torch, catboost and numba, as `dpaudit-light` installs it, gives the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import dpaudit
from dpaudit import installation
from dpaudit.errors import RunError
from tests.nightly import by_night_unless_changed
from tools.light_wheel import ROOT, light

METHODS = ("two-samples", "bayesian", "betting", "one-run-f-dp")
CODE = f"""
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name in {installation.LEFT_OUT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, NotInstalled())
sys.path.insert(0, ".")
"""
COMMAND = f"""{CODE}
from dpaudit.engine.cli.main import main
main(prog_name="dpaudit")
"""
BOUNDS = f"""{CODE}
import dpaudit, numpy as np
score, member = np.load("scores.npz").values()
for method in {METHODS}:
    print(str(dpaudit.estimate(score, member, method=method, delta=1e-5)).splitlines()[0])
"""
of_the_light_ways = by_night_unless_changed("dpaudit/installation.py", "dpaudit/compiling.py", "tests/test_light.py")
FUNCTION = """
def total(rows, rng):
    return float(rows["age"].clip(0, 100).sum()) + rng.laplace(scale=20)
"""


def ran(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process without the libraries that are left out."""
    surroundings = os.environ | {"DPAUDIT_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=surroundings, capture_output=True, text=True, check=False
    )


def command(folder: Path, *words: str, code: int = 0) -> str:
    """Return what a command prints without the libraries that are left out."""
    process = ran(folder, COMMAND, *words)
    assert process.returncode == code, process.stderr
    return process.stdout + process.stderr


def test_bounds_have_the_same_digits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    member = rng.random(600) < 0.5
    score = rng.normal(member.astype(float))
    np.savez(tmp_path / "scores.npz", score=score, member=member)
    process = ran(tmp_path, BOUNDS)
    assert process.returncode == 0, process.stderr
    bounds = [str(dpaudit.estimate(score, member, method=method, delta=1e-5)).splitlines()[0] for method in METHODS]
    assert process.stdout.splitlines() == bounds


@of_the_light_ways
def test_a_synthetic_table_is_audited(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.4f},{rng.choice(list('abc'))}" for _ in range(240)]
    for name, part in (("train", rows[:120]), ("holdout", rows[120:]), ("synthetic", rows[:120])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,word", *part]))
    printed = command(tmp_path, "synthetic", "train.csv", "holdout.csv", "synthetic.csv", "--claim", "1")
    assert "VIOLATION" in printed


@of_the_light_ways
def test_a_function_is_checked_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(FUNCTION)
    options = ("--schema", "{age: [0, 100]}", "--claim", "1", "--effort", "quick", "--budget", "5s", "-o", "run")
    printed = command(tmp_path, "check", "sums:total", *options)
    assert printed.startswith("choosing") or "VIOLATION" in printed
    assert (tmp_path / "run" / "report.html").exists()


def test_what_needs_a_library_says_what_to_install(tmp_path: Path) -> None:
    spec = ROOT / "examples" / "label-privacy.yaml"
    printed = command(tmp_path, "run", str(spec), code=3)
    assert "this needs ray, which is not installed and which dpaudit-light leaves out" in printed
    assert "Traceback" not in printed


def test_the_light_project_differs_in_name_and_libraries_only() -> None:
    whole = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    before, after = tomllib.loads(whole), tomllib.loads(light(whole))
    missing = set(before["project"]["dependencies"]) - set(after["project"]["dependencies"])
    assert sorted(line.split(">=")[0].split("[")[0] for line in missing) == sorted(installation.LEFT_OUT)
    assert after["project"]["name"] == "dpaudit-light"
    before["project"].update({key: after["project"][key] for key in ("name", "dependencies")})
    assert before == after


def test_both_distributions_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dpaudit-0.1.0.dist-info").mkdir()
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "dpaudit" / "installation.py"))
    require = installation.require_one_distribution.__wrapped__
    require()
    (tmp_path / "dpaudit_light-0.1.0.dist-info").mkdir()
    with pytest.raises(RunError, match="both installed, and hold the same files"):
        require()
