# SPDX-License-Identifier: Apache-2.0
"""What the launchers may import and call, by their source: the half of the no-sync rule that a CPU run cannot see."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest

IMPORTS = {"numpy", "torch", *sys.stdlib_module_names}
# Methods that wait for a device, wherever they stand; a line may say why it does not: `# sync-ok: reason`.
WAITS = {
    "item",
    "tolist",
    "numpy",
    "cpu",
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "equal",
    "allclose",
    "bincount",
    "searchsorted",
    "bucketize",
    "synchronize",
}


def _sources() -> list[Path]:
    package = importlib.import_module(harness.kunlun_package())
    root = Path(next(iter(package.__path__)))
    names = (
        "block_verification.py", "deferred.py", "kv_segments.py", "ragged.py", "rng.py", "staging.py",
        "verification.py", "vocab.py",
    )  # fmt: skip
    shared = [root / name for name in names]
    folders = [path for name in ("launchers", "kernels") for path in sorted((root / name).glob("*.py"))]
    return folders + [path for path in shared if path.exists()]


def _nodes(tree: ast.AST, depth: int = 0) -> Iterator[tuple[ast.AST, int]]:
    """Every node outside `if TYPE_CHECKING:`, with the number of functions around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node, depth
        yield from _nodes(node, depth + isinstance(node, ast.FunctionDef))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or ""]
    return []


def _waits(call: ast.Call) -> str | None:
    called, keywords = call.func, {k.arg for k in call.keywords}
    if not isinstance(called, ast.Attribute):
        return None
    owner = ast.unparse(called.value)
    # NumPy, and vLLM's names for what lies on the host.
    if owner in ("np", "numpy") or owner.endswith("_np"):
        return None
    if called.attr in WAITS:
        return f"{called.attr}()"
    targets = [*call.args, *(k.value for k in call.keywords)]
    if called.attr == "to" and any(isinstance(t, ast.Constant) and t.value == "cpu" for t in targets):
        return "to('cpu')"
    if ast.unparse(called) == "torch.where" and len(targets) == 1:
        return "torch.where of a condition alone"
    if called.attr == "repeat_interleave" and "output_size" not in keywords:
        return "repeat_interleave without output_size"
    return None


def _problems(text: str, imports: set[str] = IMPORTS) -> list[str]:
    lines = text.splitlines()
    found = []
    for node, depth in _nodes(ast.parse(text)):
        # A launcher may build what upstream returns: vLLM is there when it runs, not where it is only imported.
        for name in _imported(node):
            if (
                name not in imports
                and name.partition(".")[0] not in imports
                and not (depth and name.startswith("vllm."))
            ):
                found.append(f"line {node.lineno}: imports {name}")
        if isinstance(node, ast.Call) and (wait := _waits(node)):
            around = lines[node.lineno - 1 : node.end_lineno]
            if not any("sync-ok: " in line for line in around):
                found.append(f"line {node.lineno}: {wait}")
    return found


@pytest.mark.parametrize("path", _sources(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_imports_and_waits(path: Path) -> None:
    imports = IMPORTS | ({"vllm.triton_utils"} if path.parent.name == "kernels" else set())
    assert _problems(path.read_text(encoding="utf-8"), imports) == []


@pytest.mark.parametrize(
    "line",
    [
        "import vllm",
        "from vllm.triton_utils import tl",
        "import triton",
        "x.item()",
        "x[0].tolist()",
        "f(x.cpu())",
        "torch.nonzero(x)",
        "x.to('cpu')",
        "x.to(device='cpu')",
        "torch.where(x)",
        "torch.repeat_interleave(x, y)",
        "stream.synchronize()",
    ],
)
def test_the_rule_bites(line: str) -> None:
    assert len(_problems(line)) == 1
    if "import" not in line:
        assert _problems(line + "  # sync-ok: shown to be free") == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "import math",
        "def f():\n    from vllm.v1.outputs import X",
        "from ..ragged import flat",
        "np.unique(x)",
        "batch.lens_np.tolist()",
        "torch.where(a, b, c)",
        "x.to(device)",
    ],
)
def test_the_rule_lets_pass(line: str) -> None:
    assert _problems(line) == []
