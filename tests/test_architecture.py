"""The folders are the architecture: imports run one way, low-level packages import no heavy library, exports are true.

Each rule maps the source text of all modules to a list of violations. Tests apply it to the package, where it must find
none, and to a copy in memory with a planted violation, which it must find.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import pytest

import dpaudit
from dpaudit.registry import catalogue, load
from tests.import_graph import Sources, cycles, import_graph, imports, module_of, read_sources
from tests.loops import Cases

ROOT = Path(__file__).parent.parent
FOLDERS = ("actors", "cluster", "engine", "estimators", "language_models", "mechanisms", "synthetic_tables")
"""Packages at the root of the repository; `dpaudit/` holds a symbolic link to each."""


@dataclass(frozen=True)
class Rooms:
    """The permitted import order of the folders and files directly inside one package.

    Attributes:
        package: The package.
        order: Names of its rooms. A room may import itself and rooms before it.
        unrelated: Pairs of rooms that must not import each other in either direction.
        exceptions: Pairs of modules whose import against the order is tolerated. An exception that no file needs is a
            violation, so the list can only shrink.
    """

    package: str
    order: tuple[str, ...]
    unrelated: frozenset[frozenset[str]] = frozenset()
    exceptions: frozenset[tuple[str, str]] = frozenset()

    def room(self, module: str) -> str | None:
        """Return the room that holds `module`; None outside the package and for its `__init__`."""
        inner = module.removeprefix(f"{self.package}.")
        return None if inner == module else inner.partition(".")[0]


def unrelated(*groups: tuple[str, str]) -> frozenset[frozenset[str]]:
    """Return every pair of a room on the left and a room on the right; blanks separate the rooms of a side."""
    return frozenset(
        frozenset((first, second)) for lefts, rights in groups for first in lefts.split() for second in rights.split()
    )


FLOORS = Rooms(
    "dpaudit",
    (
        *(
            "errors",
            "tracebacks",
            "type_hints",
            "field_checks",
            "packages",
            "plain_files",
            "consent",
            "locations",
            "variables",
            "tensors",
            "installation",
            "compiling",
            "registry",
            "claims",
        ),
        *("estimators", "mechanisms", "cluster", "actors", "engine", "language_models", "synthetic_tables"),
        *("testing", "__main__"),
    ),
    unrelated=unrelated(
        ("estimators", "mechanisms actors"),
        ("cluster", "estimators mechanisms actors claims"),
        ("language_models", "synthetic_tables"),
        ("language_models synthetic_tables", "testing"),
    ),
)
MECHANISMS = Rooms(
    "dpaudit.mechanisms",
    (
        *(
            "ranges",
            "examples",
            "compute",
            "gpu_memory",
            "labels",
            "training",
            "protocols",
            "models",
            "teachers",
            "queries",
        ),
        *("learners", "predictors", "adapters", "planted"),
    ),
)
ENGINE = Rooms(
    "dpaudit.engine",
    (
        "exits",
        "figures",
        "data",
        "attacks",
        "games",
        "request",
        "planning",
        "answer",
        "report",
        "run",
        "sweep",
        "estimate",
        "observer",
        "cli",
    ),
)
GAMES = Rooms(
    "dpaudit.engine.games",
    (
        *("reference", "protocol", "trials", "taught", "outcomes", "digits", "joint_noise", "run_scores", "search"),
        *("two_worlds", "coins"),
        *(
            "proxies",
            "one_run",
            "two_world",
            "neighbours",
            "labels",
            "functions",
            "steps",
            "predictions",
            "label_advantage",
        ),
    ),
)
LANGUAGE_MODELS = Rooms(
    "dpaudit.language_models", ("mechanisms", "data", "canary_texts", "canary_kinds", "attacks", "games", "front_door")
)
SYNTHETIC_TABLES = Rooms("dpaudit.synthetic_tables", ("mechanisms", "games", "attacks", "front_door"))
WINGS = (LANGUAGE_MODELS, SYNTHETIC_TABLES)
ORDERS = (FLOORS, MECHANISMS, ENGINE, GAMES, *WINGS)

FORBIDDEN_LIBRARIES = {
    "claims": {"ray", "torch", "pandas"},
    "estimators": {"ray", "torch", "pandas"},
    "mechanisms": {"ray"},
}


def out_of_order(sources: Sources, rooms: Rooms) -> list[str]:
    """Every room is listed, and imports only itself and rooms before it."""
    unlisted = [
        f"{rooms.package}.{room} must have a place among the rooms"
        for room in sorted({rooms.room(module) for module in sources} - {None, *rooms.order}, key=str)
    ]
    return unlisted + [
        f"{module} imports {target}" for module, target in sorted(_backwards(sources, rooms) - rooms.exceptions)
    ]


def not_needed(sources: Sources, rooms: Rooms) -> list[str]:
    """Every listed exception is still needed."""
    return [
        f"{module} no longer imports {target}"
        for module, target in sorted(rooms.exceptions - _backwards(sources, rooms))
    ]


def _backwards(sources: Sources, rooms: Rooms) -> set[tuple[str, str]]:
    """Return the imports of a later or an unrelated room."""
    return {
        (module, name)
        for module, names in import_graph(sources).items()
        for name in names
        if _wrong_way(rooms, rooms.room(module), rooms.room(name))
    }


def _wrong_way(rooms: Rooms, room: str | None, other: str | None) -> bool:
    if room not in rooms.order or other not in rooms.order:
        return False
    later = rooms.order.index(room) < rooms.order.index(other)
    return later or frozenset((room, other)) in rooms.unrelated


def in_cycles(sources: Sources) -> list[str]:
    """No files import one another. `dpaudit/__init__.py`, which exports names of many modules, is left out."""
    graph = {module: names - {"dpaudit"} for module, names in import_graph(sources).items() if module != "dpaudit"}
    return [f"these files import one another: {sorted(cycle)}" for cycle in cycles(graph)]


def relative(sources: Sources) -> list[str]:
    """Imports are absolute."""
    return [
        f"{entry.module} line {entry.line} imports {entry.name} relatively"
        for entry in imports(sources)
        if entry.relative
    ]


def past_the_package(sources: Sources) -> list[str]:
    """The folders at the root are imported as parts of `dpaudit`."""
    return [
        f"{entry.module} must import dpaudit.{entry.name}" for entry in imports(sources) if entry.package in FOLDERS
    ]


def through_the_front_door(sources: Sources) -> list[str]:
    """Modules of the package import a name from the module that defines it, never from `dpaudit` itself."""
    return [
        f"{entry.module} line {entry.line} takes {entry.name} from the front door"
        for entry in imports(sources)
        if entry.module != "dpaudit" and module_of(entry.name, sources) == "dpaudit"
        if not re.fullmatch(r"dpaudit(\.__\w+__.*)?", entry.name)
    ]


def heavy_below(sources: Sources) -> list[str]:
    """Mechanisms, bounds and claims do not import Ray; bounds and claims import neither torch nor pandas."""
    return [
        f"{entry.module} line {entry.line} imports {entry.name}"
        for entry in imports(sources)
        if entry.package in FORBIDDEN_LIBRARIES.get(str(FLOORS.room(entry.module)), set())
    ]


def untrue_front_door(sources: Sources) -> list[str]:
    """Exports are sorted, type checkers see the same ones, and each module defines the names exported from it."""
    tree = ast.parse(sources["dpaudit"])
    homes: dict[str, str] = ast.literal_eval(_assigned(tree, "_HOMES"))
    type_checked = {
        alias.asname or alias.name: node.module
        for outer in tree.body
        if isinstance(outer, ast.If)
        for node in outer.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    violations = [] if list(homes) == sorted(homes) else ["_HOMES must be sorted by name"]
    if type_checked != homes:
        violations.append(f"the imports for type checkers must equal _HOMES: {set(type_checked) ^ set(homes)}")
    return violations + [
        f"{home} does not define {name}"
        for name, home in homes.items()
        if name not in _top_level_names(sources.get(home, ""))
    ]


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    return next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
    )


def _top_level_names(text: str) -> set[str]:
    """Return the names defined or imported at the top level of a module."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


