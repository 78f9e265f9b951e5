"""RECORD is edited line by line, and pip agrees with the result."""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
import venv
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunlunfork.errors import ForkError
from kunlunfork.record import Problem, digest, read_record, rewrite_record, verify_record

OWN = b"vllm-0.25.1.dist-info/RECORD,,"


def line(path: bytes, content: bytes) -> bytes:
    value = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return path + b",sha256=" + value + b"," + str(len(content)).encode()


def test_digest_of_a_known_file() -> None:
    # The empty file's SHA-256, in the alphabet and without the padding that the specification asks for.
    assert digest(b"") == (b"sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", b"0")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_reads_both_line_ends(end: bytes) -> None:
    data = end.join([b"vllm/a.py,sha256=xyz,12", b"vllm/__pycache__/a.pyc,,", OWN]) + end
    assert read_record(data) == {
        b"vllm/a.py": (b"sha256=xyz", b"12"),
        b"vllm/__pycache__/a.pyc": (b"", b""),
        b"vllm-0.25.1.dist-info/RECORD": (b"", b""),
    }


def test_reads_what_is_odd() -> None:
    data = (
        b'"configs/E=8,N=1.json",sha256=q,1\n'
        b'"say ""hi"".txt",,\r\n'
        b'"two\nlines.py",sha256=r,2\n'
        b"caf\xe9/\xff.py,sha256=s,3\n"
        b'half"quote.py,,\n'
        b"\n"
        b"lonely\n"
        b"twice,sha256=old,1\n"
        b"twice,sha256=new,2\n"
        b"lone\rreturn,,\n"
        b"last,sha256=t,4"
    )
    assert read_record(data) == {
        b"configs/E=8,N=1.json": (b"sha256=q", b"1"),
        b'say "hi".txt': (b"", b""),
        b"two\nlines.py": (b"sha256=r", b"2"),
        b"caf\xe9/\xff.py": (b"sha256=s", b"3"),
        b'half"quote.py': (b"", b""),
        b"lonely": (b"", b""),
        b"twice": (b"sha256=new", b"2"),
        b"lone\rreturn": (b"", b""),
        b"last": (b"sha256=t", b"4"),
    }
    assert read_record(b"") == {}


@pytest.mark.parametrize(
    ("bad", "number"), [(b'"open,sha256=q,1\nb,,\n', 1), (b'a,,\n"closed"junk,,\n', 2), (b'a,,\nb,"', 2)]
)
def test_refuses_quotes_that_do_not_pair(bad: bytes, number: int) -> None:
    with pytest.raises(ForkError, match=f"damaged at line {number}"):
        read_record(bad)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_changes_one_line_and_appends_in_the_same_line_end(end: bytes) -> None:
    before = [b"../../../bin/vllm,sha256=b,9", line(b"vllm/a.py", b"old"), b"vllm/b.py,sha256=B,7", OWN]
    after = [
        before[0],
        line(b"vllm/a.py", b"new!"),
        before[2],
        OWN,
        line(b"vllm/c.py", b"c"),
        b"x/lock.json,,",
    ]
    written = {b"x/lock.json": None, b"vllm/a.py": b"new!", b"vllm/c.py": b"c"}
    result = rewrite_record(end.join(before) + end, written=written)
    assert result == end.join(after) + end
    assert rewrite_record(result, written=written) == result


def test_removes_every_line_of_a_path_and_only_those() -> None:
    data = b"a,,\nb,sha256=q,1\na,sha256=r,2\nab,,\n"
    assert rewrite_record(data, written={}, removed=[b"a", b"unknown"]) == b"b,sha256=q,1\nab,,\n"


def test_every_duplicate_of_a_changed_path_becomes_true() -> None:
    data = b"a,sha256=q,1\nb,,\na,,\n"
    want = line(b"a", b"A") + b"\nb,,\n" + line(b"a", b"A") + b"\n"
    assert rewrite_record(data, written={b"a": b"A"}) == want


