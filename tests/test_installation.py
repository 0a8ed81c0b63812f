"""Installed as users install it, the package is found from any folder, even the one that holds its clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
BUILD = "from setuptools import build_meta; import sys; print(build_meta.{}(sys.argv[1]))"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in a folder called `dpaudit`, as `git clone` makes one."""
    there = tmp_path_factory.mktemp("projects") / "dpaudit"
    unneeded = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__", "reproduced")
    shutil.copytree(ROOT, there, symlinks=True, ignore=unneeded)
    return there


def installed(clone: Path, environment: Path, build: str) -> Path:
    """The Python of a fresh environment that holds the package and, further down its path, what this one holds."""
    made = environment.parent / f"{environment.name}-wheel"
    made.mkdir()
    command = [sys.executable, "-c", BUILD.format(build), str(made)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    zipfile.ZipFile(next(made.glob("*.whl"))).extractall(packages)
    (packages / "zz-dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return environment / "bin" / "python"


def printed(python: Path, code: str, folder: Path) -> str:
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code], cwd=folder, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_clone_does_not_shadow_the_package(clone: Path, tmp_path: Path) -> None:
    python = installed(clone, tmp_path / "editable", "build_editable")
    found = printed(
        python, "from dpaudit import audit; import sys; print(sys.modules[audit.__module__].__file__)", clone.parent
    )
    assert Path(found).resolve() == clone / "engine" / "run" / "driver.py"
    alone = printed(
        python, "import importlib.util as u; print([u.find_spec(name) for name in ('engine', 'mechanisms')])", tmp_path
    )
    assert alone == "[None, None]"


def test_a_wheel_holds_the_whole_package(clone: Path, tmp_path: Path) -> None:
    python = installed(clone, tmp_path / "wheel", "build_wheel")
    code = (
        "from dpaudit import audit, registry; import sys; "
        "print(len(registry.catalogue('estimator')), audit.__module__, sys.modules[audit.__module__].__file__)"
    )
    count, module, file = printed(python, code, clone.parent).split()
    assert (int(count) > 10, module) == (True, "dpaudit.engine.run.driver")
    assert Path(file).is_relative_to(tmp_path)


def test_every_package_that_is_installed_is_pinned() -> None:
    """Those that others need included: a release of any of them must not change what a fresh install does."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if line and not line.startswith("#")}
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    assert _needed("dpaudit", ("dev", "accounting", "opacus", "text"), {}) - {"dpaudit"} <= pinned


def test_every_pinned_package_has_the_hashes_of_its_files() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == sum(1 + hashes.count("--hash=") for *_, hashes in locked), "every line is one of these"
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.split("==") for line in constraints if line and not line.startswith("#")]
    assert {(canonicalize_name(name), version) for name, version, _ in locked} == {
        (canonicalize_name(name), version) for name, version in pinned if name != "torch"
    }, "torch has builds of one version that differ by an index"


def _needed(name: str, extras: tuple[str, ...], seen: dict[str, set[str]]) -> set[str]:
    """The names of a package and of all that it needs, as far as they are installed here."""
    known = seen.setdefault(canonicalize_name(name), set())
    try:
        requirements = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        return set(seen)
    for needed in requirements:
        wanted = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        asked = set(needed.extras) | {""}
        if wanted and not asked <= seen.get(canonicalize_name(needed.name), set()):
            seen.setdefault(canonicalize_name(needed.name), set()).update(asked)
            _needed(needed.name, tuple(needed.extras), seen)
    known.update(extras)
    return set(seen)
