"""What rebase shows, and where its session lies."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from kunlunfork import errors, paths
from kunlunfork.console import Console, describe, table
from kunlunfork.content import Content
from kunlunfork.contracts import gate as gates
from kunlunfork.contracts.gate import Gate
from kunlunfork.contracts.run import Workshop
from kunlunfork.errors import ForkError
from kunlunfork.rebase import outcome
from kunlunfork.rebase.outcome import Outcome
from kunlunfork.rebase.report import Report
from kunlunfork.rebase.session import Session

# Contracts that are named in an error; drift shows all.
_SHOWN = 12


def rename(text: str) -> tuple[str, str]:
    """`OLD=NEW`, or `PATH::OLD=NEW` for a class or function (raises `click.UsageError`)."""
    old, _, new = text.partition("=")
    path, mark, name = old.rpartition("::")
    if mark:
        if not path or not name.isidentifier() or not new.isidentifier():
            raise click.UsageError(f"--rename {text}: not PATH::OLD=NEW, two names of a class or function")
        return old, new
    bad = any(part in ("", ".", "..") for path in (old, new) for part in path.removesuffix("/").split("/"))
    if bad or old.endswith("/") != new.endswith("/"):
        raise click.UsageError(f"--rename {text}: not OLD=NEW, two files or two folders/ of the tree")
    return tuple(paths.to_text(os.fsencode(part)) for part in (old, new))  # type: ignore[return-value]


def session(fork: Content, repo: Path | None, out: Path | None) -> Session:
    """Where the rebase is kept (raises `ForkError` where there is no clone to write to)."""
    named = "" if repo is None else f" --repo {shlex.quote(str(repo))}"
    if out is not None:
        return Session(out.absolute(), f"{named} --out {shlex.quote(str(out))}")
    if not fork.clone:
        raise ForkError(
            "there is no clone to write to", found="the content inside the installed package",
            expected="a clone of kunlunfork", fix="stand in a clone, or name it: --repo DIR; or --out DIR",
        )  # fmt: skip
    return Session(fork.root, named)


def gate(report: Report, onto: str | None, shop: Workshop) -> Gate | None:
    """What the text of a merge does not say; None where patches stopped it.

    Args:
        onto: what was asked for, where that is known: a commit has no version.
    """
    if report.needs_a_person:
        return None
    return gates.look(shop, report.start, onto or report.onto)


def finish(report: Report, console: Console, found: Gate | None = None) -> int:
    """Show a report, and what the gate of the contracts found; the exit code."""
    result = _result(report)
    if found is not None:
        result |= {
            "clean": found.clean,
            "drift": {"contracts": found.report.contracts, "drifted": len(found.report.cards)},
            "open": [str(card.drift.contract) for card in found.report.open],
            "lost": list(found.lost),
        }
    for path in report.collisions:
        console.warn(f"vLLM {report.onto} has {paths.show(path)} too, which the overlay ships")
    if not report.needs_a_person and (found is None or found.clean):
        console.result(result, lambda: _show(report))
        return errors.OK
    error = _error(report) if report.needs_a_person or found is None else _not_clean(report, found)

    def show() -> None:
        _show(report)
        print(describe(error))

    console.refused(result, error, show)
    return error.exit_code


def aborted(onto: str | None, at: Session, console: Console) -> int:
    if onto is None:
        console.warn("what the rebase had written, if it was at its end, is still there: its state could not be read")
    text = f"{at.root}: " + (f"as before the rebase onto {onto}" if onto else "the rebase is gone")
    console.result({"state": "aborted", "onto": onto}, lambda: print(text))
    return errors.OK


def _error(report: Report) -> ForkError:
    stop = report.run.stop
    if stop is None:
        return ForkError(
            f"the overlay has files that vLLM {report.onto} has too", found=f"{len(report.collisions)} files",
            details=[paths.show(path) for path in report.collisions],
            expected="files that upstream does not have",
            fix="rename them, and what imports them; see: kunlunfork lint", exit_code=errors.CONFLICT,
        )  # fmt: skip
    conflicts = stop.outcome.conflicts
    fix = "the same command without --dry-run stops there, to resolve it"
    if report.work is not None:
        fix = f"edit the files in {report.work} (what it is about: {report.text}), then: {report.go_on}"
    return ForkError(
        f"{stop.change.name} does not fit vLLM {stop.rung.version}",
        found=f"{len(conflicts)} {'conflict' if len(conflicts) == 1 else 'conflicts'}",
        details=[f"{paths.show(c.path)}: {c.kind}: {c.why}" for c in conflicts],
        expected="patches that can be carried without doubt", fix=fix, exit_code=errors.CONFLICT,
    )  # fmt: skip


def _not_clean(report: Report, found: Gate) -> ForkError:
    drifted = found.report
    names = [f"{card.title}: {', '.join(card.drift.classes)}" for card in drifted.open]
    shown = [*(f"{name}: lost in the merge" for name in found.lost), *names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown.append(f"and {len(names) - _SHOWN} more")
    written = "the patches are written" if report.state == "done" else "the patches fit"
    lost = f", {len(found.lost)} definitions lost" if found.lost else ""
    return ForkError(
        f"{written}, but the fork relies on what vLLM {drifted.last} changed",
        found=f"{len(names)} contracts that nothing vouches for{lost}", details=shown,
        expected="a green parity cell, or a person's word, for each",
        fix=f"see: kunlunfork drift --from {drifted.first} --to {shlex.quote(found.onto)} --long",
        exit_code=errors.CONFLICT,
    )  # fmt: skip


def _by_patch(report: Report) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for step in report.run.outcomes:
        found.setdefault(step.patch, []).append(step)
    return found


def _result(report: Report) -> dict[str, Any]:
    stop = report.run.stop
    return {
        "state": report.state,
        "from": report.start,
        "onto": report.onto,
        "releases": list(report.rungs),
        "patches": [
            {
                "name": name,
                "outcome": outcome.worst(step.kind for step in steps),
                "carried": name in report.patches,
                "steps": [step.as_json() for step in steps],
            }
            for name, steps in _by_patch(report).items()
        ],
        "series": list(report.patches),
        "skipped": [{"patch": s.patch, "version": s.version, "why": s.why} for s in report.skips],
        "stop": None if stop is None else {"patch": stop.change.name, "version": stop.rung.version},
        "work": None if report.work is None else str(report.work),
        "text": None if report.text is None else str(report.text),
        "written": [paths.to_text(paths.from_disk(path)) for path in report.written],
        "overlay_collisions": [paths.to_text(path) for path in report.collisions],
    }


def _show(report: Report) -> None:
    print(f"vLLM {report.start} -> {' -> '.join(report.rungs)}")
    rows = []
    for name, steps in _by_patch(report).items():
        kind = outcome.worst(step.kind for step in steps)
        told = [
            f"{step.version}: {_said(step)}" for step in steps if step.kind not in (outcome.UNCHANGED, outcome.MOVED)
        ]
        moved = sum(step.kind == outcome.MOVED for step in steps)
        told += [f"moved in {moved} of {len(steps)} releases"] * (moved > 0 and not told)
        rows.append((name, kind, "; ".join(told)))
    if rows:
        table(("patch", "outcome", ""), rows)
    if report.state == "done":
        print(f"{len(report.written)} files written: {', '.join(sorted({str(p.parent) for p in report.written}))}")


def _said(step: Outcome) -> str:
    if step.conflicts:
        return ", ".join(f"{c.kind} conflict in {paths.show(c.path)}" for c in step.conflicts)
    facts = [*step.how, *step.proof] or [step.kind]
    return ", ".join(facts)
