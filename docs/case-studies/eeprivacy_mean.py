"""eeprivacy 0.0.5, PrivateClampedMean: the answer is clamped to the bounds, the values are not."""

import numpy as np
from eeprivacy.operations import PrivateClampedMean
from two_tables import compare


def released(values):
    return float(PrivateClampedMean(lower_bound=0, upper_bound=1).execute(values=values, epsilon=1.0))


def clipped(values):
    return released(np.clip(values, 0, 1))


low = 50 * [0.0]
beyond = [*low[1:], 50.0]
compare("one value of 50 where the bounds are [0, 1]", released, low, beyond, claim=1, runs=20_000)
compare("values clipped beforehand", clipped, low, beyond, claim=1, runs=20_000)
