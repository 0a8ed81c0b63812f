"""DataSynthesizer 0.1.4: noise of conditional distributions is n times too small (#34; 0.1.13 has the fix)."""

import warnings
from importlib.metadata import version

import pandas as pd
from DataSynthesizer.lib.PrivBayes import construct_noisy_conditional_distributions
from two_tables import compare

warnings.simplefilter("ignore")


def released(rows):
    found = construct_noisy_conditional_distributions([("y", ["x"])], pd.DataFrame(rows, columns=["x", "y"]), 1.0)
    return float(found["y"]["[0]"][1])


plain = 40 * [(0, 0)] + 10 * [(1, 1)]
changed = [(0, 1), *plain[1:]]
# One row is replaced.
compare(f"DataSynthesizer {version('DataSynthesizer')}", released, plain, changed, claim=2, runs=1_000)
