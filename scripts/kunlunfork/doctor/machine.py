"""The tool's own machine: Python, git, and the fork's content."""

from __future__ import annotations

import platform
import sys

from kunlunfork import git
from kunlunfork.content import Content
from kunlunfork.doctor.check import Check, of_error
from kunlunfork.errors import ForkError


def check_python() -> Check:
    """The Python that runs this (pip has seen to its version)."""
    return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def check_git() -> Check:
    """git is wanted by apply, not by doctor: that it is missing is a note."""
    try:
        git.check_version()
        text = git.run(["version"]).decode(errors="replace").strip().removeprefix("git version ")
    except ForkError as e:
        return of_error("git", e, "note")
    return Check("git", "ok", f"{text} ({git.MINIMUM[0]}.{git.MINIMUM[1]} or newer is wanted)")


def check_content(content: Content) -> Check:
    """Which patches and overlay are meant."""
    try:
        pins = content.versions()
    except ForkError as e:
        return of_error("content", e)
    if not pins:
        return Check("content", "bad", f"{content.root} holds no pin", "restore it: git checkout patches")
    kind = "a clone" if content.clone else "the installed package"
    return Check("content", "ok", f"{content.root} ({kind}), pins {', '.join(pins)}")
