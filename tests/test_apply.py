from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import VERSION, Upstream, apply, digest, follow, state, undo

from kunlunfork import lock as locks
from kunlunfork import paths, status, target
from kunlunfork.apply import revert
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.fork import STAMP_PATH, load
from kunlunfork.progress import Silent
from kunlunfork.store import Store


def test_applies_every_patch_and_overlay_file_and_reverts_to_the_byte(
    content: Content, tree: Path, store: Store
) -> None:
    before = digest(tree)
    outcome = apply(content, tree, store)
    fork = load(content, VERSION)
    assert outcome.action == "applied"
    for patch in fork.patches:
        for file in patch.files:
            assert file.new_path is not None
            have = paths.read_entry(tree, file.new_path)
            assert have is not None
    assert {p for p in fork.added if paths.read_entry(tree, p) is None} == set()
    stamp = paths.on_disk(tree, STAMP_PATH).read_text()
    assert f'OVERLAY = "{fork.overlay_hash}"' in stamp
    assert f'SERIES = "{fork.series_hash}"' in stamp
    assert status.verify(target.of_tree(tree), content, None).problems == ()
    undo(tree)
    assert digest(tree) == before


def test_twice_is_a_no_op(content: Content, tree: Path, store: Store) -> None:
    apply(content, tree, store)
    before = digest(tree)
    inode = (tree / "vllm/v1/worker/gpu/__init__.py").stat().st_ino
    assert apply(content, tree, store).action == "unchanged"
    assert digest(tree) == before
    assert (tree / "vllm/v1/worker/gpu/__init__.py").stat().st_ino == inode


def test_a_dry_run_changes_nothing_and_says_what_would_change(content: Content, tree: Path, store: Store) -> None:
    before = digest(tree)
    outcome = apply(content, tree, store, dry_run=True)
    assert outcome.dry_run
    assert outcome.action == "applied"
    assert b"vllm/v1/worker/gpu/__init__.py" in outcome.written
    assert digest(tree) == before
    apply(content, tree, store)
    after = digest(tree)
    assert b"vllm/v1/worker/gpu/model_runner_v2.py" in undo(tree, dry_run=True).removed
    assert digest(tree) == after


