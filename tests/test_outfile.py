from __future__ import annotations

from pathlib import Path

import pytest
from unprivileged import unprivileged

from kunlunfork import outfile
from kunlunfork.errors import ForkError


@pytest.mark.parametrize(
    ("name", "parents", "fine"),
    [
        ("new", False, True),
        ("file", False, True),
        ("folder", False, False),
        ("no/new", False, False),
        ("no/such/new", True, True),
        ("file/new", True, False),
        ("file/new", False, False),
        ("closed/new", False, False),
        ("closed/sub/new", True, False),
        ("read-only", False, False),
    ],
)
def test_only_what_can_be_written_later(name: str, parents: bool, fine: bool, tmp_path: Path) -> None:
    for folder in ("folder", "closed"):
        (tmp_path / folder).mkdir()
    for file in ("file", "read-only"):
        (tmp_path / file).write_text("kept")
    (tmp_path / "closed").chmod(0o555)
    (tmp_path / "read-only").chmod(0o444)
    (tmp_path / "file").chmod(0o666)
    tmp_path.chmod(0o777)
    with unprivileged(tmp_path):
        if fine:
            outfile.check(tmp_path / name, parents=parents)
        else:
            with pytest.raises(ForkError, match="cannot be written"):
                outfile.check(tmp_path / name, parents=parents)
    assert (tmp_path / "file").read_text() == "kept"
