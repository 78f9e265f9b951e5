"""What drift says: what vouches for a contract, and the report in each format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from contractkit import Bench
from test_cli import run

from kunlunfork import errors
from kunlunfork.cache import Cache
from kunlunfork.commands import _drift
from kunlunfork.content import Content
from kunlunfork.contracts import cards, cover, pinfile, shown
from kunlunfork.contracts import run as run_
from kunlunfork.contracts.cover import Evidence
from kunlunfork.contracts.drift import Drift, Found
from kunlunfork.contracts.pinfile import Ack, PinFile
from kunlunfork.contracts.run import Report
from kunlunfork.errors import ForkError
from kunlunfork.matrix.records import Record, Sum
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store

BATCH = "vllm.v1.worker.gpu.input_batch"
NAME = f"{BATCH}:combine_sampled_and_draft_tokens"
OLD = "num_new_sampled_tokens: int = 1,  # excl"


@pytest.fixture(scope="module")
def found(bench: Bench) -> Found:
    return bench.found((BATCH, OLD, OLD.replace("= 1", "= '<b>&`|'")))


@pytest.fixture
def one(found: Found) -> Drift:
    return next(d for d in found.drifts if str(d.contract) == NAME)


def record(tier: str, bad: int = 0, sites: tuple[int, ...] = (7,)) -> Record:
    sums = (Sum(tier, "input_batch:combine", sites, "all-on", 5, bad, 0, 0.0, 1.0),)
    return Record("0.25.2", "cpu", tier, "s", "o", "2026-11-30T12:00:00", {}, "m", "each", ("torch",), sums)


def evidence(
    *records: Record, acks: PinFile | None = None, contracts: frozenset[str] | None = frozenset({NAME})
) -> Evidence:
    return Evidence(contracts, records, acks or PinFile(), {NAME: (7,)})


def test_what_vouches_for_a_contract(one: Drift) -> None:
    assert one.classes == ("default",)
    assert cover.cover(one, evidence(record("ops"))) == "cells input_batch:combine"
    assert cover.cover(one, evidence(record("e2e"))).startswith("cell e2e")
    for nothing in (
        evidence(), evidence(record("ops", bad=1)), evidence(record("ops", sites=(8,))),
        evidence(record("ops"), record("ops", bad=1)), evidence(record("ops"), contracts=None),
    ):  # fmt: skip
        assert cover.cover(one, nothing) == ""
    assert "no more" in cover.cover(one, evidence(contracts=frozenset()))


def test_what_callers_pass_needs_whole_steps(one: Drift) -> None:
    passed = replace(one, classes=("default", "callers"))
    assert cover.cover(passed, evidence(record("ops"))) == ""
    assert (
        cover.cover(passed, evidence(record("ops"), record("step")))
        == "cells input_batch:combine, cells step of 2026-11-30"
    )


def test_what_is_gone_has_no_cell(one: Drift) -> None:
    gone = replace(one, to=None, classes=("removed",))
    assert cover.cover(gone, evidence(record("ops"), record("step"), record("e2e"))) == ""


def test_the_word_of_a_person_holds_for_what_they_saw(one: Drift) -> None:
    acks = PinFile({}, {NAME: Ack(one.key, "0.25.1", "looked at it")})
    assert cover.cover(one, evidence(acks=acks, contracts=None)) == "acknowledged: looked at it"
    assert one.new is not None
    later = replace(one, new=replace(one.new, facets={**one.new.facets, "body": "x"}))
    assert cover.cover(later, evidence(acks=acks)) == ""


def test_a_report(found: Found, one: Drift) -> None:
    report = Report("0.25.1", "0.25.2", ("0.25.2",), 200, (cards.card(found, one, ""),))
    assert "1 of 200 contracts drifted; 0 vouched for, 1 open" in shown.verdict(report)
    text = shown.term(report, long=True)
    assert "num_new_sampled_tokens='<b>&`|'" in text and "+    num_new_sampled_tokens" in text
    page = shown.html(report)
    assert "<b>" not in page and "&lt;b&gt;&amp;" in page and page.count("<section") == 1
    assert "@" not in page.partition("<section")[2].partition("class=")[0]
    body = shown.markdown(report)
    assert "````" not in body and "```diff" in body
    covered = replace(report, cards=(cards.card(found, one, "cells a|b"),))
    assert covered.open == () and "cells a\\|b" in shown.markdown(covered)
    assert json.loads(json.dumps(report.cards[0].as_json()))["steps"] == [{"version": "0.25.2", "classes": ["default"]}]


def test_what_lies_beside_a_pin(tmp_path: Path) -> None:
    assert pinfile.load(tmp_path) == PinFile()
    made = PinFile({"a:b": {"kind": "function"}, "c:d": {}}, {"a:b": Ack("k", "0.25.1", 'a "reason"\n')})
    file = pinfile.save(tmp_path / "new", made)
    assert pinfile.load(tmp_path / "new") == made
    assert file.read_bytes().count(b"\n") == 10
    for bad in (b"", b"[]", b'{"schema": 9}', b'{"schema": 1, "acks": {"a": 1}, "contracts": {}}', b"\xff"):
        file.write_bytes(bad)
        with pytest.raises(ForkError, match=r"contracts\.json cannot be read"):
            pinfile.load(tmp_path / "new")


@pytest.mark.parametrize(
    "args",
    [
        [], ["--write", "--to", "0.26.0"], ["--to", "0.26.0", "--ack", "a:b"], ["--to", "0.26.0", "--why", "x"],
        ["--to", "0.26.0", "--ack", "a:b", "--why", " "], ["--to", "0.26.0", "--json", "--format", "html"],
    ],
)  # fmt: skip
def test_usage(args: list[str]) -> None:
    assert run("drift", *args).returncode == errors.USAGE


def test_the_installed_package_is_not_written(content: Content) -> None:
    _drift.check_clone(content)
    with pytest.raises(ForkError, match="no clone to write to"):
        _drift.check_clone(replace(content, clone=False))


def test_contracts_json_says_what_the_fork_relies_on(content: Content, user_cache: Cache, bench: Bench) -> None:
    """After a change of the overlay or a patch: kunlunfork drift --write."""
    settings = Settings(user_cache, None, True, Silent())
    made = run_.contracts_of(run_.Workshop(content, Store(user_cache.store), settings), "0.25.1")
    assert pinfile.load(content.patches / "0.25.1").dump() == made.dump()
