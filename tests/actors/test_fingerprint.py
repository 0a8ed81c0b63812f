"""Fingerprints change with all user code that can influence a result, and with nothing else."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.actors import fingerprint as reading
from dpaudit.actors import unit
from dpaudit.actors.fingerprint import Fingerprint, fingerprint, read_once

FILES = {
    "owner/__init__.py": "",
    "owner/mechanism.py": """
from dataclasses import dataclass
import owner.scale as scale
from owner.base import Base
from .helpers import flip

SHARE = 0.5

@dataclass(frozen=True)
class Mechanism(Base):
    epsilon: float = 1.0
    def release(self, labels):
        from owner import lazily
        return flip(labels, SHARE * scale.SCALE)
""",
    "owner/base.py": "class Base:\n    offset = 1\n",
    "owner/scale.py": "from owner.deeper import SCALE\n",
    "owner/deeper.py": "SCALE = 2\n",
    "owner/helpers.py": "import math\ndef flip(labels, share):\n    return labels\n",
    "owner/lazily.py": "TWO = 2\n",
    "owner/unrelated.py": "import owner.mechanism\nTHREE = 3\n",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Function that writes a file of the package `owner` and makes Python import the package again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the same second may see two versions

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "owner"]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def write_file(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        forget()

    for name, text in FILES.items():
        write_file(name, text)
    yield write_file
    forget()


def mechanism() -> Fingerprint:
    return fingerprint(importlib.import_module("owner.mechanism").Mechanism())


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_module_of_its_package_counts(write: Callable[[str, str], None], name: str) -> None:
    before = mechanism()
    assert [code.label for code in before.user_code] == ["owner.mechanism.Mechanism"]
    write(name, FILES[name] + "\nANOTHER = 1\n")
    assert mechanism().digest != before.digest
    write(name, FILES[name])
    assert mechanism() == before


def test_other_files_do_not_count(write: Callable[[str, str], None]) -> None:
    before = mechanism()
    write("owner/notes.txt", "THREE = 4\n")
    write("beside.py", "FOUR = 4\n")
    assert mechanism() == before, "nothing imports the file next to the package"
    write("owner/compiled.so", "machine code")
    assert mechanism() != before, "a compiled module cannot be read, and may belong to any package"


IMPORTS = [
    "import beside",
    "import math, beside as near",
    "from beside import FOUR",
    "def later():\n    import beside",
    "def later(): from beside.below import FOUR",
    "import importlib; near = importlib.import_module('beside')",
]


@pytest.mark.parametrize("line", IMPORTS)
@pytest.mark.parametrize("at", ["owner/lazily.py", "alone.py"])
def test_an_imported_module_elsewhere_counts(write: Callable[[str, str], None], line: str, at: str) -> None:
    """The module belongs to a package, or is a single file."""
    write("beside.py", "FOUR = 4\n")
    write("alone.py", "class Mechanism:\n    pass\n")
    write(at, FILES.get(at, "class Mechanism:\n    pass\n") + line + "\n")
    name = "alone" if at == "alone.py" else "owner.mechanism"

    def digest() -> str:
        for loaded in ("alone", "beside"):
            sys.modules.pop(loaded, None)
        return fingerprint(importlib.import_module(name).Mechanism()).digest

    before = digest()
    assert digest() == before
    write("beside.py", "FOUR = 5\n")
    assert digest() != before


def test_results_of_code_in_a_too_large_folder_are_not_reused(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_FILES", len(FILES) - 1)
    (user_code,) = mechanism().user_code
    assert user_code.unseen == ("the folder of module owner holds more than 7 files of code",)


def test_modules_are_found_without_being_imported(write: Callable[[str, str], None]) -> None:
    mechanism()
    assert "owner.lazily" not in sys.modules
    assert "owner.unrelated" not in sys.modules


def test_a_module_loaded_without_its_package_counts(write: Callable[[str, str], None], tmp_path: Path) -> None:
    """Python cannot find its top-level package."""

    def digest(text: str) -> str:
        (tmp_path / "alone.py").write_text(text)
        spec = importlib.util.spec_from_file_location("no_such_package.alone", tmp_path / "alone.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            return fingerprint(module.Mechanism()).digest
        finally:
            del sys.modules[spec.name]

    text = "class Mechanism:\n    def claim(self):\n        return SHARE\nSHARE = 1\n"
    assert digest(text) == digest(text)
    assert digest(text) != digest(text.replace("SHARE = 1", "SHARE = 2"))


def test_results_of_a_file_edited_after_its_import_are_not_reused(
    write: Callable[[str, str], None], tmp_path: Path
) -> None:
    """The loaded code differs from the file, so their results must have different names."""
    module = importlib.import_module("owner.mechanism")
    fingerprint(module.Mechanism())
    (tmp_path / "owner" / "helpers.py").write_text("def flip(labels, share):\n    return 1 - labels\n")
    (first,), (second,) = fingerprint(module.Mechanism()).user_code, fingerprint(module.Mechanism()).user_code
    assert first.unseen == ("the module owner.helpers changed on disk after it was imported",)
    assert first.digest != second.digest
    importlib.reload(sys.modules["owner.helpers"])
    assert fingerprint(module.Mechanism()).user_code[0].unseen == ()


def test_versions_of_installed_packages_count(write: Callable[[str, str], None], monkeypatch: Any) -> None:
    write("owner/helpers.py", "import catboost\n" + FILES["owner/helpers.py"])
    before = mechanism()
    monkeypatch.setattr(reading, "_version", lambda distribution: "another" if distribution == "catboost" else "same")
    changed = mechanism()
    monkeypatch.setattr(reading, "_version", lambda distribution: "same")
    assert len({before.digest, changed.digest, mechanism().digest}) == 3


def test_versions_of_packages_behind_bundled_models_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = unit._hash_of_sources.__wrapped__()
    original_version = reading._version
    monkeypatch.setattr(reading, "_version", lambda name: "another" if name == "catboost" else original_version(name))
    assert unit._hash_of_sources.__wrapped__() != before


def closure(share: float) -> Callable[[float], float]:
    return lambda label: label * share


def test_a_callable_counts_with_its_closure_and_defaults() -> None:
    def with_default(label: float, share: float) -> Callable[[float], float]:
        def release(label: float, share: float = share) -> float:
            return label * share

        return release

    digests = [
        fingerprint(value).digest
        for value in (
            closure(0.5),
            closure(0.25),
            with_default(1, 0.5),
            with_default(1, 0.25),
            functools.partial(closure, 0.5),
            functools.partial(closure, share=0.25),
            closure,
        )
    ]
    assert len(set(digests)) == len(digests)
    assert fingerprint(closure(0.5)).digest == digests[0]


def test_a_class_made_by_a_function_counts_with_its_closure() -> None:
    def make_mechanism(share: float) -> Any:
        class Mechanism:
            def release(self, label: float) -> float:
                return label * share

        return Mechanism()

    assert fingerprint(make_mechanism(1.0)).digest == fingerprint(make_mechanism(1.0)).digest
    assert fingerprint(make_mechanism(1.0)).digest != fingerprint(make_mechanism(2.0)).digest


TYPED = """
import sys
from dataclasses import dataclass
import numpy as np
SHARE = 0.5
UNRELATED = 1
def helper(label):
    return label * SHARE
