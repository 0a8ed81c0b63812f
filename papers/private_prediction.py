"""Leaks of private predictors by adversary: Figures 3 to 5 and 7 to 31 of Chadha et al. (2024).

An algorithm on a data set is one run with an audit for each adversary; all figures come from these runs. The paper's
language model, Mistral-7B, is not available. A model at --data or a stand-in that obeys prompts replaces it, and the
figures name it. Source: Auditing Private Prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from dpaudit.claims import Relation
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.data.generated import MadePhrases
from dpaudit.engine.data.images import FashionMnist, Mnist
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.data.texts import CountedWords, Sst2
from dpaudit.engine.figures import drawing as style
from dpaudit.engine.figures import palette
from dpaudit.engine.games.predictions.adversaries import NatAdvQ, PoisAdvQ, PoisNatQConfident, PoisNatQUnconfident
from dpaudit.engine.games.predictions.game import PrivatePrediction
from dpaudit.engine.games.predictions.informed_adversaries import (
    PoisNatQAllSame,
    PoisNatQBestTest,
    PoisNatQBestTrain,
    PoisNatQEmbedding,
    PoisNatQMapping,
)
from dpaudit.engine.request.audit_spec import Audit, AuditSpec
from dpaudit.engine.run.driver import audit
from dpaudit.errors import RunError
from dpaudit.estimators.private_prediction.answers_estimator import ORDERS, AnswersFinding, Directions
from dpaudit.estimators.private_prediction.divergence import rdp_to_epsilon
from dpaudit.mechanisms.models.networks import LeNet5, Mlp, Network, WideResNet16x4
from dpaudit.mechanisms.predictors.ensemble import CaPC, Ensemble, PatePredictor
from dpaudit.mechanisms.predictors.local import LocalTransformer, StandIn
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn
from dpaudit.mechanisms.predictors.prompt_pate import PromptPate
from dpaudit.registry import register
from papers.data.encoded_sentences import EncodedSentences, middle_layer
from papers.data.picture_strips import cifar10
from papers.data.texts import AgNews, DBpedia, Trec
from papers.needs import missing
from papers.reproduction import Options, Reproduction

Floats = NDArray[np.float64]

DELTA = 1e-6
ANSWERS, PROMPTED_ANSWERS = 1_000, 200
"""Answers behind a bar (appendix D): answers to one query, or to natural queries with the average query's leak."""
KINDS = {"claim": palette.CLAIM, "data-dependent": palette.OTHER, "exact": palette.INK, "2-cut*": palette.MEMBER}

ADVERSARIAL = {"Nat-AdvQ": NatAdvQ(), "Pois-AdvQ": PoisAdvQ()}
NATURAL = {"confident": PoisNatQConfident(), "unconfident": PoisNatQUnconfident()}
PROMPTS = {**NATURAL, "all same": PoisNatQAllSame(), "mapping": PoisNatQMapping()}
CRAFTED = {"test": PoisNatQBestTest(), "train": PoisNatQBestTrain(), "embedding": PoisNatQEmbedding()}


@dataclass(frozen=True)
class Size:
    """Numbers of rows, queries and trainings of a figure.

    Attributes:
        rows: Maximum number of rows of a data set.
        queries: Number of natural queries.
        runs: Trainings of all teachers.
        moved_runs: Trainings of the teacher with the record.
        epochs: Epochs of a teacher.
    """

    rows: int
    queries: int
    runs: int
    moved_runs: int
    epochs: int


SIZES = {"small": Size(10_000, 200, 4, 16, 20), "paper": Size(60_000, 1_000, 10, 100, 30)}


SMALLER: dict[str, Size] = {
    "CIFAR-10": replace(SIZES["small"], queries=50),
    "MNIST, LeNet-5": Size(10_000, 20, 2, 8, 20),
}
"""Sizes at small scale of teachers that take long to train, by data set: a query takes `moved_runs` trainings."""
MODEL_QUERIES = 20
"""Queries to a language model at small scale; each is 200 prompts, at half a second of one core for 135 M weights."""
OWN_QUERIES = 100
"""Queries without --data, out of a tenth of 1,797 digits or of 1,500 made phrases."""


