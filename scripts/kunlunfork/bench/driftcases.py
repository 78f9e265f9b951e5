"""Edits of a release to measure `drift` by: some change what the fork relies on, some nothing that matters.

What matters is told by text and syntax alone, apart from the index and the extraction that are measured: launchers by
the overlay's declaration, kernels and helpers by the names in their text, methods by the names of ours.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kunlunfork.diff.sites import Site
from kunlunfork.symbols.release import Release, module_of

_WORD = re.compile(rb"[A-Za-z_]\w*")
_GPU = "vllm.v1.worker.gpu."
_RUNNER = "GPUModelRunner"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Edit:
    """`symbol` is what has to be told, '' for nothing; `files` what the release has instead."""

    kind: str
    symbol: str
    files: Mapping[bytes, bytes]
    what: str


@dataclass(frozen=True)
class Target:
    """A function that matters: where it is, and its node."""

    module: str
    name: str
    node: Function

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


class Sources:
    """Files of a release, their trees, and places in them by line and column."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._trees: dict[str, ast.Module] = {}
        self._bytes: dict[str, bytes] = {}

    def source(self, module: str) -> bytes:
        if module not in self._bytes:
            self._bytes[module] = self.release.source(module)
        return self._bytes[module]

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = ast.parse(self.source(module))
        return self._trees[module]

    def functions(self, module: str) -> Iterator[Target]:
        todo: list[tuple[str, ast.AST]] = [("", self.tree(module))]
        while todo:
            top, node = todo.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, Function | ast.ClassDef):
                    name = f"{top}.{child.name}" if top else child.name
                    if isinstance(child, Function):
                        yield Target(module, name, child)
                    else:
                        todo.append((name, child))

    def at(self, module: str, line: int, column: int) -> int:
        lines = self.source(module).split(b"\n")
        return sum(len(x) + 1 for x in lines[: line - 1]) + column

    def span(self, module: str, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(module, node.lineno, node.col_offset), self.at(module, node.end_lineno, node.end_col_offset)

    def text(self, target: Target) -> bytes:
        start, end = self.span(target.module, target.node)
        return self.source(target.module)[start:end]

    def replaced(self, module: str, *edits: tuple[int, int, bytes]) -> dict[bytes, bytes]:
        source = self.source(module)
        for start, end, new in sorted(edits, reverse=True):
            source = source[:start] + new + source[end:]
        return {self.release.paths[module]: source}


@dataclass(frozen=True)
class World:
    """Everything that the edits are drawn from."""

    sources: Sources
    launchers: tuple[Target, ...]
    behind: tuple[Target, ...]
    overridden: tuple[Target, ...]
    callers: tuple[tuple[Target, ast.Call, str], ...]
    unrelated: tuple[Target, ...]
    modules: tuple[str, ...]
    fields: tuple[str, ...]


def world(release: Release, sites: Iterable[Site], overlay: Mapping[bytes, bytes]) -> World:
    """What there is to edit (no file is run).

    Args:
        overlay: the fork's files, by path.
    """
    sources = Sources(release)
    names = {(module_of(s.path.encode()), s.qualname) for s in sites}
    modules = tuple(sorted({module for module, _ in names} | {f"{_GPU}model_runner"}))
    everything = {str(t): t for module in modules for t in sources.functions(module)}
    launchers = tuple(everything[f"{module}:{name}"] for module, name in sorted(names))
    ours = b"\n".join(overlay.values())
    jit = {t.node.name: t for t in everything.values() if any("jit" in ast.unparse(d) for d in t.node.decorator_list)}
    behind: dict[str, Target] = {}
    todo = list(launchers)
    while todo:
        at = todo.pop()
        for word in set(_WORD.findall(sources.text(at))):
            found = everything.get(f"{at.module}:{word.decode()}") or jit.get(word.decode())
            if found is not None and found.node.name in jit and str(found) not in behind:
                behind[str(found)] = found
                todo.append(found)
    mixin = {word.decode() for word in re.findall(rb"^    def (\w+)", ours, re.MULTILINE)}
    runner = [t for t in everything.values() if t.name.startswith(f"{_RUNNER}.") and t.node.name in mixin]
    runner = [t for t in runner if re.search(rb"super\(\)\.%s\(" % t.node.name.encode(), ours)]
    callers = tuple(_callers(sources, launchers, [*modules, *_speculators(release)]))
    told = set(_WORD.findall(ours))
    for each in (*launchers, *behind.values(), *runner):
        told |= set(_WORD.findall(sources.text(each)))
    calling = {str(t) for t, _, _ in callers}
    reached = re.compile(rb"\.(?:%s)\(" % b"|".join(t.node.name.encode() for t in launchers if "." in t.name))
    unrelated = tuple(
        t for key, t in sorted(everything.items())
        if t.node.name.encode() not in told and key not in calling
        and not reached.search(sources.text(t)) and not _concerns(sources, t)
    )  # fmt: skip
    return World(
        sources, launchers, tuple(behind.values()), tuple(runner), callers, unrelated, modules,
        tuple(_fields(sources, ours)),
    )  # fmt: skip


def _speculators(release: Release) -> list[str]:
    return [m for m in release.paths if m.startswith(_GPU) and "spec_decode" in m]


def _callers(
    sources: Sources, launchers: Iterable[Target], modules: Iterable[str]
) -> Iterator[tuple[Target, ast.Call, str]]:
    names = {t.node.name: str(t) for t in launchers if "." not in t.name}
    for module in dict.fromkeys(modules):
        for target in sources.functions(module):
            for node in ast.walk(target.node):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    symbol = names[node.func.id]
                    # Two launchers have one name: the one of this module, or that it imports.
                    same = f"{module}:{node.func.id}"
                    imported = re.search(
                        rb"import[^\n]*\b%s\b|^    %s,$" % ((node.func.id.encode(),) * 2),
                        sources.source(module),
                        re.MULTILINE,
                    )
                    if same in names.values():
                        yield target, node, same
                    elif (
                        imported
                        and list(names.values()).count(symbol) == 1
                        and node.func.id != "prepare_prefill_inputs"
                    ):
                        yield target, node, symbol


def _concerns(sources: Sources, target: Target) -> bool:
    """Whether a function makes or hands over objects of whose attributes ours knows: not a place without meaning."""
    text = sources.text(target)
    made = rb"InputBatch\(|Tensor\(|UvaB\w+\(|Buffer\w*\(|HAS_TRITON|Context\(|Zeroer\(|State\w*\(|LogprobsTensors"
    return target.node.name.startswith("__") or re.search(made, text) is not None


def _fields(sources: Sources, ours: bytes) -> Iterator[str]:
    """Fields of InputBatch that ours reads from something called a batch."""
    used = {word.decode() for word in re.findall(rb"\binput_batch\.(\w+)", ours)}
    for node in sources.tree(f"{_GPU}input_batch").body:
        if isinstance(node, ast.ClassDef) and node.name == "InputBatch":
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id in used:
                    yield part.target.id


Maker = Callable[[World, random.Random], "Edit | None"]


def draw(world: World, makers: Mapping[str, Maker], count: int, seed: int) -> list[Edit]:
    """About as many edits of each kind, no two alike, each one valid Python; fewer where a kind has no more."""
    found: list[Edit] = []
    for i, (kind, make) in enumerate(makers.items()):
        chance = random.Random(f"{seed}/{kind}")
        wanted = (count - len(found)) // (len(makers) - i)
        seen: set[tuple[tuple[bytes, bytes], ...]] = set()
        for _ in range(wanted * 12):
            if len(seen) == wanted:
                break
            edit = make(world, chance)
            if edit is None:
                continue
            key = tuple(sorted(edit.files.items()))
            if key in seen or not all(_parses(data) for data in edit.files.values()):
                continue
            seen.add(key)
            found.append(edit)
    return found


def _parses(data: bytes) -> bool:
    try:
        ast.parse(data)
    except (SyntaxError, ValueError):
        return False
    return True
