"""Writing patch files: what git says of two trees, under our own settings, below a header."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kunlunfork import messages, scopes
from kunlunfork.messages import Text
from kunlunfork.objects import Repository
from kunlunfork.patchfile import Patch, parse_patch
from kunlunfork.paths import Entry

# One line of context: what git needs to find nothing else, and the least of upstream's text.
_DIFF = (
    "--literal-pathspecs", "diff-tree", "-r", "-p", "--full-index", "--binary", "--unified=1", "--find-renames=50%",
    "--no-rename-empty", "--diff-algorithm=myers", "--no-indent-heuristic", "--no-color", "--no-ext-diff",
    "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--inter-hunk-context=0", "--ignore-submodules=none",
    "--submodule=short", "--no-relative",
)  # fmt: skip

Effect = dict[bytes, tuple[Entry | None, Entry | None]]


def effect(repository: Repository, before: str, after: str) -> Effect:
    """What each path that differs between two trees was and is."""
    parts = repository.git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", before, after).split(b"\0")
    found: Effect = {}
    for meta, path in zip(parts[:-1:2], parts[1::2], strict=True):
        old_mode, new_mode, old, new, _ = meta.lstrip(b":").split()
        was, now = (
            None if not int(mode, 8) else Entry(int(mode, 8), blob.decode())
            for mode, blob in ((old_mode, old), (new_mode, new))
        )
        found[path] = (was, now)
    return found


def renames(repository: Repository, before: str, after: str, paths: Iterable[bytes]) -> dict[bytes, bytes]:
    """New path -> old path of the files that git takes for renamed, with the settings of `diff`."""
    args = [arg for arg in _DIFF if arg != "-p"]
    parts = repository.git(*args, "-z", "--raw", before, after, "--", *sorted(paths)).split(b"\0")[:-1]
    found, at = {}, 0
    while at < len(parts):
        kind = parts[at].split(b" ")[-1]
        if kind.startswith((b"R", b"C")):
            if kind.startswith(b"R"):
                found[parts[at + 2]] = parts[at + 1]
            at += 3
        else:
            at += 2
    return found


def diff(repository: Repository, before: str, after: str, paths: Iterable[bytes]) -> bytes:
    """The diff of two trees at these paths; renames among them are found."""
    return repository.git(*_DIFF, before, after, "--", *sorted(paths))


@dataclass(frozen=True)
class Draft:
    """A patch to be written: its name, what its commit says, its diff, and what to call the commit in messages."""

    name: str
    text: Text
    diff: bytes
    what: str


def touches(name: str, diff: bytes, old: Callable[[bytes], bytes]) -> tuple[str, ...]:
    """What the `Touches` fields of a diff must say; `old` gives the bytes that a path had before."""
    patch = parse_patch(name, b"Subject: x\n\n---\n" + diff)
    found: dict[str, None] = {}
    for file in patch.files:
        known = file.hunks and file.kind in ("modify", "rename") and scopes.is_python(file.old_path or b"")
        found.update(dict.fromkeys(scopes.touches(file, old(file.old_path or b"") if known else b"")))
    return tuple(found)


def write(draft: Draft, old: Callable[[bytes], bytes], kept: Patch | None, *, same_diff: bool, version: str) -> bytes:
    """The bytes of a patch file.

    Args:
        kept: the patch file of that name as it is. What still holds of it, its header or its diff, stays byte for byte.
        same_diff: whether `kept` does to the same files what the draft does.

    Raises:
        ForkError: the message cannot stand in a header, or git's diff has something that no patch may have.
    """
    body = kept.diff if kept is not None and same_diff else draft.diff
    own = (messages.PATCH, messages.PIN)
    said = draft.text.without(*own, messages.TOUCHES)
    same_head = kept is not None and messages.of_patch(kept, version).without(*own) == said
    if kept is not None and same_head and same_diff:
        return kept.raw
    named = touches(draft.name, body, old)
    if kept is not None and same_head:
        head = messages.with_touches(messages.header_of(kept), named)
    else:
        head = messages.header(said, named, what=draft.what)
    return head + body