@dataclass(frozen=True)
class Subject:
    """One algorithm on one data set.

    Attributes:
        algorithm: Its name in the paper.
        data: The data set.
        on: Name of the data set.
        predictor: The algorithm at the paper's setting, or at a proportional one.
        answers: Number of answers behind its bar.
        relation: Neighbouring relation.
    """

    algorithm: str
    data: Any
    on: str
    predictor: Any
    answers: int = ANSWERS
    relation: Relation = Relation.ADD_REMOVE

    @property
    def name(self) -> str:
        """Algorithm and data set in words."""
        return f"{self.algorithm}\n{self.on}"


@dataclass(frozen=True)
class Leak:
    """Result of one audit.

    Attributes:
        subject: The audited algorithm and data set.
        adversary: Name of the adversary.
        finding: The divergences.
        claimed: Claimed RDP of one answer, at the finding's orders.
    """

    subject: Subject
    adversary: str
    finding: AnswersFinding
    claimed: Floats

    @property
    def worst(self) -> int:
        """Index of the query with the largest epsilon converted from the 2-cut; the finding has one for each order."""
        rdp = self.subject.answers * self.finding.bound.larger
        return int(np.argmax(rdp_to_epsilon(self.finding.orders, rdp, delta=DELTA)))

    def rdp(self, values: Directions) -> Floats:
        """Return the RDP of the subject's answers at every order: to the worst query, or to average natural queries."""
        if self.finding.together:
            sums = [each.mean(axis=0) for each in (values.forward, values.backward)]
            return np.asarray(self.subject.answers * np.maximum(*sums))
        return np.asarray(self.subject.answers * values.larger[self.worst])

    def by_order(self, values: Directions, query: str) -> Floats:
        """Return the RDP of one answer at every order: to the "worst" query, or averaged over queries."""
        if query == "worst":
            return np.asarray(values.larger[self.worst])
        return np.asarray(np.maximum(values.forward.mean(axis=0), values.backward.mean(axis=0)))

    def epsilons(self) -> dict[str, float]:
        """Return epsilons of all kinds, converted as in the paper; the observed one is then not a bound."""
        finding = self.finding
        kinds = (self.subject.answers * self.claimed, *map(self.rdp, (finding.dependent, finding.exact, finding.bound)))
        finite = {kind: rdp for kind, rdp in zip(KINDS, kinds, strict=True) if np.isfinite(rdp).all()}
        return {kind: float(rdp_to_epsilon(finding.orders, rdp, delta=DELTA)) for kind, rdp in finite.items()}

    def share(self, values: Directions) -> float:
        """Return the divergence as a share of the claim, at the order of the exact epsilon."""
        exact, orders = self.rdp(self.finding.exact), self.finding.orders
        by_order = [float(rdp_to_epsilon(order, rdp, delta=DELTA)) for order, rdp in zip(orders, exact, strict=True)]
        at = int(np.argmin(by_order))
        return float(self.rdp(values)[at] / (self.subject.answers * self.claimed[at]))


@register("reproduction", "private-prediction figure-3", source="Chadha et al. (2024), Figure 3")
def figure_3(options: Options) -> Reproduction:
    """Adversarial queries against PATE, CaPC and PromptPATE: Nat-AdvQ and Pois-AdvQ, the worst query."""
    leaks = [leak for leak in _run_subjects(options, voting_subjects(options)) if leak.adversary in ADVERSARIAL]
    return _write_figure(options, "figure-3", leaks, "adversarial queries, the worst query")


@register("reproduction", "private-prediction figure-4", source="Chadha et al. (2024), Figure 4")
def figure_4(options: Options) -> Reproduction:
    """Natural queries against PATE, CaPC and PromptPATE: Pois-NatQ, the best crafter of each."""
    leaks = [leak for leak in _run_subjects(options, voting_subjects(options)) if leak.adversary not in ADVERSARIAL]
    return _write_figure(options, "figure-4", _best(leaks), "natural queries, the best crafter")


