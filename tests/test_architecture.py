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


def files_by_module(root: Path) -> dict[str, Path]:
    """Every file of the package, the folders below their links left to themselves."""
    modules = {f"dpaudit.{path.stem}": path for path in (root / "dpaudit").glob("*.py") if path.stem != "__init__"}
    for floor in FLOORS:
        for path in (root / floor).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            modules[".".join(["dpaudit", *(part for part in parts if part != "__init__")])] = path
    return modules


def import_graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    """What each file imports, inside functions and for type checkers too."""
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= inner if inner <= set(modules) else inner | {node.module}
        graph[module] = named & set(modules)
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What `start` imports, and what that imports, and so on; `start` itself only by a circle."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of files that import one another."""
    below = {module: reachable(graph, module) for module in graph}
    return {
        frozenset(other for other in below[module] if module in below[other])
        for module in graph
        if module in below[module]
    }


def test_no_file_imports_another_in_a_circle() -> None:
    """The front door, `dpaudit/__init__.py`, names what it lends by strings and is left out."""
    found = [sorted(circle) for circle in circles(import_graph(files_by_module(ROOT)))]
    assert not found, f"these files import one another: {found}"


def test_a_circle_is_found_wherever_it_is_closed(tmp_path: Path) -> None:
    """One import in a function and one for type checkers are a circle; a third file that looks at both is not in it."""
    floor = tmp_path / "mechanisms"
    (tmp_path / "dpaudit").mkdir()
    floor.mkdir()
    (floor / "first.py").write_text("def f():\n    from dpaudit.mechanisms.second import g\n")
    (floor / "second.py").write_text("if TYPE_CHECKING:\n    from dpaudit.mechanisms import first\n")
    (floor / "third.py").write_text("import dpaudit.mechanisms.first\nfrom dpaudit.mechanisms import second\n")
    found = circles(import_graph(files_by_module(tmp_path)))
    assert found == {frozenset({"dpaudit.mechanisms.first", "dpaudit.mechanisms.second"})}


ROOMS_OF_MECHANISMS = ("training", "models", "learners", "planted")
"""Each may import itself and those before it."""


@pytest.mark.parametrize("room", ROOMS_OF_MECHANISMS)
def test_learners_build_on_models_and_models_on_training(room: str) -> None:
    later = ROOMS_OF_MECHANISMS[ROOMS_OF_MECHANISMS.index(room) + 1 :]
    above = tuple(f"dpaudit.mechanisms.{other}." for other in later)
    for module, names in import_graph(files_by_module(ROOT)).items():
        if module.startswith(f"dpaudit.mechanisms.{room}."):
            wrong = {
                name for name in names if name.startswith(tuple(f"dpaudit.mechanisms.{other}." for other in above))
            }
            assert not wrong, f"{module} imports {wrong}"


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
        "import dpaudit.estimators.private_prediction.rdp_bound",
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


PRINTERS = ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc")
THE_DOOR = ROOT / "engine" / "commands" / "exits.py"
OTHER_PROGRAMS = ROOT / "mechanisms" / "adapters" / "other_python"
"""Their standard output is read by the process that started them."""


def printing(source: str) -> set[str]:
    """The calls in a file that print."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {ast.unparse(call) for call in calls} & set(PRINTERS)


def test_everything_printed_goes_through_one_door() -> None:
    """What a terminal obeys is written out there; see tests/hostile/test_terminal.py."""
    for path in files_by_module(ROOT).values():
        if path != THE_DOOR and not path.is_relative_to(OTHER_PROGRAMS):
            assert not printing(path.read_text(encoding="utf-8")), path


def test_a_print_is_found_wherever_it_is() -> None:
    assert printing("def f():\n    click.echo('x', err=True)\n    return lambda: print(1)") == {"print", "click.echo"}
    assert printing(THE_DOOR.read_text(encoding="utf-8"))
