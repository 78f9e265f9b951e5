"""kunlunfork completion"""

from __future__ import annotations

import click

from kunlunfork.commands._options import verb
from kunlunfork.completion import SHELLS
from kunlunfork.console import Console


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@verb
def command(shell: str, console: Console) -> None:
    """Print the script that completes kunlunfork's verbs, options, releases and folders in SHELL.

    \b
    eval "$(kunlunfork completion bash)"                                  in ~/.bashrc (bash 4.4 or newer)
    eval "$(kunlunfork completion zsh)"                                   in ~/.zshrc, after compinit
    kunlunfork completion fish > ~/.config/fish/completions/kunlunfork.fish
    """
    from kunlunfork import completion
    from kunlunfork.cli import cli

    text = completion.script(shell, cli)
    console.result({"shell": shell, "script": text}, lambda: print(text))