@register("reproduction", "private-prediction lenet-5", source="Chadha et al. (2024), Figures 3 and 4, appendix D.1")
def lenet_5(options: Options) -> Reproduction:
    """PATE and CaPC on MNIST with the paper's teachers, LeNet-5: adversarial and natural queries."""
    pictures = mnist(options.needed("mnist"), SIZES[options.scale].rows)
    subjects = [
        Subject(algorithm, pictures, "MNIST, LeNet-5", make(**_votes("MNIST"), model=lenet(options)))
        for algorithm, make in (("PATE", PatePredictor), ("CaPC", CaPC))
    ]
    leaks = _run_subjects(options, subjects)
    adversarial = [leak for leak in leaks if leak.adversary in ADVERSARIAL]
    natural = _best([leak for leak in leaks if leak.adversary not in ADVERSARIAL])
    return _write_figure(options, "lenet-5", [*adversarial, *natural], "PATE and CaPC with LeNet-5 as teachers")


@register("reproduction", "private-prediction figure-5", source="Chadha et al. (2024), Figure 5")
def figure_5(options: Options) -> Reproduction:
    """Private-kNN: all adversaries, and poisoned points from test data, training data and the space of features."""
    return _write_figure(
        options, "figure-5", _run_subjects(options, neighbour_subjects(options)), "Private-kNN by adversary"
    )


_PROMPTED = PromptPate(teachers=200, sigma=30.0, model=StandIn(public=MadePhrases(rows=2, vocabulary=300, raw=True)))
SETTINGS: Mapping[str, tuple[Any, int]] = {
    "PATE and CaPC, MNIST and Fashion-MNIST": (PatePredictor(teachers=250, sigma=40.0), ANSWERS),
    "PATE and CaPC, CIFAR-10": (PatePredictor(teachers=200, sigma=25.0), ANSWERS),
    "PromptPATE": (_PROMPTED, PROMPTED_ANSWERS),
    "PromptPATE, 1,000 answers": (_PROMPTED, ANSWERS),
    "Private-kNN, pictures": (PrivateKnn(sigma=30.0), ANSWERS),
    "Private-kNN, texts": (PrivateKnn(sigma=20.0), ANSWERS),
}
"""Predictors of Figures 3 to 5 at the paper's settings, with the answers behind a bar."""


@register(
    "reproduction", "private-prediction claims", source="Chadha et al. (2024), appendix D, claims of Figures 3 to 5"
)
def claims(options: Options) -> Reproduction:
    """Claimed epsilon of the answers behind a bar: over the orders of our runs, over integers, over real orders."""
    rows = []
    for name, (predictor, answers) in SETTINGS.items():
        renyi = predictor.claim().curve.renyi
        by_orders = {
            kind: min(_converted(renyi, answers, order) for order in orders)
            for kind, orders in {"orders of the figures": ORDERS, "integer orders": range(2, 257)}.items()
        }
        best = minimize_scalar(
            lambda log, renyi=renyi, answers=answers: _converted(renyi, answers, 1 + math.exp(log)),
            bounds=(-3.0, 8.0),
            method="bounded",
            options={"xatol": 1e-9},
        )
        rows.append({"predictor": name, "answers": answers, **by_orders, "real orders": float(best.fun)})
    lines = [f"Claimed epsilon at delta {DELTA:g}, minimised over orders:"]
    lines += [
        f"  {row['predictor']:<42}" + "  ".join(f"{kind} {row[kind]:.3f}" for kind in KINDS_OF_ORDERS) for row in rows
    ]
    return options.publish("claims", lines, rows)


KINDS_OF_ORDERS = ("orders of the figures", "integer orders", "real orders")


def _converted(renyi: Callable[[float], float], answers: int, order: float) -> float:
    return float(rdp_to_epsilon(order, answers * renyi(float(order)), delta=DELTA))


