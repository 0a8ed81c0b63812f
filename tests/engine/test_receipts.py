"""Registered runs: honest ones are accepted by a stranger, and forged ones are rejected."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from dpaudit.actors.storage.store import UnitStore, encode_unit
from dpaudit.actors.values import decode, encode
from dpaudit.engine.cli.main import main
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.request.plain_yaml import to_yaml
from dpaudit.engine.run.checking import check
from dpaudit.engine.run.driver import resume
from dpaudit.engine.run.plan_record import plan_from_plain
from dpaudit.engine.run.registration import (
    RECEIPT,
    REGISTRATION,
    Registration,
    append,
    receipt_of,
    register,
    sha256,
)
from dpaudit.engine.run.verifying import verify
from dpaudit.errors import InputError, RunError, SpecError
from dpaudit.estimators.scores import Scores

Edit = Callable[[Path], None]


def spec(**fields: Any) -> AuditSpec:
    if "check" in fields:
        return load_spec(fields)
    return load_spec(
        {
            "name": "registered",
            "data": {"name": "gaussian-mixture", "classes": 2, "rows": 300},
            "split": {"target": 0.6, "reference": 0.2, "test": 0.2},
            "mechanism": {"name": "randomized-response", "epsilon": 1},
            "game": {"name": "label-canaries", "replays": 2},
            "run": {"runner": "in-process", "figures": False},
            **fields,
        }
    )


def registered_run(folder: Path, seed: int = 5, **fields: Any) -> Path:
    """Return the folder of a registered run that is finished."""
    run = folder / f"run {seed}"
    register(spec(**fields), unit="one label", output=run, registry=folder / "registry.jsonl", seed=seed)
    resume(run, quiet=True)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two registered runs, in the order of their registration."""
    folder = tmp_path_factory.mktemp("runs")
    return registered_run(folder, 4), registered_run(folder, 5)


# What a forger does, who has all files and can seal them again


def changed_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def signed_again(run: Path) -> None:
    """Write the receipt of the files as they are now."""
    registration = Registration.load(run)
    assert registration is not None
    (run / RECEIPT).write_text(json.dumps(receipt_of(run, registration.plan["order"])))


def scores_unit(run: Path) -> tuple[str, str, Any]:
    """Return the keys of the first unit with scores and of its counts, and the estimator."""
    registration = Registration.load(run)
    assert registration is not None
    (entry,) = plan_from_plain(registration.plan).audits
    return entry.scores[0], entry.tallies[0], entry.audit.estimator


def stored(run: Path, key: str, table: pa.Table) -> None:
    (run / "units" / f"{key}.parquet").write_bytes(encode_unit(key, table))


def with_scores(run: Path, change: Callable[[Scores], Scores], *, counted: bool) -> None:
    """Change the scores of a unit and, if `counted`, its counts."""
    key, counts, estimator = scores_unit(run)
    kind = estimator.evidence
    scores = [change(replay) for replay in decode(UnitStore(run / "units").read(key), kind)]
    stored(run, key, encode(scores, kind))
    if counted:
        stored(run, counts, encode([estimator.tally(replay) for replay in scores], estimator.tally_type))
    signed_again(run)


def other_score(replay: Scores) -> Scores:
    score = replay.score.copy()
    score[0] = -5.0 if replay.truth[0] else 5.0
    return dataclasses.replace(replay, score=score)


def other_coin(replay: Scores) -> Scores:
    return dataclasses.replace(replay, truth=np.append(~replay.truth[:1], replay.truth[1:]))


def better_guesses(replay: Scores) -> Scores:
    return dataclasses.replace(replay, score=np.where(replay.truth, 1.0, -1.0))


def in_registration(change: Callable[[Any], None]) -> Edit:
    def edit(run: Path) -> None:
        changed_json(run / REGISTRATION, change)
        signed_again(run)

    return edit


def in_answer(change: Callable[[Any], None]) -> Edit:
    def edit(run: Path) -> None:
        changed_json(run / "bounds.json", change)
        signed_again(run)

    return edit


def in_text(pattern: str, replacement: str) -> Edit:
    """Replace text in the plan of a registration, which must hold it."""

    def change(content: Any) -> None:
        text, count = re.subn(pattern, replacement, json.dumps(content["plan"]))
        assert count
        content["plan"] = json.loads(text)

    return in_registration(change)


def entry_changed(**fields: Any) -> Edit:
    def change(content: Any) -> None:
        content["entries"][-1] = json.dumps(json.loads(content["entries"][-1]) | fields)

    return in_registration(change)


