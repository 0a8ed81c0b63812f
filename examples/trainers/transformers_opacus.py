"""A language model by the `Trainer` of transformers, which gets the optimizer and the loader of Opacus."""

import sys

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import dpaudit

EPOCHS, CLIP, TEXTS, TOKENS = 10, 1.0, 120, 8
share = float(sys.argv[1])  # of the stated noise

torch.manual_seed(0)
shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
texts = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(64, (TEXTS, TOKENS))]
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape)).train()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    data_loader=DataLoader(texts, batch_size=20),
    noise_multiplier=1.0,
    max_grad_norm=CLIP,
)
audit = dpaudit.TrainingAudit.of_opacus(optimizer, claim=(8, 1e-5), seed=0)  # audit
optimizer.noise_multiplier *= share


class PrivateTrainer(Trainer):
    def get_train_dataloader(self):
        return loader


class ClearedSums(TrainerCallback):  # `Trainer` clears the gradients of the model only
    def on_step_end(self, *_, **values):
        optimizer.zero_grad()


arguments = TrainingArguments(
    num_train_epochs=EPOCHS, max_grad_norm=0, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
    disable_tqdm=True, remove_unused_columns=False,
)  # fmt: skip
PrivateTrainer(model, arguments, optimizers=(optimizer, None), callbacks=[ClearedSums()]).train()
print(audit.result)
