"""A stack of networks of one shape: initial weights, losses, and kernels that compute gradients.

A network's weights are one flat vector, so a stack is a matrix of parameters, shape (models, P). The fastest kernel is
`looped` for convolutions on a CPU, `batched` for perceptrons and `vmapped` for other networks on a GPU. Their results
agree up to rounding.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from dpaudit.errors import require
from dpaudit.mechanisms.gpu_memory import is_out_of_memory


@dataclass(frozen=True)
class ParameterLayout:
    """Layout of a network's parameters in its flat vector."""

    names: tuple[str, ...]  # parameter names, in order
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]  # numbers of elements

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return each parameter by name, (*lead, P) to (*lead, *shape), without a copy."""
        # The gradient of one split is one concatenation, which many slices would not give.
        parts = flat.split(self.sizes, dim=-1)
        lead = flat.shape[:-1]
        return {
            name: part.reshape(*lead, *shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def matrices(self) -> Tensor:
        """Return a mask, shape (P,): True for weights, False for biases and normalisation."""
        flags = [torch.full((size,), len(shape) > 1) for shape, size in zip(self.shapes, self.sizes, strict=True)]
        return torch.cat(flags)


def layout_of(module: nn.Module) -> ParameterLayout:
    named = dict(module.named_parameters())
    shapes = tuple(tuple(parameter.shape) for parameter in named.values())
    return ParameterLayout(tuple(named), shapes, tuple(math.prod(shape) for shape in shapes))


def draw_weights(module: nn.Module, generator: torch.Generator) -> Tensor:
    """Draw initial weights, shape (P,), from `generator` alone; the module may be on the device "meta".

    Linear layers and convolutions with a bias: uniform on +-1/sqrt(fan in), as in torch. Convolutions without a bias
    (before a normalisation): normal with variance 2 / fan in (He et al., 2015). Embeddings: normal with variance
    1 / width, so vectors have norm about 1. Normalisation: weight 1 and bias 0.
    """
    weights = dict.fromkeys(layout_of(module).names, torch.zeros(0))
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(prefix, recurse=False):
            shape = tuple(parameter.shape)
            if isinstance(part, nn.Embedding):
                weights[name] = torch.randn(shape, generator=generator) / math.sqrt(part.embedding_dim)
            elif not isinstance(part, nn.Linear | nn.Conv2d):
                weights[name] = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
            else:
                fan_in = math.prod(part.weight.shape[1:])
                if part.bias is None:
                    weights[name] = torch.randn(shape, generator=generator) * math.sqrt(2 / fan_in)
                else:
                    weights[name] = (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(fan_in)
    return torch.cat([values.flatten() for values in weights.values()])


MAX_GRADIENT_BYTES = 256 * 2**20
NORM_FLOOR = 1e-6


class Loss(Protocol):
    """A loss of single examples; must not couple the examples of a batch."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return losses of shape (...) from logits and targets of shape (..., classes)."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy; a target has one probability for each class (one-hot for a hard label)."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -(targets * torch.log_softmax(logits, -1)).sum(-1)


@dataclass(frozen=True)
class AlibiLoss:
    """Cross-entropy with the posterior of the label; the prior is the model's current prediction.

    Targets are the log-likelihood of the noisy label for each class. The posterior is constant in a step: no gradient
    flows through it.

    Source: Malek et al. (2021), arXiv:2106.03408, ALIBI.
    """

    floor: float = 1e-10

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        posterior = torch.softmax(torch.log_softmax(logits.detach(), -1) + targets, -1)
        return -(posterior * (torch.softmax(logits, -1) + self.floor).log()).sum(-1)


