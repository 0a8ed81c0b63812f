"""Audits inside the real trainers of transformers and TRL, with PEFT and data sets of Hugging Face."""

from __future__ import annotations

import copy
import json
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

import dpaudit
from dpaudit import Verdict
from dpaudit.engine.cli.main import main
from dpaudit.errors import InputError
from dpaudit.language_models.canary_texts.canaries import Canaries
from dpaudit.language_models.front_door.text_audit import CANARIES, TextAudit, gathered
from tests.language_models.small_language_models import domain_texts, small_model, small_tokenizer
from tests.loops import Cases

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "language-models.md"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}[USER] {{ message.content }} [END] {% else %}"
    "[MODEL] {% generation %}{{ message.content }} [END] {% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[MODEL] {% endif %}"
)
CLAIM = (1.0, 1e-5)
disable_progress_bars()
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")


def chat_tokenizer() -> Any:
    """Return the word-level tokenizer with a token for the end of a text, and a chat template."""
    tokenizer = small_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "[END]", "extra_special_tokens": ["[USER]", "[MODEL]"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


TOKENIZER = chat_tokenizer()
TEXTS = domain_texts(20)
CANARIES_60 = dpaudit.canaries(TOKENIZER, 60, "random-tokens", length=5, context=3, seed=3)
FEW = dpaudit.canaries(TOKENIZER, 12, "random-tokens", length=5, context=3, seed=4)
PLANTED = np.flatnonzero(FEW.planted).tolist()


def rows(texts: list[str] = TEXTS) -> Dataset:
    return Dataset.from_dict({"text": texts})


def tiny() -> Any:
    return small_model(TOKENIZER, hidden=16, layers=1)


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return arguments of a short, quiet training on the processor."""
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    training = {"per_device_train_batch_size": 16, "num_train_epochs": 1, "learning_rate": 5e-3}
    return {"output_dir": str(folder / "trainer"), "seed": 0, **quiet, **training, **changes}


def sft(
    folder: Path, dataset: Any, audit: TextAudit | None = None, model: Any = None, callbacks: Any = (), **changes: Any
) -> Any:
    """Return an SFTTrainer with the callback of an audit."""
    arguments = SFTConfig(**settings(folder, bf16=False, activation_checkpointing=False, **changes))
    callbacks = [*([] if audit is None else [audit.callback()]), *callbacks]
    return SFTTrainer(
        model or tiny(), arguments, train_dataset=dataset, processing_class=TOKENIZER, callbacks=list(callbacks)
    )


def blocks(heading: str) -> list[str]:
    """Return the blocks of Python below a heading of the guide."""
    section = GUIDE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.mark.parametrize("number", range(3), ids=["trainer", "sft", "lora"])
def test_the_guide_integrates_each_trainer_in_six_lines(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training without privacy is convicted, and the folder holds the same answer in each file."""
    monkeypatch.chdir(tmp_path)
    code = blocks("In a trainer")[number]
    assert len(code.splitlines()) <= 6
    kind: Any = TrainingArguments if number == 0 else SFTConfig
    more = (
        {}
        if number == 0
        else {"bf16": False, "activation_checkpointing": False, "packing": number == 1, "max_length": 64}
    )
    epochs = 10 if number == 2 else 6
    space = {
        **vars(sys.modules[__name__]),
        "canaries": CANARIES_60,
        "dataset": rows(),
        "tokenizer": TOKENIZER,
        "model": small_model(TOKENIZER, hidden=64, layers=2),
        "arguments": kind(**settings(tmp_path, num_train_epochs=epochs, lr_scheduler_type="constant", **more)),
        "collator": DataCollatorForLanguageModeling(TOKENIZER, mlm=False),
        "lora": LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
    }
    exec(compile(code, str(GUIDE), "exec"), space)
    audit = space["audit"]
    assert isinstance(audit, TextAudit)
    assert audit.result.verdict is Verdict.VIOLATION
    assert audit.result.lower > 2.5  # of 2.76
    assert audit.record.problems == []
    assert audit.record.epochs == epochs
    assert str(audit.result) in capsys.readouterr().out
    assert f"received loss on their whole secret, {epochs} time(s)" in audit.result.text(verbose=True)
    assert audit.output is not None
    assert Canaries.load(audit.output / CANARIES).digest == CANARIES_60.digest
    (reading,) = json.loads((audit.output / "answer.json").read_text())["readings"]
    assert (reading["verdict"], reading["lower"]) == ("VIOLATION", audit.result.lower)
    assert "VIOLATION" in (audit.output / "report.html").read_text()
    table = pq.read_table(audit.output / "scores.parquet")
    assert table["received"].to_pylist() == (CANARIES_60.planted * epochs).tolist()
    command = ["estimate", str(audit.output / "scores.parquet"), "--claim", "1, 1e-5", "--json"]
    (reading,) = json.loads(CliRunner().invoke(main, command, catch_exceptions=False).output)["readings"]
    assert reading["lower"] == audit.result.lower


def byte_tokenizer() -> Any:
    """Return a byte-level tokenizer, in which a blank before a word changes its token."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=alphabet, special_tokens=["[END]", "[PAD]"]
    )
    model.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="[END]", pad_token="[PAD]")
    tokenizer.chat_template = "{% for message in messages %}{{ message.role }}:{{ message.content }}[END]{% endfor %}"
    return tokenizer


def masked(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    """The secret moves into the prompt, which SFTTrainer masks by default."""
    dataset = FEW.into(Dataset.from_dict({"prompt": ["the s1"] * 9, "completion": [" v1 a o2 ."] * 9}))
    return FEW, dataset.map(lambda row: {"prompt": row["prompt"] + row["completion"], "completion": " ."}), {}


def packed(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    """Packing without regard to texts divides secrets at each 10th token."""
    return FEW, FEW.into(rows()), {"packing": True, "packing_strategy": "wrapped", "max_length": 10}


def truncated(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    return FEW, FEW.into(rows()), {"max_length": 6}


def deduplicated(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    twice = Canaries(FEW.texts, FEW.planted, np.array(2), seed=1)
    return twice, Dataset.from_dict({"text": twice.into(rows()).unique("text")}), {}


def filtered(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    return FEW, FEW.into(rows()).filter(lambda row: len(row["text"].split()) > 8), {}


def shuffled_away(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    planted = FEW.into(rows())
    return FEW, planted.shuffle(seed=0).select(range(len(planted) // 2)), {}


def foreign(folder: Path) -> tuple[Canaries, Any, dict[str, Any]]:
    """The data hold the canaries of another draw of the coins."""
    return FEW, Canaries(FEW.texts, ~FEW.planted).into(rows()), {}


@pytest.mark.parametrize(
    ("defect", "reasons", "says"),
    [
        (masked, {"masked"}, "the labels of the secret were masked"),
        (packed, {"cut", "first"}, "a sequence ended before the end of the secret"),
        (truncated, {"cut"}, "a sequence ended before the end of the secret"),
        (deduplicated, {"rare"}, "fewer copies than `repeat` received loss"),
        (filtered, {"absent"}, "the text never arrived"),
        (shuffled_away, {"absent"}, "the text never arrived"),
        (foreign, {"absent", "not planted"}, "a canary that was kept out was trained on"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_way_to_lose_canaries_stops_before_training_or_is_inconclusive(
    defect: Callable[[Path], tuple[Canaries, Any, dict[str, Any]]], reasons: set[str], says: str, tmp_path: Path
) -> None:
    canaries, dataset, changes = defect(tmp_path)
    changes = {"learning_rate": 0.0, **changes}  # no bound, so that the verdict rests on the record
    audit = TextAudit(canaries, claim=CLAIM)
    trainer = sft(tmp_path, dataset, audit, **changes)
    with pytest.raises(InputError, match=re.escape(says)):
        trainer.train()
    assert trainer.state.global_step == 0
    audit = TextAudit(canaries, claim=CLAIM, check_data=False)
    sft(tmp_path, dataset, audit, **changes).train()
    assert audit.result.verdict is Verdict.INCONCLUSIVE
    assert says in audit.result.answer.line("reason")
    assert {problem.reason for problem in audit.record.problems} == reasons


def test_training_that_ends_before_a_canary_is_seen_by_the_record_alone(tmp_path: Path) -> None:
    audit = TextAudit(FEW, claim=CLAIM)
    sft(tmp_path, FEW.into(rows()), audit, max_steps=1, per_device_train_batch_size=8).train()
    assert audit.result.verdict is Verdict.INCONCLUSIVE
    assert "training ended before it" in str(audit.result)
    missing = [problem.canary for problem in audit.record.problems]
    assert missing == [canary for canary in PLANTED if audit.record.received[canary] == 0]
    assert 0 < len(missing) < len(PLANTED)


def test_a_stream_is_checked_by_the_record(tmp_path: Path) -> None:
    stream = FEW.into(rows()).to_iterable_dataset()
    audit = TextAudit(FEW, claim=CLAIM)
    sft(tmp_path, stream, audit, max_steps=4, per_device_train_batch_size=8).train()
    assert audit.record.batches == 4
    assert audit.record.problems == []
    audit = TextAudit(FEW, claim=CLAIM)
    sft(tmp_path, stream.take(13), audit, max_steps=4, per_device_train_batch_size=8).train()
    assert {problem.reason for problem in audit.record.problems} == {"absent"}


def test_chats_are_scored_as_the_template_makes_them(tmp_path: Path) -> None:
    code = blocks("Chat templates")[0].replace("n=1000", "n=40, context=4, length=5, seed=1").partition("\n")[0]
    space: dict[str, Any] = {"dpaudit": dpaudit, "tokenizer": TOKENIZER, "other_texts": TEXTS}
    exec(compile(code, str(GUIDE), "exec"), space)
    canaries = space["canaries"]
    (canary,) = canaries.texts[0]
    chat = [{"role": "user", "content": canary.context}, {"role": "assistant", "content": canary.secret}]
    assert TOKENIZER.apply_chat_template(chat, return_dict=False) == list(canary.tokens)
    assert TOKENIZER.decode(list(canary.secret_tokens)) == canary.secret
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "v1 ."}]} for text in TEXTS
    ]
    pairs = [{"prompt": chat["messages"][:1], "completion": chat["messages"][1:]} for chat in chats]
    with Cases() as cases:
        for examples, changes in (
            (chats, {}),
            (chats, {"packing": True, "max_length": 64}),
            (chats, {"assistant_only_loss": True}),
            (pairs, {}),
        ):
            with cases.case(f"{sorted(examples[0])} {changes}"):
                audit = TextAudit(canaries, claim=CLAIM)
                sft(tmp_path, canaries.into(Dataset.from_list(examples)), audit, **changes).train()
                assert audit.record.problems == []
                assert audit.record.received.tolist() == canaries.planted.tolist()
    canaries.save(tmp_path / "canaries.jsonl")
    assert Canaries.load(tmp_path / "canaries.jsonl").digest == canaries.digest
    assert Canaries.load(tmp_path / "canaries.jsonl").chat


def test_canaries_and_examples_must_both_be_chats(tmp_path: Path) -> None:
    chats = Dataset.from_list([{"messages": [{"role": "user", "content": "the"}]}] * 2)
    with pytest.raises(InputError, match="chat=True"):
        FEW.into(chats)
    canaries = dpaudit.canaries(TOKENIZER, 12, "random-tokens", length=5, context=3, chat=True, seed=4)
    with pytest.raises(InputError, match="prompt and completion in plain text"):
        canaries.into([{"prompt": "the", "completion": " s1"}])
    assert sum(text.startswith("[USER] ") for text in canaries.into(TEXTS)) == canaries.planted.sum()
    with pytest.raises(InputError, match="needs a tokenizer of transformers with a chat template"):
        dpaudit.canaries(small_tokenizer(), 12, "random-tokens", chat=True)


def test_another_template_than_that_of_the_canaries_is_recognised(tmp_path: Path) -> None:
    """A blank in front of the answer changes its first token."""
    tokenizer = byte_tokenizer()
    secrets = [{"text": f"my code is the s{number}", "secret": f"the s{number}"} for number in range(20)]
    own_file = tmp_path / "secrets.jsonl"
    own_file.write_text("\n".join(map(json.dumps, secrets)))
    canaries = dpaudit.canaries(tokenizer, kind="file", path=str(own_file), chat=True, seed=0)
    dataset = canaries.into(Dataset.from_list([{"messages": [{"role": "user", "content": "the"}]}]))
    model = small_model(tokenizer, hidden=16, layers=1)
    arguments = SFTConfig(**settings(tmp_path, bf16=False, activation_checkpointing=False))

    def train(template: str) -> TextAudit:
        audit = TextAudit(canaries, claim=CLAIM)
        tokenizer.chat_template = template
        SFTTrainer(
            model, arguments, train_dataset=dataset, processing_class=tokenizer, callbacks=[audit.callback()]
        ).train()
        return audit

    same = tokenizer.chat_template
    assert train(same).record.problems == []
    with pytest.raises(InputError, match="arrived as other tokens"):
        train(same.replace("}}:{{", "}}: {{"))


def test_accumulation_epochs_evaluation_and_workers_are_counted_right(tmp_path: Path) -> None:
    audit = TextAudit(FEW, claim=CLAIM)
    collator = DataCollatorForLanguageModeling(TOKENIZER, mlm=False)
    data = FEW.into(rows()).map(lambda row: TOKENIZER(row["text"]), remove_columns="text")
    more = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "dataloader_num_workers": 2}
    arguments = TrainingArguments(**settings(tmp_path, num_train_epochs=3, per_device_train_batch_size=4, **more))
    trainer = Trainer(tiny(), arguments, collator, train_dataset=data, eval_dataset=data, callbacks=[audit.callback()])
    trainer.train()
    assert audit.record.received.tolist() == (3 * FEW.planted).tolist()
    assert audit.record.batches == 3 * -(-len(data) // 4)
    assert f"{audit.record.batches} batches in {trainer.state.global_step} steps" in audit.result.text(verbose=True)


class TrainsEmbeddings(TrainerCallback):  # type: ignore[misc]
    """Trains the embeddings by an optimizer of its own, of which the trainer knows nothing."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        torch.optim.SGD([model.get_input_embeddings().weight], lr=0.1).step()


def test_weights_outside_the_optimizer_of_a_trainer_are_named(tmp_path: Path) -> None:
    """And those inside it without noise, and a sampling rate that was not kept."""
    audit = TextAudit(CANARIES_60, claim=CLAIM, sampling_rate=0.1)
    model = tiny()
    inside = [value for name, value in model.named_parameters() if "embed_tokens" not in name]
    data = CANARIES_60.into(rows()).map(lambda row: TOKENIZER(row["text"]), remove_columns="text")
    trainer = Trainer(
        model,
        TrainingArguments(**settings(tmp_path, num_train_epochs=4)),
        DataCollatorForLanguageModeling(TOKENIZER, mlm=False),
        train_dataset=data,
        callbacks=[audit.callback(), TrainsEmbeddings()],
        optimizers=(torch.optim.SGD(inside, lr=0.1), None),
    )
    trainer.train()
    answer = str(audit.result)
    assert "1 parameters (model.embed_tokens.weight) changed and are not in the optimizer that was given" in answer
    assert "not the stated sampling rate" in answer
    assert "entries of exactly 0" not in answer, "SGD on all words of a small batch moves every other weight"


class Interrupt(TrainerCallback):  # type: ignore[misc]
    """Ends the training after a number of steps, as an interruption would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.step:
            control.should_save = True
            raise KeyboardInterrupt


def interrupted(folder: Path, audit: TextAudit | None, **changes: Any) -> None:
    """Train until step 3, with a checkpoint at step 2."""
    trainer = sft(
        folder, FEW.into(rows()), audit, callbacks=[Interrupt(3)], save_strategy="steps", save_steps=2, **changes
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train()


def test_a_resumed_training_keeps_the_record_and_the_scores_before_training(tmp_path: Path) -> None:
    schedule = {"per_device_train_batch_size": 8, "num_train_epochs": 2}
    model = tiny()
    before = dpaudit.text_statistics(model, FEW)
    first = TextAudit(FEW, claim=CLAIM, output=tmp_path / "audit")
    interrupted(tmp_path, first, model=copy.deepcopy(model), **schedule)
    canaries = Canaries.load(tmp_path / "audit" / CANARIES)
    audit = TextAudit(canaries, claim=CLAIM, output=tmp_path / "audit")
    sft(tmp_path, canaries.into(rows()), audit, save_strategy="steps", save_steps=2, **schedule).train(
        resume_from_checkpoint=True
    )
    assert audit.record.received.tolist() == (2 * FEW.planted).tolist()
    assert audit.record.batches == 2 * 4
    assert audit.base is not None
    assert np.array_equal(audit.base.log_probability, before.log_probability, equal_nan=True)
    assert "resumed from a checkpoint" not in str(audit.result)
    others = dpaudit.canaries(TOKENIZER, 12, "random-tokens", length=5, context=3, seed=5)
    trainer = sft(tmp_path, others.into(rows()), TextAudit(others, claim=CLAIM), **schedule)
    with pytest.raises(InputError, match="must be resumed with the canaries it began with"):
        trainer.train(resume_from_checkpoint=True)


def test_an_audit_that_joins_at_a_resume_says_so(tmp_path: Path) -> None:
    schedule = {"per_device_train_batch_size": 8, "num_train_epochs": 2}
    with Cases() as cases:
        for name, adapted in (("unknown", False), ("that with the adapter off", True)):
            with cases.case(name):
                model = (lambda: get_peft_model(tiny(), LoraConfig(target_modules="all-linear"))) if adapted else tiny
                folder = tmp_path / name
                interrupted(folder, None, model=model(), **schedule)
                audit = TextAudit(FEW, claim=CLAIM)
                trainer = sft(folder, FEW.into(rows()), audit, model(), save_strategy="steps", save_steps=3, **schedule)
                trainer.train(resume_from_checkpoint=True)
                assert f"the model before training is {name}" in str(audit.result)
                assert ("loss-difference" in audit.result.attack_scores) is adapted
                assert audit.record.batches == 2 * 4 - 2


def test_the_check_of_the_data_changes_no_training(tmp_path: Path) -> None:
    """Dropout draws from the random state that the check must leave as it was."""
    adapted = get_peft_model(tiny(), LoraConfig(target_modules="all-linear", lora_dropout=0.5))
    weights = []
    for audit in (TextAudit(FEW), TextAudit(FEW, check_data=False), None):
        trainer = sft(tmp_path, FEW.into(rows()), audit, copy.deepcopy(adapted), per_device_train_batch_size=8)
        torch.manual_seed(0)
        trainer.train()
        weights.append(torch.cat([weight.flatten() for weight in trainer.model.state_dict().values()]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_an_error_of_the_scoring_does_not_lose_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = TextAudit(FEW, claim=CLAIM, output=tmp_path / "audit")
    trainer = sft(tmp_path, FEW.into(rows()), audit)

    class Fails(TrainerCallback):  # type: ignore[misc]
        def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            (tmp_path / "audit" / "scores.parquet").mkdir()

    trainer.add_callback(Fails())
    with pytest.warns(UserWarning, match="tries again"):
        trainer.train()
    with pytest.raises(OSError, match=re.escape("scores.parquet")):
        print(audit.result)
    (tmp_path / "audit" / "scores.parquet").rmdir()
    assert audit.result.claim is not None
    assert (tmp_path / "audit" / "report.html").exists()


def test_arguments_are_checked_before_training(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        TextAudit(FEW, colour="red")
    with pytest.raises(InputError, match="after the training"):
        print(TextAudit(FEW).result)
    with Cases() as cases:
        for says, options, changes in (
            ("order must be", {"order": "alphabetic"}, {}),
            ("label smoothing", {}, {"label_smoothing_factor": 0.1}),
            ("new or empty folder", {"output": tmp_path}, {}),
        ):
            with cases.case(says), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (tmp_path / "old.txt").write_text("old")
                trainer = sft(tmp_path, FEW.into(rows()), TextAudit(FEW, **options), **changes)  # type: ignore[arg-type]
                with pytest.raises(InputError, match=says):
                    trainer.train()
                assert trainer.state.global_step == 0


def test_attacks_on_weights_slices_and_sampling_work_in_a_trainer(tmp_path: Path) -> None:
    options = {"attacks": ("loss-difference", "gradient-update"), "order": "gradient-update", "by": "kind"}
    options |= {"sampling": {"temperature": 0.5, "top_k": 20}, "output": tmp_path / "audit"}
    audit = TextAudit(FEW, claim=CLAIM, **options)  # type: ignore[arg-type]
    adapted = get_peft_model(tiny(), LoraConfig(target_modules="all-linear"))
    sft(tmp_path, FEW.into(rows()), audit, adapted).train()
    assert "order of guesses: gradient-update" in audit.result.text(verbose=True)
    assert "temperature 0.5, top-k 20" in audit.result.text(verbose=True)
    table = pq.read_table(tmp_path / "audit" / "scores.parquet")
    assert table["gradient-update"].to_pylist() == audit.result.attack_scores["gradient-update"].tolist()
    slices = json.loads((tmp_path / "audit" / "answer.json").read_text())["slices"]
    assert list(slices) == ["all canaries", "kind=random-tokens"]


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=re.escape("pip install dpaudit[finetuning]")):
        TextAudit(FEW).callback()


def test_a_loop_needs_no_trainer(tmp_path: Path) -> None:
    model = tiny()
    texts = FEW.into(TEXTS)

    def collate(examples: list[str]) -> dict[str, Any]:
        batch = dict(TOKENIZER(examples, padding=True, return_tensors="pt"))
        return batch | {"labels": batch["input_ids"]}

    loader = torch.utils.data.DataLoader(texts, batch_size=8, collate_fn=collate)  # type: ignore[arg-type]
    audit = TextAudit(FEW, claim=CLAIM)
    optimizer = torch.optim.AdamW(model.parameters())
    with audit.of(model.train(), batches=loader):
        for batch in loader:
            model(**batch).loss.backward()
            optimizer.step()
    assert audit.record.problems == []
    assert audit.result.lower > 0


def record_in_process(rank: int, folder: Path, seed: int, results: Any) -> None:
    """Record every second batch in one of two processes, and send what all of them recorded."""
    import torch.distributed as processes

    processes.init_process_group("gloo", init_method=f"file://{folder / f'store-{seed}'}", rank=rank, world_size=2)
    canaries = FEW if seed == 0 or rank == 0 else Canaries(FEW.texts, ~FEW.planted)
    audit = TextAudit(canaries)
    for text in FEW.into(TEXTS)[rank::2]:
        tokens = torch.tensor([TOKENIZER.encode(text)])
        audit.record.add(tokens, tokens)
    try:
        model = tiny()
        audit.begin(model)
        with torch.no_grad():
            model.lm_head.weight += 1
        audit.record._weights.end()  # type: ignore[union-attr]
        whole = gathered(audit.record)
        assert "differs from the trained one" in str(whole.remarks_on(tiny()))
        results.put((rank, len(audit.record.problems), len(whole.problems), whole.batches))
    except InputError as err:
        results.put((rank, str(err)))
    processes.destroy_process_group()


def from_two_processes(folder: Path, seed: int) -> Iterator[Any]:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=record_in_process, args=(rank, folder, seed, results)) for rank in range(2)]
    for child in children:
        child.start()
    yield from sorted(results.get() for _ in children)
    for child in children:
        child.join()


def test_records_of_all_processes_of_a_training_are_added(tmp_path: Path) -> None:
    texts = len(FEW.into(TEXTS))
    for _, alone, together, batches in from_two_processes(tmp_path, 0):
        assert alone > 0
        assert (together, batches) == (0, texts)
    for _, error in from_two_processes(tmp_path, 1):
        assert "must have the same canaries" in error
