"""Which vLLM there is, and who has changed it: by its files and metadata alone."""

from __future__ import annotations

import _imp
import shlex
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import cache, paths, pycache, status, transaction
from kunlunfork import target as targets
from kunlunfork.content import Content
from kunlunfork.doctor.check import Check, listed, of_error
from kunlunfork.errors import ForkError
from kunlunfork.lock import Lock
from kunlunfork.record import read_record, verify_record
from kunlunfork.sources.distinfo import dist_infos, is_vllm
from kunlunfork.sources.interpreter import Interpreter
from kunlunfork.sources.tree import git_state
from kunlunfork.store import Store
from kunlunfork.target import Target

# What the fork's overlay brings, and upstream has nothing of.
_OVERLAY = Path("vllm/v1/worker/gpu/kunlun")


@dataclass(frozen=True)
class Wanted:
    """Which vLLM is meant: `tree`; the one installed in `python` (`installed`); or whichever is there."""

    tree: Path | None
    installed: bool
    python: Path | None


def find(wanted: Wanted, interpreter: Interpreter | None) -> tuple[Target | None, Check]:
    """The vLLM that is meant. That there is none is bad only where one was named."""
    try:
        found = _find(wanted, interpreter)
    except ForkError as e:
        return None, of_error("vllm", e)
    if found is None:
        where = "this folder" if interpreter is None else f"this folder or {interpreter.executable}"
        return None, Check("vllm", "note", f"none in {where}", "name it: kunlunfork doctor TREE, or --python EXE")
    info = found.info
    text = f"{info.version or 'of unknown version'} in {found.root} ({info.dist_name or 'vllm'}, {info.kind})"
    return found, Check("vllm", "ok", text)


def _find(wanted: Wanted, interpreter: Interpreter | None) -> Target | None:
    if wanted.tree is not None:
        return targets.of_tree(wanted.tree)
    if not wanted.installed and wanted.python is None:
        here = Path.cwd()
        for folder in (here, *here.parents):
            if targets.is_fork(folder):
                return targets.of_tree(folder)
    if interpreter is None or not (wanted.installed or any(_traces(f) for f in interpreter.folders)):
        return None
    return targets.installed(wanted.python)


def _traces(folder: Path) -> bool:
    """Whether something in a site folder claims to be vLLM."""
    return (folder / "vllm").is_dir() or any(is_vllm(path.name) for path in dist_infos(folder))


@dataclass(frozen=True)
class Patched:
    """Who has changed a tree; `lock` where it was the fork, `whole` where nothing else has changed that since."""

    check: Check
    lock: Lock | None
    whole: bool


def check_patched(target: Target, content: Content | None) -> Patched:
    """Our lock, else files that differ from the release."""
    try:
        found = status.read(target, content)
    except ForkError as e:
        return Patched(of_error("patched by", e), None, False)
    lock = found.lock
    if found.state == "upstream":
        return Patched(_others(target, content), None, False)
    if found.state != "applied" or lock is None:
        text = f"kunlunfork, {found.state}" + (f": {found.interrupted}" if found.interrupted else "")
        details = listed(found.edits)
        # In a git tree the edits are its author's, and wait for an export.
        authored = found.state == "edited" and target.state == git_state(target.root)
        return Patched(Check("patched by", "note" if authored else "bad", text, found.fix, details), lock, False)
    text = f"kunlunfork {lock.version}, {len(lock.patches)} patches, overlay {lock.overlay_hash[:12]}"
    if found.current is False:
        return Patched(Check("patched by", "note", f"{text}: older than this kunlunfork's", found.fix), lock, True)
    return Patched(Check("patched by", "ok", text), lock, True)


def _others(target: Target, content: Content | None) -> Check:
    """Of a tree without our lock: what else was done to it."""
    root = target.root
    if (root / _OVERLAY).is_dir():
        again = transaction.command(root, "apply")
        return Check(
            "patched by", "bad", f"{_OVERLAY} is there, but no lock of kunlunfork says how it came there",
            f"take a fresh vLLM of the release, then {again}",
        )  # fmt: skip
    try:
        known = None if content is None else Store(cache.default().store)
        upstream = None if known is None or content is None else status.upstream_of(target, known, content)
    except ForkError as e:
        return Check("patched by", "note", f"nobody, as far as can be told ({e.message})", e.fix)
    if upstream is None:
        return Check("patched by", "note", "not kunlunfork; the store does not have the release to compare with")
    differ, count = status.compare(root, upstream, frozenset(), whole=target.info.layout == "plain")
    if not differ:
        return Check("patched by", "ok", f"nobody: {count} files are as released")
    return Check("patched by", "note", f"{len(differ)} of {count} files are not as released", None, listed(differ))


def check_record(target: Target, lock: Lock | None, fix: str | None) -> Check | None:
    """Whether pip's list of an installed vLLM is true: of the fork's files, else of all its Python files.

    `fix` is what `check_patched` says: a RECORD that was changed is an edit.
    """
    info = target.info.dist_info
    if info is None:
        return None
    try:
        data = paths.read_plain(info / "RECORD")
        ours = [p for p, h in (lock.files if lock else {}).items() if h.role != "record" and h.post is not None]
        every = [p for p in read_record(data) if p.startswith(b"vllm/") and p.endswith(b".py")]
        wrong = verify_record(target.root, data, ours or every)
    except OSError as e:
        return Check("RECORD", "bad", f"{info / 'RECORD'} cannot be read: {e.strerror}", "install vLLM again")
    except ForkError as e:
        return of_error("RECORD", e)
    if not wrong:
        return Check("RECORD", "ok", f"true of {len(ours or every)} files")
    details = listed(f"{paths.show(p.path)}: found {p.found}, expected {p.expected}" for p in wrong)
    text = f"not true of {len(wrong)} of {len(ours or every)} files"
    if ours:
        return Check("RECORD", "bad", text, fix or transaction.command(target.root, "apply"), details)
    return Check("RECORD", "note", text, None, details)


def check_bytecode(target: Target, lock: Lock) -> Check:
    """Bytecode that Python would run although the file has changed since: it never looks at unchecked hashes."""
    stale: list[Path] = []
    count = 0
    try:
        for path in lock.files:
            if not path.endswith(b".py"):
                continue
            file = paths.on_disk(target.root, path)
            for cached in pycache.stale_bytecode(file):
                count += 1
                if _is_stale(cached, file):
                    stale.append(cached)
    except ForkError as e:
        return of_error("bytecode", e)
    except OSError as e:
        return Check("bytecode", "bad", f"it cannot be read: {e}", "make it readable, or delete it")
    if not stale:
        return Check("bytecode", "ok", f"{count} cached files of what the fork changes, none stale")
    inside = [f.relative_to(target.root) for f in stale]
    return Check(
        "bytecode", "bad", f"{len(stale)} cached files are of other sources, and Python would run them",
        f"rm {' '.join(shlex.quote(str(f)) for f in stale)}", listed(map(str, inside)),
    )  # fmt: skip


def _is_stale(cached: Path, file: Path) -> bool:
    with cached.open("rb") as f:
        head = f.read(16)
    # Flags: 1 a hash instead of a time, 2 looked at. What is looked at is made anew where it does not fit.
    if len(head) < 16 or int.from_bytes(head[4:8], "little") & 3 != 1:
        return False
    if not file.is_file():
        return True
    key = int.from_bytes(head[:4], "little")
    return _imp.source_hash(key, file.read_bytes()) != head[8:]
