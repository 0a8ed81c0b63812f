"""Opacus as an external mechanism: what it promises, that it trains, that it is decided by its seed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from sklearn.datasets import load_digits

from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit, from_opacus
from dpaudit.claims import GaussianDP, Relation
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.steps.dp_sgd_steps import StepMidpoint
from dpaudit.engine.games.steps.step_probes import StepProber
from dpaudit.engine.games.two_world.canaries import RandomGradient
from dpaudit.engine.request.build import build, describe
from dpaudit.engine.request.check import CheckRequest, check_spec
from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.opacus_dp_sgd import ACCOUNTANTS, OpacusDpSgd, noise_multiplier
from dpaudit.mechanisms.adapters.own_torch import _spent, _steps_of
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import BagOfEmbeddings, Mlp, Network, SmallCnn, SmallTransformer
from dpaudit.mechanisms.protocols import Learner
from dpaudit.mechanisms.training.private.private_steps import StepCanary, dp_sgd_epsilon
from tests import nightly
from tests.mechanisms import user_code

CPU = Compute()
RAW = load_digits()
DIGITS = Examples((RAW.data / 16).astype(np.float32), RAW.target.astype(np.int64), 10, "digits")
LEARNER = OpacusDpSgd(
    8.0, accountant="rdp", model=Mlp(hidden=(16,), epochs=8, batch_size=100, learning_rate=2.0, momentum=0.0)
)


def test_the_claim_is_the_requested_epsilon() -> None:
    assert isinstance(LEARNER, Learner)
    assert (LEARNER.claim().epsilon, LEARNER.claim().delta) == (8.0, 1e-5)
    assert LEARNER.claim().relation is Relation.ADD_REMOVE


def test_missing_opacus_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(InputError, match=r"pip install dpaudit\[opacus\]"):
        LEARNER.fit(DIGITS, seed=SeedSequence(0), compute=CPU)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match="epsilon must be > 0 and finite"):
        OpacusDpSgd(np.inf)
    with pytest.raises(InputError, match="accountant must be one of prv, rdp"):
        OpacusDpSgd(1.0, accountant="gdp")
    with pytest.raises(InputError, match="needs a constant learning rate"):
        OpacusDpSgd(1.0, model=Mlp(schedule="cosine"))
    with pytest.raises(InputError, match="cannot mix several examples"):
        OpacusDpSgd(1.0, model=Mlp(standardise=True))


def test_it_trains_reproducibly() -> None:
    pytest.importorskip("opacus")
    train, test = DIGITS.take(np.arange(1200)), DIGITS.take(np.arange(1200, 1797))
    first, again, other = (
        LEARNER.fit(train, seed=SeedSequence(seed), compute=CPU).probabilities(test.features) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert (first.argmax(1) == test.labels).mean() > 0.6


SLOW = {"prv": pytest.mark.nightly}
"""Accountants whose search takes seconds."""


@pytest.mark.parametrize("accountant", [pytest.param(name, marks=SLOW.get(name, ())) for name in ACCOUNTANTS])
def test_the_noise_spends_the_claimed_epsilon(accountant: str) -> None:
    """By its own accountant at most epsilon, and by ours within the slack of its search and of Renyi bounds."""
    pytest.importorskip("opacus")
    noise = noise_multiplier(8.0, 1e-5, 0.1, 5, accountant)
    ours = dp_sgd_epsilon(noise_multiplier=noise, sample_rate=0.1, steps=50, delta=1e-5)
    assert 7.9 <= ours <= 8.01 if accountant == "rdp" else 8.0 < ours < 9.5


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (SmallCnn(epochs=1, batch_size=20), (1, 8, 8)),
        (BagOfEmbeddings(vocabulary=20, epochs=1, batch_size=20), (64,)),
        (SmallTransformer(vocabulary=20, width=8, layers=1, epochs=1, batch_size=20), (64,)),
    ],
)
def test_every_network_trains(network: Network, shape: tuple[int, ...]) -> None:
    pytest.importorskip("opacus")
    some = DIGITS.take(np.arange(60))
    assert isinstance(some.features, np.ndarray)
    data = some.with_(features=np.round(some.features * 16).reshape(-1, *shape).astype(np.float32))
    model = OpacusDpSgd(8.0, accountant="rdp", model=network).fit(data, seed=SeedSequence(0), compute=CPU)
    np.testing.assert_allclose(model.probabilities(data.features).sum(1), 1)


@pytest.mark.parametrize(
    ("clipping", "grad_sample_mode"),
    [("per_layer", "hooks"), ("adaptive", "hooks"), ("flat", "ew"), ("flat", "functorch"), ("flat", "ghost")],
)
def test_every_clipping_trains_and_adds_the_canary(clipping: str, grad_sample_mode: str) -> None:
    """The canary's steps are about one clip apart where noise is small; half as much where layers are clipped alone."""
    pytest.importorskip("opacus")
    model = Mlp(hidden=(8,), epochs=4, batch_size=100, learning_rate=0.5, momentum=0.0)
    learner = OpacusDpSgd(2_000.0, accountant="rdp", clipping=clipping, grad_sample_mode=grad_sample_mode, model=model)
    train = DIGITS.take(np.arange(400))

    probe = StepProber(StepMidpoint(), 1.0, np.random.default_rng(3), only=RandomGradient())
    canary = StepCanary(probe, np.random.default_rng(0), clip=1.0, divisor=1.0)
    learner.show_steps(train, canary, seed=SeedSequence(1), compute=CPU)
    coins, products = probe.steps().coin, probe.steps().features[:, 0]
    assert len(coins) == 16
    difference = products[coins].mean() - products[~coins].mean()
    assert 0.4 < difference < 1.6


