"""The checks of lint that look at the overlay."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from kunlunfork import paths, scopes
from kunlunfork.errors import ForkError
from kunlunfork.findings import Finding, Subject, line_at
from kunlunfork.paths import Entry

# What editors, interpreters, patch and mail programs leave behind.
_LEFTOVERS = (".patch", ".diff", ".rej", ".orig", ".mbox", ".eml", ".swp", ".swo", ".bak", ".tmp", ".pyc", "~")


def is_leftover(name: str) -> bool:
    return name.endswith(_LEFTOVERS) or name.startswith((".#", "#")) or name in (".DS_Store", "Thumbs.db")


def _folders(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def patched(subject: Subject) -> Iterator[Finding]:
    folders = {folder for path in subject.overlay for folder in _folders(path)}
    for patch in subject.patches:
        for file in patch.files:
            for path in dict.fromkeys(p for p in (file.old_path, file.new_path) if p is not None):
                clash = path if path in subject.overlay else next(filter(subject.overlay.get, _folders(path)), None)
                if clash is None and path not in folders:
                    continue
                name = paths.show(path)
                message = (
                    f"it edits {name}, which the overlay ships"
                    if clash == path
                    else f"{name} and a file of the overlay cannot both be there: one would be a folder"
                )
                fix = "move the edit into the overlay file"
                yield subject.finding(patch, line_at(patch, file.start), "overlay-patched", message, fix)


def upstream(subject: Subject) -> Iterator[Finding]:
    assert subject.upstream is not None
    for path, (_, _, source) in subject.overlay.items():
        for place in (path, *_folders(path)):
            if subject.upstream(place) is not None:
                message = f"upstream has {paths.show(place)}, so the overlay cannot ship {paths.show(path)}"
                yield Finding(
                    str(source),
                    None,
                    "overlay-upstream",
                    message,
                    "edit upstream's file with a patch, or rename this one",
                )
                break


def files(subject: Subject) -> Iterator[Finding]:
    for path, (entry, data, source) in subject.overlay.items():
        if is_leftover(source.name):
            message = "what an editor, an interpreter or a patch program left behind; it would be shipped"
            yield Finding(str(source), None, "overlay-file", message, "delete it")
            continue
        if entry.mode == paths.SYMLINK:
            if scopes.is_python(path):
                yield Finding(str(source), None, "overlay-file", "Python as a symbolic link", "ship the file itself")
            else:
                yield from _link(path, data, source)
            continue
        if _executable(entry, source):
            fix = f"chmod a-x {source}"
            message = "an executable file: wheels do not keep that, and nothing here is run"
            yield Finding(str(source), None, "overlay-file", message, fix)
        if scopes.is_python(path):
            try:
                scopes.parse(data, where=source.name)
            except ForkError as e:
                line = getattr(e.__cause__, "lineno", None)
                yield Finding(str(source), line, "overlay-file", f"not Python: {e.found}", "correct the file")


def _link(path: bytes, target: bytes, source: Path) -> Iterator[Finding]:
    try:
        paths.check_symlink(path, target, where=source.name)
    except ForkError as e:
        yield Finding(str(source), None, "overlay-file", f"{e.message}: {e.found}", "ship the file itself")


def _executable(entry: Entry, source: Path) -> bool:
    # The entry may come from a resolved overlay, which has dropped the bit; the clone's file still has it.
    if entry.mode == paths.EXECUTABLE:
        return True
    try:
        st = source.lstat()
    except OSError:
        return False
    return stat.S_ISREG(st.st_mode) and bool(st.st_mode & 0o111)
