"""What a shell offers when a command line is completed, and the script that makes it ask."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class
from click.types import StringParamType

from kunlunfork.errors import ForkError

SHELLS = ("bash", "zsh", "fish")
# Set by the script of a shell when it asks.
VARIABLE = "_KUNLUNFORK_COMPLETE"

_FOLDERS = ("tree", "repo", "model")


class _Folder(StringParamType):
    name = "folder"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


class _Version(StringParamType):
    name = "version"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from kunlunfork import content

        try:
            return [CompletionItem(v) for v in content.find(None).versions() if v.startswith(incomplete)]
        except ForkError:
            return []  # a shell that completes has no place for an error


def attach(command: click.Command) -> None:
    """Teach the options and arguments of a command, by their names, what to offer."""
    for param in command.params:
        if "--vllm" in param.opts:
            param.type = _Version()
        elif param.name in _FOLDERS:
            param.type = _Folder()
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        attach(inner)


def script(shell: str, cli: click.Command) -> str:
    """What a shell has to source."""
    made = get_completion_class(shell)
    assert made is not None
    arguments: tuple[click.Command, dict[str, Any], str, str] = (cli, {}, "kunlunfork", VARIABLE)
    # Not bash's own source(): it starts a bash to ask for its version, which is not the one that will read this.
    return ShellComplete.source(made(*arguments))
