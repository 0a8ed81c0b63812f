"""dpaudit: measures, by experiment, how much a machine-learning system really leaks."""

__version__ = "0.1.0"
