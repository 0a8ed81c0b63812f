"""diffprivlib 0.6.6, nanmean: the mean of the values that are there, with the noise of a mean over all rows."""

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.tools import mean, nanmean
from two_tables import compare


def released(rows):
    return float(nanmean(rows, epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant()))


def filled(rows):
    values = np.where(np.isnan(rows), 0.5, rows)
    return float(mean(values, epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant()))


low = np.array([0.0] + 49 * [np.nan])
high = np.array([1.0] + 49 * [np.nan])
compare("nanmean", released, low, high, claim=1, runs=4_000)
compare("missing values filled with 0.5, then mean", filled, low, high, claim=1, runs=4_000)
