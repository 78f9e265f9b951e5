"""What a conflict is about, in words: what the patch does, what upstream did in which release, what to do now."""

from __future__ import annotations

from kunlunfork import paths
from kunlunfork.patchfile import parse_patch
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.rebase.engine import Stop
from kunlunfork.rebase.outcome import SCOPE, Conflict
from kunlunfork.rebase.session import Session
from kunlunfork.rebase.treestore import TreeStore

# How far from the lines of the patch a change of upstream's is still shown, and how many lines of it at most.
_NEAR, _MOST = 40, 120

_DIFF = (
    "diff-tree", "-r", "-p", "--full-index", "--unified=3", "--no-renames", "--no-color", "--no-ext-diff",
    "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--binary",
)  # fmt: skip


def text(store: TreeStore, stop: Stop, session: Session) -> str:
    """The text beside a work tree."""
    version, name = stop.rung.version, stop.change.name
    lines = [
        f"{name} does not fit vLLM {version}.", "", f"The files at stake are in {session.work}.",
        f"Stage 1 is the file before the patch (vLLM {stop.before.version}), 2 upstream's (vLLM {version}),",
        "3 the file with the patch.",
        "Edit them, or use git there (git mergetool, git checkout --ours/--theirs, git add, git rm); then",
        f"  {session.command('continue')}   goes on with what you made of them",
        f"  {session.command('skip')}       leaves the patch out",
        f"  {session.command('abort')}      as if nothing had been",
    ]  # fmt: skip
    for conflict in stop.outcome.conflicts:
        lines += ["", "=" * 100, f"{paths.show(conflict.path)}: {conflict.kind}", f"  {conflict.why}"]
        if conflict.kind == SCOPE:
            lines.append("  right as it is? git add it. Where a class or function was renamed: --rename PATH::OLD=NEW")
        if conflict.candidates:
            lines.append("  it may have become one of these; move the edit there, or say --rename OLD=NEW:")
            lines += [f"    {paths.show(path)}" for path in conflict.candidates]
        ours, around = _diff(store, conflict, conflict.old, conflict.ours, None)
        lines += ["", "--- what the patch does", *ours]
        new, _ = _diff(store, conflict, conflict.old, conflict.new, around)
        lines += ["", f"--- what vLLM {version} did there", *new]
    return "\n".join(lines) + "\n"


def _diff(
    store: TreeStore, conflict: Conflict, before: Entry | None, after: Entry | None, around: list[int] | None
) -> tuple[list[str], list[int]]:
    """The hunks between two files, near the lines `around` where these are given; and the lines that they change."""
    if before == after:
        return ["nothing"], []
    if after is None:
        return ["the file is not there"], []
    empty = store.empty()
    trees = [store.replace(empty, {conflict.path: entry}) for entry in (before, after)]
    raw = store.repository.git(*_DIFF, *trees)
    # A file that becomes a link is a deletion and an addition.
    file, *more = parse_patch("a change", b"Subject: x\n\n---\n" + raw).files
    if more or file.binary or SYMLINK in (before.mode if before else 0, after.mode):
        return ["(no text)"], []
    lines: list[str] = []
    changed: list[int] = []
    left_out = 0
    for hunk in file.hunks:
        start, end = hunk.old_start, hunk.old_start + hunk.old_count
        changed += range(start, end + 1)
        if around is not None and not any(start - _NEAR <= line <= end + _NEAR for line in around):
            left_out += 1
            continue
        section = hunk.section.decode(errors="replace")
        lines.append(f"@@ -{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count} @@ {section}".rstrip())
        lines += [line.decode(errors="replace") for line in hunk.lines]
    if len(lines) > _MOST:
        lines = [*lines[:_MOST], f"... {len(lines) - _MOST} more lines"]
    if left_out:
        lines.append(f"({left_out} changes farther away)")
    return lines or ["nothing near the lines of the patch"], changed
