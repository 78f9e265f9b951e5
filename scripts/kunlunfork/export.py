"""From the commits of a git tree back to patches and overlay: what would be written, file by file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork import (
    exportcheck,
    exportfiles,
    exportoverlay,
    gittree,
    history,
    messages,
    patchwrite,
    paths,
    series,
    worktree,
)
from kunlunfork import fork as forks
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.exportfiles import MadeFrom, Write
from kunlunfork.fork import STAMP_PATH, Fork
from kunlunfork.git import GitFailed
from kunlunfork.history import Group, History
from kunlunfork.messages import Text
from kunlunfork.objects import Repository
from kunlunfork.patchfile import Patch, parse_patch
from kunlunfork.patchwrite import Draft, Effect
from kunlunfork.paths import Entry
from kunlunfork.stages import Files, stages

# What lint wants of a patch and a commit may lack; said to the user.
_DEFAULTS = (("Upstream-Status", "Pending"), ("Remove-When", "not said yet"))


@dataclass(frozen=True)
class Plan:
    """What an export would do. `notes` say what was decided, `warnings` what the user should look at.

    `takes`: the id of the commit that takes what is edited in a git tree and not committed.
    """

    version: str
    root: Path
    writes: tuple[Write, ...]
    patches: tuple[Patch, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    takes: str | None = None


@dataclass(frozen=True)
class _Change:
    """A group's part in the series."""

    group: Group
    effect: Effect


def plan(content: Content, root: Path, *, include_worktree: bool = False, own_layer: bool = False) -> Plan:
    """What the commits of the git tree `root` make of patches/<pin> and overlay/<pin>.

    Args:
        include_worktree: take what is edited and not committed into the patch that changes the same file.
        own_layer: write edits of files that an older overlay layer ships into the pin's own layer.

    Raises:
        ForkError: the history is none of a fork (see `history.read`); a message that a header cannot hold.
    """
    head = gittree.head(root)
    history.check_idle(gittree.git_dir(root))
    with gittree.reading(root) as repository:
        unknown = _check_upstream(repository, root, head)
        edited = worktree.edits(repository, root, head)
        if include_worktree:
            worktree.check_staged(repository, root, head, edited)
        if edited and include_worktree:
            planned, head = make_plan(content, root, repository, head, edited, None, own_layer=own_layer)
            planned = replace(planned, takes=head, writes=(*planned.writes, *_left(content, root, planned)))
            return replace(planned, warnings=(*unknown, *planned.warnings))
        planned, _ = make_plan(content, root, repository, head, {}, None, own_layer=own_layer)
    if edited:
        unknown.append(f"not committed, so not exported: {worktree.said(edited)} (--include-worktree takes it)")
    planned = replace(planned, writes=(*planned.writes, *_left(content, root, planned)))
    return replace(planned, warnings=(*unknown, *planned.warnings))


def _left(content: Content, root: Path, planned: Plan) -> list[Write]:
    """Deletions of patches that a killed export took out of the series and did not come to delete."""
    try:
        known = exportfiles.load(gittree.state(root))
    except ForkError:
        return []  # a clone of a git tree, which --check is for
    folder = Path("patches") / planned.version
    names = {patch.name for patch in planned.patches} | {write.path.name for write in planned.writes}
    left = []
    for name, states in known.earlier.items():
        path = paths.on_disk(Path(), paths.from_text(name))
        if path.parent == folder and path.name not in names and path.suffix == series.SUFFIX and "" in states:
            have = exportfiles.blob_at(content.root / path)
            if have is not None and known.knows(name, have):
                left.append(Write(path, None, None))
    return left


