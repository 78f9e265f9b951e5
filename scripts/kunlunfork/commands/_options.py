"""Options that several verbs share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kunlunfork.console import Console
from kunlunfork.content import Content
from kunlunfork.errors import INTERRUPTED, ForkError
from kunlunfork.target import Target

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path; not an empty one, which would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("an empty path", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
repo_option = click.option(
    "--repo",
    type=FOLDER,
    help="The clone whose patches and overlay are meant [default: the one you are in, else the installed].",
)
offline_option = click.option("--offline", is_flag=True, help="Use only what is in the cache.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
index_option = click.option("--index-url", help="The package index [default: pip's].")


def tree_options(command: F) -> F:
    """TREE | --site-packages [--python EXE]."""
    for decorate in (
        click.option("--python", type=FOLDER, help="With --site-packages: the vLLM of this interpreter."),
        click.option("--site-packages", is_flag=True, help="The vLLM installed in this interpreter."),
        click.argument("tree", type=FOLDER, required=False),
    ):
        command = decorate(command)
    return command


def content_for(console: Console, repo: Path | None, root: Path | None) -> Content:
    """The fork's content: the one that the user says, else that of the clone that a git tree was made from.

    Raises:
        ForkError: there is none (see `content.find`).
    """
    from kunlunfork import content, exportfiles, gittree

    # What the package itself brings, an editable installation's clone too, is nobody's choice.
    if root is not None and not content.is_chosen(repo):
        repo = exportfiles.clone(gittree.state(root))
    return console.find_content(repo)


def target_of(tree: Path | None, site_packages: bool, python: Path | None) -> Target:
    """The tree that these options name (raises `click.UsageError`, `ForkError`)."""
    from kunlunfork import target

    check_site_packages(tree, site_packages, python)
    return target.installed(python) if site_packages else target.find(tree)


def check_site_packages(tree: Path | None, site_packages: bool, python: Path | None) -> None:
    if site_packages and tree is not None:
        raise click.UsageError("TREE and --site-packages exclude each other")
    if python is not None and not site_packages:
        raise click.UsageError("--python goes with --site-packages")


def verb(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a verb its console: takes `as_json`, passes `console`; an error found later still shows the warnings."""

    @json_option
    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, **kwargs: Any) -> int | None:
        context = click.get_current_context()
        console = Console(context.command_path.removeprefix("kunlunfork "), as_json=as_json)
        try:
            return function(*args, console=console, **kwargs)
        except ForkError as e:
            console.failed(e)
            return e.exit_code
        except KeyboardInterrupt:
            console.failed(ForkError("interrupted", exit_code=INTERRUPTED))
            return INTERRUPTED

    return wrapper
