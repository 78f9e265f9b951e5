"""`apply` onto a git tree that is there: nothing of its user's is lost, and what it says is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import REPO, VERSION, Upstream
from unprivileged import unprivileged

from kunlunfork import apply, gitmove, gittree, make, status, target
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.progress import Silent

KUNLUN = "vllm/v1/worker/gpu/kunlun"
SWITCHES = f"{KUNLUN}/switches.py"
STATES = "vllm/v1/worker/gpu/states.py"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, content: Content) -> Author:
    return gitkit.author(tmp_path_factory.mktemp("author"), upstream, content)


@pytest.fixture
def me(template: Author, tmp_path: Path) -> Author:
    made = gitkit.copy(template, tmp_path)
    with (made.tree / ".git" / "info" / "exclude").open("a") as exclude:
        exclude.write("*.so\n")  # as upstream's .gitignore has it
    return made


def again(me: Author, *, dry_run: bool = False) -> apply.Outcome:
    found = target.of_tree(me.tree)
    return make.bring_up_to_date(me.clone, found, me.store, wanted=VERSION, dry_run=dry_run, progress=Silent())


def ship(me: Author, path: str, data: bytes) -> None:
    """The clone's overlay has this file now."""
    file = me.clone.overlay / VERSION / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def refs(me: Author) -> str:
    return me.git("for-each-ref") + me.git("rev-parse", "HEAD")


def refused(me: Author) -> ForkError:
    before, had = refs(me), me.git("status", "--porcelain", "--ignored")
    with pytest.raises(ForkError) as e:
        again(me)
    assert e.value.exit_code == CONFLICT
    assert (refs(me), me.git("status", "--porcelain", "--ignored")) == (before, had), "refused, and nothing is changed"
    return e.value


def test_a_newer_fork_takes_the_place_of_the_older_one(me: Author) -> None:
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    ship(me, SWITCHES, me.read(SWITCHES) + b"# newer\n")
    assert again(me, dry_run=True).action == "updated"
    assert again(me).action == "updated"
    assert me.read(f"{KUNLUN}/new.py") == b"NEW = 1\n"
    assert me.read(SWITCHES).endswith(b"# newer\n")
    assert me.git("status", "--porcelain") == ""
    assert again(me).action == "unchanged"
    (me.clone.overlay / VERSION / f"{KUNLUN}/new.py").unlink()
    assert again(me).action == "updated"
    assert not (me.tree / f"{KUNLUN}/new.py").exists()
    assert me.git("status", "--porcelain") == ""
    assert status.read(target.of_tree(me.tree), me.clone).state == "applied"


def test_a_dry_run_writes_nothing_at_all(me: Author) -> None:
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    me.git("branch", "--force", "upstream", "HEAD~1")

    def all_of_git() -> set[Path]:
        return {p for p in (me.tree / ".git").rglob("*") if p.name != "index"}

    before, had = all_of_git(), refs(me)
    assert again(me, dry_run=True).action == "updated"
    assert (all_of_git(), refs(me)) == (before, had)


@pytest.mark.parametrize("changed", [False, True])
def test_a_branch_that_the_user_moved_stays(me: Author, changed: bool) -> None:
    moved = me.git("rev-parse", "HEAD~1")
    me.git("branch", "--force", "upstream", moved)
    if changed:
        ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    again(me)
    assert me.git("rev-parse", "upstream") == moved
    if changed:
        me.git("branch", "-D", "upstream")
        ship(me, f"{KUNLUN}/new.py", b"NEW = 2\n")
        again(me)
        assert me.git("rev-parse", "upstream") == me.git("rev-list", "--max-parents=0", "HEAD")


@pytest.mark.parametrize("ignored", [True, False])
def test_files_of_the_users_where_the_fork_puts_its_own_are_refused(me: Author, ignored: bool) -> None:
    name = f"{KUNLUN}/x.{'so' if ignored else 'py'}"
    me.write(name, b"mine")
    assert bool(me.git("status", "--porcelain", "--ignored", name).startswith("!!")) is ignored
    ship(me, name, b"the fork's")
    said = refused(me)
    assert [line.split(":")[0] for line in said.details] == [name]
    assert me.read(name) == b"mine"
    me.write(name, b"the fork's")
    assert again(me).action == "updated"


