"""Upstream's bytes of the files that the fork changed: from the state folder, else from the store."""

from __future__ import annotations

import shlex
from pathlib import Path

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.journal import PRE
from kunlunfork.lock import Lock
from kunlunfork.store import Store
from kunlunfork.target import Target


def problem(state: Path, blob: str) -> str | None:
    """What is wrong with a pre-image; None where it is whole."""
    try:
        return None if paths.blob_id(paths.read_plain(state / PRE / blob)) == blob else "its bytes were changed"
    except OSError as e:
        return e.strerror or str(e)
    except ForkError as e:
        return e.found or str(e)


def broken(state: Path, lock: Lock) -> dict[str, str]:
    """The pre-images that cannot be used, each with what is wrong."""
    found = {blob: problem(state, blob) for blob in sorted(lock.pre_blobs())}
    return {blob: what for blob, what in found.items() if what is not None}


def read(target: Target, lock: Lock, store: Store | None) -> dict[str, bytes]:
    """The bytes of all pre-images, by blob id.

    Raises:
        ForkError: one is lost, and the store does not have it either.
    """
    lost = broken(target.state, lock)
    found = {b: paths.read_plain(target.state / PRE / b) for b in lock.pre_blobs() - lost.keys()}
    for blob, what in lost.items():
        data = from_store(store, blob)
        if data is None:
            raise _lost(target, lock, blob, what)
        found[blob] = data
    return found


def from_store(store: Store | None, blob: str) -> bytes | None:
    """The bytes of a blob, None where the store cannot give them."""
    if store is None:
        return None
    try:
        return next(store.blobs([blob]))
    except ForkError:  # not there, or the store is damaged: either way it cannot help
        return None


def _lost(target: Target, lock: Lock, blob: str, what: str) -> ForkError:
    path = next(p for p, held in lock.files.items() if held.pre is not None and held.pre.blob == blob)
    root = target.root
    if lock.files[path].role == "record":
        fix = f"pip install --force-reinstall --no-deps {target.info.dist_name}=={lock.base_version}"
    else:
        fresh = shlex.quote(str(root.with_name(f"{root.name}-fresh")))
        fix = f"kunlunfork apply --vllm {lock.version} {fresh}"
    return ForkError(
        f"the pre-image of {paths.show(path)} is lost",
        found=f"{target.state / PRE / blob}: {what}",
        expected="the bytes of upstream's file, there or in the store, which a new tree fills",
        fix=fix,
    )
