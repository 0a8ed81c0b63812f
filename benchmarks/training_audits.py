"""Audits that accompany a training: planted defects that are found in one run, and honest trainings that are accused.

    python -m benchmarks.training_audits RUNS.jsonl [--only TEXT ...] [--seeds 20] [--write]

Trainers: a loop in NumPy that joins rows before the clip or sums after it, a loop of tensors in torch, and Opacus. All
train small models for 60 to 200 steps; the claim is that of the stated noise. A defect of the sampling or of the
account, which no step shows, is found if the answer names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.campaign import campaign
from dpaudit import CorrelatedNoise, LaplaceNoise, MatrixNoise, TrainingAudit, Verdict

WEIGHTS, STEPS, CLIP, BATCH, ROWS = 600, 60, 2.0, 10.0, 80
FACTOR = 0.9
"""Factor of correlated noise."""
Array = np.ndarray[Any, Any]
Noise = Callable[[np.random.Generator, int], Array]
Clip = Callable[[Array], Array]


def fresh(rng: np.random.Generator, step: int, *, scale: float = 1.0) -> Array:
    return scale * rng.standard_normal(WEIGHTS)


def part_without(rng: np.random.Generator, step: int, *, every: int = 0, first: int = 0, scale: float = 0.0) -> Array:
    """Return noise that is scaled down in every n-th step, or on the first weights."""
    noise = fresh(rng, step)
    if every and step % every == 0:
        noise *= scale
    noise[:first] *= scale
    return noise


def repeated(rng: np.random.Generator, step: int, *, period: int) -> Array:
    return np.random.default_rng(step % period).standard_normal(WEIGHTS)


def of_pairs(rng: np.random.Generator, step: int) -> Array:
    """Return noise that is equal in neighbouring weights."""
    return np.repeat(rng.standard_normal(WEIGHTS // 2), 2)


def differences(seed: int, step: int, *, factor: float, deviation: float) -> Array:
    """Return z_t - factor z_(t-1) with white noise z of a deviation."""
    now, before = (np.random.default_rng([seed, number]).standard_normal(WEIGHTS) for number in (step + 1, step))
    return deviation * (now - factor * before * (step > 0))


def moving(seed: int, step: int, *, lags: Mapping[int, float]) -> Array:
    """Return z_t + sum of factor z_(t - lag) with white noise z, scaled to variance 1."""
    now, *earlier = (np.random.default_rng([seed, 1_000 + step - lag]).standard_normal(WEIGHTS) for lag in (0, *lags))
    total = now + sum(factor * noise for factor, noise in zip(lags.values(), earlier, strict=True))
    return np.asarray(total / np.sqrt(1 + sum(factor**2 for factor in lags.values())))


def each_clipped(rows: Array, *, clip: float = CLIP, order: int = 2) -> Array:
    norms = np.linalg.norm(rows, ord=order, axis=1, keepdims=True)
    return np.asarray((rows / np.maximum(1, norms / clip)).sum(0))


def average_clipped(rows: Array) -> Array:
    total = rows.sum(0)
    return np.asarray(total / max(1.0, np.linalg.norm(total) / len(rows) / CLIP))


def unclipped(rows: Array) -> Array:
    return np.asarray(rows.sum(0))


def clipped_in_each_weight(rows: Array) -> Array:
    return np.asarray(np.clip(rows, -CLIP, CLIP).sum(0))


def noised_rows_clipped(rows: Array) -> Array:
    """Return the sum of rows that were clipped after their noise was added."""
    noise = np.random.default_rng(rows.shape[0]).standard_normal(rows.shape)
    return each_clipped(rows + CLIP * noise / np.sqrt(len(rows)))


def poisson(rng: np.random.Generator, step: int, *, rate: float = BATCH / ROWS) -> Array:
    return np.flatnonzero(rng.random(ROWS) < rate)


def shuffled(rng: np.random.Generator, step: int, *, dropped: int = 0) -> Array:
    """Return the next batch of a shuffled epoch, whose last batches may be dropped."""
    size = int(BATCH)
    epoch, place = divmod(step, ROWS // size - dropped)
    return np.random.default_rng(epoch).permutation(ROWS)[place * size :][:size]


def drawn_at_once(rng: np.random.Generator, step: int) -> Array:
    return rng.permutation(ROWS)[: int(BATCH)]


def users_of_rows(rng: np.random.Generator, step: int) -> Array:
    """Return the users of Poisson sampled rows: three rows belong to each user."""
    return poisson(rng, step) // 3


def numpy_loop(
    audit: TrainingAudit,
    seed: int,
    noise: Noise = fresh,
    clip: Clip = each_clipped,
    *,
    rows: bool,
    steps: int = STEPS,
    momentum: float = 0.0,
    sampling: Noise | None = None,
) -> None:
    """Train a linear model; `sampling` returns the records of a step, which the audit is told then."""
    rng, weights = np.random.default_rng(seed), np.zeros(WEIGHTS)
    features = rng.normal(size=(ROWS, WEIGHTS)) / 8
    labels = features[:, 0] > 0
    total = np.zeros(WEIGHTS)
    for step in range(steps):
        batch = poisson(rng, step) if sampling is None else sampling(rng, step)
        if sampling is not None:
            audit.batch(batch)
        gradients = features[batch] * (1 / (1 + np.exp(-features[batch] @ weights)) - labels[batch])[:, None]
        total = momentum * total + (clip(audit.join(gradients)) if rows else audit.join(clip(gradients)))
        noisy = (total + CLIP * noise(rng, step)) / BATCH
        audit.observe(noisy)
        weights -= 0.5 * noisy


def torch_loop(
    audit: TrainingAudit,
    seed: int,
    scale_of: Callable[[int, str], float] = lambda step, name: 1.0,
    *,
    steps: int = STEPS,
    lora: bool = False,
    batch_norm: bool = False,
) -> None:
    """Train a network by sums of clipped gradients, in tensors by name; `scale_of` a step and tensor is the noise's.

    With `lora`, two factors of the first layer are trained; with `batch_norm`, means of the batches are released too.
    """
    import torch
    from torch.func import functional_call, grad, vmap

    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
    features, labels = torch.randn(ROWS, 20), torch.randint(2, (ROWS,))

    factors = {"lora_A": torch.randn(6, 20) / 5, "lora_B": torch.zeros(30, 6)}

    def loss(parameters: Any, row: Any, label: Any) -> Any:
        if lora:
            first = module[0].weight + parameters["lora_B"] @ parameters["lora_A"]
            return torch.nn.functional.cross_entropy(module[2](torch.relu(first @ row)), label)
        return torch.nn.functional.cross_entropy(functional_call(module, parameters, (row[None],)), label[None])

    parameters = factors if lora else {name: value.detach() for name, value in module.named_parameters()}
    for step in range(steps):
        batch = torch.rand(ROWS) < BATCH / ROWS
        if not batch.any():
            batch[0] = True
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features[batch], labels[batch])
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in each.values()]).norm(dim=0)
        shares = 1 / (norms / CLIP).clamp(min=1)
        total = {name: torch.einsum("b,b...->...", shares, value) for name, value in each.items()}
        if batch_norm:
            total["norm.running_mean"] = features[batch].sum(0)
        total = audit.join(total)
        noisy = {
            name: (value + CLIP * scale_of(step, name) * torch.randn_like(value)) / BATCH
            for name, value in total.items()
        }
        audit.observe(noisy)
        parameters = {name: value - 0.5 * noisy[name] for name, value in parameters.items()}


def opacus_run(
    seed: int, spoil: Callable[[Any], None] = lambda optimizer: None, *, mode: str, epochs: int = STEPS // 3
) -> TrainingAudit:
    """Train by Opacus; `spoil` plants a defect into the optimizer after the audit has read what it states."""
    import opacus
    import torch
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
    options: Mapping[str, Any] = {
        "per layer": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4},
        "ghost": {"grad_sample_mode": "ghost", "criterion": torch.nn.CrossEntropyLoss()},
    }.get(mode, {})
    private, optimizer, *criterion, loader = opacus.PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.3),
        data_loader=DataLoader(TensorDataset(torch.randn(120, 20), torch.randint(2, (120,))), batch_size=40),
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options,
    )
    audit = TrainingAudit.of_opacus(optimizer, claim=(5, 1e-5), seed=seed)
    spoil(optimizer)
    loss = criterion[0] if criterion else torch.nn.CrossEntropyLoss()

    def epoch(batches: Any) -> None:
        for features, labels in batches:
            optimizer.zero_grad()
            loss(private(features), labels).backward()
            optimizer.step()

    for _ in range(epochs):
        if mode == "virtual steps":
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer) as parts:
                epoch(parts)
        else:
            epoch(loader)
    return audit


def half_noise(optimizer: Any) -> None:
    optimizer.noise_multiplier = 0.5


def seeded_in_each_step(optimizer: Any) -> None:
    import torch

    add_noise = optimizer.add_noise

    def adding() -> None:
        state = torch.get_rng_state()
        torch.manual_seed(5)
        add_noise()
        torch.set_rng_state(state)

    optimizer.add_noise = adding


def one_tensor_bare(optimizer: Any) -> None:
    add_noise = optimizer.add_noise

    def adding() -> None:
        add_noise()
        optimizer.params[0].grad = optimizer.params[0].summed_grad.clone()

    optimizer.add_noise = adding


def denoised(optimizer: Any) -> None:
    """Average the gradients with those of the step before, which is no defect, and drop the noise of every third."""
    add_noise, steps = optimizer.add_noise, iter(range(10**6))

    def adding() -> None:
        add_noise()
        if next(steps) % 3 == 0:
            for each in optimizer.params:
                each.grad = each.summed_grad.clone().view_as(each)

    optimizer.add_noise = adding


def with_numpy(
    seed: int, *, claimed: Any = 1.0, rows: bool, stated: Mapping[str, Any] | None = None, **defect: Any
) -> TrainingAudit:
    audit = TrainingAudit(claimed, clip=CLIP, divisor=BATCH, seed=seed, **(stated or {}))
    numpy_loop(audit, seed, rows=rows, **defect)
    return audit


def with_torch(seed: int, **defect: Any) -> TrainingAudit:
    audit = TrainingAudit(1.0, clip=CLIP, divisor=BATCH, seed=seed)
    torch_loop(audit, seed, **defect)
    return audit


def with_correlated(seed: int, *, deviation: float | None = None) -> TrainingAudit:
    claimed = CorrelatedNoise.with_factor(FACTOR, 1.0, steps=2 * STEPS)
    size = claimed.sensitivity if deviation is None else deviation

    def noise(rng: np.random.Generator, step: int) -> Array:
        return differences(seed, step, factor=FACTOR, deviation=size)

    return with_numpy(seed, claimed=claimed, rows=False, noise=noise, steps=2 * STEPS)


def with_laplace(seed: int, *, scale: float = 1.0, order: int = 1) -> TrainingAudit:
    def noise(rng: np.random.Generator, step: int) -> Array:
        return rng.laplace(scale=scale, size=WEIGHTS)

    clip = partial(each_clipped, order=order)
    return with_numpy(seed, claimed=LaplaceNoise(1.0), rows=True, noise=noise, clip=clip)


def with_matrix(seed: int, *, kind: str, forgotten: bool = False) -> TrainingAudit:
    """Train with noise M z of a matrix mechanism of a kind, in the right size or with a sensitivity of 1."""
    claimed = matrix_noise(kind)
    matrix = np.linalg.inv(claimed.strategy) if claimed.noise is None else claimed.noise
    size = 1.0 if forgotten else claimed.sensitivity
    white = np.random.default_rng([seed, 7]).standard_normal((matrix.shape[1], WEIGHTS))

    def noise(rng: np.random.Generator, step: int) -> Array:
        return np.asarray(size * matrix[step] @ white)

    return with_numpy(seed, claimed=claimed, rows=False, noise=noise, steps=2 * STEPS)


def matrix_noise(kind: str) -> MatrixNoise:
    """Return a tree, one with Honaker's estimator, or a general matrix with entries of both signs."""
    steps = 2 * STEPS
    if kind == "matrix":
        strategy = np.tril(np.random.default_rng(0).normal(size=(steps, steps)), -1) / 20
        return MatrixNoise(1.0, strategy + np.diag(np.linspace(1, 1.5, steps)), participations=4, separation=30)
    return MatrixNoise.of_tree(1.0, steps, honaker=kind == "Honaker tree")