def _check_upstream(repository: Repository, root: Path, head: str) -> list[str]:
    """Refuse a history whose first commit has other files than apply put there: they would be in no patch.

    Returns:
        What the user should know where that cannot be told.

    Raises:
        ForkError: (exit 3) it has.
    """
    found = history.base(repository, head, root)
    try:
        first = gittree.base_commit(root)
    except GitFailed:
        return [f"{root} has no {gittree.APPLIED}: whether upstream's commit is as apply made it cannot be told"]
    differ = patchwrite.effect(repository, first, found.id)
    if not differ:
        return []
    tree, base = shlex.quote(str(root)), found.id
    edits = f"git -C {tree} commit-tree {base}^{{tree}} -p {first} -m 'Edits of upstream'"
    raise ForkError(
        f"{root}: the commit of upstream is not as apply made it, and what it changes would be in no patch",
        found=f"commit {found.shown}", expected=f"the files of commit {first[:10]}",
        details=[f"{paths.show(path)}: changed" for path in sorted(differ)[:20]]
        + ([f"and {len(differ) - 20} more"] if len(differ) > 20 else []),
        fix=f"make a commit of its own of that: git -C {tree} rebase --onto $({edits}) {base}",
        exit_code=CONFLICT,
    )  # fmt: skip


def make_plan(
    content: Content, root: Path, repository: Repository, head: str, edited: Effect, new: Text | None, *,
    own_layer: bool,
) -> tuple[Plan, str]:  # fmt: skip
    """What the commits up to `head`, and edits on top of them, make of patches and overlay.

    Args:
        repository: sees the commits and the blobs of the edits; may be written to.
        new: what a new patch of the edits of upstream's files says; without, each joins the patch of its file.

    Returns:
        The plan, and the id of the last commit: of one that takes the edits, where there are any.

    Raises:
        ForkError: as `plan`.
    """
    notes: list[str] = []
    found = history.read(repository, head, root)
    fork = forks.load(content, found.version)
    base = repository.entries(found.base.tree)
    known = frozenset(base) | (fork.patched - frozenset(fork.overlay.files))
    if edited:
        head = worktree.commit(repository, found, edited, known, new)
        found = history.read(repository, head, root)
    changes, last, split = _split(repository, found, known)
    notes += split
    overlay = {p: e for p, e in repository.entries(last).items() if p not in known and p != STAMP_PATH}
    overlay = {p: e for p, e in overlay.items() if not any(p in c.effect for c in changes)}
    _check_overlay(root, fork, found.groups)
    other = {p: e for p, e in overlay.items() if p not in fork.overlay.files or fork.overlay.files[p].entry != e}
    effects = [change.effect for change in changes]
    exportcheck.check_overlay(repository, other, known.union(*effects))
    exportcheck.check_series(repository, effects, known)
    patches, warnings = _patches(repository, fork, base, changes)
    exportcheck.check_patches(patches)
    result = dict(repository.read(overlay))
    layers, reach = exportoverlay.plan(content, found.version, fork.overlay, result, own_layer=own_layer)
    notes += reach
    _check(replace(fork, patches=patches), repository, base, changes)
    folder = Path("patches") / found.version
    writes = (*_patch_writes(folder, fork, patches), *layers, *_series_writes(content, folder, fork, patches))
    return Plan(found.version, root, writes, patches, tuple(notes), tuple(warnings)), head


def _check_overlay(root: Path, fork: Fork, groups: Sequence[Group]) -> None:
    if fork.overlay.files and not any(group.is_overlay for group in groups):
        raise ForkError(
            f"{root}: the commit of the overlay is gone",
            found=f"no commit with the line `{messages.OVERLAY}`",
            expected=f"it, or every file of overlay/{fork.pin.version} would be deleted",
            fix="bring it back: git cherry-pick, from git reflog",
            exit_code=CONFLICT,
        )