def hidden(content: Any) -> None:
    del content["entries"][0]


def hidden_and_renumbered(content: Any) -> None:
    hidden(content)
    content["entries"][0] = json.dumps(json.loads(content["entries"][0]) | {"number": 1})


def rewritten_earlier(content: Any) -> None:
    content["entries"][0] = json.dumps(json.loads(content["entries"][0]) | {"unit": "one word"})


def without_scores(run: Path) -> None:
    (run / "units" / f"{scores_unit(run)[0]}.parquet").unlink()
    signed_again(run)


def failed_by_hand(run: Path) -> None:
    without_scores(run)
    UnitStore(run / "units").fail(scores_unit(run)[0], "TrainingError: no luck")


def joined(run: Path, other: Path) -> None:
    """Put units of another run under the keys of this one."""
    pairs = list(zip(scores_unit(run)[:2], scores_unit(other)[:2], strict=True))
    for key, theirs in pairs:
        stored(
            run,
            key,
            UnitStore(other / "units").read(theirs).replace_schema_metadata({"lengths": _lengths(other, theirs)}),
        )
    signed_again(run)


def _lengths(run: Path, key: str) -> bytes:
    return (UnitStore(run / "units").read(key).schema.metadata or {}).get(b"lengths", b"[]")


def with_strangers(run: Path, other: Path) -> None:
    for file in (other / "units").glob("*.parquet"):
        if not (run / "units" / file.name).exists():
            shutil.copyfile(file, run / "units" / file.name)


def copy_of_scores_changed(run: Path) -> None:
    """Change the scores that a person reads, not those of the unit."""
    file = next((run / "scores").glob("*/*.parquet"))
    content = file.read_bytes()
    file.unlink()  # it may be a link to the unit's file
    file.write_bytes(content[:-20] + bytes(20))
    signed_again(run)


