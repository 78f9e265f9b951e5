"""One version of the fork: a pin, its series and its overlay; and what they make of an upstream tree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from kunlunfork import overlay, patchrules, paths, series
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.git import GitFailed
from kunlunfork.objects import Repository, scratch
from kunlunfork.overlay import Overlay
from kunlunfork.patchfile import FilePatch, Patch
from kunlunfork.patchlines import REMAKE
from kunlunfork.paths import REGULAR, SYMLINK, Entry
from kunlunfork.pins import Pin
from kunlunfork.preimage import UNKNOWN, Tree

# Written by apply, read by `stamp.py` of the overlay: which fork this tree is.
STAMP_PATH = b"vllm/v1/worker/gpu/kunlun/_build.py"

_REMADE = f"see: kunlunfork lint; then edit a git tree and {REMAKE}"

Files = dict[bytes, tuple[Entry, bytes] | None]


@dataclass(frozen=True)
class Fork:
    """`link`: in the tree, the overlay's files are symbolic links to where they lie."""

    pin: Pin
    patches: tuple[Patch, ...]
    overlay: Overlay
    link: bool = False

    @cached_property
    def series_hash(self) -> str:
        return series.series_hash(self.patches)

    @cached_property
    def overlay_hash(self) -> str:
        return self.overlay.hash

    @cached_property
    def patched(self) -> frozenset[bytes]:
        """Every path that the series names, before or after."""
        return frozenset(p for patch in self.patches for f in patch.files for p in (f.old_path, f.new_path) if p)

    @cached_property
    def added(self) -> Mapping[bytes, tuple[Entry, bytes]]:
        """The overlay's files and the stamp."""
        files = {path: (file.entry, file.data) for path, file in self.overlay.files.items()}
        if self.link:
            for path, file in self.overlay.files.items():
                data = os.fsencode(file.source.absolute())
                files[path] = (Entry(SYMLINK, paths.blob_id(data)), data)
        stamp = (
            "# SPDX-License-Identifier: Apache-2.0\n"
            "# Written by `kunlunfork apply`: the fork that this tree carries.\n"
            f'PIN = "{self.pin.version}"\nSERIES = "{self.series_hash}"\nOVERLAY = "{self.overlay_hash}"\n'
        ).encode()
        files[STAMP_PATH] = (Entry(REGULAR, paths.blob_id(stamp)), stamp)
        return files

    @property
    def touched(self) -> frozenset[bytes]:
        return self.patched | frozenset(self.added)


def load(content: Content, version: str) -> Fork:
    """The fork of a release (raises `ForkError` where the pin, a patch or an overlay file is not valid)."""
    pin = content.pin(version)
    fork = Fork(pin, series.load_series(content.patches / pin.version), overlay.resolve(content.overlay, pin.version))
    for patch in fork.patches:
        for fault in patchrules.faults(patch):
            raise ForkError(
                f"{patch.name}, line {fault.line}: {fault.message}",
                expected="a patch that kunlunfork lint finds nothing in",
                fix=fault.fix,
            )
    both = sorted(fork.patched & frozenset(fork.added))
    if both:
        raise ForkError(
            f"patches/{pin.version} edits files that the overlay ships",
            details=[paths.show(p) for p in both],
            fix="move the edit into the overlay file; the patch is named by: kunlunfork lint",
        )
    return fork


def linked(fork: Fork, content: Content) -> Fork:
    """The same fork whose overlay is linked (raises `ForkError` where it lies inside the package, which may go)."""
    if not content.clone:
        raise ForkError(
            "links lead into a clone, and there is none", found="the content inside the installed package",
            fix="stand in a clone, or name it: --repo DIR",
        )  # fmt: skip
    return replace(fork, link=True)


