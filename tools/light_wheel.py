"""Build the wheel of `dpaudit-light`: the same package, which needs none of its largest libraries.

python -m tools.light_wheel build/light
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dpaudit.installation import LEFT_OUT

ROOT = Path(__file__).parent.parent
UNNEEDED = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__", "reproduced", "tests", "docs")


def light(project: str) -> str:
    """Return the text of `pyproject.toml` with the light name, and without the libraries that are left out."""
    head, dependencies, rest = re.split(r"(?<=^dependencies = \[)(.*?)(?=^\])", project, maxsplit=1, flags=re.M | re.S)
    remaining = [line for line in dependencies.splitlines() if not re.match(rf' *"({"|".join(LEFT_OUT)})\b', line)]
    return head.replace('name = "dpaudit"', 'name = "dpaudit-light"', 1) + "\n".join(remaining) + "\n" + rest


def main(folder: str) -> None:
    """Build the wheel into a folder, and print its path."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as copy:
        sources = Path(copy) / "dpaudit"
        shutil.copytree(ROOT, sources, symlinks=True, ignore=UNNEEDED)
        project = sources / "pyproject.toml"
        project.write_text(light(project.read_text(encoding="utf-8")), encoding="utf-8")
        build = f"from setuptools import build_meta; print(build_meta.build_wheel({str(Path(folder).absolute())!r}))"
        process = subprocess.run(
            [sys.executable, "-c", build], cwd=sources, capture_output=True, text=True, check=False
        )
    if process.returncode:
        sys.exit(process.stderr)
    print(Path(folder) / process.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
