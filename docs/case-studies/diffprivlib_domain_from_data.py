"""diffprivlib 0.6.6, mean without bounds: the range is that of the data (it warns, and still spends only epsilon)."""

import warnings

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.tools import mean
from two_tables import compare

warnings.simplefilter("ignore")


def released(bounds):
    return lambda rows: float(mean(rows, epsilon=1.0, bounds=bounds, accountant=BudgetAccountant()))


plain = np.full(50, 0.5)
with_one = np.append(plain[1:], 1.0)
compare("no bounds", released(None), plain, with_one, claim=1, runs=4_000)
compare("bounds (0, 1)", released((0, 1)), plain, with_one, claim=1, runs=4_000)
