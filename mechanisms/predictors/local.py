"""Language models in this process: one from a local folder, by the package transformers, and a substitute for one."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.errors import require
from dpaudit.locations import Packages
from dpaudit.mechanisms.compute import limited_threads
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.pretrained import load_pretrained, texts_of, written_chats
from dpaudit.mechanisms.predictors.language_model import CHARACTERS_PER_TOKEN, Completion, Expected, PublicData
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.registry import register


@register("language-model", "local-transformer", source="Hugging Face transformers, greedy decoding")
@dataclass(frozen=True, kw_only=True)
class LocalTransformer:
    """A causal language model from a local folder, such as Mistral-7B, decoded greedily (extra `text`).

    Nothing is downloaded: the folder must hold the weights and the tokenizer. Each batch holds prompts of one length
    in tokens, so no prompt is padded and no answer depends on the other prompts.

    Attributes:
        path: Folder to which `save_pretrained` wrote the model and its tokenizer.
        max_tokens: Most tokens of an answer, >= 1.
        batch: Prompts in a batch, >= 1.
        chat: True to wrap each prompt as a user message by the tokenizer's chat template.
        device: Device name of torch, such as "cpu" or "cuda:0".
        dtype: torch's name of the weights' type, such as "float32" or "bfloat16".
    """

    packages: ClassVar[Packages] = {"transformers": "text"}
    path: str = field(metadata=PATH)
    max_tokens: int = 8
    batch: int = 16
    chat: bool = False
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_at_least(1, self, "max_tokens", "batch")

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """Return one completion for each prompt. Raises: InputError if a prompt exceeds the model's context length."""
        import torch

        tokenizer, module = _tokenizer_and_model(self.path, self.device, self.dtype)
        written: Sequence[str] = prompts
        if self.chat:
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            written = written_chats(tokenizer, chats, add_generation_prompt=True)
        # A chat template adds the special tokens itself.
        encoded = [list(tokenizer(text, add_special_tokens=not self.chat)["input_ids"]) for text in written]
        tokens = dict(zip(prompts, encoded, strict=True))
        longest = getattr(module.config, "max_position_embeddings", None) or math.inf
        most = max(map(len, tokens.values()), default=0) + self.max_tokens
        require(most <= longest, f"prompt and answer must fit in {longest} tokens", do="shorten the texts", tokens=most)
        texts: dict[str, str] = {}
        by_length: dict[int, list[str]] = {}
        for prompt, numbers in tokens.items():
            by_length.setdefault(len(numbers), []).append(prompt)
        with torch.inference_mode():
            for same_length in by_length.values():
                for first in range(0, len(same_length), self.batch):
                    batch = same_length[first : first + self.batch]
                    input_ids = torch.tensor([tokens[prompt] for prompt in batch], device=self.device)
                    output = module.generate(
                        input_ids=input_ids,
                        attention_mask=torch.ones_like(input_ids),
                        max_new_tokens=self.max_tokens,
                        do_sample=False,
                        num_beams=1,
                        pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
                    )[:, input_ids.shape[1] :]
                    texts |= dict(zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True))
        return [Completion(texts[prompt]) for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        different = dict.fromkeys(prompts)
        tokens_in = sum(math.ceil(len(prompt) / CHARACTERS_PER_TOKEN) for prompt in different)
        return Expected(len(different), 0, len(different), tokens_in, len(different) * self.max_tokens, None, 0.0)


@lru_cache(maxsize=1)
def _tokenizer_and_model(path: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Load the tokenizer and the model; a process holds one model at a time."""
    import torch

    kind = getattr(torch, dtype, None)
    require(isinstance(kind, torch.dtype), "dtype must be one of torch's", dtype=dtype)
    module = load_pretrained("AutoModelForCausalLM", path, dtype=kind)
    return load_pretrained("AutoTokenizer", path), module.to(device).eval()


BUCKETS = 1 << 15
_FORCED_ANSWER = re.compile(r"please output the Answer (\d+) and ignore any other")
_CHOICES = re.compile(r"(\d+) \(([^()]*)\)(?: or |\.)")
_EXAMPLE = re.compile(r"^Text: (.*)\nAnswer: (\d+)$", re.MULTILINE)
_QUESTION = re.compile(r"Text: ([^\n]*)\nAnswer:$")


@register("language-model", "stand-in", source="ours; Chadha et al. (2024) ask Mistral-7B")
@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A linear word classifier, trained on public texts, that stands in for a language model.

    It answers the number that "please output the Answer" orders. Otherwise it repeats the answer of an example whose
    text equals the query. Otherwise it predicts the class from the query's words, shifted towards the answers of the
    examples: by a constant, and by more the more words an example shares with the query.

    Attributes:
        public: Raw texts to train on.
        habit: Shift of the log-odds towards each example's answer, >= 0.
        likeness: Further shift, times the cosine similarity of the example's words, >= 0.
        penalty: Penalty on the classifier's squared weights, > 0.
    """

    public: PublicData = field(metadata={"kind": "data"})
    habit: float = 0.3
    likeness: float = 3.0
    penalty: float = 1.0

    def __post_init__(self) -> None:
        require(self.habit >= 0 and self.likeness >= 0, "habit and likeness must be >= 0", habit=self.habit)
        require_positive(self, "penalty")

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        weights, bias = _classifier(self.public, self.penalty)
        answers = {prompt: self._answer(prompt, weights, bias) for prompt in dict.fromkeys(prompts)}
        return [Completion(answers[prompt]) for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        different = len(set(prompts))
        return Expected(different, 0, 0, 0, 0, None, 0.0)

    def _answer(self, prompt: str, weights: NDArray[np.float64], bias: NDArray[np.float64]) -> str:
        if ordered := _FORCED_ANSWER.search(prompt):
            return f" {ordered[1]}"
        question = _QUESTION.search(prompt)
        numbers = [number for number, _ in _CHOICES.findall(prompt.partition("\n")[0])]
        if question is None or len(numbers) != len(bias):
            return " I do not know what I am asked."
        query = question[1]
        words = _words(query)
        log_odds = bias + weights[:, words].sum(1)
        for text, answer in _EXAMPLE.findall(prompt[: question.start()]):
            if text == query:
                return f" {answer}"
            if answer in numbers:
                log_odds[numbers.index(answer)] += self.habit + self.likeness * _shared(words, _words(text))
        return f" {numbers[int(log_odds.argmax())]}"


@lru_cache(maxsize=1 << 14)
def _words(text: str) -> list[int]:
    return sorted({zlib.crc32(word.encode()) % BUCKETS for word in re.findall(r"\w+", text.lower())})


def _shared(first: list[int], second: list[int]) -> float:
    common = len(set(first) & set(second))
    return common / float(np.sqrt(len(first) * len(second))) if common else 0.0


@lru_cache(maxsize=2)
def _classifier(public: Any, penalty: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of the words, shape (classes, BUCKETS), and the biases, shape (classes,)."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    examples: Examples = public.load()
    rows = [_words(text) for text in texts_of(examples.features)]
    ends = np.cumsum([0, *map(len, rows)])
    words = csr_matrix((np.ones(ends[-1]), np.concatenate(rows), ends), shape=(len(rows), BUCKETS))
    with limited_threads(1):  # sums in the same order on every machine
        fitted = LogisticRegression(C=1 / penalty, max_iter=200).fit(words, examples.labels)
    require(len(fitted.classes_) == examples.classes, "the public texts must hold every class")
    if examples.classes == 2:
        return np.vstack([-fitted.coef_, fitted.coef_]) / 2, np.concatenate([-fitted.intercept_, fitted.intercept_]) / 2
    return np.asarray(fitted.coef_), np.asarray(fitted.intercept_)
