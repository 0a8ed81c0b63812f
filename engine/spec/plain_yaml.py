"""YAML of a stranger as plain values: text, numbers, booleans, nothing, lists and mappings; within stated limits."""

from __future__ import annotations

import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from dpaudit.errors import SpecError, shortened

MAX_CHARACTERS = 200_000
MAX_VALUES = 50_000
"""With every alias written out."""
MAX_DEPTH = 40
MAX_DIGITS = 18
"""Of a whole number: what fits into 64 bits."""

_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises: SpecError, one sentence, for a file that cannot be read, is no YAML, or goes beyond the limits.
    """
    text = read_text(path)
    try:
        return plain_values(text)
    except yaml.YAMLError as err:
        raise SpecError(f"{path} must be YAML: {shortened(' '.join(str(err).split()), 400)}") from err
    except SpecError as err:
        raise SpecError(f"{path}: {err}") from err


def read_text(path: Path) -> str:
    """The text of a YAML file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except (OSError, ValueError) as err:
        why = "it is not UTF-8" if isinstance(err, UnicodeDecodeError) else getattr(err, "strerror", None) or err
        raise SpecError(f"{shortened(path)} must be a readable spec file: {why}") from err
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"{path} must have at most {MAX_CHARACTERS:,} characters")
    return text


def plain_values(text: str) -> Any:
    """The value that YAML text stands for.

    Raises: SpecError for what is beyond the limits; yaml.YAMLError for what is no YAML.
    """
    _check_depth(text)  # before anything that calls itself for each level
    loader = _PlainLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def in_yaml(value: Any, *, flow: bool = False) -> str:
    """Return plain values as YAML text; with `flow` a value on one line, without a line break behind it."""
    try:
        if flow:
            return _dumped([value], default_flow_style=True, width=math.inf).strip()[1:-1]
        return _dumped(value)
    except yaml.representer.RepresenterError as err:
        kind = type(err.args[-1]).__name__
        raise SpecError(f"a spec must hold what can be written in words, got an object of the type {kind}") from err
    except ValueError as err:  # Python writes out no integer of more than 4,300 digits
        raise SpecError("a spec must hold numbers that can be written out, got one of too many digits") from err
    except RecursionError as err:
        raise SpecError("a spec must not hold an object that holds itself") from err


def _dumped(value: Any, **style: Any) -> str:
    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, **style))
    if "\x85" in text:  # a line break to YAML, which PyYAML writes as it is: it would be read back as another one
        return str(yaml.safe_dump(value, sort_keys=False, **style))
    return text


def yaml_value(text: str) -> Any:
    """The value that a word of the command line stands for: a name, or `{name: ..., fields}`."""
    try:
        return plain_values(text)
    except yaml.YAMLError as err:
        raise SpecError(f"{shortened(text)} must be a name or {{name: ..., fields}} in YAML") from err


class _PlainLoader(yaml.SafeLoader):
    """Refuses a key that is given twice (else the last one wins, unseen) and keys that are no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self._check_keys(node)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS + 1:
            raise SpecError(f"a whole number must have at most {MAX_DIGITS} digits, got {shortened(node.value)}")
        try:
            return int(super().construct_yaml_int(node))
        except ValueError as err:  # "0x", "1:60"
            raise SpecError(f"{_place(node)}: must be a number, got {node.value!r}") from err

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise SpecError(f"{_place(key)}: a name before a colon must be text, got {shortened(key.value)}")
            if key.value in seen:
                raise SpecError(f"{_place(key)}: {shortened(key.value)!r} is given twice; keep one of them")
            seen.add(key.value)


# A date stays the words that were written: no field of a spec is one.
_PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in rules if tag in _TAGS]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SpecError(f"a spec must be at most {MAX_DEPTH} levels deep")


def _check_size(root: yaml.Node) -> None:
    """Refuses an anchor that refers to itself, and aliases that write out to more than a spec may hold."""
    measured: dict[int, tuple[int, int]] = {}  # values and levels of each node

    def measure(node: yaml.Node, above: frozenset[int]) -> tuple[int, int]:
        if id(node) in above:
            raise SpecError(f"{_place(node)}: an anchor must not hold an alias of itself")
        if node.tag not in _TAGS:
            raise SpecError(f"{_place(node)}: a spec must hold plain values, got the tag {shortened(node.tag)}")
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= sign <= "\udfff" for sign in node.value):
            raise SpecError(f"{_place(node)}: text must hold whole signs, got half of one in {shortened(node.value)}")
        if id(node) not in measured:
            inner = [measure(child, above | {id(node)}) for child in _children(node)]
            values, levels = 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
            if values > MAX_VALUES:
                raise SpecError(f"a spec must hold at most {MAX_VALUES:,} values, its aliases written out")
            if levels > MAX_DEPTH + 1:
                raise SpecError(f"a spec must be at most {MAX_DEPTH} levels deep, its aliases written out")
            measured[id(node)] = values, levels
        return measured[id(node)]

    measure(root, frozenset())


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
