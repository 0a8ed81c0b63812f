"""Fingerprints: of a value, and of all code of the user's own that can decide what the value does.

Code that can be imported counts by the folder it lies in (`SourceReader`), other code by what cloudpickle would
send of it. No address goes in and no order of a set. What cannot be read has a fingerprint like no other: its results
are never reused, and the reason is said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, EllipsisType, FunctionType, MappingProxyType, ModuleType, NoneType, NotImplementedType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np


@dataclass(frozen=True)
class UserCode:
    """Code of the user's, or a value of theirs that cannot be read."""

    label: str  # its name; numbered where several things of a plan share one
    digest: str  # SHA-256 of all that decides what it does
    unseen: tuple[str, ...] = ()  # what of it could not be read, in words; then the digest is like no other


@dataclass(frozen=True)
class Fingerprint:
    """What a value comes to."""

    digest: str  # SHA-256 of its content and of the code behind it
    own: tuple[UserCode, ...] = ()  # the user's code among that


class _Reading:
    """One look at all code: each class and each file is read once."""

    def __init__(self, recorded: Mapping[str, str] | None = None) -> None:
        self.sources = SourceReader()
        self._recorded = recorded or {}
        self._codes: dict[int, tuple[object, str, UserCode | None]] = {}
        self._names: dict[str, int] = {}

    def code(self, thing: Any) -> tuple[str, UserCode | None]:
        """Digest of a class or function, and the same as the user's code where it is that."""
        if id(thing) not in self._codes:
            walk = _Walk(self, inside={})
            walk.code(thing)
            own = self._labelled(_name(thing), walk.digest(), walk.unseen) if walk.is_own or walk.unseen else None
            self._codes[id(thing)] = (thing, own.digest if own else walk.digest(), own)
        return self._codes[id(thing)][1:]

    def unreadable(self, value: object, why: str) -> UserCode:
        """Stands for a value whose content cannot be read."""
        if id(value) not in self._codes:
            own = self._labelled(f"value of {_name(type(value))}", "", (why,))
            self._codes[id(value)] = (value, own.digest, own)
        own_of = self._codes[id(value)][2]
        assert own_of is not None
        return own_of

    def _labelled(self, name: str, digest: str, unseen: Iterable[str]) -> UserCode:
        self._names[name] = self._names.get(name, 0) + 1
        label = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        words = tuple(sorted(set(unseen)))
        if words:
            digest = hashlib.sha256(os.urandom(32)).hexdigest()
        return UserCode(label, self._recorded.get(label, digest), words)


_CURRENT: ContextVar[_Reading | None] = ContextVar("the reading of code that is going on", default=None)


@contextlib.contextmanager
def one_reading(recorded: Mapping[str, str] | None = None, reading: _Reading | None = None) -> Iterator[_Reading]:
    """Inside the block, which may go on with an earlier `reading`, every class and file is read once; nested ones join.

    `recorded` are digests by label to take instead of what is there now.
    """
    if (outer := _CURRENT.get()) is not None:
        yield outer
        return
    reading = reading or _Reading(recorded)
    token = _CURRENT.set(reading)
    try:
        yield reading
    finally:
        _CURRENT.reset(token)


def fingerprint(value: object) -> Fingerprint:
    """The fingerprint of a value made of dataclasses, containers, numbers, strings, enums, arrays and own objects."""
    walk = _Walk(_CURRENT.get() or _Reading())
    walk.feed(value)
    return Fingerprint(walk.digest(), tuple(walk.own.values()))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


