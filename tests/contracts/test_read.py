from __future__ import annotations

from pathlib import Path

import pytest

from kunlunfork.symbols import kept
from kunlunfork.symbols.facts import Facts, Import
from kunlunfork.symbols.kept import Kept
from kunlunfork.symbols.read import read

SOURCE = b'''
"""A module."""
from __future__ import annotations
import os.path, sys as system
from typing import TYPE_CHECKING
from . import sibling
from ..up import *
if TYPE_CHECKING:
    from vllm.a import Hint
try:
    from fast import thing
except ImportError:
    from slow import thing

__all__ = ["f"]
__all__ += ["C"]
LIMIT: int = 1 << 4
A, (B, *REST) = 1, (2, 3)
_LAZY = {"LLM": ".entry:LLM", "n": 1, "path": "/etc/x"}

def __getattr__(name):
    return _LAZY[name]

@triton.jit(do_not_specialize=["n"])
def _kernel(
    x_ptr,  # [n, 4], int32
    n, BLOCK: tl.constexpr,
):
    y = "# [not, a, comment]"  # a word on int64 here is no declaration of anything
    tl.store(x_ptr, helper(n))

def f(a: int, /, b: "str | None" = None, *args, c, d=(1, 2), **kw) -> dict[str, int]:
    from vllm.inner import late
    width = a * 2
    rows = torch.zeros(width, dtype=torch.int32)
    _kernel[(width,)](rows, width, BLOCK=16)
    obj.method(rows, *args)
    batch = Batch(rows)
    return late(batch=batch, **kw)

class C(Base[int], metaclass=Meta):
    # A sentence first.
    # [num_reqs]
    ids: torch.Tensor
    size: int = 3  # int64
    LIMITS = (1, 2)

    def __init__(self, device: torch.device, other):
        n = 4
        self.device, self.n = device, n
        self.buffer: torch.Tensor = torch.zeros(n, dtype=torch.int32)  # [n]
        self.helper = Helper(other)

    @property
    def p(self) -> int: ...

    @abstractmethod
    def q(self): ...

    def r(self):
        """It."""
        raise NotImplementedError("no")
'''


@pytest.fixture(scope="module")
def facts() -> Facts:
    return read(SOURCE)


def test_functions(facts: Facts) -> None:
    f = facts.functions["f"]
    assert f.signature == "(a: int, /, b: 'str | None' = None, *args, c, d=(1, 2), **kw) -> dict[str, int]"
    assert [p.kind for p in f.params] == ["positional", "any", "*", "keyword", "keyword", "**"]
    assert {c.to: (c.launch, c.star, len(c.args), [k for k, _ in c.keywords]) for c in f.calls} == {
        "_kernel": (True, False, 2, ["BLOCK"]),
        "obj.method": (False, True, 2, []),
        "Batch": (False, False, 1, []),
        "late": (False, True, 0, ["batch"]),
    }
    assert dict(f.locals)["batch"] == "call Batch"
    assert set(f.refs) == {"torch.zeros", "torch.int32", "_kernel", "obj.method", "Batch"}
    kernel = facts.functions["_kernel"]
    assert kernel.is_jit and not f.is_jit
    assert kernel.shapes == ("[n,4] int32",)
    assert "helper" in kernel.refs
    first = SOURCE[: SOURCE.index(b"@triton")].count(b"\n") + 1
    assert (kernel.line, kernel.end) == (first, first + 6)


def test_classes(facts: Facts) -> None:
    c = facts.classes["C"]
    assert (c.bases, c.methods) == (("Base[int]", "Meta"), ("__init__", "p", "q", "r"))
    found = {a.name: a for a in c.attributes}
    assert list(found) == ["ids", "size", "LIMITS", "device", "n", "buffer", "helper"]
    assert found["ids"].shapes == ("[num_reqs]",)
    assert found["size"].shapes == ("int64",) and found["size"].declared
    assert found["device"].kinds == () or found["device"].kinds == ("type torch.device",)
    assert found["buffer"].shapes == ("[n]",) and found["buffer"].annotation == "torch.Tensor"
    assert found["helper"].kinds == ("call Helper",)
    assert [name for name in c.methods if facts.functions[f"C.{name}"].abstract] == ["q", "r"]


