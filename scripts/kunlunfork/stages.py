"""What a series makes of the files that it patches: the files before its first patch and after each."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping, Sequence

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.git import GitFailed
from kunlunfork.objects import Repository, scratch
from kunlunfork.patchfile import FilePatch, Patch
from kunlunfork.patchlines import REMAKE
from kunlunfork.paths import Entry
from kunlunfork.preimage import UNKNOWN, Step, Tree

Files = dict[bytes, tuple[Entry, bytes] | None]
Stage = dict[bytes, tuple[Entry, bytes]]

_REMADE = f"see: kunlunfork lint; then edit a git tree and {REMAKE}"
_ID_LENGTH = len(paths.blob_id(b""))


def named(patches: Iterable[Patch]) -> frozenset[bytes]:
    """Every path that patches name, before or after."""
    return frozenset(p for patch in patches for f in patch.files for p in (f.old_path, f.new_path) if p is not None)


def stages(patches: Sequence[Patch], base: Files) -> tuple[Stage, ...]:
    """The patched files that are there before the first patch and after each.

    Nothing is placed by its context: every patch finds the blobs that it names, each hunk lies at its lines, and each
    result has the blob id that the patch names.

    Raises:
        ForkError: a patch does not fit, or does not give what it says.
    """
    first = {p: have for p in sorted(named(patches)) if (have := base.get(p)) is not None}
    return from_text(patches, first) or by_git(patches, first)


def from_text(patches: Sequence[Patch], first: Stage) -> tuple[Stage, ...] | None:
    """`stages` without git, which would be started twice a patch; None where git is needed to know.

    That is binary data, a short blob id, a file that has another type than the patch says, a file where another
    needs a folder, and a result with another blob id than the patch names.
    """
    found = [first]
    for patch in patches:
        before, after = found[-1], dict(found[-1])
        tree = Tree(_reader(before.get))
        for step in _fitting(patch, tree):
            if step.mismatches or not _is_plain(step.file, before):
                return None
        for path in named([patch]):
            made = tree.get(path)
            after.pop(path, None)
            if made is not None:
                if made.data is None:
                    return None
                after[path] = (Entry(_mode(patch, path, before), made.entry.blob), made.data)
        if any(above in after for path in after for above in paths.parents(path)):
            return None
        found.append(after)
    return tuple(found)


def by_git(patches: Sequence[Patch], first: Stage) -> tuple[Stage, ...]:
    """`stages` by git, on an index that holds exactly the pre-images.

    The repository is made for this: neither a damaged store nor one that this user may only read is in the way.
    """
    current = {path: entry for path, (entry, _) in first.items()}
    found = [current]
    with scratch() as repository:
        repository.put(data for _, data in first.values())
        known = {entry.blob: data for entry, data in first.values()}
        lines = b"".join(b"%o %s\t%s\0" % (e.mode, e.blob.encode(), p) for p, e in current.items())
        repository.git("update-index", "-z", "--add", "--index-info", stdin=lines)
        for patch in patches:
            known |= _check_before(patch, current, known, repository)
            current = _apply(patch, repository)
            for file in _last_of_each(patch.files):
                _check_after(patch, file, current)
            found.append(current)
        every = {entry.blob: entry for stage in found for entry in stage.values()}
        data = dict(zip(every, repository.blobs(list(every)), strict=True))
    return tuple({path: (entry, data[entry.blob]) for path, entry in stage.items()} for stage in found)


def _reader(get: Callable[[bytes], tuple[Entry, bytes] | None]) -> Callable[[bytes], tuple[Entry, bytes] | None]:
    def read(path: bytes) -> tuple[Entry, bytes] | None:
        found = get(path)
        # A checkout may have modes of its own.
        return None if found is None else (Entry(UNKNOWN.mode, found[0].blob), found[1])

    return read


def _fitting(patch: Patch, tree: Tree) -> tuple[Step, ...]:
    """The sections of a patch on `tree`; refused where one was made from other files, or has a hunk that does not lie
    where it says: git would look for a place."""
    steps = tree.apply(patch)
    for step in steps:
        for fault in step.mismatches:
            if fault.code != "postimage":  # git's result is what counts
                where = f", line {fault.line}" if fault.line is not None else ""
                raise ForkError(
                    f"{patch.name}{where} does not fit the files that the patches before it leave",
                    found=fault.message,
                    expected="the blobs and the lines that the patch names",
                    fix=_REMADE,
                )
    return steps


def _is_plain(file: FilePatch, before: Stage) -> bool:
    """Whether a section's result follows from its text."""
    ids = [blob for blob in (file.old_blob, file.new_blob) if blob is not None]
    if file.binary or any(len(blob) != _ID_LENGTH for blob in ids):
        return False
    had = before.get(file.old_path) if file.old_path is not None else None
    return had is None or file.old_mode is None or stat.S_IFMT(had[0].mode) == stat.S_IFMT(file.old_mode)


def _mode(patch: Patch, path: bytes, before: Stage) -> int:
    """The mode that git gives to a file: its own, where the patch does not change it."""
    file = next((f for f in reversed(patch.files) if f.new_path == path), None)
    if file is not None and file.new_mode is not None and file.new_mode != file.old_mode:
        return file.new_mode
    return before[path if file is None or file.old_path is None else file.old_path][0].mode


def _apply(patch: Patch, repository: Repository) -> dict[bytes, Entry]:
    try:
        repository.git("apply", "--cached", "--unidiff-zero", "--whitespace=nowarn", "-p1", stdin=patch.diff)
    except GitFailed as e:
        raise ForkError(f"{patch.name} does not apply to the files that it names", found=e.found, fix=_REMADE) from e
    current = {}
    for line in repository.git("ls-files", "--stage", "-z").split(b"\0")[:-1]:
        meta, _, path = line.partition(b"\t")
        mode, blob, _stage = meta.split()
        current[path] = Entry(int(mode, 8), blob.decode())
    return current


def _last_of_each(files: Iterable[FilePatch]) -> Iterable[FilePatch]:
    return {file.new_path or file.old_path: file for file in files}.values()


def _check_before(
    patch: Patch, current: Mapping[bytes, Entry], known: Mapping[str, bytes], repository: Repository
) -> dict[str, bytes]:
    """Refuse a patch that does not fit, as `_fitting`.

    Args:
        known: bytes by blob id; the repository is asked for others.

    Returns:
        The bytes that the patch makes, as far as they follow from its text.
    """

    def get(path: bytes) -> tuple[Entry, bytes] | None:
        entry = current.get(path)
        if entry is None:
            return None
        return entry, known[entry.blob] if entry.blob in known else repository.read({path: entry})[path][1]

    tree = Tree(_reader(get))
    _fitting(patch, tree)
    made = (tree.get(file.new_path) for file in patch.files if file.new_path is not None)
    return {file.entry.blob: file.data for file in made if file is not None and file.data is not None}


def _check_after(patch: Patch, file: FilePatch, current: Mapping[bytes, Entry]) -> None:
    if file.new_path is None or file.new_blob is None:
        return
    have = current.get(file.new_path)
    if have is None or have.blob != file.new_blob:
        raise ForkError(
            f"{patch.name} gives another {paths.show(file.new_path)} than it says",
            found=f"blob {have.blob}" if have else "no file",
            expected=f"blob {file.new_blob}",
            fix=_REMADE,
        )
