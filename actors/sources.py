"""The files behind the user's code: whole folders, so that no change in them can be missed.

A module counts with all code of the top-level package that it is in, or with its file where it is in none, and with the
modules that are imported there by name; installed packages count with their versions. Not seen: modules elsewhere whose
names are computed while the code runs, and data files that it opens.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

MAX_FILES = 5_000
_CODE = {".py", ".pyc", ".so", ".pyd"}
_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_NAMES = rb"[\w.]+(?:[ \t]+as[ \t]+\w+)?"
_IMPORT = re.compile(rb"(?:^|[:;])[ \t]*(?:from|import)[ \t]+(%b(?:[ \t]*,[ \t]*%b)*)" % (_NAMES, _NAMES), re.MULTILINE)
_BY_NAME = re.compile(rb"(?:import_module|__import__)\(\s*[\"'](\w+)")


@dataclass(frozen=True)
class Sources:
    """What the code of a module, or of several, comes to."""

    files: tuple[tuple[str, str], ...] = ()  # (top-level module, SHA-256 of its files) of the user's own
    packages: tuple[tuple[str, str], ...] = ()  # (installed distribution, version)
    unseen: tuple[str, ...] = ()  # what could not be read, in words
    imports: frozenset[str] = frozenset()  # top-level modules that it imports or may import


class SourceReader:
    """Reads each folder once: what changes on disk afterwards is for the next reader to see."""

    def __init__(self) -> None:
        self._read = cache(lambda name: read_module(name))
        self._reached = cache(self._gather)

    def sources(self, module: str) -> Sources:
        """What a module, and all of the user's that it imports, come to."""
        top = module.partition(".")[0]
        if module in sys.modules and not _places(top):  # it was loaded alone, from elsewhere
            top = module
        return self._reached(top)

    def _gather(self, top: str) -> Sources:
        found: dict[str, Sources] = {}
        waiting = {top}
        while waiting:
            name = waiting.pop()
            found[name] = self._read(name)
            waiting |= found[name].imports - found.keys()
        parts = [found[name] for name in sorted(found)]
        return Sources(
            tuple(file for part in parts for file in part.files),
            tuple(package for part in parts for package in part.packages),
            tuple(why for part in parts for why in part.unseen),
        )


def read_module(name: str) -> Sources:
    """A top-level module by itself, without importing it; nothing where it is Python's, dpaudit's or not there."""
    places = () if name == "dpaudit" else _places(name)
    if places is None:
        return Sources(unseen=(f"the module {name} has no file",))
    if not places or all(_standard(place) for place in places):
        return Sources()
    if name in _distributions() and all(_INSTALLED & set(Path(place).parts) for place in places):
        return Sources(packages=tuple((package, _version(package)) for package in _distributions()[name]))
    try:
        return _read_files(name, places)
    except OSError as err:
        return Sources(unseen=(f"the files of module {name} cannot be read: {err}",))


def packages_behind(folder: Path) -> dict[str, str]:
    """Versions of the installed distributions that the code of a folder imports, by name."""
    names = {name for file, _ in _files(folder) if file.suffix == ".py" for name in _imports(file.read_bytes())}
    found = {package for name in names - {"dpaudit"} for package in _distributions().get(name, ())}
    return {package: _version(package) for package in sorted(found)}


def has_file(module: str) -> bool:
    """Whether a loaded module came from a file: not one that was typed, piped into Python or made while it ran."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not file.startswith("<")


def _places(name: str) -> tuple[str, ...] | None:
    """The folders of a package, or a module's one file; none where there is no such module, None without a file."""
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        places = tuple(getattr(module, "__path__", ())) or ((module.__file__,) if has_file(name) else ())
        spec = module.__spec__
        if name == "__main__" and spec is not None:  # started with -m
            places += _places(spec.name.partition(".")[0]) or ()
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, AttributeError, ValueError):  # a finder's own trouble
            return ()
        if spec is None:
            return ()
        places = tuple(spec.submodule_search_locations or ()) or ((spec.origin,) if spec.has_location else ())
    known = bool(places) or name in sys.stdlib_module_names or name == "__main__"
    return tuple(place for place in places if place) if known else None


def _read_files(name: str, places: tuple[str, ...]) -> Sources:
    hasher, imports, unseen = hashlib.sha256(), set[str](), []
    loaded = {str(getattr(module, "__file__", None)): found for found, module in list(sys.modules.items())}
    for number, (file, inside) in enumerate(file for place in places for file in _files(Path(place))):
        if number == MAX_FILES:
            return Sources(unseen=(f"the folder of module {name} holds more than {MAX_FILES:,} files of code",))
        content = file.read_bytes()
        hasher.update(f"{inside} {len(content)}\n".encode() + content)
        if file.suffix == ".py":
            imports |= _imports(content)
        if str(file) in loaded and _changed_since_import(loaded[str(file)], str(file), content):
            unseen.append(f"the module {loaded[str(file)]} changed on disk after it was imported")
    return Sources(((name, hasher.hexdigest()),), (), tuple(unseen), frozenset(imports - {name}))


def _files(place: Path) -> Iterator[tuple[Path, str]]:
    """All code at a place, or the archive that it is in, with where it lies inside."""
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_file():
        yield place, place.name
    for folder, folders, names in os.walk(place):
        hidden = [each for each in folders if each.startswith(".") or each == "__pycache__" or each in _INSTALLED]
        folders[:] = sorted(set(folders).difference(hidden))
        for name in sorted(names):
            if os.path.splitext(name)[1] in _CODE:
                file = Path(folder, name)
                yield file, str(file.relative_to(place))


@lru_cache(maxsize=4096)
def _imports(source: bytes) -> frozenset[str]:
    """Top-level modules that a file imports or may import; some words of a text that is none are among them."""
    listed = [name for names in _IMPORT.findall(source) for name in names.split(b",")]
    words = [name.split()[0].partition(b".")[0] for name in listed] + _BY_NAME.findall(source)
    return frozenset(word.decode("utf-8", "replace") for word in words if word)


@cache
def _standard(file: str) -> bool:
    return os.path.realpath(file).startswith(_STANDARD) and not _INSTALLED & set(Path(file).parts)


@cache
def _distributions() -> dict[str, tuple[str, ...]]:
    """Installed distributions by the top-level modules they bring."""
    found = importlib.metadata.packages_distributions()
    return {module: tuple(sorted(set(names))) for module, names in found.items()}


@cache
def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


_SEEN: dict[str, tuple[object, bytes]] = {}
"""For each loaded module of the user's, what it was loaded as and a hash of its file when it was first read."""


def _changed_since_import(name: str, file: str, content: bytes) -> bool:
    """Whether the file holds other code than this process runs; as far as can be told."""
    module = sys.modules[name]
    spec, digest = getattr(module, "__spec__", None), hashlib.sha256(content).digest()
    loaded_as = spec if spec is not None else module  # reloading makes a new spec
    seen, first = _SEEN.setdefault(name, (loaded_as, digest))
    if seen is not loaded_as:
        _SEEN[name] = (loaded_as, digest)
    elif first != digest:
        return True
    if spec is None or type(spec.loader) is not SourceFileLoader or sys.dont_write_bytecode or not spec.cached:
        return False
    try:  # the bytecode that Python kept at the import says which file it was
        with open(spec.cached, "rb") as compiled:
            _, flags, written, size = struct.unpack("<4I", compiled.read(16))
        found = os.stat(file)
    except (OSError, struct.error):
        return False
    return flags == 0 and (written, size) != (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
