"""All checks, in order; one that cannot be made is a line of its own, never an end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunlunfork import overlay, pins
from kunlunfork.content import Content
from kunlunfork.doctor import device, environment, machine, plugins, runnercheck, vllm
from kunlunfork.doctor.check import Check, of_error
from kunlunfork.doctor.child import Answer, ask
from kunlunfork.doctor.plugins import Plugin
from kunlunfork.doctor.runner import Verdict
from kunlunfork.doctor.runnercheck import Given, Tree
from kunlunfork.doctor.vllm import Wanted
from kunlunfork.errors import ForkError
from kunlunfork.lock import Lock
from kunlunfork.progress import Progress
from kunlunfork.sources.interpreter import Interpreter, probe
from kunlunfork.target import Target

# Seconds: Triton's first compilation on a cold disk; and vLLM's import with the making of a configuration.
DEVICE_LIMIT = 180.0
ENGINE_LIMIT = 300.0


@dataclass(frozen=True)
class Report:
    """`owners`: site -> who runs there; `runner`: None where there is no vLLM."""

    checks: tuple[Check, ...]
    root: Path | None
    owners: Mapping[str, str]
    runner: Verdict | None

    @property
    def bad(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == "bad")


@dataclass(frozen=True)
class Request:
    """What was asked. `run`: vLLM may be imported, in a child. The limits are seconds."""

    wanted: Wanted
    given: Given
    run: bool
    device_limit: float = DEVICE_LIMIT
    engine_limit: float = ENGINE_LIMIT


def examine(request: Request, content: Content | ForkError, progress: Progress) -> Report:
    """Look at everything."""
    checks = [machine.check_python(), machine.check_git()]
    fork = None if isinstance(content, ForkError) else content
    checks.append(of_error("content", content) if isinstance(content, ForkError) else machine.check_content(content))
    interpreter, line = _interpreter(request.wanted.python)
    if line is not None:
        checks.append(line)
    target, line = vllm.find(request.wanted, interpreter)
    checks.append(line)
    asked, lines = environment.read(fork, _version(target), os.environ)
    if target is None:
        checks += [*_device(request, interpreter, None, None, progress)[0], *lines]
        return Report(tuple(checks), None, {}, None)

    patched = vllm.check_patched(target, fork)
    lock, forked = patched.lock, patched.lock is not None
    checks.append(patched.check)
    if (record := vllm.check_record(target, lock, patched.check.fix)) is not None:
        checks.append(record)
    if lock is not None:
        checks.append(vllm.check_bytecode(target, lock))
    found, unread = _plugins(target, interpreter)
    checks.append(plugins.check_plugins(found, unread))
    kunlun = any(plugins.replaces_v2(p) and plugins.is_loaded(p, os.environ) for p in found)
    owned = _owners(target, fork, forked, kunlun)
    if (sites := plugins.check_sites(owned, forked=forked, plugin=kunlun)) is not None:
        checks.append(sites)

    more, answer = _device(request, interpreter, target, fork, progress, kernels=asked.kernels, lock=lock)
    engine, line = _engine(request, interpreter, target, progress)
    triton = None if answer is None else device.check_triton(answer, engine, asked.kernels, forked)
    uva = None if answer is None else device.check_uva(answer, engine, target.root)
    checks += [c for c in (*more, triton, uva, line) if c is not None]
    checks += lines
    if (backend := environment.check_backend(asked.kernels, target.root, forked)) is not None:
        checks.append(backend)
    tree = Tree(
        target.root, forked, patched.whole, _has_triton(answer, engine), any(p.group == plugins.LOGITS for p in found),
        kunlun,
    )  # fmt: skip
    verdict, line = runnercheck.check(tree, request.given, asked, engine)
    return Report((*checks, line), target.root, owned, verdict)


def _interpreter(python: Path | None) -> tuple[Interpreter | None, Check | None]:
    try:
        found = probe(python)
    except ForkError as e:
        return None, of_error("interpreter", e)
    if python is None:
        return found, None
    return found, Check("interpreter", "ok", f"Python {found.version} ({found.executable})")


def _version(target: Target | None) -> str | None:
    return None if target is None or target.info.version is None else pins.public(target.info.version)


def _plugins(target: Target, interpreter: Interpreter | None) -> tuple[tuple[Plugin, ...], tuple[str, ...]]:
    folders = dict.fromkeys((target.root, *(() if interpreter is None else interpreter.folders)))
    try:
        return plugins.scan(tuple(folders))
    except ForkError as e:
        return (), (f"{e.message}: {e.found}",)


def _owners(target: Target, content: Content | None, forked: bool, plugin: bool) -> dict[str, str]:
    """By the fork's declaration in the tree, else by that of the content."""
    version = _version(target)
    declared = plugins.sites(target.root / plugins.SITES)
    if not declared and content is not None and version is not None:
        declared = _declared(content, version)
    return plugins.owners(declared, forked=forked, plugin=plugin)


