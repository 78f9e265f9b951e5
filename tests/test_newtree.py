from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import VERSION, Upstream, digest, undo

from kunlunfork import checkout, git, make, newtree, paths, status, steps, target
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import load
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.stages import Files
from kunlunfork.store import Base, Store


@pytest.fixture
def settings(user_cache: Cache) -> Settings:
    return Settings(user_cache, None, True, Silent())


def new(
    content: Content, folder: Path, store: Store, settings: Settings, source: str | None = None, dry_run: bool = False
) -> newtree.Outcome:
    return make.new_or_update(content, VERSION, folder, source, store, settings, dry_run=dry_run)


@pytest.fixture(scope="session")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole release, as tar unpacks it."""
    root = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as tar:
        tar.extractall(root, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(root)
    return root / f"vllm-{VERSION}"


def _names(folder: Path) -> dict[str, str]:
    return {name: blob for name, (_, blob) in digest(folder).items()}


def test_the_main_job(
    content: Content, tmp_path: Path, store: Store, base: Base, settings: Settings, unpacked: Path
) -> None:
    """A new tree from the sdist; taking the fork off leaves exactly what tar unpacks."""
    tree = tmp_path / "tree"
    outcome = new(content, tree, store, settings)
    assert outcome.action == "applied"
    verdict = status.verify(target.of_tree(tree), content, status.upstream_of(target.of_tree(tree), store, content))
    assert verdict.problems == ()
    assert verdict.others == ()
    assert verdict.compared > base.files
    assert new(content, tree, store, settings).action == "unchanged"
    undo(tree)
    assert _names(tree) == _names(unpacked)
    executables = [n for n, (mode, _) in digest(tree).items() if mode & 0o100]
    assert executables == [n for n, (mode, _) in digest(unpacked).items() if mode & 0o100]
    assert list(tmp_path.iterdir()) == [tree]


def test_the_lock_has_the_folders_that_upstream_lacks() -> None:
    entry = paths.Entry(paths.REGULAR, "0" * 40)
    entries = dict.fromkeys((b"a/b/c", b"d", b"e/f/g"), entry)
    post: Files = {
        b"a/b/x/y/z": (entry, b""),
        b"a/new": (entry, b""),
        b"n/m": (entry, b""),
        b"gone/o": None,
        b"top": None,
    }
    assert newtree._added_folders(entries, post) == (b"a/b/x", b"a/b/x/y", b"n")


def test_every_way_to_get_there_gives_the_same_tree(
    content: Content, tmp_path: Path, store: Store, settings: Settings, sdist: Path, unpacked: Path
) -> None:
    expected = None
    for source in (str(sdist), str(unpacked)):
        tree = tmp_path / "tree"
        new(content, tree, store, settings, source)
        found = {n: e for n, e in digest(tree).items() if not n.startswith(".kunlunfork")}
        assert expected is None or found == expected
        expected = found
        shutil.rmtree(tree)


def test_a_git_source_is_taken_by_tag_and_commit(
    content: Content, small_content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream
) -> None:
    repository = upstream.write(tmp_path / "repository")

    def git(*args: str) -> str:
        command = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=b", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "upstream")
    git("tag", f"v{VERSION}")
    commit = git("rev-parse", "HEAD")
    before = digest(repository)
    with pytest.raises(ForkError) as error:
        new(content, tmp_path / "tree", store, settings, f"git:{repository}")
    assert error.value.found == f"commit {commit}"
    assert content.pin(VERSION).commit in (error.value.expected or "")

    pin = small_content.patches / VERSION / "pin.toml"
    pin.write_text(pin.read_text().replace(content.pin(VERSION).commit, commit))
    (repository / "vllm/__init__.py").write_text("an edit in the work tree\n")
    before = digest(repository)
    tree = tmp_path / "tree"
    assert new(small_content, tree, store, settings, f"git:{repository}").action == "applied"
    assert (tree / "vllm/__init__.py").read_bytes() == upstream.files[b"vllm/__init__.py"][1]
    assert digest(repository) == before
    shutil.rmtree(repository)
    shutil.rmtree(tree)
    assert new(small_content, tree, store, settings, f"git:{repository}").action == "applied", "it is in the store"


@pytest.mark.parametrize("url", ["--upload-pack=touch pwned", "ext::sh -c 'touch pwned'"])
def test_a_git_url_is_no_way_to_run_a_command(
    url: str, content: Content, tmp_path: Path, store: Store, user_cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForkError):
        new(content, tmp_path / "tree", store, Settings(user_cache, None, False, Silent()), f"git:{url}")
    assert not (tmp_path / "pwned").exists()


def test_the_password_of_a_url_is_not_shown(content: Content, tmp_path: Path, store: Store, user_cache: Cache) -> None:
    settings = Settings(user_cache, None, False, Silent())
    with pytest.raises(ForkError) as error:
        new(content, tmp_path / "tree", store, settings, "git:http://me:secret@127.0.0.1:9/vllm.git")
    assert "secret" not in str(error.value.as_json())


def test_a_wrong_sdist_is_refused(
    content: Content, tmp_path: Path, store: Store, settings: Settings, sdist: Path
) -> None:
    wrong = tmp_path / "vllm-0.25.1.tar.gz"
    wrong.write_bytes(sdist.read_bytes()[:-1] + b"x")
    with pytest.raises(ForkError) as error:
        new(content, tmp_path / "tree", store, settings, str(wrong))
    assert content.pin(VERSION).sdist_sha256 in (error.value.expected or "")
    assert (error.value.found or "").startswith("SHA-256 ")


def test_a_folder_with_something_in_it_is_left_alone(
    content: Content, tmp_path: Path, store: Store, base: Base, settings: Settings
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "thesis.txt").write_text("mine")
    with pytest.raises(ForkError, match="not empty") as error:
        new(content, tmp_path / "tree", store, settings)
    assert "thesis.txt" in (error.value.found or "")
    assert [p.name for p in (tmp_path / "tree").iterdir()] == ["thesis.txt"]


def test_an_empty_folder_and_missing_parents_are_fine(
    content: Content, tmp_path: Path, store: Store, base: Base, settings: Settings
) -> None:
    (tmp_path / "empty").mkdir()
    assert new(content, tmp_path / "empty", store, settings).action == "applied"
    assert new(content, tmp_path / "a/b/c", store, settings, dry_run=True).dry_run
    assert not (tmp_path / "a").exists()


def test_a_killed_creation_leaves_nothing_that_stays(
    content: Content, tmp_path: Path, store: Store, base: Base, settings: Settings
) -> None:
    tree = tmp_path / "tree"
    for wanted in ("fill", "rename tree"):
        child = os.fork()
        if child == 0:
            steps.checkpoint = lambda name, w=wanted: os.kill(os.getpid(), signal.SIGKILL) if name == w else None
            try:
                new(content, tree, store, settings)
            finally:
                os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        for left in tmp_path.iterdir():  # git may still write there; until it ends the folder is locked
            fd = os.open(left, os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.close(fd)
        assert not tree.exists()
        assert len(list(tmp_path.iterdir())) == 1, "what the one before left is gone"
    assert new(content, tree, store, settings).action == "applied"
    assert list(tmp_path.iterdir()) == [tree]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_while_git_writes_stops_it_and_leaves_nothing(
    content: Content,
    tmp_path: Path,
    store: Store,
    base: Base,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    def failing(*_: object) -> None:
        (staging,) = tmp_path.iterdir()
        while not any(staging.iterdir()):
            time.sleep(0.001)
        raise error

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(newtree, "make_lock", failing)
    monkeypatch.setattr(checkout.subprocess, "Popen", start)
    with pytest.raises(ForkError if isinstance(error, OSError) else KeyboardInterrupt):
        new(content, tmp_path / "tree", store, settings)
    assert list(tmp_path.iterdir()) == []
    assert any("read-tree" in map(str, child.args) for child in started)  # type: ignore[arg-type]
    assert [child.args for child in started if child.returncode is None] == []


@pytest.mark.parametrize(
    ("said", "message", "exit_status"),
    [
        ("error: unable to write file a", "cannot be made; nothing was left behind", 1),
        ("fatal: unable to create thread: No more", "cannot be used", 1),
        ("error: unable to read sha1 file of a (0123)", "is damaged", 1),
        ("error: inflate: data stream error", "is damaged", 0),
    ],
)
def test_what_git_says_while_it_writes_is_an_error_whatever_its_exit_status(
    content: Content, tmp_path: Path, store: Store, base: Base, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    said: str, message: str, exit_status: int,
) -> None:  # fmt: skip
    real = git.command

    def command(args: Sequence[str | bytes | Path], git_dir: Path | None = None) -> list[str | bytes | Path]:
        if "read-tree" in args:
            return ["sh", "-c", f"echo '{said}' >&2; exit {exit_status}"]
        return real(args, git_dir)

    monkeypatch.setattr(git, "command", command)
    with pytest.raises(ForkError, match=message) as caught:
        new(content, tmp_path / "tree", store, settings)
    assert said in (caught.value.found or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a[b]c*", "x" * 255, "\u6587" * 80, "a'b \"c"])
def test_any_name_of_a_tree_is_swept(
    name: str, small_content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream
) -> None:
    source = upstream.write(tmp_path / "upstream")
    tree = tmp_path / "parent" / name
    child = os.fork()
    if child == 0:
        steps.checkpoint = lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == "rename tree" else None
        try:
            new(small_content, tree, store, settings, str(source))
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    (tree.parent / ".other.kunlunfork-0").mkdir()
    assert new(small_content, tree, store, settings, str(source)).action == "applied"
    assert sorted(tree.parent.iterdir()) == sorted([tree.parent / ".other.kunlunfork-0", tree])
    assert status.read(target.of_tree(tree), small_content).state == "applied"


@pytest.mark.parametrize("where", [".", "absolute", "link"])
def test_the_current_folder_is_not_replaced(
    where: str, small_content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = upstream.write(tmp_path / "upstream")
    empty = tmp_path / "empty folder"
    empty.mkdir()
    (tmp_path / "link").symlink_to(empty)
    monkeypatch.chdir(empty)
    folder = {".": Path(), "absolute": empty, "link": tmp_path / "link"}[where]
    with pytest.raises(ForkError, match="cannot become a fork tree") as error:
        new(small_content, folder, store, settings, str(source))
    assert error.value.found == "the current folder"
    assert error.value.fix == f"name another, such as '{empty}/vllm-kunlun'"
    assert list(Path.cwd().iterdir()) == []
    assert new(small_content, Path("vllm-kunlun"), store, settings, str(source)).action == "applied"


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_a_name_that_every_later_command_would_refuse(
    name: str, small_content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream
) -> None:
    source = upstream.write(tmp_path / "upstream")
    (tmp_path / "link").symlink_to(tmp_path / name)
    for make_it in (False, True):
        if make_it:
            (tmp_path / name).mkdir()
        with pytest.raises(ForkError, match="cannot become a fork tree"):
            new(small_content, tmp_path / name, store, settings, str(source))
    with pytest.raises(ForkError, match="cannot become a fork tree"):
        new(small_content, tmp_path / "link", store, settings, str(source))


def test_places_that_no_tree_can_take(
    small_content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream
) -> None:
    source = upstream.write(tmp_path / "upstream")
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("file", "file/x", "file/x/y", "dangling", "dangling/x", "x" * 256):
        with pytest.raises(ForkError) as error:
            new(small_content, tmp_path / name, store, settings, str(source))
        assert "meanwhile" not in (error.value.found or "")
        assert "cannot be" in error.value.message
    with pytest.raises(ForkError, match="carries no fork"):
        new(small_content, Path("/"), store, settings, str(source))
    with pytest.raises(ForkError, match="cannot become a fork tree") as error:
        newtree._check_place(Path("/proc"))
    assert error.value.found == "a mount point"


def test_an_empty_folder_behind_a_link_becomes_the_tree(
    small_content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream
) -> None:
    source = upstream.write(tmp_path / "upstream")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert new(small_content, tmp_path / "link", store, settings, str(source)).root == tmp_path / "real"
    assert (tmp_path / "link").is_symlink()
    assert status.read(target.of_tree(tmp_path / "link"), small_content).state == "applied"


def test_two_creations_of_one_tree(
    content: Content, tmp_path: Path, store: Store, base: Base, settings: Settings
) -> None:
    """The second finds the first one's tree when it wants to move its own there."""
    tree = tmp_path / "tree"
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = 3
            try:
                new(content, tree, store, settings)
                code = 0
            except ForkError as e:
                code = 1 if "another process" in (e.found or "") else 2
            finally:
                os._exit(code)
        children.append(child)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes in ([0, 0], [0, 1])
    assert status.read(target.of_tree(tree), content).state == "applied"
    assert list(tmp_path.iterdir()) == [tree]


