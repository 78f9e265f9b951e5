"""How well `drift` tells what matters from what does not: recall and precision over edits of a release."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kunlunfork import fork
from kunlunfork.bench import driftcases, driftkinds, machine
from kunlunfork.bench.driftcases import Edit
from kunlunfork.contracts import drift as drifts
from kunlunfork.contracts.run import Workshop
from kunlunfork.diff import sites
from kunlunfork.symbols.release import Given


@dataclass(frozen=True)
class Plan:
    """`count` edits that matter, and as many that do not, of the release of a pin."""

    version: str
    count: int
    seed: int


@dataclass(frozen=True)
class Judged:
    edit: Edit
    told: tuple[str, ...]

    @property
    def right(self) -> bool:
        """An edit that matters is told of the symbol that it is about; of one that does not, nothing is told."""
        return self.edit.symbol in self.told if self.edit.symbol else not self.told


def judge(shop: Workshop, plan: Plan) -> list[Judged]:
    """Make the edits, and look what drift says of each (raises `ForkError`)."""
    held, release = shop.held(plan.version)
    own = fork.load(shop.content, plan.version)
    overlay = {path: file.data for path, file in own.overlay.files.items() if path.endswith(b".py")}
    world = driftcases.world(release, sites.load(own), overlay)
    edits = [
        *driftcases.draw(world, driftkinds.MATTER, plan.count, plan.seed),
        *driftcases.draw(world, driftkinds.IDLE, plan.count, plan.seed),
    ]
    start = drifts.prints(held, release)
    found = []
    with shop.settings.progress.task("edits", len(edits)) as done:
        for number, edit in enumerate(edits):
            edited = Given(edit.files, release)
            found_ = drifts.drift(held, (plan.version, release), [("edited", lambda e=edited: e)], start)  # type: ignore[misc]
            found.append(Judged(edit, tuple(str(d.contract) for d in found_.drifts)))
            done(number + 1)
    return found


def run(shop: Workshop, plan: Plan, folder: Path, command: list[str]) -> dict[str, Any]:
    """The result of the bench."""
    judged = judge(shop, plan)
    kinds: dict[str, dict[str, int]] = {}
    for one in judged:
        row = kinds.setdefault(one.edit.kind, {"matters": int(bool(one.edit.symbol)), "edits": 0, "right": 0})
        row["edits"] += 1
        row["right"] += one.right
    matter = [j for j in judged if j.edit.symbol]
    idle = [j for j in judged if not j.edit.symbol]
    told = sum(bool(j.told) for j in judged)
    return {
        "schema": 1, "what": "drift", "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command, "commit": machine.clone_commit(shop.content.root), "machine": asdict(machine.look(folder)),
        "version": plan.version, "seed": plan.seed, "overlay_hash": fork.load(shop.content, plan.version).overlay_hash,
        "matter": len(matter), "idle": len(idle),
        "recall": sum(j.right for j in matter) / max(len(matter), 1),
        "precision": sum(bool(j.told) for j in matter) / max(told, 1),
        "kinds": kinds,
        "wrong": [
            {"kind": j.edit.kind, "symbol": j.edit.symbol, "what": j.edit.what, "told": list(j.told)[:5]}
            for j in judged if not j.right
        ],
    }  # fmt: skip
