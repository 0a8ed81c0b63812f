"""Build the parts of a spec: pydantic checks the fields of the class that a spec names, nested parts first.

`{name: lp-1st, epsilon: 1, model: {name: mlp}}` becomes an instance of the registered class, which is a frozen
dataclass. pydantic needs only its annotations and the metadata of its fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, Required, TypeVar

from dpaudit.consent import require_code, require_file
from dpaudit.errors import AuditError, DataError, InputError, SpecError, UnknownNameError, shortened
from dpaudit.estimators.selection import SELECTION_NAMES
from dpaudit.field_checks import InvalidValueError, ParsedBy, pydantic_type, require_yaml_values, type_hints, validate
from dpaudit.locations import has_location, import_object, location
from dpaudit.registry import PACKAGES, catalogue, load

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def build(kind: str, spec: object, *, location: str = "", defaults: Mapping[str, object] | None = None) -> Any:
    """Return the part that a spec describes.

    Args:
        location: Place in the spec file, for messages: "audits[2].mechanism".
        defaults: Values of fields that the part has and the spec omits.
    Raises: SpecError with the place, the value and the options.
    """
    if isinstance(spec, str | Mapping):
        require_yaml_values(spec, location or kind)
    with _located(location or kind):
        return _build_part(kind, spec, defaults)


@contextlib.contextmanager
def _located(location: str) -> Iterator[None]:
    """Raise an InvalidValueError of the block as a SpecError that begins with the place."""
    try:
        yield
    except InvalidValueError as err:
        raise SpecError(f"{location}{err}".removeprefix(".")) from err


def _build_part(kind: str, spec: object, defaults: Mapping[str, object] | None = None) -> Any:
    """Return the part that a spec describes, or raise InvalidValueError."""
    if isinstance(spec, int | float | list | tuple):
        raise InvalidValueError(f" must be a name or a mapping with `name`, got {shortened(spec)}")
    if not isinstance(spec, str | Mapping):
        if spec is None or type(spec).__dict__.get("registered_kind") == kind or _has_methods(kind, type(spec)):
            return spec
        raise InvalidValueError(
            f" must be a name, a mapping with `name`, or an object with {_method_names(kind)}, got "
            + (f"the class {spec.__name__}; create an instance" if isinstance(spec, type) else type(spec).__name__)
        )
    fields = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise InvalidValueError(f" must have a `name`, one of {', '.join(catalogue(kind))}; got {shortened(spec)}")
    try:
        part_class = named_part(kind, name)
    except UnknownNameError as err:
        raise InvalidValueError(f": {err}") from err
    return _build_instance(part_class, fields, defaults)


def named_part(kind: str, name: str) -> Any:
    """Return the class or factory that a spec names: a registered name, or "module:Class"."""
    if ":" in name:
        return user_part(kind, name)
    entry = catalogue(kind).get(name)
    if entry is not None and entry.module.partition(".")[0] != "dpaudit":  # an entry point of another package
        require_code(f"{entry.module}:{entry.attribute}")
    return load(kind, name)


_KIND_METHODS: Mapping[str, tuple[str, ...]] = {
    "mechanism": ("claim", "release", "fit"),
    "model": ("fit",),
    "base-model": ("load",),
    "embedder": ("embed",),
    "language-model": ("complete",),
    "text-trainer": ("train",),
    "game": ("play",),
    "attack": ("score",),
    "text-attack": ("score",),
    "canary": ("choose", "gradient"),
    "text-canary": ("draw",),
    "poisoning": ("worlds", "candidates"),
    "adversary": ("craft",),
    "proxy": ("predictor",),
    "estimator": ("tally", "find"),
    "curve": ("miss_rate",),
    "data": ("load", "sample"),
}
"""Methods by kind; a class is a part of the kind if it has at least one of them."""


def user_part(kind: str, name: str) -> Any:
    """Return the user's class, or their factory marked with `@register(kind, ...)`, that "module:name" names.

    Everything else is refused, since a spec must not be able to call arbitrary functions.
    """
    part = import_object(name)
    if isinstance(part, type):
        if _has_methods(kind, part):
            return part
    elif isinstance(part, types.FunctionType) and vars(part).get("registered_kind") == kind:
        return part
    raise UnknownNameError(
        f"{name!r} must name a class with {_method_names(kind)}, or a function marked with "
        f'`@register("{kind}", NAME, source=...)`'
    )


def _has_methods(kind: str, part: type) -> bool:
    return any(callable(vars(base).get(method)) for base in part.__mro__ for method in _KIND_METHODS[kind])


def _method_names(kind: str) -> str:
    return "a method " + " or ".join(f"`{method}`" for method in _KIND_METHODS[kind])


def build_dataclass(part_class: Any, fields: Mapping[str, object], *, location: str) -> Any:
    """Return an instance of a dataclass from plain values, each checked against its field's type.

    Raises: SpecError with the place.
    """
    with _located(location):
        return _build_instance(part_class, fields)


def checked_value(part_class: Any, name: str, value: object, *, at: str) -> Any:
    """Return the value of one field of a dataclass, converted to its type; `at` is the dataclass's location."""
    with _located(at):
        return validate(_fields_adapter(part_class, (name,)), {name: value}, init_fields(part_class))[name]