SOURCES = read_sources(ROOT)
RULES: Mapping[str, Callable[[Sources], list[str]]] = {
    **{f"order of {rooms.package}": partial(out_of_order, rooms=rooms) for rooms in ORDERS},
    **{f"exceptions of {rooms.package}": partial(not_needed, rooms=rooms) for rooms in ORDERS},
    "cycles": in_cycles,
    "relative": relative,
    "past the package": past_the_package,
    "front door, from inside": through_the_front_door,
    "front door": untrue_front_door,
    "ground floor": heavy_below,
}


def test_the_package_holds() -> None:
    with Cases() as cases:
        for rule in RULES:
            with cases.case(rule):
                assert RULES[rule](SOURCES) == []


IMPORT_FORMS = {
    "import": "import {package}.{name}",
    "from": "from {package} import {name}",
    "something from": "from {package}.{name} import something",
    "all from": "from {package}.{name} import *",
    "under another name": "import {package}.{name} as other",
    "in a function": "def f():\n    if True:\n        from {package} import {name}",
    "in a class": "class C:\n    from {package} import {name}",
    "for type checkers": "if TYPE_CHECKING:\n    from {package} import {name}",
    "by a word": "import importlib\nx = importlib.import_module('{package}.{name}')",
    "by a word, in short": "from importlib import import_module as load\nx = load(name='{package}.{name}').f",
    "by a word, relative": "import importlib\nx = importlib.import_module('.{name}', '{package}')",
    "as Python does": "x = __import__('{package}.{name}')",
    "by dots": "import dpaudit\ndef f():\n    return {package}.{name}.g()",
    "by dots from another name": "import dpaudit as d\ndef f():\n    return d.{inner}.g()",
    "by dots from what is around it": "from {around} import {last} as d\ndef f():\n    return d.{name}.g()",
}
"""Ways to import a module; every one is planted for every rule on imports."""
PLANTED = [
    # (rule, importing module, imported module)
    ("order of dpaudit", "dpaudit.mechanisms.ranges", "dpaudit.engine.run.run_folder"),
    ("order of dpaudit", "dpaudit.mechanisms.ranges", "dpaudit.estimators.bound"),
    ("order of dpaudit", "dpaudit.estimators.bound", "dpaudit.mechanisms.ranges"),
    ("order of dpaudit", "dpaudit.actors.storage.store", "dpaudit.engine.run.run_folder"),
    ("order of dpaudit", "dpaudit.actors.storage.store", "dpaudit.estimators.bound"),
    ("order of dpaudit", "dpaudit.actors.storage.store", "dpaudit.cluster.session"),
    ("order of dpaudit", "dpaudit.cluster.jobs", "dpaudit.actors.storage.store"),
    ("order of dpaudit", "dpaudit.claims.curve", "dpaudit.mechanisms.ranges"),
    ("order of dpaudit", "dpaudit.errors", "dpaudit.claims.curve"),
    ("order of dpaudit.mechanisms", "dpaudit.mechanisms.training.recipe", "dpaudit.mechanisms.models.tables"),
    ("order of dpaudit.mechanisms", "dpaudit.mechanisms.models.tables", "dpaudit.mechanisms.learners.dp_sgd"),
    ("order of dpaudit.mechanisms", "dpaudit.mechanisms.learners.dp_sgd", "dpaudit.mechanisms.planted.learners"),
    ("order of dpaudit.engine", "dpaudit.engine.games.protocol", "dpaudit.engine.request.build"),
    ("order of dpaudit.engine", "dpaudit.engine.data.files", "dpaudit.engine.planning.plan"),
    ("order of dpaudit.engine.games", "dpaudit.engine.games.protocol", "dpaudit.engine.games.coins"),
    (
        "order of dpaudit.engine.games",
        "dpaudit.engine.games.one_run.labelled",
        "dpaudit.engine.games.labels.label_repeats",
    ),
    ("order of dpaudit.engine", "dpaudit.engine.answer.verdict", "dpaudit.engine.run.driver"),
    ("cycles", "dpaudit.claims.curve", "dpaudit.claims.curve"),
    ("cycles", "dpaudit.estimators.finding", "dpaudit.estimators.bound"),
]


