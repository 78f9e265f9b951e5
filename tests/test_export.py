"""Commits go back to patches and overlay; what nobody changed stays byte for byte."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream

from kunlunfork import cli, exportfiles, gittree, lint, make, overlay, series, status, target
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.progress import Silent

ENVS = "vllm/envs.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
STATES = "vllm/v1/worker/gpu/states.py"
SWITCHES = "vllm/v1/worker/gpu/kunlun/switches.py"
FIELDS = "\n\nUpstream-Status: Pending\nRemove-When: never\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, content: Content) -> Author:
    return gitkit.author(tmp_path_factory.mktemp("author"), upstream, content)


@pytest.fixture
def me(template: Author, tmp_path: Path) -> Author:
    return gitkit.copy(template, tmp_path)


def names(me: Author) -> list[str]:
    return [line.split(" ", 1)[1] for line in me.git("log", "--reverse", "--format=%h %s").splitlines()]


def test_a_fresh_tree_is_clean_for_a_user_whose_git_is_set_up_badly(me: Author, content: Content) -> None:
    assert me.git("status", "--porcelain") == ""
    assert me.git("diff", "--no-ext-diff", "--stat", "upstream", "HEAD", "--", STATES) == ""
    fork = series.load_series(content.patches / VERSION)
    assert names(me) == [f"vLLM {VERSION}", *(p.header.subject for p in fork), f"Overlay for vLLM {VERSION}"]
    assert status.read(target.of_tree(me.tree), me.clone).state == "applied"
    me.git("update-index", "--really-refresh")
    assert me.git("branch", "--format=%(refname:short)").split() == [f"kunlun-{VERSION}", "upstream"]


def test_the_same_fork_gives_the_same_commits(me: Author, tmp_path: Path, upstream: Upstream, content: Content) -> None:
    other = gitkit.author(tmp_path / "other", upstream, content)
    assert me.git("rev-parse", "HEAD") == other.git("rev-parse", "HEAD")


def test_an_untouched_tree_exports_to_no_change_at_all(me: Author) -> None:
    planned = me.plan()
    assert planned.writes == ()
    assert planned.warnings == ()
    me.git("rebase", "--quiet", "--force-rebase", "upstream")  # other ids, committers and dates of commit
    assert me.export().writes == ()
    assert me.changed() == set()


def test_one_line_of_a_launcher_and_one_of_a_patch(me: Author, content: Content) -> None:
    """The main story: an overlay file and a patched file change, nothing else does."""
    me.replace(SWITCHES, b"\n", b"\n# one line\n")
    me.commit("Say one line")
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # noqa")
    me.commit("fixup! Take the V2 runner of the GPU worker from model_runner_v2")
    me.export()
    assert me.changed() == {f"overlay/{VERSION}/{SWITCHES}", f"patches/{VERSION}/gpu-worker-runner.patch"}
    assert b"\n# one line\n" in (me.clone.overlay / VERSION / SWITCHES).read_bytes()
    before, after = (
        raw.split(b"\n") for raw in (me.start[f"patches/{VERSION}/gpu-worker-runner.patch"],
                                     me.patch("gpu-worker-runner.patch"))
    )  # fmt: skip
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 2, "the index line and the line itself"
    me.check()


def test_a_new_commit_becomes_a_patch(me: Author, content: Content, upstream: Upstream) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\n\nKUNLUN = 1\n")
    me.commit("Keep states — ünïcode, *and* (more)!" + "\n\nBecause." + FIELDS)
    planned = me.export()
    assert planned.warnings == ()
    assert me.series()[-1] == "keep-states-n-code-and-more.patch"
    raw = me.patch(me.series()[-1]).decode()
    assert raw.startswith("From: Zoë Ångström <zoe@example.org>\nDate: ")
    assert "\nSubject: Keep states — ünïcode, *and* (more)!\n" in raw
    assert f"\nTouches: {STATES}::\n\nBecause.\n---\ndiff --git a/{STATES} b/{STATES}\nindex " in raw
    assert "Kunlunfork" not in raw
    me.check()
    files = {p: (f.entry, f.data, f.source) for p, f in overlay.resolve(me.clone.overlay, VERSION).files.items()}
    assert lint.lint(me.clone.patches / VERSION, files, upstream.files.get) == ()


def test_what_a_commit_does_not_say_is_said(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\n\n")
    me.commit("Space")
    [warning] = me.export().warnings
    assert warning.startswith("space.patch: say Upstream-Status and Remove-When")
    assert b"\nUpstream-Status: Pending\n" in me.patch("space.patch")


@pytest.mark.parametrize(
    "body",
    [
        "---\ntext after a separator",
        "diff --git a/x b/x",
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\nFrom: me",
        "trailing spaces   \n\tand tabs\t",
        "Ünïcode: 行列\u2028",
        "-- \n2.39",
        "@@ -1 +1 @@\n-a\n+b",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b",
        "diff --git a/x b/x\nindex 257cc56..5716ca5 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-foo\n+bar",
        "<<<<<<< ours\n=======\n>>>>>>> theirs",
        "# a line that looks like a comment",
    ],
)
def test_hostile_messages(me: Author, body: str) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\n\n\n")
    me.commit("Change" + "\n\n" + body + FIELDS)
    me.export()
    raw = me.patch("change.patch").decode()
    for line in body.split("\n"):
        assert f"\n{line}\n" in raw or f"\n {line}\n" in raw
    me.check()


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-8"])
def test_commits_in_another_encoding(me: Author, encoding: str) -> None:
    me.git("config", "i18n.commitEncoding", encoding)
    me.replace(STATES, b"import torch\n", b"import torch\n\n\n")
    me.git("add", "--update")
    message = "Größer\n\nÄrger".encode(encoding) + FIELDS.encode()
    subprocess.run(["git", "commit", "-qF", "-"], cwd=me.tree, env=me.env, input=message, check=True)
    me.export()
    assert "\nSubject: Größer\n" in me.patch("gr-er.patch").decode()
    assert "\nÄrger\n" in me.patch("gr-er.patch").decode()


def test_reorder(me: Author) -> None:
    before = me.series()
    me.rebase("sed '1{h;d};2{G}'")
    me.export()
    assert me.series() == [before[1], before[0], *before[2:]]
    assert me.changed() == {f"patches/{VERSION}/series"}, "nothing overlaps, so the patches stay"
    me.check()


def test_drop(me: Author) -> None:
    name = me.series()[-1]
    subject = series.load_series(me.clone.patches / VERSION)[-1].header.subject
    me.rebase(f"sed '/{subject.replace('/', '.')}/d'")
    planned = me.export()
    assert name not in me.series()
    assert not (me.clone.patches / VERSION / name).exists()
    assert {str(w.path) for w in planned.writes} == {f"patches/{VERSION}/{name}", f"patches/{VERSION}/series"}
    me.check()


def test_reword(me: Author) -> None:
    first = me.git("rev-list", "--reverse", "HEAD").split()[1]
    message = me.git("log", "-1", "--format=%B", first)
    me.git("rebase", "--quiet", "-i", "upstream",
           GIT_SEQUENCE_EDITOR="sed -i '1s/^pick/reword/'",
           GIT_EDITOR="sed -i '1s/.*/Another subject/'")  # fmt: skip
    assert names(me)[1] == "Another subject"
    me.export()
    name = me.series()[0]
    assert me.changed() == {f"patches/{VERSION}/{name}"}
    old = me.start[f"patches/{VERSION}/{name}"]
    assert me.patch(name) == old.replace(message.split("\n")[0].encode(), b"Another subject", 1)


def test_squash_joins_the_texts_and_fixup_does_not(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\n\n\n")
    me.commit("One" + "\n\nFirst." + FIELDS)
    me.replace(STATES, b"import torch\n", b"import torch\n# 2\n")
    me.commit("squash! One\n\nSecond.")
    me.replace(STATES, b"# 2\n", b"# 3\n")
    me.commit("fixup! One\n\nNever seen.")
    me.replace(STATES, b"# 3\n", b"# 4\n")
    me.commit("fixup! fixup! One")
    me.export()
    raw = me.patch("one.patch")
    assert b"\nFirst.\n\nSecond.\n---\n" in raw
    assert b"Never seen" not in raw
    assert b"\n+# 4\n" in raw
    me.check()
    me.git("rebase", "--quiet", "-i", "--autosquash", "upstream")
    assert me.plan().writes == (), "git joins them as we did"


def test_a_squash_by_git_keeps_the_name_of_the_patch(me: Author) -> None:
    """git writes the text of a `squash!` commit below the fields of the one that it joins."""
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # noqa")
    me.commit("squash! Take the V2 runner of the GPU worker from model_runner_v2\n\nSecond.")
    me.git("rebase", "--quiet", "-i", "--autosquash", "upstream")
    me.export()
    assert me.changed() == {f"patches/{VERSION}/gpu-worker-runner.patch"}
    assert b".\n\nSecond.\n---\n" in me.patch("gpu-worker-runner.patch")


def test_amend_takes_the_new_message(me: Author) -> None:
    subject = names(me)[2]
    me.git("commit", "--quiet", "--allow-empty", f"--fixup=reword:{me.git('rev-parse', 'HEAD~6')}",
           GIT_EDITOR="sed -i '3s/.*/A better subject/'")  # fmt: skip
    name = me.series()[1]
    assert me.git("log", "-1", "--format=%s") == f"amend! {subject}"
    me.export()
    assert b"\nSubject: A better subject\n" in me.patch(name)
    assert me.changed() == {f"patches/{VERSION}/{name}"}


def test_a_fixup_that_has_to_pass_other_commits(me: Author) -> None:
    """It joins its commit by a merge; where that conflicts, the user settles it."""
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("Add A" + FIELDS)
    me.write(STATES, me.read(STATES) + b"\nB = 1\n")
    me.commit("Add B" + FIELDS)
    me.replace(STATES, b"A = 1\n", b"A = 2\n")
    me.commit("fixup! Add A")
    me.export()
    assert b"\n+A = 2\n" in me.patch("add-a.patch")
    assert b"A = " not in me.patch("add-b.patch")
    me.check()
    me.replace(STATES, b"\nB = 1\n", b"\nB = 2\n")
    me.commit("fixup! Add A")
    with pytest.raises(ForkError, match="cannot join") as error:
        me.plan()
    assert error.value.exit_code == CONFLICT
    assert "git rebase -i --autosquash upstream" in (error.value.fix or "")


def test_split_a_commit(me: Author) -> None:
    """Two commits that say the same name: the first keeps it."""
    name = me.series()[-1]
    head = me.git("rev-parse", "HEAD~1")
    message = me.git("log", "-1", "--format=%B", head)
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit(message.replace(message.split("\n")[0], "The other half"))
    me.export()
    assert me.series()[-2:] == [name, "the-other-half.patch"]
    assert me.changed() == {f"patches/{VERSION}/the-other-half.patch", f"patches/{VERSION}/series"}
    me.check()


def test_a_commit_of_both_kinds_is_split_and_said(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.write("vllm/v1/worker/gpu/kunlun/extra.py", "X = 1\n")
    me.commit("Both" + FIELDS, ".")
    planned = me.export()
    assert any("split" in note for note in planned.notes)
    assert (me.clone.overlay / VERSION / "vllm/v1/worker/gpu/kunlun/extra.py").read_text() == "X = 1\n"
    assert b"extra.py" not in me.patch("both.patch")
    me.check()


KINDS = {
    "a deletion": lambda me: (me.tree / STATES).unlink(),
    "a mode": lambda me: (me.tree / STATES).chmod(0o755),
    "a rename": lambda me: (me.tree / STATES).rename(me.tree / "vllm/v1/worker/gpu/renamed.py"),
    "a binary file": lambda me: me.write(STATES, bytes(range(256)) * 9),
    "an empty file": lambda me: me.write(STATES, b""),
    "no newline at the end": lambda me: me.write(STATES, me.read(STATES).rstrip(b"\n")),
    "CRLF": lambda me: me.write(STATES, me.read(STATES).replace(b"\n", b"\r\n")),
    "a link": lambda me: ((me.tree / STATES).unlink(), (me.tree / STATES).symlink_to("model_runner.py")),
    "Latin-1": lambda me: me.write(STATES, me.read(STATES) + b"# \xe9\n"),
    "form feeds and U+2028": lambda me: me.write(STATES, me.read(STATES) + "# \f \u2028 x\n".encode()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_survives(me: Author, kind: str) -> None:
    KINDS[kind](me)
    me.commit("Change" + FIELDS, ".")
    me.export()
    assert me.series()[-1] == "change.patch"
    assert not (me.clone.overlay / VERSION / "vllm/v1/worker/gpu/renamed.py").exists()
    me.check()


OVERLAY_KINDS = {
    "a deletion": lambda me: (me.tree / SWITCHES).unlink(),
    "a name with quotes": lambda me: me.write('vllm/a "b"\\ ü.py', "X = 1\n"),
    "a link": lambda me: (me.tree / "vllm/link.py").symlink_to("envs.py"),
    "a binary file": lambda me: me.write("vllm/data.bin", bytes(range(256))),
    "an empty file": lambda me: me.write("vllm/empty.py", b""),
    "CRLF": lambda me: me.write("vllm/crlf.py", b"a\r\nb\r\n"),
    "a file for a folder": lambda me: me.write("vllm/deep/er/x.py", b""),
}  # fmt: skip


@pytest.mark.parametrize("kind", OVERLAY_KINDS)
def test_every_kind_of_overlay_file_survives(me: Author, kind: str) -> None:
    OVERLAY_KINDS[kind](me)
    me.commit("Change", ".")
    me.export()
    assert me.series() == (me.start[f"patches/{VERSION}/series"].decode()).split()
    assert {name.split("/")[0] for name in me.changed()} == {"overlay"}
    me.check()
    me.git("revert", "--no-edit", "HEAD")
    me.export()
    assert me.changed() == set(), "and back"


def test_the_work_tree_is_said_and_taken_only_when_asked(me: Author) -> None:
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # noqa")
    me.write("vllm/v1/worker/gpu/kunlun/extra.py", "X = 1\n")
    planned = me.plan()
    assert planned.writes == ()
    [warning] = planned.warnings
    assert "gpu_worker.py" in warning and "extra.py" in warning and "--include-worktree" in warning
    before = me.git("status", "--porcelain"), me.git("rev-parse", "HEAD"), me.git("count-objects")
    assert me.plan(include_worktree=True).writes
    assert (me.git("status", "--porcelain"), me.git("rev-parse", "HEAD"), me.git("count-objects")) == before
    me.export(include_worktree=True)
    assert me.changed() == {
        f"overlay/{VERSION}/vllm/v1/worker/gpu/kunlun/extra.py", f"patches/{VERSION}/gpu-worker-runner.patch",
    }  # fmt: skip
    assert me.git("status", "--porcelain") == "", "they are committed"
    me.git("fsck", "--strict")
    assert me.plan().writes == (), "so that the next export does not take them out again"


def test_an_edit_that_belongs_to_no_patch_is_not_guessed(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    with pytest.raises(ForkError, match="belong to no patch") as error:
        me.plan(include_worktree=True)
    assert list(error.value.details) == [f"{STATES}: no patch changes it"]
    me.commit("One" + FIELDS)
    me.write(STATES, me.read(STATES) + b"B = 1\n")
    me.commit("Two" + FIELDS)
    me.write(STATES, me.read(STATES) + b"C = 1\n")
    with pytest.raises(ForkError, match="belong to no patch") as error:
        me.plan(include_worktree=True)
    assert "Two" in error.value.details[0] and "One" in error.value.details[0]


def test_what_is_no_line_of_a_fork_is_refused(me: Author, tmp_path: Path) -> None:
    start = me.git("rev-parse", "HEAD")
    me.git("switch", "--quiet", "-c", "side")
    me.git("commit", "--quiet", "--allow-empty", "-m", "side")
    me.git("switch", "--quiet", f"kunlun-{VERSION}")
    me.git("commit", "--quiet", "--allow-empty", "-m", "main")
    me.git("merge", "--quiet", "--no-edit", "side")
    with pytest.raises(ForkError, match="merge"):
        me.plan()
    me.git("reset", "--quiet", "--hard", start)
    me.git("commit", "--quiet", "--allow-empty", "-m", "fixup! nobody")
    with pytest.raises(ForkError, match="joins another that is not there"):
        me.plan()
    me.git("switch", "--quiet", "--orphan", "empty")
    me.git("commit", "--quiet", "--allow-empty", "-m", "root")
    with pytest.raises(ForkError, match="no history of a fork"):
        me.plan()


def test_in_the_middle_of_a_rebase(me: Author) -> None:
    me.git("rebase", "--quiet", "-i", "upstream", GIT_SEQUENCE_EDITOR="sed -i '1s/^pick/edit/'")
    with pytest.raises(ForkError, match="middle of something") as error:
        me.plan()
    assert "git rebase --continue" in (error.value.fix or "")


def test_a_lost_overlay_commit_does_not_delete_the_overlay(me: Author) -> None:
    me.git("reset", "--quiet", "--hard", "HEAD~1")
    with pytest.raises(ForkError, match="overlay is gone"):
        me.plan()


def test_a_newer_clone_is_never_written_over(me: Author) -> None:
    file = me.clone.overlay / VERSION / SWITCHES
    file.write_bytes(file.read_bytes() + b"# newer\n")
    me.replace(SWITCHES, b"\n", b"\n# mine\n")
    me.commit("Mine")
    with pytest.raises(ForkError, match="has changed since") as error:
        me.export()
    assert error.value.exit_code == CONFLICT
    assert SWITCHES in error.value.details[0]
    assert file.read_bytes().endswith(b"# newer\n")


def test_names_of_patches_that_leave_the_folder(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("One\n\nKunlunfork-Patch: ../../evil.patch")
    with pytest.raises(ForkError, match="none of the series") as error:
        me.plan()
    assert error.value.found == "../../evil.patch"


def test_apply_follows_the_clone_and_loses_nothing(me: Author) -> None:
    def apply(dry_run: bool = False) -> str:
        found = target.of_tree(me.tree)
        return make.bring_up_to_date(
            me.clone, found, me.store, wanted=VERSION, dry_run=dry_run, progress=Silent()
        ).action

    assert apply() == "unchanged"
    me.replace(SWITCHES, b"\n", b"\n# one line\n")
    me.commit("fixup! Overlay for vLLM " + VERSION)
    assert apply() == "unchanged", "the clone is as it was; the commit is the user's"
    file = me.clone.patches / VERSION / "gpu-worker-runner.patch"
    file.write_bytes(file.read_bytes().replace(b"Upstream-Status", b"X-More: y\nUpstream-Status", 1))
    with pytest.raises(ForkError, match="would lose") as error:
        apply()
    assert error.value.exit_code == CONFLICT
    assert any("fixup! Overlay" in line for line in error.value.details)
    file.write_bytes(me.start[f"patches/{VERSION}/gpu-worker-runner.patch"])
    me.export()
    assert apply(dry_run=True) == "updated"
    assert names(me)[-1].startswith("fixup!")
    assert apply() == "updated"
    assert names(me)[-1] == f"Overlay for vLLM {VERSION}"
    assert me.git("status", "--porcelain") == ""
    assert b"# one line" in me.read(SWITCHES)
    assert status.read(target.of_tree(me.tree), me.clone).state == "applied"
    assert status.read(target.of_tree(me.tree), me.clone).current
    assert apply() == "unchanged"
    assert me.plan().writes == ()
    me.write(STATES, me.read(STATES) + b"# edited\n")
    file.write_bytes(file.read_bytes().replace(b"Upstream-Status", b"X-More: y\nUpstream-Status", 1))
    with pytest.raises(ForkError, match="edits that apply would lose"):
        apply()
    me.git("checkout", "--", STATES)
    assert apply() == "updated"
    assert "X-More: y" in me.git("log", "--format=%B")


def test_edits_in_the_commit_of_upstream_are_not_lost_unsaid(me: Author) -> None:
    base = me.git("rev-parse", "upstream")
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("fixup! vLLM " + VERSION)
    me.git("rebase", "--quiet", "-i", "--autosquash", "--root")
    assert me.git("rev-list", "--max-parents=0", "HEAD") != base
    with pytest.raises(ForkError, match="commit of upstream is not as apply made it") as error:
        me.plan()
    assert error.value.exit_code == CONFLICT
    assert list(error.value.details) == [f"{STATES}: changed"]
    fix = (error.value.fix or "").partition(": ")[2]
    subprocess.run(["sh", "-euc", fix], env=me.env, check=True, capture_output=True)
    assert me.git("rev-list", "--max-parents=0", "HEAD") == base
    me.export()
    assert b"\n+A = 1\n" in me.patch("edits-of-upstream.patch")
    me.check()


def test_a_tree_that_cannot_tell_what_apply_made_says_so(me: Author) -> None:
    me.git("update-ref", "-d", "refs/kunlunfork/applied")
    [warning] = me.plan().warnings
    assert "refs/kunlunfork/applied" in warning


def test_a_second_commit_that_says_it_is_upstream(me: Author) -> None:
    """What lies below it would be taken for upstream's."""
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit(f"Mine\n\nKunlunfork-Base: {VERSION}")
    with pytest.raises(ForkError, match="says that it is upstream's") as error:
        me.plan()
    assert error.value.exit_code == CONFLICT


