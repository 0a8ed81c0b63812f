"""Label-private learners on images: Tables 1 and 4 of arXiv:2511.14084 (section 6.3, appendix 12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.images import Cifar10, FashionMnist
from dpaudit.engine.data.partition import Joined, Partition
from dpaudit.engine.games.proxies import CalibratedModel
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.learners.lp_mst import LP1ST, LP1STOutOfDomainPrior
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.learners.pate import PateFm
from dpaudit.mechanisms.models.networks import Network, ResNet18, SmallCnn, WideResNet28x4
from dpaudit.registry import register
from papers.data.picture_strips import Cifar10Strips, cifar10
from papers.label_tables import Metric, Printed, Study, bounds_table, run_study, utility_table
from papers.reproduction import Options, Reproduction
from papers.training_operations import SUSTAINED_FLOPS, training_flops

EPSILONS = (math.inf, 10.0, 1.0)
SMALL_IMAGES = 10_000
SMALL_SPLIT = Partition(target=0.3, reference=0.4, test=0.3)
"""Shares with one unseen row for each training row, else the control of the proxy has little power, and with no fewer
rows for the proxy than for the learner: a worse proxy shows on rows that neither saw."""
COLOUR_SPLIT = Partition(target=0.16, reference=0.72, test=0.12)
"""The split of CIFAR-10, whose pictures are harder for the proxy."""
PRIOR = LP1STOutOfDomainPrior(1.0)
SMALL_PRIOR = LP1STOutOfDomainPrior(1.0, prior_epsilon=0.25, clusters=20)
SMALL = SmallCnn(epochs=40, learning_rate=0.02, schedule="cosine")
SMALL_PROXY = SmallCnn(epochs=20, learning_rate=0.03, schedule="cosine", augment="crop", weight_decay=5e-4)
RESIDUAL = ResNet18(width=16, epochs=12, learning_rate=0.05, batch_size=64, schedule="cosine")
"""Network for CIFAR-10 at small scale: a quarter of ResNet-18's channels, a minute of one core for 1,600 pictures."""
RESIDUAL_PROXY = replace(RESIDUAL, augment="crop-flip", weight_decay=5e-4)
SMALL_PATE_FM = PateFm(
    1.0,
    teachers=20,
    queries=1_000,
    answers=400,
    threshold=10.0,
    threshold_noise=2.0,
    vote_noise=1.0,
    teacher_steps=400,
    student_steps=1_500,
    ratio=3,
    confidence=0.8,
    model=SmallCnn(batch_size=16, learning_rate=0.03, augment="crop"),
)
RESNET = ResNet18(
    epochs=200, learning_rate=0.4, weight_decay=1e-4, batch_size=512, mixup=4.0, augment="crop-flip",
    schedule="warmup-tenths",
)  # fmt: skip
ALIBI_NET = WideResNet28x4(
    epochs=200, learning_rate=0.1, nesterov=True, weight_decay=1e-4, batch_size=128, schedule="warmup-fifths"
)
BOUNDS: Printed = {
    "LP-1ST": ((2.13, 0.22), (2.02, 0.33), (0.43, 0.05)),
    "LP-1ST (out-of-domain prior)": ((2.26, 0.22), (1.86, 0.25), (0.90, 0.07)),
    "PATE-FM": ((2.42, 0.32), (2.22, 0.24), (0.79, 0.09)),
    "ALIBI": ((2.53, 0.33), (2.18, 0.27), (0.67, 0.07)),
}
_NO = math.nan  # the paper gives no deviation of its accuracies
ACCURACY: Printed = {
    "LP-1ST": ((91.3, _NO), (91.07, _NO), (60.4, _NO)),
    "LP-1ST (out-of-domain prior)": ((92.1, _NO), (91.5, _NO), (87.9, _NO)),
    "PATE-FM": ((92.5, _NO), (92.3, _NO), (91.3, _NO)),
    "ALIBI": ((90.1, _NO), (87.1, _NO), (66.9, _NO)),
}