def unrelated():
    return UNRELATED
class Base:
    words = frozenset({"one", "two", "three"})
    def claim(self):
        return 1
@dataclass(frozen=True)
class Mechanism(Base):
    epsilon: float = 1.0
    def release(self, labels):
        return [helper(label) for label in labels if label in {"a", "b", "c"}]
from dpaudit.actors.fingerprint import fingerprint
found = fingerprint(Mechanism())
assert not found.user_code[0].unseen, found
print(found.digest, found.user_code[0].label)
"""


def typed(text: str) -> str:
    """Run code from standard input, as at a prompt, and return its output."""
    process = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert "__main__.Mechanism" in process.stdout
    return process.stdout.split()[0]


def test_a_class_keeps_its_fingerprint_when_an_object_is_copied() -> None:
    """Python then caches the names of slots in the class."""

    class Local:
        pass

    before = fingerprint(Local)
    copy.copy(Local())
    assert "__slotnames__" in vars(Local)
    assert fingerprint(Local) == before


def test_code_from_a_prompt_counts() -> None:
    before = typed(TYPED)
    assert typed(TYPED) == before, "another process computes the same with another hash seed"
    for old, new in (
        ("SHARE = 0.5", "SHARE = 1.0"),
        ("label * SHARE", "label + SHARE"),
        ("return 1\n", "return 2\n"),
        ('"three"', '"four"'),
        ('"a", "b"', '"a", "d"'),
        ("epsilon: float = 1.0", "epsilon: float = 2.0"),
    ):
        assert typed(TYPED.replace(old, new)) != before, new
    assert typed(TYPED.replace("UNRELATED = 1", "UNRELATED = 2")) == before


def test_a_script_counts_with_its_whole_file(tmp_path: Path) -> None:
    def run(text: str) -> str:
        (tmp_path / "script.py").write_text(text)
        process = subprocess.run(
            [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True
        )
        return process.stdout

    assert run(TYPED) == run(TYPED)
    assert run(TYPED) != run(TYPED.replace("SHARE = 0.5", "SHARE = 0.6"))


class Holds:
    """User object with one attribute."""

    def __init__(self, content: object) -> None:
        self.held = content


def test_unreadable_values_have_unique_fingerprints_and_a_reason() -> None:
    holds = Holds(threading.Lock())
    first, second = fingerprint(holds), fingerprint(holds)
    assert first.digest != second.digest
    assert any("_thread.lock cannot be read" in why for code in first.user_code for why in code.unseen)
    with read_once():
        assert fingerprint(holds) == fingerprint(holds), "within one plan a unit keeps its key"
    record = {code.label: code.digest for code in first.user_code}
    with read_once(record):
        assert fingerprint(holds).digest == first.digest, "and `report` finds the results of the run"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, "1"), ("1", 1)),
        (("ab", "c"), ("a", "bc")),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
        (np.array(["a", None], dtype=object), np.array(["a", 1], dtype=object)),
        (Holds([1]), Holds([2])),
    ],
)
def test_different_values_have_different_fingerprints(first: object, second: object) -> None:
    assert fingerprint(first).digest != fingerprint(second).digest


def monkeypatched(label: float) -> float:
    return label


def test_a_changed_default_and_a_replaced_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(monkeypatched).digest
    monkeypatch.setattr(monkeypatched, "__defaults__", (1.0,))
    changed = fingerprint(monkeypatched).digest
    monkeypatch.setitem(globals(), "monkeypatched", lambda label: 2 * label)
    another = fingerprint(monkeypatched).digest
    monkeypatch.setitem(globals(), "monkeypatched", lambda label: 3 * label)
    assert len({before, changed, another, fingerprint(monkeypatched).digest}) == 4


@functools.lru_cache
def cached(label: float) -> float:
    return label


def test_cached_and_bound_functions_count_with_their_content() -> None:
    values = [cached, functools.lru_cache(closure(1.0)), functools.lru_cache(closure(2.0)), [1].append, [2].append]
    assert len({fingerprint(value).digest for value in values}) == 5
    assert [code.label for code in fingerprint(cached).user_code] == [f"{__name__}.cached"]


def test_recursive_values_have_fingerprints() -> None:
    holds = Holds(None)
    holds.held = [holds]
    assert fingerprint(holds).digest == fingerprint(holds).digest


def test_each_class_is_read_once_per_plan(write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    read_names: list[str] = []
    content = reading.read_module
    monkeypatch.setattr(reading, "read_module", lambda name: (read_names.append(name), content(name))[1])
    mechanism_class = importlib.import_module("owner.mechanism").Mechanism
    with read_once():
        assert len({fingerprint((mechanism_class(), number)).digest for number in range(500)}) == 500
    assert "owner" in read_names
    assert sorted(set(read_names)) == sorted(read_names)


def test_adjacent_strings_are_separated() -> None:
    def digest(*words: str) -> str:
        return fingerprint(words).digest

    assert digest("ab", "c") == digest("ab", "c")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("abc", "")}) == 4
