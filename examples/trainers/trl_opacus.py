"""Supervised fine-tuning by TRL, whose `SFTTrainer` gets the optimizer and the loader of Opacus."""

import sys

import torch
from datasets import Dataset
from opacus import PrivacyEngine
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

import dpaudit

EPOCHS, CLIP, TEXTS, TOKENS = 10, 1.0, 120, 8
share = float(sys.argv[1])  # of the stated noise

torch.manual_seed(0)
shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
words = {f"word{number}": number for number in range(63)} | {"<pad>": 63}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="<pad>")
tokens = torch.randint(63, (TEXTS, TOKENS))
texts = Dataset.from_dict({"input_ids": tokens.tolist()})
rows = [{"input_ids": text, "labels": text, "attention_mask": torch.ones_like(text)} for text in tokens]
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape)).train()
model.lm_head.requires_grad_(False)  # TRL reads these weights without calling the layer, so Opacus sees no gradient
hooks, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    wrap_model=False,  # TRL reads `model.config`
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    data_loader=DataLoader(rows, batch_size=20),
    noise_multiplier=1.0,
    max_grad_norm=CLIP,
)
audit = dpaudit.TrainingAudit.of_opacus(optimizer, claim=(8, 1e-5), seed=0)  # audit
optimizer.noise_multiplier *= share


class PrivateTrainer(SFTTrainer):
    def get_train_dataloader(self):
        return loader


class ClearedSums(TrainerCallback):  # the trainer clears the gradients of the model only
    def on_step_end(self, *_, **values):
        optimizer.zero_grad()


arguments = SFTConfig(
    num_train_epochs=EPOCHS, max_grad_norm=0, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    logging_strategy="no", disable_tqdm=True, activation_checkpointing=False, eos_token="<pad>",
)  # fmt: skip
PrivateTrainer(
    model, arguments, train_dataset=texts, processing_class=tokenizer, optimizers=(optimizer, None),
    callbacks=[ClearedSums()],
).train()  # fmt: skip
print(audit.result)