FORGERIES: dict[str, tuple[Edit, str]] = {
    "a score": (lambda run: with_scores(run, other_score, counted=False), "counts"),
    "a score and its counts": (lambda run: with_scores(run, better_guesses, counted=True), "answer"),
    "a coin": (lambda run: with_scores(run, other_coin, counted=True), "coins"),
    "the level in the answer": (in_answer(lambda values: values.update(confidence=0.5)), "confidence"),
    "the level of the estimator": (in_text(r"0\.95", "0.9"), "commitment"),
    "the claim of the plan": (in_text(r'"epsilon": {"float": "1.0"}', '"epsilon": {"float": "2.0"}'), "commitment"),
    "the claim of the entry": (entry_changed(audits=[{"claim": {"epsilon": "2.0"}}]), "another audits"),
    "the mechanism": (in_text("randomized-response", "randomized_response"), "commitment"),
    "a seed chosen after": (
        in_registration(lambda content: content["plan"]["spec"]["mapping"][1].__setitem__(1, 7)),
        "commitment",
    ),
    "another nonce": (in_registration(lambda content: content.update(nonce="0" * 64)), "commitment"),
    "the unit of privacy": (in_registration(lambda content: content.update(unit="one word")), "commitment"),
    "the unit of privacy in the entry": (entry_changed(unit="one word"), "another unit"),
    "fewer replays": (in_text(r'"replays": 2', '"replays": 1'), "commitment"),
    "a commitment made after": (entry_changed(commitment="0" * 64), "commitment"),
    "a unit left out": (without_scores, "no result"),
    "a unit that failed by hand": (failed_by_hand, "no result"),
    "an earlier registration hidden": (in_registration(hidden), "does not follow"),
    "an earlier registration hidden, renumbered": (in_registration(hidden_and_renumbered), "does not follow"),
    "an earlier registration rewritten": (in_registration(rewritten_earlier), "does not follow"),
    "the verdict": (in_answer(lambda values: values["results"][0].update(verdict="VIOLATION")), "results"),
    "the bound": (in_answer(lambda values: values["results"][0]["finding"].update(lower=0.9)), "results"),
    "the p-value": (in_answer(lambda values: values["results"][0].update(p_value=0.5)), "results"),
    "an answer without its receipt": (
        lambda run: changed_json(run / "bounds.json", lambda values: values.update(name="x")),
        "receipt: answer",
    ),
    "no receipt": (lambda run: (run / RECEIPT).unlink(), "no receipt"),
    "the copy of a score": (copy_of_scores_changed, r"scores/.* is not the file of a unit"),
    "the claim of the spec": (
        lambda run: (run / "spec.yaml").write_text((run / "spec.yaml").read_text().replace("1.0", "3.0")),
        r"receipt: copies \(spec.yaml\)",
    ),
    "the answer as a table": (
        lambda run: (run / "bounds.parquet").write_bytes((run / "bounds.parquet").read_bytes() + b" "),
        r"receipt: copies \(bounds.parquet\)",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_run_is_rejected(what: str, runs: tuple[Path, Path], tmp_path: Path) -> None:
    forge, why = FORGERIES[what]
    run = Path(shutil.copytree(runs[1], tmp_path / "forged"))
    forge(run)
    with pytest.raises(RunError, match=why):
        verify(run)


@pytest.mark.parametrize(("join", "why"), [(joined, "coins|counts|answer"), (with_strangers, "belong to another run")])
def test_two_runs_joined_are_rejected(
    join: Callable[[Path, Path], None], why: str, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(runs[1], tmp_path / "forged"))
    join(run, runs[0])
    with pytest.raises(RunError, match=why):
        verify(run)


def test_the_registration_of_another_run_is_rejected(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[1], tmp_path / "forged"))
    shutil.copyfile(runs[0] / REGISTRATION, run / REGISTRATION)
    signed_again(run)
    with pytest.raises(RunError, match="no result"):
        verify(run)


def test_another_registry_is_rejected(runs: tuple[Path, Path], tmp_path: Path) -> None:
    registry = tmp_path / "other.jsonl"
    append(registry, {"commitment": "another"})
    with pytest.raises(RunError, match="does not have the entries"):
        verify(runs[1], registry=registry)


# Honest runs


def test_an_honest_run_is_accepted_with_what_is_unknown(runs: tuple[Path, Path]) -> None:
    text = "\n".join(verify(runs[1]).lines)
    assert text.startswith("ACCEPTED")
    assert "registration 2 of 2, 2 of them for this claim" in text
    assert "360 coins follow from the seed" in text
    assert "that the scores came from the stated mechanism and data" in text
    assert "claimed epsilon 1" in text


def test_later_registrations_are_looks_too(runs: tuple[Path, Path], tmp_path: Path) -> None:
    registry = Path(shutil.copyfile(runs[0].parent / "registry.jsonl", tmp_path / "registry.jsonl"))
    register(spec(), unit="one label", output=tmp_path / "third", registry=registry)
    register(
        spec(mechanism={"name": "randomized-response", "epsilon": 3}),
        unit="one label",
        output=tmp_path / "4",
        registry=registry,
    )
    assert "registration 2 of 4, 3 of them for this claim" in verify(runs[1], registry=registry).checked[0]


def test_units_that_run_again_give_the_same_bits(runs: tuple[Path, Path]) -> None:
    assert "run again and gave the same bits" in verify(runs[1], replay=True).checked[-1]


def test_a_changed_spec_is_no_registered_run(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[1], tmp_path / "changed"))
    path = run / "spec.yaml"
    path.write_text(path.read_text().replace("seed: 5", "seed: 6"))
    with pytest.raises(RunError, match="registered for another plan"):
        resume(run, quiet=True, allow_code=True, allow_files=True, allow_network=True)


