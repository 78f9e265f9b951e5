"""A rebase from its beginning to its end: begin, go on, skip, abort, and say where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from kunlunfork import gittree, overlay, paths, pins, series, steps
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.exportfiles import Write, blob_at
from kunlunfork.exportfiles import write as write_files
from kunlunfork.objects import scratch
from kunlunfork.paths import Entry
from kunlunfork.pins import Pin
from kunlunfork.rebase import conflicts, engine, explain, finish, newpin, resolutions, start, target
from kunlunfork.rebase.carry import Change
from kunlunfork.rebase.engine import Run, Rung, Stop
from kunlunfork.rebase.finish import Source
from kunlunfork.rebase.known import Known
from kunlunfork.rebase.ladder import Releases
from kunlunfork.rebase.report import Report, Request
from kunlunfork.rebase.session import Decision, Session, Skip, State, key_of
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store


class Driver:
    """One rebase of a fork's series, or of someone else's.

    Raises (every method): ForkError.
    """

    def __init__(self, content: Content, store: Store, settings: Settings) -> None:
        self._content, self._store, self._settings = content, store, settings
        self._releases = Releases(content, store, settings)

    # -- what is asked for

    def _plan(self, request: Request) -> State:
        onto = target.find(request.onto, self._releases, self._store)
        last = onto.version if onto.is_release else onto.last and self._releases.canonical(onto.last)
        begin = self._start(request, last if last is not None else onto.version, onto.is_release)
        folder = request.series
        source = self._source("" if folder is None else str(folder.absolute()), begin)
        on_the_way: tuple[str, ...] = ()
        if last is not None and Version(last) > Version(begin):
            on_the_way = self._releases.between(begin, last)
        elif onto.is_release:
            on_the_way = self._releases.between(begin, onto.version)  # says that it is not newer
        if request.leap:
            on_the_way = on_the_way[-1:] if onto.is_release else ()
        trees = [(version, self._releases.base(version).tree) for version in (begin, *on_the_way)]
        if onto.tree is not None:
            trees.append((onto.version, onto.tree))
        return State(
            begin, onto.version, "" if folder is None else str(folder.absolute()),
            series.series_hash(source.patches), tuple(trees), request.renames,
        )  # fmt: skip

    def _start(self, request: Request, below: str, is_release: bool) -> str:
        if request.start is not None:
            return self._releases.canonical(request.start)
        if request.series is not None:
            raise ForkError("which release is the series for?", expected="--from VERSION with --series")
        try:
            limit = Version(below)
        except ValueError:
            limit = None  # a commit of a clone without tags
        older = [
            v
            for v in self._content.versions()
            if limit is None or Version(v) < limit or (Version(v) == limit and not is_release)
        ]
        if not older:
            raise ForkError(
                f"the fork has no pin below vLLM {below}", found=f"pins: {', '.join(self._content.versions())}",
                expected="an older one to carry from", fix="see: kunlunfork pins",
            )  # fmt: skip
        return older[-1]

    def _source(self, folder: str, begin: str) -> Source:
        if folder:
            return finish.load(Path(folder), own=False)
        pin = self._content.pin(begin)
        return finish.load(self._content.patches / pin.version, own=True)

    # -- what a person does

    def look(self, request: Request) -> Report:
        """Try it, and write nothing."""
        state = self._plan(request)
        with self._opened(state, None) as (store, _, _, run):
            return self._report(store, state, run, "conflict" if run.stop else "whole")

    def begin(self, session: Session, request: Request) -> Report:
        """Begin a rebase whose result goes to the folder of `session`."""
        with session.alone():
            if session.is_there():
                raise ForkError(
                    f"a rebase is under way in {session.root}", found=f"onto vLLM {session.load().onto}",
                    expected="none", fix=f"{session.command('status')}; then --continue, --skip or --abort",
                    exit_code=CONFLICT,
                )  # fmt: skip
            state = replace(self._plan(request), made_root=session.made_root)
            self._refuse(session, state)
            session.save(state)
            return self._advance(session, state)

    def go_on(self, session: Session) -> Report:
        """Take what a person made of the conflict, and go on; without one, finish what was interrupted."""
        with self._under_way(session) as state:
            with self._opened(state, session) as (store, _, _, run):
                if run.stop is not None and session.work.exists():
                    state = self._decide(store, session, state, run.stop)
                    session.save(state)
            return self._advance(session, state)

    def skip(self, session: Session, why: str) -> Report:
        """Leave the patch in conflict out of the series."""
        with self._under_way(session) as state:
            with self._opened(state, session) as (_, _, _, run):
                stop = run.stop
            if stop is None:
                raise ForkError(
                    "no patch is in conflict", found="a rebase that can go on", expected="a conflict to skip",
                    fix=session.command("continue"),
                )  # fmt: skip
            said = why or "; ".join(f"{paths.show(c.path)}: {c.kind}" for c in stop.outcome.conflicts)
            state = replace(state, skips=(*state.skips, Skip(stop.change.name, stop.rung.version, said)))
            session.save(state)
            return self._advance(session, state)

    def status(self, session: Session) -> Report:
        """Where the rebase is; a work tree that is missing is made again."""
        with self._under_way(session) as state, self._opened(state, session) as (store, _, _, run):
            if run.stop is None:
                return self._report(store, state, run, "whole")
            return self._stopped(store, session, state, run)

    @staticmethod
    def is_own(session: Session) -> bool:
        """Whether the rebase under way carries the fork's own series onto a release."""
        if not session.is_there():
            return False
        state = session.load()
        return not state.series and "@" not in state.onto

    @staticmethod
    def abort(session: Session) -> str | None:
        """Take everything back; returns where the rebase went, None where its state cannot be read."""
        if not session.is_there():
            session.load()  # says that there is none
        with session.alone():
            try:
                state = session.load()
            except ForkError:
                session.remove()
                return None
            for name, blob in state.writes.items():
                # Only what this rebase wrote: files that were there before are not in the list.
                if blob_at(session.root / name) == blob:
                    steps.checkpoint("rebase: take back")
                    write_files(session.root, [Write(Path(name), None, None)])
            session.remove(root=state.made_root)
            return state.onto

    # -- how it goes on

    @contextlib.contextmanager
    def _under_way(self, session: Session) -> Iterator[State]:
        if not session.is_there():
            if session.folder.is_dir():
                with session.alone():
                    pass  # what a command left that was killed at its end goes
            session.load()  # says that there is none
        with session.alone():
            yield session.load()

    @contextlib.contextmanager
    def _opened(
        self, state: State, session: Session | None
    ) -> Iterator[tuple[TreeStore, Source, tuple[Change, ...], Run]]:
        """Compute where the rebase is, from the state alone."""
        source = self._source(state.series, state.start)
        if series.series_hash(source.patches) != state.series_hash:
            raise ForkError(
                f"the series in {source.folder} has changed since the rebase began", expected="the same patches",
                fix="put them back as they were" + (f", or: {session.command('abort')}" if session else ""),
                exit_code=CONFLICT,
            )  # fmt: skip
        with scratch(self._store.path / "objects", gittree.ATTRIBUTES) as repository, TreeStore(repository) as store:
            said = tuple((paths.from_text(a), paths.from_text(b)) for a, b in state.renames)
            self._bring_back(state)
            all_rungs = [Rung(v, tree, {**self._pinned_renames(v), **dict(said)}) for v, tree in state.rungs]
            pin = self._releases.pin(state.start) or finish.provisional_pin(state.start)
            first = start.changes(store, all_rungs[0].tree, pin, source.patches)
            skipped = {skip.patch: skip.version for skip in state.skips}
            known = Known(store, session, state, self._content.root)
            yield store, source, first, engine.run(
                store, all_rungs[0], first, all_rungs[1:], known=known.get, skipped=skipped
            )  # fmt: skip

    def _bring_back(self, state: State) -> None:
        """Releases may have gone from the store since the rebase began (`cache prune`)."""
        stored = {base.tree for base in self._store.bases()}
        for version, tree in state.rungs:
            if tree in stored:
                continue
            try:
                again = self._releases.base(version).tree
            except ForkError:
                if self._store.has(tree):
                    continue  # a commit that is no release; nothing but a prune takes it away
                raise
            if again != tree:
                raise ForkError(
                    f"vLLM {version} is another one than when the rebase began", found=f"tree {again}",
                    expected=f"tree {tree}", fix="begin again", exit_code=CONFLICT,
                )  # fmt: skip

    def _pinned_renames(self, version: str) -> dict[bytes, bytes]:
        pin = self._releases.pin(version)
        return {} if pin is None else {paths.from_text(a): paths.from_text(b) for a, b in pin.renames}

    def _decide(self, store: TreeStore, session: Session, state: State, stop: Stop) -> State:
        found = conflicts.read(session, stop)
        made = {path: None if have is None else (have[0], session.keep(have[1])) for path, have in found.items()}
        at_stake = [c.path for c in stop.outcome.conflicts]
        beside = {paths.to_text(p): e for p, e in made.items() if p not in at_stake}
        decisions = []
        for i, conflict in enumerate(stop.outcome.conflicts):
            # What was edited beside the files in conflict goes with the first of them.
            files = {paths.to_text(conflict.path): made[conflict.path], **(beside if i == 0 else {})}
            where = paths.to_text(conflict.path)
            decisions.append(Decision(key_of(conflict), stop.change.name, stop.rung.version, where, files))
        return state.decided(*decisions)

    def _advance(self, session: Session, state: State) -> Report:
        with self._opened(state, session) as (store, source, first, run):
            if run.stop is not None:
                return self._stopped(store, session, state, run)
            return self._finish(store, session, state, source, first, run)

    def _stopped(self, store: TreeStore, session: Session, state: State, run: Run) -> Report:
        assert run.stop is not None
        conflicts.write(store, session.work, run.stop)
        session.text.write_text(explain.text(store, run.stop, session), encoding="utf-8", errors="replace")
        report = self._report(store, state, run, "stopped")
        return replace(report, work=session.work, text=session.text, go_on=session.command("continue"))

    def _report(self, store: TreeStore, state: State, run: Run, what: str) -> Report:
        names = tuple(change.name for change in run.changes)
        rungs = tuple(version for version, _ in state.rungs[1:])
        collisions = self._collisions(store, state)
        return Report(what, state.start, state.onto, rungs, run, names, state.skips, collisions=collisions)

    def _collisions(self, store: TreeStore, state: State) -> tuple[bytes, ...]:
        """Files of the fork's overlay whose place the new release takes, as a file or as a folder."""
        if state.series:
            return ()
        ours = overlay.resolve(self._content.overlay, state.start).files
        # Paths that the release had before are said by lint.
        (_, old), (_, new) = state.rungs[0], state.rungs[-1]
        return tuple(path for path in ours if store.is_taken(new, path) and not store.is_taken(old, path))

    # -- the end

    def _folder(self, session: Session, state: State) -> Path:
        """Where the result goes, below the session's root: a folder of patches, or the folder that was named."""
        return Path() if self._is_out(session) else Path("patches") / state.onto

    def _is_out(self, session: Session) -> bool:
        return session.root != self._content.root

    def _refuse(self, session: Session, state: State) -> None:
        if not self._is_out(session):
            finish.refuse_pin(session.root / self._folder(session, state), state.onto)
            return
        others = [p.name for p in session.root.iterdir() if p.name != ".kunlunfork"]
        if others:
            raise ForkError(
                f"{session.root} is not empty", found=", ".join(sorted(others)[:5]),
                expected="a new folder, or an empty one", fix="name another: --out DIR",
            )  # fmt: skip

    def _finish(
        self, store: TreeStore, session: Session, state: State, source: Source, first: Sequence[Change], run: Run
    ) -> Report:  # fmt: skip
        patches = finish.patch_files(store, source, first, run.changes, state.onto)
        tree = state.rungs[-1][1]
        pin = None if self._is_out(session) else self._pin(store, state, tree)
        finish.check(store, tree, pin or finish.provisional_pin(state.onto), patches, run.changes)
        listed = finish.series_file(source, patches, run.outcomes, state.skips)
        folder = self._folder(session, state)
        # One that was there before stays as it is.
        theirs = self._releases.pin(state.onto) is not None and str(folder / finish.PIN) not in state.writes
        own = None if theirs else pin
        writes = {folder / name: data for name, data in finish.files(source, patches, listed, own).items()}
        if not self._is_out(session):
            writes |= self._remembered(store, session, state)
        if not state.writes and not self._is_out(session):
            finish.refuse_pin(session.root / folder, state.onto)
        new = {p: d for p, d in writes.items() if state.writes.get(str(p)) or blob_at(session.root / p) is None}
        state = replace(state, writes={**state.writes, **{str(p): paths.blob_id(d) for p, d in new.items()}})
        session.save(state)
        # The pin last: with it the fork has another release.
        last = {path: data for path, data in writes.items() if path.name == finish.PIN}
        for some in ({path: data for path, data in writes.items() if path not in last}, last):
            steps.checkpoint("rebase: write")
            self._write(session, some)
        report = replace(self._report(store, state, run, "done"), written=tuple(writes))
        session.remove()
        return report

    @staticmethod
    def _write(session: Session, files: Mapping[Path, bytes]) -> None:
        try:
            write_files(session.root, [Write(path, data, None) for path, data in files.items()])
        except ForkError as e:
            raise ForkError(
                e.message, found=e.found, expected=e.expected, details=e.details,
                fix=f"mend that, then: {session.command('continue')}",
            ) from e  # fmt: skip

    def _pin(self, store: TreeStore, state: State, tree: str) -> Pin:
        def read(path: bytes) -> bytes | None:
            entry: Entry | None = store.get(tree, path)
            return None if entry is None else store.blob(entry.blob)

        known = self._releases.pin(state.onto)
        return known or newpin.make(self._releases, pins.public(state.onto), read, state.renames)

    def _remembered(self, store: TreeStore, session: Session, state: State) -> dict[Path, bytes]:
        """The resolutions that go to ci/resolutions."""
        made: dict[Path, bytes] = {}
        known = Known(store, session, state, self._content.root)
        for decision in state.decisions:
            conflict = known.conflict(decision)
            resolution = known.decided(decision)
            raw = resolutions.write(store, conflict, resolution, patch=decision.patch, version=decision.version)
            if raw is not None:
                made[resolutions.FOLDER / resolutions.name_of(conflict.key)] = raw
        return made
