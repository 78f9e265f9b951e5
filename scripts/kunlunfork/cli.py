"""The command line: finds the verb, runs it, and turns every way to end into an exit code."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kunlunfork import __version__, errors
from kunlunfork.console import Console, describe, say
from kunlunfork.errors import ForkError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Named here, so that --help need not import every verb.
VERBS = {
    "apply": "Put the fork onto a vLLM tree, new or already there",
    "revert": "Take the fork off a tree again",
    "status": "Say what state a tree is in",
    "verify": "Compare a fork tree with its lock, byte for byte",
    "export": "Bring the commits of a git tree back into patches and overlay",
    "rebase": "Carry the series to another release",
    "diff": "Show how the fork differs from mainline, and why",
    "drift": "Find what upstream changed under what the fork relies on",
    "new-patch": "Make a patch of the edits in a fork tree without git",
    "pins": "List the upstream releases that the fork supports",
    "switches": "List the KUNLUN_* switches, or check the environment",
    "lint": "Check patches and overlay",
    "doctor": "Find what would keep the fork from running, and the fix",
    "matrix": "Measure that the fork computes what upstream computes",
    "cache": "Look after downloads and the store",
    "bench": "Measure the tool against git and quilt",
    "completion": "Print the completion script of a shell",
}


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"kunlunfork.commands.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        if "_KUNLUNFORK_COMPLETE" in os.environ:
            from kunlunfork import completion

            completion.attach(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click's would import every verb.
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=text) for name, text in VERBS.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = not args or args[0] in VERBS or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:  # a shell that completes is told nothing
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, 1)
            ctx.fail(f"no such command: {args[0]}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kunlunfork")
def cli() -> None:
    """A small, current fork of vLLM for Baidu's Kunlun XPU.

    \b
    kunlunfork apply --vllm 0.25.1           make a fork tree from the PyPI release
    kunlunfork apply --site-packages         put the fork onto the installed vLLM
    kunlunfork status                        say what is there
    kunlunfork revert                        and take it off again

    Exit codes: 0 ok, 1 refused or bad input, 2 wrong usage, 3 a conflict that needs a person, 4 a bug, 130 interrupted.
    """
    try:
        Path.cwd()
    except OSError as e:
        raise ForkError(
            "the current folder cannot be told", found=e.strerror or str(e), expected="a folder that is there",
            fix="go to another one: cd /",
        ) from e  # fmt: skip


def _console(args: Sequence[str]) -> Console:
    """For what ends outside a verb. Imports nothing: an import may be what went wrong."""
    names = [a for a in args if not a.startswith("-")]
    path = names[:1] if names and names[0] in VERBS else []
    group = getattr(sys.modules.get(f"kunlunfork.commands.{''.join(path)}"), "command", None)
    if isinstance(group, click.Group):
        path += [name for name in names[1:2] if name in group.commands]
    return Console(" ".join(path) or "kunlunfork", as_json="--json" in args)


class _OutputLost(Exception):
    """The standard output cannot be written to."""


class _Output(io.FileIO):
    """The standard output, whose errors are not those of a file of ours. A reader that went away is click's matter."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as e:
            raise _OutputLost(e.strerror or str(e)) from e


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except (_OutputLost, BrokenPipeError) as e:
        # Python would try once more to write what waits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(e, _OutputLost):
            say(describe(ForkError(
                "the result cannot be written to the standard output", found=str(e),
                expected="a pipe, a terminal, or a file with room",
                fix="send it elsewhere; whatever the command did to a tree is done, see: kunlunfork status",
            )))  # fmt: skip
        return errors.USER


def _run(args: Sequence[str]) -> int:
    try:
        code = cli.main(args=list(args), prog_name="kunlunfork", standalone_mode=False)
        return code if isinstance(code, int) else errors.OK
    except _OutputLost:
        raise
    except ForkError as e:
        _console(args).failed(e)
        return e.exit_code
    except click.UsageError as e:
        if "--json" in args:
            _console(args).failed(ForkError(e.format_message(), exit_code=errors.USAGE))
        else:
            shown = io.StringIO()
            e.show(shown)
            say(shown.getvalue().rstrip("\n"))
        return errors.USAGE
    except click.ClickException as e:
        _console(args).failed(ForkError(e.format_message()))
        return errors.USER
    except (KeyboardInterrupt, click.Abort):
        _console(args).failed(ForkError("interrupted", exit_code=errors.INTERRUPTED))
        return errors.INTERRUPTED
    except Exception as e:  # noqa: BLE001  (the one place where a bug is turned into a report)
        import platform
        import traceback

        where = f"kunlunfork {__version__}, Python {platform.python_version()}, {platform.platform()}"
        if "--json" in args:
            _console(args).failed(ForkError(f"bug: {type(e).__name__}: {e}", exit_code=errors.BUG))
        say(f"{traceback.format_exc()}\nThis is a bug in kunlunfork. Please report it with the lines above ({where}).")
        return errors.BUG


def main() -> None:
    # Being told to end is being interrupted: what is under way is undone or cleaned up. nohup's signals stay ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    # What is opened next would get the number of a stream that is closed, and with it what is meant for that stream.
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    # A path may hold what this locale has no character for.
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(1, "w", closefd=False)),
        encoding=getattr(sys.stdout, "encoding", "utf-8"), errors="backslashreplace", line_buffering=os.isatty(1),
    )  # fmt: skip
    code = run(sys.argv[1:])
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    # To free every object first would take 8 ms, a thirtieth of a new tree. What libraries want done at the end (Ray
    # ends the cluster that it started) is done.
    atexit._run_exitfuncs()
    os._exit(code)
