"""What changes a fingerprint, and what does not."""

from __future__ import annotations

import ast

import pytest

from kunlunfork.symbols.canon import Canon
from kunlunfork.symbols.facts import Function
from kunlunfork.symbols.read import read

BASE = '''
def f(a, b=1, *, c):
    """Doc."""
    # Why.
    total = [x + 1 for x in a if x]
    for i, (key, value) in enumerate(b):
        total.append(f"{key}:{value!r:>{c}}" "tail")
    def inner(item, scale=2):
        nonlocal total
        total = item * scale
        return total
    with open(c) as stream, other() as second:
        stream.read()
    try:
        import os.path as where
        n: int = 3
    except ValueError as error:
        raise RuntimeError(error) from error
    return inner, (lambda q, r=n: q + r + n), where.sep, GLOBAL, {k: v for k, v in total}
'''
SAME = {
    "comments": BASE.replace("# Why.", "# Because. [num_reqs] is not what this is about"),
    "docstring": BASE.replace('"""Doc."""', '"""Another."""'),
    "no docstring": BASE.replace('    """Doc."""\n', ""),
    "formatting": BASE.replace("[x + 1 for x in a if x]", "[\n        (x+1) for x in a\n        if x\n    ]"),
    "a local": BASE.replace("total", "everything"),
    "a variable of a comprehension": BASE.replace("x + 1 for x in a if x", "y + 1 for y in a if y"),
    "variables of a loop": BASE.replace("key", "left").replace("value", "right").replace("i,", "n_th,"),
    "the name of an exception": BASE.replace("error", "problem"),
    "the name of an import": BASE.replace("where", "place"),
    "a local function": BASE.replace("inner", "nested"),
    "what is opened": BASE.replace("stream", "file"),
    "the annotation of a local": BASE.replace("n: int = 3", "n = 3"),
    "a string in pieces": BASE.replace('" "tail"', 'tail"'),
    "other quotes": BASE.replace('"tail"', "'tail'"),
    "parentheses": BASE.replace("return inner, ", "return (inner), "),
    "a string that stands alone": BASE.replace("    # Why.", "    'Why.'"),
}  # fmt: skip
OTHER = {
    "an operator": BASE.replace("x + 1", "x - 1"),
    "a number": BASE.replace("x + 1", "x + 2"),
    "its type": BASE.replace("x + 1", "x + 1.0"),
    "True for 1": BASE.replace("x + 1", "x + True"),
    "a global": BASE.replace("GLOBAL", "OTHER"),
    "one local for another": BASE.replace("{value!r", "{key!r"),
    "a conversion": BASE.replace("!r", "!s"),
    "a format": BASE.replace(":>{c}", ":<{c}"),
    "an attribute": BASE.replace("stream.read", "stream.write"),
    "a called function": BASE.replace("enumerate(b)", "zip(b)"),
    "the order of arguments": BASE.replace("item * scale", "scale * item"),
    "a default of a local function": BASE.replace("scale=2", "scale=3"),
    "a parameter of a local function": BASE.replace("scale", "factor"),
    "a keyword": BASE.replace("open(c)", "open(file=c)"),
    "what is raised": BASE.replace("RuntimeError(", "TypeError("),
    "what is caught": BASE.replace("except ValueError", "except KeyError"),
    "a statement less": BASE.replace("        nonlocal total\n", ""),
    "the cause": BASE.replace(" from error", ""),
    "what is imported": BASE.replace("os.path", "os"),
    "a local that becomes global": BASE.replace("    # Why.", "    global total"),
    "what is returned": BASE.replace("return inner, ", "return "),
    "a string": BASE.replace('"tail"', '"tale"'),
    "swapped locals": BASE.replace("q + r + n", "q + n + r"),
}  # fmt: skip


def function(source: str) -> Function:
    return read(source.encode()).functions["f"]


@pytest.mark.parametrize("what", SAME)
def test_what_does_not_matter(what: str) -> None:
    assert SAME[what] != BASE
    assert function(SAME[what]).body == function(BASE).body


@pytest.mark.parametrize("what", OTHER)
def test_what_matters(what: str) -> None:
    assert OTHER[what] != BASE
    assert function(OTHER[what]).body != function(BASE).body


def test_two_locals_that_change_places_are_seen() -> None:
    one = "def f(a):\n    x = a.one\n    y = a.two\n    return x - y\n"
    assert function(one).body != function(one.replace("x - y", "y - x")).body


def test_a_local_of_one_function_is_a_global_of_another() -> None:
    one = "def f():\n    def g():\n        x = 1\n        return x\n    return g() + x\n"
    other = one.replace("x = 1", "y = 1").replace("return x\n", "return y\n")
    assert function(one).body == function(other).body
    assert function(one).body != function(one.replace("return x\n", "return y\n")).body


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # Fingerprints are kept in files: they are the same on every Python that we run on.
        ("f'{a:>{w}.2f}' 'b'", "f(FV(value=a,conversion=-1,format_spec=f('>',FV(value=w,conversion=-1),'.2f')),'b')"),
        ("x[1:2, ...]", "Subscript(value=x,slice=Tuple(elts=[Slice(lower=1,upper=2),Ellipsis]))"),
        ("lambda x, /, y=1, *, z: x", "lambda((1, 1, False, 1, False):x,y,z:1,[1,None],x)"),
        (
            "[y for x in z for y in x]",
            "ListComp([for(target=$0,iter=z,is_async=0),for(target=$1,iter=$0,is_async=0)],$1)",
        ),
        ("-1", "UnaryOp(op=USub(),operand=1)"),
        ("'\udc80'", "'\\udc80'"),
    ],
)  # fmt: skip
def test_the_text_of_an_expression(source: str, text: str) -> None:
    node = ast.parse(source.encode("unicode_escape"), mode="eval").body
    assert Canon().text(node).replace("FormattedValue", "FV").replace("comprehension", "for") == text