def test_a_folder_of_the_users_where_the_fork_has_a_file_and_the_other_way_round(me: Author) -> None:
    me.write(f"{KUNLUN}/x.so/mine.so", b"mine")
    me.write(f"{KUNLUN}/y.so", b"mine too")
    ship(me, f"{KUNLUN}/x.so", b"the fork's")
    ship(me, f"{KUNLUN}/y.so/z.py", b"Z = 1\n")
    (me.tree / f"{KUNLUN}/w.so").symlink_to(me.tree.parent)
    ship(me, f"{KUNLUN}/w.so", b"the fork's")
    said = refused(me)
    names = [f"{KUNLUN}/w.so", f"{KUNLUN}/x.so/mine.so", f"{KUNLUN}/y.so"]
    assert sorted(line.split(":")[0] for line in said.details) == names
    assert me.read(f"{KUNLUN}/x.so/mine.so") == b"mine"


def test_a_folder_that_became_a_link_is_not_written_through(me: Author) -> None:
    elsewhere = me.tree.parent / "elsewhere"
    (me.tree / KUNLUN).rename(elsewhere)
    (me.tree / KUNLUN).symlink_to(elsewhere)
    ship(me, SWITCHES, (elsewhere / "switches.py").read_bytes() + b"# newer\n")
    had = {p.name: p.read_bytes() for p in elsewhere.iterdir() if p.is_file()}
    refused(me)
    assert {p.name: p.read_bytes() for p in elsewhere.iterdir() if p.is_file()} == had


def test_files_that_no_commit_touches_do_not_block(me: Author) -> None:
    me.write("notes.txt", b"mine")
    me.write("a.rej", b"ignored by the user's own configuration")
    inside = me.tree / "inside"
    inside.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=inside, check=True, env=me.env)
    me.git("add", "notes.txt")
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    assert again(me).action == "updated"
    assert me.read("notes.txt") == b"mine"
    assert me.git("status", "--porcelain").splitlines() == ["?? inside/", "?? notes.txt"]


def test_edits_that_git_was_told_not_to_see_are_refused(me: Author) -> None:
    ship(me, SWITCHES, me.read(SWITCHES) + b"# newer\n")
    for flag in ("assume-unchanged", "skip-worktree"):
        me.git("update-index", f"--{flag}", SWITCHES)
        me.write(SWITCHES, b"mine\n")
        assert f"{SWITCHES}: edited" in refused(me).details
        assert me.read(SWITCHES) == b"mine\n"
        me.git("update-index", f"--no-{flag}", SWITCHES)


def test_what_is_only_staged_is_refused(me: Author) -> None:
    was = me.read(SWITCHES)
    me.write(SWITCHES, b"staged\n")
    me.git("add", SWITCHES)
    me.write(SWITCHES, was)
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    assert any(line.startswith(f"{SWITCHES}: staged") for line in refused(me).details)
    assert me.git("show", f":{SWITCHES}") == "staged"


def test_unchanged_says_where_head_is(me: Author) -> None:
    assert again(me).notes == ()
    me.write(STATES, me.read(STATES) + b"# one\n")
    assert again(me).notes == (f"not committed: {STATES}",)
    me.commit("one")
    done = again(me)
    assert (done.action, done.notes) == ("unchanged", ("HEAD is 1 commit ahead",))
    me.git("rebase", "--quiet", "--force-rebase", "upstream")
    assert "another history" in again(me).notes[0]


def test_head_at_upstream_or_elsewhere_is_no_fork(me: Author) -> None:
    for changed in (False, True):
        me.git("switch", "--quiet", "--detach", "upstream")
        said = refused(me)
        assert said.fix is not None
        subprocess.run(["sh", "-euc", said.fix], check=True, env=me.env, capture_output=True)
        assert again(me).action == ("updated" if changed else "unchanged")
        ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    me.git("reset", "--quiet", "--hard", "upstream")
    said = refused(me)
    assert said.fix is not None
    subprocess.run(["sh", "-euc", said.fix], check=True, env=me.env, capture_output=True)
    assert again(me).action == "unchanged"
    me.git("checkout", "--quiet", "--orphan", "other")
    me.commit("other")
    assert "starts elsewhere" in (refused(me).found or "")


