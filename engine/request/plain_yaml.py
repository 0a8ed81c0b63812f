"""YAML of a stranger as plain values: text, numbers, booleans, nothing, lists and mappings; within stated limits."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpaudit.errors import SpecError, shortened
from dpaudit.plain_files import open_to_read

MAX_CHARACTERS = 200_000
_MAX_BYTES = 4 * MAX_CHARACTERS  # of so many characters in UTF-8
MAX_VALUES = 50_000
"""With every alias written out."""
MAX_DEPTH = 40
MAX_DIGITS = 18
"""Of a whole number: what fits into 64 bits."""

_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
)


@dataclass(frozen=True)
class YamlFile:
    """A YAML file that was read once: its hash, its text and its value are of the same bytes.

    Attributes:
        path: Where the file was read.
        content: Its bytes, or one byte more than a file may have.
    """

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> YamlFile:
        """Read a file of the user's own, which may be a link or a pipe.

        Raises: SpecError, one sentence, for a file that cannot be read.
        """
        try:
            with path.open("rb") as file:
                return cls(path, file.read(_MAX_BYTES + 1))
        except (OSError, ValueError) as err:
            raise _unreadable(path, getattr(err, "strerror", None) or err) from err

    @classmethod
    def read_plain(cls, path: Path) -> YamlFile:
        """Read a file of a folder that may be a stranger's; links are not followed.

        Raises: SpecError, one sentence, for a file that cannot be read; RunError for one that is no plain file.
        """
        try:
            with open_to_read(path) as file:
                return cls(path, file.read(_MAX_BYTES + 1))
        except (OSError, ValueError) as err:
            raise _unreadable(path, getattr(err, "strerror", None) or err) from err

    @property
    def digest(self) -> str:
        """SHA-256 of the content in hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def text(self) -> str:
        """The text, with line breaks as Python has them.

        Raises: SpecError, one sentence, for a file that is no UTF-8 or too long.
        """
        too_long = len(self.content) > _MAX_BYTES
        try:
            text = "" if too_long else io.TextIOWrapper(io.BytesIO(self.content), encoding="utf-8").read()
        except UnicodeDecodeError as err:
            raise _unreadable(self.path, "it is not UTF-8") from err
        if too_long or len(text) > MAX_CHARACTERS:
            raise SpecError(f"{self.path} must have at most {MAX_CHARACTERS:,} characters")
        return text

    def value(self) -> Any:
        """The plain value that the file stands for.

        Raises: SpecError, one sentence, for a file that is no YAML or goes beyond the limits.
        """
        text = self.text
        try:
            return parse_yaml(text)
        except yaml.YAMLError as err:
            raise SpecError(f"{self.path} must be YAML: {shortened(' '.join(str(err).split()), 400)}") from err
        except SpecError as err:
            raise SpecError(f"{self.path}: {err}") from err


def _unreadable(path: Path, why: object) -> SpecError:
    return SpecError(f"{shortened(path)} must be a readable spec file: {why}")


def parse_yaml(text: str) -> Any:
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


def to_yaml(value: Any, *, flow: bool = False) -> str:
    """Return plain values as YAML text; with `flow` a value on one line, without a line break behind it."""
    try:
        if flow:
            return _dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]
        return _dump(value)
    except yaml.representer.RepresenterError as err:
        kind = type(err.args[-1]).__name__
        raise SpecError(f"a spec must hold what can be written in words, got an object of the type {kind}") from err
    except ValueError as err:  # Python writes out no integer of more than 4,300 digits
        raise SpecError("a spec must hold numbers that can be written out, got one of too many digits") from err
    except RecursionError as err:
        raise SpecError("a spec must not hold an object that holds itself") from err


def _dump(value: Any, **style: Any) -> str:
    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, **style))
    if "\x85" in text:  # a line break to YAML, which PyYAML writes as it is: it would be read back as another one
        return str(yaml.safe_dump(value, sort_keys=False, **style))
    return text


def parse_yaml_argument(text: str) -> Any:
    """The value that a word of the command line stands for: a name, or `{name: ..., fields}`."""
    try:
        return parse_yaml(text)
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
        names = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise SpecError(f"{_place(key)}: a name before a colon must be text, got {shortened(key.value)}")
            if key.value in names:
                raise SpecError(f"{_place(key)}: {shortened(key.value)!r} is given twice; keep one of them")
            names.add(key.value)


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
