"""The source files behind a module: its own, and those of every module of the user's that it imports, transitively.

A module is the user's when it is neither part of Python, nor of an installed package, nor of dpaudit. Imports are read
from the syntax trees, so those inside functions count and nothing is imported to find out. What an import resolves to
is what is loaded under that name, else what the finders would load. Installed packages count with their versions.
Not seen: names of modules that are computed while the code runs, and data files that it opens.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_FOLLOWED = "dpaudit.mechanisms"
"""Inside dpaudit, whose sources are in its code version: followed for the packages that mechanisms and models need."""


@dataclass(frozen=True)
class Sources:
    """What the code of a module comes to.

    Attributes:
        files: (module, SHA-256 of its file) of the modules of the user's own, sorted.
        packages: (installed distribution, version), sorted.
        unseen: What could not be read, in words; whoever depends on it cannot tell whether it changed.
    """

    files: tuple[tuple[str, str], ...]
    packages: tuple[tuple[str, str], ...]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Origin:
    """Where a module comes from: its file, if it has one, and where its submodules are, if it is a package."""

    file: str | None
    folders: tuple[str, ...] | None
    package: str
    loaded: ModuleType | None


@dataclass(frozen=True)
class _Read:
    """One module by itself."""

    digest: str = ""
    packages: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    unseen: str = ""


class SourceReader:
    """Reads each module once: what changes on disk afterwards is for the next reader to see."""

    def __init__(self) -> None:
        self._origins: dict[str, _Origin | None] = {}
        self._modules: dict[str, _Read] = {}
        self._sources: dict[str, Sources] = {}

    def sources(self, names: Iterable[str]) -> Sources:
        """What the modules and all that they import come to."""
        key = " ".join(sorted(names))
        if key not in self._sources:
            self._sources[key] = self._gather(key.split())
        return self._sources[key]

    def is_own(self, name: str) -> bool:
        """Whether the module is the user's and comes from a file."""
        origin = self._origin(name)
        return origin is not None and origin.file is not None and not _of_dpaudit(name) and not _foreign(name, origin)

    def _gather(self, names: list[str]) -> Sources:
        reached: dict[str, _Read] = {}
        waiting = [part for name in names for part in _with_parents(name)]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached[name] = self._module(name)
                waiting += [
                    part
                    for imported in reached[name].imports
                    if not _of_dpaudit(imported) or imported.startswith(_FOLLOWED)
                    for part in _with_parents(imported)
                ]
        return Sources(
            tuple(sorted((name, read.digest) for name, read in reached.items() if read.digest)),
            tuple(sorted({(package, _version(package)) for read in reached.values() for package in read.packages})),
            tuple(sorted(read.unseen for read in reached.values() if read.unseen)),
        )

    def _module(self, name: str) -> _Read:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> _Read:
        origin = self._origin(name)
        if origin is None or (origin.file is None and origin.folders is not None):
            return _Read()  # no module but a name inside one, not installed, or a folder without code
        if origin.file is None:
            return _Read(unseen=f"the module {name} has no file")
        if _standard(origin.file):
            return _Read()
        if not _of_dpaudit(name) and _foreign(name, origin):
            return _Read(packages=_distributions().get(name.partition(".")[0], ()))
        try:
            content = _content(name, origin)
        except OSError as err:
            return _Read(unseen=f"the file of module {name} cannot be read: {err}")
        imports = _imports(content, origin.package) if origin.file.endswith(".py") else ()
        if _of_dpaudit(name):
            return _Read(imports=imports)
        digest = hashlib.sha256(content).hexdigest()
        stale = origin.loaded is not None and _changed_since_import(name, origin.loaded, origin.file, digest)
        why = f"the module {name} changed on disk after it was imported" if stale else ""
        return _Read(digest, imports=imports, unseen=why)

    def _origin(self, name: str) -> _Origin | None:
        if name not in self._origins:
            self._origins[name] = self._locate(name)
        return self._origins[name]

    def _locate(self, name: str) -> _Origin | None:
        parent = name.rpartition(".")[0]
        above = self._origin(parent) if parent else None
        if parent and (above is None or above.folders is None):
            return None
        if above is not None and above.file is not None and _foreign(parent, above):
            return above  # which of its modules makes no difference
        loaded = sys.modules.get(name)
        if isinstance(loaded, ModuleType):
            return _of_loaded(name, loaded)
        try:
            spec = _find(name, above.folders if above else None)
        except (ImportError, AttributeError, ValueError):  # a finder's own trouble
            return None
        return None if spec is None else _of_spec(spec, None)


