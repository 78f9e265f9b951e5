"""The contracts of the fork at one pin: from its overlay and its patches, on the release that they were made for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kunlunfork import scopes
from kunlunfork.contracts import model, typed
from kunlunfork.contracts.model import Contract, Use
from kunlunfork.contracts.typed import Kind
from kunlunfork.contracts.usage import Ours, uses
from kunlunfork.diff import sites as declared
from kunlunfork.diff.sites import BACKENDS, KUNLUN, Site
from kunlunfork.fork import Fork
from kunlunfork.stages import Files, stages
from kunlunfork.symbols.facts import Class, Function
from kunlunfork.symbols.read import dotted
from kunlunfork.symbols.release import Given, Release, Symbol, module_of

_MIRRORS = re.compile(rb"^[ \t]*# mirrors: ([\w.]+):([\w.]+)[ \t]*\r?$", re.MULTILINE)
# What launchers and kernels are made of is followed here; what lies elsewhere (envs, loggers, math) is everybody's.
_ENGINE = "vllm.v1."
_ROUNDS = 4


@dataclass(frozen=True)
class Held:
    """The contracts of a pin, and the modules as the fork has them."""

    contracts: tuple[Contract, ...]
    modules: Given
    ours: frozenset[str]
    # Names of ours that a base class must not have: subclassed class -> names.
    names: dict[Symbol, frozenset[str]]


def extract(fork: Fork, release: Release) -> Held:
    """The contracts of a fork (raises `ForkError` where a patch does not fit the release)."""
    patched = _patched(fork, release)
    files: dict[bytes, bytes | None] = {
        path: file.data for path, file in fork.overlay.files.items() if path.endswith(b".py")
    }
    modules = Given({**patched, **files}, release)
    mine = frozenset(module for path in files if (module := module_of(path)))
    found = declared.load(fork)
    ours = Ours(modules, mine, *_bound(modules, found))
    trees = {m: scopes.parse(modules.source(m), where=m) for m in sorted(mine)}
    both = combined(ours, trees)
    ours.selves = {**ours.selves, **{own: Kind(bases[0], True) for own, bases in both.items()}}
    noted: list[Use] = []
    for _ in range(_ROUNDS):
        before = {symbol: dict(known) for symbol, known in ours.given.items()}
        noted = [use for module, tree in trees.items() for use in uses(ours, module, tree)]
        if before == ours.given:
            break
    for site in found:
        noted += _site(release, site)
    noted += [use for own, bases in both.items() for base in bases for use in overrides(ours, own, base)]
    noted += _of_patches(fork, release, modules)
    for module in trees:
        for match in _MIRRORS.finditer(modules.source(module)):
            user = f"{modules.paths[module].decode()}::"
            noted.append(Use(Symbol(match[1].decode(), match[2].decode()), model.MIRRORS, user))
    names: dict[Symbol, frozenset[str]] = {}
    for own, bases in both.items():
        for base in bases:
            names[base] = names.get(base, frozenset()) | members(ours, own)
    return Held(model.gather(noted), modules, mine, names)


def _patched(fork: Fork, release: Release) -> dict[bytes, bytes | None]:
    """The Python files that the series changes, as it leaves them."""
    wanted = [p for p in fork.patched if p in release.entries]
    base: Files = dict.fromkeys(fork.patched)
    base.update(release.repository.read({p: release.entries[p] for p in wanted}))
    last = stages(fork.patches, base)[-1]
    return {p: last[p][1] if p in last else None for p in fork.patched if p.endswith(b".py")}


# -- sites


def _bound(
    modules: Given, found: tuple[Site, ...]
) -> tuple[dict[Symbol, Kind], dict[Symbol, str], dict[Symbol, dict[str, Kind]]]:
    """Of each function of ours that stands in for a launcher: what its `self` is, the launcher, what upstream's
    annotations say of its parameters."""
    selves: dict[Symbol, Kind] = {}
    names: dict[Symbol, str] = {}
    hints: dict[Symbol, dict[str, Kind]] = {}
    for site in found:
        launcher = Symbol(module_of(site.path.encode()), site.qualname)
        made = modules.definition(launcher)
        owner = launcher.name.rpartition(".")[0]
        own = {site.name, *(name for _, name in site.variants), *([site.when_greedy] if site.when_greedy else [])}
        for folder, _ in BACKENDS:
            for name in own:
                me = Symbol(module_of(f"{KUNLUN}{folder}/{site.impl}.py".encode()), name)
                names[me] = str(launcher)
                if owner:
                    selves[me] = Kind(Symbol(launcher.module, owner), True)
                for p in made.params if isinstance(made, Function) else ():
                    kind = typed.annotated(modules, launcher.module, launcher.name, p.annotation)
                    if kind is not None:
                        hints.setdefault(me, {})[p.name] = kind
    return selves, names, hints


def _site(release: Release, site: Site) -> Iterator[Use]:
    launcher = Symbol(module_of(site.path.encode()), site.qualname)
    user = f"{KUNLUN}launchers/{site.impl}.py::{site.name}"
    yield Use(launcher, model.REPLACES, user, site=str(launcher))
    seen = {launcher}
    todo = [launcher]
    while todo:
        for symbol in parts(release, todo.pop()):
            if symbol not in seen:
                seen.add(symbol)
                todo.append(symbol)
                yield Use(symbol, model.BEHIND, user, site=str(launcher))


def parts(release: Release, symbol: Symbol) -> Iterator[Symbol]:
    """The functions, classes and constants of the engine that a function names, its own class's methods too."""
    made = release.definition(symbol)
    if not isinstance(made, Function):
        return
    owner = symbol.name.rpartition(".")[0]
    for ref in made.refs:
        found = release.find(symbol.module, ref, symbol.name)
        if found is None and "." in ref:
            found = release.find(symbol.module, ref.split(".")[0], symbol.name)
        if found is not None and found.name and found.module.startswith(_ENGINE) and release.definition(found):
            yield found
    for call in made.calls:
        if owner and call.to.startswith("self.") and call.to.count(".") == 1:
            found = release.find(symbol.module, f"{owner}.{call.to[5:]}")
            if found is not None and isinstance(release.definition(found), Function):
                yield found


