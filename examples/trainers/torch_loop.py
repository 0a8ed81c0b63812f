"""A network by DP-SGD in plain torch: gradients of examples by `torch.func`, clipped, summed, and noise added."""

import sys

import torch
from torch.func import functional_call, grad, vmap

import dpaudit

STEPS, CLIP, BATCH, ROWS = 60, 1.0, 20, 200
share = float(sys.argv[1])  # of the stated noise

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
X, y = torch.randn(ROWS, 20), torch.randint(2, (ROWS,))


def loss(parameters, row, label):
    return torch.nn.functional.cross_entropy(functional_call(module, parameters, (row[None],)), label[None])


audit = dpaudit.TrainingAudit(1.0, clip=CLIP, divisor=BATCH, seed=0)  # audit
for _ in range(STEPS):
    batch = torch.rand(ROWS) < BATCH / ROWS
    weights = dict(module.named_parameters())
    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, X[batch], y[batch])
    each = audit.join(each, per_example=True)  # audit
    norms = torch.stack([value.flatten(1).norm(dim=1) for value in each.values()]).norm(dim=0)
    factors = 1 / (norms / CLIP).clamp(min=1)
    for name, value in each.items():
        total = torch.einsum("b,b...->...", factors, value)
        weights[name].grad = (total + share * CLIP * torch.randn_like(total)) / BATCH
    audit.observe([weight.grad for weight in module.parameters()])  # audit
    optimizer.step()
print(audit.result)