def _split(repository: Repository, found: History, known: frozenset[bytes]) -> tuple[list[_Change], str, list[str]]:
    """Each group's part in the series; the last tree; what to say.

    A file that upstream has, or that a patch makes of one, belongs to the series, any other to the overlay.
    """
    series_paths = set(known)
    changes, notes = [], []
    last = found.base.tree
    for group in found.groups:
        last = group.after
        every = patchwrite.effect(repository, group.before, group.after)
        every.pop(STAMP_PATH, None)
        new = [p for p in every if p not in series_paths]
        if new and any(now is None for p, (_, now) in every.items() if p in series_paths):
            renamed = patchwrite.renames(repository, group.before, group.after, every)
            series_paths.update(p for p in new if p in renamed and renamed[p] in series_paths)
        own = {p: value for p, value in every.items() if p in series_paths}
        if own:
            changes.append(_Change(group, own))
        if own and len(own) < len(every):
            notes.append(f"commit {group.first.shown} changes patched files and overlay files: split")
        if not every:
            notes.append(f"commit {group.first.shown} changes nothing: left out")
    return changes, last, notes


def _patches(
    repository: Repository, fork: Fork, base: Mapping[bytes, Entry], changes: Sequence[_Change]
) -> tuple[tuple[Patch, ...], list[str]]:
    kept = {patch.name: patch for patch in fork.patches}
    was: dict[str, Effect] | None
    try:
        was = _effects(fork, repository, base)
    except ForkError:
        was = None  # a killed export left some patches old and some new
    patches: list[Patch] = []
    warnings: list[str] = []
    names = _names([change.group for change in changes])
    for change, name in zip(changes, names, strict=True):
        group = change.group
        text = group.text
        missing = [field for field in _DEFAULTS if text.get(field[0]) is None]
        if missing and not (name in kept and all(kept[name].header.get(field) is None for field, _ in missing)):
            text = replace(text, fields=(*text.fields, *missing))
            warnings.append(f"{name}: say {' and '.join(n for n, _ in missing)} at the end of the commit's message")
        diff = patchwrite.diff(repository, group.before, group.after, change.effect)
        draft = Draft(name, text, diff, f"commit {group.first.shown}")

        def old(path: bytes, effect: Effect = change.effect) -> bytes:
            entry = effect[path][0]
            assert entry is not None
            return next(repository.blobs([entry.blob]))

        same = was.get(name) == change.effect if was is not None else _claims(kept.get(name), change.effect)
        raw = patchwrite.write(draft, old, kept.get(name), same_diff=same, version=fork.pin.version)
        patches.append(parse_patch(name, raw))
    return tuple(patches), warnings


def _effects(fork: Fork, repository: Repository, base: Mapping[bytes, Entry]) -> dict[str, Effect]:
    """What each patch of the series as it is does to files, where it fits this upstream."""
    here = repository.read({p: base[p] for p in fork.patched if p in base})
    files: Files = {p: here.get(p) for p in fork.touched}
    found = stages(fork.patches, files)
    effects = {}
    for patch, was, now in zip(fork.patches, found[:-1], found[1:], strict=True):
        before, after = ({p: e for p, (e, _) in stage.items()} for stage in (was, now))
        pairs = {p: (before.get(p), after.get(p)) for p in {*before, *after}}
        effects[patch.name] = {p: pair for p, pair in pairs.items() if pair[0] != pair[1]}
    return effects


def _claims(patch: Patch | None, effect: Effect) -> bool:
    """Whether a patch says that it does this; only known of edits in place."""
    claims = {}
    for file in patch.files if patch is not None else ():
        if file.old_path is None or file.old_path != file.new_path:
            return False
        claims[file.old_path] = (file.old_blob, file.new_blob, file.old_mode != file.new_mode)
    return claims == {
        path: (was.blob, now.blob, was.mode != now.mode) if was and now else None for path, (was, now) in effect.items()
    }


def _names(groups: Sequence[Group]) -> list[str]:
    """A file name for each: that of its commit's line, else one made of its subject; each once."""
    taken: set[str] = set()
    names = []
    for group in groups:
        name = group.patch
        if name is not None and not series.is_plain(name):
            raise ForkError(
                f"commit {group.first.shown} names a file that is none of the series", found=name,
                expected=f"`{messages.PATCH}: NAME{series.SUFFIX}`", fix="reword the commit: git rebase -i upstream",
            )  # fmt: skip
        names.append(name if name is not None and name not in taken else "")
        taken.add(names[-1])
    for i, group in enumerate(groups):
        if not names[i]:
            names[i] = _fresh(group.text.subject, taken)
            taken.add(names[i])
    return names


