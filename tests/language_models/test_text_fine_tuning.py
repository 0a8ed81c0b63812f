"""DP fine-tuning of language models: gradients of single records, clipping, sampling, noise, claim, resume."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import binom, chi2
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dpaudit.claims import Relation
from dpaudit.errors import InputError
from dpaudit.language_models.mechanisms.fine_tuning.record_gradients import SHORT_TOLERANCE
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText, in_parts, make_batch
from dpaudit.language_models.mechanisms.fine_tuning.trainers import (
    FineTuner,
    FullFineTuning,
    LoraFineTuning,
    TextTrainer,
)
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning
from dpaudit.mechanisms.compute import Compute, TrainingError, torch_generator
from dpaudit.mechanisms.training.private.private_steps import StepCanary, dp_sgd_epsilon
from tests.language_models.small_language_models import domain_texts, small_model, small_tokenizer

CPU = Compute()
VOCABULARY = 40
TRAINED_TOKENS = (3, 7, 11, 39)


def llama(*, tied: bool = False, hidden: int = 16) -> Any:
    """Return a Llama of two layers with random weights; token 0 is its padding."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            tie_word_embeddings=tied,
        )
        return scrambled(LlamaForCausalLM(config))


def gpt2() -> Any:
    """Return a GPT-2 of two layers: embeddings of positions, biases, transposed linear layers, tied embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return scrambled(GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2)))


def scrambled(model: Any) -> Any:
    """Return the model with all weights far from their initial values, so that no gradient is close to 0."""
    with torch.no_grad():
        for value in model.parameters():
            value += 0.3 * torch.randn(value.shape)
    return model.eval()


def made_records(count: int, seed: int = 0, *, texts: Sequence[int] = (1,), longest: int = 14) -> list[Record]:
    """Return records of random tokens and lengths with random masks; record i has `texts[i % len(texts)]` texts."""
    rng = np.random.default_rng(seed)

    def text() -> TrainingText:
        length = int(rng.integers(2, longest))
        # Few different tokens, so that rows of the embeddings are looked up more than once.
        return TrainingText(
            tuple(rng.choice([0, 1, 3, 7, 11, 39], length).tolist()), tuple((rng.random(length) < 0.8).tolist())
        )

    return [tuple(text() for _ in range(texts[row % len(texts)])) for row in range(count)]


LORA = LoraFineTuning(epsilon=8.0, batch_size=4, rank=2, trained_tokens=TRAINED_TOKENS)
CASES: Mapping[str, tuple[Callable[[], Any], FineTuner]] = {
    "lora": (llama, replace(LORA, trained_tokens=())),
    "lora with tokens": (llama, LORA),
    "lora with tied tokens": (lambda: llama(tied=True), LORA),
    "full": (llama, FullFineTuning(epsilon=8.0, batch_size=4)),
    "full, tied": (lambda: llama(tied=True), FullFineTuning(epsilon=8.0, batch_size=4)),
    "full, wide": (lambda: llama(tied=True, hidden=64), FullFineTuning(epsilon=8.0, batch_size=4)),
    "full GPT-2": (gpt2, FullFineTuning(epsilon=8.0, batch_size=4)),
}
"""Small matrices are computed record by record, those of "full, wide" as factors."""


def training(name: str, records: Sequence[Record], kind: type[FineTuning] = FineTuning, **changes: Any) -> FineTuning:
    """Return a training that has not begun; its adapters are scrambled, since new ones are 0."""
    build, settings = CASES[name]
    settings = replace(settings, **changes)
    seed = SeedSequence(5)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = settings.trainable(build(), device="cpu")
        if isinstance(settings, LoraFineTuning):
            with torch.no_grad():
                for value in module.parameters():
                    if value.requires_grad:
                        value += 0.3 * torch.randn(value.shape)
    return kind(settings, module, records, size=max(1, len(records)), seed=seed)


def gradient_alone(run: FineTuning, record: Record) -> dict[str, Tensor]:
    """Return torch's gradient of the loss of one record, without hooks."""
    values = list(run.parameters.values())
    gradients = torch.autograd.grad(run.loss(make_batch([record], "cpu")), values, allow_unused=True)
    return {
        name: torch.zeros_like(value) if gradient is None else gradient
        for name, value, gradient in zip(run.parameters, values, gradients, strict=True)
    }


