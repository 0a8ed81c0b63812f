"""diffprivlib 0.6.6, StandardScaler: `n_samples_seen_` is the exact number of rows."""

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.models import StandardScaler
from two_tables import compare


def fitted(rows):
    return StandardScaler(epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant()).fit(rows)


def with_count(rows):
    return int(fitted(rows).n_samples_seen_)


def without(rows):
    model = fitted(rows)
    return float(model.mean_[0]), float(model.var_[0])


fifty = np.full((50, 1), 0.5)
compare("n_samples_seen_", with_count, fifty, fifty[1:], claim=1, runs=4_000)
compare("mean_ and var_", without, fifty, fifty[1:], claim=1, runs=4_000)