def test_update_through_the_lock(small_content: Content, tree: Path, store: Store) -> None:
    before = digest(tree)
    apply(small_content, tree, store)
    folder = small_content.overlay / VERSION / "vllm/v1/worker/gpu/kunlun"
    (folder / "__init__.py").write_bytes(b"# overlay, newer\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "new.py").write_bytes(b"# new\n")
    (folder.parent / "model_runner_v2.py").unlink()
    series = small_content.patches / VERSION / "series"
    names = [line for line in series.read_text().split("\n") if line and not line.startswith("#")]
    series.write_text("\n".join(names[:-1]) + "\n")
    assert state(tree, small_content).current is False

    outcome = apply(small_content, tree, store)

    assert outcome.action == "updated"
    assert (tree / "vllm/v1/worker/gpu/kunlun/deep/new.py").read_bytes() == b"# new\n"
    assert not (tree / "vllm/v1/worker/gpu/model_runner_v2.py").exists()
    assert state(tree, small_content).state == "applied"
    assert status.verify(target.of_tree(tree), small_content, None).problems == ()
    (folder / "deep" / "new.py").unlink()
    apply(small_content, tree, store)
    assert not (tree / "vllm/v1/worker/gpu/kunlun/deep").exists()
    undo(tree)
    assert digest(tree) == before


@pytest.mark.parametrize("verb", ["apply", "revert"])
@pytest.mark.parametrize("edit", ["change", "chmod", "overlay", "link", "folder", "pipe", "giant", "linked folder"])
def test_local_edits_are_refused_with_the_list(
    verb: str, edit: str, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    apply(content, tree, store)
    patched = tree / "vllm/v1/worker/gpu_worker.py"
    victim = tree / "vllm/v1/worker/gpu/model_runner_v2.py" if edit == "overlay" else patched
    if edit in ("change", "overlay"):
        victim.write_bytes(victim.read_bytes() + b"# mine\n")
    elif edit == "chmod":
        victim.chmod(0o755)
    elif edit == "linked folder":
        victim = tree / "vllm/v1/worker/gpu"
        victim.rename(tmp_path / "elsewhere")
        victim.symlink_to(tmp_path / "elsewhere")
    elif edit == "giant":
        os.truncate(victim, 10 << 40)
    else:
        victim.unlink()
        if edit == "link":
            victim.symlink_to("cpu_worker.py")
        elif edit == "folder":
            victim.mkdir()
        else:
            os.mkfifo(victim)
    before = _listing(tree)
    with pytest.raises(ForkError) as error:
        if verb == "apply":
            apply(content, tree, store)
        else:
            undo(tree)
    assert victim.name in "\n".join(error.value.details)
    assert error.value.exit_code == CONFLICT
    assert _listing(tree) == before
    found = state(tree, content)
    assert found.state == "edited"
    assert victim.name in "\n".join(status.verify(target.of_tree(tree), content, None).problems)

    # The way out keeps what the user has, and works as it is printed.
    mine = os.path.lexists(victim)
    follow(error.value.fix if verb == "revert" else found.fix, tmp_path, content)
    assert os.path.lexists(f"{victim}.mine") == mine
    assert state(tree, content).state == ("upstream" if verb == "revert" else "applied")


@pytest.mark.parametrize("count", [1, 2])
def test_the_way_out_works_as_often_as_it_is_needed(
    count: int, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    apply(content, tree, store)
    victims = [tree / "vllm/v1/worker/gpu_worker.py", tree / "vllm/config/vllm.py"][:count]
    for text in ("first", "second", "third"):
        for victim in victims:
            victim.write_text(text)
        follow(state(tree, content).fix, tmp_path, content)
        assert state(tree, content).state == "applied"
    for victim in victims:
        kept = sorted(victim.parent.glob(f"{victim.name}.mine*"))
        assert [file.read_text() for file in kept] == ["first", "second", "third"]


def _listing(tree: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p), (st := p.lstat()).st_mode, st.st_size) for p in tree.rglob("*"))


@pytest.mark.parametrize("verb", ["apply", "revert"])
@pytest.mark.parametrize("what", ["missing", "upstream's", "overlay", "folder"])
def test_what_loses_no_bytes_is_put_back(
    verb: str, what: str, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    before = digest(tree)
    victim = tree / "vllm/v1/worker/gpu_worker.py"
    original = victim.read_bytes()
    apply(content, tree, store)
    applied = digest(tree)
    if what == "missing":
        victim.unlink()
    elif what == "upstream's":
        victim.write_bytes(original)
    elif what == "overlay":
        (tree / "vllm/v1/worker/gpu/model_runner_v2.py").unlink()
    else:
        shutil.rmtree(tree / "vllm/v1/worker/gpu/kunlun")
    found = state(tree, content)
    assert found.state == "edited"
    assert status.verify(target.of_tree(tree), content, None).problems
    if verb == "revert":
        undo(tree)
        assert digest(tree) == before
    else:
        assert apply(content, tree, store, dry_run=True).action == "updated"
        follow(found.fix, tmp_path, content)
        assert digest(tree) == applied
        undo(tree)
        assert digest(tree) == before


def test_someone_elses_patch_is_refused_naming_both_blobs(content: Content, tree: Path, store: Store) -> None:
    victim = tree / "vllm/v1/worker/gpu_worker.py"
    victim.write_bytes(victim.read_bytes().replace(b"\n", b"\n# kunlun\n", 1))
    (tree / "vllm/v1/worker/gpu/model_runner_v2.py").write_bytes(b"# theirs\n")
    before = digest(tree)
    with pytest.raises(ForkError) as error:
        apply(content, tree, store)
    text = "\n".join(error.value.details)
    assert paths.blob_id(victim.read_bytes())[:12] in text
    assert "model_runner_v2.py: the overlay ships it" in text
    assert error.value.exit_code == CONFLICT
    assert digest(tree) == before


def test_another_version_is_refused(content: Content, tree: Path, store: Store) -> None:
    file = tree / "vllm/_version.py"
    file.write_bytes(file.read_bytes().replace(b"0.25.1", b"0.26.0"))
    with pytest.raises(ForkError) as error:
        apply(content, tree, store, wanted=VERSION)
    assert error.value.found == "0.26.0"
    assert VERSION in (error.value.expected or "")


def test_another_commit_is_refused(content: Content, tree: Path, store: Store) -> None:
    file = tree / "vllm/_version.py"
    file.write_bytes(file.read_bytes().replace(b"g752a3a504", b"gdeadbeef0"))
    with pytest.raises(ForkError) as error:
        apply(content, tree, store)
    assert error.value.found == "commit deadbeef0"
    assert error.value.expected == "commit 752a3a504"


def test_a_local_version_label_is_no_other_version(content: Content, tree: Path, store: Store) -> None:
    file = tree / "vllm/_version.py"
    file.write_bytes(file.read_bytes().replace(b"'0.25.1'", b"'0.25.1+empty'"))
    assert apply(content, tree, store).action == "applied"
    lock = locks.read(tree / ".kunlunfork")
    assert lock is not None
    assert lock.base_version == "0.25.1+empty"


def test_never_writes_through_a_hard_link(content: Content, tree: Path, store: Store, tmp_path: Path) -> None:
    """uv and conda link site-packages to a cache that all environments share."""
    shared = tmp_path / "uv-cache"
    shared.mkdir()
    kept = {}
    for full in sorted(tree.rglob("*.py")):
        linked = shared / full.relative_to(tree).as_posix().replace("/", "_")
        os.link(full, linked)
        kept[linked] = linked.read_bytes()
    apply(content, tree, store)
    undo(tree)
    assert {path: path.read_bytes() for path in kept} == kept
    assert all(path.stat().st_nlink == 1 for path in kept if path.name.endswith("gpu_worker.py"))


@pytest.mark.parametrize("parent", ["vllm/v1/worker/gpu", "vllm/v1", "vllm/v1/worker/gpu/kunlun"])
def test_symlinked_parents_are_refused(parent: str, content: Content, tree: Path, store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    real = tree / parent
    if real.exists():
        real.rename(outside)
    else:
        outside.mkdir()
    real.symlink_to(outside)
    before = digest(outside)
    with pytest.raises(ForkError, match="symbolic link"):
        apply(content, tree, store)
    assert digest(outside) == before
    assert not (tree / ".kunlunfork").exists()


def test_a_folder_in_the_way_is_refused(content: Content, tree: Path, store: Store) -> None:
    (tree / "vllm/v1/worker/gpu/model_runner_v2.py").mkdir()
    with pytest.raises(ForkError, match="in the way"):
        apply(content, tree, store)
    assert not (tree / ".kunlunfork").exists()


def test_keeps_the_permission_bits_of_a_patched_file(content: Content, tree: Path, store: Store) -> None:
    victim = tree / "vllm/v1/worker/gpu_worker.py"
    victim.chmod(0o640)
    apply(content, tree, store)
    assert victim.stat().st_mode & 0o7777 == 0o640
    undo(tree)
    assert victim.stat().st_mode & 0o7777 == 0o640


def test_drops_stale_bytecode_only(content: Content, tree: Path, store: Store) -> None:
    folder = tree / "vllm/v1/worker/__pycache__"
    folder.mkdir()
    stale = folder / "gpu_worker.cpython-311.pyc"
    other = folder / "ubatching.cpython-311.pyc"
    for file in (stale, other):
        file.write_bytes(b"x")
    apply(content, tree, store)
    assert not stale.exists()
    assert other.exists()
    kunlun = tree / "vllm/v1/worker/gpu/kunlun/__pycache__"
    kunlun.mkdir()
    (kunlun / "__init__.cpython-311.pyc").write_bytes(b"x")
    undo(tree)
    assert not (tree / "vllm/v1/worker/gpu/kunlun").exists()


def test_what_a_user_put_beside_the_overlay_stays(content: Content, tree: Path, store: Store) -> None:
    apply(content, tree, store)
    mine = tree / "vllm/v1/worker/gpu/kunlun/notes.txt"
    mine.write_text("mine")
    undo(tree)
    assert mine.read_text() == "mine"
    assert sorted(p.name for p in mine.parent.iterdir()) == ["notes.txt"]


LOSSES = {
    "changed": lambda pre: pre.write_bytes(b"not what it was"),
    "gone": lambda pre: pre.unlink(),
    "folder": lambda pre: (pre.unlink(), pre.mkdir()),
    "pipe": lambda pre: (pre.unlink(), os.mkfifo(pre)),
    "giant": lambda pre: os.truncate(pre, 10 << 40),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_pre_image_is_told_before_anything_changes(
    loss: str, content: Content, tree: Path, store: Store
) -> None:
    apply(content, tree, store)
    pre = next(p for p in sorted((tree / ".kunlunfork/pre").iterdir()) if p.stat().st_size)
    LOSSES[loss](pre)
    before = _listing(tree)
    with pytest.raises(ForkError, match="lost"):
        undo(tree)
    assert _listing(tree) == before
    assert any("pre-image is lost" in p for p in status.verify(target.of_tree(tree), content, None).problems)


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_lost_pre_image_comes_from_the_store(
    verb: str, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    before = digest(tree)
    apply(content, tree, store)
    applied = digest(tree)
    for pre in (tree / ".kunlunfork/pre").iterdir():
        pre.unlink()
    fix = status.verify(target.of_tree(tree), content, None).fix
    if verb == "apply":
        follow(fix, tmp_path, content)
        assert digest(tree) == applied
        assert status.verify(target.of_tree(tree), content, None).problems == ()
        undo(tree)
    else:
        revert(target.of_tree(tree), dry_run=False, progress=Silent(), store=store)
    assert digest(tree) == before


def test_a_lost_pre_image_that_the_store_lacks_names_a_command(
    content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    apply(content, tree, store)
    pre = next(p for p in sorted((tree / ".kunlunfork/pre").iterdir()) if p.stat().st_size)
    pre.unlink()
    with pytest.raises(ForkError, match=r"pre-image of vllm/.* is lost") as error:
        revert(target.of_tree(tree), dry_run=False, progress=Silent(), store=Store(tmp_path / "empty"))
    assert error.value.fix == f"kunlunfork apply --vllm {VERSION} {shlex.quote(f'{tree}-fresh')}"


def test_a_lost_lock_never_costs_the_pre_images(content: Content, tree: Path, store: Store) -> None:
    apply(content, tree, store)
    (tree / ".kunlunfork/lock.json").unlink()
    before = digest(tree)
    for command in (lambda: apply(content, tree, store), lambda: undo(tree), lambda: state(tree, content)):
        with pytest.raises(ForkError, match="lost its lock"):
            command()
    assert digest(tree) == before


def test_reverting_an_upstream_tree_is_refused(tree: Path) -> None:
    with pytest.raises(ForkError, match="carries no fork"):
        undo(tree)


def test_two_at_once(content: Content, tree: Path, store: Store) -> None:
    from kunlunfork import transaction

    with transaction.exclusive(target.of_tree(tree).root):
        code = (
            "import sys; from pathlib import Path; from kunlunfork import target, transaction\n"
            "try:\n    with transaction.exclusive(target.of_tree(Path(sys.argv[1])).root): pass\n"
            "except Exception as e: print(e); sys.exit(7)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, tree], capture_output=True, text=True, check=False)
        assert done.returncode == 7
        assert "another kunlunfork" in done.stdout
    assert apply(content, tree, store).action == "applied"


def test_parallel_applies_end_as_one(content: Content, tree: Path, store: Store, upstream: Upstream) -> None:
    command = [sys.executable, "-m", "kunlunfork", "apply", "--in-place", str(tree), "--repo", str(content.root)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    ends = [(child.communicate()[1], child.returncode) for child in children]
    assert 0 in {code for _, code in ends}
    assert all(code == 0 or b"another kunlunfork" in err for err, code in ends), ends
    assert state(tree, content).state == "applied"
    assert status.verify(target.of_tree(tree), content, None).problems == ()


def test_a_moved_or_copied_tree_can_still_be_reverted(content: Content, tree: Path, store: Store) -> None:
    before = digest(tree)
    apply(content, tree, store)
    moved = tree.rename(tree.with_name("moved"))
    undo(moved)
    assert digest(moved) == before


def test_git_does_not_see_the_state_of_a_checkout(content: Content, tree: Path, store: Store) -> None:
    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", tree, *args], capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    git("add", "-A")
    git("-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "upstream")
    apply(content, tree, store)
    assert ".kunlunfork" not in git("status", "--short", "-uall")
    git("clean", "-fdq")
    assert (tree / ".kunlunfork/lock.json").exists()