def norm(gradient: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in gradient.values()))


@pytest.mark.parametrize("texts", [(1,), (2, 1, 3)], ids=["records", "users"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_single_records(name: str, texts: tuple[int, ...]) -> None:
    """Lengths, padding and masks differ. Texts also hold the padding token, whose embedding torch does not train."""
    records = made_records(6, texts=texts)
    run = training(name, records)
    batch = make_batch(records, "cpu")
    alone = [gradient_alone(run, record) for record in records]
    gradients = run.gradients.of(lambda: run.loss(batch), batch.places)
    squares = {key: gradient.squared_norms() for key, gradient in gradients.items()}
    factors = torch.linspace(0.5, 2.0, len(records))
    for key, gradient in gradients.items():
        expected = torch.stack([single[key] for single in alone])
        scale = float(expected.abs().max()) + 1e-6
        total = torch.zeros_like(expected[0])
        gradient.add_weighted_sum(factors, total)
        assert float((total - torch.tensordot(factors, expected, 1)).abs().max()) < 1e-5 * len(records) * scale
        square, whole = squares[key], gradient.whole()
        assert square is not None
        assert whole is not None
        assert torch.allclose(square, expected.flatten(1).square().sum(1), rtol=1e-4, atol=1e-8)
        assert float((whole - expected).abs().max()) < 1e-5 * scale, key


def largest_change(kind: type[FineTuning], name: str) -> float:
    """Return the largest change, over clip, of the sum of a step when one record is added or removed."""
    records = made_records(6, seed=3)
    run = training(name, records, kind, clip=0.1)
    full = run.clipped_sums(records)
    changes = []
    for row in range(len(records)):
        rest = run.clipped_sums([record for other, record in enumerate(records) if other != row])
        changes.append(norm({key: full[key] - rest[key] for key in full}) / 0.1)
    return max(changes)


@pytest.mark.parametrize("name", CASES)
def test_one_record_changes_a_sum_by_at_most_the_clip(name: str) -> None:
    """All norms exceed the clip, so that each record changes the sum by just the clip."""
    assert largest_change(FineTuning, name) == pytest.approx(1.0, abs=1e-3)


def test_a_gradient_below_the_clip_is_unchanged() -> None:
    records = made_records(1)
    run = training("lora", records, clip=1e4)
    expected = gradient_alone(run, records[0])
    for name, value in run.clipped_sums(records).items():
        assert torch.allclose(value, expected[name], atol=1e-5)


def noise_is_right(kind: type[FineTuning]) -> bool:
    """True if the noise of every parameter has the claimed deviation; false failure < 1e-6 by a union bound."""
    run = training("lora with tokens", made_records(40), kind, clip=0.3)
    private = run.steps.private
    deviation = private.noise_multiplier * private.clip
    draws = 20
    squares = dict.fromkeys(run.parameters, 0.0)
    for step in range(draws):
        sums = run.gradients.zeros()
        run.add_noise(sums, torch_generator(SeedSequence(step)))
        for name, value in sums.items():
            squares[name] += float(value.double().square().sum()) / deviation**2
    error = 1e-6 / (2 * len(squares))
    return all(
        chi2.ppf(error, draws * run.parameters[name].numel())
        < square
        < chi2.isf(error, draws * run.parameters[name].numel())
        for name, square in squares.items()
    )


def test_noise_has_the_claimed_deviation_on_every_parameter() -> None:
    assert noise_is_right(FineTuning)


def test_a_step_without_records_is_noise_alone() -> None:
    """The step of SGD is the noise over the expected number of records."""
    records = made_records(40)
    run = training("lora", records, optimizer="sgd", learning_rate=1.0)
    run.sample = lambda step: np.arange(0)  # type: ignore[method-assign]
    before = {name: value.detach().clone() for name, value in run.parameters.items()}
    run.step(0)
    moves = torch.cat([(value.detach() - before[name]).flatten() for name, value in run.parameters.items()])
    private = run.steps.private
    square = float(moves.double().square().sum()) * (4 / (private.noise_multiplier * private.clip)) ** 2
    assert chi2.ppf(5e-7, len(moves)) < square < chi2.isf(5e-7, len(moves))
    again = torch.cat([value.detach().flatten().clone() for value in run.parameters.values()])
    run.step(1)
    other = torch.cat([value.detach().flatten() for value in run.parameters.values()]) - again
    assert abs(float(torch.corrcoef(torch.stack([moves, other]))[0, 1])) < 5 / math.sqrt(len(moves))


def test_records_are_sampled_independently_at_the_rate() -> None:
    """False failure < 1e-6 for each of the three counts: pairs of records, pairs of steps, and all."""
    run = training("lora", made_records(20) * 10, batch_size=50)
    is_sampled = np.zeros((400, 200), dtype=np.bool_)
    for step in range(400):
        is_sampled[step, run.sample(step)] = True
    for events, probability in (
        (is_sampled, 1 / 4),
        (is_sampled[:, ::2] & is_sampled[:, 1::2], 1 / 16),
        (is_sampled[::2] & is_sampled[1::2], 1 / 16),
    ):
        low, high = binom.ppf(5e-7, events.size, probability), binom.isf(5e-7, events.size, probability)
        assert low <= events.sum() <= high
    sizes = is_sampled.sum(1)  # a sampler of one size or of shuffled batches varies less
    spread = 400 * sizes.var() / (200 * 3 / 16)
    assert chi2.ppf(5e-7, 399) < spread < chi2.isf(5e-7, 399)
    np.testing.assert_array_equal(run.sample(7), run.sample(7))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_claim_is_that_of_the_accountant(accountant: str) -> None:
    trainer = LoraFineTuning(epsilon=2.0, delta=1e-4, batch_size=20, epochs=4, accountant=accountant)
    assert isinstance(trainer, TextTrainer)
    steps = trainer.claimed_steps(400)
    assert (steps.private.sample_rate, steps.count, steps.divisor) == (0.05, 80, 20)
    spent = dp_sgd_epsilon(
        noise_multiplier=steps.private.noise_multiplier, sample_rate=0.05, steps=80, delta=1e-4, accountant=accountant
    )
    assert 2 * 0.99 < spent <= 2
    claim = trainer.claim(400)
    assert claim is not None
    assert (claim.epsilon, claim.delta, claim.relation) == (2.0, 1e-4, Relation.ADD_REMOVE)
    assert claim.curve.epsilon(1e-4) <= 2
    assert replace(trainer, epsilon=math.inf).claim(400) is None
    assert trainer.claimed_steps(10).private.sample_rate == 1


@pytest.mark.parametrize("optimizer_name", ["adamw", "sgd"])
def test_training_without_privacy_is_that_of_torch(optimizer_name: str) -> None:
    """With every record in every step: the mean of the losses of records."""
    records = made_records(6, texts=(1, 2))
    base = llama(tied=True)
    rates = {"optimizer": optimizer_name, "learning_rate": 1e-2, "momentum": 0.5, "weight_decay": 0.1}
    trainer = FullFineTuning(batch_size=6, epochs=3, **rates)  # type: ignore[arg-type]
    ours = trainer.train(base, records, seed=SeedSequence(0), compute=CPU)
    theirs = copy.deepcopy(base)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-2, momentum=0.5, weight_decay=0.1)
    for _ in range(3):
        losses = []
        for record in records:
            sums, count = torch.tensor(0.0), 0
            for text in record:
                tokens = torch.tensor([text.tokens])
                has_loss = torch.tensor(text.targets[1:])
                logits = theirs(tokens).logits[0, :-1]
                sums = sums + nn.functional.cross_entropy(logits[has_loss], tokens[0, 1:][has_loss], reduction="sum")
                count += int(has_loss.sum())
            losses.append(sums / max(count, 1))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    for (name, value), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(value, other, atol=2e-4), name
    assert any(not torch.equal(value, other) for value, other in zip(ours.parameters(), base.parameters(), strict=True))


@pytest.mark.parametrize("name", ["lora with tied tokens", "full, tied"])
def test_the_seed_decides_the_weights_and_the_base_model_stays(name: str) -> None:
    build, settings = CASES[name]
    base, records = build(), made_records(8)
    before = copy.deepcopy(base.state_dict())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    seed = SeedSequence(1)
    first, again = (settings.train(base, records, seed=seed, compute=CPU) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    other = settings.train(base, records, seed=SeedSequence(2), compute=CPU)
    weights = [dict(model.named_parameters()) for model in (first, again, other)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert any(not torch.equal(value, weights[2][name]) for name, value in weights[0].items())
    assert before.keys() == base.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    small = replace(settings, batch_tokens=20).train(base, records, seed=seed, compute=CPU)
    for key, value in small.named_parameters():  # AdamW divides tiny gradients, so rounding is not as small there
        assert torch.allclose(value, weights[0][key], atol=1e-3), key


def test_an_adapter_switched_off_is_the_base_model(tmp_path: Path) -> None:
    """The base model comes from a folder."""
    base, records = llama(tied=True), made_records(12)
    base.save_pretrained(tmp_path)
    trainer = LoraFineTuning(batch_size=4, learning_rate=1e-2, trained_tokens=TRAINED_TOKENS)
    model = trainer.train(str(tmp_path), records, seed=SeedSequence(0), compute=CPU)
    tokens = torch.tensor([[3, 7, 11, 20]])
    with torch.no_grad():
        before, changed = base(tokens).logits, model(tokens).logits
        with model.disable_adapter():
            assert torch.allclose(model(tokens).logits, before, atol=1e-5)
    assert float((changed - before).abs().max()) > 1e-2
    moved = [name for name, value in model.named_parameters() if value.requires_grad]
    assert any("trainable_tokens" in name for name in moved)
    assert all("lora" in name or "trainable_tokens" in name for name in moved)


@pytest.mark.parametrize("name", ["lora with tied tokens", "full, tied"])
def test_a_resumed_training_gives_the_same_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.mechanisms.training.checkpoint.CHECKPOINT_EVERY_S", 0.0)
    build, settings = CASES[name]
    base, records, seed = build(), made_records(8), SeedSequence(1)
    expected = settings.train(base, records, seed=seed, compute=CPU)
    steps: list[int] = []

    def stops(step: int, total: int) -> None:
        steps.append(step)
        if step == 3:
            raise KeyboardInterrupt

    compute = Compute(scratch=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        settings.train(base, records, seed=seed, compute=compute, progress=stops)
    resumed = settings.train(base, records, seed=seed, compute=compute, progress=lambda step, _: steps.append(step))
    assert steps == [1, 2, 3, 4, 5, 6]
    for (key, value), other in zip(resumed.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(value, other), key
    steps.clear()
    settings.train(base, records[:-1], seed=seed, compute=compute, progress=lambda step, _: steps.append(step))
    assert steps[0] == 1  # other data begin at the first step


@pytest.mark.parametrize("name", ["lora with tied tokens", "full, tied"])
def test_activations_of_16_bits_change_rounding_alone(name: str) -> None:
    """The check compares with torch at the same precision. Sums have 32 bits, and no record exceeds the clip."""
    records = made_records(6)
    run = training(name, records, clip=0.1, precision="bfloat16")
    batch = make_batch(records, "cpu")
    run.gradients.check(lambda: run.loss(batch), batch.places, tolerance=SHORT_TOLERANCE)
    with pytest.raises(InputError, match="must be the sum over the layers"):
        run.gradients.check(lambda: run.loss(batch), batch.places, tolerance=1e-5)
    sums = run.clipped_sums(records[:1])
    assert norm(sums) == pytest.approx(0.1, rel=1e-3)
    assert all(value.dtype == torch.float32 for value in sums.values())


class ConstantProbe:
    """A probe whose two canaries are always the same gradient; it keeps what it sees."""

    def __init__(self, norm: float) -> None:
        self.norm = norm
        self.seen: list[tuple[NDArray[np.float64], int]] = []

    def gradients(self, weights: int, batch: object) -> NDArray[np.float64]:
        return np.full((2, weights), self.norm / math.sqrt(weights))

    def see(self, released: NDArray[np.float64], joined: NDArray[np.bool_]) -> None:
        self.seen.append((released, int(joined.sum())))


def test_a_canary_takes_part_in_steps_like_a_record() -> None:
    """Each is clipped. The mean over steps of what is seen along both is the number of those that take part."""
    trainer = LoraFineTuning(epsilon=8.0, clip=0.5, batch_size=1, epochs=100, rank=2)
    steps = trainer.claimed_steps(1)
    probe = ConstantProbe(3.0)
    canary = StepCanary(probe, np.random.default_rng(0), clip=0.5, divisor=steps.divisor)
    silent: Record = (TrainingText((1, 3), (False, False)),)  # a record without loss has no gradient
    trainer.train(llama(), [silent], seed=SeedSequence(0), compute=CPU, canary=canary)
    along = np.array([released.sum() / math.sqrt(len(released)) for released, _ in probe.seen])
    joined = np.array([joined for _, joined in probe.seen])
    deviation = steps.private.noise_multiplier  # in units of the clip
    assert len(joined) == steps.count == 100
    for mean in range(3):
        group = along[joined == mean]
        assert abs(group.mean() - mean) < 5 * deviation / math.sqrt(len(group))  # false failure < 1e-6
    residuals = np.concatenate([released for released, count in probe.seen if not count]) / deviation
    assert chi2.ppf(5e-7, len(residuals)) < (residuals**2).sum() < chi2.isf(5e-7, len(residuals))


def test_every_batch_is_shown_with_its_labels() -> None:
    """A listener sees each token with loss of each record as often as the record was sampled."""
    records = made_records(8, texts=(1, 2))
    batches: list[tuple[list[list[int]], list[list[int]]]] = []
    trainer = LoraFineTuning(batch_size=8, epochs=2)
    trainer.train(
        llama(),
        records,
        seed=SeedSequence(0),
        compute=CPU,
        on_batch=lambda tokens, labels: batches.append((tokens.tolist(), labels.tolist())),
    )
    labels_seen = sorted(tuple(label for label in row if label >= 0) for _, labels in batches for row in labels)
    targets = [
        tuple(token for token, counted in zip(text.tokens, text.targets, strict=True) if counted)
        for record in records
        for text in record
    ]
    assert labels_seen == sorted(targets * 2)


class SharesItsOutputWeights(nn.Module):
    """A model that uses its embeddings a second time without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.embed(input_ids) @ self.embed.weight.T
        return logits


class Convolves(nn.Module):
    """A model with a layer whose gradients of single records are not known."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(VOCABULARY, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.out(self.mix(self.embed(input_ids).mT).mT)
        return logits


class Normalises(Convolves):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.BatchNorm1d(8)  # type: ignore[assignment]


class Averages(Convolves):
    """A model whose logits depend on all texts of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.LayerNorm(8)  # type: ignore[assignment]

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.mix(self.embed(input_ids))
        logits: Tensor = self.out(states + states.mean(0, keepdim=True))
        return logits


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Averages, "the gradient of a record must not depend on the other records of its batch"),
        (SharesItsOutputWeights, "the gradient of embed.weight must be the sum over the layers that hold it"),
        (Convolves, r"gradients of single records are not known for Conv1d \(mix\)"),
        (Normalises, "BatchNorm1d mixes the records of a batch"),
    ],
)
def test_a_model_that_cannot_be_clipped_is_refused(model: type[nn.Module], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FullFineTuning(epsilon=1.0, batch_size=4).train(model(), made_records(8), seed=SeedSequence(0), compute=CPU)


def test_wrong_settings_are_refused() -> None:
    for changes, message in (
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"rank": 0}, "rank must be >= 1"),
        ({"alpha": 0.0}, "alpha must be > 0"),
        ({"target_modules": ()}, "target_modules must name at least one layer"),
        ({"trained_tokens": (1, 1)}, "trained_tokens must be different"),
        ({"optimizer": "adam"}, "optimizer must be one of adamw, sgd"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16"),
        ({"batch_size": 0}, "batch_size must be >= 1"),
    ):
        with pytest.raises(InputError, match=message):
            LoraFineTuning(**changes)
    for trainer, message in (
        (LoraFineTuning(target_modules=("no_such",)), "target_modules must be linear layers"),
        (LoraFineTuning(trained_tokens=(VOCABULARY,)), "trained_tokens must be below the 40 tokens"),
    ):
        with pytest.raises(InputError, match=message):
            trainer.train(llama(), made_records(2), seed=SeedSequence(0), compute=CPU)
    for text, message in (
        (TrainingText((1, VOCABULARY)), "tokens must be below the 40 of the base model"),
        (TrainingText((1,) * 65), "a text must fit in the 64 tokens of the base model"),
    ):
        with pytest.raises(InputError, match=message):
            FullFineTuning().train(llama(), [(text,)], seed=SeedSequence(0), compute=CPU)
    with pytest.raises(InputError, match="a base model must be the path"):
        FullFineTuning().train(3, made_records(2), seed=SeedSequence(0), compute=CPU)
    with pytest.raises(InputError, match="path must be the folder"):
        FullFineTuning().train("no-such-folder", made_records(2), seed=SeedSequence(0), compute=CPU)
    with pytest.raises(InputError, match="each record must have at least one text"):
        FullFineTuning().train(llama(), [()], seed=SeedSequence(0), compute=CPU)


def test_weights_that_diverge_are_an_error() -> None:
    trainer = FullFineTuning(optimizer="sgd", learning_rate=1e30, batch_size=4)
    with pytest.raises(TrainingError, match="Lower learning_rate"):
        trainer.train(llama(), made_records(8), seed=SeedSequence(0), compute=CPU)


def test_the_page_fine_tunes_a_model() -> None:
    """The block of docs/guides/fine-tuning.md runs."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "fine-tuning.md"
    (block,) = (part.partition("```")[0] for part in page.read_text(encoding="utf-8").split("```python\n")[1:])
    tokenizer = small_tokenizer()
    names: dict[str, Any] = {"tokenizer": tokenizer, "train_texts": domain_texts(40)}
    names["base"] = small_model(tokenizer, hidden=32, layers=1)
    exec(compile(block, str(page), "exec"), names)
    assert names["trainer"].claim(40).epsilon == 8
    assert hasattr(names["model"], "disable_adapter")


def test_texts_have_two_tokens() -> None:
    with pytest.raises(InputError, match="at least two tokens"):
        TrainingText((1,))


def test_parts_hold_all_records_and_at_most_the_given_tokens() -> None:
    records = made_records(50, texts=(1, 3))
    parts = list(in_parts(records, 40))
    assert sorted(map(id, records)) == sorted(id(record) for part in parts for record in part)
    sizes = [make_batch(part, "cpu").tokens.numel() for part in parts]
    assert all(size <= 40 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    assert len(parts) < 40
