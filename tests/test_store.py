from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kunlunfork import git, paths
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry
from kunlunfork.sources.members import Member
from kunlunfork.store import Store

MEMBERS: list[Member] = [
    (b"a.py", REGULAR, b"one\r\ntwo"),
    (b"run.sh", EXECUTABLE, b"#!/bin/sh\n"),
    (b"link", SYMLINK, b"a.py"),
    (b"empty", REGULAR, b""),
    (b'"quoted".py', REGULAR, b"q"),
    (b"new\nline", REGULAR, b"n"),
    (b"back\\slash", REGULAR, b"b"),
    (b" space /tail ", REGULAR, b"s"),
    ("\u00e9\u2028".encode(), REGULAR, b"u"),
    (b"latin-\xe9", REGULAR, b"\xe9\x00\xff"),
    (b"data 3\nend", REGULAR, b"done\n"),
    (b".gitattributes", REGULAR, b"* text eol=crlf ident filter=lfs\n*.py working-tree-encoding=UTF-16\n"),
    (b"ident.txt", REGULAR, b"$Id$\n"),
]


@pytest.fixture
def own(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.git")


def test_a_tree_comes_back_as_it_went_in(own: Store) -> None:
    base = own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    entries = own.entries(base.tree)
    assert entries == {p: Entry(m, paths.blob_id(d)) for p, m, d in MEMBERS}
    assert {p: d for p, (_, d) in own.read(entries).items()} == {p: d for p, _, d in MEMBERS}
    assert own.bases() == (base,)
    assert (base.files, base.size) == (len(MEMBERS), sum(len(d) for _, _, d in MEMBERS))
    assert own.import_members("sdist", "1.0", "f" * 64, iter(())) == base, "a second import reads nothing"


def test_the_tree_is_the_one_that_git_makes(own: Store, tmp_path: Path) -> None:
    files = [m for m in MEMBERS if m[0] not in (b".gitattributes",)]
    base = own.import_members("sdist", "1.0", "f" * 64, files)
    work = tmp_path / "work"
    work.mkdir()
    for path, mode, data in files:
        full = paths.on_disk(work, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        if mode == SYMLINK:
            full.symlink_to(os.fsdecode(data))
        else:
            full.write_bytes(data)
            full.chmod(0o755 if mode == EXECUTABLE else 0o644)
    git.run(["init", "-q", work])
    git.run(["-C", work, "add", "-A"])
    assert git.run(["-C", work, "write-tree"]).decode().strip() == base.tree


def test_a_broken_import_leaves_no_base(own: Store) -> None:
    def broken() -> Iterator[Member]:
        yield MEMBERS[0]
        raise ForkError("the archive is damaged")

    with pytest.raises(ForkError, match="damaged"):
        own.import_members("sdist", "1.0", "f" * 64, broken())
    assert own.bases() == ()
    assert own.import_members("sdist", "1.0", "f" * 64, MEMBERS).files == len(MEMBERS)


def test_a_killed_import_leaves_no_base(own: Store) -> None:
    def killed() -> Iterator[Member]:
        yield MEMBERS[0]
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            own.import_members("sdist", "1.0", "f" * 64, killed())
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert own.bases() == ()
    assert own.import_members("sdist", "1.0", "f" * 64, MEMBERS).files == len(MEMBERS)


def test_a_store_whose_making_was_killed_is_made_again(own: Store) -> None:
    for left in own._beside:
        (left / "objects").mkdir(parents=True)
    own.path.mkdir()
    assert own.bases() == ()
    assert own.import_members("sdist", "1.0", "f" * 64, MEMBERS).files == len(MEMBERS)
    assert [p.name for p in own.path.parent.iterdir() if p.is_dir()] == [own.path.name]


@pytest.mark.parametrize("verb", ["bases", "import", "delete"])
def test_a_folder_of_someone_else_is_left_alone(verb: str, own: Store) -> None:
    own.path.mkdir()
    (own.path / "thesis.txt").write_text("years")
    with pytest.raises(ForkError, match="is not a store of kunlunfork"):
        if verb == "import":
            own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
        else:
            own.bases() if verb == "bases" else own.delete()
    assert [p.name for p in own.path.iterdir()] == ["thesis.txt"]


def test_a_store_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "store.git").symlink_to("disk/store")
    Store(tmp_path / "store.git").import_members("sdist", "1.0", "f" * 64, MEMBERS)
    assert (tmp_path / "disk/store/kunlunfork").is_file()
    Store(tmp_path / "store.git").delete()
    assert not (tmp_path / "disk/store").exists()
    assert Store(tmp_path / "store.git").import_members("sdist", "1.0", "f" * 64, MEMBERS).files == len(MEMBERS)


@pytest.mark.parametrize("place", ["store.git", "loop/store.git", "file/store.git"])
def test_where_no_store_can_be(place: str, tmp_path: Path) -> None:
    (tmp_path / "store.git").symlink_to("store.git")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("mine")
    own = Store(tmp_path / place)
    assert own.bases() == ()
    own.delete()
    with pytest.raises(ForkError, match="cannot be"):
        own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    assert (tmp_path / "file").read_text() == "mine"


def _packs(store: Path) -> list[Path]:
    packs = sorted((store / "objects/pack").glob("*.pack"))
    for pack in packs:
        pack.chmod(0o644)
    return packs


def _cut_packs(store: Path) -> None:
    for pack in _packs(store):
        os.truncate(pack, pack.stat().st_size - 40)


def _zero_packs(store: Path) -> None:
    for pack in _packs(store):
        pack.write_bytes(pack.read_bytes()[:12] + bytes(pack.stat().st_size - 12))


def _cut_indexes(store: Path) -> None:
    for index in (store / "objects/pack").glob("*.idx"):
        index.chmod(0o644)
        os.truncate(index, 100)


def _ref(store: Path) -> Path:
    return next(p for p in (store / "refs/kunlunfork/bases").rglob("*") if p.is_file())


def _not_a_release(store: Path) -> None:
    tree = git.run(["rev-parse", "refs/kunlunfork/bases/sdist/1.0/" + "f" * 64 + "^{tree}"], git_dir=store).strip()
    other = git.run(["commit-tree", tree], git_dir=store, stdin=b"something else").strip()
    _ref(store).write_bytes(other + b"\n")


DAMAGE = {
    "no HEAD": lambda store: (store / "HEAD").unlink(),
    "no objects": lambda store: shutil.rmtree(store / "objects"),
    "no refs": lambda store: shutil.rmtree(store / "refs"),
    "no packs": lambda store: [p.unlink() for p in _packs(store)],
    "cut packs": _cut_packs,
    "zeros in packs": _zero_packs,
    "cut indexes": _cut_indexes,
    "a reference to nothing": lambda store: _ref(store).write_text("1" * 40 + "\n"),
    "an empty reference": lambda store: _ref(store).write_text(""),
    "junk in a reference": lambda store: _ref(store).write_text("junk\n"),
    "not a release": _not_a_release,
    "broken configuration": lambda store: (store / "config").write_text("[core\n"),
    "config is a folder": lambda store: ((store / "config").unlink(), (store / "config").mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_any_damage_is_named_and_mended_by_what_the_error_says(damage: Callable[[Path], object], own: Store) -> None:
    own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    damage(own.path)
    try:
        for base in own.bases():
            own.read(own.entries(base.tree))
        own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    except ForkError as e:
        assert e.message.endswith("is damaged")
        assert e.found
        assert e.fix == "kunlunfork cache prune --all, then run the command again"
    else:
        assert own.bases(), "git saw it as absent and the release was stored again"
    own.delete()
    assert not own.path.exists()
    base = own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    assert len(own.read(own.entries(base.tree))) == len(MEMBERS)


def test_what_killed_gits_left_is_removed(own: Store) -> None:
    own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    left = [
        own.path / name
        for name in (
            "fast_import_crash_77", "objects/pack/tmp_pack_a1B2c3", "objects/pack/tmp_idx_a1B2c3",
            "refs/kunlunfork/import/0123", "refs/kunlunfork/bases/sdist/2.0/" + "e" * 64 + ".lock", "packed-refs.lock",
        )
    ]  # fmt: skip
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    own.import_members("sdist", "2.0", "e" * 64, MEMBERS)
    assert [f for f in left if f.exists()] == []
    assert len(own.bases()) == 2


def test_an_import_that_fails_leaves_nothing(own: Store) -> None:
    def broken() -> Iterator[Member]:
        yield from MEMBERS
        yield b"big", REGULAR, os.urandom(1 << 20)
        raise ForkError("the archive is damaged")

    with pytest.raises(ForkError, match="archive"):
        own.import_members("sdist", "1.0", "f" * 64, broken())
    found = [p for p in own.path.rglob("*") if "tmp_" in p.name or "crash" in p.name]
    assert found == []


def test_what_is_no_damage_is_not_called_so(own: Store) -> None:
    """A disk that is full, or a user who may not write, cannot be helped by deleting the store."""
    own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    failed = git.GitFailed(["-c", "a=b", "fast-import"], 128, b"fatal: write error: No space left on device")
    assert failed.message == "git fast-import failed"
    error = own.failed(failed)
    assert error.message.endswith("cannot be used")
    assert "No space left" in (error.found or "")
    assert "prune" not in (error.fix or "")


def test_a_pin_finds_its_own_release_only(own: Store, content: Content) -> None:
    pin = content.pin("0.25.1")
    own.import_members("sdist", pin.version, "0" * 64, MEMBERS[:1])
    assert own.release(pin, "sdist") is None
    mine = own.import_members("sdist", pin.version, pin.sdist_sha256, MEMBERS)
    assert own.release(pin, "sdist") == mine
    assert own.release(pin, "git") is None


def test_damage_is_named(own: Store) -> None:
    base = own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    for pack in (own.path / "objects/pack").glob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[40:60] = bytes(20)
        pack.chmod(0o644)
        pack.write_bytes(data)
    with pytest.raises(ForkError) as error:
        own.read(own.entries(base.tree))
    assert error.value.message.endswith("is damaged")
    assert "cache prune --all" in (error.value.fix or "")


def test_other_bytes_under_a_true_check_sum_are_named(own: Store) -> None:
    """git compares the check sum of zlib, not the id, when it reads from a pack."""
    data = b"x" * 1000
    base = own.import_members("sdist", "1.0", "f" * 64, [(b"a.py", REGULAR, data)])
    other = b"y" + data[1:]
    old, new = (d + zlib.adler32(d).to_bytes(4, "big") for d in (data, other))
    [pack] = [p for p in (own.path / "objects/pack").glob("*.pack") if old in p.read_bytes()]
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes().replace(old, new))
    assert own.git("cat-file", "blob", paths.blob_id(data)) == other
    with pytest.raises(ForkError, match="damaged"):
        own.read(own.entries(base.tree))


def test_what_no_base_needs_can_be_collected(own: Store) -> None:
    keep = own.import_members("sdist", "1.0", "e" * 64, MEMBERS[:3])
    drop = own.import_members("sdist", "2.0", "f" * 64, [(b"big", REGULAR, os.urandom(100_000))])
    own.drop(drop)
    own.collect()
    assert own.bases() == (keep,)
    assert len(own.read(own.entries(keep.tree))) == 3
    with pytest.raises(ForkError):
        own.entries(drop.tree)


def test_hostile_configuration_of_the_user_does_not_reach_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".config/git").mkdir(parents=True)
    (home / ".gitconfig").write_text(
        "[core]\nautocrlf = true\nhooksPath = /nonexistent\nattributesFile = ~/attributes\n[commit]\ngpgsign = true\n"
        "[init]\ntemplateDir = /nonexistent\n[color]\nui = always\n[diff]\nnoprefix = true\nexternal = false\n"
    )
    (home / "attributes").write_text("* text eol=crlf\n")
    monkeypatch.setenv("HOME", str(home))
    for name, value in {
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_WORK_TREE": str(tmp_path),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "false",
        "GIT_NAMESPACE": "x",
    }.items():
        monkeypatch.setenv(name, value)
    own = Store(tmp_path / "store.git")
    base = own.import_members("sdist", "1.0", "f" * 64, MEMBERS)
    assert own.entries(base.tree) == {p: Entry(m, paths.blob_id(d)) for p, m, d in MEMBERS}
    assert not (tmp_path / "objects").exists()


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ForkError, match="git is not installed"):
        Store(tmp_path / "store.git")