def test_a_line_that_is_true_already_keeps_its_form() -> None:
    sha512 = urlsafe_b64encode(hashlib.sha512(b"A").digest())  # padded, as some tools write it
    data = b'"a",sha512=' + sha512 + b",1\r\n"
    assert rewrite_record(data, written={b"a": b"A"}) == data
    assert rewrite_record(data, written={b"a": b"B"}) == line(b"a", b"B") + b"\r\n"


@pytest.mark.parametrize("weak", [b"md5=0cc175b9c0f1b6a831c399e269772661", b"sha1=x", b""])
def test_a_weak_or_missing_hash_of_a_written_file_is_replaced(weak: bytes) -> None:
    assert rewrite_record(b"a," + weak + b",1\n", written={b"a": b"A"}) == line(b"a", b"A") + b"\n"


def test_a_hash_is_dropped_where_none_is_wanted() -> None:
    assert rewrite_record(line(b"lock.json", b"x") + b"\n", written={b"lock.json": None}) == b"lock.json,,\n"


@pytest.mark.parametrize("name", [b"a,b.json", b'q"q', b"two\nlines", b"two\r\nlines", b"\xff\xe9"])
def test_a_name_that_needs_quotes_is_found_again(name: bytes) -> None:
    data = rewrite_record(b"", written={name: b"x", b"plain": b"y"})
    assert read_record(data) == {name: digest(b"x"), b"plain": digest(b"y")}
    changed = rewrite_record(data, written={name: b"z"})
    assert read_record(changed) == {name: digest(b"z"), b"plain": digest(b"y")}
    assert rewrite_record(changed, written={}, removed=[name, b"plain"]) == b""


def test_quotes_are_those_that_csv_reads() -> None:
    name = b'E=8,"N"=1.json'
    text = rewrite_record(b"", written={name: b"x"}).decode()
    assert next(csv.reader(io.StringIO(text)))[0] == name.decode()


def test_no_line_end_at_the_end_stays_so() -> None:
    data = b"a,,\r\n" + OWN
    added = rewrite_record(data, written={b"b": None})
    assert added == b"a,,\r\n" + OWN + b"\r\nb,,"
    assert rewrite_record(added, written={}, removed=[b"b"]) == data


def test_written_and_removed_at_once_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="both written and removed"):
        rewrite_record(b"", written={b"a": b""}, removed=[b"a"])


_names = st.binary(min_size=1, max_size=6).filter(lambda name: name.strip(b"\r\n") == name)
_files = st.dictionaries(_names, st.none() | st.binary(max_size=4), max_size=5)


@settings(max_examples=200, deadline=None)
@given(old=_files, new=_files, end=st.sampled_from([b"\n", b"\r\n"]), ended=st.booleans())
def test_adding_and_removing_is_exact(
    old: dict[bytes, bytes | None], new: dict[bytes, bytes | None], end: bytes, ended: bool
) -> None:
    data = rewrite_record(b"", written=old).replace(b"\n", end) if b"\n" not in b"".join(old) else b""
    if not ended:
        data = data.removesuffix(end)
    fresh = {path: content for path, content in new.items() if path not in read_record(data)}
    result = rewrite_record(data, written=fresh)
    assert result.startswith(data)
    assert rewrite_record(result, written=fresh) == result
    assert rewrite_record(result, written={}, removed=fresh) == data
    listed = read_record(result)
    assert all(listed[path] == (digest(c) if c is not None else (b"", b"")) for path, c in fresh.items())


