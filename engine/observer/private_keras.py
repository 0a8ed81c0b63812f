"""A model of Keras on JAX that `jax_privacy` made private, whose steps an audit joins and observes by itself."""

from __future__ import annotations

from typing import Any

from dpaudit.engine.observer.protocol import Audit
from dpaudit.errors import require


def stated_by(model: Any) -> dict[str, Any]:
    """Return the arguments of an audit that a private model states. Raises: InputError for another model."""
    require(
        hasattr(model, "_dp_params"),
        "model must be private",
        given=type(model).__name__,
        do="call jax_privacy.keras_api.make_private first",
    )
    stated = model._dp_params
    return {
        "noise": model.get_noise_multiplier() / stated.gradient_accumulation_steps**0.5,
        # A step adds noise to the mean of the batch.
        "clip": (1.0 if stated.rescale_to_unit_norm else stated.clipping_norm) / stated.batch_size,
        "claim": (stated.epsilon, stated.delta),
        "steps": stated.train_steps * stated.gradient_accumulation_steps,
        "sampling_rate": stated.batch_size / stated.train_size,
    }


def attach(audit: Audit, model: Any) -> None:
    """Let the audit join each step between clipping and noise, and observe what the optimizer gets."""
    from jax_privacy import noise_addition

    train_step, privatizer_of = model.train_step, noise_addition.gaussian_privatizer

    def audited(*arguments: Any, **settings: Any) -> Any:
        privatizer = privatizer_of(*arguments, **settings)

        def update(gradients: Any, *state: Any) -> Any:
            noisy, following = privatizer.update(audit.join(gradients), *state)
            audit.observe(noisy)
            return noisy, following

        return privatizer._replace(update=update)

    def step(*arguments: Any) -> Any:
        noise_addition.gaussian_privatizer = audited  # while JAX traces the step of this model
        try:
            return train_step(*arguments)
        finally:
            noise_addition.gaussian_privatizer = privatizer_of

    model.train_step = step
