"""Fingerprints: of a value, and of all code of the user's own that can decide what the value does.

Code that comes from a file counts by its whole module and by all that the module imports (`actors/sources.py`); what
was typed at a prompt counts by its code objects, constants, bases and the globals it refers to; a callable by its
closure, its defaults and what it wraps as well. Nothing that differs from one process to another goes in: no address,
no order of a set. Where something cannot be read, the fingerprint is like no other, so nothing is ever found under it,
and it says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from dpaudit.actors.sources import SourceReader, Sources, file_of


@dataclass(frozen=True)
class OwnCode:
    """Code of the user's, or a value of theirs that cannot be read.

    Attributes:
        label: Its name; numbered where several things of a plan share one.
        digest: SHA-256 of all that decides what it does.
        unseen: What of it could not be read, in words; then the digest is like no other.
    """

    label: str
    digest: str
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fingerprint:
    """What a value comes to.

    Attributes:
        digest: SHA-256 of its content and of the code behind it.
        own: The user's code among that.
    """

    digest: str
    own: tuple[OwnCode, ...] = ()


class Reading:
    """One look at all code: each class and each file is read once.

    Args:
        recorded: Digests by label to take instead of what is there now: to find what an earlier run left.
    """

    def __init__(self, recorded: Mapping[str, str] | None = None) -> None:
        self.sources = SourceReader()
        self._recorded = recorded or {}
        self._codes: dict[int, tuple[object, str, OwnCode | None]] = {}
        self._names: dict[str, int] = {}

    def code(self, thing: Any) -> tuple[str, OwnCode | None]:
        """Digest of a class or function, and the same as the user's code where it is that."""
        if id(thing) not in self._codes:
            walk = _CodeWalk(self)
            walk.root(thing)
            own = self._labelled(_name(thing), walk.digest(), walk.unseen) if walk.is_own or walk.unseen else None
            self._codes[id(thing)] = (thing, own.digest if own else walk.digest(), own)
        return self._codes[id(thing)][1:]

    def unreadable(self, value: object, why: str) -> OwnCode:
        """Stands for a value whose content cannot be read."""
        if id(value) not in self._codes:
            own = self._labelled(f"value of {_name(type(value))}", "", (why,))
            self._codes[id(value)] = (value, own.digest, own)
        own_of = self._codes[id(value)][2]
        assert own_of is not None
        return own_of

    def _labelled(self, name: str, digest: str, unseen: Iterable[str]) -> OwnCode:
        self._names[name] = self._names.get(name, 0) + 1
        label = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        words = tuple(sorted(set(unseen)))
        if words:
            digest = hashlib.sha256(os.urandom(32)).hexdigest()
        return OwnCode(label, self._recorded.get(label, digest), words)


_CURRENT: ContextVar[Reading | None] = ContextVar("the reading of code that is going on", default=None)


@contextlib.contextmanager
def one_reading(recorded: Mapping[str, str] | None = None, reading: Reading | None = None) -> Iterator[None]:
    """Inside the block every class and file is read once, however many fingerprints are taken; nested ones join.

    Args:
        recorded: Digests by label to take instead of what is there now.
        reading: One that was begun in an earlier block and goes on in this one.
    """
    if _CURRENT.get() is not None:
        yield
        return
    token = _CURRENT.set(reading or Reading(recorded))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def fingerprint(value: object) -> Fingerprint:
    """The fingerprint of a value made of dataclasses, containers, numbers, strings, enums, arrays and own objects."""
    walk = _ValueWalk(_CURRENT.get() or Reading())
    walk.feed(value)
    return Fingerprint(walk.digest(), tuple(walk.own.values()))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


class _Walk:
    """Feeds what it meets into one hash."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._hash = hashlib.sha256()
        self._above: dict[int, int] = {}  # what is being fed now, from the outside in

    def digest(self) -> str:
        return self._hash.hexdigest()

    def word(self, *words: str) -> None:
        """Text, with its length, so that no two sequences of words read the same."""
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def feed(self, value: object) -> None:
        """One value, whatever it is."""
        if id(value) in self._above:  # it contains itself
            self.word("above", str(len(self._above) - self._above[id(value)]))
            return
        self._above[id(value)] = len(self._above)
        try:
            _feed(value, self)
        finally:
            del self._above[id(value)]

    def all(self, kind: str, values: Sequence[object]) -> None:
        """Several, in order."""
        self.word(kind, str(len(values)))
        for value in values:
            self.feed(value)

    def code(self, thing: Any) -> None:
        """A class or a function."""
        raise NotImplementedError

    def cannot_read(self, value: object, why: str) -> None:
        """A value nothing can be said of."""
        raise NotImplementedError

    def apart(self, value: object) -> str:
        """The digest of a part by itself, to put parts without an order into one."""
        raise NotImplementedError


class _ValueWalk(_Walk):
    """The outside: values, with the code behind them by its digest."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading)
        self.own: dict[str, OwnCode] = {}

    def code(self, thing: Any) -> None:
        digest, own = self.reading.code(thing)
        self.word("code", digest)
        if own is not None:
            self.own[own.label] = own

    def cannot_read(self, value: object, why: str) -> None:
        own = self.reading.unreadable(value, why)
        self.word("unreadable", own.digest)
        self.own[own.label] = own

    def apart(self, value: object) -> str:
        walk = _ValueWalk(self.reading)
        walk.own = self.own
        walk._above = dict(self._above)
        walk.feed(value)
        return walk.digest()