def test_an_old_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\necho git version 2.30.2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ForkError) as error:
        Store(tmp_path / "store.git")
    assert error.value.found == "git version 2.30.2"
    assert "2.38" in (error.value.expected or "")


def test_two_processes_import_once(tmp_path: Path) -> None:
    path = tmp_path / "store.git"
    code = (
        "import sys; from pathlib import Path; from kunlunfork.store import Store\n"
        "Store(Path(sys.argv[1])).import_members('sdist', '1.0', 'f' * 64, [(b'a', 0o100644, b'x' * 9)])\n"
    )
    import sys

    children = [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert len(Store(path).bases()) == 1


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository with the tag v1.0, and its commit."""
    folder = tmp_path / 'upstream\'s "own"'
    git.run(["init", "--quiet", folder])
    (folder / "a.py").write_text("a")
    git.run(["-C", folder, "add", "."])
    git.run(["-C", folder, "commit", "--quiet", "-m", "one"])
    git.run(["-C", folder, "tag", "v1.0"])
    return folder, git.run(["-C", folder, "rev-parse", "HEAD"]).decode().strip()


def test_a_repository_of_someone_else_is_taken_when_the_user_trusts_it(
    own: Store, repository: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    folder, commit = repository
    for full in (folder, *folder.rglob("*")):
        os.chown(full, 1234, 1234)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def fetch() -> None:
        own.fetch(folder.as_uri(), "v1.0", "1.0", commit, shown=folder.as_uri())

    try:
        fetch()
    except ForkError as e:
        assert "safe.directory" in (e.found or "")
        assert e.fix == "trust it with the command that git names"
    else:
        pytest.skip("this git takes from anyone")
    subprocess.run(["git", "config", "--global", "--add", "safe.directory", folder / ".git"], check=True)
    (home / ".gitconfig").write_text((home / ".gitconfig").read_text() + "[core]\n\tautocrlf = true\n")
    fetch()
    assert [b.origin for b in own.bases()] == [commit]


@pytest.mark.parametrize("links", [{"p": "d/..", "q": "p/../.."}, {"d2": "/etc"}, {"a": "b", "b": "a"}])
def test_a_hostile_repository_is_refused(links: dict[str, str], own: Store, repository: tuple[Path, str]) -> None:
    """A pin may know no more than nine digits of its commit."""
    folder, _ = repository
    for name, to in links.items():
        (folder / name).symlink_to(to)
    git.run(["-C", folder, "add", "."])
    git.run(["-C", folder, "commit", "--quiet", "--amend", "-m", "two"])
    git.run(["-C", folder, "tag", "--force", "v1.0"])
    commit = git.run(["-C", folder, "rev-parse", "HEAD"]).decode().strip()
    with pytest.raises(ForkError):
        own.fetch(folder.as_uri(), "v1.0", "1.0", commit[:9], shown="upstream")
    assert own.bases() == ()
