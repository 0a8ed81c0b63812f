"""diffprivlib 0.6.6, KMeans: a cluster without rows is left alone, and `inertia_` is the exact sum of distances."""

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.models import KMeans
from two_tables import compare


class Everywhere(np.ndarray):
    """Labels among which every cluster is found: so that one without rows gets noise as well."""

    def __contains__(self, cluster):
        return True


class Patched(KMeans):
    def _distances_labels(self, X, centers):
        distances, labels = super()._distances_labels(X, centers)
        return distances, labels.view(Everywhere)


def centres(kind):
    def call(rows):
        model = kind(2, epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant()).fit(rows)
        return tuple(sorted(float(centre) for centre in model.cluster_centers_[:, 0]))

    return call


def inertia(rows):
    """How much it differs from that of fifty rows at zero, which anyone can compute from the centres."""
    model = KMeans(2, epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant()).fit(rows)
    return round(float(model.inertia_ - 50 * (model.cluster_centers_**2).min()), 6)


zeros = np.zeros((50, 1))
with_one = np.append(zeros[1:], [[1.0]], 0)
# One row is replaced: at most twice the epsilon of a row that is added or removed.
compare("centres", centres(KMeans), zeros, with_one, claim=2, runs=4_000)
compare("centres and inertia_", inertia, zeros, with_one, claim=2, runs=4_000)
compare("centres, empty clusters like others", centres(Patched), zeros, with_one, claim=2, runs=4_000)