def test_what_is_staged_and_differs_from_the_file_is_not_dropped(me: Author) -> None:
    extra = "vllm/v1/worker/gpu/kunlun/extra.py"
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # staged")
    me.write(extra, "X = 1\n")
    me.git("add", "--all")
    me.export(include_worktree=True)
    staged, again = me.read(WORKER) + b"# staged\n", me.read(WORKER)
    me.write(WORKER, staged)
    me.write("vllm/new.py", "X = 1\n")
    me.git("rm", "--quiet", "--cached", extra)  # and is there still
    me.git("add", WORKER, "vllm/new.py")
    me.write(WORKER, again)
    (me.tree / "vllm/new.py").unlink()
    before = me.files(), me.git("status", "--porcelain"), me.git("rev-parse", "HEAD")
    with pytest.raises(ForkError, match="staged") as error:
        me.export(include_worktree=True)
    assert error.value.exit_code == CONFLICT
    assert [line.partition(":")[0] for line in error.value.details] == sorted([extra, "vllm/new.py", WORKER])
    assert (me.files(), me.git("status", "--porcelain"), me.git("rev-parse", "HEAD")) == before
    me.write(WORKER, staged)
    me.git("add", "--all")
    me.export(include_worktree=True)
    assert b"+# staged\n" in me.patch("gpu-worker-runner.patch")