class _Walk:
    """Feeds what it meets into one hash: in a value, code counts by its digest; inside code, all it refers to, once."""

    def __init__(self, reading: _Reading, inside: dict[int, tuple[int, object]] | None = None) -> None:
        self.reading = reading
        self.own: dict[str, UserCode] = {}
        self.unseen: list[str] = []
        self.is_own = False
        self._met = inside
        self._above: dict[int, int] = {}  # what is being fed now, from the outside in
        self._hash = hashlib.sha256()

    def digest(self) -> str:
        return self._hash.hexdigest()

    def word(self, *words: str) -> None:
        """Text, with its length, so that no two sequences of words read the same."""
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def raw(self, data: Any) -> None:
        self._hash.update(data)

    def feed(self, value: object) -> None:
        if id(value) in self._above:  # it contains itself
            self.word("above", str(len(self._above) - self._above[id(value)]))
            return
        self._above[id(value)] = len(self._above)
        try:
            _feed(value, self)
        finally:
            del self._above[id(value)]

    def all(self, kind: str, values: Sequence[object]) -> None:
        self.word(kind, str(len(values)))
        for value in values:
            self.feed(value)

    def code(self, thing: Any) -> None:
        self.word(_name(thing))
        if self._met is None:
            digest, own = self.reading.code(thing)
            self.word(digest)
            self.own |= {} if own is None else {own.label: own}
        elif id(thing) in self._met:
            self.word("met", str(self._met[id(thing)][0]))
        else:
            self._met[id(thing)] = (len(self._met), thing)
            _feed_code(thing, self)

    def sources(self, module: str) -> bool:
        """The files behind a module; whether they are the user's."""
        found = self.reading.sources.sources(module)
        for name, digest in (*found.files, *found.packages):
            self.word(name, digest)
        self.unseen += found.unseen
        self.is_own |= bool(found.files)
        return bool(found.files)

    def cannot_read(self, value: object, why: str) -> None:
        if self._met is None:
            own = self.reading.unreadable(value, why)
            self.word(own.digest)
            self.own[own.label] = own
        else:
            self.unseen.append(why)

    def apart(self, value: object) -> str:
        """The digest of a part by itself, to put parts without an order into one."""
        walk = _Walk(self.reading, None if self._met is None else dict(self._met))
        walk._above, walk.own, walk.unseen = dict(self._above), self.own, self.unseen
        walk.feed(value)
        self.is_own |= walk.is_own
        return walk.digest()


def _reduced(value: object) -> Any:
    """What a copy of it would be made from; NotImplemented for code that is imported by its name."""
    pickler = cloudpickle.Pickler(io.BytesIO())
    made = pickler.reducer_override(value)
    if made is not NotImplemented or isinstance(value, type | FunctionType):
        return made
    reduce = pickler.dispatch_table.get(type(value))
    return value.__reduce_ex__(4) if reduce is None else reduce(value)


def _feed_code(thing: Any, walk: _Walk) -> None:
    parts, module = _reduced(thing), thing.__module__ or "builtins"
    if isinstance(parts, str):  # compiled, or cached
        walk.sources(module)
        walk.feed(getattr(thing, "__wrapped__", None))
        return
    own = walk.sources(module) if parts is NotImplemented or len(parts) == 2 or has_file(module) else False
    if isinstance(thing, FunctionType):
        if parts is not NotImplemented:
            walk.is_own |= own or not has_file(module)
            walk.feed(thing.__code__)
            walk.feed(parts[2][1]["__globals__"])
        if parts is not NotImplemented or own:
            walk.all("beside", [thing.__defaults__, thing.__kwdefaults__, thing.__closure__, vars(thing)])
    elif parts is not NotImplemented and len(parts) > 2:
        walk.is_own |= own or not has_file(module)
        members = {name: value for name, value in parts[2][0].items() if name not in _NOT_CODE}
        walk.all("class", [parts[1][:-2], members])  # without what cloudpickle tells copies apart by


_NOT_CODE = {"__doc__", "_abc_impl", "__firstlineno__", "__static_attributes__"}


@functools.singledispatch
def _feed(value: object, walk: _Walk) -> None:
    """Any other object: a dataclass by its fields, else what a copy of it would be made from."""
    if dataclasses.is_dataclass(value):
        walk.code(type(value))
        for field in dataclasses.fields(value):
            walk.word(field.name)
            walk.feed(getattr(value, field.name))
        return
    kind = _name(type(value))
    try:
        parts = _reduced(value)
    except Exception as err:  # whatever an object of somebody's raises here, it cannot be read
        walk.cannot_read(value, f"an object of class {kind} cannot be read ({type(err).__name__}: {err})")
        return
    if isinstance(parts, str):  # a global of its module
        walk.word("named", kind, parts)
        if hasattr(value, "__qualname__"):
            walk.code(value)
        return
    walk.code(type(value))
    made, arguments, *rest = parts
    state, items, pairs = [*rest, None, None, None][:3]
    walk.all("object", [made, arguments, state, list(items or ()), dict(pairs or ())])


