"""Fine-tuned transformers as models of texts (package transformers)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.locations import Packages
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.pretrained import load_pretrained, texts_of, tokens_of
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.registry import register

PREDICTION_BATCH = 64  # texts predicted together


@register("model", "transformer-fine-tune", source="Liu et al. (2019), arXiv:1907.11692, appendix C; transformers")
@dataclass(frozen=True, kw_only=True)
class TransformerFineTune:
    """Fine-tunes all weights of a pre-trained transformer, such as RoBERTa, with a new classification head.

    Needs the extra `text`. The data are a table with one text column, such as `sst-2` with `raw: true`. The optimiser
    is AdamW with linear warm-up and linear decay. Nothing is downloaded: the folder must hold the weights and the
    tokenizer.

    Attributes:
        path: Folder written by `save_pretrained` of a model and of its tokenizer.
        epochs: Passes over the training texts, >= 1.
        learning_rate: Peak step size, > 0.
        batch_size: Texts per step, >= 1.
        length: Maximum number of tokens of a text, >= 4.
        weight_decay: Weight decay of AdamW, >= 0.
        warm_up: Share of the steps with rising step size, in [0, 1).
    """

    packages: ClassVar[Packages] = {"transformers": "text"}
    path: str = field(metadata=PATH)
    epochs: int = 3
    learning_rate: float = 2e-5
    batch_size: int = 32
    length: int = 128
    weight_decay: float = 0.1
    warm_up: float = 0.06

    def __post_init__(self) -> None:
        require_at_least(1, self, "epochs", "batch_size")
        require_positive(self, "learning_rate")
        require_at_least(4, self, "length")
        require_at_least(0, self, "weight_decay")
        require(0 <= self.warm_up < 1, "warm_up must be in [0, 1)", warm_up=self.warm_up)

    def require_features(self, train: Examples) -> None:
        """Raise InputError for features that are not texts."""
        texts_of(train.features[:1] if isinstance(train.features, np.ndarray) else train.features.slice(0, 1))

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Fine-tune on all texts; ignores `validation`. Raises InputError without transformers, the folder or texts."""
        texts = texts_of(train.features)
        import torch

        from dpaudit.mechanisms.training.checkpoint import TrainingCheckpoint, training_digest
        from dpaudit.mechanisms.training.recipe import TrainingTask

        torch.set_num_threads(compute.threads)
        devices = [torch.device(compute.device)] if compute.device != "cpu" else []
        task = TrainingTask(np.arange(len(texts)), train.labels, seed)
        digest = training_digest((self, train.classes, train.digest), [task]) if compute.scratch else ""
        # The new head and dropout draw from torch's global generators, whose state is restored afterwards.
        with torch.random.fork_rng(devices):
            training = FineTuning(self, texts, train, seed=seed, device=compute.device)
            checkpoint = TrainingCheckpoint(compute, digest)
            for step in range(checkpoint.restore(training), training.steps):
                training.step(step)
                checkpoint.keep(training, step + 1)
        return FineTuned(training.module.eval(), training.tokenizer, self.length, compute)

    def rate_factor(self, step: int, steps: int) -> float:
        """Return the factor of the step size in a step, of `steps`."""
        warm_up_steps = self.warm_up * steps
        return (step + 1) / (warm_up_steps + 1) if step < warm_up_steps else (steps - step) / (steps - warm_up_steps)


class FineTuning:
    """All weights of a pre-trained transformer under AdamW; seeds torch's global generators."""

    def __init__(
        self,
        settings: TransformerFineTune,
        texts: list[str],
        train: Examples,
        *,
        seed: np.random.SeedSequence,
        device: str,
    ) -> None:
        """`texts` are the features of `train`."""
        import torch

        self._settings, self._texts, self._device = settings, texts, device
        self._labels = torch.from_numpy(np.array(train.labels))
        order_seed, torch_seed = seed.generate_state(2, np.uint64)
        self._order = np.random.default_rng(int(order_seed))
        torch.manual_seed(int(torch_seed) % 2**63)
        self.tokenizer = load_pretrained("AutoTokenizer", settings.path)
        self.module = load_pretrained("AutoModelForSequenceClassification", settings.path, num_labels=train.classes)
        self.module.to(device).train()
        self._steps_per_epoch = -(-len(texts) // settings.batch_size)
        self.steps = settings.epochs * self._steps_per_epoch
        self._optimizer = torch.optim.AdamW(
            self.module.parameters(),
            lr=settings.learning_rate,
            betas=(0.9, 0.98),
            eps=1e-6,
            weight_decay=settings.weight_decay,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: settings.rate_factor(step, self.steps)
        )
        self._rows = np.arange(0)  # order of the texts in this epoch

    def step(self, number: int) -> None:
        """Run step `number` of all epochs. Raises: TrainingError if the loss is not finite."""
        import torch

        place = number % self._steps_per_epoch
        if not place:
            self._rows = self._order.permutation(len(self._texts))
        size = self._settings.batch_size
        batch = self._rows[place * size : (place + 1) * size]
        tokens = tokens_of(self.tokenizer, [self._texts[row] for row in batch], self._settings.length, self._device)
        labels = self._labels[batch].to(self._device)
        loss = torch.nn.functional.cross_entropy(self.module(**tokens).logits, labels)
        if not torch.isfinite(loss):
            raise TrainingError("the loss is no longer finite. Lower learning_rate.")
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()

    def state(self) -> dict[str, Any]:
        """Return the weights and the states of optimiser, schedule, order of texts and torch's generators."""
        import torch

        from dpaudit.mechanisms.training.checkpoint import generator_state

        on_gpu = self._device != "cpu"
        return {
            "weights": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "rows": torch.from_numpy(self._rows.copy()),
            "order": generator_state(self._order),
            "draws": torch.get_rng_state(),
            "draws on the device": torch.cuda.get_rng_state(self._device) if on_gpu else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        import torch

        from dpaudit.mechanisms.training.checkpoint import restore_generator

        self.module.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._rows = state["rows"].numpy()
        restore_generator(self._order, state["order"])
        torch.set_rng_state(state["draws"])
        if state["draws on the device"] is not None:
            torch.cuda.set_rng_state(state["draws on the device"], self._device)


@dataclass(frozen=True, eq=False)
class FineTuned:
    """A fine-tuned transformer."""

    module: Any  # a model of transformers, on its device
    tokenizer: Any  # tokenizer of the model
    length: int  # maximum number of tokens of a text
    compute: Compute  # threads and device of predictions

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        import torch

        texts = texts_of(features)
        torch.set_num_threads(self.compute.threads)
        logits = np.empty((len(texts), self.module.config.num_labels))
        with torch.no_grad():
            for first in range(0, len(texts), PREDICTION_BATCH):
                batch = texts[first : first + PREDICTION_BATCH]
                tokens = tokens_of(self.tokenizer, batch, self.length, self.compute.device)
                logits[first : first + PREDICTION_BATCH] = self.module(**tokens).logits.double().cpu().numpy()
        return np.asarray(softmax(logits, axis=-1))