def _of_loaded(name: str, module: ModuleType) -> _Origin:
    names = vars(module)
    spec = module.__spec__
    if spec is not None and name != "__main__":
        return _of_spec(spec, module)
    # A script has no spec; one started with -m has that of the module it is.
    return _Origin(file_of(module), None, names.get("__package__") or "", module)


def file_of(module: ModuleType) -> str | None:
    """The file a loaded module came from; None for one that was typed, piped into Python or made while it ran."""
    file = vars(module).get("__file__")
    return None if file is None or file.startswith("<") else str(file)


def _of_spec(spec: ModuleSpec, loaded: ModuleType | None) -> _Origin:
    folders = None if spec.submodule_search_locations is None else tuple(spec.submodule_search_locations)
    file = spec.origin if spec.has_location or spec.origin in ("built-in", "frozen") else None
    return _Origin(file, folders, spec.name if folders is not None else spec.parent or "", loaded)


def _find(name: str, folders: tuple[str, ...] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, folders)
        if spec is not None:
            return spec
    return None


def _with_parents(name: str) -> Iterator[str]:
    """a.b.c and the packages whose code runs before it does."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _of_dpaudit(name: str) -> bool:
    return name.partition(".")[0] == "dpaudit"


@cache
def _standard(file: str) -> bool:
    if file in ("built-in", "frozen"):
        return True
    return os.path.realpath(file).startswith(_STANDARD) and not _INSTALLED & set(Path(file).parts)


def _foreign(name: str, origin: _Origin) -> bool:
    """Whether the module is part of Python or of a package with a version: its file need not be read."""
    assert origin.file is not None
    if _standard(origin.file):
        return True
    return bool(_INSTALLED & set(Path(origin.file).parts)) and name.partition(".")[0] in _distributions()


@cache
def _distributions() -> dict[str, tuple[str, ...]]:
    """Installed distributions by the top-level modules they bring."""
    found = importlib.metadata.packages_distributions()
    return {module: tuple(sorted(set(names))) for module, names in found.items()}


@cache
def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


def _content(name: str, origin: _Origin) -> bytes:
    assert origin.file is not None
    try:
        return Path(origin.file).read_bytes()
    except OSError:  # inside an archive
        spec = importlib.util.find_spec(name) if origin.loaded is None else origin.loaded.__spec__
        if spec is None or not isinstance(spec.loader, importlib.abc.ResourceLoader):
            raise
        return spec.loader.get_data(origin.file)


_SEEN: dict[str, tuple[object, str]] = {}
"""For each loaded module of the user's, what it was loaded as and its file's digest when it was first read."""


def _changed_since_import(name: str, module: ModuleType, file: str, digest: str) -> bool:
    """Whether the file holds other code than this process runs; as far as can be told."""
    spec = module.__spec__
    loaded_as = spec if spec is not None else module  # reloading makes a new spec
    seen, first = _SEEN.setdefault(name, (loaded_as, digest))
    if seen is not loaded_as:
        _SEEN[name] = (loaded_as, digest)
    elif first != digest:
        return True
    return spec is not None and type(spec.loader) is SourceFileLoader and _compiled_from_another(spec, file)


def _compiled_from_another(spec: ModuleSpec, file: str) -> bool:
    """Whether the bytecode that Python kept at the import says that the file was another one then."""
    if sys.dont_write_bytecode or not spec.cached:
        return False
    try:
        with open(spec.cached, "rb") as compiled:
            _, flags, written, size = struct.unpack("<4I", compiled.read(16))
        found = os.stat(file)
    except (OSError, struct.error):
        return False
    return flags == 0 and (written, size) != (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)


@lru_cache(maxsize=4096)
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Names a file imports or may import: `from a import b` gives a and a.b, `a.b` after `import a` gives a.b."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    nodes = list(_running(tree))
    found = dict.fromkeys(name for node in nodes for name in _named(node, package))
    bound = {local: name for node in nodes for local, name in _bound(node, package)}
    found |= dict.fromkeys(name for node in nodes for name in _attributes(node, bound))
    return tuple(found)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of the tree that can run: not those that only type checkers read."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).rpartition(".")[2] == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _running(other)
        else:
            yield from _running(child)


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and node.args and _last_name(node.func) in ("import_module", "__import__"):
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value:
            yield _resolved(first.value, package)


def _bound(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{_absolute(node, package)}.{alias.name}"


def _attributes(node: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        words = ast.unparse(node).split(".") if _is_dotted(node) else []
        if words and words[0] in bound:
            yield ".".join([bound[words[0]], *words[1:]])


def _is_dotted(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _absolute(node: ast.ImportFrom, package: str) -> str:
    return _resolved("." * node.level + (node.module or ""), package)


def _resolved(name: str, package: str) -> str:
    if not name.startswith("."):
        return name
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # beyond the top: it would fail when it ran
        return name.strip(".")
