"""Audits that accompany a training: honest loops keep the stated error, and planted defects are found."""

from __future__ import annotations

import gc
import itertools
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import dpaudit
from benchmarks.training_audits import (
    BATCH,
    CLIP,
    MODES,
    STEPS,
    WEIGHTS,
    Clip,
    Noise,
    differences,
    each_clipped,
    fresh,
    half_noise,
    matrix_noise,
    moving,
    numpy_loop,
    of_pairs,
    opacus_run,
    part_without,
    repeated,
    unclipped,
    with_matrix,
)
from dpaudit import (
    CorrelatedNoise,
    DiscreteGaussianNoise,
    GaussianNoise,
    LaplaceNoise,
    TrainingAudit,
    TrainingResult,
    Verdict,
)
from dpaudit.engine.cli.main import main
from dpaudit.engine.games.steps.directions import SETS, Directions
from dpaudit.engine.games.steps.guesses import NoiseModel, WaitingStep
from dpaudit.engine.games.steps.suspects import Part, suspects
from dpaudit.engine.observer.coins import Change, detectable_noise
from dpaudit.engine.observer.leaves import Places, names_of
from dpaudit.engine.observer.processes import Processes
from dpaudit.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "training.md"


def differences_of(factor: float, deviation: float, seed: int = 8) -> Noise:
    """Return the noise z_t - factor z_(t-1) with white noise z of a deviation."""
    return lambda rng, step: differences(seed, step, factor=factor, deviation=deviation)


def train(
    audit: TrainingAudit,
    noise: Noise = fresh,
    clip: Clip = each_clipped,
    *,
    joins_rows: bool = True,
    steps: int = STEPS,
    seed: int = 0,
) -> TrainingAudit:
    numpy_loop(audit, seed, noise, clip, rows=joins_rows, steps=steps)
    return audit


def audit_of(noise: Any = 1.0, **options: Any) -> TrainingAudit:
    return TrainingAudit(noise, **{"clip": CLIP, "divisor": BATCH, "seed": 0} | options)


@pytest.mark.parametrize("joins_rows", [True, False], ids=["rows before the clip", "sum after the clip"])
def test_honest_trainings_keep_the_stated_error(joins_rows: bool) -> None:
    p_values = [
        train(audit_of(seed=seed), joins_rows=joins_rows, steps=30, seed=seed).result.p_value for seed in range(30)
    ]
    assert stats.binom.sf(np.sum(np.array(p_values) <= 0.05) - 1, len(p_values), 0.05) > 1e-3
    result = train(audit_of(claim=(8.0, 1e-5), sampling_rate=0.125, steps=STEPS)).result
    assert result.verdict is Verdict.NO_VIOLATION
    assert "epsilon 8 at delta=1e-05, with Gaussian noise of multiplier 1 in each step" in str(result)
    assert result.test.noise is not None
    assert not result.test.noise.odd


