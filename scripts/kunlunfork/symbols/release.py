"""The modules of one tree of vLLM, and what their names stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kunlunfork.objects import Repository
from kunlunfork.paths import REGULAR, Entry, blob_id
from kunlunfork.symbols.facts import Attribute, Class, Constant, Facts, Function, Import
from kunlunfork.symbols.kept import Kept, pack
from kunlunfork.symbols.read import read

TOP = "vllm"
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)
# How far names are followed from module to module.
_FAR = 12

Definition = Function | Class | Constant


@dataclass(frozen=True)
class Symbol:
    """Where something is defined: `module`, and its qualified name there ('' for the module itself)."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}" if self.name else self.module


def module_of(path: bytes) -> str:
    """The module of a path such as `vllm/a/__init__.py`; '' for what is none."""
    if not path.endswith(b".py"):
        return ""
    parts = path[:-3].decode("utf-8", "replace").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


class Modules:
    """Python modules by name; their facts are read when they are asked for.

    Args:
        files: the files of a tree, by path.
    """

    def __init__(self, files: Mapping[bytes, Entry]) -> None:
        self.paths: dict[str, bytes] = {}
        self.entries = dict(files)
        for path in files:
            module = module_of(path)
            # A package comes before a module of its name.
            if module and (module not in self.paths or path.endswith(b"/__init__.py")):
                self.paths[module] = path
        self._facts: dict[str, Facts] = {}
        self._found: dict[tuple[str, str, str], Symbol | None] = {}
        self._names: dict[str, dict[str, list[Import]]] = {}
        self._tops = {TOP, *(m.split(".")[0] for m in self.paths)}
        # Folders with modules below them; not all have a file of their own.
        self._packages = {m.rpartition(".")[0] for m in self.paths}
        for package in list(self._packages):
            while package := package.rpartition(".")[0]:
                self._packages.add(package)

    def _read(self, modules: Iterable[str]) -> None:
        raise NotImplementedError

    def facts(self, module: str) -> Facts | None:
        """What a module defines; None where there is no such module."""
        if module not in self._facts:
            if module not in self.paths:
                return None
            self._read([module])
        return self._facts[module]

    def preload(self, modules: Iterable[str]) -> None:
        """Read several in one go."""
        missing = [m for m in dict.fromkeys(modules) if m in self.paths and m not in self._facts]
        if missing:
            self._read(missing)

    def is_package(self, module: str) -> bool:
        return self.paths.get(module, b"").endswith(b"/__init__.py") or module in self._packages

    def absolute(self, module: str, of: str) -> str:
        """The module that `from module import` means in the module `of`."""
        level = len(module) - len(module.lstrip("."))
        if level == 0:
            return module
        parts = of.split(".")
        keep = len(parts) - level + (1 if self.is_package(of) else 0)
        rest = module[level:]
        return ".".join([*parts[: max(keep, 0)], *([rest] if rest else [])])

    # -- names

    def definition(self, symbol: Symbol) -> Definition | None:
        facts = self.facts(symbol.module)
        if facts is None:
            return None
        name = symbol.name
        return facts.functions.get(name) or facts.classes.get(name) or facts.constants.get(name)

    def exists(self, module: str) -> bool:
        return module in self.paths or self.is_package(module)

    def find(self, module: str, name: str, where: str = "", far: int = _FAR) -> Symbol | None:
        """What a dotted name stands for in a module (in its function `where`): imports, re-exports, stars and lazy
        tables are followed. A member of a class is looked for in its bases, too. None: nothing that we know."""
        key = (module, name, where)
        if key in self._found:
            return self._found[key]
        first, _, rest = name.partition(".")
        found = self._first(module, first, where, far)
        while found is not None and rest:
            name, _, rest = rest.partition(".")
            found = self._member(found, name, far)
        if far == _FAR:
            self._found[key] = found
        return found

    def _first(self, module: str, name: str, where: str, far: int) -> Symbol | None:
        facts = self.facts(module)
        if facts is None or far < 0:
            return Symbol(f"{module}.{name}", "") if self.exists(f"{module}.{name}") else None
        items = self._imports(module, facts)
        local = [i for i in items.get(name, ()) if i.where and i.where == where]
        if not local and (name in facts.functions or name in facts.classes):
            return Symbol(module, name)
        for item in reversed([*(i for i in items.get(name, ()) if not i.where), *local]):
            found = self._imported(module, item, far)
            if found is not None:
                return found
        if name in facts.constants:
            return Symbol(module, name)
        if name in facts.lazy:
            target, _, what = facts.lazy[name].partition(":")
            return self.find(self.absolute(target, module), what, far=far - 1)
        for star in items.get("*", ()):
            source = self.absolute(star.module, module)
            if self._exported(source, name) and (found := self.find(source, name, far=far - 1)):
                return found
        return Symbol(f"{module}.{name}", "") if self.exists(f"{module}.{name}") else None

    def _imports(self, module: str, facts: Facts) -> Mapping[str, list[Import]]:
        known = self._names.get(module)
        if known is None:
            known = self._names[module] = {}
            for item in facts.imports:
                known.setdefault(item.name, []).append(item)
        return known

    def _exported(self, module: str, name: str) -> bool:
        facts = self.facts(module)
        if facts is None:
            return False
        return not name.startswith("_") if facts.exports is None else name in facts.exports

    def _imported(self, module: str, item: Import, far: int) -> Symbol | None:
        source = self.absolute(item.module, module)
        if not item.what:
            return Symbol(source, "") if self.exists(source) else None
        if item.what == "*" or source.split(".")[0] not in self._tops:
            return None
        if source == module:  # `from . import x` in a package
            below = f"{module}.{item.what}"
            return Symbol(below, "") if self.exists(below) else None
        return self.find(source, item.what, far=far - 1)

    def _member(self, of: Symbol, name: str, far: int) -> Symbol | None:
        if not of.name:
            return self._first(of.module, name, "", far - 1)
        for owner in self.mro(of):
            if self.definition(Symbol(owner.module, f"{owner.name}.{name}")) or self.attribute(owner, name):
                return Symbol(owner.module, f"{owner.name}.{name}")
        return None

    def attribute(self, owner: Symbol, name: str) -> Attribute | None:
        """What a class says of an attribute; its bases are not asked."""
        found = self.definition(owner)
        if isinstance(found, Class):
            return next((a for a in found.attributes if a.name == name), None)
        return None

    def mro(self, symbol: Symbol) -> Iterator[Symbol]:
        """A class and those of its bases that are known, nearest first."""
        seen: set[Symbol] = set()
        todo = [symbol]
        while todo:
            at = todo.pop(0)
            found = self.definition(at)
            if at in seen or not isinstance(found, Class):
                continue
            seen.add(at)
            yield at
            bases = (self.find(at.module, base.split("[")[0]) for base in found.bases)
            todo += [base for base in bases if base is not None]

    # -- who imports whom

    @property
    def imported(self) -> Mapping[str, frozenset[str]]:
        """module -> the modules (and what may be one) of vLLM that its file names in imports."""
        raise NotImplementedError

    def source(self, module: str) -> bytes:
        """The bytes of a module that is there."""
        raise NotImplementedError

    def _named(self, module: str, source: bytes) -> set[str]:
        found = set()
        for match in _IMPORT.finditer(source):
            if match[3] is not None:
                found |= {part.split()[0].decode() for part in match[3].split(b",") if part.split()}
                continue
            start = self.absolute(match[1].decode(), module)
            found.add(start)
            for part in match[2].strip(b"()").split(b","):
                words = part.split()
                if words and (name := words[0].decode(errors="replace")).isidentifier():
                    found.add(f"{start}.{name}")
        return {name for name in found if name.split(".")[0] == TOP}

    def importers(self, modules: Iterable[str]) -> tuple[str, ...]:
        """The modules that import one of these, or something of it by name."""
        wanted = set(modules)
        return tuple(m for m, names in self.imported.items() if m in wanted or names & wanted)


