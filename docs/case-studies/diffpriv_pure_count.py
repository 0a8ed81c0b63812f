"""diffpriv-pure 0.1.0, private_count: the noise is never negative, so a small answer rules out a large count."""

from diffpriv_pure import geometric_noise, private_count
from two_tables import compare

compare("private_count", lambda count: private_count(count, 1.0), 10, 11, claim=1, runs=20_000)
compare(
    "the difference of two such noises",
    lambda count: private_count(count, 1.0) - geometric_noise(1.0),
    10,
    11,
    claim=1,
    runs=20_000,
)
