"""A conflict as a small work tree: the files at stake, git's three stages of each, and what upstream did."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import commits, git, gittree, messages, paths, steps
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.objects import Repository
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry
from kunlunfork.rebase import check, outcome
from kunlunfork.rebase.engine import Stop
from kunlunfork.rebase.outcome import Conflict
from kunlunfork.rebase.session import Session, key_of
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.scopes import is_python

_NOTE = "kunlunfork.json"
Found = dict[bytes, tuple[int, bytes] | None]


@dataclass(frozen=True)
class _Note:
    """What a work tree was made for, upstream's files in it as a tree, and what was written: path -> blob id, '' for
    nothing."""

    keys: tuple[str, ...]
    tree: str
    written: Mapping[str, str]


def write(store: TreeStore, work: Path, stop: Stop) -> None:
    """Make the work tree of a conflict; one that is there for the same conflict stays, with what was done in it.

    Raises:
        ForkError: it cannot be written.
    """
    conflicts = stop.outcome.conflicts
    keys = tuple(key_of(conflict) for conflict in conflicts)
    note = _note(work)
    if note is not None and note.keys == keys:
        return
    steps.checkpoint("rebase: work tree")
    new, old = work.with_name(f"{work.name}.new"), work.with_name(f"{work.name}.old")
    try:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
        _make(store, new, stop, keys)
        steps.checkpoint("rebase: name work tree")
        if work.exists():
            # Its conflict is settled, and what was done in it is in the state.
            work.replace(old)
        steps.checkpoint("rebase: work tree between")
        new.replace(work)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise ForkError(f"{e.filename or work} cannot be written", found=e.strerror or str(e)) from e


def _make(store: TreeStore, folder: Path, stop: Stop, keys: tuple[str, ...]) -> None:
    conflicts = stop.outcome.conflicts
    git.run(["init", "--quiet", "--template=", folder])
    repository = Repository(folder / ".git")
    (repository.path / "info").mkdir(exist_ok=True)
    (repository.path / "info" / "attributes").write_text(gittree.ATTRIBUTES)
    repository.git("config", "merge.conflictStyle", "diff3")
    beside = {p: store.get(stop.partial, p) for c in conflicts for p in c.candidates}
    entries: dict[bytes, Entry | None] = {**beside, **{c.path: c.new for c in conflicts}}
    every = [e for c in conflicts for e in (c.old, c.new, c.ours) if e is not None]
    every += [e for e in beside.values() if e is not None]
    repository.put({e.blob: store.blob(e.blob) for e in every}.values())
    head = {path: e for path, e in entries.items() if e is not None}
    _index(repository, [(e, 0, p) for p, e in head.items()])
    text = messages.Text("kunlunfork", "kunlunfork@invalid", 0, "+0000", f"vLLM {stop.rung.version}", b"", ())
    tree = repository.git("write-tree").decode().strip()
    repository.git("update-ref", "HEAD", commits.write(repository, tree, None, text))
    rows = [(e, 0, p) for p, e in beside.items() if e is not None and p not in {c.path for c in conflicts}]
    for conflict in conflicts:
        sides = ((conflict.old, 1), (conflict.new, 2), (conflict.ours, 3))
        rows += [(e, stage, conflict.path) for e, stage in sides if e is not None]
    repository.git("read-tree", "--empty")
    _index(repository, rows)
    written = {}
    for path, entry in beside.items():
        if entry is not None:
            _put(folder, path, entry.mode, store.blob(entry.blob))
    for conflict in conflicts:
        shown = _shown(store, conflict, stop)
        if shown is not None:
            _put(folder, conflict.path, *shown)
        written[paths.to_text(conflict.path)] = "" if shown is None else paths.blob_id(shown[1])
    body = {"keys": keys, "tree": tree, "written": written}
    (repository.path / _NOTE).write_text(json.dumps(body), encoding="utf-8")


def _index(repository: Repository, rows: list[tuple[Entry, int, bytes]]) -> None:
    lines = b"".join(b"%o %s %d\t%s\0" % (e.mode, e.blob.encode(), stage, path) for e, stage, path in rows)
    repository.git("update-index", "-z", "--add", "--index-info", stdin=lines)


def _put(folder: Path, path: bytes, mode: int, data: bytes) -> None:
    full = paths.on_disk(folder, paths.check(path, where="the conflict"))
    full.parent.mkdir(parents=True, exist_ok=True)
    if mode == SYMLINK:
        full.symlink_to(os.fsdecode(data))
    else:
        full.write_bytes(data)
        full.chmod(0o755 if mode == EXECUTABLE else 0o644)


def _shown(store: TreeStore, conflict: Conflict, stop: Stop) -> tuple[int, bytes] | None:
    """The file that a person finds: with markers where lines conflict, else the side that has one."""
    if conflict.kind == outcome.SCOPE and conflict.merged is not None:
        return conflict.merged.mode, store.blob(conflict.merged.blob)
    lines = (conflict.new, conflict.ours)
    if conflict.kind in (outcome.CONTENT, outcome.ADD_ADD) and all(e is not None and e.mode != SYMLINK for e in lines):
        assert conflict.new is not None and conflict.ours is not None
        old = store.data(conflict.old) or b""
        data = [store.blob(conflict.new.blob), old, store.blob(conflict.ours.blob)]
        if not any(b"\0" in text for text in data):
            name = stop.change.name
            labels = (
                f"vLLM {stop.rung.version}",
                f"vLLM {stop.before.version}",
                f"{name} on vLLM {stop.before.version}",
            )
            return conflict.new.mode, _markers(data, labels)
    entry = conflict.new or conflict.ours
    return None if entry is None else (entry.mode, store.blob(entry.blob))


def _markers(data: list[bytes], labels: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kunlunfork-") as name:
        files = [Path(name) / side for side in ("new", "old", "ours")]
        for file, text in zip(files, data, strict=True):
            file.write_bytes(text)
        named = [arg for label in labels for arg in ("-L", label)]
        try:
            return git.run(["merge-file", "-p", "--diff3", *named, *files])
        except git.GitFailed as e:
            # The exit status is the number of conflicts, and 255 an error.
            if not 0 < e.returncode < 128 or not e.stdout:
                raise
            return e.stdout


def _note(work: Path) -> _Note | None:
    try:
        raw = json.loads((work / ".git" / _NOTE).read_bytes())
        return _Note(tuple(raw["keys"]), str(raw["tree"]), dict(raw["written"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read(session: Session, stop: Stop) -> Found:
    """What a person made of the files in a work tree: path -> (mode, bytes), None where the file goes.

    Raises:
        ForkError: (exit 3) a file still has markers, does not parse, or nothing says that it is resolved.
    """
    work = session.work
    note = _note(work)
    if note is None or note.keys != tuple(key_of(c) for c in stop.outcome.conflicts):
        raise ForkError(
            f"{work} is not the work tree of this conflict", found="another one, or a damaged one",
            expected="the one that rebase made",
            fix=f"move it away, and have it made again: {session.command('status')}", exit_code=CONFLICT,
        )  # fmt: skip
    unmerged, head = _in_git(work, note.tree)
    found: Found = {}
    problems: list[str] = []
    for conflict in stop.outcome.conflicts:
        path = conflict.path
        have = _file(work, path)
        shown = paths.show(path)
        was = note.written.get(paths.to_text(path), "")
        if path in unmerged and ("" if have is None else paths.blob_id(have[1])) == was:
            problems.append(f"{shown}: as it was left for you ({conflict.kind}); edit it, or say git add or git rm")
            continue
        found[path] = have
        fault = None if have is None or have[0] == SYMLINK else check.fault(have[1], python=is_python(path))
        if fault is not None:
            problems.append(f"{shown}, {fault}" if fault.startswith("line") else f"{shown}: {fault}")
    for path in sorted({*head, *_files(work)} - {c.path for c in stop.outcome.conflicts}):
        have = _file(work, path)
        if have is None or have[0] == SYMLINK or paths.blob_id(have[1]) != head.get(path):
            if have is not None and is_python(path) and (fault := check.fault(have[1], python=True)) is not None:
                problems.append(f"{paths.show(path)}, {fault}")
            found[path] = have
    if problems:
        raise ForkError(
            f"{stop.change.name}: the conflict with vLLM {stop.rung.version} is not resolved", details=problems,
            expected=f"the files in {work} as they should be", fix=f"edit them, then: {session.command('continue')}",
            exit_code=CONFLICT,
        )  # fmt: skip
    return found


def _in_git(work: Path, tree: str) -> tuple[set[bytes], dict[bytes, str]]:
    """The paths that git holds for unmerged, and the blobs of a tree (HEAD may be a commit of the user's by now)."""
    # The work tree's own repository, by its name: none above it.
    rows = git.run(["ls-files", "-u", "-z"], git_dir=work / ".git", cwd=work).split(b"\0")[:-1]
    head = git.run(["ls-tree", "-r", "-z", tree], git_dir=work / ".git").split(b"\0")[:-1]
    blobs = {path: meta.split()[2].decode() for meta, _, path in (row.partition(b"\t") for row in head)}
    return {row.partition(b"\t")[2] for row in rows}, blobs


def _files(work: Path) -> set[bytes]:
    found = set()
    for top, folders, names in os.walk(work):
        if Path(top) == work:
            folders.remove(".git")
        folders[:] = [f for f in folders if f != "__pycache__"]
        links = [f for f in folders if (Path(top) / f).is_symlink()]
        # What mergetool and editors leave is nobody's resolution.
        keep = [n for n in (*names, *links) if not n.endswith((".orig", ".rej", ".swp", "~", ".pyc"))]
        found |= {paths.from_disk((Path(top) / name).relative_to(work)) for name in keep}
    return found


def _file(work: Path, path: bytes) -> tuple[int, bytes] | None:
    read = paths.read_entry(work, path)
    if read is None:
        return None
    entry, data = read
    if entry.mode == SYMLINK:
        paths.check_symlink(path, data, where=str(work))
        return SYMLINK, data
    st = paths.on_disk(work, path).stat()
    return (EXECUTABLE if st.st_mode & stat.S_IXUSR else REGULAR), data
