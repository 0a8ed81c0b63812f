"""Versions of what the numbers depend on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("dpaudit", "ray", "torch", "numpy", "scipy", "catboost", "scikit-learn", "pyarrow", "numba")


def versions() -> dict[str, str]:
    """Python, the platform, and those of `PACKAGES` that are installed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
