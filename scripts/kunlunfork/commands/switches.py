"""kunlunfork switches"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork.commands._options import repo_option, verb
from kunlunfork.console import Console, table


@click.command("switches")
@click.option("--vllm", "version", metavar="VERSION", help="The pin [default: the newest].")
@click.option("--shell", is_flag=True, help='As export lines for a shell: eval "$(kunlunfork switches --shell)".')
@repo_option
@verb
def command(version: str | None, shell: bool, repo: Path | None, console: Console) -> None:
    """List the KUNLUN_* switches of the fork and what they are in this environment.

    Exit code 1 if the environment holds a value, or a name, that the fork would refuse.

    \b
    kunlunfork switches
    KUNLUN_HOSTVEC=0 kunlunfork switches      what then runs otherwise
    """
    from kunlunfork import switches

    found = switches.read(console.find_content(repo), version)

    def show() -> None:
        if shell:
            print(switches.shell(found))
            return
        table(
            ("switch", "now", "default", "sites", "off means"),
            [(s.name, s.value, s.default, s.sites, s.off) for s in found],
        )

    console.result(
        {
            "switches": [
                {
                    "name": s.name,
                    "value": s.value,
                    "default": s.default,
                    "values": s.values,
                    "needs": s.needs,
                    "sites": s.sites,
                    "off": s.off,
                }
                for s in found
            ]
        },
        show,
    )
