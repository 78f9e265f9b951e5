"""Editable installs: where the source tree lies that an interpreter imports vLLM from."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.record import read_record
from kunlunfork.sources.distinfo import plain_file

_AGAIN = "pip install --no-deps --no-build-isolation -e SOURCE-TREE"


def pth_folders(pth: Path) -> Iterator[Path]:
    """The folders that a .pth file adds to the path; its `import` lines are not run."""
    try:
        data = pth.read_bytes()
    except OSError as e:
        raise ForkError(f"{pth} cannot be read", found=e.strerror or str(e)) from e
    for line in data.removeprefix(b"\xef\xbb\xbf").splitlines():
        line = line.strip()
        if line and b"\0" not in line and not line.startswith((b"#", b"import ", b"import\t")):
            yield pth.parent / os.fsdecode(line)


def editable_root(dist_info: Path) -> tuple[Path, bool] | None:
    """The source tree of an editable distribution.

    Returns:
        (the folder that holds `vllm/`, whether an import hook leads there rather than a path in a .pth file),
        or None where `dist_info` is not that of an editable install.

    Raises:
        ForkError: its records cannot be read, disagree, or name a folder that is not there.
    """
    said = _direct_url(dist_info)
    imported, hooked = _imported(dist_info)
    if said is None and imported is None:
        return None
    root = imported or said
    assert root is not None
    if not root.is_dir():
        raise ForkError(
            f"{dist_info} is an editable install of a folder that is not there",
            found=str(root),
            expected="the source tree that it was installed from",
            fix=_AGAIN,
        )
    if said is not None and root.resolve() != said.resolve():
        raise ForkError(
            f"{dist_info} imports vLLM from another folder than it was installed from",
            found=str(root),
            expected=str(said),
            # setuptools' strict mode imports from a farm of links, which would not show the fork's new files.
            fix=f"{_AGAIN}  (without editable_mode=strict)",
        )
    return root, hooked


def _direct_url(dist_info: Path) -> Path | None:
    data = plain_file(dist_info, b"direct_url.json")
    if data is None:
        return None
    file = dist_info / "direct_url.json"
    try:
        said = json.loads(data)
        if not said.get("dir_info", {}).get("editable", False):
            return None
        url = urlsplit(said["url"])
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            raise ValueError(f"url {said['url']}")
        folder = Path(os.fsdecode(unquote_to_bytes(url.path)))
        return folder / said["subdirectory"] if said.get("subdirectory") else folder
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise ForkError(
            f"{file} is damaged", found=f"{type(e).__name__}: {e}", expected="a file: URL", fix=_AGAIN
        ) from e


def _imported(dist_info: Path) -> tuple[Path | None, bool]:
    """The folder that an import of vllm reaches through this distribution's .pth files and import hooks."""
    record = plain_file(dist_info, b"RECORD")
    site = dist_info.parent
    listed = [path for path in read_record(record or b"") if b"/" not in path]
    for path in listed:
        if path.endswith(b".pth") and (pth := paths.on_disk(site, path)).is_file():
            for folder in pth_folders(pth):
                if (folder / "vllm" / "__init__.py").is_file():
                    return folder, False
    for path in listed:
        # setuptools writes `__editable___vllm_0_25_1_finder.py` with `MAPPING = {'vllm': '/src/vllm'}`.
        if (
            path.startswith(b"__editable__")
            and path.endswith(b".py")
            and (source := plain_file(site, path)) is not None
        ):
            mapped = _mapping(source, paths.on_disk(site, path)).get("vllm")
            if isinstance(mapped, str):
                return Path(mapped).parent, True
    return None, False


def _mapping(source: bytes, file: Path) -> dict[object, object]:
    try:
        for node in ast.parse(source.decode()).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target: ast.expr = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "MAPPING":
                value = ast.literal_eval(node.value)
                return value if isinstance(value, dict) else {}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ForkError(f"{file} cannot be read", found=f"{type(e).__name__}: {e}", fix=_AGAIN) from e
    return {}
