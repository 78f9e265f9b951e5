"""kunlunfork pins"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from kunlunfork.commands._options import repo_option, verb
from kunlunfork.console import Console, table


@click.command("pins")
@repo_option
@verb
def command(repo: Path | None, console: Console) -> None:
    """List the upstream releases that the fork supports.

    \b
    kunlunfork pins
    kunlunfork pins --json      with commits, hashes and the torch of each
    """
    from kunlunfork import fork

    found = console.find_content(repo)
    forks = [fork.load(found, version) for version in found.versions()]
    console.result(
        {
            "pins": [
                {
                    **asdict(f.pin),
                    "patches": [p.name for p in f.patches],
                    "overlay_files": len(f.overlay.files),
                }
                for f in forks
            ],
        },
        lambda: table(
            ("version", "commit", "released", "torch", "patches", "overlay"),
            [
                (
                    f.pin.version,
                    f.pin.commit[:9],
                    f.pin.uploaded,
                    f.pin.torch,
                    str(len(f.patches)),
                    f"{len(f.overlay.files)} files",
                )
                for f in forks
            ],
        ),
    )
