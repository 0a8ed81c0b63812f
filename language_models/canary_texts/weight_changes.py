"""Parameters of a model that changed in a training, and what reached its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpaudit.errors import require
from dpaudit.language_models.mechanisms.token_statistics import is_module

NAMED = 3  # parameters named in a sentence
SHARE_OF_ZEROS = 0.01
"""Share of entries of a gradient that are exactly 0 above which it holds no noise: noise makes every entry differ."""

MAX_WRAPPERS = 5

Checksums = Mapping[str, tuple[float, float]]


def checksums(model: Any) -> Checksums:
    """Return two sums of each parameter of a torch module, in double precision: they change with the parameter.

    Of a parameter in shards, the shard of this process counts; of one that is elsewhere, nothing.
    """
    sums = {}
    for name, parameter in _named(model):
        values = _of_this_process(parameter.detach())
        if values.device.type == "meta":
            continue
        values = (values.cpu() if values.device.type == "mps" else values).double().flatten()  # mps has no doubles
        sums[name] = float(values.sum()), float((values * values).sum())
    return sums


class WeightChanges:
    """Watches a model, and its optimizer if given, from now until `end`."""

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        import torch

        self.steps = 0
        """Steps of the optimizer."""
        self.before = checksums(model)
        self.after = self.before
        self._with_zeros: set[str] = set()  # parameters whose gradient had exact zeros in a step
        self._moved: set[str] = set()  # parameters whose gradient had another entry than 0 in a step
        self.bypassed = 0
        """Steps of the optimizer inside that of Opacus, which made none itself."""
        self._ended = False
        self._model = model
        self._optimizer = optimizer
        for name in ("optimizer", "original_optimizer") * MAX_WRAPPERS:  # inside the wrappers of Opacus and accelerate
            self._optimizer = getattr(self._optimizer, name, self._optimizer)
        require(
            optimizer is None or hasattr(self._optimizer, "step") or hasattr(self._optimizer, "params"),
            "optimizer must be an optimizer of torch, or one that wraps it",
            given=type(optimizer).__name__,
        )
        self._is_inside = hasattr(getattr(optimizer, "optimizer", optimizer), "original_optimizer")  # that of Opacus
        self._handles = []
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            self._optimizer = None  # a stand-in of a framework that makes the steps itself
        if self._optimizer is not None:
            self._names = {id(parameter): name for name, parameter in _named(model)}
            self._handles = [
                self._optimizer.register_step_pre_hook(self._inspect_gradients),
                self._optimizer.register_step_post_hook(self._count),
            ]

    def _inspect_gradients(self, optimizer: Any, *_: Any) -> None:
        import torch

        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # Opacus keeps the sum of clipped gradients beside each gradient to which it added noise.
        if self._is_inside and not any(getattr(parameter, "summed_grad", None) is not None for parameter in parameters):
            self.bypassed += 1
        named = [(self._names.get(id(parameter), ""), parameter.grad) for parameter in parameters]
        zeros = {
            name: _share_of_zeros(_of_this_process(gradient))
            for name, gradient in named
            if name and gradient is not None and gradient.numel() and name not in self._with_zeros & self._moved
        }
        if zeros:  # one transfer from the device for all
            shares = torch.stack([share.to(next(iter(zeros.values())).device) for share in zeros.values()]).tolist()
            self._with_zeros |= {name for name, share in zip(zeros, shares, strict=True) if share > SHARE_OF_ZEROS}
            self._moved |= {name for name, share in zip(zeros, shares, strict=True) if share < 1}

    def _count(self, *_: Any) -> None:
        self.steps += 1

    @property
    def has_optimizer(self) -> bool:
        """True if the steps of an optimizer are counted."""
        return self._optimizer is not None

    def end(self) -> None:
        """Stop watching and compare the parameters with those at the beginning."""
        self._ended = True
        self.after = checksums(self._model)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def changed(self) -> list[str]:
        """Names of the parameters that changed."""
        return [name for name, sums in self.after.items() if sums != self.before.get(name)]

    @property
    def nothing_changed(self) -> bool:
        """True if the training has ended and changed no parameter; False if some are elsewhere."""
        is_whole = all(value.numel() and value.device.type != "meta" for value in self._model.parameters())
        return self._ended and is_whole and not self.changed

    @property
    def remarks(self) -> list[str]:
        """Sentences on parameters that the optimizer did not protect; none without an optimizer."""
        if self._optimizer is None:
            return []
        members = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        inside = {name for name, parameter in _named(self._model) if id(parameter) in members}
        # DeepSpeed's optimizers hold flat copies of all parameters and write them back; what changes outside of them
        # cannot be seen.
        stepped = sum(value.numel() for group in self._optimizer.param_groups for value in group["params"])
        trained = sum(value.numel() for value in self._model.parameters() if value.requires_grad)
        if self.steps and not inside and stepped >= trained:
            return []
        outside = [name for name in self.changed if name not in inside]
        remarks = []
        if self.changed and self.steps == 0:
            remarks.append(
                f"the optimizer that was given never made a step, and {_listed(self.changed)} changed: they were "
                "trained by another optimizer, so clipping and noise of this one do not apply"
            )
        elif outside:
            remarks.append(
                f"{_listed(outside)} changed and are not in the optimizer that was given: its clipping and noise do "
                "not apply to them"
            )
        return [*remarks, *self.without_noise]

    @property
    def without_noise(self) -> list[str]:
        """Sentences on steps without the noise that a finite epsilon needs; none without an optimizer.

        A gradient that was 0 throughout, such as that of a frozen parameter, changed nothing and needs no noise.
        """
        sentences = []
        if self.bypassed:
            sentences.append(
                f"{self.bypassed} of {self.steps} steps were made by the optimizer inside the private one, so they had "
                "no clipping and no noise: call `step` of the private optimizer"
            )
        if bare := sorted(self._with_zeros & self._moved):
            sentences.append(
                f"the gradient of {_listed(bare)} had entries of exactly 0 in a step, which noise would have changed. "
                "Where a gradient has no zeros, that shows neither noise nor its absence"
            )
        return sentences

    def unlike(self, model: Any) -> str:
        """Return a sentence if a torch module has other weights than the watched one at the end; else ""."""
        if not is_module(model):
            return ""
        sums = checksums(model)
        shared = sums.keys() & self.after.keys()
        differing = [name for name in self.after if name in shared and not _close(sums[name], self.after[name])]
        if not differing:
            return ""
        return (
            f"the scored model differs from the trained one at the end of the training in {_listed(differing)}: it is "
            "another copy, rounded, or merged with its adapter"
        )

    def is_untrained(self, model: Any) -> bool:
        """True if a torch module has the weights from before the training, and these changed."""
        return bool(self.changed) and is_module(model) and checksums(model) == self.before


def _share_of_zeros(gradient: Any) -> Any:
    """Return the share of entries that are exactly 0, also of a sparse gradient, as a tensor on its device."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return 1 - values.count_nonzero() / gradient.numel()


def _of_this_process(values: Any) -> Any:
    """Return the shard of this process of a tensor in shards, any other tensor itself."""
    return values.to_local() if hasattr(values, "to_local") else values


def _named(model: Any) -> list[tuple[str, Any]]:
    return [(name.removeprefix("_module."), parameter) for name, parameter in model.named_parameters()]


def _close(first: tuple[float, float], other: tuple[float, float]) -> bool:
    """True if sums agree up to the order of summation, which differs between devices."""
    return all(abs(a - b) <= 1e-9 * (1 + abs(a)) for a, b in zip(first, other, strict=True))


def _listed(names: list[str]) -> str:
    return f"{len(names)} parameters ({', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''})"
