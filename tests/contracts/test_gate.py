from __future__ import annotations

from kunlunfork.contracts.gate import lost
from kunlunfork.symbols.release import Given

BEFORE = b"def a(): ...\ndef b(): ...\nclass C:\n    def m(self): ...\nLIMIT = 1\n"


def definitions(before: bytes, ours: bytes, after: bytes, merged: bytes) -> tuple[str, ...]:
    path = b"vllm/x.py"
    return lost(*(Given({path: data, b"vllm/other.py": b"def o(): ...\n"}) for data in (before, ours, after, merged)))


def test_what_a_merge_lost() -> None:
    ours = BEFORE.replace(b"def b(): ...\n", b"def ours(): ...\n")
    after = BEFORE + b"def new(): ...\n"
    good = ours + b"def new(): ...\n"
    assert definitions(BEFORE, ours, after, good) == ()
    assert definitions(BEFORE, ours, after, ours) == ("vllm.x:new",)
    assert definitions(BEFORE, ours, after, good.replace(b"    def m(self): ...\n", b"    pass\n")) == ("vllm.x:C.m",)
    assert definitions(BEFORE, ours, after, good.replace(b"def ours(): ...\n", b"")) == ("vllm.x:ours",)
    assert definitions(BEFORE, ours, after, good.replace(b"LIMIT = 1\n", b"")) == ("vllm.x:LIMIT",)


def test_what_upstream_or_the_patch_took_away_is_not_lost() -> None:
    ours = BEFORE.replace(b"def b(): ...\n", b"")
    after = BEFORE.replace(b"def a(): ...\n", b"")
    assert definitions(BEFORE, ours, after, ours.replace(b"def a(): ...\n", b"")) == ()
    assert definitions(BEFORE, BEFORE, after, after) == ()
