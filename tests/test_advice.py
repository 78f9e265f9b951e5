"""The checker that conftest.py puts behind every error of the test suite."""

from __future__ import annotations

import re

import pytest
from advice import GIVEN, check, commands
from support import REPO

from kunlunfork.errors import ForkError


@pytest.mark.parametrize(
    "text",
    [
        "kunlunfork status",
        "see: kunlunfork lint; then make it again",
        "kunlunfork apply --vllm 0.25.1, or take another",
        "kunlunfork apply --in-place 'a b; c/tree'",
        "kunlunfork cache import FILE; or once online: kunlunfork apply --vllm 0.25.1",
        "run the command again",
        "remove it (kunlunfork cache prune --all)",
        "pip install --force-reinstall kunlunfork",
        "kunlunfork rebase --status; then --continue",
        "kunlunfork rebase --onto 0.26.0 --out 'a b'",
        "kunlunfork apply --vllm 0.25.1 --source git:/x 'it'\"'\"'s'",
    ],
)
def test_good_advice(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "kunlunfork rebuild --onto 0.26.0",
        "kunlunfork rebase",
        "kunlunfork rebase --onto VERSION",
        "kunlunfork rebase --skip --abort",
        "kunlunfork apply finishes it",
        "kunlunfork apply",
        "kunlunfork apply --in-place",
        "kunlunfork apply --in-place a b/tree",
        "kunlunfork apply --vllm VERSION",
        "kunlunfork lint shows the patch",
        "kunlunfork status 'open",
        "kunlunfork cache",
        "kunlunfork ",
    ],
)
def test_bad_advice(text: str) -> None:
    with pytest.raises(AssertionError, match="cannot be followed"):
        check(text)


def test_words_are_those_of_a_shell() -> None:
    assert list(commands("do kunlunfork cache export 'a b', or kunlunfork pins; then")) == [
        ["cache", "export", "a b"],
        ["pins"],
    ]


def test_every_error_of_the_suite_is_looked_at() -> None:
    """The fixture would fail this very test, did it not take the advice back."""
    ForkError("x", fix="kunlunfork no-such-verb")
    assert GIVEN.pop() == "kunlunfork no-such-verb"


def test_the_help_and_the_readme_name_commands_that_exist() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    found = [line.strip() for line in re.findall(r"^kunlunfork .*?(?:  +#.*)?$", text, re.MULTILINE)]
    assert found
    for line in found:
        check(re.sub(r"\s+#.*", "", line))
