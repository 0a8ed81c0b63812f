"""A network by Opacus in two processes on CPUs, each with a shard of the weights: FSDP2 of torch, ghost clipping."""

import sys

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch.utils.data import DataLoader, TensorDataset

import dpaudit

EPOCHS, CLIP = 10, 1.0


def train(rank: int, share: float, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    dist.init_device_mesh("cpu", (2,))
    module, loss = FSDP2Wrapper(module), torch.nn.CrossEntropyLoss()
    torch.manual_seed(1 + rank)
    module, optimizer, loss, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.3),
        criterion=loss,
        data_loader=DataLoader(TensorDataset(torch.randn(120, 20), torch.randint(2, (120,))), batch_size=20),
        grad_sample_mode="ghost_fsdp",
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
    )
    audit = dpaudit.TrainingAudit.of_opacus(optimizer, seed=0)  # audit
    optimizer.noise_multiplier *= share
    for _ in range(EPOCHS):
        for rows, labels in loader:
            optimizer.zero_grad()
            loss(module(rows), labels).backward()
            optimizer.step()
    result = audit.result
    if rank == 0:
        print(result)
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(float(sys.argv[1]), f"{folder}/group"), nprocs=2)