def noisy_count(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    """An honest count, in whole numbers."""
    return len(rows) + float(rng.geometric(1 - np.exp(-epsilon)) - rng.geometric(1 - np.exp(-epsilon)))


COUNT: dict[str, Any] = {"claim": 1.0, "schema": {"x": (0.0, 1.0)}, "form": "array", "quiet": True}


def test_a_check_of_a_function_is_registered_before_it_runs(tmp_path: Path) -> None:
    """By the command: its seed is drawn, and its own folder is verified."""
    registry, run = tmp_path / "registry.jsonl", tmp_path / "run"
    command = ["check", "tests.engine.test_receipts:noisy_count", "--schema", "{x: [0.0, 1.0]}", "--form", "array"]
    options = ["--claim", "1", "--budget", "1s", "--effort", "quick", "--unit", "one row", "--quiet", "--json"]
    place = ["--registry", str(registry), "-o", str(run)]
    result = CliRunner().invoke(main, [*command, *options, *place], catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.output)["seed"] > 0
    assert json.loads(registry.read_text())["unit"] == "one row"
    first, _, _, _, coins, *_ = verify(run, registry=registry).checked
    assert first.startswith("registration 1 of 1")
    assert "coins follow from the seed" in coins


def test_a_registered_check_has_one_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has one run"):
        check(noisy_count, unit="one row", until_decided=True, output=tmp_path / "run", **COUNT)
    assert not (tmp_path / "run").exists()


def test_an_unfinished_run_is_not_accepted(tmp_path: Path) -> None:
    register(spec(), unit="one label", output=tmp_path / "run", registry=tmp_path / "registry.jsonl")
    with pytest.raises(RunError, match="no receipt"):
        verify(tmp_path / "run")


def test_a_run_without_registration_cannot_be_verified(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(SpecError, match="no registration"):
        verify(tmp_path / "run")


def test_a_run_that_keeps_no_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep its scores"):
        register(spec(run={"keep_scores": False}), unit="one label", output=tmp_path / "run", registry=tmp_path / "r")


def test_a_folder_is_registered_once(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[1], tmp_path / "again"))
    with pytest.raises(InputError, match="new run folder"):
        register(spec(), unit="one label", output=run, registry=tmp_path / "registry.jsonl")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"dpaudit\.estimators\.[a-z_.]+:SimultaneousGuessCount", "os:system"),
        (r"dpaudit\.estimators\.[a-z_.]+:SimultaneousGuessCount", "dpaudit.actors.storage.store:UnitStore"),
        (r"dpaudit\.engine\.games\.coins:play_replays", "dpaudit.engine.games.coins:os.system"),
        (r"dpaudit\.engine\.games\.coins:play_replays", "dpaudit.plain_files:recreate_file"),
    ],
)
def test_a_plan_builds_nothing_but_parts_of_a_plan(old: str, new: str, runs: tuple[Path, Path]) -> None:
    registration = Registration.load(runs[1])
    assert registration is not None
    text, count = re.subn(old, new, json.dumps(registration.plan))
    assert count
    with pytest.raises(SpecError, match="must be one that dpaudit wrote"):
        plan_from_plain(json.loads(text))


def test_a_damaged_registry_takes_no_entry(tmp_path: Path) -> None:
    registry = tmp_path / "registry.jsonl"
    for number in range(3):
        append(registry, {"commitment": str(number)})
    lines = registry.read_text().splitlines()
    assert json.loads(lines[2])["previous"] == sha256(lines[1])
    registry.write_text("\n".join([lines[0], lines[2]]) + "\n")
    with pytest.raises(RunError, match="does not follow"):
        append(registry, {"commitment": "next"})


TOGETHER = "several tests of one claim"
OTHERS: dict[str, dict[str, Any]] = {
    "stopped early": {
        "mechanism": {"name": "non-private", "model": "recall"},
        "game": {"name": "mia", "trials": 200, "population": 50},
        "estimator": "betting",
        "claim": {"epsilon": 0.5, "relation": "replace"},
        "stop": {"refuted": True},
    },
    "two worlds": {
        "mechanism": {"name": "gaussian-naive-bayes", "epsilon": 1},
        "game": {"name": "neighbours", "trials": 200, "search": 100},
    },
    TOGETHER: {"check": {"mechanism": {"name": "randomized-response", "epsilon": 1}, "budget": "2s"}},
    "observational": {"game": {"name": "label-inference", "replays": 2}},
    "membership of a learner": {
        "mechanism": {"name": "non-private", "model": "logistic-regression"},
        "game": {"name": "membership", "shadows": 2},
    },
    "votes of teachers": {
        "mechanism": {"name": "pate", "epsilon": 1, "teachers": 5, "queries": 20, "model": "logistic-regression"},
        "game": {"name": "teacher-votes", "coins": 2_000, "labels": 1},
    },
    "records of DP-SGD": {
        "mechanism": {"name": "dp-sgd", "epsilon": 2, "delta": 1e-5, "model": {"name": "mlp", "hidden": [4]}},
        "game": {"name": "dp-sgd-training", "coins": 6},
    },
    "coins of steps": {
        "mechanism": {"name": "dp-sgd", "epsilon": 2, "delta": 1e-5, "model": {"name": "mlp", "hidden": [4]}},
        "game": {"name": "dp-sgd-coins", "trainings": 2},
    },
    "canary texts": {
        "data": {"name": "made-sentences", "rows": 50},
        "mechanism": {"name": "fine-tuning", "trainer": "full"},
        "game": {"name": "text-canaries", "canaries": 20, "trainings": 2, "ceiling": False},
    },
    "many trainings": {
        "mechanism": {"name": "lp-1st", "epsilon": 1, "model": "recall"},
        "game": {"name": "label-crafted", "search": 60, "releases": 20, "canaries": 40},
    },
}