def test_verify_names_every_kind_of_difference(tmp_path: Path) -> None:
    for name in ("good", "changed", "longer", "weak", "bare"):
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "folder").mkdir()
    other = digest(b"34")[0].decode()
    data = b"\n".join(
        [
            line(b"good", b"12"),
            line(b"changed", b"34"),
            line(b"longer", b"1"),
            b"weak,md5=x,2",
            b"bare,,",
            line(b"gone", b"x"),
            line(b"folder", b"x"),
            b"gone.pyc,,",
            line(b"../outside", b"x"),
            line(b"/absolute", b"x"),
        ]
    )
    found = [
        Problem(b"changed", digest(b"12")[0].decode(), other),
        Problem(b"longer", "2 bytes", "1 bytes"),
        Problem(b"weak", "hash md5=x", "sha256, sha384 or sha512"),
        Problem(b"gone", "missing", "a regular file"),
        Problem(b"folder", "not a file", "a regular file"),
    ]
    assert verify_record(tmp_path, data) == found
    assert verify_record(tmp_path, data, [b"good", b"bare", b"gone.pyc", b"new"]) == [
        Problem(b"gone.pyc", "missing", "a regular file"),
        Problem(b"new", "not listed", "a line in RECORD"),
    ]


def test_verify_looks_at_each_duplicate(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"A")
    data = b"a,sha256=wrong,1\n" + line(b"a", b"A") + b"\n"
    assert verify_record(tmp_path, data) == [Problem(b"a", digest(b"A")[0].decode(), "sha256=wrong")]


def make_wheel(folder: Path) -> Path:
    """A wheel called vllm, by hand: no build tool is needed."""
    files = {
        "vllm/__init__.py": b"",
        "vllm/_version.py": b"__version__ = version = '0.25.1'\n",
        "vllm/configs/E=8,N=1.json": b"{}",
        "vllm-0.25.1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1\n",
        "vllm-0.25.1.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "vllm-0.25.1.dist-info/entry_points.txt": b"[console_scripts]\nvllm = vllm:main\n",
    }
    record = rewrite_record(b"", written={**{name.encode(): data for name, data in files.items()}, OWN[:-2]: None})
    wheel = folder / "vllm-0.25.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        for name, data in {**files, "vllm-0.25.1.dist-info/RECORD": record}.items():
            z.writestr(name, data)
    return wheel


def test_pip_checks_and_uninstalls_what_was_rewritten(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    env = tmp_path / "env"
    venv.create(env, with_pip=False, symlinks=True)

    def pip(*args: str) -> None:
        options = ["--isolated", "--disable-pip-version-check", "--python", str(env / "bin" / "python")]
        done = subprocess.run([sys.executable, "-m", "pip", *options, *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def everything() -> set[Path]:
        return set(env.rglob("*"))

    bare = everything()
    pip("install", "--no-index", "--no-deps", str(make_wheel(tmp_path)))
    record = next(env.rglob("RECORD"))
    site, state = record.parent.parent, record.parent / "kunlunfork"
    before = record.read_bytes()
    assert verify_record(site, before) == []

    written: dict[bytes, bytes | None] = {
        b"vllm/__init__.py": b"import os\n",
        b"vllm/configs/E=8,N=1.json": b'{"changed": 1}',
        b"vllm/kunlun/__init__.py": b"",
        b"vllm/kunlun/configs/E=8,N=2.json": b"{}",
        b"vllm-0.25.1.dist-info/kunlunfork/pre/0123": b"old",
        b"vllm-0.25.1.dist-info/kunlunfork/lock.json": None,
    }
    for name, data in written.items():
        file = site / name.decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}" if data is None else data)
    assert {p.path for p in verify_record(site, before)} == {
        b"vllm/__init__.py",
        b"vllm/configs/E=8,N=1.json",
    }
    after = rewrite_record(before, written=written)
    record.write_bytes(after)
    assert verify_record(site, after) == []
    assert verify_record(site, after, written) == []
    # An empty folder of ours and the bytecode of a new file are not listed, and go as well.
    (state / "stage").mkdir()
    subprocess.run([env / "bin" / "python", "-c", "import vllm.kunlun"], check=True)

    pip("check")
    pip("uninstall", "-y", "vllm")
    assert everything() == bare