def _exactly(*kinds: type) -> Callable[[Callable[[Any, _Walk], None]], Callable[[Any, _Walk], None]]:
    """Registers how values of just these types are fed; an heir has code of its own and goes as an object."""

    def mark(feed: Callable[[Any, _Walk], None]) -> Callable[[Any, _Walk], None]:
        def feed_or_reduce(value: Any, walk: _Walk) -> None:
            (feed if type(value) in kinds else _feed.dispatch(object))(value, walk)

        for kind in kinds:
            _feed.register(kind, feed_or_reduce)
        return feed

    return mark


@_exactly(NoneType, str, bytes, bytearray, bool, int, float, complex, range, slice, EllipsisType, NotImplementedType)
def _feed_plain(value: object, walk: _Walk) -> None:
    walk.word(type(value).__name__, repr(value))


@_feed.register(np.ndarray)
def _feed_array(value: np.ndarray[Any, Any], walk: _Walk) -> None:
    walk.word("array", str(value.dtype.descr), str(value.shape))
    if value.dtype.hasobject:
        walk.feed(value.tolist())
    else:
        walk.raw(np.ascontiguousarray(value).data)


@_exactly(dict, MappingProxyType)
def _feed_mapping(value: Mapping[Any, Any], walk: _Walk) -> None:
    walk.word("mapping", str(len(value)))
    by_name = all(type(key) is str for key in value)
    for _, key in sorted((key if by_name else walk.apart(key), key) for key in value):
        walk.feed(key)
        walk.feed(value[key])


@_exactly(list, tuple)
def _feed_sequence(value: Sequence[Any], walk: _Walk) -> None:
    walk.all("sequence", value)


@_exactly(set, frozenset)
def _feed_set(value: set[Any], walk: _Walk) -> None:
    walk.word("set", *sorted(walk.apart(item) for item in value))


@_feed.register(type)
@_feed.register(FunctionType)
def _feed_class_or_function(value: Any, walk: _Walk) -> None:
    walk.code(value)


@_feed.register(ModuleType)
def _feed_module(value: ModuleType, walk: _Walk) -> None:
    walk.word("module", value.__name__)
    if walk._met is not None:
        walk.sources(value.__name__)


@_feed.register(CodeType)
def _feed_code_object(value: CodeType, walk: _Walk) -> None:
    walk.word("bytecode", value.co_name, value.co_code.hex(), value.co_exceptiontable.hex())
    counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
    names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
    walk.all("of", [counts, names, value.co_consts])
    for step in dis.get_instructions(value):
        if step.opname == "IMPORT_NAME":
            walk.sources(step.argval)


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
    """Installed distributions by the top-level modules they bring.

    As `importlib.metadata.packages_distributions`, which makes a path of each file and takes three times as long.
    """
    found: dict[str, set[str]] = {}
    for each in importlib.metadata.distributions():
        listed, about = each.read_text("RECORD"), _NAME.search(each.read_text("METADATA") or "")
        stated = (each.read_text("top_level.txt") or "").split()
        tops = stated or _top_levels(map(str, each.files or ()) if listed is None else listed.splitlines())
        for module in tops:
            found.setdefault(module, set()).add(about[1] if about else each.metadata["Name"])
    return {module: tuple(sorted(names)) for module, names in found.items()}


def _top_levels(files: Iterable[str]) -> set[str]:
    """The modules that lines of a RECORD, or paths, lie in."""
    return {place[1] for file in files if (place := _MODULE.match(file))}


_NAME = re.compile(r"^Name:\s*(\S+)", re.MULTILINE)
_MODULE = re.compile(r'"?([^/,"]+?)(?:/.*)?\.py"?(?:,|$)')


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
