"""The command line: finds the verb, runs it, and turns every way to end into an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from kunlunfork import __version__, errors
from kunlunfork.console import Console
from kunlunfork.errors import ForkError

# Named here, so that --help need not import every verb.
VERBS = {
    "apply": "Put the fork onto a vLLM tree, new or already there",
    "revert": "Take the fork off a tree again",
    "status": "Say what state a tree is in",
    "verify": "Compare a fork tree with its lock, byte for byte",
    "pins": "List the upstream releases that the fork supports",
    "switches": "List the KUNLUN_* switches, or check the environment",
    "lint": "Check patches and overlay",
    "matrix": "Measure that the fork computes what upstream computes",
    "cache": "Look after downloads and the store",
    "bench": "Measure the tool against git and quilt",
}


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"kunlunfork.commands.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
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


def _console(args: Sequence[str]) -> Console:
    verb = next((a for a in args if a in VERBS), "kunlunfork")
    return Console(verb, as_json="--json" in args)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = cli.main(args=list(args), prog_name="kunlunfork", standalone_mode=False)
        return code if isinstance(code, int) else errors.OK
    except ForkError as e:
        _console(args).failed(e)
        return e.exit_code
    except click.UsageError as e:
        if "--json" in args:
            _console(args).failed(ForkError(e.format_message(), exit_code=errors.USAGE))
        else:
            e.show()
        return errors.USAGE
    except click.ClickException as e:
        _console(args).failed(ForkError(e.format_message()))
        return errors.USER
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return errors.INTERRUPTED
    except Exception as e:  # noqa: BLE001  (the one place where a bug is turned into a report)
        import platform
        import traceback

        where = f"kunlunfork {__version__}, Python {platform.python_version()}, {platform.platform()}"
        if "--json" in args:
            _console(args).failed(ForkError(f"bug: {type(e).__name__}: {e}", exit_code=errors.BUG))
        traceback.print_exc()
        print(
            f"\nThis is a bug in kunlunfork. Please report it with the lines above ({where}).",
            file=sys.stderr,
        )
        return errors.BUG


def main() -> None:
    sys.exit(run(sys.argv[1:]))