def check_base(fork: Fork, base: Files, *, where: str) -> None:
    """Refuse a tree on which the fork would not land byte for byte.

    Args:
        base: what lies at each of `fork.touched` before the fork.
        where: the tree's name, for the message.

    Raises:
        ForkError: (exit 3) a patched file has another blob than its patch was made from, or an overlay path is taken.
    """
    wrong: list[str] = []
    seen: set[bytes] = set()
    for patch in fork.patches:
        for file in patch.files:
            if file.old_path is not None and file.old_path not in seen:
                have = base.get(file.old_path)
                if have is None or (file.old_blob is not None and have[0].blob != file.old_blob):
                    found = "missing" if have is None else f"blob {have[0].blob[:12]}"
                    expected = f"blob {file.old_blob[:12]}" if file.old_blob else "a file"
                    wrong.append(f"{paths.show(file.old_path)}: found {found}, {patch.name} expects {expected}")
            elif file.old_path is None and file.new_path not in seen and base.get(file.new_path or b"") is not None:
                wrong.append(f"{paths.show(file.new_path or b'')}: {patch.name} adds it, but it is already there")
            seen.update(p for p in (file.old_path, file.new_path) if p)
    taken = [
        f"{paths.show(p)}: the overlay ships it, but it is already there" for p in fork.added if base.get(p) is not None
    ]
    if wrong or taken:
        raise ForkError(
            f"{where} is not vLLM {fork.pin.version} as released: someone else changed files that the fork edits",
            found=f"{len(wrong) + len(taken)} files differ",
            expected=f"the files of {fork.pin.tag} ({fork.pin.commit[:9]})",
            details=[*wrong, *taken],
            fix="use an untouched tree, or take a fresh one: kunlunfork apply --vllm " + fork.pin.version,
            exit_code=CONFLICT,
        )


Stage = dict[bytes, tuple[Entry, bytes]]


def stages(fork: Fork, base: Files) -> tuple[Stage, ...]:
    """The patched files that are there before the first patch and after each.

    Each patch is applied by git to an index that holds exactly the pre-images, then every result is compared with the
    blob id that the patch names: nothing is ever placed by its context alone. The repository is made for this: neither
    a damaged store nor one that this user may only read is in the way.

    Raises:
        ForkError: a patch does not give what it says.
    """
    current: dict[bytes, Entry] = {p: have[0] for p in sorted(fork.patched) if (have := base.get(p)) is not None}
    found = [current]
    with scratch() as repository:
        repository.put(have[1] for p in current if (have := base[p]) is not None)
        known = {have[0].blob: have[1] for have in base.values() if have is not None}
        lines = b"".join(b"%o %s\t%s\0" % (e.mode, e.blob.encode(), p) for p, e in current.items())
        repository.git("update-index", "-z", "--add", "--index-info", stdin=lines)
        for patch in fork.patches:
            known |= _check_before(patch, current, known, repository)
            current = _apply(patch, repository)
            for file in _last_of_each(patch.files):
                _check_after(patch, file, current)
            found.append(current)
        every = {entry.blob: entry for stage in found for entry in stage.values()}
        data = dict(zip(every, repository.blobs(list(every)), strict=True))
    return tuple({path: (entry, data[entry.blob]) for path, entry in stage.items()} for stage in found)


def build(fork: Fork, base: Files) -> Files:
    """What lies at each of `fork.touched` after the series and the overlay (raises as `stages`)."""
    result: Files = dict.fromkeys(fork.touched)
    for path, (entry, data) in stages(fork, base)[-1].items():
        had = base.get(path)
        # A patch that says nothing of the mode leaves the one that is there (a checkout may have its own).
        keep = had is not None and path not in mode_changes(fork)
        result[path] = (Entry(had[0].mode if keep and had else entry.mode, entry.blob), data)
    result.update(fork.added)
    for path, value in result.items():
        if value is not None and value[0].mode == SYMLINK and not (fork.link and path in fork.overlay.files):
            paths.check_symlink(path, value[1], where=f"the fork of vLLM {fork.pin.version}")
    return result


def mode_changes(fork: Fork) -> frozenset[bytes]:
    return frozenset(
        f.new_path for patch in fork.patches for f in patch.files if f.new_path and f.old_mode != f.new_mode
    )


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
    """Refuse a patch that was made from other files, or with a hunk that does not lie where it says: git would look
    for a place.

    Args:
        known: bytes by blob id; the repository is asked for others.

    Returns:
        The bytes that the patch makes, as far as they follow from its text.
    """

    def read(path: bytes) -> tuple[Entry, bytes] | None:
        entry = current.get(path)
        if entry is None:
            return None
        data = known[entry.blob] if entry.blob in known else repository.read({path: entry})[path][1]
        return Entry(UNKNOWN.mode, entry.blob), data  # a checkout may have modes of its own

    tree = Tree(read)
    for step in tree.apply(patch):
        for fault in step.mismatches:
            if fault.code != "postimage":  # git's result is what counts
                where = f", line {fault.line}" if fault.line is not None else ""
                raise ForkError(
                    f"{patch.name}{where} does not fit the files that the patches before it leave",
                    found=fault.message,
                    expected="the blobs and the lines that the patch names",
                    fix=_REMADE,
                )
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
