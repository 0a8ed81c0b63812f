"""Installed as users install it, the package is found from any folder, even the one that holds its clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

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
    assert Path(found).resolve() == clone / "engine" / "driver.py"
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
    assert (int(count) > 10, module) == (True, "dpaudit.engine.driver")
    assert Path(file).is_relative_to(tmp_path)