class _Recorder:
    """A probe whose canaries are far beyond the clip; it records each step in clips."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.rest: list[Any] = []  # the noisy sum without the clipped canary

    def gradients(self, weights: int, batch: Any) -> Any:
        self.batches.append(batch)
        return np.full((2, weights), 100.0)

    def see(self, released: Any, joined: Any) -> None:
        self.rest.append(released - joined.sum() / np.sqrt(released.size))


def _in_parts(way: str, clipping: str, mode: str, recorder: _Recorder) -> int:
    """Train 12 steps of 40 rows on average, each in several parts; return the number of steps observed."""
    import torch
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from torch.utils.data import DataLoader, TensorDataset

    from dpaudit.mechanisms.adapters.opacus_dp_sgd import steps_of_opacus

    torch.manual_seed(5)
    data = DIGITS.take(np.arange(120))
    rows = TensorDataset(torch.from_numpy(np.array(data.features)[:, 20:26]), torch.from_numpy(data.labels.copy()))
    module, engine = torch.nn.Linear(6, 10), PrivacyEngine(accountant="rdp")
    private, optimizer, *criterion, batches = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(rows, batch_size=40),
        noise_multiplier=1e-4,
        max_grad_norm=[0.6, 0.8] if clipping == "per_layer" else 1.0,
        clipping=clipping,
        grad_sample_mode=mode,
        poisson_sampling=way != "backward passes",  # Opacus refuses both
    )
    loss = criterion[0] if criterion else torch.nn.functional.cross_entropy
    canary = StepCanary(recorder, np.random.default_rng(0), clip=1.0, divisor=1.0)
    with steps_of_opacus(canary):
        for _ in range(4):
            if way == "memory manager":
                with BatchMemoryManager(data_loader=batches, max_physical_batch_size=7, optimizer=optimizer) as parts:
                    for points, labels in parts:
                        optimizer.zero_grad()
                        loss(private(points), labels).backward()
                        optimizer.step()
                continue
            for points, labels in batches:
                optimizer.zero_grad()
                halves = points.split(-(-len(points) // 3)), labels.split(-(-len(points) // 3))
                for number, (some, answers) in enumerate(zip(*halves, strict=True)):
                    loss(private(some), answers).backward()
                    if way == "skipped steps":
                        optimizer.signal_skip_step(number < len(halves[0]) - 1)
                        optimizer.step()
                        optimizer.zero_grad()
                if way == "backward passes":
                    optimizer.step()
    return canary.step


@pytest.mark.parametrize("way", ["memory manager", "skipped steps", "backward passes"])
@pytest.mark.parametrize(("clipping", "mode"), [("flat", "hooks"), ("per_layer", "hooks"), ("flat", "ghost")])
def test_a_step_in_several_parts_is_one_step(way: str, clipping: str, mode: str) -> None:
    """The canary joins it once, and an attack sees the gradients of all parts."""
    pytest.importorskip("opacus")
    if (way, mode) == ("backward passes", "ghost"):
        pytest.skip("Opacus keeps only the last backward pass of ghost clipping")
    recorder = _Recorder()
    assert _in_parts(way, clipping, mode, recorder) == len(recorder.rest) == 12
    for batch, rest in zip(recorder.batches, recorder.rest, strict=True):
        if mode == "ghost":
            assert batch is None
            continue
        if clipping == "flat":
            clipped = batch / np.maximum(1.0, np.linalg.norm(batch, axis=1))[:, None]
            np.testing.assert_allclose(rest, clipped.sum(0), atol=2e-3)
        assert 20 < len(batch) < 65


def loop_with_opacus(X: Any, y: Any, seed: int, *, mistake: str = "", epsilon: float = 0.0) -> Any:
    """100 steps of a loop as others write it."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    engine = PrivacyEngine(accountant="rdp")
    module = torch.nn.Linear(X.shape[1], 10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, y), batch_size=-(-len(X) // 10))
    arguments: dict[str, Any] = {"module": module, "optimizer": optimizer, "data_loader": loader, "max_grad_norm": 1.0}
    if epsilon:
        arguments |= {"target_epsilon": epsilon, "target_delta": 1e-5, "epochs": 10}
        private, optimizer, batches = engine.make_private_with_epsilon(**arguments)
    else:
        private, optimizer, batches = engine.make_private(noise_multiplier=1.0, **arguments)
    add_noise = optimizer.add_noise

    def wrong() -> None:
        if mistake.startswith("half the noise"):
            optimizer.noise_multiplier /= 2
        if mistake == "every second step bare":
            optimizer.noise_multiplier = float(len(engine.accountant) and engine.accountant.history[-1][0] == 0)
        if mistake == "the same noise":
            torch.manual_seed(seed)
        add_noise()
        if mistake != "every second step bare":
            optimizer.noise_multiplier = 1.0

    if mistake:
        optimizer.add_noise = wrong
    for _ in range(10):
        for points, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(points), labels).backward()
            if mistake == "noise taken away":
                if optimizer.pre_step():
                    for weights in optimizer.params:
                        weights.grad = (weights.grad + weights.summed_grad / optimizer.expected_batch_size) / 2
                    optimizer.original_optimizer.step()
            elif mistake.endswith("by hand"):
                if optimizer.pre_step():
                    with torch.no_grad():
                        for weights in optimizer.params:
                            weights -= 0.1 * weights.grad
            else:
                optimizer.step()
    return private, engine


