"""diffprivlib 0.6.6, LinearRegression: noise of the squares by the lower bound alone (its issues #104 and #105)."""

import warnings

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.models import LinearRegression
from two_tables import compare

warnings.simplefilter("ignore")


def fitted(low):
    def call(rows):
        model = LinearRegression(
            epsilon=1.0, bounds_X=(low, 1), bounds_y=(0, 1), fit_intercept=False, accountant=BudgetAccountant()
        )
        return abs(float(model.fit(rows[:, :1], rows[:, 1]).coef_[0]))

    return call


zeros = np.zeros((50, 2))
with_one = zeros.copy()
with_one[0] = 1.0
# One row is replaced: at most twice the epsilon of a row that is added or removed.
compare("bounds (0, 1)", fitted(0), zeros, with_one, claim=2, runs=600)
compare("bounds (-1, 1), where the formula is right", fitted(-1), zeros, with_one, claim=2, runs=600)
