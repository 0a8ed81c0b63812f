"""Figures of `tools.house`, computed for a small package in memory."""

from __future__ import annotations

from tools.house import names_with_one_user, public_names, room, rooms_in_cycles, shared_classes

SOURCES = {
    "dpaudit": "import dpaudit.engine.plan",
    "dpaudit.engine": "",
    "dpaudit.engine.plan": "from dpaudit.engine.games.fits import Fits\n",
    "dpaudit.engine.games": "",
    "dpaudit.engine.games.fits": "class Fits: ...\nMOST: int = 3\ndef _own(): ...\nclass Task: ...\n",
    "dpaudit.engine.games.mia": "from dpaudit.engine.games import fits\nx = fits.Fits\nimport dpaudit.engine.plan\n",
    "dpaudit.engine.views": "",
    "dpaudit.engine.views.task": "from dpaudit.engine.games.fits import MOST\nclass Task: ...\n",
}


def test_names_with_one_user() -> None:
    assert names_with_one_user(SOURCES) == [("dpaudit.engine.games.fits", "MOST")]
    assert public_names(SOURCES["dpaudit.engine.games.fits"]) == {"Fits", "MOST", "Task"}


def test_class_names_with_several_meanings() -> None:
    assert shared_classes(SOURCES) == {"Task": 2}


def test_a_file_next_to_folders_is_a_room_of_its_own() -> None:
    assert room("dpaudit.engine.plan", SOURCES) == "dpaudit.engine.plan"
    assert room("dpaudit.engine.games.fits", SOURCES) == "dpaudit.engine.games"


def test_rooms_in_a_cycle() -> None:
    """Two rooms import one another though no two files do; a third room that imports both is in no cycle."""
    (figure,) = rooms_in_cycles(SOURCES)
    assert (figure.value, figure.detail) == (2, "engine.games engine.plan")