def half_the_noise(X: Any, y: Any, seed: int) -> Any:
    return loop_with_opacus(X, y, seed, mistake="half the noise")


def the_same_noise(X: Any, y: Any, seed: int) -> Any:
    return loop_with_opacus(X, y, seed, mistake="the same noise")


def noise_taken_away(X: Any, y: Any, seed: int) -> Any:
    """Half of it, after Opacus has added it."""
    return loop_with_opacus(X, y, seed, mistake="noise taken away")


def half_the_noise_by_hand(X: Any, y: Any, seed: int) -> Any:
    """The gradient that has its noise moves the weights, and no inner optimizer is asked."""
    return loop_with_opacus(X, y, seed, mistake="half the noise, by hand")


def every_second_step_bare(X: Any, y: Any, seed: int) -> Any:
    """The accountant sees it."""
    return loop_with_opacus(X, y, seed, mistake="every second step bare")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_steps_without_noise_end_in_a_claim_and_not_in_an_overflow(accountant: str) -> None:
    """Opacus's accountants have no number for them; the claim is that of as many steps with noise."""
    pytest.importorskip("opacus")

    def recorded(*history: tuple[float, float, int]) -> Any:
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant=accountant)
        engine.accountant.history = list(history)
        return engine

    noisy, bare = recorded((1.0, 0.1, 10)), recorded((1.0, 0.1, 5), (0.0, 0.1, 5))
    assert _spent(bare, 1e-5) == pytest.approx(_spent(noisy, 1e-5), rel=0.05)
    assert _steps_of(bare, 100)["without_noise"] == 5
    assert "without_noise" not in _steps_of(noisy, 100)
    with pytest.raises(InputError, match="by its accountant, no step has any"):
        _spent(recorded((0.0, 0.1, 5)), 1e-5)


