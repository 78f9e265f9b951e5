"""A contract: a symbol of upstream's that the fork relies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kunlunfork.symbols.release import Symbol

# How ours relies on it. The order is that of a report: the first one is what it is mostly about.
REPLACES = "replaces"  # a launcher in whose place ours runs
BEHIND = "behind"  # a kernel, helper or constant that such a launcher is made of
OVERRIDES = "overrides"  # a method that a class of ours defines anew
REBINDS = "rebinds"  # what ours puts something else in the place of
MIRRORS = "mirrors"  # `# mirrors: module:symbol`
PATCHED = "patched"  # a function that a patch edits, or that uses a name that a patch binds anew
SUBCLASSES = "subclasses"
CALLS = "calls"
ATTRIBUTE = "attribute"
USES = "uses"  # names it without calling it
IMPORTS = "imports"
ROLES = (
    REPLACES, BEHIND, OVERRIDES, REBINDS, MIRRORS, PATCHED, SUBCLASSES, CALLS, ATTRIBUTE, USES, IMPORTS
)  # fmt: skip
# Of these ours says what is done: what upstream's callers pass matters.
CALLED_BY_UPSTREAM = frozenset({REPLACES, OVERRIDES, REBINDS, MIRRORS})


@dataclass(frozen=True)
class Use:
    """Ours relies on `symbol` in one `role`; `user` is `path::scope` of ours. `path` is the name under which it is
    imported, `module:name`, where it is. `site` is the launcher that it is behind, or of whose replacement it is."""

    symbol: Symbol
    role: str
    user: str
    path: str = ""
    site: str = ""


@dataclass(frozen=True)
class Contract:
    """All uses of one symbol."""

    symbol: Symbol
    roles: tuple[str, ...]
    users: tuple[str, ...]
    paths: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.symbol)


@dataclass(frozen=True)
class Print:
    """The fingerprint of a symbol in one release.

    `kind` is `function`, `class`, `constant`, `attribute` or `module`. `facets` are what ours relies on of it, each as
    text that says what changed: `signature`, `default`, `types`, `decorator`, `body`, `shapes`, `callers`, `bases`,
    `members`, `fields`, `set by`.
    """

    kind: str
    facets: Mapping[str, str] = field(default_factory=dict)


def gather(uses: list[Use]) -> tuple[Contract, ...]:
    """The contracts of these uses, in the order of their symbols."""
    found: dict[Symbol, list[Use]] = {}
    for use in uses:
        found.setdefault(use.symbol, []).append(use)
    return tuple(
        Contract(
            symbol,
            tuple(role for role in ROLES if any(u.role == role for u in some)),
            tuple(sorted({u.user for u in some if u.user})),
            tuple(sorted({u.path for u in some if u.path})),
            tuple(sorted({u.site for u in some if u.site})),
        )
        for symbol, some in sorted(found.items(), key=lambda item: (item[0].module, item[0].name))
    )
