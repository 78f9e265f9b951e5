"""The advice that errors give: each command of ours in it must be one that the real parser takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
from packaging.version import Version

from kunlunfork.cli import cli

TOOL = "kunlunfork"
# What errors, findings and states advised since the test began; conftest.py listens.
GIVEN: list[str] = []
# Where a command ends in a sentence; a command is the last thing of its clause.
_ENDS = ";()`\n"


def commands(text: str) -> Iterator[list[str]]:
    """The command lines of ours in a text, as a shell would split them (raises `ValueError` for an open quote)."""
    for part in text.split(f"{TOOL} ")[1:]:
        lexer = shlex.shlex(part, posix=True, punctuation_chars=_ENDS)
        lexer.whitespace = " \t"
        lexer.commenters = ""
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set(_ENDS):
                break
            words.append(word.removesuffix(","))
            if word.endswith(","):
                break
        yield words


def parse(words: list[str]) -> None:
    """Parse one command line as the tool would; nothing is run (raises `click.ClickException`)."""
    context = cli.make_context(TOOL, [], resilient_parsing=True)
    command: click.Command = cli
    words = list(words)
    while isinstance(command, click.Group):
        if not words:
            raise click.UsageError("no verb")
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no such command: {name}")
        command = found
        context = command.make_context(name, words if not isinstance(command, click.Group) else [], parent=context,
                                       resilient_parsing=isinstance(command, click.Group))  # fmt: skip
    given = context.params
    version = given.get("version")
    for value in given.get("versions") or ([version] if version else []):
        Version(value)
    if command.name == "rebase":
        actions = [given[name] for name in ("onto", "go_on", "skip", "abort", "status") if given[name]]
        if len(actions) != 1:
            raise click.UsageError("not one of --onto, --continue, --skip, --abort, --status")
        if given["onto"] and not given["onto"].startswith("git:"):
            Version(given["onto"])
    if command.name == "apply":
        there = given["in_place"] or given["site_packages"]
        if not there and not version:
            raise click.UsageError("names no release")
        if given["in_place"] and given["tree"] is None:
            raise click.UsageError("--in-place without TREE")


def check(text: str) -> None:
    """Raises `AssertionError` where a command in `text` cannot be run as it stands."""
    try:
        for words in commands(text):
            parse(words)
    except (click.ClickException, ValueError) as e:
        message = e.format_message() if isinstance(e, click.ClickException) else str(e)
        raise AssertionError(f"advice that cannot be followed: {text!r}: {message}") from None