class _CodeWalk(_Walk):
    """The inside of a class or function: all it refers to, each thing once."""

    def __init__(self, reading: Reading, met: dict[int, tuple[int, object]] | None = None) -> None:
        super().__init__(reading)
        self.unseen: list[str] = []
        self.is_own = False
        self._met = {} if met is None else met

    def root(self, thing: Any) -> None:
        self.code(thing)
        self.is_own = self.is_own or self._is_own(thing)

    def _is_own(self, thing: Any) -> bool:
        return not _built_in(thing) and (_typed(thing) or self.reading.sources.is_own(thing.__module__))

    def code(self, thing: Any) -> None:
        self.word(_name(thing))
        if id(thing) in self._met:
            self.word("met", str(self._met[id(thing)][0]))
            return
        self._met[id(thing)] = (len(self._met), thing)
        if _built_in(thing):
            self._modules([thing.__module__ or "builtins"])
            return
        if _typed(thing):
            self.is_own = True
            _feed_class(thing, self) if isinstance(thing, type) else _feed_function(thing, self)
            return
        self._modules([thing.__module__])
        if isinstance(thing, type):
            for base in thing.__bases__:
                self.code(base)
            if "<locals>" in thing.__qualname__:  # made by a function: what it was made with is not in the file
                for name, value in sorted(_members(thing)):
                    if isinstance(value, FunctionType):
                        self.word(name)
                        _feed_surroundings(value, self)
        else:
            _feed_surroundings(thing, self)

    def _modules(self, names: Iterable[str]) -> None:
        self._sources(self.reading.sources.sources(names))

    def _sources(self, found: Sources) -> None:
        for module, digest in found.files:
            self.is_own = True
            self.word("module", module, digest)
        for package, version in found.packages:
            self.word("package", package, version)
        self.unseen += found.unseen

    def module(self, names: Iterable[str]) -> None:
        """Modules that typed code imports or refers to."""
        self._modules(names)

    def cannot_read(self, value: object, why: str) -> None:
        self.unseen.append(why)

    def apart(self, value: object) -> str:
        walk = _CodeWalk(self.reading, dict(self._met))
        walk._above = dict(self._above)
        walk.feed(value)
        self.unseen += walk.unseen
        self.is_own |= walk.is_own
        return walk.digest()


def _built_in(thing: Any) -> bool:
    """Whether it is part of the interpreter or of a compiled module, and has no code to look at."""
    return not isinstance(thing, type | FunctionType) or thing.__module__ == "builtins"


def _typed(thing: Any) -> bool:
    """Whether its code is in no file: typed at a prompt, in a notebook's cell, or made from a string."""
    module = sys.modules.get(thing.__module__)
    if module is None or file_of(module) is None:
        return module is None or module.__name__ not in sys.builtin_module_names
    if thing.__module__ == "__main__" and (sys.flags.interactive or "ps1" in vars(sys)):
        return True
    functions = [thing] if isinstance(thing, FunctionType) else [value for _, value in _members(thing)]
    return any(
        function.__code__.co_filename.startswith("<") and function.__code__.co_filename != "<string>"
        for function in functions
        if isinstance(function, FunctionType) and function.__module__ == thing.__module__
    )


_NOT_CODE = {
    "__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__dataclass_fields__",
    "__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__",
    "__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__",
}  # fmt: skip
"""Of a class's members: what Python keeps there itself. The annotations decide a dataclass's fields, which are fed."""


def _members(kind: type) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(kind).items() if name not in _NOT_CODE]


def _feed_class(kind: type, walk: _CodeWalk) -> None:
    walk.word("class")
    for base in (*kind.__bases__, type(kind)):
        walk.code(base)
    for name, value in sorted(_members(kind), key=lambda member: member[0]):
        walk.word(name)
        walk.feed(value)


def _feed_function(function: FunctionType, walk: _CodeWalk) -> None:
    walk.word("function")
    walk.feed(function.__code__)
    _feed_surroundings(function, walk)
    codes = list(_nested(function.__code__))
    for name in sorted({name for code in codes for name in _globals(code)}):
        if name in function.__globals__:
            walk.word("global", name)
            walk.feed(function.__globals__[name])
    walk.module(sorted({name for code in codes for name in _imported(code)}))


