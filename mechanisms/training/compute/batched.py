"""The kernel that trains a whole stack of perceptrons in batched products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit.mechanisms.training.compute.kernels import Kernel, clip_factors
from dpaudit.mechanisms.training.losses import Loss, slope


class BatchedMlp(Kernel):
    """Multilayer perceptrons by batched matrix products, forward and backward written out."""

    def __init__(self, module: nn.Module, *, loss: Loss) -> None:
        super().__init__(module, loss=loss)
        self._activation = next(
            (part for part in module.children() if not isinstance(part, nn.Flatten | nn.Linear)), nn.Identity()
        )

    @staticmethod
    def takes(module: nn.Module) -> bool:
        """Whether a module is a perceptron this kernel can do: linear layers with ReLU or tanh between them."""
        return isinstance(module, nn.Sequential) and all(
            isinstance(part, nn.Flatten | nn.Linear | nn.ReLU | nn.Tanh) for part in module
        )

    def _layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = list(self.layout.views(flat).values())
        return list(zip(parts[0::2], parts[1::2], strict=True))

    def _forward(self, layers: list[tuple[Tensor, Tensor]], inputs: Tensor) -> list[Tensor]:
        """What each layer takes, and the logits last."""
        seen = [inputs.flatten(2)]
        for depth, (weight, bias) in enumerate(layers):
            outputs = torch.baddbmm(bias[:, None], seen[-1], weight.transpose(1, 2))
            seen.append(outputs if depth == len(layers) - 1 else self._activate(outputs))
        return seen

    def _activate(self, outputs: Tensor) -> Tensor:
        return outputs.tanh_() if isinstance(self._activation, nn.Tanh) else outputs.relu_()

    def _through_activation(self, errors: Tensor, activated: Tensor) -> Tensor:
        if isinstance(self._activation, nn.Tanh):
            return errors.mul_(1 - activated * activated)
        return errors.mul_(activated > 0)

    def _errors(self, layers: list[tuple[Tensor, Tensor]], seen: list[Tensor], last: Tensor) -> list[Tensor]:
        """Derivatives by each layer's outputs, first layer first."""
        errors = [last]
        for (weight, _), activated in zip(reversed(layers[1:]), reversed(seen[1:-1]), strict=True):
            errors.append(self._through_activation(torch.bmm(errors[-1], weight), activated))
        return errors[::-1]

    def _collect(self, seen: list[Tensor], errors: list[Tensor], out: Tensor) -> None:
        for (weight, bias), activated, error in zip(self._layers(out), seen[:-1], errors, strict=True):
            torch.bmm(error.transpose(1, 2), activated, out=weight)
            torch.sum(error, 1, out=bias)

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        return self._forward(self._layers(parameters), inputs)[-1]

    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        layers = self._layers(parameters)
        seen = self._forward(layers, inputs)
        losses, last = slope(self.loss, seen[-1], targets)
        last *= coefficients[..., None]
        self._collect(seen, self._errors(layers, seen, last), out)
        return (losses * coefficients).sum(1)

    def forward(self, parameters: Tensor, inputs: Tensor) -> list[Tensor]:
        """What each layer takes, and the logits (A, b, classes) last: for losses that couple a batch's examples."""
        return self._forward(self._layers(parameters), inputs)

    def backward(self, parameters: Tensor, seen: list[Tensor], last: Tensor, out: Tensor) -> None:
        """Writes the gradient to `out` (A, P), from what `forward` gave and the derivatives by the logits."""
        self._collect(seen, self._errors(self._layers(parameters), seen, last), out)

    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        layers = self._layers(parameters)
        seen = self._forward(layers, inputs)
        errors = self._errors(layers, seen, slope(self.loss, seen[-1], targets)[1])
        # One example's gradient of a layer is error x input; squared norm |error|^2 (|input|^2 + 1), 1 for the bias.
        squares = sum(
            (error * error).sum(-1) * ((activated * activated).sum(-1) + 1)
            for activated, error in zip(seen[:-1], errors, strict=True)
        )
        assert isinstance(squares, Tensor)
        factors = (clip_factors(squares.sqrt(), clip) * present)[..., None]
        self._collect(seen, [error * factors for error in errors], out)