# -- subclasses


def combined(ours: Ours, trees: dict[str, ast.Module]) -> dict[Symbol, list[Symbol]]:
    """The classes of ours and the classes of upstream that they stand before: as bases, as bases of a class that has
    both, or where a function of ours makes such a class with `type`."""
    found: dict[Symbol, list[Symbol]] = {}

    def put(own: list[Symbol], bases: list[Symbol]) -> None:
        for mine in own:
            found.setdefault(mine, []).extend(b for b in bases if b not in found[mine])

    makers: dict[Symbol, list[Symbol]] = {}
    for module, tree in trees.items():
        facts = ours.modules.facts(module)
        assert facts is not None
        for name in facts.classes:
            chain = list(ours.modules.mro(Symbol(module, name)))
            upstream = [s for s in chain if ours.is_upstream(s)]
            if upstream:
                # The nearest one: what it inherits is found through it.
                put([s for s in chain if not ours.is_upstream(s)], upstream[:1])
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                mixed = [s for s in _typed_bases(ours, module, node) if s is not None]
                if mixed:
                    makers[Symbol(module, node.name)] = mixed
    for module, tree in trees.items():
        for scope, call in _calls(tree):
            maker = ours.modules.find(module, dotted(call.func), scope) if dotted(call.func) else None
            for arg in call.args if maker in makers else ():
                base = ours.modules.find(module, dotted(arg), scope) if dotted(arg) else None
                if base is not None and ours.is_upstream(base):
                    put(makers[maker], [base])  # type: ignore[index]
    return found


def _typed_bases(ours: Ours, module: str, function: ast.FunctionDef) -> Iterator[Symbol | None]:
    """The classes of ours in `type(name, (Ours, base), ...)`."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "type"
            and len(node.args) == 3
        ):
            bases = node.args[1]
            for each in bases.elts if isinstance(bases, ast.Tuple) else ():
                symbol = ours.modules.find(module, dotted(each)) if dotted(each) else None
                yield symbol if symbol is not None and not ours.is_upstream(symbol) else None


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in tree.body:
        scope = node.name if isinstance(node, ast.FunctionDef) else ""
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                yield scope, part


def members(ours: Ours, own: Symbol) -> frozenset[str]:
    made = ours.modules.definition(own)
    if not isinstance(made, Class):
        return frozenset()
    return frozenset({*made.methods, *(a.name for a in made.attributes)})


def overrides(ours: Ours, own: Symbol, base: Symbol) -> Iterator[Use]:
    user = f"{ours.modules.paths[own.module].decode()}::{own.name}"
    yield Use(base, model.SUBCLASSES, user)
    for name in sorted(members(ours, own)):
        symbol = ours.modules.find(base.module, f"{base.name}.{name}")
        if symbol is not None and isinstance(ours.modules.definition(symbol), Function):
            yield Use(symbol, model.OVERRIDES, f"{user}.{name}")


# -- patches


def _of_patches(fork: Fork, release: Release, modules: Given) -> Iterator[Use]:
    for patch in fork.patches:
        user = f"patches/{fork.pin.version}/{patch.name}"
        for file in patch.files:
            module = module_of(file.old_path or b"")
            old, new = release.facts(module) if module else None, modules.facts(module) if module else None
            if old is None or new is None:
                continue
            for name, function in old.functions.items():
                now = new.functions.get(name)
                if now is None or now.body == function.body:
                    continue
                yield Use(Symbol(module, name), model.PATCHED, user)
                for ref in sorted(set(now.refs) - set(function.refs)):
                    found = modules.find(module, ref, name)
                    if found is not None and found.module in release.paths and release.definition(found):
                        yield Use(found, model.USES, user)
            # A name that the patch imports from elsewhere: whoever uses it there gets another thing now.
            for item in set(new.imports) - set(old.imports):
                for name, function in old.functions.items() if not item.where else ():
                    if any(ref.split(".")[0] == item.name for ref in function.refs):
                        yield Use(Symbol(module, name), model.PATCHED, user)
                gone = [i for i in old.imports if i.name == item.name and i.what]
                for was in gone:
                    source = release.absolute(was.module, module)
                    symbol = release.find(source, was.what)
                    if symbol is not None:
                        yield Use(symbol, model.IMPORTS, user, f"{source}:{was.what}")
