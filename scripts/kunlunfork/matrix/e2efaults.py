"""`kunlunfork matrix selftest --tier e2e`: faults put into copies of the fork tree; whole engines must show each."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import definition, e2e, e2escenarios, environment, ops, settings, trees
from kunlunfork.matrix.cells import PASSED, Cell, Run
from kunlunfork.matrix.e2eengines import Place, make_models
from kunlunfork.matrix.e2erecords import Records, models
from kunlunfork.matrix.e2escenarios import Planned
from kunlunfork.matrix.faults import Fault
from kunlunfork.matrix.ops import Log
from kunlunfork.matrix.selftest import CAUGHT, SURVIVED, Result, Verdict
from kunlunfork.progress import Progress
from kunlunfork.store import Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FIELDS = {"name", "file", "old", "new", "cells"}


def run(
    content: Content, cache: Cache, version: str, device: str, jobs: int, expression: str | None,
    python: Path | None, progress: Progress,
) -> Result:  # fmt: skip
    """Put each fault of `tests/parity/e2e/faults.toml` into a copy of the fork tree and run the cells that it names;
    `expression`: a part of the faults' names.

    Raises:
        ForkError: the list does not fit the tree or the scenarios, a cell fails without a fault, or no fault matches.
    """
    pin = content.pin(version)
    engine = environment.ensure(definition.load(content, pin.version, device), cache, python, progress)
    began = time.monotonic()
    with (
        environment.exclusive(engine.root / "trees.lock", "runs cells in the same tree", progress),
        tempfile.TemporaryDirectory(prefix="kunlunfork-e2e-") as folder,
    ):
        tree = trees.fork_tree(content, engine, Store(cache.store), pin.version, progress)
        planned = _planned(content, engine, device)
        listed = load(content, tree.root, planned)
        chosen = [fault for fault in listed if expression is None or expression in fault.name]
        if not chosen:
            raise ForkError(f"no fault of the tier {e2e.TIER} matches {expression!r}")
        scratch, root = Path(folder), engine.root / "e2e"
        place = Place(engine, tree.root, content.parity, models(root, content.parity))
        if not place.models.is_dir():
            trouble = make_models(engine, content.parity, place.models, scratch / "models.log")
            if trouble:
                raise ForkError("the models of the tier e2e cannot be made", details=trouble.splitlines()[-8:])
        shared = Run(
            pin.version, device, e2e.TIER, 0, tree.series_hash, tree.overlay_hash, dict(engine.versions), ops.machine()
        )
        records = Records(root, content.parity)

        def cells(where: Place, names: Sequence[str]) -> list[Cell]:
            found: list[Cell] = []
            log = Log(lambda tier, count, of="": None, found.append)
            e2e.execute(where, records, shared, [planned[n] for n in names], scratch, log, jobs, progress)
            return found

        bad = [c for c in cells(place, sorted({n for f in chosen for n in f.tests})) if c.outcome != PASSED]
        if bad:
            raise ForkError(
                f"the tier {e2e.TIER} fails without any fault", details=[f"{c.test}: {c.message}" for c in bad],
                fix=f"mend that first: kunlunfork matrix run --tier {e2e.TIER}",
            )  # fmt: skip
        verdicts = []
        for number, fault in enumerate(chosen):
            started = time.monotonic()
            copy = with_fault(tree.root, scratch / f"tree{number}", fault)
            found = cells(replace(place, tree=copy), fault.tests)
            shutil.rmtree(copy)
            verdicts.append(_verdict(fault, found, time.monotonic() - started))
    return Result(tuple(verdicts), time.monotonic() - began)


def _planned(content: Content, engine: environment.Engine, device: str) -> dict[str, Planned]:
    """The cells by scenario and case, with all switches on."""
    on = settings.settings("all-on", {})
    return {
        f"{p.scenario.name}::{p.case.name}": p
        for p in e2escenarios.cells(e2escenarios.load(content, engine, device), on)
    }


def _verdict(fault: Fault, found: Sequence[Cell], seconds: float) -> Verdict:
    """Every cell that a fault names must show it."""
    passed = [c for c in found if c.outcome == PASSED]
    shown = next((c for c in found if c.outcome != PASSED), None)
    outcome = SURVIVED if passed else CAUGHT
    told = f"passed: {', '.join(c.test for c in passed)}" if passed else (shown.message if shown else None)
    by = None if shown is None else shown.test
    return Verdict(fault, outcome, by, told and told[:600], len(found), round(seconds, 2))


def load(content: Content, tree: Path, planned: Mapping[str, Planned]) -> tuple[Fault, ...]:
    """The faults. `file` is below `vllm`; `tests`: scenario::case.

    Raises:
        ForkError: a fault has other fields, its old text is not in its file exactly once, its new text is no Python,
            or it names no cell that there is.
    """
    path = content.parity / "e2e" / "faults.toml"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as e:
        raise ForkError(f"{path} holds no faults", found=f"{type(e).__name__}: {e}") from e
    problems, found = [], []
    for entry in raw:
        name = str(entry.get("name", "a fault without a name"))
        if entry.keys() != _FIELDS:
            problems.append(f"{name}: has the fields {', '.join(sorted(entry))}")
            continue
        wrong = _misfit(tree / "vllm" / entry["file"], entry["old"], entry["new"])
        wrong += [f"there is no cell {cell}" for cell in entry["cells"] if cell not in planned]
        problems += [f"{name}: {problem}" for problem in wrong]
        found.append(Fault(name, e2e.TIER, entry["file"], entry["old"], entry["new"], tuple(entry["cells"])))
    if problems:
        raise ForkError(
            f"the list of faults of the tier {e2e.TIER} no longer fits", details=problems, fix=f"correct {path}"
        )
    return tuple(found)


def _misfit(file: Path, old: str, new: str) -> list[str]:
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.count(old) != 1:
        return [f"{file.name} has its old text {text.count(old)} times"]
    try:
        compile(text.replace(old, new), str(file), "exec")
    except SyntaxError as e:
        return [f"its new text is no Python ({e.msg}, line {e.lineno})"]
    return []


def with_fault(tree: Path, folder: Path, fault: Fault) -> Path:
    """A copy of the tree with the fault in it. What is not changed are links to the tree's own files."""
    shutil.copytree(tree, folder, symlinks=True, copy_function=_link)
    file = folder / "vllm" / fault.file
    # Python writes bytecode anew by renaming, so that the tree's own stays.
    for old in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        old.unlink()
    text = file.read_text(encoding="utf-8")
    # Another file, never the one that the tree has, too.
    file.unlink()
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return folder


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
        return target
    except OSError:  # another file system
        return shutil.copy2(source, target)
