"""Parse untrusted YAML into plain values (text, numbers, booleans, None, lists, mappings), within limits."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from dpaudit.errors import SpecError, shortened
from dpaudit.plain_files import open_to_read

MAX_CHARACTERS = 200_000
_MAX_BYTES = 4 * MAX_CHARACTERS  # a character has at most 4 bytes in UTF-8
MAX_VALUES = 50_000
"""Maximum number of values, with every alias expanded."""
MAX_DEPTH = 40
MAX_DIGITS = 18
"""Maximum digits of a whole number, so that it fits into 64 bits."""

_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "merge")
)


@dataclass(frozen=True)
class YamlFile:
    """A YAML file that was read once, so that its hash, text and value belong to the same bytes.

    Attributes:
        path: Path of the file.
        content: Bytes of the file, cut one byte above the limit.
    """

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> YamlFile:
        """Read a file of the user, which may be a link or a pipe.

        Raises: SpecError for a file that cannot be read.
        """
        return cls._read(path, lambda: path.open("rb"))

    @classmethod
    def read_plain(cls, path: Path) -> YamlFile:
        """Read a file of an untrusted folder without following links.

        Raises: SpecError for a file that cannot be read; RunError for a link or a special file.
        """
        return cls._read(path, lambda: open_to_read(path))

    @classmethod
    def _read(cls, path: Path, open_file: Callable[[], IO[bytes]]) -> YamlFile:
        try:
            with open_file() as file:
                return cls(path, file.read(_MAX_BYTES + 1))
        except (OSError, ValueError) as err:
            raise _unreadable(path, getattr(err, "strerror", None) or err) from err

    @property
    def digest(self) -> str:
        """SHA-256 of the content in hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def text(self) -> str:
        """Text of the file, with line breaks converted to "\\n".

        Raises: SpecError for a file that is not UTF-8 or too long.
        """
        too_long = len(self.content) > _MAX_BYTES
        try:
            text = "" if too_long else io.TextIOWrapper(io.BytesIO(self.content), encoding="utf-8").read()
        except UnicodeDecodeError as err:
            raise _unreadable(self.path, "it is not UTF-8. Save it as UTF-8") from err
        if too_long or len(text) > MAX_CHARACTERS:
            raise SpecError(f"{self.path} must have at most {MAX_CHARACTERS:,} characters")
        return text

    def value(self) -> Any:
        """Parse the file into plain values.

        Raises: SpecError for a file that is not YAML or exceeds the limits.
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
    """Parse YAML text into plain values.

    Raises: SpecError for text that exceeds the limits; yaml.YAMLError for text that is not YAML.
    """
    depth = 0  # checked first, since the other functions recurse
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SpecError(f"a spec must be at most {MAX_DEPTH} levels deep")
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
    """Return plain values as YAML text; with `flow` on one line without a final line break."""
    try:
        if flow:
            return _dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]
        return _dump(value)
    except yaml.representer.RepresenterError as err:
        kind = type(err.args[-1]).__name__
        raise SpecError(
            f"a spec must hold text, numbers, lists and mappings, got an object of the type {kind}"
        ) from err
    except ValueError as err:  # Python does not format integers of more than 4,300 digits
        raise SpecError("a spec holds a number with too many digits to be written") from err
    except RecursionError as err:
        raise SpecError("a spec must not hold an object that contains itself") from err


def _dump(value: Any, **style: Any) -> str:
    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, **style))
    if "\x85" in text:  # PyYAML does not escape this line break and would read it back as another one
        return str(yaml.safe_dump(value, sort_keys=False, **style))
    return text


def parse_yaml_argument(text: str) -> Any:
    """Parse a command-line argument: a name, or `{name: ..., fields}`."""
    try:
        return parse_yaml(text)
    except yaml.YAMLError as err:
        raise SpecError(f"{shortened(text)} must be a name or {{name: ..., fields}} in YAML") from err


class _PlainLoader(yaml.SafeLoader):
    """Refuses repeated keys, of which PyYAML would silently use the last, and keys that are not text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise SpecError(f"{_place(key)}: a name before a colon must be text, got {shortened(key.value)}")
            if key.value in names:
                raise SpecError(f"{_place(key)}: {shortened(key.value)!r} is repeated; keep one of them")
            names.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS + 1:
            raise SpecError(f"a whole number must have at most {MAX_DIGITS} digits, got {shortened(node.value)}")
        try:
            return int(super().construct_yaml_int(node))
        except ValueError as err:  # "0x", "1:60"
            raise SpecError(f"{_place(node)}: must be a number, got {node.value!r}") from err


# A date stays text, since no field of a spec is a date.
_PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in rules if tag in _TAGS]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def _check_size(root: yaml.Node) -> None:
    """Refuse anchors that contain themselves, and aliases that expand to more than a spec may hold."""
    measured: dict[int, tuple[int, int]] = {}  # number of values and levels, by node id

    def measure(node: yaml.Node, above: frozenset[int]) -> tuple[int, int]:
        if id(node) in above:
            raise SpecError(f"{_place(node)}: an anchor must not contain an alias of itself")
        if node.tag not in _TAGS:
            raise SpecError(f"{_place(node)}: a spec must hold plain values, got the tag {shortened(node.tag)}")
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= character <= "\udfff" for character in node.value):
            raise SpecError(f"{_place(node)}: text must not contain surrogate characters, got {shortened(node.value)}")
        if id(node) not in measured:
            inner = [measure(child, above | {id(node)}) for child in _children(node)]
            values, levels = 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
            if values > MAX_VALUES:
                raise SpecError(f"a spec must hold at most {MAX_VALUES:,} values, with its aliases expanded")
            if levels > MAX_DEPTH + 1:
                raise SpecError(f"a spec must be at most {MAX_DEPTH} levels deep, with its aliases expanded")
            measured[id(node)] = values, levels
        return measured[id(node)]

    measure(root, frozenset())


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
