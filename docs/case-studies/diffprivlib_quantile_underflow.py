"""diffprivlib 0.6.6, median: weights that underflow raise an error on one of two neighbours alone (issue #107)."""

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.tools import median
from two_tables import compare


def released(rows):
    return float(median(rows, epsilon=4.0, bounds=(0, 1), accountant=BudgetAccountant()))


def tables(rows):
    return np.zeros(rows), np.append(np.zeros(rows - 1), 1.0)


compare("746 rows", released, *tables(746), claim=4, runs=4_000)
compare("700 rows, where nothing underflows", released, *tables(700), claim=4, runs=4_000)
