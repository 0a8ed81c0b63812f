"""dpart 0.1.2: bounds are given, and synthetic values still reach as far as those of the data (its pull request #6)."""

import warnings

import pandas as pd
from dpart.engines import Independent, PrivBayes
from two_tables import compare

warnings.simplefilter("ignore")
ENDS = {"min": 0.0, "max": 1.0}
BINS = ["low", "middle", "high"]


def farthest(engine):
    def call(values):
        made = engine(epsilon=1.0, bounds={"x": ENDS, "y": ENDS})
        made.fit(pd.DataFrame({"x": values, "y": values}))
        return float(made.sample(100)["x"].max())

    return call


def binned(values):
    """Nothing is left to the data: words for public bins, and one public row of each."""
    names = [*BINS, *(BINS[int(2.999 * value)] for value in values)]
    made = Independent(epsilon=1.0, bounds={"x": {"categories": BINS}})
    made.fit(pd.DataFrame({"x": names}))
    return int((made.sample(100)["x"] == "high").sum())


# One row is replaced: at most twice the epsilon of a row that is added or removed.
plain = [place / 100 for place in range(50)]
far = [*plain[:-1], 1.0]
compare("PrivBayes", farthest(PrivBayes), plain, far, claim=2, runs=400)
compare("Independent", farthest(Independent), plain, far, claim=2, runs=1_000)
compare("Independent, public bins", binned, plain, far, claim=2, runs=4_000)
