"""A small matrix: real workers, real pytest and the real plugin on tests that need neither vLLM nor torch."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import REPO

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.matrix import run
from kunlunfork.matrix.cells import Cell, Run
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.run import Options, Result
from kunlunfork.progress import Progress, Silent

# Each test notes that it ran; `case3` differs from upstream, a file `slow` makes all of them slow.
TESTS = """
import os, pathlib, time
import pytest

class Where(AssertionError):
    where = ("arg0.x", (1, 2))

class Site:
    ids = (1,)
    allow = {}
    def __init__(self, launcher): self.launcher = launcher

class Case:
    def __init__(self, name): self.name = name

SITES = [Site("a:f"), Site("b:<g>")]
CASES = [Case(f"case{i}") for i in range(6)]

@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("site,case", [pytest.param(s, c, id=f"{s.launcher}-{c.name}") for s in SITES for c in CASES])
def test_site(site, case, backend, record_property):
    here = pathlib.Path(__file__).parent
    with (here / "ran").open("a") as out:
        out.write(f"{site.launcher} {case.name} {backend}\\n")
    if (here / "slow").exists():
        time.sleep(0.3)
    record_property("upstream_seconds", 0.5)
    if case.name == "case3":
        raise Where("harness.Mismatch\\n  arg0.x: 1 of 6 differ")

def test_rule(): pass
"""
CELLS = 2 * 6 * 2 + 1
ALL_ON = "all-on"


def make(folder: Path) -> Content:
    """A content whose parity tests are `TESTS`, and an empty engine beside it."""
    parity = folder / "tests" / "parity"
    (parity / "sites").mkdir(parents=True)
    (parity / "sites" / "a.py").touch()
    (parity / "test_it.py").write_text(TESTS)
    (parity / "test_bound.py").write_text("BACKENDS = ('torch', 'reference')\nDECLARED = ()\n")
    shutil.copy(REPO / "tests" / "parity" / "matrix_plugin.py", parity)
    for name in ("patches", "overlay"):
        (folder / name).symlink_to(REPO / name)
    (folder / "ci").mkdir()
    shutil.copytree(REPO / "ci" / "engines", folder / "ci" / "engines")
    shutil.copy(REPO / "ci" / "matrix.toml", folder / "ci")
    (folder / "engine").mkdir()
    return Content(folder, clone=True)


def ran(content: Content) -> list[str]:
    """What the tests noted, and forget it."""
    file = content.parity / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def replace_engine(
    patch: pytest.MonkeyPatch, content: Content, overlay: str = "0f" * 32, series: str = "5e" * 32,
    root: Path | None = None,
) -> None:  # fmt: skip
    root = root or content.root / "engine"
    engine = Engine(root, Path(sys.executable), root, root / "triton", {"torch": "2"})
    tree = SimpleNamespace(version="0.25.1", series_hash=series, overlay_hash=overlay, root=root / "tree")
    patch.setattr("kunlunfork.matrix.environment.ensure", lambda *_: engine)
    patch.setattr("kunlunfork.matrix.trees.fork_tree", lambda *_: tree)


def options(out: Path | None, processes: int = 2, **more: Any) -> Options:
    base = Options("0.25.1", "cpu", ("ops",), ALL_ON, ("torch", "reference"), None, processes, 6, 0, out, None)
    return replace(base, **more)


def start(content: Content, wanted: Options, progress: Progress | None = None) -> Result:
    return run.run(content, Cache(content.root / "cache"), wanted, progress or Silent())


# A process of its own: `python -c SCRIPT CONTENT matrix run ...`. With a file `apart` in the content it shares its
# engine with no other process, and the hashes are those of the content.
SCRIPT = f"""
import os, sys
sys.path[:0] = {[str(REPO / "tests"), str(REPO / "scripts")]!r}
from pathlib import Path
import pytest
from kunlunfork import cli
from kunlunfork.content import Content
from kunlunfork.matrix import merge
import matrixkit
content = Content(Path(sys.argv[1]), clone=True)
more = {{}}
if (content.root / "apart").exists():
    root = content.root / f"engine-{{os.getpid()}}"
    root.mkdir(exist_ok=True)
    series, overlay = merge.hashes_of(content)("0.25.1")
    more = dict(root=root, series=series, overlay=overlay)
matrixkit.replace_engine(pytest.MonkeyPatch(), content, **more)
if os.environ.get("KIT_ON_RAY"):
    from kunlunfork.matrix import rayrun
    rayrun.PROGRAM = ("-c", matrixkit.SCRIPT, sys.argv[1])
sys.argv = ["kunlunfork", *sys.argv[2:]]
cli.main()
"""
ON = ("--vllm", "0.25.1", "--switches", "all-on")

RUN = Run("0.25.1", "cpu", "ops", 7, "5e" * 32, "0f" * 32, {"torch": "2.13.0"}, "Linux x86_64, 2 cores", 6, "each",
          "2026-11-30T20:00:00+00:00", ("kunlunfork", "matrix", "run"))  # fmt: skip
CELL = Cell(
    RUN, "test_bound.py::test_bound[a:f-x-torch-off:A]", "x", "passed", (1, 2), "a:f", "torch", "launchers:f", "off:A",
    ("KUNLUN_A",), 1e-6, 0.25, 1.5e9, None, 0.5,
)  # fmt: skip
FAILED = replace(
    CELL, test="test_bound.py::test_bound[a:f-y-torch-off:A]", case="y", outcome="failed", error=None,
    message="harness.Mismatch: a:f\n  arg0.x: 1 of 6 differ", tensor="arg0.x", index=(1, 2),
)  # fmt: skip


def names(cells: Sequence[Cell]) -> list[str]:
    return sorted(cell.test for cell in cells)