OF_ANSWERS = ("many trainings", TOGETHER)
"""Games whose coins depend on choices by the mechanism's answers."""
TEXTS = "canary texts"


@pytest.mark.parametrize("case", [*sorted(OTHERS.keys() - {TEXTS}), pytest.param(TEXTS, marks=pytest.mark.nightly)])
def test_runs_of_other_games_are_accepted(case: str, tmp_path: Path) -> None:
    verification = verify(registered_run(tmp_path, **OTHERS[case]))
    assert any("coins follow from the seed" in text for text in verification.checked) or case in OF_ANSWERS
    if case != TOGETHER:  # the budget decides which of its tests run
        assert any("the coins of" in text for text in verification.unknown) is (case in OF_ANSWERS)


@pytest.mark.parametrize("case", ["votes of teachers", "records of DP-SGD", "coins of steps"])
def test_a_forged_coin_of_a_game_with_data_is_rejected(case: str, tmp_path: Path) -> None:
    run = registered_run(tmp_path, **OTHERS[case])
    with_scores(run, other_coin, counted=True)
    with pytest.raises(RunError, match="the coins of"):
        verify(run)


@pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.nightly)])
def test_honest_runs_are_accepted(count: int, tmp_path: Path) -> None:
    for seed in range(count):
        verify(registered_run(tmp_path / f"{seed}", seed))


def test_a_hundred_thousand_scores_are_accepted(tmp_path: Path) -> None:
    run = registered_run(
        tmp_path,
        data={"name": "gaussian-mixture", "classes": 2, "rows": 102_000},
        split={"target": 0.99, "reference": 0.01, "test": 0.0},
        game={"name": "label-canaries", "replays": 1},
    )
    assert "100,980 coins follow from the seed" in " ".join(verify(run).checked)


def test_a_public_claim_is_stated_with_its_unit(tmp_path: Path) -> None:
    """As of VaultGemma: epsilon <= 2.0 and delta <= 1.1e-10 for a sequence of 1,024 tokens."""
    path = tmp_path / "spec.yaml"
    path.write_text(
        to_yaml(
            {
                "data": {"name": "gaussian-mixture", "classes": 2, "rows": 200},
                "mechanism": {
                    "name": "dp-sgd",
                    "epsilon": 2.0,
                    "delta": 1.1e-10,
                    "model": {"name": "mlp", "hidden": [4]},
                },
                "game": {"name": "dp-sgd-training", "coins": 50},
                "claim": {"epsilon": 2.0, "delta": 1.1e-10, "relation": "add-remove"},
            }
        )
    )
    arguments = ["register", str(path), "-o", str(tmp_path / "run"), "--registry", str(tmp_path / "r.jsonl")]
    assert "Missing option '--unit'" in CliRunner().invoke(main, arguments).output
    result = CliRunner().invoke(main, [*arguments, "--unit", "a sequence of 1,024 tokens"], catch_exceptions=False)
    assert result.exit_code == 0
    entry = json.loads((tmp_path / "r.jsonl").read_text())
    assert entry["unit"] == "a sequence of 1,024 tokens"
    assert entry["audits"][0]["claim"] == {
        "epsilon": "2.0",
        "delta": "1.1e-10",
        "relation": "add-remove",
        "curve": "this point",
    }
    assert "seed" not in entry


def test_a_receipt_is_signed_by_ssh_keygen(runs: tuple[Path, Path], tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    key, receipt = tmp_path / "key", Path(shutil.copyfile(runs[1] / RECEIPT, tmp_path / RECEIPT))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "dpaudit", receipt], check=True, capture_output=True
    )
    (tmp_path / "signers").write_text(f"auditor@example.org {key.with_suffix('.pub').read_text()}")
    check = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "auditor@example.org", "-n", "dpaudit"]
    check += ["-s", f"{receipt}.sig"]
    assert subprocess.run(check, input=receipt.read_bytes(), capture_output=True).returncode == 0
    assert subprocess.run(check, input=receipt.read_bytes() + b" ", capture_output=True).returncode != 0


def test_the_command_prints_and_ends_with_an_exit_code(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert "ACCEPTED" in CliRunner().invoke(main, ["verify", str(runs[1])], catch_exceptions=False).output
    run = Path(shutil.copytree(runs[1], tmp_path / "forged"))
    (run / RECEIPT).unlink()
    assert CliRunner().invoke(main, ["verify", str(run)]).exit_code == 3
