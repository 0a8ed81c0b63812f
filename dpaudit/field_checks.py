"""Check arguments and fields against their types, once, with pydantic.

Numbers of NumPy, `fractions` and `decimal` are accepted as numbers. Text is not, since `"1e-5"` in Python is a mistake;
only specs may write a number as text. pydantic is imported by the first check, so `import dpaudit` and `dpaudit list`
work without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import cache, partial, wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

from dpaudit.errors import AuditError, InputError, SpecError, did_you_mean, shortened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pydantic import TypeAdapter, ValidationError

P = ParamSpec("P")
T = TypeVar("T")

MAX_DEPTH = 40  # levels of mappings and lists in a spec
INTEGER_LIMIT = 2**64  # Python does not format integers with very many digits
NestedType = Callable[..., Any]
"""Function from one or several dataclasses to pydantic's type of a spec's field that holds one of them."""


class InvalidValueError(ValueError):
    """Raised for a value of the wrong type; its message continues the name: ".epsilon must be a number, got 'x'"."""


def checked_argument(name: str, value: object, hint: Any) -> Any:
    """Return an argument converted to the type `hint`: numbers to Python's, lists to tuples.

    Raises: InputError, with `name`, for a value of another type.
    """
    if type(value) is hint and hint in (bool, float):  # avoids the import of pydantic
        return value
    try:
        return validate(_adapter(hint), value)
    except InvalidValueError as err:
        raise InputError(f"{name}{err}") from None


def checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with arguments that are converted to the types of their hints, or refused with their name.

    Arguments of the type `Any` or `object`, functions, which may be named by their path, further keywords (`**options`)
    and defaults are passed as they are.
    """
    signature = inspect.signature(function)
    kinds = {name: each.kind for name, each in signature.parameters.items()}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for pytest
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # Python's own message names the argument that is missing or unknown
            return function(*args, **kwargs)
        hints = type_hints(function)
        for name, value in bound.arguments.items():
            skipped = kinds[name] in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            skipped |= typing.get_origin(hints.get(name, Any)) is Callable
            if name in hints and not skipped and value is not signature.parameters[name].default:
                bound.arguments[name] = checked_argument(name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return call


def checked_methods(owner: type[T]) -> type[T]:
    """Return a class whose constructor and public methods check their arguments, as `checked_arguments`."""
    for name, value in list(vars(owner).items()):
        method = value.__func__ if isinstance(value, classmethod) else value
        if isinstance(method, types.FunctionType) and (name == "__init__" or not name.startswith("_")):
            checked = checked_arguments(method)
            setattr(owner, name, classmethod(checked) if isinstance(value, classmethod) else checked)
    return owner


@contextlib.contextmanager
def refused_if_failing(what: str) -> Iterator[None]:
    """Raise InputError in place of any exception inside the block, which calls an object of the user."""
    try:
        yield
    except AuditError:
        raise
    except Exception as err:  # an object of the user may raise anything
        raise InputError(f"{what} failed: {type(err).__name__}: {shortened(err)}") from err


def try_convert(value: object, hint: Any) -> tuple[bool, Any]:
    """Return True and the value converted to a type, or False and None."""
    try:
        return True, validate(_adapter(hint), value)
    except InvalidValueError:
        return False, None


def check_fields(part: Any) -> None:
    """Convert each field of a new dataclass to its type, or raise InputError; defaults are not checked."""
    hints = type_hints(part.__class__)
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value is not field.default:
            checked = checked_argument(field.name, value, hints[field.name])
            if checked is not value:
                object.__setattr__(part, field.name, checked)


def whole_numbers(name: str, values: Any) -> NDArray[np.int64]:
    """Return whole numbers as an array: one number, a list, an array or a tensor. Raises: InputError for others."""
    import numpy as np

    with refused_if_failing(f"reading {name}"):
        if isinstance(values, list | tuple):
            return np.array(list(map(operator.index, values)), np.int64)
        array = (
            np.asarray(values.detach().cpu() if hasattr(values, "detach") else values) if _is_array(values) else None
        )
        if array is not None and (array.dtype.kind in "iu" or not array.size):
            return array.astype(np.int64)
    raise InputError(f"{name} must be whole numbers, got {_safe_repr(values)}")


def _is_array(values: object) -> bool:
    """True for numbers, arrays, tensors and columns; other objects may pretend to be sequences without an end."""
    return is_number(values) or hasattr(type(values), "__array__")


def is_number(value: object) -> bool:
    """True for a real number; booleans and NumPy time spans are not numbers."""
    dtype = getattr(value, "dtype", None)
    real = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    return real and (dtype is None or dtype.kind in "iuf")


def checked_path(name: str, value: object) -> str:
    """Return a path or URI as text; raise InputError for values that cannot name a file."""
    try:
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    except Exception:  # a class of the user may raise anything
        text = None
    if not isinstance(text, str) or "\0" in text or not _is_utf8(text):
        raise InputError(f"{name} must be a path or a URI as text, got {_safe_repr(value)}")
    return str.__str__(text)


def require_yaml_values(value: object, at: str, *, depth: int = 0) -> None:
    """Refuse text, numbers and keys that YAML cannot hold, at any depth below `at`; other objects pass."""
    if depth > MAX_DEPTH:
        raise SpecError(f"{at} must be at most {MAX_DEPTH} levels deep")
    if isinstance(value, str) and not _is_utf8(value):
        raise SpecError(f"{at} must hold text that can be written as UTF-8, got {shortened(repr(value))}")
    if isinstance(value, int) and abs(value) >= INTEGER_LIMIT:
        raise SpecError(f"{at} must hold whole numbers of at most 64 bits, got {shortened(value)}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise SpecError(f"the name of a field must be text, got {_safe_repr(name)}")
            require_yaml_values(name, at, depth=depth)
            require_yaml_values(inner, shortened(f"{at}.{name}"), depth=depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            require_yaml_values(inner, at, depth=depth + 1)


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(pydantic_type(without_aliases(hint)))


def validate(adapter: TypeAdapter[Any], value: object, names: Collection[str] = ()) -> Any:
    """Return `value` converted to the adapter's type.

    Args:
        names: Allowed fields of a mapping, for the message.
    Raises: InvalidValueError for an invalid value. An AuditError from the value's class passes.
    """
    from pydantic import ValidationError

    try:
        return adapter.validate_python(value)
    except ValidationError as err:
        raise InvalidValueError(_error_message(err, names)) from None
    except AuditError:
        raise
    except Exception as err:  # an object of the user may raise anything
        raise InvalidValueError(f" cannot be read, got {_safe_repr(value)}") from err


FORMER_FIELDS = {
    "cpus_per_worker": "resources.cpus",
    "gpus_per_worker": "resources.gpus",
    "trial_workers": "run.workers",
}
"""New names of fields by the names of earlier versions, for error messages."""
_BRANCH = "|"  # marks the types of a union in pydantic's error locations


def _error_message(error: ValidationError, names: Collection[str]) -> str:
    """Return pydantic's first error as a message that continues the name of the value."""
    missing, misplaced = [], list[tuple[str, Any, Any]]()
    for detail in error.errors(include_url=False):
        *_, last = location = [key for key in detail["loc"] if key != _BRANCH] or [""]
        if detail["type"] == "extra_forbidden":
            if last in FORMER_FIELDS:
                return f".{last} is now called {FORMER_FIELDS[last]}; use that name"
            return f" has no field {last!r}; it has {', '.join(names) or 'none'}{did_you_mean(str(last), names)}"
        if detail["type"] == "missing":
            missing.append(str(last))
            continue
        place = "".join(f"[{key}]" if type(key) is int else f".{key}" for key in location if key != "")
        requirement = detail.get("ctx", {}).get("error") or detail["msg"].removeprefix("Input should be ")
        misplaced.append((place, requirement, detail["input"]))
    for place, requirement, _ in misplaced:
        if isinstance(requirement, InvalidValueError | AuditError):
            return f"{place}{': ' if isinstance(requirement, AuditError) else ''}{requirement}"
    if not misplaced:
        return f" needs {', '.join(missing)}"
    first, _, value = misplaced[0]
    musts = dict.fromkeys(_PLAIN_WORDS.get(str(must), str(must)) for place, must, _ in misplaced if place == first)
    return f"{first} must be {' or '.join(musts)}, got {_safe_repr(value)}"


_PLAIN_TYPES = {"Collection": "a list", "ndarray": "an array", "Iterable": "something to iterate over"}
_PLAIN_WORDS = {"callable": "a function", "a valid dictionary": "a mapping"}


@dataclasses.dataclass(frozen=True)
class ParsedBy:
    """Annotation of a type with a parser and a JSON schema for pydantic.

    Attributes:
        parse: Converts a value of a spec; raises ValueError whose message completes "must be".
        schema: Returns the JSON schema.
    """

    parse: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_plain_validator_function

        return no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return self.schema()


def pydantic_type(hint: Any, nested: NestedType | None = None) -> Any:
    """Return pydantic's type for the annotation `hint`, with dpaudit's rules.

    Args:
        nested: Function for dataclasses in specs, where text may stand for a number. None for values from Python.
    """
    from pydantic import BeforeValidator, Field, Tag, WithJsonSchema

    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint in _SCALARS:
        parse, schema = _SCALARS[hint]
        return Annotated[Any, ParsedBy(partial(parse, in_spec=nested is not None), lambda: schema)]
    if origin in (types.UnionType, typing.Union):
        options = tuple(option for option in inner if option is not type(None))
        branches = tuple(Annotated[pydantic_type(option, nested), Tag(_BRANCH)] for option in options)
        union: Any = typing.Union[branches]  # noqa: UP007
        if nested and sum(map(dataclasses.is_dataclass, options)) > 1:
            union = nested(*options)
        elif len(options) > 1:
            union = Annotated[union, Field(union_mode="left_to_right")]
        return union | None if len(options) < len(inner) else union
    if origin in (tuple, list, Sequence, dict, Mapping):
        shape: Any = {Sequence: list, Mapping: dict}.get(origin, origin)
        items = tuple(item if item is ... else pydantic_type(item, nested) for item in inner)
        typed = shape[items] if inner else shape
        return typed if shape is dict else Annotated[typed, BeforeValidator(_require_list)]
    if nested and dataclasses.is_dataclass(hint):
        return nested(hint)
    if origin in (Any, typing.Literal, Callable) or not isinstance(origin, type):
        return hint
    if issubclass(origin, Enum):
        return Annotated[hint, WithJsonSchema({"enum": [member.value for member in origin]})]
    return (
        Annotated[hint, WithJsonSchema({})]
        if nested
        else Annotated[Any, ParsedBy(partial(_require_instance, origin), dict)]
    )


def _require_list(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError("a list")
    return value


def _require_instance(kind: type, value: object) -> object:
    if not isinstance(value, kind):
        raise ValueError(_PLAIN_TYPES.get(kind.__name__, f"of the type {kind.__name__}"))
    return value


def _parse_number(value: Any, *, in_spec: bool) -> float:
    if in_spec and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    if is_number(value):
        with contextlib.suppress(ValueError, OverflowError):  # a signalling NaN, or beyond the largest float
            number = float(value)
            if not math.isinf(number) or value == number:
                return value if type(value) is int and not in_spec else number
    raise ValueError("a number")


def _parse_integer(value: Any, *, in_spec: bool) -> int:
    if in_spec and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = int(value)
    if in_spec and type(value) is float and value.is_integer():
        value = int(value)
    if not (is_number(value) and isinstance(value, Integral)):
        raise ValueError("a whole number")
    if abs(int(value)) >= INTEGER_LIMIT:
        raise ValueError("a whole number of at most 64 bits")
    return int(value)


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _parse_boolean(value: Any, *, in_spec: bool) -> bool:
    if in_spec and type(value) in (str, int) and str(value).lower() in _BOOLEANS:
        return _BOOLEANS[str(value).lower()]
    kind = type(value)
    if kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return bool(value)
    raise ValueError("True or False")


def _parse_text(value: Any, *, in_spec: bool) -> str:
    if not (isinstance(value, str) and _is_utf8(value)):
        raise ValueError("text that UTF-8 can write")
    return str.__str__(value)


_SCALARS: dict[Any, tuple[Callable[..., Any], dict[str, Any]]] = {
    # in YAML 1.1, 1e-5 is text
    float: (_parse_number, {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[-+]?([.]?inf|[0-9].*)$"}]}),
    int: (_parse_integer, {"type": "integer"}),
    bool: (_parse_boolean, {"type": "boolean"}),
    str: (_parse_text, {"type": "string"}),
}


def _safe_repr(value: object) -> str:
    """Return a plain value as text; of other values only the type, since they may hold private data."""
    if isinstance(value, str):
        return shortened(repr(value))
    if isinstance(value, type):
        return shortened(f"the class {value.__name__}")
    plain = isinstance(value, bytes | None) or (isinstance(value, Real | Decimal) and not isinstance(value, Collection))
    return shortened(value if plain else f"a value of the type {type(value).__name__}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@functools.cache
def type_hints(owner: Any) -> dict[str, Any]:
    """Return the type hints of a class or function by name, without aliases."""
    return {name: without_aliases(hint) for name, hint in typing.get_type_hints(owner).items()}


def without_aliases(hint: Any) -> Any:
    """Return the type hint `hint` with each alias of a `type` statement replaced by its type, at any depth."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    alias = hint if origin is None else origin
    if not isinstance(alias, type) and hasattr(alias, "__value__"):
        return without_aliases(alias.__value__[arguments] if arguments else alias.__value__)
    replaced = tuple(map(without_aliases, arguments))
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    return typing.Union[replaced] if origin is types.UnionType else origin[replaced]  # noqa: UP007  # of any length
