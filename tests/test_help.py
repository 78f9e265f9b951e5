"""Every verb's --help has examples, and they can be typed."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from kunlunfork import cli


def command(name: str) -> click.Command:
    found = cli.cli.get_command(click.Context(cli.cli), name)
    assert found is not None
    return found


def examples(verb: click.Command) -> list[str]:
    """The lines of its help that are commands, without what is said of them."""
    lines = [line.strip() for line in (verb.help or "").partition("\b")[2].splitlines()]
    return [re.split(r" {2,}", line)[0] for line in lines if re.match(r"(\w+=\S+ )?kunlunfork ", line)]


@pytest.mark.parametrize("verb", cli.VERBS)
def test_examples_can_be_typed(verb: str) -> None:
    found = examples(command(verb))
    assert found
    for line in found:
        words = [word for word in shlex.split(line.partition(" > ")[0]) if "=" not in word or word.startswith("--")]
        assert words[:2] == ["kunlunfork", verb] or verb == "export", line
        inner, rest = command(words[1]), words[2:]
        while isinstance(inner, click.Group):
            sub = inner.get_command(click.Context(inner), rest[0])
            assert sub is not None, line
            inner, rest = sub, rest[1:]
        inner.make_context(words[1], rest)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_fits_its_line_in_the_list(verb: str) -> None:
    assert (command(verb).help or "").splitlines()[0].endswith((".", ":"))
    assert cli.VERBS[verb] == cli.VERBS[verb].strip(" .")
