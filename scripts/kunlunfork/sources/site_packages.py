"""The vLLM that is installed in an interpreter, found by metadata alone: nothing of it is imported or run."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from kunlunfork.errors import ForkError
from kunlunfork.sources.distinfo import NAMES, REINSTALL, dist_infos, is_vllm, lists_package, metadata
from kunlunfork.sources.editable import editable_root, pth_folders
from kunlunfork.sources.interpreter import Interpreter, probe
from kunlunfork.sources.tree import TreeInfo, read_tree


def find_installed(python: Path | None = None) -> TreeInfo:
    """The vLLM that `import vllm` would find in an interpreter's own folders.

    Args:
        python: the interpreter's executable, or a name on PATH; None for the one that runs this.

    Returns:
        Of kind "site-packages"; or "editable", with the source tree as root, laid out as the tree is.

    Raises:
        ForkError: no usable interpreter; no vLLM; one without RECORD, in an egg, owned by two distributions
            or hidden behind another.
    """
    interpreter = probe(python)
    for folder in interpreter.folders:
        found = _look(folder, interpreter)
        if found is not None:
            return found
    raise _nothing(interpreter, this=python is None)


def _look(folder: Path, interpreter: Interpreter) -> TreeInfo | None:
    """The vLLM of one site folder."""
    distributions = dist_infos(folder)
    # A link counts: read_tree says what it thinks of it.
    if (folder / "vllm").is_symlink() or _has_package(folder) or any(lists_package(d) for d in distributions):
        info = read_tree(folder)
        if info.dist_info is None:
            raise ForkError(f"{folder / 'vllm'} belongs to no distribution", fix=REINSTALL)
        return replace(info, kind="site-packages")
    named = [path for path in distributions if is_vllm(path.name)]
    if len(named) > 1:
        raise ForkError(
            f"{folder} has two distributions of vLLM, and neither holds its files",
            found=", ".join(path.name for path in named),
            expected="one vLLM in this interpreter",
            fix="uninstall one of them",
        )
    if named:
        return _editable(named[0], interpreter)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".egg-link" and path.is_file() and canonicalize_name(path.stem) in NAMES:
            return _egg_link(path)
        if path.suffix == ".egg" and is_vllm(path.stem):
            raise ForkError(
                f"{path} is an egg, which has no RECORD to keep true",
                found="a zipped egg" if path.is_file() else "an egg folder, from `setup.py install`",
                expected="a vLLM that pip or uv has installed",
                fix=REINSTALL,
            )
    return None


def _has_package(folder: Path) -> bool:
    return os.path.lexists(folder / "vllm" / "__init__.py")


def _editable(dist_info: Path, interpreter: Interpreter) -> TreeInfo:
    name, version = metadata(dist_info)
    found = editable_root(dist_info)
    if found is None:
        raise ForkError(
            f"{dist_info} is a distribution of vLLM without vLLM",
            found="neither vllm/ in its RECORD nor an editable install",
            fix=REINSTALL,
        )
    root, hooked = found
    # A hook is asked last, so a vllm/ anywhere on the path hides what it leads to.
    hiding = next((f for f in interpreter.folders if _has_package(f)), None) if hooked else None
    if hiding is not None:
        raise ForkError(
            f"{hiding / 'vllm'} hides the editable vLLM of {root}",
            found=f"{dist_info.name} and {hiding / 'vllm'}",
            expected="one vLLM in this interpreter",
            fix="uninstall one of them",
        )
    info = read_tree(root)
    # The metadata is of the day of the install; what the tree says of itself counts more.
    return replace(info, kind="editable", dist_name=info.dist_name or name, version=info.version or version)


def _egg_link(link: Path) -> TreeInfo:
    """`setup.py develop` of older setuptools: a file with the source tree in its first line."""
    root = next(pth_folders(link), None)
    if root is None or not root.is_dir():
        raise ForkError(
            f"{link} leads to a folder that is not there",
            found="an empty file" if root is None else str(root),
            fix="pip install --no-deps --no-build-isolation -e SOURCE-TREE",
        )
    info = read_tree(root)
    return replace(info, kind="editable", dist_name=info.dist_name or link.stem)


def _nothing(interpreter: Interpreter, *, this: bool) -> ForkError:
    # A bare path in a .pth file, as `conda develop` and people write them.
    for folder in interpreter.folders:
        for pth in filter(Path.is_file, sorted(folder.glob("*.pth"))):
            root = next(filter(_has_package, pth_folders(pth)), None)
            if root is not None:
                return ForkError(
                    f"{pth} makes {interpreter.executable} import a vLLM that no distribution owns",
                    found=str(root),
                    expected="an installed distribution",
                    fix=f"kunlunfork apply --in-place {shlex.quote(str(root))}",
                )
    fix = f"{shlex.quote(str(interpreter.executable))} -m pip install --no-deps vllm==VERSION"
    fix += ", or name another interpreter with --python EXE"
    active = os.environ.get("VIRTUAL_ENV")
    if this and active and not interpreter.executable.is_relative_to(active):
        fix = f"kunlunfork apply --site-packages --python {shlex.quote(active + '/bin/python')}"
    return ForkError(
        f"no vLLM is installed in {interpreter.executable} (Python {interpreter.version})",
        expected="a distribution that has vllm/, or an editable install of one",
        fix=fix,
        details=[str(folder) for folder in interpreter.folders],
    )