@pytest.mark.parametrize("field", ["From: me <me@example.org>", "subject: Other", "Date: today"])
def test_fields_that_a_header_has_of_its_own(me: Author, field: str) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("One\n\n" + field + "\nUpstream-Status: Pending\nRemove-When: never\n")
    with pytest.raises(ForkError, match="cannot stand in a patch's header") as error:
        me.plan()
    assert field in (error.value.found or "")


def test_a_name_that_is_too_long_for_a_file(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit(f"One\n\nKunlunfork-Patch: {'x' * 300}.patch")
    with pytest.raises(ForkError, match="none of the series"):
        me.plan()


@pytest.mark.parametrize("how", ["a pipe", "a giant", "damaged", "deep", "another schema"])
def test_a_record_that_cannot_be_read(me: Author, how: str) -> None:
    file = gittree.state(me.tree) / exportfiles.MADE_FROM
    file.unlink()
    if how == "a pipe":
        os.mkfifo(file)
    elif how == "a giant":
        with file.open("wb") as out:
            out.truncate(1 << 40)
    else:
        file.write_text({"damaged": '{"schema": 1, "files": {"a"', "deep": "[" * 100000}.get(how, '{"schema": 9}'))
    assert exportfiles.clone(gittree.state(me.tree)) is None
    me.replace(SWITCHES, b"\n", b"\n# one line\n")
    me.commit("Mine")
    with pytest.raises(ForkError, match=exportfiles.MADE_FROM) as error:
        me.export()
    assert "new git tree" in (error.value.fix or "")
    assert me.changed() == set()


def test_folders_whose_names_are_not_utf8(me: Author, tmp_path: Path) -> None:
    """As the verb does it, its JSON included."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.mkdir()
    me.tree.rename(odd / "tree")
    me.clone.root.rename(odd / "clone")
    me.tree = odd / "tree"
    me.replace(SWITCHES, b"\n", b"\n# one line\n")
    me.commit("Mine")
    args = [sys.executable, "-m", "kunlunfork", "export", str(odd / "tree"), "--repo", str(odd / "clone"), "--json"]
    for expected in (1, 0):
        done = subprocess.run(args, env=me.env, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["result"]["written"]) == expected
    assert exportfiles.clone(gittree.state(odd / "tree")) == odd / "clone"


def test_no_room_for_temporary_files(
    me: Author, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")

    monkeypatch.setattr("shutil.copyfile", full)
    assert cli.run(["export", str(me.tree), "--repo", str(me.clone.root)]) == 1
    assert "TMPDIR=" in capsys.readouterr().err


def test_a_file_that_the_gitignore_of_the_clone_hides_is_said(me: Author, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "-q", me.clone.root], check=True, env=me.env)
    (me.clone.root / ".gitignore").write_text("build/\n")
    me.write("vllm/build/x.py", "X = 1\n")
    me.write("vllm/built.py", "X = 1\n")
    me.git("add", "--force", "vllm/build/x.py", "vllm/built.py")
    me.git("commit", "-qm", "Overlay")
    assert cli.run(["export", str(me.tree), "--repo", str(me.clone.root)]) == 0
    assert f"git add --force overlay/{VERSION}/vllm/build/x.py\n" in capsys.readouterr().err
