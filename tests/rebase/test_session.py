"""A rebase that stops at a conflict: the work tree, going on, leaving out, taking back, and being killed anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rebasekit import World, lines
from support import digest

from kunlunfork import steps
from kunlunfork.cache import Cache
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK
from kunlunfork.progress import Silent
from kunlunfork.rebase.driver import Driver
from kunlunfork.rebase.report import Request
from kunlunfork.rebase.session import Session
from kunlunfork.sources.base import Settings

A, B = b"vllm/a.py", b"vllm/b.py"
BASE = lines("one", "two", "three", count=12)
SIX = b"two_6 = x + 6"
EDITED = BASE.replace(SIX, b"two_6 = x - 6")
UPSTREAM = BASE.replace(SIX, b"two_6 = [x]")
RESOLVED = BASE.replace(SIX, b"two_6 = [x - 6]")


@pytest.fixture
def stopped(world: World) -> World:
    """A rebase that stopped at the second of three patches, on the first of two steps."""
    world.release("1.0", {A: BASE, B: BASE})
    world.patch("first", {B: EDITED})
    world.patch("bad", {A: EDITED})
    world.patch("last", {A: EDITED.replace(b"one_1 = x + 1", b"one_1 = x - 1")})
    world.release("1.1", {A: UPSTREAM, B: BASE})
    world.release("1.2", {A: b"import os\n" + UPSTREAM, B: b"import os\n" + BASE})
    before = world.digest()
    report = world.begin("1.2")
    assert report.state == "stopped"
    after = world.digest()
    assert {k: v for k, v in after.items() if not k.startswith(".kunlunfork")} == before, "nothing of the clone changes"
    return world


def finished(world: World) -> None:
    assert not (world.clone.root / ".kunlunfork").exists()
    made = world.rebased("1.2")
    assert made[A] == (REGULAR, b"import os\n" + RESOLVED.replace(b"one_1 = x + 1", b"one_1 = x - 1"))
    assert made[B] == (REGULAR, b"import os\n" + EDITED)
    assert (world.clone.patches / "1.2" / "series").read_text().split("\n")[1:] == [
        "first.patch", "bad.patch", "last.patch", "",
    ]  # fmt: skip


def test_the_work_tree_is_one_of_gits(stopped: World) -> None:
    assert sorted(p.name for p in stopped.session.work.rglob("*") if ".git" not in p.parts and p.is_file()) == ["a.py"]
    rows = {row.split()[2]: row.split()[1] for row in stopped.git("ls-files", "-s").splitlines()}
    assert [stopped.git("cat-file", "blob", rows[stage]).encode() for stage in "123"] == [BASE, UPSTREAM, EDITED]
    shown = stopped.work(A).read_bytes()
    assert shown.count(b"<<<<<<< vLLM 1.1\n") == 1
    assert shown.count(b"||||||| vLLM 1.0\n") == 1
    assert shown.count(b">>>>>>> bad.patch on vLLM 1.0\n") == 1
    text = stopped.session.text.read_text()
    assert "bad.patch does not fit vLLM 1.1." in text
    assert "-    two_6 = x + 6\n+    two_6 = [x]" in text
    assert stopped.git("checkout", "--theirs", "vllm/a.py") == ""
    assert stopped.work(A).read_bytes() == EDITED


def test_the_users_mergetool(stopped: World) -> None:
    tool = stopped.folder / "tool"
    tests = ('grep -q "x + 6" "$1"', 'grep -q "\\[x\\]" "$2"', 'grep -q "x - 6" "$3"', 'cp "$3" "$4"')
    tool.write_text("#!/bin/sh\n" + " && ".join(tests) + "\n")
    tool.chmod(0o755)
    command = f'"{tool}" "$BASE" "$LOCAL" "$REMOTE" "$MERGED"'
    stopped.git("-c", f"mergetool.mine.cmd={command}", "-c", "mergetool.mine.trustExitCode=true", "mergetool", "-y",
                "--tool=mine")  # fmt: skip
    assert stopped.driver.go_on(stopped.session).state == "done"
    assert stopped.rebased("1.2")[A][1].count(b"two_6 = x - 6") == 1


def test_resolved(stopped: World) -> None:
    stopped.work(A).write_bytes(RESOLVED)
    report = stopped.driver.go_on(stopped.session)
    assert [(o.patch, o.kind) for o in report.run.outcomes if o.version == "1.1"] == [
        ("first.patch", "unchanged"), ("bad.patch", "merged"), ("last.patch", "unchanged"),
    ]  # fmt: skip
    finished(stopped)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "as it was left for you"),
        (RESOLVED.replace(b"def two", b"<<<<<<< mine\ndef two"), "line 16: a conflict marker"),
        (RESOLVED.replace(b"def two", b"=======\ndef two"), "a conflict marker"),
        (RESOLVED.replace(b"def two", b"||||||| base\r\ndef two"), "a conflict marker"),
        (RESOLVED.replace(b"def two(x)", b"def two(x"), "not Python"),
    ],
)
def test_not_resolved(stopped: World, data: bytes | None, why: str) -> None:
    if data is not None:
        stopped.work(A).write_bytes(data)
        stopped.git("add", ".")  # whatever git says
    before = stopped.digest()
    with pytest.raises(ForkError) as error:
        stopped.driver.go_on(stopped.session)
    assert error.value.exit_code == CONFLICT
    assert why in " ".join(error.value.details)
    assert stopped.digest() == before
    stopped.work(A).write_bytes(RESOLVED)
    stopped.driver.go_on(stopped.session)
    finished(stopped)


def test_what_is_resolved_is_remembered(stopped: World) -> None:
    stopped.work(A).write_bytes(RESOLVED)
    stopped.driver.go_on(stopped.session)
    [file] = (stopped.clone.root / "ci" / "resolutions").iterdir()
    shutil.rmtree(stopped.clone.patches / "1.2")
    report = stopped.begin("1.2")
    assert report.state == "done"
    [bad] = [o for o in report.run.outcomes if (o.patch, o.version) == ("bad.patch", "1.1")]
    assert bad.how == (f"vllm/a.py: resolved as before (ci/resolutions/{file.name})",)
    finished(stopped)
    # Not where one of the three is another, ...
    shutil.rmtree(stopped.clone.patches / "1.2")
    stopped.release("1.3", {A: UPSTREAM + b"x = 1\n", B: BASE})
    assert stopped.look("1.3", leap=True).run.stop is not None
    # ... and not where the result is not what was kept, or does not parse.
    raw = file.read_bytes()
    for bad_raw in (raw.replace(b"[x - 6]", b"[x - 7]"), raw.replace(b"[x - 6]", b"[x - 6"), raw[: len(raw) // 2], b""):
        file.write_bytes(bad_raw)
        assert stopped.look("1.2").run.stop is not None
    file.write_bytes(raw)
    assert stopped.look("1.2").run.stop is None


def test_skip_leaves_the_patch_out_and_says_why(stopped: World) -> None:
    report = stopped.driver.skip(stopped.session, "done\nin another way")
    assert report.state == "done"
    assert (stopped.clone.patches / "1.2" / "series").read_text().splitlines() == [
        "# a comment", "first.patch", "last.patch",
        "# left out by rebase: bad.patch: skipped at 1.1: done in another way",
    ]  # fmt: skip
    assert [(o.patch, o.kind) for o in report.run.outcomes if o.version == "1.1"] == [
        ("first.patch", "unchanged"), ("bad.patch", "skipped"), ("last.patch", "unchanged"),
    ]  # fmt: skip
    assert stopped.rebased("1.2")[A][1] == b"import os\n" + UPSTREAM.replace(b"one_1 = x + 1", b"one_1 = x - 1")


def test_abort_restores_exactly(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("bad", {A: EDITED})
    world.release("1.1", {A: UPSTREAM})
    before = world.digest()
    world.begin()
    world.work(A).write_bytes(RESOLVED)
    assert world.driver.abort(world.session) == "1.1"
    assert world.digest() == before
    out = world.folder / "out"
    world.driver.begin(Session(out), Request("1.1", out=out))
    world.driver.abort(Session(out))
    assert not out.exists()


def test_a_release_that_was_pruned_meanwhile(stopped: World) -> None:
    stopped.store.drop(stopped.bases["1.1"])
    stopped.store.collect()
    settings = Settings(Cache(stopped.folder / "cache"), None, True, Silent())
    with pytest.raises(ForkError, match=r"vLLM 1\.1 is not in the store") as error:
        Driver(stopped.clone, stopped.store, settings).go_on(stopped.session)
    assert error.value.fix == "once without --offline"
    stopped.release("1.1", {A: UPSTREAM, B: BASE})
    stopped.work(A).write_bytes(RESOLVED)
    stopped.driver.go_on(stopped.session)
    finished(stopped)


def test_one_rebase_at_a_time(stopped: World) -> None:
    with pytest.raises(ForkError, match="under way") as error:
        stopped.begin("1.1")
    assert error.value.exit_code == CONFLICT
    assert stopped.driver.status(stopped.session).run.stop is not None


def test_no_rebase(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    before = world.digest()
    for step in (world.driver.go_on, world.driver.status, world.driver.abort, lambda s: world.driver.skip(s, "")):
        with pytest.raises(ForkError, match="no rebase is under way"):
            step(world.session)
    assert world.digest() == before


def test_the_series_may_not_change_meanwhile(stopped: World) -> None:
    file = stopped.patches / "first.patch"
    raw = file.read_bytes()
    file.write_bytes(raw.replace(b"Why.", b"Because."))
    with pytest.raises(ForkError, match="has changed since"):
        stopped.driver.go_on(stopped.session)
    file.write_bytes(raw)
    stopped.work(A).write_bytes(RESOLVED)
    stopped.driver.go_on(stopped.session)
    finished(stopped)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"schema": 2}', b'{"schema": 1}', b"\xff"])
def test_a_state_that_cannot_be_read(stopped: World, raw: bytes) -> None:
    (stopped.session.folder / "state.json").write_bytes(raw)
    with pytest.raises(ForkError, match=r"state\.json cannot be read"):
        stopped.driver.go_on(stopped.session)
    assert stopped.driver.abort(stopped.session) is None
    assert not stopped.session.folder.exists()


def test_the_folder_is_a_link_or_cannot_be_made(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.release("1.1", {A: BASE})
    elsewhere = world.folder / "elsewhere"
    (elsewhere / "rebase").mkdir(parents=True)
    place = world.clone.root / ".kunlunfork"
    place.symlink_to(elsewhere)
    with pytest.raises(ForkError, match="is a link"):
        world.begin()
    assert (elsewhere / "rebase").is_dir()
    place.unlink()
    place.write_text("a file")
    with pytest.raises(ForkError, match="cannot be made"):
        world.begin()
    place.unlink()
    assert world.begin().state == "done"


def test_a_file_that_cannot_be_written(stopped: World) -> None:
    """What the disk refuses is told, and nothing is lost."""
    stopped.work(A).write_bytes(RESOLVED)
    (stopped.clone.root / "ci").write_text("in the way")
    with pytest.raises(ForkError, match="cannot be"):
        stopped.driver.go_on(stopped.session)
    (stopped.clone.root / "ci").unlink()
    stopped.driver.go_on(stopped.session)
    finished(stopped)


def test_a_pin_that_is_there(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.release("1.1", {A: BASE})
    world.begin()
    before = world.digest()
    with pytest.raises(ForkError, match=r"has patches for vLLM 1\.1 already"):
        world.begin(start="1.0")
    assert world.digest() == before


def test_a_work_tree_that_was_deleted_is_made_again(stopped: World) -> None:
    shown = stopped.work(A).read_bytes()
    shutil.rmtree(stopped.session.work)
    assert stopped.driver.status(stopped.session).work == stopped.session.work
    assert stopped.work(A).read_bytes() == shown


def test_a_pin_that_neither_sdist_nor_index_tell(world: World) -> None:
    """Offline there is no word of the index: a pin made by hand is taken as it is."""
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.release("1.1", {A: BASE})
    settings = Settings(Cache(world.folder / "cache"), None, True, Silent())
    driver = Driver(world.clone, world.store, settings)
    with pytest.raises(ForkError, match=r"the pin of vLLM 1\.1 cannot be made"):
        driver.begin(world.session, Request("1.1"))
    assert world.session.is_there()
    old, new = (world.bases[version].origin.encode() for version in ("1.0", "1.1"))
    pin = (world.patches / "pin.toml").read_bytes().replace(b"1.0", b"1.1").replace(old, new) + b"\n# by hand\n"
    folder = world.clone.patches / "1.1"
    folder.mkdir()
    (folder / "pin.toml").write_bytes(pin)
    report = Driver(world.clone, world.store, settings).go_on(world.session)
    assert report.state == "done"
    assert (folder / "pin.toml").read_bytes().endswith(b"# by hand\n")
    assert sorted(p.name for p in folder.iterdir()) == ["p.patch", "pin.toml", "series"]


def test_what_was_done_in_the_work_tree_stays(stopped: World) -> None:
    stopped.work(A).write_bytes(b"half done")
    stopped.driver.status(stopped.session)
    assert stopped.work(A).read_bytes() == b"half done"


def test_deleted_by_upstream_and_kept_or_given_up(world: World) -> None:
    world.release("1.0", {A: BASE, B: BASE})
    world.patch("p", {A: EDITED, B: EDITED})
    world.release("1.1", {})
    world.begin()
    assert world.work(A).read_bytes() == EDITED
    with pytest.raises(ForkError, match="not resolved") as error:
        world.driver.go_on(world.session)
    assert len(error.value.details) == 2
    world.git("rm", "-q", "--", "vllm/a.py")
    world.git("add", "vllm/b.py")
    world.driver.go_on(world.session)
    assert world.rebased() == {B: (REGULAR, EDITED)}
    # Remembered: a file that goes, and one that stays.
    shutil.rmtree(world.clone.patches / "1.1")
    assert world.begin().state == "done"
    assert world.rebased() == {B: (REGULAR, EDITED)}


@pytest.mark.parametrize("committed", [False, True])
def test_the_edit_moved_to_another_file_by_hand(world: World, committed: bool) -> None:
    tiny = b"# one\n# two\nfrom a import b\n"
    world.release("1.0", {b"p/__init__.py": tiny})
    world.patch("p", {b"p/__init__.py": tiny + b"x = 1\n"})
    world.release("1.1", {b"q/__init__.py": tiny})
    world.begin()
    world.work(b"q/__init__.py").write_bytes(tiny + b"x = 1\n")
    world.git("rm", "-q", "--cached", "p/__init__.py")
    world.work(b"p/__init__.py").unlink(missing_ok=True)
    if committed:
        world.git("add", "--all")
        world.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "done")
    world.driver.go_on(world.session)
    assert world.rebased() == {b"q/__init__.py": (REGULAR, tiny + b"x = 1\n")}


def test_links_and_modes_of_a_resolution(world: World) -> None:
    world.release("1.0", {b"l": b"file\n", b"s.sh": b"1\n2\n3\n"})
    world.patch("p", {b"l": b"other\n", b"s.sh": (EXECUTABLE, b"1\n0\n3\n")})
    world.release("1.1", {b"l": (SYMLINK, b"s.sh"), b"s.sh": b"1\nII\n3\n"})
    world.begin()
    world.work(b"s.sh").write_bytes(b"1\nboth\n3\n")
    world.work(b"s.sh").chmod(0o755)
    world.work(b"l").unlink()
    world.work(b"l").write_bytes(b"mine\n")
    world.driver.go_on(world.session)
    assert world.rebased() == {b"l": (REGULAR, b"mine\n"), b"s.sh": (EXECUTABLE, b"1\nboth\n3\n")}


@pytest.fixture
def small(world: World) -> World:
    """A rebase of one patch, one step, stopped and resolved, but not gone on with."""
    world.release("1.0", {A: BASE})
    world.patch("bad", {A: EDITED})
    world.release("1.1", {A: UPSTREAM})
    world.begin()
    world.work(A).write_bytes(RESOLVED)
    return world


@pytest.mark.parametrize("verb", ["begin", "continue", "finish"])
def test_killed_at_every_step(verb: str, small: World) -> None:
    """The next command goes on, or takes back; either way nothing is lost and nothing is half done."""
    session, root, driver = small.session, small.clone.root, small.driver
    work: Callable[[], object] = (lambda: small.begin()) if verb == "begin" else (lambda: driver.go_on(session))

    def content() -> dict[str, tuple[int, str]]:
        return {k: v for k, v in digest(root).items() if not k.startswith(".kunlunfork")}

    pristine = content()
    if verb == "begin":
        driver.abort(session)
    if verb == "finish":
        # As far as to the second of the files that are written.
        assert _killed(work, "rebase: write", 2)
    saved, interrupted = small.folder / "saved", small.folder / "interrupted"
    shutil.copytree(root, saved, symlinks=True)
    seen = []
    for step in range(40):
        name = _killed(work, None, step + 1)
        if name is None:
            break
        seen.append(name)
        shutil.copytree(root, interrupted, symlinks=True)
        # Taken back; once the state is gone, all is done.
        if session.is_there():
            driver.abort(session)
            assert content() == pristine, name
        # Or gone on with.
        shutil.rmtree(root)
        interrupted.rename(root)
        if (small.clone.patches / "1.1").exists() and not session.is_there():
            with pytest.raises(ForkError, match="no rebase is under way"):
                driver.status(session)
        else:
            if verb == "begin":
                report = driver.status(session) if session.is_there() else small.begin()
                assert report.run.stop is not None
                small.work(A).write_bytes(RESOLVED)
            driver.go_on(session)
        assert not (root / ".kunlunfork").exists()
        assert small.rebased() == {A: (REGULAR, RESOLVED)}
        shutil.rmtree(root)
        shutil.copytree(saved, root, symlinks=True)
    else:
        raise AssertionError("no end")
    wanted = {"begin": "rebase: name work tree", "continue": "rebase: write", "finish": "rebase: remove state"}
    assert wanted[verb] in seen


def _killed(work: Callable[[], object], wanted: str | None, number: int) -> str | None:
    """Run `work` in a child that is killed at checkpoint `number` of the name `wanted` (None: of any name).

    Returns:
        the checkpoint's name, None where `work` came to its end.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def checkpoint(name: str) -> None:
            nonlocal count
            count += wanted in (None, name)
            if count == number:
                os.write(writer, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)

        steps.checkpoint = checkpoint
        try:
            work()
        finally:
            os._exit(0)
    os.close(writer)
    name = os.read(reader, 100).decode()
    os.close(reader)
    assert bool(name) == os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return name or None


def test_the_state_is_json_that_says_what_was_decided(stopped: World) -> None:
    stopped.work(A).write_bytes(RESOLVED)
    assert _killed(lambda: stopped.driver.go_on(stopped.session), "rebase: write", 2)
    raw = json.loads((stopped.session.folder / "state.json").read_bytes())
    assert (raw["schema"], raw["start"], raw["onto"]) == (1, "1.0", "1.2")
    [decision] = raw["decisions"]
    assert (decision["patch"], decision["version"], decision["path"]) == ("bad.patch", "1.1", "vllm/a.py")
    assert Path(next(iter(raw["writes"]))).parts[:2] == ("patches", "1.2")
