"""What commits may hold and a clone cannot carry: it would be lost, or no verb could read the clone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kunlunfork import overlay, patchrules, paths
from kunlunfork.errors import ForkError
from kunlunfork.objects import Repository
from kunlunfork.patchfile import Patch
from kunlunfork.patchwrite import Effect
from kunlunfork.paths import MAX_BYTES, SYMLINK, Entry


def check_overlay(repository: Repository, files: Mapping[bytes, Entry], series: Collection[bytes]) -> None:
    """Refuse overlay files that an overlay folder cannot hold (raises `ForkError` with the list).

    Args:
        series: the paths that belong to the series.
    """
    theirs = frozenset(series)
    folders = {folder for path in theirs for folder in paths.parents(path)}
    wrong = []
    for path, entry in files.items():
        fault = _name(path) or next(_below(path, theirs), None)
        if path in folders:
            fault = "upstream has a folder of that name"
        fault = fault or next(_content(repository, path, entry), None)
        if fault is not None:
            wrong.append(f"{paths.show(path)}: {fault}")
    _refuse(wrong, "files that upstream lacks and that no overlay can hold")


def check_series(repository: Repository, effects: Iterable[Effect], series: Collection[bytes]) -> None:
    """Refuse edits of upstream's files that no patch can carry (raises `ForkError` with the list).

    Args:
        series: the paths that belong to the series.
    """
    theirs = frozenset(series)
    last = {path: now for effect in effects for path, (_, now) in effect.items()}
    wrong = [
        f"{paths.show(path)}: {fault}"
        for path, entry in last.items()
        if entry is not None
        for fault in (*_below(path, theirs), *_content(repository, path, entry))
    ]
    _refuse(wrong, "edits that no patch can carry")


def check_patches(patches: Sequence[Patch]) -> None:
    """Refuse patches that lint would refuse for what they are made of (raises `ForkError` with the list)."""
    _refuse([f"{p.name}: {fault.message}" for p in patches for fault in patchrules.faults(p)], "no valid patches")


def _refuse(wrong: Sequence[str], what: str) -> None:
    if wrong:
        raise ForkError(
            f"the commits have {what}", details=wrong,
            fix="take it out of the commit: git rebase -i upstream, git rm --cached, git commit --amend",
        )  # fmt: skip


def _name(path: bytes) -> str | None:
    parts = path.split(b"/")
    if path == overlay.REMOVED.encode():
        return "this is the name of an overlay's own list"
    if b".kunlunfork" in (part.lower() for part in parts):
        return "this is the name of kunlunfork's own records"
    if any(overlay.is_noise(part) for part in parts):
        return "this is what an interpreter or a file manager leaves behind; an overlay passes it over"
    return None


def _below(path: bytes, files: Collection[bytes]) -> Iterator[str]:
    for folder in paths.parents(path):
        if folder in files:
            yield f"upstream has a file {paths.show(folder)}, which cannot be a folder as well"


def _content(repository: Repository, path: bytes, entry: Entry) -> Iterator[str]:
    size = int(repository.git("cat-file", "-s", entry.blob))
    if size > MAX_BYTES:
        yield f"{size} bytes, more than {MAX_BYTES}"
    elif entry.mode == SYMLINK:
        try:
            paths.check_symlink(path, next(iter(repository.blobs([entry.blob]))), where="it")
        except ForkError as e:
            yield f"a symbolic link that leaves the tree: {e.found}"