def once_for_neighbours(rng: np.random.Generator, step: int) -> np.ndarray:
    return np.repeat(rng.standard_normal(WEIGHTS // 30), 30)


DEFECTS: Mapping[str, dict[str, Any]] = {
    "half of the noise": {"noise": partial(fresh, scale=0.5)},
    "none": {"noise": partial(fresh, scale=0.0)},
    "none in every fourth step": {"noise": partial(part_without, every=4), "steps": 120},
    "none on one layer": {"noise": partial(part_without, first=200)},
    "the same noise again": {"noise": partial(repeated, period=1)},
    "five noises in turn": {"noise": partial(repeated, period=5)},
    "twenty noises in turn": {"noise": partial(repeated, period=20)},
    "differences of neighbouring noise": {"noise": differences_of(1.0, 1 / np.sqrt(2)), "steps": 120},
    "neighbouring noise added": {"noise": lambda rng, step: moving(5, step, lags={1: 0.5}), "steps": 200},
    "noise of two steps before subtracted": {"noise": lambda rng, step: moving(5, step, lags={2: -1.0}), "steps": 120},
    "one number for two weights": {"noise": of_pairs},
    "one number for thirty weights": {"noise": once_for_neighbours},
    "no clip": {"clip": unclipped},
    "a clip twice as large": {"clip": partial(each_clipped, clip=2 * CLIP)},
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str) -> None:
    result = train(audit_of(seed=1), **DEFECTS[defect]).result
    assert result.verdict is Verdict.VIOLATION, str(result)
    assert result.p_value <= 1e-3


def test_correlated_noise_is_decoded() -> None:
    claimed = CorrelatedNoise.with_factor(0.9, 1.0, steps=STEPS)
    right = train(audit_of(claimed), differences_of(0.9, claimed.sensitivity, 9)).result
    assert right.verdict is Verdict.NO_VIOLATION
    assert right.test.noise is not None
    assert not right.test.noise.odd
    forgotten = train(audit_of(claimed), differences_of(0.9, 1.0, 9)).result
    assert forgotten.verdict is Verdict.VIOLATION
    # Without a description, right and wrong noise are not the independent noise that is assumed.
    assert train(audit_of(1.0), differences_of(0.9, claimed.sensitivity, 9)).result.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("kind", ["tree", "Honaker tree", "matrix"])
def test_noise_of_any_matrix_is_decoded(kind: str) -> None:
    """Steps of a Honaker tree and of the matrix reveal different amounts: each has its own claim."""
    relative = np.array([matrix_noise(kind).weights(step)[0] for step in range(120)])
    assert (np.ptp(relative) > 0) == (kind != "tree")
    right = with_matrix(3, kind=kind).result
    assert right.verdict is Verdict.NO_VIOLATION, str(right)
    assert right.test.noise is not None
    assert not right.test.noise.odd
    assert with_matrix(3, kind=kind, forgotten=True).result.verdict is Verdict.VIOLATION


def test_correlated_noise_has_claims_for_stated_participation_only() -> None:
    claimed = CorrelatedNoise.with_factor(0.9, 1.0, steps=20, participations=2, separation=10)
    with pytest.raises(InputError, match="no claim for Poisson sampling"):
        audit_of(claimed, sampling_rate=0.1)
    for every, words in ((10, ""), (5, "in 4 steps, and the claim is about at most 2; again after 5 steps")):
        audit = audit_of(claimed, records=50)
        for step in range(20):
            audit.batch(np.arange(50) % every == step % every)
            audit.observe(audit.join(np.zeros(WEIGHTS)))
        remarks = "; ".join(each.measured for each in audit.result.points_to if each.part is Part.SAMPLING)
        assert [part in remarks for part in words.split("; ")] == [True] * len(words.split("; ")), remarks
        assert bool(remarks) == bool(words)


BY_LAYER = {"hidden": slice(0, 400), "out": slice(400, WEIGHTS)}


def train_layers(scale_of: Callable[[int, str], float], steps: int = 40) -> TrainingAudit:
    """Train two tensors by name; `scale_of` a step and tensor is that of its noise."""
    audit, rng = audit_of(seed=2, divisor=1.0), np.random.default_rng(2)
    for step in range(steps):
        total = audit.join({name: np.zeros(WEIGHTS)[part] for name, part in BY_LAYER.items()})
        noise = {name: CLIP * scale_of(step, name) * rng.standard_normal(part.size) for name, part in total.items()}
        audit.observe({name: total[name] + noise[name] for name in total})
    return audit


LAYERS: Mapping[str, tuple[Callable[[int, str], float], str]] = {
    "one layer": (lambda step, name: 0.1 if name == "out" else 1.0, "noise size: the noise of out has 0.1 of"),
    "outside": (lambda step, name: float(name != "out"), "parameters outside of the noised ones: no noise on out"),
    "every fifth step": (lambda step, name: float(step % 5 > 0), "noise size: no noise on one of every 5 steps"),
    "the first steps": (lambda step, name: 1 - 0.6 * (step < 12), "noise of the first 12 steps has 0.4"),
    "falling": (lambda step, name: 1 - step / 50, "changes from 0.91 to 0.31"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_an_answer_points_to_noise_that_is_too_small(case: str) -> None:
    scale_of, words = LAYERS[case]
    result = train_layers(scale_of).result
    assert words in "; ".join(map(str, result.suspects)), result.suspects
    assert len(result.suspects) == 1


POINTED: Mapping[str, tuple[dict[str, Any], list[Part], str]] = {
    "honest": ({}, [], ""),
    "half of the noise": ({"noise": partial(fresh, scale=0.5)}, [Part.SIZE], "all weights in all steps has 0.5 of"),
    "a third of the weights": (
        {"noise": partial(part_without, first=200)},
        [Part.OUTSIDE],
        "of the weights of the mod",
    ),
    "clip twice as large": ({"clip": partial(each_clipped, clip=2 * CLIP)}, [Part.CLIP], "with 2 clips"),
    "repeated": ({"noise": partial(repeated, period=7)}, [Part.FORM], "that of 7 steps before (1.00)"),
    "differences": ({"noise": differences_of(1.0, 0.71)}, [Part.FORM], "that of the step before (-0.5"),
    "two weights": ({"noise": of_pairs}, [Part.FORM], "neighbouring weights"),
}


@pytest.mark.parametrize("case", POINTED)
def test_an_answer_points_to_the_part_that_is_wrong(case: str) -> None:
    options, parts, words = POINTED[case]
    result = train(audit_of(seed=1), **options).result
    assert list(dict.fromkeys(each.part for each in result.suspects)) == parts, result.suspects
    assert words in " ".join(each.measured for each in result.suspects)
    assert ("points-to" in str(result)) == bool(parts)
    assert [each["part"] for each in result.to_dict()["points_to"]] == [each.part.value for each in result.points_to]


def test_canaries_that_come_again_point_to_momentum() -> None:
    audit = audit_of(seed=1)
    numpy_loop(audit, 1, rows=False, momentum=0.9, steps=100)
    assert "a canary comes again in the next steps (0." in str(audit.result)


def test_noise_of_one_process_and_overspent_accounts() -> None:
    model = train(audit_of(), steps=20)._steps.model
    (suspect,) = suspects(model, ["w"], rows=False, by_process=np.array([1.0, 0.02]))
    assert suspect.measured == "the noise of process 1 has 0.02 of the stated deviation"
    result = train(audit_of(claim=(1.0, 1e-5), sampling_rate=0.125, steps=60, coins=20), steps=20).result
    assert [each.part for each in result.points_to] == [Part.ACCOUNTING]
    assert (result.verdict, result.answer.rule) == (Verdict.UNDECIDED, "other-training")
    assert "the claim is about another training: 60 such steps" in result.text()
    assert "60 such steps at rate 0.125 spend epsilon 6.94 at delta=1e-05, and 1 is claimed" in str(result)
    audit = audit_of(records=20)
    audit.batch([3, 4, 4])
    audit.observe(audit.join(np.zeros(WEIGHTS)))
    assert "a record stands 2 times in one step" in str(audit.result)


def test_names_of_tensors() -> None:
    assert names_of(np.zeros(3)) == ["the model"]
    assert names_of([np.zeros(3), np.zeros(2)]) == ["tensor 0", "tensor 1"]
    assert names_of({"a": {"b": np.zeros(3)}, "c": [np.zeros(1)]}) == ["a.b", "c.0"]


def test_coins_are_planned() -> None:
    plan = TrainingAudit.plan(1.0, steps=60, weights=100_000, batch=64)
    assert plan.coins == 5
    assert plan.factor <= 2
    assert "Canaries add a vector of 1.6 clips to a step, where the noise has 316 and the sum of 64 records" in str(
        plan
    )
    assert TrainingAudit.plan(1.0, steps=300, weights=100_000).coins < 5
    assert TrainingAudit.plan(1.0, steps=20, weights=100_000).factor > 2
    few = TrainingAudit.plan(1.0, steps=20, weights=60)
    assert few.coins / 2 / 60 <= 1.05**2 - 1 < 20 / 2 / 60
    assert Change(50.0, 10.0).needs_replica
    assert "Audit a replica" in str(Change(50.0, 10.0))
    assert train(audit_of(steps=60), steps=10).result.scores.score.size == 50
    assert train(audit_of(), steps=10).result.scores.score.size == 200


def test_a_saved_result_is_printed_and_makes_a_card(tmp_path: Path) -> None:
    result = train(audit_of(name="mine <b>"), partial(fresh, scale=0.5), steps=40).result
    folder = tmp_path / "saved"
    result.save(folder)
    printed = CliRunner().invoke(main, ["report", str(folder)])
    assert printed.output.strip() == str(result)
    card = CliRunner().invoke(main, ["card", str(folder), "--html", str(tmp_path / "card.html")])
    assert card.exit_code == 0, card.output
    pages = [path.read_text() for path in (tmp_path / "card.html", folder / "report.html")]
    assert all("The trained model was changed by the audit" in text for text in (card.output, *pages))
    assert not any("mine <b>" in page for page in pages)
    with pytest.raises(FileExistsError):
        result.save(folder)


GRID = 1 / 64


def on_the_grid(rng: np.random.Generator, step: int, *, multiplier: float = 1.0) -> np.ndarray:
    """Return discrete Gaussian noise."""
    values = np.arange(-9 * multiplier, 9 * multiplier + GRID, GRID)
    chances = np.exp(-((values / multiplier) ** 2) / 2)
    return rng.choice(values, size=WEIGHTS, p=chances / chances.sum())


def rounded_clip(rows: np.ndarray) -> np.ndarray:
    return np.trunc(each_clipped(rows) / (GRID * CLIP)) * GRID * CLIP


@pytest.mark.parametrize("joins_rows", [True, False], ids=["rows before the clip", "sum after the clip"])
def test_discrete_gaussian_noise(joins_rows: bool) -> None:
    claimed = DiscreteGaussianNoise(1.0, GRID)

    def result_of(noise: Noise, seed: int = 0) -> TrainingResult:
        audit = audit_of(claimed, seed=seed)
        return train(audit, noise, rounded_clip, joins_rows=joins_rows, steps=100, seed=seed).result

    honest = [result_of(on_the_grid, seed) for seed in range(8)]
    assert [result.verdict for result in honest] == [Verdict.NO_VIOLATION] * 8
    # Of rows before the clip, the audit does not know how they are rounded.
    assert all(result.test.noise is not None and not result.test.noise.off_grid for result in honest)
    assert joins_rows or not any(result.test.noise.odd for result in honest if result.test.noise is not None)
    assert result_of(partial(on_the_grid, multiplier=0.5)).verdict is Verdict.VIOLATION
    assert result_of(lambda rng, step: np.zeros(WEIGHTS)).verdict is Verdict.VIOLATION
    continuous = result_of(fresh)
    assert continuous.verdict is Verdict.UNDECIDED
    assert "not on the stated grid" in str(continuous)


def test_laplace_noise() -> None:
    def noise(rng: np.random.Generator, step: int, *, scale: float) -> np.ndarray:
        return rng.laplace(scale=scale, size=WEIGHTS)

    in_the_one_norm = partial(each_clipped, order=1)
    right = train(audit_of(LaplaceNoise(1.0)), partial(noise, scale=1.0), in_the_one_norm).result
    assert right.verdict is Verdict.NO_VIOLATION
    wrong = train(audit_of(LaplaceNoise(1.0)), partial(noise, scale=0.3), in_the_one_norm).result
    assert wrong.verdict is Verdict.VIOLATION


def test_a_learner_that_sees_its_coins_breaks_the_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the coins of the step are learned before they are guessed."""
    scores = NoiseModel.scores

    def peeks(self: NoiseModel, step: WaitingStep, following: Any) -> Any:
        residual = step.residual.copy()
        residual[step.turn] += step.coins[:, None] * self.directions.along[step.turn] / self.directions.length * 0.6
        return scores(self, replace(step, residual=residual), following)

    monkeypatch.setattr(NoiseModel, "scores", peeks)
    p_values = [train(audit_of(seed=seed), steps=60, seed=seed).result.p_value for seed in range(12)]
    assert stats.binom.sf(np.sum(np.array(p_values) <= 0.05) - 1, len(p_values), 0.05) < 1e-3


def test_result_at_any_time_and_its_values() -> None:
    audit = train(audit_of(), partial(fresh, scale=0.5), steps=20)
    early = audit.result
    assert audit.result.p_value == early.p_value
    assert early.bound.counts[0] == ("steps", 20)
    assert early.scores.score.size == 400
    values = early.to_dict()
    assert values["verdict"] == early.verdict.value
    assert 0.5 < values["share_right"] < 1
    assert "canaries joined its steps" in str(early)
    assert detectable_noise(0.383, 20, 60) == pytest.approx(1.75, rel=0.2)
    assert detectable_noise(0.383, 1, 5) == np.inf


def test_an_answer_fixes_the_guesses_about_its_last_step() -> None:
    """Each step is guessed once: two guesses, of which the better one counts, would be right too often."""
    early = train(audit_of(seed=5), differences_of(1.0, 1.0), steps=30)
    before = early.result.scores
    after = train(early, differences_of(1.0, 1.0), steps=30).result.scores
    np.testing.assert_array_equal(after.score[: before.score.size], before.score)
    np.testing.assert_array_equal(after.truth[: before.truth.size], before.truth)


def test_correlated_noise_is_not_decoded_beyond_a_step_that_was_not_observed() -> None:
    claimed = CorrelatedNoise.with_factor(0.9, 1.0, steps=30)
    noise = differences_of(0.9, claimed.sensitivity, 9)
    audit = train(audit_of(claimed), noise, steps=10, joins_rows=False)
    audit.join(np.zeros(WEIGHTS))
    audit.skip()
    scores = train(audit, noise, steps=10, joins_rows=False).result.scores.score.reshape(21, -1)
    assert (scores[:10] != 0).all()
    assert (scores[10:] == 0).all()


def test_tensors_lists_and_mappings_get_the_same_canaries() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    flat = rng.normal(size=WEIGHTS)

    def shapes(vector: np.ndarray) -> dict[str, np.ndarray]:
        return {"first": vector[:500].reshape(50, 10), "second": vector[500:]}

    forms: dict[str, Callable[[np.ndarray], Any]] = {
        "mapping": shapes,
        "list": lambda vector: list(shapes(vector).values()),
        "tensors": lambda vector: {name: torch.from_numpy(part.copy()) for name, part in shapes(vector).items()},
    }
    joined = {}
    for name, form in forms.items():
        audit = audit_of(seed=3)
        total = audit.join(form(flat))
        parts = list(total.values()) if isinstance(total, dict) else total
        joined[name] = np.concatenate([np.asarray(part).ravel() for part in parts])
        audit.observe(total)
        assert audit.result.bound.counts[0] == ("steps", 1)
    np.testing.assert_allclose(joined["list"], joined["mapping"])
    np.testing.assert_allclose(joined["tensors"], joined["mapping"])
    added = np.linalg.norm(joined["list"] - flat)
    audit = audit_of(seed=3)
    audit.join(shapes(flat))
    assert added == pytest.approx(CLIP * np.sqrt(audit.participates().sum()))

    in_place = {name: torch.from_numpy(part.copy()) for name, part in shapes(flat).items()}
    audit_of(seed=3).join(in_place, in_place=True)
    np.testing.assert_allclose(np.concatenate([part.numpy().ravel() for part in in_place.values()]), joined["list"])


def test_directions_are_orthogonal_and_touch_every_tensor() -> None:
    directions = Directions.draw([(4,), (40, 100), (30,), (90, 100)], 20, np.random.default_rng(0))
    assert np.unique(directions.place).size == directions.place.size
    assert set(np.unique(directions.tensor)) == {0, 1, 2, 3}
    even = directions.place.shape[2] // 2 * 2
    first, second = directions.place[0, :, 0:even:2], directions.place[0, :, 1:even:2]
    opposite = directions.sign[0, :, 0:even:2] != directions.sign[0, :, 1:even:2]
    for axis, stride in ((1, 1), (2, 100)):
        neighbours = (second - first == stride)[axis::3]
        assert neighbours.mean() > 0.5
        assert opposite[axis::3][neighbours].all()
        np.testing.assert_array_equal(directions.pair[0, :, 0:even:2][axis::3], neighbours)
    noise = np.random.default_rng(1).normal(size=directions.place.shape)
    assert (directions.rotated(noise) * directions.along).sum() == pytest.approx((noise * directions.sign).sum())
    assert directions.place.shape[:2] == (SETS, 20)
    vector = np.arange(13034.0)
    numbers = Places([4, 4000, 30, 9000], directions.place).at(
        [vector[:4], vector[4:4004], vector[4004:4034], vector[4034:]]
    )
    np.testing.assert_array_equal(numbers, directions.place)


def test_wrong_use_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="clip must be > 0"):
        audit_of(clip=0.0)
    with pytest.raises(InputError, match="must join its canaries before"):
        audit_of().observe(np.zeros(WEIGHTS))
    with pytest.raises(InputError, match="exists once a step was observed"):
        _ = audit_of().result
    with pytest.raises(InputError, match="noise"):
        audit_of("large")
    audit = audit_of()
    audit.join(np.zeros(WEIGHTS))
    with pytest.raises(InputError, match="must be observed before the next one"):
        audit.join(np.zeros(WEIGHTS))
    with pytest.raises(InputError, match="must have all weights"):
        audit.observe(np.zeros(WEIGHTS + 1))
    audit.observe(np.zeros(WEIGHTS))
    with pytest.raises(InputError, match="same sizes in each step"):
        audit.join(np.zeros(WEIGHTS + 1))
    with pytest.raises(InputError, match="at least"):
        dpaudit.TrainingAudit(1.0).join(np.zeros(1))
    assert isinstance(audit.noise, GaussianNoise)


@pytest.mark.parametrize("mode", MODES)
def test_opacus_needs_one_line(mode: str) -> None:
    pytest.importorskip("opacus")
    audit = opacus_run(0, mode=mode)
    assert audit.step == 60
    assert audit.result.verdict is Verdict.NO_VIOLATION, str(audit.result)
    assert "epsilon 5 at delta=1e-05" in str(audit.result)
    assert opacus_run(0, half_noise, mode=mode).result.verdict is Verdict.VIOLATION


def test_a_step_that_is_never_observed_counts_as_wrong_guesses() -> None:
    audit = train(audit_of(), steps=10)
    audit.join(np.zeros(WEIGHTS))
    audit.skip()
    result = train(audit, steps=10).result
    assert dict(result.bound.counts)["steps"] == 21
    assert "1 of 21 steps were not observed" in str(result)
    assert (result.scores.score.reshape(21, -1)[10] == 0).all()


def in_a_process(rank: int, folder: str) -> None:
    """Train in one of two processes, four times: each has half of the records, or half of the weights."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    mine = slice(0, 400) if rank == 0 else slice(400, WEIGHTS)
    for share, scale in itertools.product(("records", "weights"), (1.0, 0.5)):
        audit = TrainingAudit(1.0, clip=CLIP, distributed=share, seed=4)  # type: ignore[arg-type]
        data, noise = np.random.default_rng(rank), np.random.default_rng(9)
        for step in range(STEPS):
            added = CLIP * fresh(noise, step, scale=scale)
            if share == "records":
                total = audit.join(data.normal(size=WEIGHTS))
                audit.observe(Processes("records", rank, 2).summed(total) + added)
            else:
                shard = audit.join(np.random.default_rng(step).normal(size=WEIGHTS)[mine])
                audit.observe(shard + added[mine])
        result = audit.result
        Path(folder, f"{share}-{scale}-{rank}.txt").write_text(f"{result.verdict} {result.p_value:.6g}")
    dist.destroy_process_group()


def test_processes_that_divide_records_or_weights(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.multiprocessing.spawn(in_a_process, args=(str(tmp_path),), nprocs=2)
    for share in ("records", "weights"):
        for scale, verdict in ((1.0, Verdict.NO_VIOLATION), (0.5, Verdict.VIOLATION)):
            first, second = ((tmp_path / f"{share}-{scale}-{rank}.txt").read_text() for rank in (0, 1))
            assert first == second
            assert first.startswith(verdict.value), (share, scale, first)
    with pytest.raises(InputError, match="needs a process group"):
        TrainingAudit(1.0, distributed="records", seed=0)


def test_the_example_of_the_guide_prints_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    (code, output), *others = re.findall(
        r"```python\n(.*?)```\n.*?\n\n((?:    [^\n]*\n)+)", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert not others
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.rstrip().splitlines() == [line[4:] for line in output.rstrip().splitlines()]


def poisson(rng: np.random.Generator, step: int) -> np.ndarray:
    return rng.random(200) < 0.1


def shuffled(rng: np.random.Generator, step: int) -> np.ndarray:
    return np.random.default_rng(step // 10).permutation(200)[step % 10 * 20 :][:20]


def cyclic(rng: np.random.Generator, step: int) -> np.ndarray:
    return np.arange(step % 10 * 20, step % 10 * 20 + 20)


def drawn_without_replacement(rng: np.random.Generator, step: int) -> np.ndarray:
    return rng.permutation(200)[:20]


def balls_and_bins(rng: np.random.Generator, step: int) -> np.ndarray:
    return np.random.default_rng(step // 10).integers(10, size=200) == step % 10


@pytest.mark.parametrize(
    ("sampling", "rate", "words"),
    [
        (poisson, 0.1, ""),
        (poisson, 0.05, "not the stated sampling rate of 0.05"),
        (shuffled, 0.1, "Batches were shuffled"),
        (cyclic, 0.1, "in the same order each time"),
        (drawn_without_replacement, 0.1, "held 20 records"),
        (balls_and_bins, 0.1, "balls and bins"),
    ],
)
def test_sampling_is_compared_with_that_of_the_accountant(
    sampling: Callable[..., Any], rate: float, words: str
) -> None:
    rng = np.random.default_rng(1)
    audit = TrainingAudit(1.0, claim=(30.0, 1e-5), sampling_rate=rate, records=200, seed=0)
    for step in range(60):
        audit.batch(sampling(rng, step))
        audit.observe(np.asarray(audit.join(np.zeros(100))) + rng.standard_normal(100))
    remarks = [each.measured for each in audit.result.points_to if each.part is Part.SAMPLING]
    assert bool(remarks) == bool(words)
    assert words in " ".join(remarks)
    assert audit.result.verdict is (Verdict.UNDECIDED if words else Verdict.NO_VIOLATION)
    assert (words in str(audit.result)) == (not words or "points-to" in str(audit.result))
    with pytest.raises(InputError, match="numbers of records below 200"):
        audit.batch([200])
    with pytest.raises(InputError, match="needs the number of records"):
        audit_of().batch([1])


def test_a_step_keeps_no_gradients() -> None:
    """Not even until the next collection of garbage: each would cost the memory of a model."""
    audit, gradients = TrainingAudit(1.0, seed=0), {"layer": [np.zeros((40, 50)), np.zeros(50)]}
    gradient = weakref.ref(gradients["layer"][0])
    gc.disable()
    try:
        audit.join(gradients, in_place=True)
        audit.observe(gradients)
        del gradients
        assert gradient() is None
    finally:
        gc.enable()
