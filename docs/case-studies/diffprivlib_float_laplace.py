"""diffprivlib 0.6.6, sum: the low bits of the answer tell what it was added to (its issues #19 and #94)."""

import math

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.tools import count_nonzero, sum
from two_tables import compare


def lowest_bit(value):
    """The exponent of the lowest bit that is set."""
    mantissa, exponent = math.frexp(value)
    whole = int(mantissa * 2**53)
    return exponent - 53 + (whole & -whole).bit_length() - 1 if whole else 99


def released(rows):
    return lowest_bit(float(sum(rows, epsilon=1.0, bounds=(0, 1), accountant=BudgetAccountant())))


def counted(rows):
    return lowest_bit(float(count_nonzero(rows, epsilon=1.0, accountant=BudgetAccountant())))


zeros = np.zeros(10)
with_one = np.append(zeros[1:], 1.0)
compare("sum, its lowest bit", released, zeros, with_one, claim=1, runs=4_000)
compare("count, by the geometric mechanism", counted, zeros, with_one, claim=1, runs=4_000)