def test_steps_without_noise_are_refuted(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    steps_audit = Audit(
        from_opacus(every_second_step_bare, delta=1e-5),
        DIGITS.take(np.arange(200)),
        game={"name": "dp-sgd-steps", "trainings": 2},
        split=Partition(target=1.0, reference=0.0, test=0.0),
        claim="accountant",
    )
    spec = AuditSpec((steps_audit,), run=RunOptions(runner="in-process", figures=False, repeats=0))
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert result.verdict is Verdict.VIOLATION
    assert any("no finite epsilon holds for the training" in line for line in result.meaning_for_whole)


def by_its_epsilon(X: Any, y: Any, seed: int) -> Any:
    return loop_with_opacus(X, y, seed, epsilon=8.0)


@pytest.mark.parametrize(
    ("loop", "verdict"),
    [
        (loop_with_opacus, Verdict.NO_VIOLATION),
        (half_the_noise, Verdict.VIOLATION),
        (the_same_noise, Verdict.VIOLATION),
        (noise_taken_away, Verdict.VIOLATION),
        (half_the_noise_by_hand, Verdict.VIOLATION),
    ],
)
def test_the_steps_of_an_unchanged_opacus_loop_are_audited(loop: Any, verdict: Verdict, tmp_path: Path) -> None:
    """The seed is fixed; with another one the honest loop is accused with probability <= 0.05."""
    pytest.importorskip("opacus")
    steps_audit = Audit(
        from_opacus(loop, delta=1e-5),
        DIGITS.take(np.arange(200)),
        game={"name": "dp-sgd-steps", "trainings": 4 if nightly.on() else 2},
        split=Partition(target=1.0, reference=0.0, test=0.0),
        claim="accountant",
    )
    spec = AuditSpec((steps_audit,), run=RunOptions(runner="in-process", figures=False, repeats=0))
    mechanism = spec.audits[0].mechanism
    assert dict(mechanism.steps) == {"rows": 200, "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 100}
    assert build("mechanism", describe(mechanism)) == mechanism
    assert mechanism.claimed_steps(199) is None
    (result,) = audit(spec, output=tmp_path, quiet=True).results
    assert result.verdict is verdict
    assert result.compared.claim.curve == GaussianDP(1.0)


def test_a_check_of_an_opacus_loop_audits_its_steps() -> None:
    """Rows as arrays, a budget in seconds, and one claim for all tests, which train on different numbers of rows."""
    pytest.importorskip("opacus")
    X, y = np.asarray(DIGITS.features)[:100, 20:24], DIGITS.labels[:100] % 3
    request = CheckRequest(from_opacus(user_code.with_opacus, delta=1e-5), (X, y), "accountant", budget="30s")
    spec = check_spec(request)
    assert {planned.game.registered_name for planned in spec.audits} >= {"dp-sgd-steps", "ind-mia"}
    (mechanism,) = {describe_of(planned.mechanism): planned.mechanism for planned in spec.audits}.values()
    assert mechanism.steps["rows"] == 70
    assert mechanism.rows < 70


def describe_of(mechanism: Any) -> str:
    return repr(describe(mechanism))


@pytest.mark.parametrize("loop", [loop_with_opacus, pytest.param(by_its_epsilon, marks=pytest.mark.nightly)])
def test_steps_with_less_noise_than_stated_are_refused(loop: Any) -> None:
    """By night also of a loop that searches for its noise, which takes seconds each time."""
    pytest.importorskip("opacus")
    canary = StepCanary(
        StepProber(StepMidpoint(), 1.0, np.random.default_rng(3)), np.random.default_rng(0), clip=1.0, divisor=1.0
    )
    train = DIGITS.take(np.arange(100))
    learner = from_opacus(loop, delta=1e-5).with_steps_of(train, seed=SeedSequence(0))
    louder = replace(learner, steps={**learner.steps, "noise_multiplier": 1.01 * learner.steps["noise_multiplier"]})
    with pytest.raises(InputError, match="each training must have a noise multiplier of at least"):
        louder.show_steps(train, canary, seed=SeedSequence(0), compute=CPU)


def test_incompatible_clipping_and_sampling_are_refused() -> None:
    with pytest.raises(InputError, match="ghost clips flat"):
        OpacusDpSgd(1.0, clipping="per_layer", grad_sample_mode="ghost")
    with pytest.raises(InputError, match="clipping must be one of flat, per_layer, adaptive"):
        OpacusDpSgd(1.0, clipping="round")
