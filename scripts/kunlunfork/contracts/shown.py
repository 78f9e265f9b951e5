"""A report as text for a terminal, as Markdown, and as one HTML file that asks for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import resources

from kunlunfork.console import printable
from kunlunfork.contracts.cards import Card
from kunlunfork.contracts.run import Report

# Lines of a diff on a terminal; the other formats have all of it.
_LINES = 24
_STYLE = "drift.css"


def verdict(report: Report) -> str:
    """The first line."""
    where = f" in {', '.join(report.areas)}" if report.areas else ""
    if not report.cards:
        return f"vLLM {report.first} -> {report.last}: none of {report.contracts} contracts drifted{where}"
    count = f"{len(report.cards)} of {report.contracts} contracts drifted{where}"
    vouched = len(report.cards) - len(report.open)
    return f"vLLM {report.first} -> {report.last}: {count}; {vouched} vouched for, {len(report.open)} open"


def steps(card: Card) -> str:
    return "; ".join(f"{step.version}: {', '.join(step.classes)}" for step in card.drift.steps)


def term(report: Report, *, long: bool) -> str:
    """For a terminal; `long`: with what changed, upstream's diff and the advice."""
    return "\n".join(_term(report, long)) + "\n"


def _term(report: Report, long: bool) -> Iterator[str]:
    yield verdict(report)
    for card in report.cards:
        if card.covered and not long:
            continue
        yield ""
        yield f"{card.title}"
        yield f"  {', '.join(card.drift.classes)}  ({card.why})"
        yield f"  {steps(card)}"
        if card.covered:
            yield f"  {card.covered}"
        users = card.drift.contract.users
        yield f"  ours: {', '.join(users[:3])}" + (f" and {len(users) - 3} more" if len(users) > 3 else "")
        for change in card.changes if long else ():
            yield f"  {change.kind}:"
            yield from (f"    - {line}" for line in change.old.split("\n") if line)
            yield from (f"    + {line}" for line in change.new.split("\n") if line)
        if long and card.diff:
            yield from (f"    {printable(line)}" for line in card.diff[:_LINES])
            if len(card.diff) > _LINES:
                yield f"    ... {len(card.diff) - _LINES} more lines (--format md or html has them)"
        for todo in card.todo if long and not card.covered else ():
            yield f"  => {todo}"
    covered = len(report.cards) - len(report.open)
    if covered and not long:
        yield ""
        yield f"{covered} more are vouched for: --long shows them, and what changed in all"


def markdown(report: Report) -> str:
    lines = [f"# Drift: vLLM {report.first} -> {report.last}", "", verdict(report), ""]
    if report.cards:
        lines += ["| contract | what | release that did it | vouched for by |", "|---|---|---|---|"]
        lines += [
            f"| `{c.title}` | {', '.join(c.drift.classes)} | {steps(c)} | {_cell(c.covered)} |" for c in report.cards
        ]
    for card in report.open:
        lines += ["", f"## `{card.title}`", "", f"{', '.join(card.drift.classes)}: {card.why}. {steps(card)}.", ""]
        lines += [f"- ours: `{user}`" for user in card.drift.contract.users]
        lines += [f"- **{todo}**" for todo in card.todo]
        for change in card.changes:
            lines += ["", f"{change.kind}:", "", *_fenced([*_signed("-", change.old), *_signed("+", change.new)])]
        if card.diff:
            lines += ["", *_fenced(list(card.diff))]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _signed(sign: str, text: str) -> list[str]:
    return [f"{sign} {line}" for line in text.split("\n") if line]


def _fenced(lines: list[str]) -> list[str]:
    # Longer than any row of backquotes inside.
    fence = "`" * max(3, 1 + max((_row(line) for line in lines), default=0))
    return [f"{fence}diff", *map(printable, lines), fence]


def _row(line: str) -> int:
    return max((len(part) for part in "".join(c if c == "`" else " " for c in line).split()), default=0)


def html(report: Report) -> str:
    """The page; everything of upstream's is escaped."""
    style = (resources.files("kunlunfork.contracts") / _STYLE).read_text(encoding="utf-8")
    body = "".join([*_head(report), *(_card(i, card) for i, card in enumerate(report.cards))])
    title = f"Drift {report.first} -> {report.last}"
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )
    return page.encode("utf-8", "backslashreplace").decode()


def _head(report: Report) -> Iterator[str]:
    yield f"<h1>Drift: vLLM {escape(report.first)} &rarr; {escape(report.last)}</h1><p>{escape(verdict(report))}</p>"
    if not report.cards:
        return
    names = ("contract", "what", "release that did it", "vouched for by")
    yield f'<div class="table"><table><thead><tr>{"".join(f"<th>{name}</th>" for name in names)}</tr></thead>'
    for i, card in enumerate(report.cards):
        yield (
            f'<tr class="{"ok" if card.covered else "open"}">'
            f'<td><a href="#c{i}"><code>{_broken(card.title)}</code></a></td>'
            f"<td>{_badges(card)}</td><td>{escape(steps(card))}</td><td>{escape(card.covered) or 'nothing'}</td></tr>"
        )
    yield "</table></div>"


def _broken(text: str) -> str:
    """Long names may break at dots."""
    return escape(text).replace(".", ".<wbr>").replace(":", ":<wbr>")


def _badges(card: Card) -> str:
    return " ".join(f'<span class="badge">{escape(name)}</span>' for name in card.drift.classes)


def _card(number: int, card: Card) -> str:
    users = "".join(f"<li><code>{_broken(user)}</code></li>" for user in card.drift.contract.users)
    todo = "".join(f"<li>{escape(text)}</li>" for text in card.todo)
    parts = [
        f"<h2><code>{_broken(card.title)}</code></h2>",
        f"<p>{_badges(card)} {escape(card.why)}. {escape(steps(card))}</p>",
        f'<p class="covered">{escape(card.covered)}</p>' if card.covered else f"<h3>What to do</h3><ul>{todo}</ul>",
        f"<details><summary>places of ours that depend on it: {len(card.drift.contract.users)}</summary>"
        f"<ul>{users}</ul></details>",
    ]
    for change in card.changes:
        parts.append(f"<h3>{escape(change.kind)}</h3>{_lines([*_signed('-', change.old), *_signed('+', change.new)])}")
    if card.diff:
        shown = "" if card.covered else " open"
        parts.append(f"<details{shown}><summary>upstream's diff</summary>{_lines(list(card.diff))}</details>")
    return f'<section id="c{number}" class="{"ok" if card.covered else "open"}">{"".join(parts)}</section>'


def _lines(lines: list[str]) -> str:
    kinds = {"+": "add", "-": "del", "@": "at"}
    rows = (f'<span class="{kinds.get(line[:1], "same")}">{escape(printable(line))}</span>' for line in lines)
    return f"<pre>{''.join(rows)}</pre>"
