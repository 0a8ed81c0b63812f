"""DataSynthesizer 0.1.13: the default seed is fixed, so its noise is known; missing values are counted exactly."""

import contextlib
import io
import os
import random
import tempfile

import pandas as pd
from DataSynthesizer.DataDescriber import DataDescriber
from DataSynthesizer.datatypes.utils.DataType import DataType
from two_tables import compare

KIND = {"attribute_to_datatype": {"v": DataType.FLOAT}, "attribute_to_is_categorical": {"v": False}}


def described(values, **seed):
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file = os.path.join(folder, "rows.csv")
        pd.DataFrame({"v": values}).to_csv(file, index=False)
        describer = DataDescriber()
        describer.describe_dataset_in_independent_attribute_mode(
            file, epsilon=1.0, numerical_attribute_ranges={"v": [0.0, 1.0]}, **KIND, **seed
        )
    return describer.data_description["attribute_description"]["v"]


def shares(values):
    return float(described(values)["distribution_probabilities"][0])


def seeded(values):
    return float(described(values, seed=random.SystemRandom().getrandbits(32))["distribution_probabilities"][0])


def missing(values):
    return float(described(values)["missing_rate"])


low, other, hole = 50 * [0.01], 49 * [0.01] + [0.99], 49 * [0.01] + [None]
compare("share of the first bin, seed left as it is", shares, low, other, claim=1, runs=1_000)
compare("missing_rate", missing, low, hole, claim=1, runs=1_000)
compare("share of the first bin, a seed of its own", seeded, low, other, claim=1, runs=4_000)
