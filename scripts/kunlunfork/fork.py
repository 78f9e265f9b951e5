"""One version of the fork: a pin, its series and its overlay; and what they make of an upstream tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from kunlunfork import overlay, patchrules, paths, series
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.overlay import Overlay
from kunlunfork.patchfile import Patch
from kunlunfork.paths import REGULAR, SYMLINK, Entry
from kunlunfork.pins import Pin
from kunlunfork.stages import Files, named, stages

# Written by apply, read by `stamp.py` of the overlay: which fork this tree is.
STAMP_PATH = b"vllm/v1/worker/gpu/kunlun/_build.py"


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
        return named(self.patches)

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


def build(fork: Fork, base: Files) -> Files:
    """What lies at each of `fork.touched` after the series and the overlay (raises as `stages.stages`)."""
    result: Files = dict.fromkeys(fork.touched)
    for path, (entry, data) in stages(fork.patches, base)[-1].items():
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
