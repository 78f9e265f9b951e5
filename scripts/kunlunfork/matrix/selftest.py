"""`kunlunfork matrix selftest`: put one fault at a time into a copy of the overlay, and see that the tests fail."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import switches
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import definition, environment, faults, settings, workers
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.faults import Fault
from kunlunfork.progress import Progress

CAUGHT, SURVIVED, BROKEN = "caught", "survived", "broken"


@dataclass(frozen=True)
class Verdict:
    """What became of a fault. `by`: the first test that failed, `message`: how; `tests`: how many were chosen."""

    fault: Fault
    outcome: str
    by: str | None
    message: str | None
    tests: int
    seconds: float


@dataclass(frozen=True)
class Result:
    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def bad(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.outcome != CAUGHT)


def run(
    content: Content,
    cache: Cache,
    version: str,
    device: str,
    jobs: int,
    expression: str | None,
    python: Path | None,
    progress: Progress,
) -> Result:
    """Run all faults, or those whose name, file, kind or bug contains `expression`.

    Raises:
        ForkError: the list does not fit the overlay, the tests fail without a fault, or nothing is selected.
    """
    pin = content.pin(version)
    files = faults.package(content, pin.version)
    listed = [fault for fault in faults.load(content) if fault.fits(pin.version)]
    faults.check(listed, files)
    chosen = [f for f in listed if expression is None or expression in f"{f.name} {f.file} {f.kind} {f.bug}"]
    if not chosen:
        raise ForkError(f"no fault matches {expression!r}")
    engine = environment.ensure(definition.load(content, pin.version, device), cache, python, progress)
    each = settings.settings("each", settings.on_off(switches.read(content, pin.version, {})))
    wanted = json.dumps({s.name: s.environ() for s in each})
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kunlunfork-faults-") as scratch:
        found = _Crew(content, engine, files, Path(scratch), chosen, wanted, jobs).work(progress)
    order = {fault.name: i for i, fault in enumerate(chosen)}
    verdicts = sorted(found, key=lambda v: order[v.fault.name])
    return Result(tuple(verdicts), time.monotonic() - began)


def _group(fault: Fault) -> str:
    """The site module whose upstream runs a fault needs first."""
    return fault.tests[0].removeprefix("bound/").partition(":")[0]


class _Crew:
    """Servers that test faults. Each takes whole groups, so that upstream runs a case once."""

    def __init__(
        self, content: Content, engine: Engine, files: Mapping[str, Path], scratch: Path, chosen: Sequence[Fault],
        wanted: str, jobs: int,
    ) -> None:  # fmt: skip
        self.content = content
        self.settings = wanted
        self.engine = engine
        self.files = files
        self.scratch = scratch
        self.good = faults.copy(files, scratch / "good", None)
        groups: dict[str, list[Fault]] = {}
        for fault in chosen:
            groups.setdefault(_group(fault), []).append(fault)
        self.groups: queue.SimpleQueue[list[Fault]] = queue.SimpleQueue()
        for _, group in sorted(groups.items(), key=lambda item: -len(item[1])):
            self.groups.put(group)
        self.jobs = min(jobs, len(groups))
        self.total = len(chosen)
        self.verdicts: queue.SimpleQueue[Verdict | BaseException | None] = queue.SimpleQueue()
        self.children: list[subprocess.Popen[str]] = []

    def work(self, progress: Progress) -> list[Verdict]:
        threads = [threading.Thread(target=self._serve, args=(i,), daemon=True) for i in range(self.jobs)]
        found: list[Verdict] = []
        running = len(threads)
        try:
            for thread in threads:
                thread.start()
            with progress.task(f"testing {self.total} faults", self.total) as shown:
                while running:
                    verdict = self.verdicts.get()
                    if verdict is None:
                        running -= 1
                    elif isinstance(verdict, BaseException):
                        raise verdict
                    else:
                        found.append(verdict)
                        shown(len(found))
        finally:
            for child in self.children:
                child.kill()
            for child in self.children:
                child.wait()
        return found

    def _serve(self, number: int) -> None:
        try:
            log = self.scratch / f"{number}.log"
            with log.open("w") as errors:
                child = self._start(errors.fileno())
                self.children.append(child)
                while True:
                    try:
                        group = self.groups.get_nowait()
                    except queue.Empty:
                        break
                    self._baseline(child, group, log)
                    for fault in group:
                        self.verdicts.put(self._verdict(child, fault, log))
            self.verdicts.put(None)
        except BaseException as e:  # noqa: BLE001 - raised in the thread that waits
            self.verdicts.put(e)

    def _start(self, errors: int) -> subprocess.Popen[str]:
        # Upstream's own tree: the fork under test comes from the copies alone.
        extra = {"PYTHONDONTWRITEBYTECODE": "1", "KUNLUN_MATRIX_SETTINGS": self.settings}
        env = workers.environ(self.engine, (self.engine.triton, self.content.parity), extra)
        server = self.content.parity / "faults_server.py"
        return subprocess.Popen(
            [str(self.engine.python), str(server), str(self.good)],
            cwd=self.scratch, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            encoding="utf-8",
        )  # fmt: skip

    def _ask(
        self, child: subprocess.Popen[str], name: str, root: Path, tests: Sequence[str], log: Path
    ) -> dict[str, object]:
        assert child.stdin is not None
        assert child.stdout is not None
        request = {"name": name, "root": str(root), "tests": list(tests)}
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-20:]
            raise ForkError(f"the tests of {name} cannot be run", details=tail, found="the process ended")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _baseline(self, child: subprocess.Popen[str], group: Sequence[Fault], log: Path) -> None:
        """The same tests without a fault: if they fail, what they say about faults means nothing."""
        tests = sorted({test for fault in group for test in fault.tests})
        answer = self._ask(child, "no fault", self.good, tests, log)
        if answer["outcome"] != SURVIVED or not answer["tests"]:
            raise ForkError(
                "the parity tests fail without any fault",
                details=str(answer["message"] or "no test was selected").splitlines()[:20],
                found=str(answer["by"] or ", ".join(tests)),
                fix="mend that first: kunlunfork matrix run",
            )

    def _verdict(self, child: subprocess.Popen[str], fault: Fault, log: Path) -> Verdict:
        root = faults.copy(self.files, self.scratch / fault.name, fault)
        answer = self._ask(child, fault.name, root, fault.tests, log)
        shutil.rmtree(root)
        by, message = answer["by"], answer["message"]
        return Verdict(
            fault,
            str(answer["outcome"]),
            None if by is None else str(by),
            None if message is None else str(message),
            int(str(answer["tests"])),
            float(str(answer["seconds"])),
        )
