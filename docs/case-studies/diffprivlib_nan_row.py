"""diffprivlib 0.6.6, mean: one row that is not a number makes the answer not a number."""

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.tools import mean
from two_tables import compare


def released(rows):
    return float(mean(rows, epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant()))


def filled(rows):
    return released(np.where(np.isnan(rows), 0.5, rows))


plain = np.full(50, 0.5)
broken = np.append(plain[1:], np.nan)
compare("mean", released, plain, broken, claim=1, runs=4_000)
compare("values that are none filled with 0.5", filled, plain, broken, claim=1, runs=4_000)