def with_text(module: str, text: str) -> dict[str, str]:
    """Return the package with `text` appended to one module, which may be new."""
    return {**SOURCES, module: f"{SOURCES.get(module, '')}\n{text}\n"}


def test_a_wrong_import_is_found_however_it_is_written() -> None:
    with Cases() as cases:
        for rule, module, target in PLANTED:
            with cases.case(rule, module, target):
                assert {module, target} <= SOURCES.keys()
                package, _, name = target.rpartition(".")
                around, _, last = package.rpartition(".")
                for form, text in IMPORT_FORMS.items():
                    inner = target.removeprefix("dpaudit.")
                    planted = text.format(package=package, name=name, inner=inner, around=around, last=last)
                    violations = RULES[rule](with_text(module, planted))
                    assert any(module in violation and target in violation for violation in violations), form


def test_a_wrong_import_is_found_in_relative_form() -> None:
    """One leading dot means the module's package, two mean the parent of that package."""
    for text in (
        "from ..request import build",
        "from ..request.build import build",
        "def f():\n    from ..request.build import *",
    ):
        planted = with_text("dpaudit.engine.data.files", text)
        assert out_of_order(planted, ENGINE) == ["dpaudit.engine.data.files imports dpaudit.engine.request.build"]
        assert relative(planted)
    assert relative(with_text("dpaudit.engine", "from .driver import audit"))
    assert relative(
        with_text("dpaudit.engine.cli.main", "import importlib\nx = importlib.import_module('.driver', __package__)")
    )