def _declared(content: Content, version: str) -> tuple[tuple[str, str], ...]:
    try:
        # An overlay holds only what differs from the one before it.
        files = overlay.resolve(content.overlay, version).files if version in content.versions() else {}
    except ForkError:
        return ()  # what is wrong with the content is a line of its own
    held = files.get(plugins.SITES.encode())
    return () if held is None else plugins.sites(held.source)


def _before(target: Target | None, interpreter: Interpreter) -> Path | None:
    """What a child must find before the interpreter's own packages."""
    if target is None or target.info.kind == "editable":
        return None
    return None if target.root in [folder.resolve() for folder in interpreter.folders] else target.root


def _device(
    request: Request, interpreter: Interpreter | None, target: Target | None, content: Content | None,
    progress: Progress, *, kernels: str = "auto", lock: Lock | None = None,
) -> tuple[list[Check], Answer | None]:  # fmt: skip
    if interpreter is None:
        return [], None
    python = interpreter.executable
    with progress.task(f"asking {python} for torch, Triton and the device", None):
        answer = ask(python, "device", {}, tree=_before(target, interpreter), limit=request.device_limit)
    if "python" not in answer.facts:
        fix = "name another interpreter: kunlunfork doctor --python EXE"
        return [Check("torch", "bad", f"{python} does not answer: {answer.trouble}", fix)], None
    checks = [
        device.check_torch(answer, _pinned_torch(target, content), python, target is not None),
        device.check_device(answer),
        device.check_launch(answer, kernels, lock, None if target is None else target.root),
    ]
    if answer.trouble is not None and answer.doing == "importing Triton":
        checks.append(Check("triton", "bad", f"importing it: {answer.trouble}", f"{python} -m pip uninstall triton"))
    return [c for c in checks if c is not None], answer


def _pinned_torch(target: Target | None, content: Content | None) -> str | None:
    version = _version(target)
    if content is None or version is None:
        return None
    try:
        return content.pin(version).torch
    except ForkError:
        return None  # a release without a pin has no torch to compare with


def _engine(
    request: Request, interpreter: Interpreter | None, target: Target, progress: Progress
) -> tuple[Answer | None, Check | None]:
    if not request.run or interpreter is None:
        return None, None
    given = request.given
    told: dict[str, Any] = {
        "model": None if given.model is None else str(given.model.folder.resolve()),
        "speculative": None if given.speculative is None else dict(given.speculative),
    }
    with progress.task(f"asking the vLLM of {target.root}", None):
        answer = ask(
            interpreter.executable, "engine", told, tree=_before(target, interpreter), limit=request.engine_limit
        )
    if answer.trouble is not None:
        doing = answer.doing or "starting"
        return answer, Check(
            "run", "bad", f"{doing}: {answer.trouble}", "mend what it names, then the same command again"
        )
    where = Path(str(answer.get("vllm")["file"])).parent.parent
    if where.resolve() != target.root:
        return None, Check(
            "run", "bad", f"{interpreter.executable} imports the vLLM of {where}, not of {target.root}",
            "unset PYTHONPATH, or name the interpreter that it belongs to: --python EXE",
        )  # fmt: skip
    platform = answer.get("platform")
    return answer, Check("run", "ok", f"vLLM {answer.get('vllm')['version']} loads, platform {platform['name']}")


def _has_triton(answer: Answer | None, engine: Answer | None) -> bool | None:
    said = None if engine is None else engine.get("has_triton")
    if said is not None:
        return bool(said)
    triton = None if answer is None else answer.get("triton")
    return None if triton is None else bool(triton["has"])
