"""Pre-trained transformers from a local folder (package transformers), to fine-tune or to encode sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.consent import PATH
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.registry import register
from dpaudit.variables import expand_path, hide_variable_values

PREDICTION_BATCH = 64  # texts predicted together
ENCODING_BATCH = 32  # texts encoded together


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

        torch.set_num_threads(compute.threads)
        order_seed, torch_seed = seed.generate_state(2, np.uint64)
        order = np.random.default_rng(int(order_seed))
        devices = [torch.device(compute.device)] if compute.device != "cpu" else []
        # The new head and dropout draw from torch's global generators, whose state is restored afterwards.
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(torch_seed) % 2**63)
            tokenizer = load_pretrained("AutoTokenizer", self.path)
            module = load_pretrained("AutoModelForSequenceClassification", self.path, num_labels=train.classes)
            module.to(compute.device).train()
            steps = self.epochs * -(-len(texts) // self.batch_size)
            optimizer = torch.optim.AdamW(
                module.parameters(), lr=self.learning_rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=self.weight_decay
            )
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self._rate_factor(step, steps))
            for _ in range(self.epochs):
                rows = order.permutation(len(texts))
                for first in range(0, len(rows), self.batch_size):
                    batch = rows[first : first + self.batch_size]
                    tokens = _tokens(tokenizer, [texts[row] for row in batch], self.length, compute.device)
                    labels = torch.from_numpy(train.labels[batch]).to(compute.device)
                    loss = torch.nn.functional.cross_entropy(module(**tokens).logits, labels)
                    if not torch.isfinite(loss):
                        raise TrainingError("the loss is no longer finite. Lower learning_rate.")
                    optimizer.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
        return FineTuned(module.eval(), tokenizer, self.length, compute)

    def _rate_factor(self, step: int, steps: int) -> float:
        warm_up_steps = self.warm_up * steps
        return (step + 1) / (warm_up_steps + 1) if step < warm_up_steps else (steps - step) / (steps - warm_up_steps)


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
                tokens = _tokens(self.tokenizer, batch, self.length, self.compute.device)
                logits[first : first + PREDICTION_BATCH] = self.module(**tokens).logits.double().cpu().numpy()
        return np.asarray(softmax(logits, axis=-1))


def texts_of(features: Features) -> list[str]:
    """Return the texts of a table with one text column; rejects other features."""
    is_text = (
        isinstance(features, pa.Table)
        and features.num_columns == 1
        and (pa.types.is_string(features.schema.types[0]) or pa.types.is_large_string(features.schema.types[0]))
    )
    columns = ", ".join(features.column_names) if isinstance(features, pa.Table) else "an array"
    do = "use data of texts with raw: true"
    require(is_text, "texts must be a table with one text column", do=do, features=columns)
    assert isinstance(features, pa.Table)
    texts: list[str] = features.column(0).to_pylist()
    return texts


def load_pretrained(kind: str, path: str, **settings: Any) -> Any:
    """Load an object of the transformers class `kind` from a local folder; rejects other folders."""
    try:
        import transformers
    except ImportError as err:
        raise InputError("this needs the package transformers; install it with `pip install dpaudit[text]`") from err
    folder = expand_path(path)
    do = "set `path` to the folder written by save_pretrained of the model and its tokenizer"
    require((folder / "config.json").is_file(), "path must be the folder of a pre-trained model", do=do, path=path)
    try:
        model_class = getattr(transformers, kind)
        return model_class.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **settings)
    except (OSError, ValueError) as err:
        reason = hide_variable_values(str(err).splitlines()[0], path)
        raise InputError(f"{path} must hold a model and a tokenizer that transformers can load: {reason}") from err


def _tokens(tokenizer: Any, texts: list[str], length: int, device: str) -> Any:
    return tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt").to(device)


def encode_sentences(
    texts: list[str], path: str, *, length: int, layer: int | None = None, device: str = "cpu"
) -> NDArray[np.float32]:
    """Return the mean hidden state of each text's tokens at `layer` (None: the last), shape (n, width)."""
    import torch

    tokenizer = load_pretrained("AutoTokenizer", path)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # padding is masked out below
    module: Any = load_pretrained("AutoModel", path).to(device).eval()
    layers = module.config.num_hidden_layers
    require(layer is None or layer <= layers, f"layer must be <= {layers} for this model", layer=layer)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # batch texts of similar length
    embeddings = np.empty((len(texts), module.config.hidden_size), np.float32)
    with torch.inference_mode():
        for first in range(0, len(order), ENCODING_BATCH):
            rows = order[first : first + ENCODING_BATCH]
            tokens = _tokens(tokenizer, [texts[row] for row in rows], length, device)
            answer = module(**tokens, output_hidden_states=layer is not None)
            states = answer.last_hidden_state if layer is None else answer.hidden_states[layer]
            present = tokens["attention_mask"][..., None]
            mean = (states * present).sum(1) / present.sum(1).clamp(min=1)
            embeddings[rows] = mean.float().cpu().numpy()
    return embeddings
