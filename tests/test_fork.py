"""The inputs that break other patch tools, on real git and on files of the release."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import VERSION, Upstream, apply, digest, undo

from kunlunfork import git, paths
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, USER, ForkError
from kunlunfork.lint import lint
from kunlunfork.paths import EXECUTABLE, REGULAR
from kunlunfork.store import Store

HEADER = (
    "From: A <a@b.c>\nDate: Mon, 30 Nov 2026 12:00:00 +0000\nSubject: {name}\nUpstream-Status: Pending\n"
    "Remove-When: never\nTouches: x\n\n---\n"
)
WORKER = "vllm/v1/worker/gpu_worker.py"


@pytest.fixture
def author(small_content: Content, tree: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes patches as an author does: a change of a git repository, `git diff --full-index --binary`."""
    work = tmp_path / "author"
    subprocess.run(["cp", "-r", tree, work], check=True)
    folder = small_content.patches / VERSION
    (folder / "series").write_text("")

    def run(*args: str | Path) -> bytes:
        return git.run(["-C", work, *args])

    run("init", "-q", ".")
    run("add", "-A", "-f")
    run("commit", "-qm", "upstream")

    def patch(name: str, change: Callable[[Path], object], *flags: str) -> Path:
        change(work)
        run("add", "-A", "-f")
        diff = run("diff", "--cached", "--full-index", "--binary", *flags)
        run("commit", "-qm", name, "--allow-empty")
        file = folder / f"{name}.patch"
        file.write_bytes(HEADER.format(name=name).encode() + diff)
        with (folder / "series").open("a") as series:
            series.write(f"{file.name}\n")
        return file

    patch.work = work  # type: ignore[attr-defined]
    return patch


def _same(tree: Path, work: Path, *names: str) -> None:
    for name in names:
        assert paths.read_entry(tree, os.fsencode(name)) == paths.read_entry(work, os.fsencode(name)), name