def _feed_surroundings(function: FunctionType, walk: _Walk) -> None:
    """What a function has beside its code: defaults, closure, attributes (what it wraps is among them)."""
    walk.feed(function.__defaults__)
    walk.feed(function.__kwdefaults__)
    walk.feed(function.__closure__)
    walk.feed(vars(function))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _globals(code: CodeType) -> set[str]:
    return {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _imported(code: CodeType) -> Iterator[str]:
    base = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            base = step.argval
            yield base
        elif step.opname == "IMPORT_FROM":
            yield f"{base}.{step.argval}"


@functools.singledispatch
def _feed(value: object, walk: _Walk) -> None:
    """Any other object: a dataclass by its fields, else what a copy of it would be made from."""
    if dataclasses.is_dataclass(value):
        walk.code(type(value))
        for field in dataclasses.fields(value):
            walk.word(field.name)
            walk.feed(getattr(value, field.name))
        return
    try:
        parts: Any = value.__reduce_ex__(4)
    except Exception as err:  # whatever an object of somebody's raises here, it cannot be read
        kind = _name(type(value))
        walk.cannot_read(value, f"an object of class {kind} cannot be read ({type(err).__name__}: {err})")
        return
    if isinstance(parts, str):  # a global of a compiled module
        walk.word("named", type(value).__name__, parts)
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


@_feed.register(np.generic)
@_feed.register(np.dtype)
def _feed_numpy(value: Any, walk: _Walk) -> None:
    walk.word(type(value).__name__, repr(value))


@_feed.register(Enum)
def _feed_enum(value: Enum, walk: _Walk) -> None:
    walk.code(type(value))
    walk.feed(value.value)


@_feed.register(np.ndarray)
def _feed_array(value: np.ndarray[Any, Any], walk: _Walk) -> None:
    walk.word("array", str(value.dtype.descr), str(value.shape))
    if value.dtype.hasobject:
        walk.feed(value.tolist())
    else:
        walk._hash.update(np.ascontiguousarray(value).data)


@_exactly(dict, MappingProxyType)
def _feed_mapping(value: Mapping[Any, Any], walk: _Walk) -> None:
    walk.word("mapping", str(len(value)))
    for _, key in sorted((walk.apart(key), key) for key in value) if _mixed(value) else _by_name(value):
        walk.feed(key)
        walk.feed(value[key])


def _mixed(value: Mapping[Any, Any]) -> bool:
    return not all(type(key) is str for key in value)


def _by_name(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, key) for key in sorted(value)]


@_exactly(list)
def _feed_list(value: list[Any], walk: _Walk) -> None:
    walk.all("sequence", value)


@_exactly(tuple)
def _feed_tuple(value: tuple[Any, ...], walk: _Walk) -> None:
    walk.all("sequence", value)


@_exactly(set, frozenset)
def _feed_set(value: set[Any], walk: _Walk) -> None:
    walk.word("set", *sorted(walk.apart(item) for item in value))


@_feed.register(type)
@_feed.register(FunctionType)
def _feed_code(value: Any, walk: _Walk) -> None:
    walk.code(value)


@_feed.register(BuiltinFunctionType)
def _feed_builtin(value: BuiltinFunctionType, walk: _Walk) -> None:
    if value.__self__ is None or isinstance(value.__self__, ModuleType):
        walk.code(value)
    else:  # a method of a value, like `[].append`
        walk.word("method", value.__name__)
        walk.feed(value.__self__)


@_feed.register(WrapperDescriptorType)
@_feed.register(MethodDescriptorType)
@_feed.register(GetSetDescriptorType)
@_feed.register(MemberDescriptorType)
def _feed_descriptor(value: Any, walk: _Walk) -> None:
    walk.word("descriptor", value.__qualname__)


@_feed.register(MethodType)
def _feed_method(value: MethodType, walk: _Walk) -> None:
    walk.all("method", [value.__func__, value.__self__])


@_feed.register(staticmethod)
@_feed.register(classmethod)
def _feed_wrapped(value: Any, walk: _Walk) -> None:
    walk.word(type(value).__name__)
    walk.feed(value.__func__)


@_feed.register(property)
def _feed_property(value: property, walk: _Walk) -> None:
    walk.all("property", [value.fget, value.fset, value.fdel])


@_feed.register(functools.cached_property)
def _feed_cached_property(value: functools.cached_property[Any], walk: _Walk) -> None:
    walk.word("cached property")
    walk.feed(value.func)


@_feed.register(functools.partial)
def _feed_partial(value: functools.partial[Any], walk: _Walk) -> None:
    walk.all("partial", [value.func, value.args, value.keywords])


@_feed.register(type(functools.lru_cache(_name)))
def _feed_lru_cache(value: Any, walk: _Walk) -> None:
    walk.word("cached")
    walk.feed(value.__wrapped__)


@_feed.register(CellType)
def _feed_cell(value: CellType, walk: _Walk) -> None:
    try:
        content = value.cell_contents
    except ValueError:  # not yet filled
        walk.word("empty cell")
        return
    walk.feed(content)


@_feed.register(ModuleType)
def _feed_module(value: ModuleType, walk: _Walk) -> None:
    walk.word("module", value.__name__)
    if isinstance(walk, _CodeWalk):
        walk.module([value.__name__])


@_feed.register(CodeType)
def _feed_code_object(value: CodeType, walk: _Walk) -> None:
    walk.word("bytecode", value.co_name, value.co_code.hex(), value.co_exceptiontable.hex())
    counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
    names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
    walk.all("of", [counts, names, value.co_consts])
