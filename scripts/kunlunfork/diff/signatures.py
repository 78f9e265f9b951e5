"""How two signatures differ, spelt out."""

from __future__ import annotations

from collections.abc import Sequence

from kunlunfork.symbols.facts import Function, Parameter


def changes(old: Function, new: Function) -> tuple[str, ...]:
    """One line for each difference. Annotations are told, too: they say what may be passed."""
    before, after = ({p.name: p for p in function.params} for function in (old, new))
    said = [f"+ {_shown(p)}" for name, p in after.items() if name not in before]
    said += [f"- {_shown(p)}" for name, p in before.items() if name not in after]
    for name, was in before.items():
        if (now := after.get(name)) is not None:
            said += _of_one(was, now)
    common = [[p.name for p in f.params if p.name in before and p.name in after] for f in (old, new)]
    if common[0] != common[1]:
        said.append(f"other order: {', '.join(common[1])}")
    if old.returns != new.returns:
        said.append(f"returns {new.returns or 'anything'}, not {old.returns or 'anything'}")
    if old.decorators != new.decorators:
        said.append(f"decorators {_listed(new.decorators)}, not {_listed(old.decorators)}")
    return tuple(said)


def _of_one(was: Parameter, now: Parameter) -> list[str]:
    said = []
    if was.kind != now.kind:
        said.append(f"{now.name} is {_KINDS[now.kind]}, not {_KINDS[was.kind]}")
    if was.default != now.default:
        said.append(f"{now.name} defaults to {now.default or 'nothing'}, not {was.default or 'nothing'}")
    if was.annotation != now.annotation:
        said.append(f"{now.name}: {now.annotation or 'not annotated'}, was {was.annotation or 'not annotated'}")
    return said


_KINDS = {"positional": "positional only", "any": "positional or keyword", "*": "*args", "keyword": "keyword only",
          "**": "**kwargs"}  # fmt: skip


def _shown(p: Parameter) -> str:
    star = {"*": "*", "**": "**"}.get(p.kind, "")
    return f"{star}{p.name}" + (f": {p.annotation}" if p.annotation else "") + (f"={p.default}" if p.default else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"@{name}" for name in names) or "none"
