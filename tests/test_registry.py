"""Every registered part has a unique name and a description, and is built from its name."""

from __future__ import annotations

import dataclasses
import importlib.util
import typing
from pathlib import Path

import pytest

from dpaudit.engine.request.build import build, describe
from dpaudit.errors import FormerNameError, SpecError, UnknownNameError
from dpaudit.registry import FORMER_NAMES, PACKAGES, catalogue, load, register
from dpaudit.testing import check_part
from tests.loops import Cases

ENTRIES = [entry for kind in PACKAGES for entry in catalogue(kind).values()]
PARTS = [entry for entry in ENTRIES if entry.kind != "reproduction"]


def test_the_catalogue_describes_each_registered_part() -> None:
    with Cases() as cases:
        for entry in ENTRIES:
            with cases.case(entry.kind, entry.name):
                thing = load(entry.kind, entry.name)
                assert thing.registered_name == entry.name
                assert entry.summary.endswith((".", "?", "!"))
                assert len(entry.summary) <= 120
                assert entry.source


NEEDED: dict[str, object] = {
    "epsilon": 1.0,
    "rho": 0.5,
    "path": "somewhere",
    "label": "y",
    "prior": [0.7, 0.3],
    "sigma": 2.0,
    "bound": 1.0,
    "missed": 1e-5,
    "mu": 1.0,
    "orders": [2.0, 3.0],
    "values": [0.1, 0.2],
    "curve": {"name": "gaussian", "mu": 1.0},
    "noise_multiplier": 1.0,
    "sample_rate": 0.1,
    "steps": 5,
    "epsilons": [0.0, 1.0],
    "deltas": [0.1, 0.0],
    "scale": 1.0,
    "releases": 2,
    "event": {"name": "GaussianDpEvent", "noise_multiplier": 1.0},
    "first": "iris",
    "second": "iris",
    "columns": ["race"],
    "digest": "0" * 32,
    "learner": "gaussian-nb",
    "estimator": "sklearn.linear_model:LogisticRegression",
    "module": "tests.mechanisms.user_code:Linear",
    "predictor": "tests.mechanisms.user_code:Frank",
    "url": "http://localhost:1",
    "model_name": "m",
    "public": "iris",
    "texts": "iris",
    "model": {"name": "endpoint", "url": "http://localhost:1", "model_name": "m"},
    "train": "tests.mechanisms.user_code:shares",
    "delta": 1e-5,
    "function": "tests.mechanisms.user_code:noisy_count",
    "schema": {"age": [0, 100]},
    "generator": "tests.synthetic_tables.own_generators:Resampled",
    "data": "iris",
    "rate": 0.01,
}
"""A value for every field without a default."""


def test_a_part_equals_the_part_built_from_its_description() -> None:
    with_opacus = importlib.util.find_spec("opacus") is not None
    with Cases() as cases:
        for entry in PARTS:
            if entry.name == "opacus" and not with_opacus:
                continue
            with cases.case(entry.kind, entry.name):
                fields = {
                    field.name: NEEDED[field.name]
                    for field in dataclasses.fields(load(entry.kind, entry.name))
                    if (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
                    or (entry.name, field.name) == ("attribute-inference", "columns")  # its default is refused
                }
                part = build(entry.kind, {"name": entry.name, **fields}, defaults={"delta": 1e-5})
                check_part(part, entry.kind)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"mechanism must be one of .*lp-1st.*, got 'lp-9st'"):
        load("mechanism", "lp-9st")


def test_an_invalid_field_is_named_with_its_location() -> None:
    with pytest.raises(SpecError, match=r"audits\[0\].mechanism has no field 'epsilom'; it has epsilon, model"):
        build("mechanism", {"name": "lp-1st", "epsilom": 1}, location="audits[0].mechanism")
    with pytest.raises(SpecError, match=r"mechanism.model.iterations must be a whole number.*got 'many'"):
        build("mechanism", {"name": "lp-1st", "epsilon": 1, "model": {"name": "catboost", "iterations": "many"}})
    with pytest.raises(SpecError, match="mechanism: epsilon must be > 0, got -1"):
        build("mechanism", {"name": "lp-1st", "epsilon": -1})
    with pytest.raises(SpecError, match="mechanism needs epsilon"):
        build("mechanism", "lp-1st")


def test_a_user_class_is_built_from_its_location() -> None:
    value = build("mechanism", {"name": "tests.own_mechanism:KeepsEverything", "epsilon": 2})
    assert value.epsilon == 2
    assert describe(value) == {"name": "tests.own_mechanism:KeepsEverything", "epsilon": 2.0}


def test_a_kind_must_be_known() -> None:
    with pytest.raises(UnknownNameError, match="kind must be one of"):
        register("mechanisms", "x", source="y")


def test_every_field_with_a_path_or_url_is_marked() -> None:
    """Consent for untrusted specs depends on the mark: paths are read, URLs and variables are sent."""
    holds = {"path": "path", "cache": "path", "url": "address", "key_variable": "variable"}
    holds |= {"python": "path", "folder": "path"}
    harmless = {"column", "contents", "device", "digest", "dtype", "given", "group_by", "key", "label", "model_name"}
    harmless |= {
        "accountant",
        "activation",
        "augment",
        "clipping",
        "delimiter",
        "grad_sample_mode",
        "norm",
        "optimizer",
    }
    harmless |= {"code", "order", "part", "person", "precision", "prompt", "schedule", "version", "name"}
    for kind in PACKAGES:
        for name in catalogue(kind):
            part = load(kind, name)
            if not dataclasses.is_dataclass(part):
                continue
            hints = typing.get_type_hints(part)
            for field in dataclasses.fields(part):
                if field.init and hints[field.name] in (str, str | None, str | int | None, Path):
                    assert field.metadata.get("holds") == holds.get(field.name), f"{name}.{field.name}"
                    assert field.name in holds or field.name in harmless, f"{name}.{field.name}: what does it name?"


def test_a_former_name_gives_the_new_name() -> None:
    for former, now in FORMER_NAMES.items():
        kind = next(entry.kind for entry in ENTRIES if entry.name == now)
        with pytest.raises(UnknownNameError, match=f"{former} is now called {now}"):
            load(kind, former)
        assert former not in {entry.name for entry in ENTRIES}


def test_a_planted_defect_that_no_spec_names_any_more_is_refused_with_its_place() -> None:
    with pytest.raises(FormerNameError, match="planted-rr-constant-seed is a planted defect, in tests/bank"):
        load("mechanism", "planted-rr-constant-seed")
