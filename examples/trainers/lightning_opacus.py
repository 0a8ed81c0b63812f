"""A network in Lightning, made private by Opacus: the module's optimizer and loader come from `make_private`."""

import sys

import lightning
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

import dpaudit

EPOCHS, CLIP = 20, 1.0
share = float(sys.argv[1])  # of the stated noise


class PrivateModule(lightning.LightningModule):
    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer, self.loss = module, optimizer, torch.nn.CrossEntropyLoss()

    def training_step(self, batch, number):
        rows, labels = batch
        return self.loss(self.module(rows), labels)

    def configure_optimizers(self):
        return self.optimizer


lightning.seed_everything(0, verbose=False)
module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
module, optimizer, loader = PrivacyEngine().make_private(
    module=module,
    optimizer=torch.optim.Adam(module.parameters()),
    data_loader=DataLoader(TensorDataset(torch.randn(120, 20), torch.randint(2, (120,))), batch_size=40),
    noise_multiplier=1.0,
    max_grad_norm=CLIP,
)
audit = dpaudit.TrainingAudit.of_opacus(optimizer, claim=(5, 1e-5), seed=0)  # audit
optimizer.noise_multiplier *= share
trainer = lightning.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(PrivateModule(module, optimizer), loader)
print(audit.result)
