# SPDX-License-Identifier: Apache-2.0
"""What stands in for an upstream launcher: its signature, and one indirection."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import host_facts
from .sites import Site

_MARK = "__kunlunfork_binding__"


class Binding:
    """One upstream launcher and what its dispatcher leads to.

    `impl` is the fork's function, or None: upstream's, `original`, runs.
    """

    def __init__(self, site: Site, original: Callable[..., Any]) -> None:
        self.site = site
        self.original = original
        self.impl: Callable[..., Any] | None = None
        self.dispatcher = _dispatcher(self)

    def lead_to(self, target: "Callable[..., Any] | WhenGreedy | None") -> None:
        """Let the dispatcher run `target`, upstream's code where that has none."""
        self.impl = target.over(self.original) if isinstance(target, WhenGreedy) else target


@dataclass(frozen=True)
class WhenGreedy:
    """`greedy` where the host knows that every row of the batch is greedy, else something else."""

    greedy: Callable[..., Any]

    def over(self, general: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(general)
        def choose(*args, **kwargs):
            fn = self.greedy if host_facts.all_rows_greedy() else general
            return fn(*args, **kwargs)

        return choose


def _dispatcher(binding: Binding) -> Callable[..., Any]:
    original = binding.original

    @functools.wraps(original)
    def dispatcher(*args, **kwargs):
        impl = binding.impl
        if impl is None:
            return original(*args, **kwargs)
        return impl(*args, **kwargs)

    setattr(dispatcher, _MARK, binding)
    return dispatcher


def binding_of(obj: object) -> Binding | None:
    """The binding whose dispatcher `obj` itself is.

    A wrapper that someone put around a dispatcher copies its attributes with
    `functools.wraps`; it is not a dispatcher.
    """
    binding = getattr(obj, "__dict__", {}).get(_MARK)
    if isinstance(binding, Binding) and binding.dispatcher is obj:
        return binding
    return None


def signature(fn: Callable[..., Any]) -> str:
    """Names, kinds and defaults of the parameters, without annotations.

    Annotations are left out: they change when a module turns them into strings,
    and no caller can see them.
    """
    sig = inspect.signature(fn)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in sig.parameters.values()]
    return str(inspect.Signature(bare))
