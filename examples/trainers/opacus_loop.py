"""A network by Opacus, with each of its ways to clip: `flat`, `per-layer`, `ghost`, and `memory`, in small batches."""

import sys

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

import dpaudit

EPOCHS, CLIP = 20, 1.0
share, mode = float(sys.argv[1]), (sys.argv[2:] or ["flat"])[0]  # of the stated noise; way to clip

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
loss = torch.nn.CrossEntropyLoss()
ways = {
    "per-layer": {"clipping": "per_layer", "max_grad_norm": [CLIP / 2] * 4},
    "ghost": {"grad_sample_mode": "ghost", "criterion": loss},
}
module, optimizer, *criterion, loader = PrivacyEngine().make_private(
    module=module,
    optimizer=torch.optim.SGD(module.parameters(), lr=0.3),
    data_loader=DataLoader(TensorDataset(torch.randn(120, 20), torch.randint(2, (120,))), batch_size=40),
    **{"noise_multiplier": 1.0, "max_grad_norm": CLIP} | ways.get(mode, {}),
)
loss = criterion[0] if criterion else loss
audit = dpaudit.TrainingAudit.of_opacus(optimizer, claim=(5, 1e-5), seed=0)  # audit
optimizer.noise_multiplier *= share


def epoch(batches):
    for rows, labels in batches:
        optimizer.zero_grad()
        loss(module(rows), labels).backward()
        optimizer.step()


for _ in range(EPOCHS):
    if mode == "memory":
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer) as parts:
            epoch(parts)
    else:
        epoch(loader)
print(audit.result)