TICKS = (2, 4, 8, 16, 32, 64)
BEST = "the best crafter"
BOTH = ("worst", "average")
SERIES: Mapping[int, tuple[str, Mapping[str, Sequence[str]]]] = {
    7: ("PATE", {"Nat-AdvQ": BOTH, "Pois-AdvQ": BOTH, BEST: BOTH[1:]}),
    12: ("CaPC", {"Nat-AdvQ": BOTH, "Pois-AdvQ": BOTH, BEST: BOTH[1:]}),
    17: ("PromptPATE", {"Nat-AdvQ": BOTH, "Pois-AdvQ": BOTH} | dict.fromkeys(PROMPTS, BOTH[1:])),
    25: ("Private-kNN", {"Nat-AdvQ": BOTH, "Pois-AdvQ": BOTH} | dict.fromkeys(reversed(CRAFTED), BOTH[1:])),
}
"""Algorithms with their adversaries and queries, one figure each in this order, by the number of the first figure."""


@register("reproduction", "private-prediction figures-7-to-31", source="Chadha et al. (2024), Figures 7 to 31")
def figures_7_to_31(options: Options) -> Reproduction:
    """Divergence by order, of each algorithm and adversary on each data set, from the runs of figures 3 to 5."""
    leaks = _run_subjects(options, [*voting_subjects(options), *neighbour_subjects(options)])
    folder, rows, files = options.output / "figures-7-to-31", [], []
    for first, (algorithm, adversaries) in SERIES.items():
        algorithm_leaks = [leak for leak in leaks if leak.subject.algorithm == algorithm]
        queried = [(adversary, query) for adversary, queries in adversaries.items() for query in queries]
        for number, (adversary, query) in enumerate(queried, first):
            natural = [leak for leak in algorithm_leaks if leak.adversary in NATURAL]
            shown_leaks = (
                _best(natural)
                if adversary == BEST
                else [leak for leak in algorithm_leaks if leak.adversary == adversary]
            )
            if shown_leaks:
                title = f"{algorithm}, {adversary}, {query} query"
                style.save(_lines_by_order(shown_leaks, query, title), folder, f"figure-{number}")
                files.append(folder / f"figure-{number}.png")
                rows += [row for leak in shown_leaks for row in _rows_by_order(number, leak, query)]
    pacsv.write_csv(pa.Table.from_pylist(rows), folder / "figures-7-to-31.csv")
    words = [
        f"  {row['figure']:<4}{row['algorithm']:<12}{row['data']:<14}{row['adversary']:<12}{row['query']:<9}"
        f"claim {row['claim']:.5f}  exact {row['exact']:.5f}  2-cut {row['2-cut']:.5f}"
        for row in rows
        if row["order"] == 2
    ]
    text = "\n".join([f"{len(files)} figures; Rényi divergence of one answer at order 2, nats:", *words])
    return Reproduction(text, (folder / "figures-7-to-31.csv", *files))


def _rows_by_order(number: int, leak: Leak, query: str) -> list[dict[str, Any]]:
    curves = _by_order(leak, query)
    who = {"figure": number, "algorithm": leak.subject.algorithm, "data": leak.subject.on}
    return [
        {
            **who,
            "adversary": leak.adversary,
            "query": query,
            "order": float(order),
            **{kind.rstrip("*"): float(curve[at]) for kind, curve in curves.items()},
        }
        for at, order in enumerate(leak.finding.orders)
    ]


def _by_order(leak: Leak, query: str) -> dict[str, Floats]:
    finding = leak.finding
    measured = (leak.by_order(values, query) for values in (finding.dependent, finding.exact, finding.bound))
    return dict(zip(KINDS, (leak.claimed, *measured), strict=True))


def _lines_by_order(leaks: Sequence[Leak], query: str, title: str) -> Figure:
    """Draw a panel for each data set."""
    figure, panels = style.canvases(len(leaks), width=3.6 * len(leaks) + 0.6, height=3.6)
    for leak, axes in zip(leaks, panels, strict=True):
        for kind, curve in _by_order(leak, query).items():
            if np.isfinite(curve).all():
                line = "--" if kind == "data-dependent" else "-"
                axes.plot(leak.finding.orders, curve, line, color=KINDS[kind], label=kind.rstrip("*"), linewidth=1.4)
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.set_title(f"{leak.subject.on}, {leak.adversary}", fontsize=9)
        axes.set_xlabel("order")
    panels[0].set_ylabel("Rényi divergence of one answer, nats")
    panels[0].legend(fontsize=7.5)
    figure.suptitle(title, fontsize=10)
    return figure