def test_a_planted_violation_is_found() -> None:
    with Cases() as cases:
        for rule, module, text in [
            ("order of dpaudit", "dpaudit.helpers", ""),
            ("order of dpaudit.engine", "dpaudit.engine.helpers.texts", ""),
            ("order of dpaudit.mechanisms", "dpaudit.mechanisms.helpers", ""),
            ("past the package", "dpaudit.engine.planning.plan", "def f():\n    from actors.store import UnitStore"),
            ("past the package", "dpaudit.errors", "import engine"),
            ("front door, from inside", "dpaudit.engine.planning.plan", "from dpaudit import Claim"),
            ("front door, from inside", "dpaudit.mechanisms.ranges", "import dpaudit\nx = dpaudit.audit"),
            ("front door, from inside", "dpaudit.mechanisms.ranges", "import dpaudit as d\nx = d.audit"),
            (
                "front door, from inside",
                "dpaudit.registry",
                "import importlib\nx = importlib.import_module('dpaudit.audit')",
            ),
            ("ground floor", "dpaudit.claims.curve", "def f():\n    import torch.nn as nn"),
            ("ground floor", "dpaudit.estimators.bound", "if TYPE_CHECKING:\n    from pandas import DataFrame"),
            (
                "ground floor",
                "dpaudit.estimators.one_run.guesses",
                "import importlib\nx = importlib.import_module('torch')",
            ),
            ("ground floor", "dpaudit.mechanisms.ranges", "from ray.util import metrics"),
            ("front door", "dpaudit", "_HOMES = {'b': '', 'a': ''}"),
            ("front door", "dpaudit", "if TYPE_CHECKING:\n    from dpaudit.errors import SpecError"),
        ]:
            with cases.case(rule, module, text):
                planted = with_text(module, text)
                if rule == "front door" and text.startswith("_HOMES"):
                    planted["dpaudit"] = re.sub(r"_HOMES = \{.*?\}", text, SOURCES["dpaudit"], flags=re.DOTALL)
                assert RULES[rule](planted)


def test_an_exported_name_that_no_module_defines_is_found() -> None:
    assert untrue_front_door(
        {**SOURCES, "dpaudit.errors": SOURCES["dpaudit.errors"].replace("class AuditError", "class E")}
    )


