"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from dpaudit.plain_files import created


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Has a file written under another name in the same folder, then renames it; it appears in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with created(partial) as file:
            write(file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