def _adversaries(subject: Subject) -> dict[str, Any]:
    if isinstance(subject.predictor, PrivateKnn):
        return {**ADVERSARIAL, **CRAFTED}
    return {**ADVERSARIAL, **(PROMPTS if isinstance(subject.predictor, PromptPate) else NATURAL)}


def _best(leaks: Sequence[Leak]) -> list[Leak]:
    """Return each subject's leak with the largest epsilon converted from the exact divergence."""
    best: dict[str, Leak] = {}
    for leak in leaks:
        strongest = best.get(leak.subject.name)
        if strongest is None or leak.epsilons()["exact"] > strongest.epsilons()["exact"]:
            best[leak.subject.name] = leak
    return list(best.values())


def voting_subjects(options: Options) -> list[Subject]:
    """Return PATE and CaPC on pictures and PromptPATE on texts: data sets at --data, else digits and made phrases.

    A causal language model in --data, as `save_pretrained` writes it, replaces the stand-in.
    """
    size = SIZES[options.scale]
    subjects = [
        Subject(algorithm, pictures, name, make(**_votes(name), model=_teacher(name, options)))
        for name, pictures in _pictures(options)
        for algorithm, make in (("PATE", PatePredictor), ("CaPC", CaPC))
    ]
    folder = options.language_model()
    model = LocalTransformer(path=str(folder), chat=True, max_tokens=2)
    for name, texts, public in _texts(options.data, size.rows):
        language_model = StandIn(public=public) if folder is None else model
        predictor = PromptPate(teachers=200, sigma=30.0, model=language_model)
        data_name = name if folder is None else f"{name}, {folder.name}"
        subjects.append(Subject("PromptPATE", texts, data_name, predictor, PROMPTED_ANSWERS, Relation.REPLACE))
    return subjects


def _votes(name: str) -> dict[str, Any]:
    """Return the number of teachers and the noise on a data set of pictures (appendix D.1).

    With 1,797 digits, a fifth of the teachers and of the noise.
    """
    teachers, sigma = {"digits": (50, 8.0), "CIFAR-10": (200, 25.0)}.get(name, (250, 40.0))
    return {"teachers": teachers, "sigma": sigma}


def _teacher(name: str, options: Options) -> Network:
    """Return a teacher: a small perceptron, or at the paper's scale the paper's network (appendix D.1)."""
    epochs = SIZES[options.scale].epochs
    if options.scale == "small" or name == "digits":
        return Mlp(hidden=(64,), epochs=epochs, learning_rate=0.1, batch_size=16)
    return lenet(options) if name == "MNIST" else WideResNet16x4(**_adam(epochs))


def lenet(options: Options) -> LeNet5:
    """Return the paper's teacher on MNIST, at the small scale with a tenth of its learning rate.

    That rate is for 240 images a teacher. From 36 images, 18 % of the votes are right with it, 65 % with a tenth.
    """
    network = LeNet5(**_adam(SIZES[options.scale].epochs))
    return replace(network, learning_rate=0.003) if options.scale == "small" else network


def _adam(epochs: int) -> dict[str, Any]:
    """Return the paper's settings of training."""
    return {"epochs": epochs, "learning_rate": 0.03, "batch_size": 16, "optimizer": "adam"}


def neighbour_subjects(options: Options) -> list[Subject]:
    """Return Private-kNN on pixels, and on the texts at --data.

    Texts are the states of a language model in --data, without one word counts.
    """
    size = SIZES[options.scale]
    if options.data is None:
        return [Subject("Private-kNN", Digits(flat=True), "digits", PrivateKnn(sigma=30.0 / 4, neighbours=50))]
    subjects = [Subject("Private-kNN", pictures, name, PrivateKnn(sigma=30.0)) for name, pictures in _pictures(options)]
    model = options.language_model()
    for name, texts, public in _texts(options.data, size.rows):
        features: Any = CountedWords(texts, public, dimensions=64)
        if model is not None:
            features = EncodedSentences(texts, str(model), layer=middle_layer(model), public=public)
            name = f"{name}, {model.name}"
        subjects.append(Subject("Private-kNN", features, name, PrivateKnn(sigma=20.0)))
    return subjects


