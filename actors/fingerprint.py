"""Fingerprints of values and of all user code that can influence what the values do.

Importable code counts by the folder that contains it (`SourceReader`), other code by its cloudpickle. Addresses and the
order of sets do not count. Code that cannot be read has a unique fingerprint with a reason, so its results are never
reused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import pickle
import re
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

NOT_IN_KEY: Mapping[str, bool] = MappingProxyType({"in_key": False})
"""Metadata of a dataclass field that fingerprints leave out."""


@dataclass(frozen=True)
class UserCode:
    """User code, or a value of the user that cannot be read."""

    label: str  # name, numbered if several parts of a plan share it
    digest: str  # SHA-256 of all content that influences the code
    unseen: tuple[str, ...] = ()  # reasons if parts cannot be read; the digest is then unique


@dataclass(frozen=True)
class Fingerprint:
    """Digest of a value and its user code."""

    digest: str  # SHA-256 of the content and its code
    user_code: tuple[UserCode, ...] = ()


class _CodeCache:
    """Cache for the fingerprints of one plan: each class and each file is read once."""

    def __init__(self, recorded: Mapping[str, str] | None = None) -> None:
        self.sources = SourceReader()
        self._recorded = recorded or {}
        self._codes: dict[int, tuple[object, str, UserCode | None]] = {}
        self._names: dict[str, int] = {}

    def code(self, thing: Any) -> tuple[str, UserCode | None]:
        """Return the digest of a class or function, and its `UserCode` if it belongs to the user."""
        if id(thing) not in self._codes:
            pickler = _Pickler(self, in_code=True)
            digest, user_code = "", None
            try:
                digest = pickler.digest(thing)
            except Exception as err:  # an object that the code refers to may raise anything
                pickler.unseen.append(f"{_name(thing)} cannot be read ({type(err).__name__}: {err})")
            if pickler.is_user_code or pickler.unseen:
                user_code = self._new_user_code(_name(thing), digest, pickler.unseen)
            self._codes[id(thing)] = (thing, user_code.digest if user_code else digest, user_code)
        return self._codes[id(thing)][1:]

    def unreadable(self, value: object, why: str) -> UserCode:
        """Return the stand-in for a value whose content cannot be read."""
        if id(value) not in self._codes:
            new_code = self._new_user_code(f"value of {_name(type(value))}", "", (why,))
            self._codes[id(value)] = (value, new_code.digest, new_code)
        user_code = self._codes[id(value)][2]
        assert user_code is not None
        return user_code

    def _new_user_code(self, name: str, digest: str, unseen: Iterable[str]) -> UserCode:
        self._names[name] = self._names.get(name, 0) + 1
        label = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        reasons = tuple(sorted(set(unseen)))
        if reasons:
            digest = hashlib.sha256(os.urandom(32)).hexdigest()
        return UserCode(label, self._recorded.get(label, digest), reasons)


_CURRENT: ContextVar[_CodeCache | None] = ContextVar("code cache", default=None)


@contextlib.contextmanager
def read_once(recorded: Mapping[str, str] | None = None, code_cache: _CodeCache | None = None) -> Iterator[_CodeCache]:
    """Read every class and file once inside the block, reusing `code_cache`; nested blocks share the cache.

    `recorded` holds digests by label that replace those of the current code.
    """
    if (outer := _CURRENT.get()) is not None:
        yield outer
        return
    code_cache = code_cache or _CodeCache(recorded)
    token = _CURRENT.set(code_cache)
    try:
        yield code_cache
    finally:
        _CURRENT.reset(token)


def fingerprint(value: object) -> Fingerprint:
    """Return the fingerprint of a value made of dataclasses, containers, numbers, strings, arrays and other objects."""
    code_cache = _CURRENT.get() or _CodeCache()
    for by_identity in (False, True):  # only the second pickler can read a value that contains itself
        pickler = _Pickler(code_cache, by_identity=by_identity)
        with contextlib.suppress(pickle.PicklingError, RecursionError, ValueError):
            return Fingerprint(pickler.digest(value), tuple(pickler.user_code.values()))
    stand_in = code_cache.unreadable(value, f"a value of {_name(type(value))} cannot be pickled")
    return Fingerprint(stand_in.digest, (stand_in,))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a value, or the code of one class or function, to the same bytes in every process.

    In a value, equal parts give equal bytes and code counts by its digest. Inside code, or with `by_identity`, a part
    that occurs again is a reference to its first occurrence, so that code may refer to itself.
    """

    def __init__(self, code_cache: _CodeCache, *, in_code: bool = False, by_identity: bool = False) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, protocol=4)
        self.fast = not (in_code or by_identity)
        self.user_code: dict[str, UserCode] = {}
        self.unseen: list[str] = []
        self.is_user_code = False
        self._cache, self._in_code = code_cache, in_code
        self._referenced: dict[int, tuple[int, object]] = {}  # number of importable code that was already pickled

    def digest(self, value: object) -> str:
        """Return the SHA-256 of the pickled value."""
        self.dump(value)
        return hashlib.sha256(self._bytes.getvalue()).hexdigest()

    def persistent_id(self, value: Any) -> object:
        """Return a stand-in for a value whose pickle depends on addresses, order or layout; None for other values."""
        kind = type(value)
        if kind is str:
            return repr(value)  # a new string object, which is never memoized
        if kind in (bytes, bytearray):
            return kind.__name__, hashlib.sha256(value).hexdigest()
        if kind in (list, tuple) and self.fast:
            return "sequence", *value  # a spec makes lists of tuples
        if kind in (set, frozenset):
            return kind.__name__, sorted(self._sort_key(item) for item in value)
        if kind is MappingProxyType or (kind is dict and self.fast):
            by_name = all(type(key) is str for key in value)
            return "mapping", sorted(((key if by_name else self._sort_key(key)), key, value[key]) for key in value)
        if isinstance(value, type | FunctionType):
            return self._code(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__, self._sources(value.__name__) if self._in_code else ()
        if isinstance(value, CodeType):
            counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
            names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            imports = [step.argval for step in dis.get_instructions(value) if step.opname == "IMPORT_NAME"]
            sources = [self._sources(module) for module in imports]
            return "bytecode", value.co_code, value.co_exceptiontable, counts, names, value.co_consts, sources
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            content = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return "array", str(value.dtype.descr), str(value.shape), content
        if dataclasses.is_dataclass(kind):
            counted = [field.name for field in dataclasses.fields(value) if field.metadata.get("in_key", True)]
            return "dataclass", kind, [(name, getattr(value, name)) for name in counted]
        return None

    def reducer_override(self, value: Any) -> Any:
        """Return the parts that an object is pickled as."""
        if isinstance(value, type | FunctionType):
            return self._by_value(value)
        try:
            reduce = self.dispatch_table.get(type(value))
            parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as err:  # an object may raise anything here
            why = f"an object of class {_name(type(value))} cannot be read ({type(err).__name__}: {err})"
            return tuple, (self._unreadable(value, why),)
        if not isinstance(parts, str):
            return parts
        # A global of its module: compiled or cached code, or a constant.
        code = self._code(value) if hasattr(value, "__qualname__") else ()
        return tuple, (("global", _name(type(value)), parts, code),)

    def _sort_key(self, value: object) -> str:
        """Return the digest of an item, the sort key of unordered items."""
        pickler = _Pickler(self._cache, in_code=self._in_code, by_identity=not self.fast)
        pickler.user_code, pickler.unseen = self.user_code, self.unseen
        digest = pickler.digest(value)
        self.is_user_code |= pickler.is_user_code
        return digest

    def _unreadable(self, value: object, why: str) -> tuple[str, str]:
        if self._in_code:
            self.unseen.append(why)
            return "unreadable", why
        user_code = self._cache.unreadable(value, why)
        self.user_code[user_code.label] = user_code
        return "unreadable", user_code.digest

    def _sources(self, module: str) -> tuple[tuple[str, str], ...]:
        """Return names and digests of the files and packages behind a module."""
        sources = self._cache.sources.sources(module)
        self.unseen += sources.unseen
        self.is_user_code |= bool(sources.files)
        return *sources.files, *sources.packages

    def _code(self, thing: Any) -> object:
        """Return a stand-in for a class or function; None if it is pickled by value."""
        if not self._in_code:
            digest, user_code = self._cache.code(thing)
            self.user_code |= {} if user_code is None else {user_code.label: user_code}
            return "code", _name(thing), digest
        if id(thing) in self._referenced:
            return "referenced", self._referenced[id(thing)][0]
        is_function = isinstance(thing, FunctionType)
        if (is_function or isinstance(thing, type)) and _reduced(thing) is not NotImplemented:
            return None
        self._referenced[id(thing)] = len(self._referenced), thing
        sources = self._sources(thing.__module__ or "builtins")
        parts = _values_of(thing) if is_function and self._cache.sources.sources(thing.__module__).files else ()
        return "importable", _name(thing), sources, parts, getattr(thing, "__wrapped__", None)

    def _by_value(self, thing: Any) -> Any:
        """Return the parts of a class or function that cannot be imported by its name."""
        maker, arguments, *state = _reduced(thing)
        module = thing.__module__ or "builtins"
        sources = self._sources(module) if has_file(module) or not state else ()
        if isinstance(thing, FunctionType):
            self.is_user_code |= not has_file(module)
            return tuple, (), (_name(thing), sources, thing.__code__, state[0][1]["__globals__"], _values_of(thing))
        if not state:  # a built-in class
            return tuple, (), (_name(thing), sources, maker.__name__)
        self.is_user_code |= not has_file(module)
        members = {name: value for name, value in state[0][0].items() if name not in _NOT_CODE}
        return tuple, (), (_name(thing), sources, arguments[:-2], members)  # the last two only distinguish copies


def _reduced(thing: Any) -> Any:
    """Return the parts that cloudpickle pickles a class or function as; NotImplemented if it pickles the name."""
    return cloudpickle.Pickler(io.BytesIO()).reducer_override(thing)


def _values_of(function: FunctionType) -> tuple[object, ...]:
    """Return the defaults, closure and attributes of a function."""
    return function.__defaults__, function.__kwdefaults__, function.__closure__, vars(function)


_NOT_CODE = {"__doc__", "_abc_impl", "__firstlineno__", "__static_attributes__", "__slotnames__"}


MAX_FILES = 5_000
_CODE = {".py", ".pyc", ".so", ".pyd"}
_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_NAMES = rb"[\w.]+(?:[ \t]+as[ \t]+\w+)?"
_IMPORT = re.compile(rb"(?:^|[:;])[ \t]*(?:from|import)[ \t]+(%b(?:[ \t]*,[ \t]*%b)*)" % (_NAMES, _NAMES), re.MULTILINE)
_BY_NAME = re.compile(rb"(?:import_module|__import__)\(\s*[\"'](\w+)")


@dataclass(frozen=True)
class ModuleSources:
    """Digests and versions of the code of one or several modules."""

    files: tuple[tuple[str, str], ...] = ()  # (top-level module, SHA-256 of its files) of user modules
    packages: tuple[tuple[str, str], ...] = ()  # (installed distribution, version)
    unseen: tuple[str, ...] = ()  # reasons for modules that cannot be read
    imports: frozenset[str] = frozenset()  # top-level modules that may be imported


class SourceReader:
    """Reader of module sources that reads each folder once, so later changes on disk do not count."""

    def __init__(self) -> None:
        self._read = cache(lambda name: read_module(name))
        self._with_imports = cache(self._gather)

    def sources(self, module: str) -> ModuleSources:
        """Return the sources of a module and of all user modules that it imports."""
        top = module.partition(".")[0]
        if module in sys.modules and not _locations(top):  # loaded without its package
            top = module
        return self._with_imports(top)

    def _gather(self, top: str) -> ModuleSources:
        sources: dict[str, ModuleSources] = {}
        waiting = {top}
        while waiting:
            name = waiting.pop()
            sources[name] = self._read(name)
            waiting |= sources[name].imports - sources.keys()
        parts = [sources[name] for name in sorted(sources)]
        return ModuleSources(
            tuple(file for part in parts for file in part.files),
            tuple(package for part in parts for package in part.packages),
            tuple(why for part in parts for why in part.unseen),
        )


def read_module(name: str) -> ModuleSources:
    """Return the sources of one top-level module; empty for Python's, dpaudit's and missing modules."""
    places = () if name == "dpaudit" else _locations(name)
    if places is None:
        return ModuleSources(unseen=(f"the module {name} has no file",))
    if not places or all(_is_standard_library(place) for place in places):
        return ModuleSources()
    if name in _distributions() and all(_INSTALLED & set(Path(place).parts) for place in places):
        return ModuleSources(packages=tuple((package, _version(package)) for package in _distributions()[name]))
    try:
        hasher, imports, unseen = hashlib.sha256(), set[str](), []
        loaded = {
            str(getattr(module, "__file__", None)): module_name for module_name, module in list(sys.modules.items())
        }
        for number, (file, inside) in enumerate(file for place in places for file in _files(Path(place))):
            if number == MAX_FILES:
                return ModuleSources(
                    unseen=(f"the folder of module {name} holds more than {MAX_FILES:,} files of code",)
                )
            content = file.read_bytes()
            hasher.update(f"{inside} {len(content)}\n".encode() + content)
            if file.suffix == ".py":
                imports |= _imports(content)
            if str(file) in loaded and _changed_since_import(loaded[str(file)], str(file), content):
                unseen.append(f"the module {loaded[str(file)]} changed on disk after it was imported")
        return ModuleSources(((name, hasher.hexdigest()),), (), tuple(unseen), frozenset(imports - {name}))
    except OSError as err:
        return ModuleSources(unseen=(f"the files of module {name} cannot be read: {err}",))


def imported_packages(*folders: Path) -> dict[str, str]:
    """Return the versions of installed distributions that the code in some folders imports, by name."""
    files = [file for folder in folders for file, _ in _files(folder) if file.suffix == ".py"]
    names = {name for file in files for name in _imports(file.read_bytes())}
    packages = {package for name in names - {"dpaudit"} for package in _distributions().get(name, ())}
    return {package: _version(package) for package in sorted(packages)}


def has_file(module: str) -> bool:
    """True if a loaded module came from a file, not from a prompt, a pipe or generated code."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not file.startswith("<")


def _locations(name: str) -> tuple[str, ...] | None:
    """Return the folders of a package, or the file of a module; () if it is missing, None if it has no file."""
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        places = tuple(getattr(module, "__path__", ())) or ((module.__file__,) if has_file(name) else ())
        spec = module.__spec__
        if name == "__main__" and spec is not None:  # started with -m
            places += _locations(spec.name.partition(".")[0]) or ()
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, AttributeError, ValueError):  # an error of the finder
            return ()
        if spec is None:
            return ()
        places = tuple(spec.submodule_search_locations or ()) or ((spec.origin,) if spec.has_location else ())
    is_located = bool(places) or name in sys.stdlib_module_names or name == "__main__"
    return tuple(place for place in places if place) if is_located else None


def _files(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield the code files at a place, or the archive that contains it, with their relative paths."""
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_file():
        yield place, place.name
    for folder, folders, names in os.walk(place):
        hidden = [name for name in folders if name.startswith(".") or name == "__pycache__" or name in _INSTALLED]
        folders[:] = sorted(set(folders).difference(hidden))
        for name in sorted(names):
            if os.path.splitext(name)[1] in _CODE:
                file = Path(folder, name)
                yield file, str(file.relative_to(place))


@lru_cache(maxsize=4096)
def _imports(source: bytes) -> frozenset[str]:
    """Return the top-level modules that a file may import; words in its text may be among them."""
    listed = [name for names in _IMPORT.findall(source) for name in names.split(b",")]
    words = [name.split()[0].partition(b".")[0] for name in listed] + _BY_NAME.findall(source)
    return frozenset(word.decode("utf-8", "replace") for word in words if word)


@cache
def _is_standard_library(file: str) -> bool:
    return os.path.realpath(file).startswith(_STANDARD) and not _INSTALLED & set(Path(file).parts)


@cache
def _distributions() -> dict[str, tuple[str, ...]]:
    """Return the installed distributions by top-level module.

    `importlib.metadata.packages_distributions` does the same in three times the time.
    """
    distributions: dict[str, set[str]] = {}
    for distribution in importlib.metadata.distributions():
        record, name_line = distribution.read_text("RECORD"), _NAME.search(distribution.read_text("METADATA") or "")
        top_level = (distribution.read_text("top_level.txt") or "").split()
        tops = top_level or {
            place[1]
            for file in (map(str, distribution.files or ()) if record is None else record.splitlines())
            if (place := _MODULE.match(file))
        }
        for module in tops:
            distributions.setdefault(module, set()).add(name_line[1] if name_line else distribution.metadata["Name"])
    return {module: tuple(sorted(names)) for module, names in distributions.items()}


_NAME = re.compile(r"^Name:\s*(\S+)", re.MULTILINE)
_MODULE = re.compile(r'"?([^/,"]+?)(?:/.*)?\.py"?(?:,|$)')


@cache
def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


_FIRST_READ: dict[str, tuple[object, bytes]] = {}
"""For each loaded user module, its spec and the hash of its file when it was first read."""


def _changed_since_import(name: str, file: str, content: bytes) -> bool:
    """True if the file is known to differ from the code that this process runs."""
    module = sys.modules[name]
    spec, digest = getattr(module, "__spec__", None), hashlib.sha256(content).digest()
    loaded_as = spec if spec is not None else module  # reloading creates a new spec
    first_loaded_as, first_digest = _FIRST_READ.setdefault(name, (loaded_as, digest))
    if first_loaded_as is not loaded_as:
        _FIRST_READ[name] = (loaded_as, digest)
    elif first_digest != digest:
        return True
    if spec is None or type(spec.loader) is not SourceFileLoader or sys.dont_write_bytecode or not spec.cached:
        return False
    try:  # the cached bytecode names the time and size of the imported file
        with open(spec.cached, "rb") as compiled:
            _, flags, written, size = struct.unpack("<4I", compiled.read(16))
        status = os.stat(file)
    except (OSError, struct.error):
        return False
    return flags == 0 and (written, size) != (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
