"""kunlunfork doctor"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kunlunfork import errors
from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console, printable
from kunlunfork.errors import ForkError

if TYPE_CHECKING:
    from kunlunfork.doctor.check import Check
    from kunlunfork.doctor.examine import Report

_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}


@click.command("doctor")
@click.argument("tree", type=FOLDER, required=False)
@click.option("--site-packages", is_flag=True, help="The vLLM installed in the interpreter.")
@click.option("--python", type=FOLDER, help="The interpreter that runs vLLM [default: this one].")
@click.option("--model", type=FOLDER, help="Folder of a model: which runner would it get?")
@click.option("--speculative-config", "spec", metavar="JSON", help="As vllm serve takes it.")
@click.option("--run", is_flag=True, help="Import vLLM in a child process, and make the configuration.")
@repo_option
@verb
def command(
    tree: Path | None, site_packages: bool, python: Path | None, model: Path | None, spec: str | None, run: bool,
    repo: Path | None, console: Console,
) -> int:  # fmt: skip
    """Look for what would keep the fork from running, and say how to mend it.

    One line a check: ok, note or bad, and the fix of what is bad. Looks at TREE, else at the fork tree you are in, else
    at the vLLM installed in the interpreter. torch and Triton are asked in a child process; vLLM itself is imported (in
    a child, too) only with --run. Exit code 1 if a check is bad.

    \b
    kunlunfork doctor                                              this machine, and the vLLM it has
    kunlunfork doctor --python /opt/vllm/bin/python --run          vLLM's own word for it
    kunlunfork doctor --model DIR --speculative-config '{"method": "dspark", "num_speculative_tokens": 7}'
    """
    if site_packages and tree is not None:
        raise click.UsageError("TREE and --site-packages exclude each other")
    from kunlunfork.doctor import examine, runnercheck, speculative
    from kunlunfork.doctor import model as models
    from kunlunfork.doctor.vllm import Wanted

    given = runnercheck.Given(
        None if model is None else models.load(model), None if spec is None else speculative.parse(spec)
    )
    try:
        content: Any = console.find_content(repo)
    except ForkError as e:
        content = e
    request = examine.Request(Wanted(tree, site_packages, python), given, run)
    report = examine.examine(request, content, console)
    result = _result(report)
    if not report.bad:
        _show(console, report, result, None)
        return errors.OK
    names = ", ".join(check.name for check in report.bad)
    count = "1 check is" if len(report.bad) == 1 else f"{len(report.bad)} checks are"
    _show(console, report, result, ForkError(f"{count} bad: {names}", fix=report.bad[0].fix))
    return errors.USER


def _result(report: Report) -> dict[str, Any]:
    from kunlunfork.doctor import runnercheck

    return {
        "tree": None if report.root is None else str(report.root),
        "checks": [{**asdict(check), "details": list(check.details)} for check in report.checks],
        "sites": dict(report.owners),
        "runner": None if report.runner is None else runnercheck.as_json(report.runner),
    }


def _show(console: Console, report: Report, result: dict[str, Any], error: ForkError | None) -> None:
    if not console.as_json:
        for check in report.checks:
            _line(check, max(len(c.name) for c in report.checks))
        sys.stdout.flush()
    elif error is None:
        console.result(result, lambda: None)
    else:
        console.refused(result, error, lambda: None)


def _line(check: Check, width: int) -> None:
    # Coloured here, after what a tree may be named has been made harmless.
    state = f"{check.state:<4}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        state = click.style(state, fg=_COLOURS[check.state])
    print(f"{state}  {check.name:<{width}}  {printable(check.found)}")
    indent = " " * (width + 8)
    for detail in check.details:
        print(f"{indent}{printable(detail)}")
    if check.fix is not None:
        print(f"{indent}fix: {printable(check.fix)}")