@pytest.mark.parametrize("rooms", ORDERS, ids=lambda rooms: rooms.package)
def test_an_exception_that_nothing_needs_is_found(rooms: Rooms) -> None:
    grown = replace(rooms, exceptions=rooms.exceptions | {(f"{rooms.package}.one", f"{rooms.package}.other")})
    assert not_needed(SOURCES, grown) == [f"{rooms.package}.one no longer imports {rooms.package}.other"]
    for module, _ in sorted(rooms.exceptions):
        assert not_needed({**SOURCES, module: ""}, rooms), "the import was taken out"


def test_the_import_that_an_exception_excuses_is_seen() -> None:
    for rooms in ORDERS:
        for module, name in sorted(rooms.exceptions):
            shrunk = replace(rooms, exceptions=rooms.exceptions - {(module, name)})
            assert out_of_order(SOURCES, shrunk) == [f"{module} imports {name}"]


def untrue_arrows(page: str) -> list[str]:
    """Return the arrows of the page that no import order enforces: "a, b -> c" says that a and b import c."""
    block = page.partition("Imports run one way")[2].partition("\n\n")[2].partition("\n\n")[0]
    lines = re.sub(r" *-> *", "->", block).splitlines()
    chains = [chain for line in lines for chain in re.split(r" {2,}", line.strip())]
    arrows = [
        (importer, imported)
        for chain in chains
        for lefts, rights in zip(chain.split("->"), chain.split("->")[1:], strict=False)
        for importer in lefts.split(", ")
        for imported in rights.split(", ")
    ]
    assert arrows, "the page shows arrows below `Imports run one way`"
    return [
        f"{importer} -> {imported} is in no order"
        for importer, imported in arrows
        if not _is_enforced(importer, imported)
    ]


def _is_enforced(importer: str, imported: str) -> bool:
    for rooms in ORDERS:
        if {importer, imported} <= set(rooms.order):
            excused = {(rooms.room(module), rooms.room(target)) for module, target in rooms.exceptions}
            return rooms.order.index(imported) < rooms.order.index(importer) and (imported, importer) not in excused
    return False


def test_the_arrows_of_the_page_are_enforced() -> None:
    page = (ROOT / "docs" / "developers" / "architecture.md").read_text(encoding="utf-8")
    assert untrue_arrows(page) == []
    assert untrue_arrows(page.replace("attacks -> data", "attacks -> data -> answer, kitchen")) == [
        "data -> answer is in no order",
        "data -> kitchen is in no order",
    ]


def test_every_file_of_the_package_is_read() -> None:
    tracked = {
        ".".join(part for part in ("dpaudit", *PurePath(path).with_suffix("").parts) if part != "__init__")
        for folder in FOLDERS
        for path in (file.relative_to(ROOT) for file in (ROOT / folder).rglob("*.py"))
    }
    top_files = {f"dpaudit.{path.stem}" for path in (ROOT / "dpaudit").glob("*.py") if path.stem != "__init__"}
    assert SOURCES.keys() == tracked | top_files | {name for name in SOURCES if FLOORS.room(name) == "claims"} | {
        "dpaudit"
    }
    assert len([name for name in SOURCES if FLOORS.room(name) == "claims"]) >= 3


def wrong_packages(listed: Collection[str], files: Collection[PurePath]) -> list[str]:
    """Return violations of: every folder with Python files is a package, and pyproject.toml lists it."""
    packages = {".".join(path.parent.parts) for path in files if path.name == "__init__.py"}
    holding = {".".join(path.parent.parts) for path in files if path.suffix == ".py"}
    return [f"{name} needs an __init__.py" for name in sorted(holding - packages)] + [
        f"pyproject.toml must list every package and no other: {name}" for name in sorted(packages ^ set(listed))
    ]


def test_pyproject_lists_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    walked = os.walk(ROOT / "dpaudit", followlinks=True)
    files = [Path(folder, file).relative_to(ROOT) for folder, _, names in walked for file in names]
    assert wrong_packages(listed, files) == []
    assert wrong_packages([*listed, "dpaudit.more"], files)
    assert wrong_packages([name for name in listed if name != "dpaudit.claims"], files)
    assert wrong_packages(listed, [*files, PurePath("dpaudit/engine/helpers/texts.py")])
    assert wrong_packages(listed, [*files, PurePath("dpaudit/engine/helpers/__init__.py")])


