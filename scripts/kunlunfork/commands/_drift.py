"""What drift shows and writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from kunlunfork import errors, outfile
from kunlunfork.console import Console, printable
from kunlunfork.content import Content
from kunlunfork.contracts import consumer as consumers
from kunlunfork.contracts import pinfile, run, shown
from kunlunfork.contracts.consumer import Consumer
from kunlunfork.contracts.drift import Found
from kunlunfork.contracts.run import Report, Workshop
from kunlunfork.errors import CONFLICT, ForkError


def _error(report: Report) -> ForkError:
    return ForkError(
        f"{len(report.open)} contracts drifted from {report.first} to {report.last} that nothing vouches for",
        found=", ".join(str(card.drift.contract) for card in report.open[:3])
        + (" ..." if len(report.open) > 3 else ""),
        expected="a green parity cell, or a person's word, for each",
        fix=f'look at each, then: kunlunfork drift --from {report.first} --to {report.last} --ack SYMBOL --why "..."',
        exit_code=CONFLICT,
    )


def check_clone(content: Content) -> None:
    """Refuse to write into the installed package (raises `ForkError`)."""
    if not content.clone:
        raise ForkError(
            "there is no clone to write to", found="the content inside the installed package",
            expected="a clone of kunlunfork", fix="stand in a clone, or name it: --repo DIR",
        )  # fmt: skip


def _text(report: Report, form: str, long: bool) -> str:
    if form == "json":
        return _json(result(report))
    if form == "md":
        return shown.markdown(report)
    if form == "html":
        return shown.html(report)
    return shown.term(report, long=long)


def result(report: Report) -> dict[str, object]:
    """The member `result` of the JSON object."""
    return {
        "from": report.first, "to": report.last, "releases": list(report.rungs), "areas": list(report.areas),
        "contracts": report.contracts, "drifted": len(report.cards), "open": len(report.open),
        "drifts": [card.as_json() for card in report.cards],
    }  # fmt: skip


def show_report(report: Report, form: str, long: bool, out: Path | None, console: Console) -> int:
    """Show a report, or write it; the exit code."""

    def show() -> None:
        if out is None:
            print(_text(report, form, long), end="")
        else:
            print(f"{shown.verdict(report)}; written to {out}")

    if out is not None:
        _write(out, _text(report, form, long))
    if not report.open:
        console.result(result(report), show)
        return errors.OK
    console.refused(result(report), _error(report), show)
    return CONFLICT


def show_consumer(found: Found, made: Consumer, form: str, long: bool, out: Path | None, console: Console) -> int:
    """What a release breaks of a package, and what else of it changed; the exit code."""
    broken = consumers.breaks(found, made)
    names = {one.symbol for one in broken}
    changed = [d for d in found.drifts if str(d.contract) not in names]
    for fault in made.faults:
        console.warn(fault)
    if not found.contracts and not found.absent:
        console.warn("nothing in the package uses vLLM: is it the folder that is meant?")
    if found.absent:
        names_ = ", ".join(str(c) for c in found.absent[:5]) + (" ..." if len(found.absent) > 5 else "")
        console.warn(
            f"vLLM {found.first} has not all that the package names, {len(found.absent)} are passed over: {names_}"
        )
    result = {
        "from": found.first, "to": found.last, "releases": list(found.rungs), "contracts": found.contracts,
        "absent": [str(c) for c in found.absent], "breaks": [asdict(one) for one in broken],
        "changed": [
            {"symbol": str(d.contract), "classes": list(d.classes), "dependants": list(d.contract.users),
             "steps": [{"version": s.version, "classes": list(s.classes)} for s in d.steps]}
            for d in changed
        ],
    }  # fmt: skip

    def lines() -> list[str]:
        text = [
            f"vLLM {found.first} -> {found.last}: of {found.contracts} contracts {len(broken)} breaks, "
            f"{len(changed)} changed otherwise"
        ]
        for one in broken:
            text += ["", f"{one.symbol}: {one.kind}: {one.why}", *(f"  {user}" for user in one.users)]
        for d in changed if long else ():
            text += ["", f"{d.contract}: {', '.join(d.classes)}", *(f"  {user}" for user in d.contract.users)]
        if changed and not long:
            text += ["", "--long shows what changed otherwise: bodies, defaults, types, what upstream passes"]
        return [printable(line) for line in text]

    def show() -> None:
        print("\n".join(lines()) if out is None else f"{lines()[0]}; written to {out}")

    if out is not None:
        _write(out, _json(result) if form == "json" else "\n".join(lines()) + "\n")
    if not broken:
        console.result(result, show)
        return errors.OK
    error = ForkError(
        f"{len(broken)} things of the package break with vLLM {found.last}", found=", ".join(sorted(names)[:3]),
        expected="names, calls and overrides that the release still takes", exit_code=CONFLICT,
    )  # fmt: skip
    console.refused(result, error, show)
    return CONFLICT


def _json(result: dict[str, object]) -> str:
    return json.dumps(result, indent=1) + "\n"


def _write(out: Path, text: str) -> None:
    with outfile.writing(out) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


def written(shop: Workshop, start: str | None, console: Console) -> int:
    content: Content = shop.content
    versions = [content.pin(start).version] if start else list(content.versions())
    files = []
    for version in versions:
        found = run.contracts_of(shop, version)
        files.append((version, pinfile.save(content.patches / version, found), len(found.contracts)))
    console.result(
        {"written": [{"pin": v, "file": str(f), "contracts": n} for v, f, n in files]},
        lambda: print("\n".join(f"{f}: {n} contracts" for _, f, n in files)),
    )
    return errors.OK