def with_moving(seed: int, **lags: float) -> TrainingAudit:
    """Train with noise that is linear in earlier noise, by the factor of each lag."""
    factors = {int(lag.removeprefix("lag_")): factor for lag, factor in lags.items()}

    def noise(rng: np.random.Generator, step: int) -> Array:
        return moving(seed, step, lags=factors)

    return with_numpy(seed, rows=False, noise=noise, steps=200)


BEFORE, AFTER = partial(with_numpy, rows=True), partial(with_numpy, rows=False)
STATED = {"records": ROWS, "sampling_rate": BATCH / ROWS, "claim": (8.0, 1e-5)}
SAMPLED = partial(AFTER, stated=STATED, sampling=poisson)
MODES = ("flat", "per layer", "ghost", "virtual steps")
OPACUS_DEFECTS = {
    "half of the noise": half_noise,
    "the same noise in each step": seeded_in_each_step,
    "no noise on one tensor": one_tensor_bare,
    "no noise in every third step": denoised,
}
HONEST: Mapping[str, Callable[[int], TrainingAudit]] = {
    "NumPy, rows before the clip": BEFORE,
    "NumPy, sums after the clip": AFTER,
    "NumPy, batches recorded": SAMPLED,
    "torch, tensors by name": with_torch,
    "torch, LoRA": partial(with_torch, lora=True),
    "correlated noise": with_correlated,
    **{f"noise of a {kind}": partial(with_matrix, kind=kind) for kind in ("tree", "Honaker tree", "matrix")},
    "Laplace noise": with_laplace,
    **{f"Opacus, {mode}": partial(opacus_run, mode=mode) for mode in MODES},
}
DEFECTS: Mapping[str, Callable[[int], TrainingAudit]] = {
    "NumPy, rows before the clip: half of the noise": partial(BEFORE, noise=partial(fresh, scale=0.5)),
    "NumPy, rows before the clip: no clip": partial(BEFORE, clip=unclipped),
    "NumPy, rows before the clip: the average is clipped": partial(BEFORE, clip=average_clipped),
    "NumPy, rows before the clip: a clip twice as large": partial(BEFORE, clip=partial(each_clipped, clip=2 * CLIP)),
    "NumPy, rows before the clip: each weight is clipped": partial(BEFORE, clip=clipped_in_each_weight),
    "NumPy, sums after the clip: no noise": partial(AFTER, noise=partial(fresh, scale=0.0)),
    "NumPy, sums after the clip: no noise in every fourth step": partial(
        AFTER, noise=partial(part_without, every=4), steps=2 * STEPS
    ),
    "NumPy, sums after the clip: no noise on a third of the weights": partial(
        AFTER, noise=partial(part_without, first=200)
    ),
    "NumPy, sums after the clip: a tenth of the noise on a third": partial(
        AFTER, noise=partial(part_without, first=200, scale=0.1)
    ),
    "NumPy, sums after the clip: the same noise in each step": partial(AFTER, noise=partial(repeated, period=1)),
    "NumPy, sums after the clip: twenty noises in turn": partial(AFTER, noise=partial(repeated, period=20)),
    "NumPy, sums after the clip: equal noise in neighbouring weights": partial(AFTER, noise=of_pairs),
    "NumPy, sums after the clip: z_t - z_(t-1) as independent noise": partial(with_moving, lag_1=-1.0),
    "NumPy, sums after the clip: z_t + 0.5 z_(t-1) as independent noise": partial(with_moving, lag_1=0.5),
    "NumPy, sums after the clip: z_t - z_(t-2) as independent noise": partial(with_moving, lag_2=-1.0),
    "NumPy, sums after the clip: the same noise in every fifth step": partial(AFTER, noise=partial(repeated, period=5)),
    "NumPy, rows before the clip: noise before the clip": partial(
        BEFORE, clip=noised_rows_clipped, noise=partial(fresh, scale=0.0)
    ),
    "NumPy, sums after the clip: momentum before the noise": partial(AFTER, momentum=0.9, steps=200),
    "NumPy, sums after the clip: no noise of one of two processes": partial(
        AFTER, noise=partial(fresh, scale=1 / np.sqrt(2)), steps=2 * STEPS
    ),
    "NumPy, sums after the clip: no noise on the shard of one of two processes": partial(
        AFTER, noise=partial(part_without, first=WEIGHTS // 2)
    ),
    "NumPy, batches recorded: shuffled": partial(SAMPLED, sampling=shuffled),
    "NumPy, batches recorded: the last batch of an epoch is dropped": partial(
        SAMPLED, sampling=partial(shuffled, dropped=1)
    ),
    "NumPy, batches recorded: sampled without replacement": partial(SAMPLED, sampling=drawn_at_once),
    "NumPy, batches recorded: twice the stated rate": partial(
        SAMPLED, sampling=partial(poisson, rate=2 * BATCH / ROWS)
    ),
    "NumPy, batches recorded: three records of each user": partial(
        SAMPLED, sampling=users_of_rows, stated=STATED | {"records": ROWS // 3 + 1}
    ),
    "NumPy, batches recorded: accounted at a fifth of the rate": partial(
        SAMPLED, stated=STATED | {"steps": STEPS, "coins": 20, "claim": (1.5, 1e-5)}
    ),
    "torch, LoRA: no noise on one factor": partial(
        with_torch, lora=True, scale_of=lambda step, name: float(name != "lora_B")
    ),
    "torch, tensors by name: running means of batches": partial(
        with_torch, batch_norm=True, steps=2 * STEPS, scale_of=lambda step, name: float(name != "norm.running_mean")
    ),
    "torch, tensors by name: noise of a smaller layer's size": partial(
        with_torch, scale_of=lambda step, name: 0.3 if name == "0.weight" else 1.0
    ),
    "torch, tensors by name: half of the noise": partial(with_torch, scale_of=lambda step, name: 0.5),
    "torch, tensors by name: no noise on a bias": partial(
        with_torch, scale_of=lambda step, name: float(name != "0.bias")
    ),
    "torch, tensors by name: no noise in the first 20 steps": partial(
        with_torch, scale_of=lambda step, name: float(step >= 20)
    ),
    "torch, tensors by name: noise that falls to a quarter": partial(
        with_torch, scale_of=lambda step, name: 1 - 0.75 * step / STEPS
    ),
    "correlated noise: sensitivity of C forgotten": partial(with_correlated, deviation=1.0),
    "correlated noise: half of the noise": partial(with_correlated, deviation=1.15),
    **{
        f"noise of a {kind}: sensitivity forgotten": partial(with_matrix, kind=kind, forgotten=True)
        for kind in ("tree", "Honaker tree", "matrix")
    },
    "Laplace noise: a third of the scale": partial(with_laplace, scale=1 / 3),
    "Laplace noise: a clip in the 2-norm": partial(with_laplace, order=2),
    **{
        f"Opacus, {mode}: {name}": partial(
            opacus_run, mode=mode, spoil=spoil, epochs=STEPS // (2 if spoil is denoised else 3)
        )
        for mode in MODES
        for name, spoil in OPACUS_DEFECTS.items()
    },
}


def cases(seeds: int) -> Iterator[Mapping[str, Any]]:
    """Yield one run of each defect, and honest runs with every seed."""
    yield from ({"case": name, "is": "defect", "seed": 0} for name in DEFECTS)
    yield from ({"case": name, "is": "honest", "seed": seed} for seed in range(seeds) for name in HONEST)


def run(case: str, seed: int, **kind: str) -> dict[str, Any]:
    result = {**DEFECTS, **HONEST}[case](seed).result
    parts = [suspect.part.value for suspect in result.points_to]
    return {"verdict": result.verdict.value, "p": result.p_value, "right": result.share_right, "parts": parts}


def columns(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    of_verdict = {verdict: sum(line["verdict"] == verdict for line in lines) for verdict in Verdict}
    if lines[0]["is"] == "defect":
        line = lines[0]
        points_to = ", ".join(dict.fromkeys(line["parts"]))
        values = {"verdict": line["verdict"], "p": f"{line['p']:.1g}", "right": f"{line['right']:.2f}"}
        return {**values, "points to": points_to or "-"}
    return {
        "VIOLATION": str(of_verdict[Verdict.VIOLATION]),
        "UNDECIDED": str(of_verdict[Verdict.UNDECIDED]),
        "points to a part": str(sum(bool(line["parts"]) for line in lines)),
        "p <= 0.05": str(sum(line["p"] <= 0.05 for line in lines)),
    }


if __name__ == "__main__":
    campaign(
        cases, run, columns, groups=lambda line: [({name: str(line[name]) for name in ("is", "case")}, line)], seeds=24
    )
