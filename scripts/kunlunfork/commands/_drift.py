"""What drift shows and writes."""

from __future__ import annotations

from pathlib import Path

from kunlunfork import errors, outfile
from kunlunfork.console import Console
from kunlunfork.content import Content
from kunlunfork.contracts import pinfile, run, shown
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


def _text(report: Report, form: str, long: bool) -> str:
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
        text = _text(report, form, long)
        if out is None:
            print(text, end="")
        else:
            with outfile.writing(out) as stream:
                stream.write(text.encode("utf-8", "backslashreplace"))
            print(f"{shown.verdict(report)}; written to {out}")

    if not report.open:
        console.result(result(report), show)
        return errors.OK
    console.refused(result(report), _error(report), show)
    return CONFLICT


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
