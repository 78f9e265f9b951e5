"""kunlunfork lint"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from kunlunfork import errors
from kunlunfork.commands._options import repo_option, verb
from kunlunfork.console import Console
from kunlunfork.errors import ForkError


@click.command("lint")
@click.option("--vllm", "versions", multiple=True, metavar="VERSION", help="Only this pin (repeatable).")
@repo_option
@verb
def command(versions: tuple[str, ...], repo: Path | None, console: Console) -> int:
    """Check pins, patches and overlay of the clone; exit code 1 if anything is wrong.

    Checks that compare with upstream's files need the release in the store, where any apply puts it; without it they
    are reported as skipped.

    \b
    kunlunfork lint
    kunlunfork lint --vllm 0.25.1 --repo CLONE
    """
    from kunlunfork import cache, lint, lintall

    fork = console.find_content(repo)
    findings = lintall.lint_pins(fork, versions or lintall.versions(fork), cache.default())
    faults = lint.failures(findings)
    here = Path.cwd()

    def show() -> None:
        for f in findings:
            place = os.path.relpath(f.file, here) + (f":{f.line}" if f.line is not None else "")
            print(f"{place}: {f.code}: {f.message}\n    fix: {f.fix}")
        print(f"{len(faults)} faults, {len(findings) - len(faults)} checks skipped")

    result = {"findings": [asdict(f) for f in findings], "faults": len(faults)}
    if not faults:
        console.result(result, show)
        return errors.OK
    console.refused(result, ForkError(f"{len(faults)} faults in patches and overlay"), show)
    return errors.USER