def _fresh(subject: str, taken: Iterable[str]) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:52].rstrip("-") or "patch"
    name, count = f"{stem}{series.SUFFIX}", 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}{series.SUFFIX}"
    return name


def _check(fork: Fork, repository: Repository, base: Mapping[bytes, Entry], changes: Sequence[_Change]) -> None:
    """Apply the patches that would be written, and compare with the commits."""
    if list(_effects(fork, repository, base).values()) != [change.effect for change in changes]:
        raise AssertionError("the exported series does not give the files of the commits")


def _patch_writes(folder: Path, fork: Fork, patches: Sequence[Patch]) -> list[Write]:
    old, new = ({p.name: p.raw for p in some} for some in (fork.patches, patches))
    writes = [Write(folder / name, raw, None) for name, raw in new.items() if old.get(name) != raw]
    return writes + [Write(folder / name, None, None) for name in old if name not in new]


def _series_writes(content: Content, folder: Path, fork: Fork, patches: Sequence[Patch]) -> list[Write]:
    names = [patch.name for patch in patches]
    if names == [patch.name for patch in fork.patches]:
        return []
    raw = (content.root / folder / series.SERIES).read_bytes()
    return [Write(folder / series.SERIES, series.rewrite(raw, names), None)]


def carry_out(content: Content, root: Path, planned: Plan) -> None:
    """Write the files of an export into the clone.

    Raises:
        ForkError: (exit 3) the clone has other files by now than the tree was made from; a file cannot be written.
    """
    state = gittree.state(root)
    known = exportfiles.load(state)
    refuse_newer(content, root, planned, known)
    if planned.takes is not None:
        # Else the next export would find the edits in no commit, and take them out of the patches again.
        with gittree.writing(root) as repository:
            head = gittree.head(root)
            edited = worktree.edits(repository, root, head)
            _, head = make_plan(content, root, repository, head, edited, None, own_layer=False)
            if head != planned.takes:
                raise ForkError(f"files in {root} changed meanwhile", fix="run the command again")
        gittree.advance(root, head)
    # Before: what a killed export leaves is ours, too.
    noted = known.noting({each.name: each.known_as or "" for each in planned.writes})
    exportfiles.save(state, known.files, exportfiles.clone(state) or content.root, earlier=noted.earlier)
    exportfiles.write(content.root, planned.writes)
    remember(content, root, planned)


def remember(content: Content, root: Path, planned: Plan) -> None:
    """Note that the clone has all that the git tree has, whoever put it there (raises `ForkError`)."""
    exportfiles.sweep(content.root)
    state = gittree.state(root)
    known = exportfiles.load(state)
    after = known.after(exportfiles.made_from(forks.load(content, planned.version)))
    if after != known:
        exportfiles.save(state, after.files, content.root, earlier=after.earlier)


def refuse_newer(content: Content, root: Path, planned: Plan, made_from: MadeFrom) -> None:
    """Refuse to write over files of the clone that are not what the tree was made from (`ForkError`, exit 3)."""
    newer = []
    for write in planned.writes:
        if write.path.name == series.SERIES and write.name not in made_from.files:
            continue  # a tree of an earlier kunlunfork
        have = write.found(content.root)
        if have != write.known_as and not made_from.knows(write.name, have):
            newer.append(f"{write.path}: {'changed' if have else 'deleted'} in the clone since")
    if newer:
        tree = shlex.quote(str(root))
        raise ForkError(
            f"{content.root} has changed since {root} was made from it; the export would lose that",
            details=newer,
            fix="in the clone, go back to the commit that the tree was made from (git switch), export there, and let "
            f"git merge both; or make a new tree beside {tree} and git cherry-pick your commits",
            exit_code=CONFLICT,
        )
