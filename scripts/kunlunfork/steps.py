"""The moments of a change that a crash can fall into."""

from __future__ import annotations


def checkpoint(name: str) -> None:
    """Called (as `steps.checkpoint`) before each such step; tests replace it by one that kills the process."""
