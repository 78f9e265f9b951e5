# SPDX-License-Identifier: Apache-2.0
"""The fork's environment variables: names, rules, defaults.

This module imports nothing of vLLM or of the fork, so that a tool can load it
by its path and show the same table that the runner obeys.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "KUNLUN_"
KERNELS = "KUNLUN_KERNELS"
UPSTREAM_FIXES = "KUNLUN_UPSTREAM_FIXES"
BACKENDS = ("auto", "upstream", "torch", "fused", "vendor")

_TRUE = frozenset(("1", "true", "on", "yes"))
_FALSE = frozenset(("0", "false", "off", "no"))
_BOOLEAN = "0, 1, true, false, on, off, yes or no"
_BACK = "upstream's launcher where Triton launches, else the row-by-row reference"


class SwitchError(ValueError):
    """KUNLUN_* variables that cannot be obeyed. `problems` has one line each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


@dataclass(frozen=True)
class Row:
    """One variable, as `kunlunfork switches` shows it.

    `needs` names the variable without which this one has no effect, `off` says
    what runs instead when it is off, `field` is its attribute of `Switches`.
    """

    name: str
    field: str
    default: str
    values: str
    needs: str | None
    sites: str
    off: str


_ROWS = (
    Row(
        "KUNLUN_HOSTVEC",
        "hostvec",
        "on",
        _BOOLEAN,
        None,
        "staged writes, prefill, positions, combine, expand, sampled/rejected counts, "
        "gather, slot mapping, DCP lengths, deferred num_computed",
        _BACK,
    ),
    Row(
        "KUNLUN_HOSTVEC_POSTUPDATE",
        "hostvec_postupdate",
        "on",
        _BOOLEAN,
        "KUNLUN_HOSTVEC",
        "post_update",
        _BACK,
    ),
    Row(
        "KUNLUN_POSTUPD3",
        "postupd3",
        "on",
        _BOOLEAN,
        "KUNLUN_HOSTVEC_POSTUPDATE",
        "post_update's dense form, without a host sync",
        "the compacted form, with one host sync a step",
    ),
    Row(
        "KUNLUN_GUMBEL_GREEDY",
        "gumbel_greedy",
        "on",
        _BOOLEAN,
        None,
        "gumbel_sample and rejection_sample when every row is greedy: no random numbers",
        "the general path",
    ),
    Row(
        "KUNLUN_DFLASH_VEC",
        "dflash_vec",
        "on",
        _BOOLEAN,
        None,
        "draft input preparation of dflash and dspark, and of eagle and mtp",
        _BACK,
    ),
    Row(
        "KUNLUN_REJ_XPU",
        "rej_xpu",
        "on",
        _BOOLEAN,
        None,
        "rejection_sample, and flattening what it sampled for logprobs",
        _BACK,
    ),
    Row(
        KERNELS,
        "kernels",
        "auto",
        ", ".join(BACKENDS),
        None,
        "every site: which implementation runs (auto launches a trivial Triton kernel "
        "once and takes upstream where that works, else torch; fused are the fork's own Triton kernels)",
        "not a switch: 'upstream' is upstream's code only",
    ),
    Row(
        UPSTREAM_FIXES,
        "upstream_fixes",
        "off",
        _BOOLEAN,
        None,
        "known upstream bugs: bad words compare drafted tokens one place off",
        "upstream's results, bugs included",
    ),
)
_BY_NAME = {row.name: row for row in _ROWS}


def table() -> tuple[Row, ...]:
    """Every variable of the fork, in the order that people read them."""
    return _ROWS


@dataclass(frozen=True)
class Switches:
    """What the environment asks for, dependencies already applied."""

    hostvec: bool = True
    hostvec_postupdate: bool = True
    postupd3: bool = True
    gumbel_greedy: bool = True
    dflash_vec: bool = True
    rej_xpu: bool = True
    kernels: str = "auto"
    upstream_fixes: bool = False

    def on(self, name: str) -> bool:
        """Whether the switch of this KUNLUN_* name is on (KeyError: not one of ours)."""
        return bool(getattr(self, _BY_NAME[name].field))

    def changed(self) -> tuple[str, ...]:
        """`NAME=value` for everything that is not at its default."""
        out = []
        for row in _ROWS:
            value = getattr(self, row.field)
            text = value if isinstance(value, str) else ("on" if value else "off")
            if text != row.default:
                out.append(f"{row.name}={text}")
        return tuple(out)


def read(environ: Mapping[str, str]) -> Switches:
    """Parse the KUNLUN_* variables of an environment.

    Raises:
        SwitchError: a value that is not one of the allowed ones, a name that is
            nearly one of ours, or a switch set on while the one it needs is off.
    """
    problems = [
        f"{name} is not a variable of kunlunfork; did you mean {near}?"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in _BY_NAME and (near := _nearest(name)) is not None
    ]
    values: dict[str, bool | str | None] = {}
    for row in _ROWS:
        text = environ.get(row.name, row.default)
        value = _parse(row, text)
        if value is None:
            problems.append(
                f"{row.name}={text!r} is not understood; use {row.values}, or unset it (default: {row.default})"
            )
        values[row.field] = _parse(row, row.default) if value is None else value
    # A row comes after the one it needs, so one pass settles chains.
    for row in _ROWS:
        if row.needs is None or values[_BY_NAME[row.needs].field]:
            continue
        if row.name in environ and values[row.field] is True:
            problems.append(
                f"{row.name} is on but needs {row.needs}, which is off; turn {row.needs} on or unset {row.name}"
            )
        values[row.field] = False
    if problems:
        raise SwitchError(problems)
    return Switches(**values)  # type: ignore[arg-type]


def _parse(row: Row, text: str) -> bool | str | None:
    word = text.lower()
    if row.name == KERNELS:
        return word if word in BACKENDS else None
    if word in _TRUE:
        return True
    return False if word in _FALSE else None


def _nearest(name: str) -> str | None:
    """Ours within two edits of `name`, the closest first; None if there is none."""
    ranked = sorted((distance(name.upper(), ours), ours) for ours in _BY_NAME)
    return ranked[0][1] if ranked[0][0] <= 2 else None


def distance(a: str, b: str) -> int:
    """Damerau-Levenshtein: insertions, deletions, replacements, adjacent swaps."""
    top = len(a) + len(b)
    rows = [[top] * (len(b) + 2) for _ in range(len(a) + 2)]
    for i in range(len(a) + 1):
        rows[i + 1][1] = i
    for j in range(len(b) + 1):
        rows[1][j + 1] = j
    last_row: dict[str, int] = {}
    for i, x in enumerate(a, 1):
        last_col = 0
        for j, y in enumerate(b, 1):
            k, m = last_row.get(y, 0), last_col
            if x == y:
                last_col = j
            rows[i + 1][j + 1] = min(
                rows[i][j] + (x != y),
                rows[i + 1][j] + 1,
                rows[i][j + 1] + 1,
                rows[k][m] + (i - k - 1) + 1 + (j - m - 1),
            )
        last_row[x] = i
    return rows[-1][-1]