def test_bytes_modes_links_names_and_binaries_arrive_as_they_are(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    before = digest(tree)
    names = ["vllm/crlf.py", 'vllm/a dir/f \u00e9".py', "vllm/tab\t.py", "vllm/empty.py", "vllm/data.bin", "vllm/link"]

    def change(work: Path) -> None:
        (work / "vllm/a dir").mkdir()
        for name, data in zip(
            names[:5], (b"a\r\nb\nc", b"\xe9\x0c\xe2\x80\xa8x", b"t", b"", bytes(range(256)) * 9), strict=True
        ):
            (work / name).write_bytes(data)
        (work / "vllm/link").symlink_to("version.py")
        (work / "setup.py").chmod(0o755)
        (work / "vllm/version.py").rename(work / "vllm/renamed.py")
        (work / "vllm/v1/worker/gpu/README.md").unlink()
        worker = work / WORKER
        worker.write_bytes(worker.read_bytes().rstrip(b"\n") + b"\n# last line without end")

    author("all-kinds", change, "-M")
    apply(small_content, tree, store)
    _same(tree, author.work, *names, "setup.py", "vllm/renamed.py", WORKER)  # type: ignore[attr-defined]
    assert not (tree / "vllm/version.py").exists()
    assert not (tree / "vllm/v1/worker/gpu/README.md").exists()
    undo(tree)
    assert digest(tree) == before


def test_a_series_of_patches_to_one_file(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    for i in range(4):
        author(
            f"p{i}", lambda work, i=i: (work / WORKER).write_bytes((work / WORKER).read_bytes() + b"# %d\n" % i), "-U0"
        )
    apply(small_content, tree, store)
    _same(tree, author.work, WORKER)  # type: ignore[attr-defined]
    series = small_content.patches / VERSION / "series"
    series.write_text("p1.patch\np0.patch\np2.patch\np3.patch\n")
    undo(tree)
    with pytest.raises(ForkError) as error:
        apply(small_content, tree, store)
    assert "p1.patch" in str(error.value) + "".join(error.value.details)


def test_look_alike_functions_no_fuzz(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    """Upstream rewrote the patched function and added one that looks like it was: GNU patch edits the wrong one."""
    body = b"\n\ndef NAME(self):\n    x = 1\n    y = 2\n    return x + y\n"
    target = tree / "setup.py"
    original = target.read_bytes()

    def add(work: Path) -> None:
        (work / "setup.py").write_bytes(original + body.replace(b"NAME", b"load"))

    base = author("base", add)
    author(
        "edit",
        lambda work: (work / "setup.py").write_bytes((work / "setup.py").read_bytes().replace(b"y = 2", b"y = 3")),
    )
    series = small_content.patches / VERSION / "series"
    series.write_text("edit.patch\n")
    base.unlink()
    moved = original + b"\n\ndef load(self):\n    return 7\n" + body.replace(b"NAME", b"warmup")
    target.write_bytes(moved)
    with pytest.raises(ForkError) as error:
        apply(small_content, tree, store)
    assert error.value.exit_code == CONFLICT
    assert paths.blob_id(moved)[:12] in error.value.details[0]
    assert target.read_bytes() == moved


def test_crlf_in_the_tree_is_another_file(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    author("edit", lambda work: (work / "setup.py").write_bytes((work / "setup.py").read_bytes() + b"# x\n"))
    target = tree / "setup.py"
    target.write_bytes(target.read_bytes().replace(b"\n", b"\r\n"))
    before = digest(tree)
    with pytest.raises(ForkError) as error:
        apply(small_content, tree, store)
    assert error.value.exit_code == CONFLICT
    assert digest(tree) == before


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw.replace(b"\n+# x\n", b"\n+# y\n"), "gives another"),
        (lambda raw: raw.replace(b"# x", b"# x\n+# z"), ""),
        (
            lambda raw: raw.replace(b"a/setup.py", b"a/../../etc/passwd").replace(b"b/setup.py", b"b/../../etc/passwd"),
            "",
        ),
        (lambda raw: raw.replace(b"a/setup.py", b"a/.git/config").replace(b"b/setup.py", b"b/.git/config"), ""),
        (lambda raw: raw.replace(b"a/", b"").replace(b"b/", b""), ""),
        (lambda raw: raw.replace(b"\n", b"\r\n"), "CRLF"),
        (lambda raw: raw[: len(raw) // 2], ""),
        (lambda raw: b"", ""),
    ],
    ids=["other bytes", "count", "escape", "git", "p0", "crlf", "cut", "empty"],
)
def test_a_damaged_patch_changes_nothing(
    damage: Callable[[bytes], bytes], says: str, author: Callable[..., Path], small_content: Content, tree: Path,
    store: Store,
) -> None:  # fmt: skip
    file = author("edit", lambda work: (work / "setup.py").write_bytes((work / "setup.py").read_bytes() + b"# x\n"))
    raw = file.read_bytes()
    assert damage(raw) != raw
    file.write_bytes(damage(raw))
    before = digest(tree)
    with pytest.raises(ForkError) as error:
        apply(small_content, tree, store)
    assert "edit.patch" in str(error.value.as_json())
    assert says in str(error.value.as_json())
    assert digest(tree) == before


def test_links_that_leave_the_tree(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    author("evil", lambda work: (work / "vllm/evil").symlink_to("../../outside"))
    with pytest.raises(ForkError, match="leaves its tree"):
        apply(small_content, tree, store)
    (small_content.patches / VERSION / "series").write_text("")
    (small_content.overlay / VERSION / "vllm/evil").symlink_to("/etc/passwd")
    with pytest.raises(ForkError, match="leaves its tree"):
        apply(small_content, tree, store)
    assert not (tree / "vllm/evil").is_symlink()


def test_a_patch_of_an_overlay_file_is_refused(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    author("edit", lambda work: (work / "vllm/v1/worker/gpu/model_runner_v2.py").write_text("# theirs\n"))
    with pytest.raises(ForkError, match="edits files that the overlay ships"):
        apply(small_content, tree, store)


def test_inside_another_repository_the_patch_still_lands(
    content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    """`git apply` in a folder of another repository exits 0 and changes nothing."""
    git.run(["init", "-q", tmp_path])
    apply(content, tree, store)
    assert (tree / "vllm/v1/worker/gpu/__init__.py").stat().st_size > 0


def test_a_mode_of_the_users_own_is_kept(content: Content, tree: Path, store: Store) -> None:
    worker = tree / WORKER
    worker.chmod(0o755)
    apply(content, tree, store)
    have = paths.read_entry(tree, WORKER.encode())
    assert have is not None
    assert have[0].mode == EXECUTABLE
    assert REGULAR != EXECUTABLE
    undo(tree)
    assert worker.stat().st_mode & 0o777 == 0o755


def _renumbered(raw: bytes, by: int) -> bytes:
    """The first hunk of the last section as lying `by` lines further down, and all below it with it."""
    start = raw.rindex(b"diff --git ")

    def moved(match: re.Match[bytes]) -> bytes:
        return b"@@ -%d%s +%d%s @@" % (int(match[1]) + by, match[2], int(match[3]) + by, match[4])

    return raw[:start] + re.sub(rb"@@ -(\d+)(\S*) \+(\d+)(\S*) @@", moved, raw[start:])


def _twins(name: str, edit: int | None = None) -> Callable[[Path], object]:
    """A file of look-alike functions; the one at `edit` returns something else."""
    parts = [b"\n\ndef f(self):\n    x = 1\n    y = 2\n    return x + y\n"] * 5
    if edit is not None:
        parts[edit] = parts[edit].replace(b"y = 2", b"y = 3")
    return lambda work: (work / name).write_bytes(b"".join(parts))


@pytest.mark.parametrize("by", [-6, -1, 1, 6, 12])
@pytest.mark.parametrize("context", ["-U0", "-U1", "-U3"])
@pytest.mark.parametrize("kind", ["first", "later", "renamed", "of a renamed", "after a binary"])
def test_a_hunk_lies_at_the_lines_that_it_names_or_nowhere(
    kind: str, context: str, by: int, author: Callable[..., Path], small_content: Content, tree: Path, store: Store,
    upstream: Upstream,
) -> None:  # fmt: skip
    """git apply would go and look for the lines; lint and apply say the same."""
    name, target = "vllm/twins.py", "vllm/twins.py"
    author("base", _twins(name, 4 if kind == "later" else None))
    if kind == "after a binary":
        author("binary", lambda work: (work / name).write_bytes(b"\0" + (work / name).read_bytes()), context)
        author("text", lambda work: _twins(name)(work), context, "--text")
    if "renamed" in kind:
        target = "vllm/other.py"
    if kind == "of a renamed":
        author("move", lambda work: (work / name).rename(work / target), "-M")

    def change(work: Path) -> None:
        if kind == "renamed":
            (work / name).rename(work / target)
        _twins(target, 2)(work)

    file = author("edit", change, context, "-M")
    raw = file.read_bytes()
    assert _renumbered(raw, 0) == raw
    before = digest(tree)
    file.write_bytes(_renumbered(raw, by))
    with pytest.raises(ForkError) as error:
        apply(small_content, tree, store)
    assert "edit.patch" in error.value.message
    assert digest(tree) == before
    if kind != "after a binary":  # lint has no git
        findings = lint(small_content.patches / VERSION, {}, lambda path: upstream.files.get(path))
        wrong = {Path(f.file).name for f in findings if f.code in ("hunk", "postimage", "hunk-header", "counts")}
        assert wrong == {"edit.patch"}
    file.write_bytes(raw)
    apply(small_content, tree, store)
    _same(tree, author.work, target)  # type: ignore[attr-defined]


@pytest.mark.parametrize("digits", [4, 9, 39])
@pytest.mark.parametrize("side", ["old", "new", "both"])
def test_abbreviated_ids_are_the_patchs_fault(
    side: str, digits: int, author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    file = author("edit", lambda work: (work / "setup.py").write_bytes((work / "setup.py").read_bytes() + b"# x\n"))

    def short(match: re.Match[bytes]) -> bytes:
        old, new = match[1], match[2]
        return b"index %s..%s" % (old[: digits if side != "new" else 40], new[: digits if side != "old" else 40])

    file.write_bytes(re.sub(rb"index (\w+)\.\.(\w+)", short, file.read_bytes()))
    before = digest(tree)
    with pytest.raises(ForkError, match=f"edit.patch.*{digits} digits") as error:
        apply(small_content, tree, store)
    assert error.value.exit_code == USER
    assert "git diff --full-index" in str(error.value.fix)
    assert digest(tree) == before


def test_two_sections_of_one_file_are_refused(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    first = author("a", lambda work: (work / "setup.py").write_bytes((work / "setup.py").read_bytes() + b"# x\n"))
    second = author("b", lambda work: (work / "setup.py").write_bytes((work / "setup.py").read_bytes() + b"# y\n"))
    diff = second.read_bytes()
    first.write_bytes(first.read_bytes() + diff[diff.index(b"diff --git") :])
    (small_content.patches / VERSION / "series").write_text("a.patch\n")
    second.unlink()
    with pytest.raises(ForkError, match="second section"):
        apply(small_content, tree, store)


def test_a_file_that_becomes_a_link_has_two_sections(
    author: Callable[..., Path], small_content: Content, tree: Path, store: Store
) -> None:
    def change(work: Path) -> None:
        (work / "setup.py").unlink()
        (work / "setup.py").symlink_to("PKG-INFO")

    author("link", change)
    apply(small_content, tree, store)
    assert (tree / "setup.py").is_symlink()
    undo(tree)
    assert not (tree / "setup.py").is_symlink()