@register("reproduction", "observational-label table-1", source="arXiv:2511.14084, Table 1")
def table_1(options: Options) -> Reproduction:
    """Bounds on four label-private learners of images at three values of epsilon."""
    results = run_study(study(options), on_gpus(options))
    title = "Table 1 of arXiv:2511.14084: bounds on ε of learners of images"
    return bounds_table(results, BOUNDS, name="table-1", title=title, options=options)


@register("reproduction", "observational-label table-4", source="arXiv:2511.14084, Table 4")
def table_4(options: Options) -> Reproduction:
    """Test accuracy of four label-private learners of images, from the trainings of table 1."""
    results = run_study(study(options), on_gpus(options))
    metric = Metric("test_accuracy", "test accuracy, %", 100.0, 1)
    title = "Table 4 of arXiv:2511.14084: test accuracy of learners of images"
    return utility_table(results, ACCURACY, metric, name="table-4", title=title, options=options)


PICTURES = ("cifar10", "fashion_mnist")


def study(options: Options) -> Study:
    """Return the study behind both tables."""
    small = options.scale == "small"
    data, split = _data(options)
    colour = isinstance(data, Cifar10 | Cifar10Strips)
    network, small_proxy = (RESIDUAL, RESIDUAL_PROXY) if colour else (SMALL, SMALL_PROXY)
    small_learners = learners_on(network, SMALL_PRIOR, SMALL_PATE_FM, network)
    if colour:  # out of reach, see `_differences`
        small_learners = {name: learner for name, learner in small_learners.items() if name != "PATE-FM"}
    return Study(
        name=f"images-{options.scale}",
        learners=small_learners if small else learners_on(RESNET, PRIOR, PateFm(1.0), ALIBI_NET),
        epsilons=EPSILONS,
        data=data,
        split=split,
        proxy=CalibratedModel(small_proxy if small else RESNET),
        canaries=None if small else 10_000,
        cost=_small_cost(colour=colour) if small else _paper_cost(),
        differences=_differences(options),
    )


def on_gpus(options: Options) -> Options:
    """Return options with one GPU for each worker at the paper's scale, unless `run` sets a share."""
    if options.scale == "small" or options.run.resources.gpus:
        return options
    return replace(options, run=replace(options.run, resources=replace(options.run.resources, gpus=1.0)))


def learners_on(
    network: Network, prior: LP1STOutOfDomainPrior, pate_fm: PateFm, alibi: Network
) -> Mapping[str, Callable[[float], Any]]:
    """Return functions from epsilon to the four learners of Table 1, by name."""
    return {
        "LP-1ST": lambda epsilon: LP1ST(epsilon, network),
        # Without noise a prior cannot help, and there are no noisy labels to read.
        "LP-1ST (out-of-domain prior)": lambda epsilon: (
            NonPrivate(network) if math.isinf(epsilon) else replace(prior, epsilon=epsilon, model=network)
        ),
        "PATE-FM": lambda epsilon: replace(pate_fm, epsilon=epsilon),
        "ALIBI": lambda epsilon: NonPrivate(alibi) if math.isinf(epsilon) else Alibi(epsilon, alibi),
    }


def _data(options: Options) -> tuple[Any, Partition]:
    """Return CIFAR-10 or, without it or if --only says so, Fashion-MNIST; digits if --data has neither."""
    if options.scale == "paper":
        options.needed(*PICTURES)
    present = [name for name in PICTURES if options.data_set(name) is not None]
    if not present:
        return Digits(), SMALL_SPLIT
    name, *_ = options.chosen_parts(present, str, must="cifar10 or fashion_mnist")
    folder = options.needed(name)
    clothes = name == "fashion_mnist"
    if options.scale == "small":
        if clothes:
            return FashionMnist(str(folder), rows=SMALL_IMAGES), SMALL_SPLIT
        return cifar10(folder, rows=SMALL_IMAGES), COLOUR_SPLIT
    train = 60 if clothes else 50
    share = train / (train + 10) / 2
    both = (
        Joined(FashionMnist(str(folder)), FashionMnist(str(folder), part="t10k"))
        if clothes
        else Joined(cifar10(folder), cifar10(folder, part="test"))
    )
    return both, Partition(reference=share, target=share, test=1 - 2 * share, order="given")


