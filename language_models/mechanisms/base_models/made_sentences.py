"""Sentences of a small grammar: public texts for tests and examples, which need no download."""

from __future__ import annotations

import numpy as np

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
MONTHS = ["January", "March", "April", "June", "August", "October", "December"]
TOWNS = ["Leeds", "Bonn", "Porto", "Lyon", "Graz", "Turin", "Ghent", "Malmo", "Cork", "Brno"]
PEOPLE = ["nurse", "doctor", "patient", "teacher", "driver", "baker", "clerk", "farmer", "pilot", "student"]
ACTIONS = ["called about", "wrote about", "complained of", "asked about", "described", "reported"]
PLACES = ["knee", "shoulder", "back", "wrist", "ankle", "neck", "hip", "elbow"]
FEELINGS = ["painful", "swollen", "stiff", "weak", "broken", "numb"]
CHANGES = ["raised", "lowered", "stopped", "changed", "repeated"]
MEDICINES = ["aspirin", "ibuprofen", "insulin", "morphine", "iron", "zinc"]
ENDS = ["before the visit", "after the visit", "during the night", "in the morning", "without delay", "for two weeks"]


def made_sentences(count: int, rng: np.random.Generator) -> list[str]:
    """Return `count` random sentences of some 25 words, such as notes of a clinic."""

    def word(words: list[str]) -> str:
        return words[int(rng.integers(len(words)))]

    return [
        f"On {word(DAYS)} the {word(PEOPLE)} from {word(TOWNS)} {word(ACTIONS)} a {word(FEELINGS)} {word(PLACES)}, "
        f"and the {word(PEOPLE)} {word(CHANGES)} the dose of {word(MEDICINES)} to {10 * rng.integers(1, 20)} mg "
        f"{word(ENDS)} in {word(MONTHS)}."
        for _ in range(count)
    ]
