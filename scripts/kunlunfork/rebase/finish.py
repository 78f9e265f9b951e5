"""The result of a rebase as files: the patches on the new release, the series, the pin, what was resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import messages, patchwrite, pins, series
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import Patch, parse_patch
from kunlunfork.paths import Entry
from kunlunfork.pins import Pin
from kunlunfork.rebase import start
from kunlunfork.rebase.carry import Change
from kunlunfork.rebase.outcome import UPSTREAMED, Outcome
from kunlunfork.rebase.session import Skip
from kunlunfork.rebase.treestore import Effect, TreeStore

PIN = "pin.toml"
_MARK = "# left out by rebase: "


@dataclass(frozen=True)
class Source:
    """The series that is carried: its patches, its `series` file, and whose it is."""

    folder: Path
    patches: tuple[Patch, ...]
    raw: bytes
    own: bool


def load(folder: Path, *, own: bool) -> Source:
    """Read a series (raises `ForkError`)."""
    patches = series.load_series(folder)
    return Source(folder, patches, (folder / series.SERIES).read_bytes(), own)


def patch_files(
    store: TreeStore, source: Source, first: Sequence[Change], last: Sequence[Change], onto: str
) -> tuple[Patch, ...]:
    """The patches on the new release.

    Args:
        first: the changes on the release that the series is for, from which a patch that did not change is told.
        last: those on the new one.
    """
    was = {change.name: store.effect(change.before, change.after) for change in first}
    by_name = {patch.name: patch for patch in source.patches}
    made = []
    for change in last:
        effect = store.effect(change.before, change.after)
        raw = _write(store, by_name[change.name], change, effect, onto, same=was[change.name] == effect, own=source.own)
        made.append(parse_patch(change.name, raw))
    return tuple(made)


def _write(
    store: TreeStore, patch: Patch, change: Change, effect: Effect, onto: str, *, same: bool, own: bool
) -> bytes:
    if same:
        return patch.raw
    diff = patchwrite.diff(store.repository, change.before, change.after, effect)

    def old(path: bytes) -> bytes:
        entry: Entry | None = effect[path][0]
        assert entry is not None
        return store.blob(entry.blob)

    if not own and patch.header.get(messages.TOUCHES) is None:
        # Someone else's header has no fields of ours, and gets none.
        return messages.header_of(patch) + diff
    draft = patchwrite.Draft(patch.name, messages.of_patch(patch, onto), diff, patch.name)
    return patchwrite.write(draft, old, patch, same_diff=False, version=onto)


def check(store: TreeStore, tree: str, pin: Pin, patches: Sequence[Patch], last: Sequence[Change]) -> None:
    """Apply what would be written, and compare with the trees of the merge."""
    made = start.changes(store, tree, pin, patches)
    if [change.after for change in made] != [change.after for change in last]:
        raise AssertionError("the patches do not give the trees that the rebase made")


def series_file(source: Source, patches: Sequence[Patch], outcomes: Sequence[Outcome], skips: Sequence[Skip]) -> bytes:
    """The series: its comments stay; what was left out is said at its end."""
    kept = b"".join(line for line in source.raw.splitlines(keepends=True) if not line.startswith(_MARK.encode()))
    lines = []
    names = {patch.name for patch in patches}
    for outcome in outcomes:
        if outcome.kind == UPSTREAMED and outcome.patch not in names:
            lines.append(f"{_MARK}{outcome.patch}: upstream has it in {outcome.version}")
    lines += [f"{_MARK}{skip.patch}: skipped at {skip.version}: {_one_line(skip.why)}" for skip in skips]
    return series.rewrite(kept, [patch.name for patch in patches]) + "".join(f"{x}\n" for x in lines).encode()


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def files(source: Source, patches: Sequence[Patch], series_raw: bytes, pin: Pin | None) -> Mapping[str, bytes]:
    """The files of the folder of the result."""
    found = {patch.name: patch.raw for patch in patches}
    found[series.SERIES] = series_raw
    if pin is not None:
        found[PIN] = pins.dump(pin)
    return found


def provisional_pin(version: str) -> Pin:
    """Names a release in messages, where no pin is made of it."""
    return Pin(version, f"v{version}", "0" * 9, "", "", 1, "", "0", "", False)


def refuse_pin(folder: Path, onto: str) -> None:
    """Refuse to carry a series to where one is already (raises `ForkError`)."""
    if (folder / series.SERIES).exists() or any(folder.glob(f"*{series.SUFFIX}")):
        raise ForkError(
            f"the fork has patches for vLLM {onto} already", found=str(folder), expected="none: at most a pin.toml",
            fix=f"carry it further, or remove that folder first: git rm -r {folder.name}, in {folder.parent}",
        )  # fmt: skip
