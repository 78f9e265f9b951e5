"""What is said of a file and of a hunk, in the formats that people read."""

from __future__ import annotations

from kunlunfork.console import printable
from kunlunfork.diff.overlap import Met
from kunlunfork.diff.report import Report

_CONTROLS = {n: f"\\x{n:02x}" for n in [*range(32), 127] if chr(n) not in "\t\n"}


def clean(text: str) -> str:
    """Text that steers no terminal, as `printable`, which asks of each character and takes long for whole files."""
    return text.translate(_CONTROLS) if text.isascii() else printable(text)


def head(report: Report, met: Met) -> list[str]:
    """What is said of a file of the fork's side: whose all of it is, and that mainline took it away."""
    assert met.ours is not None
    lines = []
    if met.gone is not None:
        lines.append(f"mainline {'deleted' if met.gone == 'delete' else 'renamed'} this file")
    origin = report.origins.get(met.ours.path)
    if origin is not None and (not origin.runs or all(hunk == origin.whole for hunk in origin.hunks)):
        lines += map(str, origin.whole)
    return lines


def notes(report: Report, met: Met) -> list[list[str]]:
    """What is said of each hunk of the fork's side: whose it is, where that is not all of its file's; what mainline did
    there, and what becomes of it."""
    assert met.ours is not None
    origin = report.origins.get(met.ours.path)
    found = []
    for at, fates in enumerate(report.fates_of(met.ours)):
        lines = list(map(str, origin.hunks[at])) if origin is not None and origin.hunks[at] != origin.whole else []
        lines += ["mainline changed these lines"] if at in met.hunks else []
        found.append([*lines, *map(str, fates)])
    return found


def title(report: Report) -> str:
    """One line: what is compared with what."""
    mine = "the fork" if report.tree is None else report.tree
    newer = f" and vLLM {report.against}" if report.against is not None else ""
    return f"{report.area}: vLLM {report.pin}, {mine}{newer}"


def meeting(met: Met) -> str:
    """What both sides of a file have to do with each other; '' for nothing."""
    if met.gone is not None and met.ours is not None:
        return f"mainline {'deleted' if met.gone == 'delete' else 'renamed'} it"
    if met.ours is None or met.theirs is None:
        return ""
    if met.hunks:
        return f"the same lines in {len(met.hunks)} of {len(met.ours.section.hunks)} hunks"
    return "other lines"