def test_a_release_that_has_an_overlay_file_is_refused(
    content: Content, tmp_path: Path, store: Store, settings: Settings, upstream: Upstream
) -> None:
    """A later release may bring a file of the name that ours has."""
    folder = upstream.write(tmp_path / "upstream")
    (folder / "vllm/v1/worker/gpu/model_runner_v2.py").write_text("# upstream's own\n")
    with pytest.raises(ForkError, match="someone else") as error:
        new(content, tmp_path / "tree", store, settings, str(folder))
    assert "the overlay ships it" in error.value.details[0]
    assert not (tmp_path / "tree").exists()


def test_offline_names_the_way_out(content: Content, tmp_path: Path) -> None:
    empty = Cache(tmp_path / "cache")
    with pytest.raises(ForkError) as error:
        new(content, tmp_path / "tree", Store(empty.store), Settings(empty, None, True, Silent()))
    assert "cache import" in (error.value.fix or "")


def test_unknown_versions_get_the_nearest_pins(
    content: Content, tmp_path: Path, store: Store, settings: Settings
) -> None:
    with pytest.raises(ForkError) as error:
        make.new_or_update(content, "0.25.2", tmp_path / "t", "pypi", store, settings, dry_run=False)
    assert "0.25.1" in (error.value.expected or "")
    assert "kunlunfork apply --vllm 0.25.1" in (error.value.fix or "")
    with pytest.raises(ForkError, match="is not a version"):
        make.new_or_update(content, "latest", tmp_path / "t", "pypi", store, settings, dry_run=False)


def test_the_fork_itself_loads_and_is_consistent(content: Content) -> None:
    fork = load(content, VERSION)
    assert fork.patches
    assert not (fork.patched & set(fork.added))