def _pictures(options: Options) -> list[tuple[str, Any]]:
    """Return the data sets of pictures at --data, by name. MNIST's test part replaces a missing training part."""
    rows = SIZES[options.scale].rows
    if options.data is None:
        return [("digits", Digits(flat=True))]
    data_sets: list[tuple[str, Any]] = []
    if (folder := options.data_set("mnist")) is not None:
        data_sets.append(("MNIST", mnist(folder, rows)))
    if (folder := options.data_set("fashion_mnist")) is not None:
        data_sets.append(("Fashion-MNIST", FashionMnist(str(folder), rows=rows)))
    if (folder := options.data_set("cifar10")) is not None:
        data_sets.append(("CIFAR-10", cifar10(folder, rows=rows)))
    return data_sets


def mnist(folder: Path, rows: int) -> Mnist:
    """Return MNIST's training part, or its test part where the folder holds no other."""
    return Mnist(str(folder), part="train" if any(folder.glob("train-images*")) else "t10k", rows=rows)


def _texts(real: Path | None, rows: int) -> list[tuple[str, Any, Any]]:
    """Return name, private texts and public texts of each data set of texts."""
    if real is None:
        phrases = MadePhrases(rows=1_500, vocabulary=300, raw=True)
        return [("made phrases", phrases, replace(phrases, rows=2_000))]
    data_sets: list[tuple[str, Any, Any]] = []
    if (folder := real / "sst2").is_dir():
        data_sets.append(("SST-2", Sst2(str(folder), rows=rows, raw=True), Sst2(str(folder), part="dev", raw=True)))
    if (folder := real / "ag_news").is_dir():
        news = AgNews(str(folder), rows=rows, raw=True)
        data_sets.append(("AG News", news, replace(news, part="test", rows=3_000)))
    if (folder := real / "dbpedia").is_dir():
        things = DBpedia(str(folder), rows=rows, raw=True)
        data_sets.append(("DBpedia", things, replace(things, part="test", rows=3_000)))
    if (folder := real / "trec").is_dir():
        questions = Trec(str(folder), rows=rows, raw=True)
        data_sets.append(("TREC", questions, replace(questions, part="test")))
    return data_sets


def _run_subjects(options: Options, subjects: Sequence[Subject]) -> list[Leak]:
    """Return the leaks of the subjects whose names match `only`, or of all; each subject has a run folder.

    All figures share these folders and reuse finished units.

    Raises: RunError if an audit has no result.
    """
    if not subjects:
        raise missing(options.data, ("mnist", "sst2"))
    chosen = options.chosen_parts(subjects, lambda subject: subject.name, must="an algorithm or a data set")
    for subject in chosen:
        number, queries = len(_adversaries(subject)), _queries(subject, options)
        options.say(f"{subject.algorithm} on {subject.on}: {number} audits of {queries} queries.")
    return [leak for subject in chosen for leak in _run_subject(options, subject)]


def _queries(subject: Subject, options: Options) -> int:
    queries = _size(subject, options).queries
    if options.data is None:
        queries = min(queries, OWN_QUERIES)
    if not isinstance(subject.predictor, PromptPate):
        return queries
    slow = options.scale == "small" and isinstance(subject.predictor.model, LocalTransformer)
    return min(queries, MODEL_QUERIES if slow else PROMPTED_ANSWERS)


def _size(subject: Subject, options: Options) -> Size:
    """Return the numbers of queries and trainings of an algorithm on a data set."""
    size = SIZES[options.scale]
    trained = options.scale == "small" and isinstance(subject.predictor, Ensemble)
    return SMALLER.get(subject.on, size) if trained else size