def test_the_module(facts: Facts) -> None:
    assert facts.exports == ("f", "C")
    assert facts.lazy == {"LLM": ".entry:LLM"}
    assert set(facts.constants) == {"LIMIT", "A", "B", "REST", "_LAZY"}
    assert facts.constants["LIMIT"].text == "1 << 4" and facts.constants["LIMIT"].annotation == "int"
    assert set(facts.imports) >= {
        Import("os", "os"), Import("", "os.path"), Import("system", "sys"), Import("sibling", ".", "sibling"),
        Import("*", "..up", "*"), Import("Hint", "vllm.a", "Hint", "", True), Import("thing", "slow", "thing"),
        Import("late", "vllm.inner", "late", "f"),
    }  # fmt: skip


def argument(source: bytes) -> str:
    return read(source).functions["f"].calls[-1].args[0]


CALL = b"""
def f(batch):
    n = len(batch)
    ids = np.array(batch, dtype=np.int32)
    ids, rest = split(ids), n
    for row in rest:
        n += row
    unrelated = 1
    g(ids[:n])
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (b"int32", b"int64", False),
        (b"ids[:n]", b"ids", False),
        (b"n += row", b"n -= row", False),
        (b"len(batch)", b"max(batch)", False),
        (b"split(ids), n", b"n, split(ids)", False),
        (b"unrelated = 1", b"unrelated = 2", True),
        (b"row", b"line", True),
        (b"ids", b"rows", True),
        (b"    unrelated", b"    # why\n    unrelated", True),
    ],
)
def test_what_is_passed(old: bytes, new: bytes, same: bool) -> None:
    assert (argument(CALL) == argument(CALL.replace(old, new))) is same


def test_locals_that_depend_on_each_other() -> None:
    circle = b"def f(x):\n    a = b0 = x\n    for _ in x:\n        a, b0 = b0 + a, a\n    g(a)\n"
    assert argument(circle) == argument(circle.replace(b"b0", b"c0"))
    assert argument(circle) != argument(circle.replace(b"b0 + a", b"b0 - a"))


def test_many_locals_take_no_time() -> None:
    # Each is made of two others: written out, the last would have 2**60 parts.
    body = "".join(f"    v{i} = v{max(i - 1, 0)} + v{max(i - 2, 0)}\n" for i in range(60))
    assert len(argument(f"def f(x):\n{body}    g(v59)\n".encode())) == 16


@pytest.mark.parametrize("source", [b"def f(:", b"x = '\0'", b"(" * 5000, b"\xff", b"x = " + b"-" * 3000 + b"1"])
def test_what_is_not_python(source: bytes) -> None:
    found = read(source)
    assert found.fault and not found.functions


def test_a_property_with_a_setter_and_overloads() -> None:
    source = b"""
class C:
    @property
    def p(self) -> int: return self._p
    @p.setter
    def p(self, value): self._p = value
@overload
def g(a: int) -> int: ...
@overload
def g(a: str) -> str: ...
def g(a): return a
if X:
    def h(): return 1
else:
    def h(): return 2
"""
    found = read(source).functions
    assert found["C.p"].returns == "int"
    assert found["C.p"].body != read(source.replace(b"= value", b"= 1")).functions["C.p"].body
    assert found["g"].signature == "(a)"
    for old, new in ((b"return 1", b"return 3"), (b"return 2", b"return 3")):
        assert found["h"].body != read(source.replace(old, new)).functions["h"].body


def test_kept_facts(tmp_path: Path, facts: Facts) -> None:
    assert kept.unpack(kept.pack(facts)) == facts
    folder = Kept(tmp_path)
    blob = "ab" + "0" * 38
    assert folder.facts(blob) is None
    folder.put(blob, kept.pack(facts))
    assert folder.facts(blob) == facts
    file = folder.file(blob)
    whole = file.read_bytes()
    for damaged in (b"", whole[:-9], whole.replace(b"_kernel", b"_KERNEL"), b"0\n[]"):
        file.write_bytes(damaged)
        assert folder.facts(blob) is None
    folder.put(blob, b"[1]")
    assert folder.facts(blob) is None


def test_a_cache_that_cannot_be_written(tmp_path: Path, facts: Facts) -> None:
    (tmp_path / "symbols").write_text("a file")
    Kept(tmp_path).put("ab", b"x")
    assert Kept(tmp_path).get("ab") is None