def _small_cost(*, colour: bool) -> str:
    trainings = len(EPSILONS) * (3 + (0 if colour else SMALL_PATE_FM.teachers + 1)) + 1
    return f"Cost: {trainings} trainings of small networks on CPU, {MINUTES}."


MINUTES = "about 14 minutes of one core for 10,000 images of clothes or of CIFAR-10, some minutes for digits"


HALF = 25_000
"""Images that a learner trains on in the paper."""


def _paper_cost() -> str:
    """Return the cost in a sentence, from counted operations: three forward passes for each training image."""
    half, shape = HALF, (3, 32, 32)
    fm = PateFm(1.0)
    resnet = (2 * len(EPSILONS) + 1) * training_flops(NonPrivate(RESNET), half, shape)
    alibi = len(EPSILONS) * training_flops(NonPrivate(ALIBI_NET), half, shape)
    pate_fm = len(EPSILONS) * training_flops(fm, half, shape)
    hours = [round(flops / SUSTAINED_FLOPS / 3600) for flops in (resnet, alibi, pate_fm)]
    trainings = len(EPSILONS) * (3 + fm.teachers + 1) + 1
    return (
        f"Cost: {trainings} trainings, for a GPU cluster: by counted operations at {SUSTAINED_FLOPS / 1e12:g} TFLOP/s "
        f"(an assumption, not measured) about {hours[0]} GPU hours for LP-1ST and the proxy, {hours[1]} for ALIBI and "
        f"{hours[2]:,} for PATE-FM, whose {fm.teachers} teachers of one epsilon are units of their own."
    )


def pate_fm_hours() -> int:
    """Return the GPU hours of PATE-FM at one epsilon at the paper's size, from counted operations."""
    return round(training_flops(PateFm(1.0), HALF, (3, 32, 32)) / SUSTAINED_FLOPS / 3600)


def _differences(options: Options) -> tuple[str, ...]:
    notes = []
    if not any(options.data_set(name) for name in PICTURES):
        notes.append("Data: 1,797 digits of 8x8 pixels instead of CIFAR-10; with this few canaries, power is low.")
    else:
        notes.append("Data: the images at the given path; the paper's are CIFAR-10, 25,000 a half.")
    if options.scale == "small":
        fm = SMALL_PATE_FM
        notes.append(
            "Scale: instead of ResNet-18 and WRN-28-4 a CNN of two convolutions, for CIFAR-10 ResNet-18 with "
            f"{RESIDUAL.width} channels and {RESIDUAL.epochs} epochs; at most {SMALL_IMAGES:,} images, of which the "
            f"learner has {SMALL_SPLIT.target:.0%}, of CIFAR-10 {COLOUR_SPLIT.target:.0%}, every training image a "
            f"canary; {SMALL_PRIOR.clusters} clusters and {SMALL_PRIOR.prior_epsilon:g} of ε "
            f"for the prior instead of {PRIOR.clusters} and {PRIOR.prior_epsilon:g}, whose noise would exceed the "
            f"counts; PATE-FM with {fm.teachers} teachers of {fm.teacher_steps} steps instead of 200 of 31,240, "
            f"{fm.queries} queries and {fm.answers} answers, so that the noise for ε = 1 drowns the votes."
        )
        notes.append(
            f"PATE-FM is out of reach on CIFAR-10: its {PateFm(1.0).teachers} teachers of one epsilon take about "
            f"{pate_fm_hours():,} GPU hours by counted operations; fewer or shorter teachers do not agree on labels."
        )
        notes.append(
            "The proxy is the same network with augmentation and weight decay, for honest probabilities. A picture all "
            "but decides its label, so what a proxy of this size gets wrong shows on held-out images too."
        )
    else:
        notes.append("The paper does not say which networks it used for which learner, nor for the proxy.")
    notes += [
        "The out-of-domain prior clusters pooled answers of random filters; published code used a network trained on "
        "other pictures.",
        "At ε = ∞ LP-1ST and ALIBI are plain training, and differ by random draws and settings alone.",
        "PATE-FM's noise is what ε asks for by accounting that does not look at the votes.",
    ]
    return tuple(notes)
