"""Installed as users install it, the package is found from any folder, even the one that holds its clone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.nightly import by_night_unless_changed

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FLOORS = ("actors", "cluster", "engine", "estimators", "language_models", "mechanisms", "synthetic_tables")
MAKES_THE_WHEEL = ("pyproject.toml", "MANIFEST.in", "editable/*", "*.j2", "*/py.typed", "tests/test_installation.py")
of_a_build = by_night_unless_changed(*MAKES_THE_WHEEL)
"""Mark of a test that builds or installs the package. `test_architecture` compares the folders with the listed
packages."""
BUILD = "from setuptools import build_meta; import sys; print(build_meta.{}(sys.argv[1]))"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources in a folder called `dpaudit`, as after `git clone`."""
    checkout = tmp_path_factory.mktemp("projects") / "dpaudit"
    unneeded = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__", "reproduced")
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=unneeded)
    return checkout


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources."""
    return built(clone, tmp_path_factory.mktemp("wheel"), "build_wheel")


def built(sources: Path, output_folder: Path, build: str) -> Path:
    """Return the single file that a build of the sources writes to an empty folder."""
    command = [sys.executable, "-c", BUILD.format(build), str(output_folder)]
    process = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    (file,) = output_folder.iterdir()
    return file


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the content of a wheel by path."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources(folder: Path) -> dict[str, bytes]:
    """Return the required content of the package by path in a wheel: every file of its six folders."""
    entries = {}
    for room in ("dpaudit", *FLOORS):
        prefix = Path() if room == "dpaudit" else Path("dpaudit")
        for path in (folder / room).rglob("*"):  # which follows no link to a folder
            if path.is_file() and "__pycache__" not in path.parts:
                entries[(prefix / path.relative_to(folder)).as_posix()] = path.read_bytes()
    return entries


def installed(wheel: Path, environment: Path) -> Path:
    """Return the Python of a fresh environment with the package and, later on its path, this environment's packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    python = environment / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-compile")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, wheel], check=True)
    (packages / "zz-dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def printed(folder: Path, *command: object) -> str:
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [str(word) for word in command], cwd=folder, env=surroundings, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@of_a_build
def test_a_clone_does_not_shadow_the_package(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    python = installed(built(clone, tmp_path / "made", "build_editable"), tmp_path / "editable")
    code = "from dpaudit import audit; import sys; print(sys.modules[audit.__module__].__file__)"
    assert Path(printed(clone.parent, python, "-c", code)).resolve() == clone / "engine" / "run" / "driver.py"
    code = "import importlib.util as u; print([u.find_spec(name) for name in ('engine', 'mechanisms')])"
    assert printed(tmp_path, python, "-c", code) == "[None, None]"


@of_a_build
def test_a_wheel_holds_the_package_and_nothing_else(clone: Path, wheel: Path) -> None:
    packed = contents(wheel)
    about = {name: packed.pop(name) for name in list(packed) if name.startswith("dpaudit-")}
    assert packed == sources(clone)
    assert any(name.endswith(".html.j2") for name in packed)
    assert any(name.endswith("/licenses/LICENSE") for name in about)


@of_a_build
def test_an_sdist_holds_the_sources_and_makes_the_same_wheel(clone: Path, wheel: Path, tmp_path: Path) -> None:
    for name in ("sdist", "wheel", "opened"):
        (tmp_path / name).mkdir()
    sdist = built(clone, tmp_path / "sdist", "build_sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "opened", filter="data")
    (opened,) = (tmp_path / "opened").iterdir()
    metadata_files = {
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "pyproject.toml",
        "PKG-INFO",
        "setup.cfg",
        "dpaudit.egg-info",
    }
    assert {path.name for path in opened.iterdir()} == {"dpaudit", *FLOORS, *metadata_files}
    assert sources(opened) == sources(clone)
    assert contents(built(opened, tmp_path / "wheel", "build_wheel")) == contents(wheel)


@of_a_build
def test_a_wheel_says_what_pyproject_says(wheel: Path) -> None:
    (about,) = (text for name, text in contents(wheel).items() if name.endswith("dist-info/METADATA"))
    metadata = Parser().parsestr(about.decode())
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "dpaudit",
        PROJECT["version"],
        "Apache-2.0",
    )
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {str(requirement) for requirement in needed if requirement.marker is None} == {
        str(Requirement(o)) for o in PROJECT["dependencies"]
    }


def test_every_extra_is_in_the_table_of_the_install_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(PROJECT["optional-dependencies"])
    for name, brings in rows:
        for package in re.findall(r"`([\w-]+)`", brings):
            assert any(Requirement(o).name == package for o in PROJECT["optional-dependencies"][name]), (name, package)


@of_a_build
def test_an_installed_wheel_works_far_from_any_checkout(wheel: Path, tmp_path: Path) -> None:
    """Run in a separate environment from any folder, like `uvx --from dpaudit dpaudit estimate scores.csv` and pipx."""
    python = installed(wheel, tmp_path / "own")
    rng = np.random.default_rng(0)
    member = rng.random(400) < 0.5
    rows = [f"{score},{int(coin)}" for score, coin in zip(rng.normal(3.0 * member), member, strict=True)]
    (tmp_path / "scores.csv").write_text("\n".join(["score,member", *rows]))
    output = printed(tmp_path, python.parent / "dpaudit", "estimate", "scores.csv", "--claim", "0.5")
    assert output.startswith("VIOLATION  estimate")
    assert "epsilon <= 0.5" in output
    file = printed(tmp_path, python, "-c", "from dpaudit import registry; print(registry.__file__)")
    assert Path(file).is_relative_to(tmp_path / "own")


@pytest.mark.nightly
def test_an_installed_wheel_brings_the_pytest_plugin_and_every_name(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "own")
    for kind in ("data", "estimators", "games", "mechanisms"):
        local = printed(ROOT, sys.executable, "-m", "dpaudit", "list", kind)
        assert printed(tmp_path, python.parent / "dpaudit", "list", kind) == local
    (tmp_path / "test_own.py").write_text("def test_it(dp_audit): assert callable(dp_audit.check)\n")
    assert "1 passed" in printed(tmp_path, python, "-m", "pytest", "-p", "no:cacheprovider", "test_own.py")


def test_the_image_is_made_of_what_is_there_by_no_root_on_a_pinned_python() -> None:
    """Read the Dockerfile, since Docker is not available."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    commands = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    by_word = {word: [rest for other, rest in commands if other == word] for word, _ in commands}
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())
    copied = [rest.split()[:-1] for rest in by_word["COPY"] if not rest.startswith("--from")]
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    assert {name for names in copied for name in names} == {line[1:] for line in ignored if line.startswith("!")}
    for base in by_word["FROM"]:
        version = re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-\w+( AS wheel)?", base)
        assert version is not None, base
        assert version[1] in SpecifierSet(PROJECT["requires-python"])
        major_minor = version[1].rpartition(".")[0]
        assert f"Programming Language :: Python :: {major_minor}" in PROJECT["classifiers"]
    (user,) = by_word["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "no root, and a number, as Kubernetes asks for"
    (entry,) = by_word["ENTRYPOINT"]
    assert json.loads(entry)[0] in PROJECT["scripts"]
    (extras,) = (rest.partition("=")[2] for rest in by_word["ARG"] if rest.startswith("EXTRAS="))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_every_package_that_is_installed_is_pinned() -> None:
    """Indirect requirements count too: a new release of any of them must not change a fresh install."""
    lines = (ROOT / "requirements/constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if line and not line.startswith("#")}
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    assert _needed("dpaudit", ("dev", "accounting", "opacus", "text", "finetuning"), {}) - {"dpaudit"} <= pinned


def test_every_pinned_package_has_the_hashes_of_its_files() -> None:
    text = (ROOT / "requirements/hashes.lock").read_text(encoding="utf-8")
    locked = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == sum(1 + hashes.count("--hash=") for *_, hashes in locked), "every line is one of these"
    constraints = (ROOT / "requirements/constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.split("==") for line in constraints if line and not line.startswith("#")]
    assert {(canonicalize_name(name), version) for name, version, _ in locked} == {
        (canonicalize_name(name), version) for name, version in pinned if name != "torch"
    }, "torch has builds of one version that differ by an index"


def _needed(name: str, extras: tuple[str, ...], visited: dict[str, set[str]]) -> set[str]:
    """Return the names of a package and of its installed requirements."""
    known_extras = visited.setdefault(canonicalize_name(name), set())
    try:
        requirements = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        return set(visited)
    for needed in requirements:
        wanted = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        requested = set(needed.extras) | {""}
        if wanted and not requested <= visited.get(canonicalize_name(needed.name), set()):
            visited.setdefault(canonicalize_name(needed.name), set()).update(requested)
            _needed(needed.name, tuple(needed.extras), visited)
    known_extras.update(extras)
    return set(visited)