def _run_subject(options: Options, subject: Subject) -> list[Leak]:
    adversaries, size = _adversaries(subject), _size(subject, options)
    game = PrivatePrediction(
        queries=_queries(subject, options), runs=size.runs, moved_runs=size.moved_runs, resamples=0
    )
    audits = tuple(
        Audit(
            mechanism=subject.predictor,
            data=subject.data,
            game=replace(game, adversary=who, relation=subject.relation),
            split=Partition(0.9, 0.0, 0.1),
            name=f"{subject.algorithm} on {subject.on}, {label}",
        )
        for label, who in adversaries.items()
    )
    name = f"{subject.algorithm} on {subject.on}"
    spec = AuditSpec(
        audits,
        name=f"auditing private prediction, {name}",
        seed=options.seed,
        run=replace(options.run, figures=False),
    )
    folder = options.output / "runs" / name.replace(" ", "-")
    results = audit(spec, output=folder, listeners=options.listeners, quiet=not options.listeners).results
    leaks = []
    for label, result in zip(adversaries, results, strict=True):
        if not isinstance(result.finding, AnswersFinding):
            raise RunError(f"{result.name} has no result. Run the command again; finished units are reused")
        curve = subject.predictor.claim().curve
        claimed = np.array([curve.renyi(float(order)) for order in result.finding.orders])
        leaks.append(Leak(subject, label, result.finding, claimed))
    return leaks


def _write_figure(options: Options, name: str, leaks: Sequence[Leak], title: str) -> Reproduction:
    rows = [
        {
            "algorithm": leak.subject.algorithm,
            "data": leak.subject.on,
            "adversary": leak.adversary,
            "queries": _queries(leak.subject, options),
            "answers": leak.subject.answers,
            **{kind.rstrip("*"): leak.epsilons().get(kind, np.nan) for kind in KINDS},
            "exact share of claim": leak.share(leak.finding.exact),
            "2-cut share of claim": leak.share(leak.finding.bound),
        }
        for leak in leaks
    ]
    lines = [
        f"{title}: epsilon at delta {DELTA:g} of {_answers(leaks)} answers, converted as in the paper "
        "(2-cut: not a bound)"
    ]
    for leak, row in zip(leaks, rows, strict=True):
        kinds = "  ".join(f"{kind} {value:.3f}" for kind, value in leak.epsilons().items())
        lines.append(f"  {row['algorithm']:<12}{row['data']:<14}{row['adversary']:<12}{kinds}")
        lines.append(f"  {'':<38}share of the claim: exact {row['exact share of claim']:.3f}, 2-cut "
                     f"{row['2-cut share of claim']:.3f}")  # fmt: skip
    if any(isinstance(getattr(leak.subject.predictor, "model", None), StandIn) for leak in leaks):
        lines.append("  PromptPATE's language model is a stand-in: a classifier of words that obeys prompts.")
    return options.publish(name, lines, rows, figure=_bars(leaks, title))


def _answers(leaks: Sequence[Leak]) -> str:
    """Return the number of answers behind the bars, such as "1,000 (PromptPATE: 200)"."""
    counts = {leak.subject.algorithm: leak.subject.answers for leak in leaks}
    usual = max(counts.values())
    others = [f"{algorithm}: {count:,}" for algorithm, count in counts.items() if count != usual]
    return f"{usual:,}" + (f" ({', '.join(others)})" if others else "")


def _bars(leaks: Sequence[Leak], title: str) -> Figure:
    figure, axes = style.canvas(max(6.4, 1.15 * len(leaks)), 4.2)
    kinds = {kind: colour for kind, colour in KINDS.items() if any(kind in leak.epsilons() for leak in leaks)}
    width = 0.8 / len(kinds)
    for place, (kind, colour) in enumerate(kinds.items()):
        values = [leak.epsilons().get(kind, np.nan) for leak in leaks]
        at = np.arange(len(leaks)) + (place - (len(kinds) - 1) / 2) * width
        bars = axes.bar(at, values, width, color=colour, label=kind)
        axes.bar_label(bars, ["" if np.isnan(value) else f"{value:.2f}" for value in values], fontsize=6.5, padding=1)
    axes.set_xticks(range(len(leaks)), [f"{leak.subject.name}\n{leak.adversary}" for leak in leaks], fontsize=8)
    axes.set_ylabel(f"ε at δ = {DELTA:g}, {_answers(leaks)} answers")
    axes.set_title(f"{title} (* converted as in the paper, not a bound)", fontsize=9)
    axes.margins(y=0.25)
    axes.legend(fontsize=8, ncols=len(kinds), loc="upper center")
    return figure
