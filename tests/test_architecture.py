"""The folders are the architecture: imports run one way, the ground floor is light, the front door is true."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dpaudit

ROOT = Path(__file__).parent.parent
FLOORS = ("actors", "cluster", "engine", "estimators", "mechanisms")
MAY_IMPORT = {
    "mechanisms": {"mechanisms"},
    "estimators": {"estimators"},
    "actors": {"actors", "mechanisms"},
    "cluster": {"cluster"},
    "engine": {"engine", "actors", "mechanisms", "estimators", "cluster"},
}
NOT_ON_THE_GROUND_FLOOR = {"mechanisms": {"ray"}, "estimators": {"ray", "torch", "pandas"}}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_one_way(floor: str) -> None:
    for path in sorted((ROOT / floor).rglob("*.py")):
        names = imported(path)
        floors = {name.split(".")[1] for name in names if name.startswith("dpaudit.")} & set(FLOORS)
        assert floors <= MAY_IMPORT[floor], f"{path} imports {floors - MAY_IMPORT[floor]}"
        outside = {name.split(".")[0] for name in names}
        assert not outside & NOT_ON_THE_GROUND_FLOOR.get(floor, set()), path
        assert not outside & set(FLOORS), f"{path} must import dpaudit.<folder>"


def test_the_packages_listed_are_the_packages_there_are() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {"dpaudit", "dpaudit.claims"}
    for floor in FLOORS:
        for marker in (ROOT / floor).rglob("__init__.py"):
            there.add(".".join(["dpaudit", *marker.parent.relative_to(ROOT).parts]))
        for path in (ROOT / floor).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} needs an __init__.py"
    assert listed == there


def test_the_links_for_type_checkers_are_in_place() -> None:
    for floor in FLOORS:
        assert (ROOT / "dpaudit" / floor).is_symlink()
        assert (ROOT / "dpaudit" / floor).resolve() == ROOT / floor


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import dpaudit",
        "import dpaudit.estimators.one_run.guesses, dpaudit.estimators.two_world.confusion",
        "import dpaudit.estimators.private_prediction.renyi",
        "import dpaudit.engine.cli",
        "from dpaudit.registry import PACKAGES, catalogue; [catalogue(kind) for kind in PACKAGES]",
    ],
)
def test_light_imports_stay_light(statement: str) -> None:
    assert not modules_after(statement) & {"ray", "torch", "pandas", "catboost", "sklearn", "matplotlib"}


def test_the_front_door_lists_what_there_is() -> None:
    assert dpaudit.__all__ == sorted(dpaudit.__all__)
    for name in dpaudit.__all__:
        assert getattr(dpaudit, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        dpaudit.nothing_here  # noqa: B018
