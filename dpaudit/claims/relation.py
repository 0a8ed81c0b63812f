"""Notions of neighbouring data sets."""

from __future__ import annotations

from enum import StrEnum


class Relation(StrEnum):
    """Which data sets are neighbours."""

    ADD_REMOVE = "add-remove"
    """One record is present or absent."""
    REPLACE = "replace"
    """One record is replaced by another; the number of records is public."""
    LABEL = "label"
    """One record's protected attributes (its label) are replaced; everything else is public."""