def _build_instance(part_class: Any, fields: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> Any:
    if not hasattr(part_class, "__dataclass_fields__"):  # a class or factory of the user
        return _construct(part_class, fields)
    names = init_fields(part_class)
    filled = {name: value for name, value in (defaults or {}).items() if name in names} | dict(fields)
    return _construct(part_class, validate(_fields_adapter(part_class), filled, names))


def _construct(part_class: Any, values: Mapping[str, object]) -> Any:
    try:
        return part_class(**values)
    except (InputError, DataError) as err:
        raise InvalidValueError(f": {err}") from err
    except AuditError:
        raise
    except Exception as err:  # a class of the user may raise anything
        why = f"{type(err).__name__}: {shortened(err)}"
        raise InvalidValueError(
            f": {part_class.__qualname__} cannot be created from {shortened(dict(values))}: {why}"
        ) from err


def init_fields(part_class: Any) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass that a spec may set, by name, in the order of its constructor."""
    fields = sorted(dataclasses.fields(part_class), key=lambda field: bool(field.kw_only))
    return {field.name: field for field in fields if field.init}


@cache
def _fields_adapter(part_class: Any, only: tuple[str, ...] | None = None) -> TypeAdapter[dict[str, Any]]:
    """Return the type adapter that checks the fields of a dataclass in a spec, or `only` some of them."""
    from pydantic import Field, TypeAdapter
    from typing_extensions import TypedDict

    hints, descriptions = type_hints(part_class), field_descriptions(part_class)
    typed: dict[str, Any] = {}
    for name, field in init_fields(part_class).items():
        if only is None or name in only:
            is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            marker: Any = Required if is_required else NotRequired
            typed[name] = marker[Annotated[_field_type(field, hints[name]), Field(description=descriptions.get(name))]]
    typed_dict: Any = TypedDict
    fields = typed_dict(part_class.__name__, typed)
    fields.__pydantic_config__ = {"extra": "forbid", "arbitrary_types_allowed": True}
    return TypeAdapter(fields)


def _field_type(field: dataclasses.Field[Any], hint: Any) -> Any:
    """Return pydantic's type of a field in a spec."""
    from pydantic import BeforeValidator

    kind = field.metadata.get("kind")
    if kind in PACKAGES:
        part = Annotated[Any, ParsedBy(partial(_build_part, kind), lambda: {PART_KEY: kind})]
        return part | None if field.default is None or type(None) in typing.get_args(hint) else part
    typed = pydantic_type(hint, _nested_type)
    return Annotated[typed, BeforeValidator(_require_consent)] if field.metadata.get("holds") == "path" else typed


def _require_consent(value: object) -> object:
    if isinstance(value, str):
        require_file(value)
    return value


def _nested_type(*parts: Any) -> Any:
    if len(parts) > 1:  # the class with the field parses the value itself
        return Annotated[Any, ParsedBy(lambda value: value, partial(_union_schema, parts))]
    return Annotated[Any, ParsedBy(partial(_from_mapping, parts[0]), partial(fields_schema, parts[0]))]


def _from_mapping(part_class: Any, value: object) -> Any:
    if isinstance(value, Mapping):
        return _build_instance(part_class, value)
    if isinstance(value, part_class):
        return value
    raise ValueError(f"a mapping with fields among {', '.join(init_fields(part_class))}")


PART_KEY: Final = "$part"  # in a JSON schema: stands for a part of the kind
Schema = dict[str, Any]


def fields_schema(part_class: Any) -> Schema:
    """Return the JSON schema of the fields of a dataclass in a spec."""
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema = _fields_adapter(part_class).json_schema(schema_generator=Untitled)
    return {key: value for key, value in schema.items() if key != "title"}


def _union_schema(parts: Sequence[Any]) -> Schema:
    schemas = [fields_schema(part) for part in parts]
    named = [{"type": "object", "properties": {"name": {}, **schema["properties"]}} for schema in schemas]
    return {"anyOf": [*named, {"type": "string"}]}


def field_descriptions(part: type) -> dict[str, str]:
    """Return the texts of the `Attributes:` sections of a class and its bases, by field; the class comes first."""
    descriptions: dict[str, str] = {}
    for base in part.__mro__:
        section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        if section:
            for name, text in re.findall(r"^    (\w+): ((?:.*\n?)(?:^ {5,}.*\n?)*)", section[1], re.MULTILINE):
                descriptions.setdefault(name, " ".join(text.split()))
    return descriptions


T = TypeVar("T")


def with_absolute_paths(part: T) -> T:
    """Return a data set or another part of dpaudit with absolute paths, at any depth.

    Paths that begin with `~` or a `$VARIABLE` are unchanged.
    """
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        new = with_absolute_paths(value)
        if field.name == "path" and isinstance(value, str) and value and not value.startswith(("~", "$")):
            new = value if "://" in value or os.path.isabs(value) else os.path.abspath(value)
        if new is not value and field.init:
            changes[field.name] = new
    return dataclasses.replace(part, **changes) if changes else part


_SELECTIONS: dict[object, str] = {selection: name for name, selection in SELECTION_NAMES.items()}


def describe(value: object) -> Any:
    """Return the spec from which `build` creates the value, without defaults."""
    from dpaudit.claims import Claim  # loads NumPy, which a command that only lists names does not need

    if isinstance(value, Claim):
        words: dict[str, Any] = {"epsilon": value.epsilon}
        if value.delta:
            words["delta"] = value.delta
        if value.relation != Claim.relation:
            words["relation"] = value.relation.value
        if not value.is_point:
            words["curve"] = describe(value.curve)
        return words
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: describe(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init and not _is_default(field, getattr(value, field.name))
        }
        name = _name(value)
        return {"name": name, **fields} if name else fields
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if has_location(value):
        return location(value)
    if hasattr(value, "__dict__"):  # an object of the user
        return {"name": _name(value), **describe(vars(value))}
    return value.item() if getattr(value, "shape", None) == () else value  # type: ignore[attr-defined]  # of NumPy


def _name(value: object) -> str:
    registered = type(value).__dict__.get("registered_name") or _SELECTIONS.get(type(value))
    if isinstance(registered, str):
        return registered
    inside = type(value).__module__.startswith("dpaudit.")
    return "" if inside else f"{type(value).__module__}:{type(value).__qualname__}"


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return False
    if isinstance(value, float) and isinstance(default, float) and math.isnan(value):
        return math.isnan(default)
    return type(value) is type(default) and bool(value == default)


def call_text(value: Any) -> str:
    """Return a part of an audit as `name(field=value, ...)`, without defaults."""
    words = describe(value)
    return _as_call(words) if isinstance(words, Mapping) else str(words)


def _as_call(words: Mapping[str, Any]) -> str:
    fields = ", ".join(
        f"{key}={_as_call(value) if isinstance(value, Mapping) else value}"
        for key, value in words.items()
        if key != "name"
    )
    name = words.get("name", "")
    return f"{name}({fields})" if fields else str(name)