class Kernel(ABC):
    """Gradients of a stack of networks.

    Shapes: parameters (A, P); inputs (A, b, *shape); targets (A, b, classes); coefficients (A, b).
    """

    def __init__(self, module: nn.Module, *, loss: Loss, bfloat16: bool = False) -> None:
        self.layout = layout_of(module)
        self.loss = loss
        self._bfloat16 = bfloat16

    @abstractmethod
    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits of each model on its inputs, shape (A, b, classes)."""

    @abstractmethod
    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        """Write each model's gradient of sum_i coefficient_i loss_i to `out` (A, P); returns those sums, (A,)."""

    @abstractmethod
    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        """Write sum_i present_i min(1, clip / (|g_i| + 1e-6)) g_i over each model's examples to `out` (A, P)."""

    def _slope(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses (...) and their gradients by the logits (..., classes)."""
        if isinstance(self.loss, CrossEntropy):  # the most common loss, faster without autograd
            logs = torch.log_softmax(logits, -1)
            return -(targets * logs).sum(-1), logs.exp_().mul_(targets.sum(-1, keepdim=True)).sub_(targets)
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            losses = self.loss(leaf, targets)
            (derivative,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), derivative

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16, enabled=self._bfloat16 and device.type == "cuda")


class Looped(Kernel):
    """One network at a time with autograd; the only kernel that supports batch norm. A must be 1."""

    def __init__(self, module: nn.Module, *, loss: Loss, device: torch.device, bfloat16: bool = False) -> None:
        super().__init__(module, loss=loss, bfloat16=bfloat16)
        self.module = module.to_empty(device=device)
        for buffer, value in self.module.named_buffers():  # only batch norm has any
            value.fill_(1.0 if buffer.endswith("var") else 0.0)
        if device.type == "cuda":
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parameters = list(self.module.parameters())
        self._bound = -1

    def _bind(self, parameters: Tensor) -> None:
        if self._bound != parameters.data_ptr():
            views = self.layout.views(parameters[0])
            for parameter, view in zip(self._parameters, views.values(), strict=True):
                parameter.data = view
            self._bound = parameters.data_ptr()

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        self._bind(parameters)
        self.module.eval()
        with torch.no_grad(), self._autocast(inputs.device):
            return self.module(_images(inputs[0])).float()[None]  # type: ignore[no-any-return]

    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        self._bind(parameters)
        self.module.train()
        with torch.enable_grad(), self._autocast(inputs.device):
            logits = self.module(_images(inputs[0])).float()
            total = (self.loss(logits, targets[0]) * coefficients[0]).sum()
            gradients = torch.autograd.grad(total, self._parameters)
        torch.cat([part.flatten() for part in gradients], out=out[0])
        return total.detach()[None]

    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        Vmapped(self.module, loss=self.loss).clipped_gradient(parameters, inputs, targets, present, clip, out)


class Vmapped(Kernel):
    """All networks at once with torch.func; rejects batch norm, which couples examples."""

    def __init__(self, module: nn.Module, *, loss: Loss, bfloat16: bool = False, compiled: bool = False) -> None:
        super().__init__(module, loss=loss, bfloat16=bfloat16)
        require(
            not couples_examples(module),
            "a network with batch norm cannot be stacked or trained by DP-SGD",
            do='use norm="group"',
        )
        self._module = module
        self._logits = vmap(self._forward)
        self._gradient: Callable[..., tuple[Tensor, Tensor]] = vmap(grad_and_value(self._weighted_loss))
        self._example_gradients = vmap(vmap(grad(self._example_loss), in_dims=(None, 0, 0)))
        if compiled:
            self._gradient = compiled_or_plain(self._gradient)

    def _forward(self, flat: Tensor, inputs: Tensor) -> Tensor:
        with self._autocast(inputs.device):
            return functional_call(self._module, self.layout.views(flat), (inputs,)).float()  # type: ignore[no-any-return]

    def _weighted_loss(self, flat: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor) -> Tensor:
        return (self.loss(self._forward(flat, inputs), targets) * coefficients).sum()

    def _example_loss(self, flat: Tensor, example: Tensor, target: Tensor) -> Tensor:
        return self.loss(self._forward(flat, example[None]), target[None]).sum()

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._logits(parameters, inputs)

    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        gradients, totals = self._gradient(parameters, inputs, targets, coefficients)
        out.copy_(gradients)
        return totals

    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        out.zero_()
        examples_per_pass = max(1, MAX_GRADIENT_BYTES // (4 * parameters.shape[0] * self.layout.total))
        for examples in torch.arange(inputs.shape[1], device=inputs.device).split(examples_per_pass):
            gradients = self._example_gradients(parameters, inputs[:, examples], targets[:, examples])
            factors = clip_factors(torch.linalg.vector_norm(gradients, dim=-1), clip) * present[:, examples]
            out += torch.einsum("ab,abp->ap", factors, gradients)


def couples_examples(module: nn.Module) -> bool:
    """True if an example's logits depend on other examples of its batch, as with batch norm."""
    return any(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """Return min(1, clip / (norm + 1e-6)) for each norm."""
    return (clip / (norms + NORM_FLOOR)).clamp(max=1.0)


def compiled_or_plain(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Compile `function` with torch; fall back to the uncompiled function once the compiler fails."""
    current = torch.compile(function)

    def call(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal current
        try:
            return current(*arguments)
        except Exception as error:  # compiler errors have no common base class
            if current is function or is_out_of_memory(error):
                raise
            warnings.warn(f"torch.compile failed; training continues without it: {error}", stacklevel=2)
            current = function
            return function(*arguments)

    return call


def _images(inputs: Tensor) -> Tensor:
    """Return images in channels-last layout on a GPU, which speeds up convolutions."""
    if inputs.dim() == 4 and inputs.device.type == "cuda":
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


class BatchedMlp(Kernel):
    """Multilayer perceptrons by batched matrix products, with explicit forward and backward passes."""

    def __init__(self, module: nn.Module, *, loss: Loss) -> None:
        super().__init__(module, loss=loss)
        self._tanh = any(isinstance(part, nn.Tanh) for part in module.children())

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """True if `module` is a perceptron: linear layers with ReLU or tanh between them."""
        return isinstance(module, nn.Sequential) and all(
            isinstance(part, nn.Flatten | nn.Linear | nn.ReLU | nn.Tanh) for part in module
        )

    def _layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = list(self.layout.views(flat).values())
        return list(zip(parts[0::2], parts[1::2], strict=True))

    def forward(self, parameters: Tensor, inputs: Tensor) -> list[Tensor]:
        """Return the input of each layer, then the logits (A, b, classes)."""
        activations, layers = [inputs.flatten(2)], self._layers(parameters)
        for depth, (weight, bias) in enumerate(layers, 1):
            outputs = torch.baddbmm(bias[:, None], activations[-1], weight.transpose(1, 2))
            if depth < len(layers):
                outputs = outputs.tanh_() if self._tanh else outputs.relu_()
            activations.append(outputs)
        return activations

    def backward(self, parameters: Tensor, activations: list[Tensor], last: Tensor, out: Tensor) -> None:
        """Write the gradient to `out` (A, P), given the result of `forward` and the gradient `last` by the logits."""
        self._collect(activations, self._errors(parameters, activations, last), out)

    def _errors(self, parameters: Tensor, activations: list[Tensor], last: Tensor) -> list[Tensor]:
        """Return the gradients by the outputs of each layer, first layer first."""
        errors, later = [last], self._layers(parameters)[1:]
        for (weight, _), activated in zip(reversed(later), reversed(activations[1:-1]), strict=True):
            slopes = 1 - activated * activated if self._tanh else activated > 0
            errors.append(torch.bmm(errors[-1], weight).mul_(slopes))
        return errors[::-1]

    def _collect(self, activations: list[Tensor], errors: list[Tensor], out: Tensor) -> None:
        for (weight, bias), activated, error in zip(self._layers(out), activations[:-1], errors, strict=True):
            torch.bmm(error.transpose(1, 2), activated, out=weight)
            torch.sum(error, 1, out=bias)

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        return self.forward(parameters, inputs)[-1]

    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        activations = self.forward(parameters, inputs)
        losses, last = self._slope(activations[-1], targets)
        last *= coefficients[..., None]
        self.backward(parameters, activations, last, out)
        return (losses * coefficients).sum(1)

    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        activations = self.forward(parameters, inputs)
        errors = self._errors(parameters, activations, self._slope(activations[-1], targets)[1])
        # An example's gradient of a layer is error x input, with squared norm |error|^2 (|input|^2 + 1); 1 for the
        # bias.
        squares = sum(
            (error * error).sum(-1) * ((activated * activated).sum(-1) + 1)
            for activated, error in zip(activations[:-1], errors, strict=True)
        )
        assert isinstance(squares, Tensor)
        factors = (clip_factors(squares.sqrt(), clip) * present)[..., None]
        self._collect(activations, [error * factors for error in errors], out)
