"""The figures of the house, of a house in memory."""

from __future__ import annotations

from benchmarks.house import names_with_one_user, public_names, rooms_in_circles, shared_classes

SOURCES = {
    "dpaudit": "",
    "dpaudit.engine": "",
    "dpaudit.engine.plan": "from dpaudit.engine.games.fits import Fits\n",
    "dpaudit.engine.games": "",
    "dpaudit.engine.games.fits": "class Fits: ...\nMOST: int = 3\ndef _own(): ...\nclass Task: ...\n",
    "dpaudit.engine.games.mia": "from dpaudit.engine.games import fits\nx = fits.Fits\nimport dpaudit.engine.plan\n",
    "dpaudit.engine.views": "",
    "dpaudit.engine.views.task": "from dpaudit.engine.games.fits import MOST\nclass Task: ...\n",
}


def test_a_name_with_one_user_is_found() -> None:
    assert names_with_one_user(SOURCES) == [("dpaudit.engine.games.fits", "MOST")]
    assert public_names(SOURCES["dpaudit.engine.games.fits"]) == {"Fits", "MOST", "Task"}


def test_classes_of_one_name_are_found() -> None:
    assert shared_classes(SOURCES) == {"Task": 2}


def test_a_rooms_in_circles_is_found() -> None:
    """Two rooms reach one another though no file does; one that looks at both is not in it."""
    (found,) = rooms_in_circles(SOURCES)
    assert (found.value, found.which) == (2, "dpaudit.engine games")
