"""A network by DP-SGD in two processes on CPUs: each clips the gradients of its rows, and the first adds noise."""

import sys

import torch
import torch.distributed as dist
from torch.func import functional_call, grad, vmap

import dpaudit

STEPS, CLIP, BATCH = 60, 1.0, 20


def train(rank: int, share: float, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
    weights = {name: value.detach() for name, value in module.named_parameters()}
    torch.manual_seed(1 + rank)
    X, y = torch.randn(100, 20), torch.randint(2, (100,))

    def loss(parameters, row, label):
        return torch.nn.functional.cross_entropy(functional_call(module, parameters, (row[None],)), label[None])

    audit = dpaudit.TrainingAudit(1.0, clip=CLIP, divisor=BATCH, distributed="records", seed=0)  # audit
    for _ in range(STEPS):
        batch = torch.randperm(100)[: BATCH // 2]
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, X[batch], y[batch])
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in each.values()]).norm(dim=0)
        factors = 1 / (norms / CLIP).clamp(min=1)
        total = {name: torch.einsum("b,b...->...", factors, value) for name, value in each.items()}
        total = audit.join(total)  # audit
        for value in total.values():
            if rank == 0:
                value += share * CLIP * torch.randn_like(value)
            dist.all_reduce(value)
            value /= BATCH
        audit.observe(total)  # audit
        weights = {name: value - 0.5 * total[name] for name, value in weights.items()}
    if rank == 0:
        print(audit.result)
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(float(sys.argv[1]), f"{folder}/group"), nprocs=2)
