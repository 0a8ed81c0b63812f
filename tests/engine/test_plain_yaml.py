"""Untrusted YAML gives plain values within limits, or a one-line error."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpaudit import load_spec
from dpaudit.engine.request.plain_yaml import MAX_CHARACTERS, YamlFile, parse_yaml, to_yaml
from dpaudit.errors import SpecError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))

CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "at most 50,000 values, with its aliases expanded"),
        (CHAIN, "at most 40 levels deep, with its aliases expanded"),
        ("a: &a [*a]", "an anchor must not contain an alias of itself"),
        ("a: &a {b: *a}", "an anchor must not contain an alias of itself"),
        ("a: &a {<<: *a}", "an anchor must not contain an alias of itself"),
        ("[" * 5000 + "]" * 5000, "at most 40 levels deep"),
        ("".join(" " * level + "a:\n" for level in range(100)), "at most 40 levels deep"),
        ("a: " + "9" * 5000, "at most 18 digits"),
        ("epsilon: 1\nepsilon: 2", "line 2: 'epsilon' is repeated"),
        ("a: {b: 1, b: 1}", "'b' is repeated"),
        ("1: a", "must be text, got 1"),
        ("null: a", "must be text"),
        ("yes: a", "must be text"),
        ("[a]: b", "must be text"),
        ("a: !!binary aGVsbG8=", "must hold plain values, got the tag"),
        ("a: !!python/object/apply:os.system [ls]", "must hold plain values, got the tag"),
        ("a: !!set {b}", "must hold plain values"),
        ("a: !!timestamp 2020-01-01", "must hold plain values"),
        ("a: 0x_", "must be a number"),
        ("a: [1", "must be YAML"),
        ("\x00", "must be YAML"),
        ("x" * (MAX_CHARACTERS + 1), "at most 200,000 characters"),
    ],
)
def test_invalid_yaml_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        YamlFile.read(path).value()
    assert message in str(caught.value)
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


def test_plain_values_are_parsed() -> None:
    assert parse_yaml("a: &b {c: 1}\nd: {<<: *b, e: [1.5, true, null, 'x']}\nf: {<<: *b, c: 2}") == {
        "a": {"c": 1},
        "d": {"c": 1, "e": [1.5, True, None, "x"]},
        "f": {"c": 2},
    }
    assert parse_yaml("a: 2020-01-01") == {"a": "2020-01-01"}
    assert parse_yaml("") is None


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_bytes(b"name: \xff\xfe")
    for path in (tmp_path / "spec.yaml", tmp_path / ("n" * 256), tmp_path, Path("/dev/null/x")):
        with pytest.raises(SpecError, match="must be a readable spec file"):
            load_spec(path)


RR = {"name": "randomized-response", "epsilon": 1.0}
NET = {"name": "non-private", "model": {"name": "catboost", "iterations": True}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": "iris", "mechanism": NET}, "iterations must be a whole number, got True"),
        ({"data": "iris", "mechanism": {**RR, "epsilon": True}}, "epsilon must be a number, got True"),
        ({"data": "iris", "mechanism": RR, "seed": True}, "seed must be a whole number, got True"),
        ({"data": "iris", "mechanism": ":"}, "mechanism: ':' must name a class"),
        ({"data": ":", "mechanism": RR}, "data: ':' must name a class"),
        ({"data": "..x:y", "mechanism": RR}, "'..x:y' must name a class"),
        ({"data": "iris", "mechanism": RR, 3: 4}, "the name of a field must be text, got 3"),
        ({"data": "iris", "mechanism": {"name": "x", None: 4}}, "the name of a field must be text, got None"),
        ({"data": "iris", "mechanism": RR, "seed": "9" * 5000}, "seed must be a whole number, got"),
        ({"data": "iris", "mechanism": RR, "seed": 10**5000}, "seed"),
    ],
)
def test_values_of_another_kind_are_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(content)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("flow", [False, True])
def test_a_line_break_of_yaml_survives(flow: bool) -> None:
    value = {"label": "a\x85b", "other": "\u2028\u00fc"}
    assert parse_yaml(to_yaml(value, flow=flow)) == value
