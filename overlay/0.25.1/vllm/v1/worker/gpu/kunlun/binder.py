# SPDX-License-Identifier: Apache-2.0
"""Puts dispatchers in the place of upstream's launchers and keeps them there."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from .dispatch import Binding, WhenGreedy, binding_of, signature
from .sites import Site

UPSTREAM = "upstream"
OURS = "kunlunfork"
NOT_LOADED = "not loaded"

Targets = Mapping[Site, Callable[..., Any] | WhenGreedy]


class DriftError(RuntimeError):
    """Upstream's launchers are not the ones that the fork was made for.

    Not an ImportError, though an import may raise it: that would be caught where
    a module is optional, and V2 would go on with what cannot run.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "kunlunfork cannot run Model Runner V2 on this vLLM: "
            + "; ".join(self.problems)
            + ". Apply the fork made for this version of vLLM, "
            "or set VLLM_USE_V2_MODEL_RUNNER=0."
        )


class _Replaced(NamedTuple):
    """`home` is the module that defines `obj`, where it is another package's."""

    obj: object
    home: str | None
    binding: Binding


class Binder:
    """Binds the sites of each upstream module once it has executed.

    Until `activate`, every dispatcher runs upstream's code and whatever is wrong
    with a module is only remembered: a process that never constructs runner V2
    does not hear of it. Nothing is imported while the lock is held.
    """

    def __init__(self, sites: Iterable[Site], rebinders: Mapping[str, tuple[str, ...]]) -> None:
        self._lock = threading.RLock()
        self._sites: dict[str, list[Site]] = {}
        for site in sites:
            self._sites.setdefault(site.module, []).append(site)
        self._rebinders = dict(rebinders)
        self._bindings: list[Binding] = []
        # What dispatchers took the place of, by id; the objects are kept alive.
        self._replaced: dict[int, _Replaced] = {}
        self._problems: dict[Site, str] = {}
        self._targets: Targets | None = None
        self.watched = frozenset(self._sites) | frozenset(self._rebinders)

    def executed(self, module: ModuleType) -> None:
        """A watched module has just run its body.

        Raises:
            DriftError: V2 is active and the module's launchers are not as expected.
        """
        with self._lock:
            name = module.__name__
            self._bind(name, module)
            touched = [name]
            for other in self._rebinders.get(name, ()):
                if other in sys.modules:
                    self._bind(other, sys.modules[other])
                    touched.append(other)
            if self._targets is not None:
                self._stop(s for m in touched for s in self._sites.get(m, ()))

    def settle(self) -> None:
        """Bind what is loaded but not bound, and rebind names taken before.

        That is: modules loaded before the hook or past it, launchers that someone
        replaced later, and the names of modules that took a launcher by
        `from ... import` before it was bound. A module that is being imported is
        left to its import.

        Raises:
            DriftError: V2 is active and a loaded launcher is not as expected.
        """
        with self._lock:
            for name in self._sites:
                module = sys.modules.get(name)
                if module is not None and not _initializing(module):
                    self._bind(name, module)
            self._rebind_consumers()
            if self._targets is not None:
                self._stop(self._problems)

    def activate(self, targets: Targets) -> None:
        """Send every site to `targets[site]`, or to upstream's code without one.

        Raises:
            DriftError: a loaded launcher is not as expected; the sites stay as
                they were.
        """
        with self._lock:
            before, self._targets = self._targets, targets
            try:
                self.settle()
            except DriftError:
                self._targets = before
                raise
            finally:
                for binding in self._bindings:
                    binding.lead_to(self._target(binding.site))

    def problems(self) -> tuple[str, ...]:
        """What is not as expected in the modules loaded so far."""
        with self._lock:
            return tuple(self._problems.values())

    def owners(self) -> dict[str, str]:
        """Whose code runs at each site, by `module:qualname`.

        'upstream', 'kunlunfork', 'not loaded', or the module that replaced it.
        """
        with self._lock:
            return {str(site): self._owner(site) for sites in self._sites.values() for site in sites}

    def _owner(self, site: Site) -> str:
        module = sys.modules.get(site.module)
        if module is None:
            return NOT_LOADED
        _, current = _resolve(module, site.qualname)
        binding = binding_of(current)
        if binding is not None:
            if binding.impl is not None:
                return OURS
            current = binding.original
        return _origin(current) if self._foreign(site, current) else UPSTREAM

    def _target(self, site: Site) -> Callable[..., Any] | WhenGreedy | None:
        return None if self._targets is None else self._targets.get(site)

    def _foreign(self, site: Site, obj: object) -> bool:
        """Whether another package put `obj` there, rather than vLLM itself."""
        top = _origin(obj).partition(".")[0]
        return (
            callable(obj)
            and top != site.module.partition(".")[0]
            and top in sys.modules
            and top not in sys.stdlib_module_names
        )

    def _bind(self, name: str, module: ModuleType) -> None:
        for site in self._sites.get(name, ()):
            self._problems.pop(site, None)
            holder, current = _resolve(module, site.qualname)
            if binding_of(current) is not None:
                continue
            target = self._target(site)
            original, home = current, None
            if self._foreign(site, current):
                # It stays, unless V2 runs the fork's code at this site.
                if target is None:
                    continue
                original, home = self._upstreams(site) or current, _origin(current)
            elif (problem := self._problem(site, current)) is not None:
                self._problems[site] = problem
                continue
            binding = Binding(site, original)
            binding.lead_to(target)
            of_class = isinstance(vars(holder).get(site.name), classmethod)
            setattr(holder, site.name, classmethod(binding.dispatcher) if of_class else binding.dispatcher)
            self._bindings.append(binding)
            self._replaced[id(current)] = _Replaced(current, home, binding)

    def _upstreams(self, site: Site) -> Callable[..., Any] | None:
        """The launcher that was bound at this site before."""
        same = [b.original for b in self._bindings if b.site == site]
        return same[-1] if same else None

    def _problem(self, site: Site, current: object) -> str | None:
        if current is None:
            found = "nothing"
        elif not inspect.isfunction(current):
            found = f"a {type(current).__name__}"
        else:
            origin = _origin(current)
            here = origin == site.module or site.module in self._rebinders.get(origin, ())
            found = signature(current) if here else f"a function of {origin}"
        if found == site.signature:
            return None
        return f"{site}: expected a function {site.signature}, found {found}"

    def _rebind_consumers(self) -> None:
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType):
                continue
            # Not getattr: a lazy module would import.
            names = object.__getattribute__(module, "__dict__")
            for name, value in list(names.items()):
                replaced = self._replaced.get(id(value))
                if replaced is not None and replaced.home != module.__name__:
                    names[name] = replaced.binding.dispatcher

    def _stop(self, sites: Iterable[Site]) -> None:
        problems = [self._problems[s] for s in sites if s in self._problems]
        if problems:
            raise DriftError(problems)


def _resolve(module: ModuleType, qualname: str) -> tuple[object, Any]:
    """Where a qualified name is defined, and what it is; inheritance is not looked at.

    (None, None) where there is no such name. A class method is the function behind it.
    """
    holder: object = module
    value: object = module
    for part in qualname.split("."):
        holder = value
        names = getattr(holder, "__dict__", {})
        if part not in names:
            return None, None
        value = names[part]
    return holder, value.__func__ if isinstance(value, classmethod) else value


def _origin(obj: object) -> str:
    return str(getattr(obj, "__module__", None))


def _initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
