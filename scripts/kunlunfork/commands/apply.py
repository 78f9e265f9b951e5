"""kunlunfork apply"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from kunlunfork import paths
from kunlunfork.apply import Outcome
from kunlunfork.commands._options import (
    check_site_packages,
    content_for,
    dry_run_option,
    index_option,
    offline_option,
    repo_option,
    tree_options,
    verb,
)
from kunlunfork.console import Console, rows


@click.command("apply")
@tree_options
@click.option("--vllm", "version", metavar="VERSION", help="The release, such as 0.25.1.")
@click.option("--in-place", is_flag=True, help="TREE is an upstream tree that is already there.")
@click.option("--source", help="Where a new tree comes from: pypi, a path (sdist, wheel, tree) or git:URL-or-PATH.")
@click.option("--link/--no-link", default=None, help="Overlay files are links into the clone: edits are live.")
@click.option("--git", "as_git", is_flag=True, help="A new tree is a git repository: a commit for each patch.")
@repo_option
@index_option
@offline_option
@dry_run_option
@verb
def command(
    tree: Path | None, site_packages: bool, python: Path | None, version: str | None, in_place: bool,
    source: str | None, as_git: bool, link: bool | None, repo: Path | None, index_url: str | None, offline: bool,
    dry_run: bool, console: Console,
) -> None:  # fmt: skip
    """Put the fork onto a vLLM tree.

    \b
    kunlunfork apply --vllm 0.25.1                    a new tree in ./vllm-0.25.1-kunlun, from the PyPI sdist
    kunlunfork apply --vllm 0.25.1 TREE               the same in TREE; a fork tree there is brought up to date
    kunlunfork apply --vllm 0.25.1 --git TREE         the same as a git repository, for changing the fork
    kunlunfork apply --in-place TREE                  an upstream tree that is already there
    kunlunfork apply --site-packages                  the vLLM installed in this interpreter

    A git tree takes the fork of the clone that it was made from, unless you stand in another or name one.
    A dry run changes no tree; a release that is not in the cache yet is fetched into it all the same.
    """
    from kunlunfork import cache, make, target
    from kunlunfork.sources.base import Settings
    from kunlunfork.store import Store

    check_site_packages(tree, site_packages, python)
    there = in_place or site_packages
    if there and source is not None:
        raise click.UsageError("--source makes a new tree; it does not go with --in-place or --site-packages")
    if there and index_url is not None:
        raise click.UsageError("--index-url is where a new tree comes from; this tree is already there")
    if there and as_git:
        raise click.UsageError("--git makes a new tree; it does not go with --in-place or --site-packages")
    if as_git and link:
        raise click.UsageError("--git and --link exclude each other: kunlunfork export brings commits back")
    if link and site_packages:
        raise click.UsageError("--link goes with a source tree, not with --site-packages")
    if in_place and site_packages:
        raise click.UsageError("--in-place and --site-packages exclude each other")
    if in_place and tree is None:
        raise click.UsageError("--in-place needs TREE")
    if not there and version is None:
        raise click.UsageError("name the release: --vllm 0.25.1 (see: kunlunfork pins)")
    folder = None if site_packages else tree or Path(f"vllm-{version}-kunlun")
    fork = content_for(console, repo, folder)
    folders = cache.default()
    store = Store(folders.store)
    if there:
        found = target.installed(python) if site_packages else target.of_tree(tree or Path())
        outcome = make.bring_up_to_date(
            fork, found, store, wanted=version, link=link, dry_run=dry_run, progress=console
        )
        make.warn_differences(outcome, found, store, fork, console)
    else:
        assert version is not None
        settings = Settings(folders, index_url, offline, console)
        outcome = make.new_or_update(
            fork, version, tree, source, store, settings, as_git=as_git, link=link, dry_run=dry_run
        )
    console.result(_result(outcome), lambda: _show(outcome))


def _result(outcome: Outcome) -> dict[str, Any]:
    return {
        "action": outcome.action,
        "dry_run": outcome.dry_run,
        "tree": str(outcome.root),
        "version": outcome.version,
        "patches": list(outcome.patches),
        "written": [paths.to_text(p) for p in outcome.written],
        "removed": [paths.to_text(p) for p in outcome.removed],
        "series_hash": outcome.series_hash,
        "overlay_hash": outcome.overlay_hash,
        "recovered": outcome.recovered,
        "notes": list(outcome.notes),
    }


def _show(outcome: Outcome) -> None:
    would = "would be " if outcome.dry_run else ""
    if outcome.action == "unchanged":
        if outcome.notes:
            print(
                f"{outcome.root}: the fork of vLLM {outcome.version} has not changed since; {'; '.join(outcome.notes)}"
            )
        else:
            print(f"{outcome.root} carries this fork of vLLM {outcome.version} already")
        return
    print(f"{outcome.root}: the fork of vLLM {outcome.version} {would}{outcome.action}")
    rows(
        [
            ("  patches", str(len(outcome.patches))),
            ("  files", f"{len(outcome.written)} written, {len(outcome.removed)} removed"),
            ("  overlay", outcome.overlay_hash[:12]),
        ]
    )
    if outcome.dry_run:
        for path in outcome.written:
            print(f"  write   {paths.show(path)}")
        for path in outcome.removed:
            print(f"  remove  {paths.show(path)}")
    elif not outcome.root.name.endswith("-packages"):
        print(f"  next: kunlunfork verify {shlex.quote(str(outcome.root))}")
