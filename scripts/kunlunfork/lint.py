"""What is wrong with a series and its overlay, found without a checkout: a table of checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

from kunlunfork import lintoverlay, patchrules, paths, scopes, series
from kunlunfork.errors import ForkError
from kunlunfork.findings import SKIPPED, Check, Finding, Overlay, Subject, line_at, line_of
from kunlunfork.patchfile import Hunk, Patch, PatchError
from kunlunfork.patchlines import REMAKE
from kunlunfork.preimage import Step, Upstream

__all__ = ["CHECKS", "SKIPPED", "Finding", "failures", "lint"]

STATUSES = ("Inappropriate", "Pending", "Submitted", "Accepted", "Backport", "Denied")
# These say nothing without the reason, link or version in brackets.
_BRACKETED = ("Inappropriate", "Submitted", "Accepted", "Backport")
_REQUIRED = ("Upstream-Status", "Remove-When")
_STATUS = re.compile(r"(\S+)(?:\s+\[(.*\S.*)\])?\s*", re.DOTALL)
_MARKER = re.compile(rb"(<{7}|>{7}|\|{7})( .*|\r?)", re.DOTALL)


def _series(subject: Subject) -> Iterator[Finding]:
    names, problems = subject.scan
    for problem in problems:
        yield Finding(subject.file(series.SERIES), problem.line, "series", problem.message, problem.fix)
    listed = {name.name for name in names}
    for file in sorted(subject.folder.iterdir()) if subject.folder.is_dir() else ():
        if file.name not in listed and lintoverlay.is_leftover(file.name):
            yield Finding(
                str(file), None, "series", "the series does not name this file", "add its name to series, or delete it"
            )


def _parse(subject: Subject) -> Iterator[Finding]:
    for name, result in subject.parsed.items():
        if isinstance(result, ForkError):
            line, code = (result.line, result.code) if isinstance(result, PatchError) else (None, "parse")
            message = result.reason if isinstance(result, PatchError) else result.message
            facts = [f"{k} {v}" for k, v in (("found", result.found), ("expected", result.expected)) if v]
            text = "; ".join([message, *facts])
            yield Finding(subject.file(name), line, code, text, result.fix or "make the patch again")


def _rules(subject: Subject) -> Iterator[Finding]:
    for patch in subject.patches:
        for fault in patchrules.faults(patch):
            yield subject.finding(patch, fault.line, fault.code, fault.message, fault.fix)


def _header(subject: Subject) -> Iterator[Finding]:
    for patch in subject.patches:
        head = patch.header
        own = (("Subject", head.subject), ("From", head.from_), ("Date", head.date))
        missing = [name for name, value in own if not value]
        missing += [name for name in (*_REQUIRED, "Touches") if not head.get(name)]
        for name in missing:
            yield subject.finding(patch, None, "header", f"the header has no {name}", f"add a line `{name}: ...`")
        for name in ("Subject", "From", "Date", *_REQUIRED):
            if len(head.all(name)) > (name in _REQUIRED):
                yield subject.finding(
                    patch, line_of(patch, name), "header", f"{name} is there twice", "keep one of them"
                )
        if head.from_ and not re.search(r"\S+@\S+", head.from_):
            fix = "write From: NAME <MAIL>"
            yield subject.finding(patch, line_of(patch, "From"), "header", "From has no mail address", fix)
        if head.date and not _is_date(head.date):
            fix = "write it as git log --format=%aD does"
            message = f"Date is not an RFC 2822 date: {head.date}"
            yield subject.finding(patch, line_of(patch, "Date"), "header", message, fix)


def _is_date(text: str) -> bool:
    try:
        parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return False
    return True


def _status(subject: Subject) -> Iterator[Finding]:
    for patch in subject.patches:
        value = patch.header.get("Upstream-Status")
        if not value:
            continue
        match = _STATUS.fullmatch(value)
        word = value.split()[0]
        line = line_of(patch, "Upstream-Status")
        if word not in STATUSES:
            message = f"Upstream-Status: {word} is none of {', '.join(STATUSES)}"
            yield subject.finding(patch, line, "status", message, "write one of them, with the reason in brackets")
        elif match is None or (word in _BRACKETED and not match[2]):
            message = f"Upstream-Status: {word} without its reason or link in brackets"
            yield subject.finding(patch, line, "status", message, f"write {word} [reason or link]")


def _added_lines(hunk: Hunk) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(hunk.lines, hunk.line + 1):
        if line[:1] == b"+":
            yield number, line[1:]


def _markers(subject: Subject) -> Iterator[Finding]:
    message, fix = "a conflict marker", "resolve the conflict"
    for patch in subject.patches:
        for file in patch.files:
            for hunk in file.hunks:
                for number, line in _added_lines(hunk):
                    if _MARKER.fullmatch(line):
                        yield subject.finding(patch, number, "markers", message, fix)
    for _, data, source in subject.overlay.values():
        for number, line in enumerate(data.split(b"\n"), 1):
            if _MARKER.fullmatch(line):
                yield Finding(str(source), number, "markers", message, fix)


def _tail(subject: Subject) -> Iterator[Finding]:
    for patch in subject.patches:
        end = patch.files[-1].end
        if end != len(patch.raw):
            message = "text after the diff: the signature of a mail, or empty lines"
            fix = "delete it; git format-patch --no-signature writes none"
            yield subject.finding(patch, line_at(patch, end), "tail", message, fix)


def _chain(subject: Subject) -> Iterator[Finding]:
    broken = [name for name, result in subject.parsed.items() if not isinstance(result, Patch)]
    order = list(subject.parsed)
    for patch in subject.patches:
        # A patch that cannot be read may have changed the file, so a later one's blob proves nothing.
        unread = [name for name in broken if order.index(name) < order.index(patch.name)]
        for step in subject.steps[patch.name]:
            for fault in step.mismatches:
                line = line_at(patch, step.file.start) if fault.line is None else fault.line
                if fault.code == "preimage" and unread:
                    message = f"the blobs that it starts from are not checked: {unread[0]} before it cannot be read"
                    yield subject.finding(patch, line, SKIPPED, message, f"mend {unread[0]} first")
                else:
                    fix = "do not edit patches by hand; edit a git tree, then " + REMAKE
                    yield subject.finding(patch, line, fault.code, fault.message, fix)


def _touches(subject: Subject) -> Iterator[Finding]:
    for patch in subject.patches:
        right: dict[str, None] = {}
        unknown = [s for s in subject.steps[patch.name] if _source(s) is None]
        line = line_of(patch, "Touches")
        if unknown:
            name = paths.show(unknown[0].file.old_path or b"")
            message = f"Touches is not checked: {name} before this patch is not known"
            yield subject.finding(patch, line, SKIPPED, message, "mend what is found there first")
            continue
        for step in subject.steps[patch.name]:
            right.update(dict.fromkeys(scopes.touches(step.file, _source(step) or b"")))
        said = [v.strip() for value in patch.header.all("Touches") for v in value.split("\n")]
        if sorted(said) != sorted(right):
            wrong = [t for t in dict.fromkeys(said) if t not in right or said.count(t) > 1]
            absent = [t for t in right if t not in said]
            facts = [f"wrong: {', '.join(wrong)}"] * bool(wrong) + [f"missing: {', '.join(absent)}"] * bool(absent)
            lines = "\n".join(f"Touches: {t}" for t in right)
            yield subject.finding(
                patch, line, "touches", f"Touches does not name what the hunks edit ({'; '.join(facts)})",
                f"write\n{lines}",
            )  # fmt: skip


def _source(step: Step) -> bytes | None:
    """What `scopes.touches` looks at; None where it should be known but is not."""
    file = step.file
    if not file.hunks or file.kind not in ("modify", "rename") or not scopes.is_python(file.old_path or b""):
        return b""
    return None if step.before is None else step.before.data


CHECKS = (
    Check("series", _series),
    Check("parse", _parse),
    Check("rules", _rules),
    Check("header", _header),
    Check("status", _status),
    Check("markers", _markers),
    Check("tail", _tail),
    Check("overlay-patched", lintoverlay.patched),
    Check("overlay-file", lintoverlay.files),
    Check("overlay-upstream", lintoverlay.upstream, needs_upstream=True),
    Check("chain", _chain, needs_upstream=True),
    Check("touches", _touches, needs_upstream=True),
)


def lint(patches_dir: Path, overlay: Overlay, upstream: Upstream | None) -> tuple[Finding, ...]:
    """Look at the series in `patches_dir` and at its overlay.

    Args:
        patches_dir: patches/<version>.
        overlay: the resolved overlay: path in the tree -> (entry, bytes, the file they come from).
        upstream: upstream's (entry, bytes) at a path, None where it has no file; or None where the release is
            not at hand. Then each check that needs it gives a finding with the code `skipped`.

    Returns:
        What was found, in the order of `CHECKS`. `failures` leaves out what was only skipped.
    """
    subject = Subject(patches_dir, overlay, upstream)
    findings: list[Finding] = []
    for check in CHECKS:
        if check.needs_upstream and upstream is None:
            message = f"{check.code} is not checked: vLLM {patches_dir.name} is not in the store"
            fix = f"fetch it once with: kunlunfork apply --vllm {patches_dir.name}"
            findings.append(Finding(str(patches_dir), None, SKIPPED, message, fix))
        else:
            findings += check.run(subject)
    return tuple(findings)


def failures(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings that are faults."""
    return tuple(f for f in findings if f.code != SKIPPED)