def wrong_links(root: Path) -> list[str]:
    """Return the folders whose link in `dpaudit/` does not lead to them; type checkers and Ray follow these links."""
    links = {folder: root / "dpaudit" / folder for folder in FOLDERS}
    return [name for name, link in links.items() if not link.is_symlink() or link.resolve() != root.resolve() / name]


def test_the_links_for_type_checkers_are_in_place(tmp_path: Path) -> None:
    assert wrong_links(ROOT) == []
    (tmp_path / "dpaudit" / "actors").mkdir(parents=True)
    for folder in FOLDERS[1:]:
        (tmp_path / folder).mkdir()
        (tmp_path / "dpaudit" / folder).symlink_to(tmp_path / ("cluster" if folder == "engine" else folder))
    assert wrong_links(tmp_path) == ["actors", "engine"]


HEAVY = {"ray", "torch", "pandas", "catboost", "sklearn", "matplotlib"}
LIBRARIES = HEAVY | {"numpy", "scipy", "pyarrow", "numba", "yaml"}


def modules_after(statement: str) -> list[str]:
    """Return the modules that a fresh process has imported after `statement`."""
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def heavy_after(statement: str, heavy: set[str]) -> set[str]:
    """Return those of the libraries `heavy` that a fresh process imports with `statement`."""
    return {name.partition(".")[0] for name in modules_after(statement)} & heavy


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import dpaudit", LIBRARIES),
        ("import dpaudit.engine.cli.supervisor, dpaudit.engine.cli.main", LIBRARIES),
        ("from dpaudit.registry import PACKAGES, catalogue; [catalogue(kind) for kind in PACKAGES]", LIBRARIES),
        ("import dpaudit; dpaudit.TrainingAudit", LIBRARIES - {"numpy", "scipy"}),
        ("import dpaudit.claims", HEAVY),
        ("import dpaudit.estimators.one_run.guesses, dpaudit.estimators.two_world.confusion", HEAVY),
        ("import dpaudit.estimators.private_prediction.rdp_bound", HEAVY),
    ],
)
def test_light_imports_stay_light(statement: str, heavy: set[str]) -> None:
    assert heavy_after(statement, heavy) == set()


def test_a_heavy_import_is_seen() -> None:
    assert heavy_after("sys.modules['torch.nn'] = sys.modules['ray'] = sys", HEAVY) == {"ray", "torch"}


def test_estimate_of_two_arrays_loads_few_modules() -> None:
    """It needs neither plan nor store, no reader of files and no page."""
    modules = modules_after("import dpaudit; dpaudit.estimate([0.1, 2.0] * 50, [0, 1] * 50)")
    assert len([name for name in modules if name.partition(".")[0] == "dpaudit"]) <= 50


def bases_above(kind: type) -> int:
    """Return the number of classes of dpaudit on the longest chain of bases above a class."""
    return max((1 + bases_above(base) for base in kind.__bases__ if base.__module__.startswith("dpaudit")), default=0)


def test_estimators_are_at_most_two_bases_deep() -> None:
    depths = {name: bases_above(load("estimator", name)) for name in catalogue("estimator")}
    assert {name for name, depth in depths.items() if depth > 2} == set()
    assert depths["clopper-pearson"] == 2


def test_every_export_can_be_imported() -> None:
    for name in dpaudit.__all__:
        assert getattr(dpaudit, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        dpaudit.nothing_here  # noqa: B018


PRINTERS = ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc")
PRINTING_MODULE = "dpaudit.engine.exits"


def printing(source: str) -> set[str]:
    """Return the names of the printing functions that a file calls."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {ast.unparse(call) for call in calls} & set(PRINTERS)


def test_one_module_prints() -> None:
    """It escapes terminal control characters; see tests/hostile/test_terminal.py."""
    for module, text in read_sources(ROOT).items():
        if module != PRINTING_MODULE:
            assert not printing(text), module


def test_a_print_is_found_wherever_it_is() -> None:
    assert printing("def f():\n    click.echo('x', err=True)\n    return lambda: print(1)") == {"print", "click.echo"}
    assert printing(read_sources(ROOT)[PRINTING_MODULE])