class Release(Modules):
    """A tree in a repository.

    Raises (every method): ForkError where the repository is damaged.

    Args:
        tree: its id, or that of a commit.
        kept: where facts are kept between commands.
    """

    def __init__(self, repository: Repository, tree: str, kept: Kept, version: str = "") -> None:
        self.repository, self.tree, self.kept, self.version = repository, tree, kept, version
        every = repository.entries(tree)
        super().__init__({p: e for p, e in every.items() if p.startswith(b"vllm/") and p.endswith(b".py")})

    def _read(self, modules: Iterable[str]) -> None:
        missing: list[str] = []
        for module in modules:
            found = self.kept.facts(self.entries[self.paths[module]].blob)
            if found is None:
                missing.append(module)
            else:
                self._facts[module] = found
        blobs = [self.entries[self.paths[m]].blob for m in missing]
        for module, blob, source in zip(missing, blobs, self.repository.blobs(blobs) if blobs else (), strict=True):
            self._facts[module] = read(source)
            self.kept.put(blob, pack(self._facts[module]))

    def source(self, module: str) -> bytes:
        return next(iter(self.repository.blobs([self.entries[self.paths[module]].blob])))

    @cached_property
    def imported(self) -> Mapping[str, frozenset[str]]:
        key = f"{self.tree}-imports"
        data = self.kept.get(key)
        try:
            raw = None if data is None else json.loads(data)
            if isinstance(raw, dict):
                return {module: frozenset(names) for module, names in raw.items()}
        except ValueError:
            pass
        modules = list(self.paths)
        blobs = [self.entries[self.paths[m]].blob for m in modules]
        found = {}
        for module, source in zip(modules, self.repository.blobs(blobs), strict=True):
            found[module] = sorted(self._named(module, source))
        self.kept.put(key, json.dumps(found).encode())
        return {module: frozenset(names) for module, names in found.items()}


class Given(Modules):
    """Files that are at hand, laid over a release where one is given.

    Args:
        files: path -> bytes, or None for one of the release's that is not there.
    """

    def __init__(self, files: Mapping[bytes, bytes | None], over: Release | None = None) -> None:
        self._sources = {module_of(path): data for path, data in files.items() if data is not None}
        self._over = over
        entries = {} if over is None else dict(over.entries)
        for path, data in files.items():
            entries.pop(path, None)
            if data is not None:
                entries[path] = Entry(REGULAR, blob_id(data))
        super().__init__(entries)

    def _read(self, modules: Iterable[str]) -> None:
        for module in modules:
            if module in self._sources:
                self._facts[module] = self._of(self._sources[module])
            else:
                assert self._over is not None
                found = self._over.facts(module)
                assert found is not None
                self._facts[module] = found

    def _of(self, source: bytes) -> Facts:
        if self._over is None:
            return read(source)
        blob, kept = blob_id(source), self._over.kept
        found = kept.facts(blob)
        if found is None:
            found = read(source)
            kept.put(blob, pack(found))
        return found

    def source(self, module: str) -> bytes:
        if module in self._sources or self._over is None:
            return self._sources[module]
        return self._over.source(module)

    @cached_property
    def imported(self) -> Mapping[str, frozenset[str]]:
        found = {} if self._over is None else {m: n for m, n in self._over.imported.items() if m in self.paths}
        found.update({m: frozenset(self._named(m, source)) for m, source in self._sources.items() if m in self.paths})
        return found