def test_the_middle_of_a_rebase_is_refused(me: Author) -> None:
    (me.tree / ".git" / "rebase-merge").mkdir()
    assert "rebase --continue" in (refused(me).fix or "")


def test_a_killed_update_goes_on(me: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    ship(me, SWITCHES, me.read(SWITCHES) + b"# newer\n")
    (me.clone.overlay / VERSION / f"{KUNLUN}/binder.py").rename(me.clone.overlay / VERSION / f"{KUNLUN}/bound.py")
    # As a killed git leaves it: one file new, one gone to be written, one not yet looked at; and an old lock of ours.
    (me.tree / ".git" / "kunlunfork-index.lock").write_bytes(b"")
    me.write(f"{KUNLUN}/new.py", b"NEW = 1\n")
    (me.tree / SWITCHES).unlink()
    assert again(me, dry_run=True).action == "updated"

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    for name in ("_files", "_refs"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(gitmove, name, die)
            again(me)
    assert again(me).action == "updated"
    assert me.git("status", "--porcelain") == ""
    assert again(me).action == "unchanged"
    assert status.read(target.of_tree(me.tree), me.clone).state == "applied"


def test_the_stamp_comes_back(me: Author) -> None:
    stamp = me.tree / KUNLUN / "_build.py"
    was = stamp.read_bytes()
    me.git("clean", "-fdxq")
    assert not stamp.exists()
    assert again(me).action == "updated"
    assert stamp.read_bytes() == was
    assert again(me).action == "unchanged"


def test_a_lost_or_damaged_index(me: Author) -> None:
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    index = me.tree / ".git" / "index"
    index.write_bytes(b"nonsense")
    with pytest.raises(ForkError, match="index") as e:
        again(me)
    assert e.value.fix is not None
    subprocess.run(["sh", "-euc", e.value.fix], check=True, env=me.env, capture_output=True)
    index.unlink()
    assert again(me).action == "updated"
    assert me.git("status", "--porcelain") == ""


def test_a_pipe_where_a_file_is(me: Author) -> None:
    (me.tree / STATES).unlink()
    os.mkfifo(me.tree / STATES)
    with pytest.raises(ForkError, match="git cannot read the files") as e:
        again(me)
    assert e.value.fix


def test_a_lost_record_of_what_apply_made(me: Author) -> None:
    me.git("update-ref", "-d", gittree.APPLIED)
    with pytest.raises(ForkError, match="does not say which commit"):
        again(me)


def test_replaced_objects_are_not_followed(me: Author) -> None:
    me.git("replace", "upstream", "HEAD")
    assert again(me).action == "unchanged"


def cli(me: Author, *args: str, cwd: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kunlunfork", *args], cwd=cwd or me.tree, env={**os.environ, **env}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_loop_of_the_readme_in_the_tree_uses_the_clone_that_the_tree_remembers(me: Author) -> None:
    made = json.loads((me.tree / ".git/kunlunfork/made-from.json").read_text())
    (me.tree / ".git/kunlunfork/made-from.json").write_text(json.dumps({**made, "clone": str(me.clone.root)}))
    me.write(SWITCHES, me.read(SWITCHES) + b"# mine\n")
    me.git("commit", "-qa", "--fixup", "HEAD")
    assert "written" in cli(me, "export")
    assert "state  applied" in cli(me, "status")
    assert "updated" in cli(me, "apply", "--vllm", VERSION, ".")
    assert me.read(SWITCHES).endswith(b"# mine\n")
    assert "already" in cli(me, "apply", "--vllm", VERSION, ".")
    assert "whole" in cli(me, "verify")
    # Named, another clone is meant.
    assert "updated" in cli(me, "apply", "--vllm", VERSION, ".", KUNLUNFORK_REPO=str(REPO))
    assert "updated" in cli(me, "apply", "--vllm", VERSION, ".", "--repo", str(me.clone.root))
    assert "updated" in cli(me, "apply", "--vllm", VERSION, str(me.tree), cwd=REPO)


def test_what_is_exported_is_no_edit_any_more(me: Author) -> None:
    me.write(SWITCHES, me.read(SWITCHES) + b"# mine\n")
    me.git("commit", "-qa", "--fixup", "HEAD")
    found = status.read(target.of_tree(me.tree), me.clone)
    assert (found.state, found.exported, found.fix) == ("edited", (), f"kunlunfork export '{me.tree}'")
    me.export()
    found = status.read(target.of_tree(me.tree), me.clone)
    assert (found.state, found.edits, found.current) == ("applied", (), False)
    assert found.exported == (f"{SWITCHES}: edited",)
    assert (found.fix or "").startswith("kunlunfork apply")
    assert status.verify(target.of_tree(me.tree), me.clone, None).problems == found.exported
    again(me)
    assert status.read(target.of_tree(me.tree), me.clone).exported == ()


def test_a_lost_stamp_is_for_apply(me: Author) -> None:
    (me.tree / KUNLUN / "_build.py").unlink()
    assert (status.read(target.of_tree(me.tree), me.clone).fix or "").startswith("kunlunfork apply")


def test_worktrees_and_clones_are_told(me: Author) -> None:
    where = me.tree.parent
    me.git("worktree", "add", "-q", "-b", "topic", str(where / "worktree"))
    me.git("-c", "core.attributesFile=/dev/null", "clone", "-q", str(me.tree), str(where / "cloned"))
    for name, said in (("worktree", "is a git worktree of"), ("cloned", "is a clone of")):
        with pytest.raises(ForkError, match=said):
            target.of_tree(where / name)
    me.git("worktree", "remove", "--force", str(where / "worktree"))
    me.git("init", "-q", "--separate-git-dir", str(where / "apart"))
    with pytest.raises(ForkError, match="lies elsewhere") as e:
        target.of_tree(me.tree)
    assert e.value.fix is not None
    subprocess.run(["sh", "-euc", e.value.fix.removeprefix("bring it back: ")], check=True)
    assert again(me).action == "unchanged"


@pytest.mark.parametrize("name", [b"a\xffb", b"new\nline", b"co:lon", b'"quoted\\" ', b"#hash"])
def test_a_tree_in_a_folder_with_such_a_name(me: Author, name: bytes) -> None:
    other = me.tree.with_name(os.fsdecode(name))
    me.tree.rename(other)
    me.tree = other
    me.write(SWITCHES, me.read(SWITCHES) + b"# mine\n")
    assert me.export(include_worktree=True).writes
    assert again(me).action == "updated"
    assert me.git("status", "--porcelain") == ""
    assert again(me).action == "unchanged"
    assert status.read(target.of_tree(me.tree), me.clone).state == "applied"


def test_a_shallow_tree_is_told(me: Author) -> None:
    (me.tree / ".git" / "shallow").write_text(me.git("rev-parse", "HEAD~1") + "\n")
    for what in (again, Author.plan):
        with pytest.raises(ForkError, match="is shallow"):
            what(me)


def test_a_lock_that_a_killed_git_left(me: Author) -> None:
    ship(me, f"{KUNLUN}/new.py", b"NEW = 1\n")
    for name in ("index.lock", "HEAD.lock"):
        lock = me.tree / ".git" / name
        lock.touch()
        with pytest.raises(ForkError) as e:
            again(me)
        assert e.value.fix is not None
        assert str(lock) in (e.value.found or "")
        lock.unlink()
    assert again(me).action == "updated"
    assert me.git("status", "--porcelain") == ""


def test_a_git_folder_that_may_not_be_searched(me: Author) -> None:
    (me.tree / ".git").chmod(0o600)
    try:
        with unprivileged(me.tree), pytest.raises(ForkError, match="cannot be read") as e:
            target.of_tree(me.tree)
        assert "Permission denied" in (e.value.found or "")
    finally:
        (me.tree / ".git").chmod(0o755)
