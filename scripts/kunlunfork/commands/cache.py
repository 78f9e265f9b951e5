"""kunlunfork cache"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, dry_run_option, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console, table


@click.group("cache")
def command() -> None:
    """Look after downloads and the store of releases ($KUNLUNFORK_CACHE, else the user's cache folder).

    \b
    kunlunfork cache ls
    kunlunfork cache export releases.tar      then, on a machine without an index:
    kunlunfork cache import releases.tar
    kunlunfork cache prune --all
    """


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@command.command("ls")
@verb
def ls(console: Console) -> None:
    """List the releases in the store, the downloads, and what `matrix` keeps here."""
    from kunlunfork import cache, cachework

    found = cachework.listing(cache.default())
    body = [(b.kind, b.version, b.origin[:12], f"{b.files} files", _mb(b.size)) for b in found.bases]
    body += [("download", d.path.name, "", "", _mb(d.size)) for d in found.downloads]
    body += [("engine", e.path.name, "", "", _mb(e.size)) for e in found.engines]
    if found.results:
        count = len(found.results)
        body.append(("results", "of matrix run", "", f"{count} files", _mb(sum(r.size for r in found.results))))

    def show() -> None:
        print(f"{found.root}: store {_mb(found.store_size)} on disk")
        if body:
            table(("kind", "what", "origin", "files", "size"), body)

    console.result(
        {
            "root": str(found.root),
            "store_bytes": found.store_size,
            "bases": [
                {"kind": b.kind, "version": b.version, "origin": b.origin, "files": b.files, "bytes": b.size}
                for b in found.bases
            ],
            "downloads": [{"name": d.path.name, "bytes": d.size} for d in found.downloads],
            "engines": [{"name": e.path.name, "bytes": e.size} for e in found.engines],
            "results": [{"name": r.path.name, "bytes": r.size} for r in found.results],
        },
        show,
    )


@command.command("prune")
@click.option("--all", "everything", is_flag=True, help="Not only what no pin needs.")
@repo_option
@dry_run_option
@verb
def prune(everything: bool, repo: Path | None, dry_run: bool, console: Console) -> None:
    """Delete what no pin needs: other releases, downloads that the store has, broken downloads.

    With --all also the store, whatever its state, and the engine environments of `matrix`. The results of `matrix run`
    stay, and so does all that kunlunfork has not put there.
    """
    from kunlunfork import cache, cachework

    folders = cache.default()
    content = None if everything else console.find_content(repo)
    names, freed = cachework.prune(content, folders, everything=everything, dry_run=dry_run)
    for left in cachework.strangers(folders):
        console.warn(left)

    def show() -> None:
        for name in names:
            print(f"  {name}")
        print(f"{len(names)} removed, {_mb(freed)} freed" if not dry_run else f"{len(names)} would be removed")

    console.result({"removed": names, "freed_bytes": freed, "dry_run": dry_run}, show)


@command.command("export")
@click.argument("file", type=FOLDER)
@click.option("--vllm", "versions", multiple=True, metavar="VERSION", help="Only this release (repeatable).")
@repo_option
@index_option
@offline_option
@verb
def export(
    file: Path, versions: tuple[str, ...], repo: Path | None, index_url: str | None, offline: bool, console: Console
) -> None:
    """Write the releases into FILE, for `kunlunfork cache import FILE` on a machine without an index."""
    from kunlunfork import cache, cachework
    from kunlunfork.sources.base import Settings

    settings = Settings(cache.default(), index_url, offline, console)
    pins = cachework.export(console.find_content(repo), versions, file, settings)
    console.result(
        {"file": str(file), "versions": [p.version for p in pins]},
        lambda: print(f"{file}: {', '.join(p.version for p in pins)}, {_mb(file.stat().st_size)}"),
    )


@command.command("import")
@click.argument("file", type=FOLDER)
@repo_option
@verb
def import_(file: Path, repo: Path | None, console: Console) -> None:
    """Take the releases of FILE into the cache; each must have the hash of its pin."""
    from kunlunfork import cache, cachework

    bases = cachework.load(console.find_content(repo), file, cache.default(), console)
    console.result(
        {"versions": [b.version for b in bases]},
        lambda: print(f"{', '.join(b.version for b in bases)} can be applied offline now"),
    )
