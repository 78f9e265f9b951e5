from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from kunlunfork.errors import ForkError
from kunlunfork.sources import tarstream
from kunlunfork.sources.archive import members

Read = list[tuple[tarstream.TarMember, bytes]]

NAMES = [
    "t/a",
    "t/" + "b" * 98,
    "t/" + "c" * 99,
    "t/" + "d" * 60 + "/" + "e" * 90,
    "t/" + "f" * 300,
    "t/é\u2028",
    "t/s p ",
]
RAW = "t/latin-" + b"\xe9".decode("utf-8", "surrogateescape")


def _read(data: bytes) -> Read:
    file = io.BytesIO(data)
    found = []
    for member in tarstream.members(file):
        found.append((member, file.read(member.size) if member.kind in tarstream.REGULAR else b""))
    return found


def _write(*infos: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT, **more: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, **more) as tar:  # type: ignore[call-overload]
        for info, data in infos:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _info(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = "", **pax: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.mtime = kind, mode, link, 1784019248.25  # a fraction: pax keeps it
    info.pax_headers = pax
    return info


def _header(name: bytes = b"t/a", size: bytes = b"1", kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    head = bytearray(512)
    head[: len(name)] = name
    head[100:107] = b"0000644"
    head[124 : 124 + len(size)] = size
    head[148:156] = b" " * 8
    head[156:157] = kind
    head[257 : 257 + len(magic)] = magic
    head[148:155] = b"%06o\0" % sum(head)
    return bytes(head)


END = bytes(1024)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_is_read_as_tarfile_reads_it(form: int) -> None:
    names = [n for n in [*NAMES, RAW] if form != tarfile.USTAR_FORMAT or len(n) < 256]
    infos = [(_info(name, mode=0o755 if i % 2 else 0o640), b"x" * (511 + i)) for i, name in enumerate(names)]
    infos += [(_info("t/empty"), b""), (_info("t/dir/", tarfile.DIRTYPE), b""), (_info("t/c", tarfile.CONTTYPE), b"c")]
    infos += [(_info("t/link", tarfile.SYMTYPE, link="a"), b""), (_info("t/dev", tarfile.CHRTYPE), b"")]
    if form != tarfile.USTAR_FORMAT:
        infos.append((_info("t/" + "l" * 200, tarfile.SYMTYPE, link="é" * 120), b""))
    data = _write(*infos, form=form)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [
            (
                tarstream.TarMember(
                    m.name.encode("utf-8", "surrogateescape"), m.type, m.mode, m.size, m.linkname.encode()
                ),
                tar.extractfile(m).read() if m.isreg() else b"",  # type: ignore[union-attr]
            )
            for m in tar
        ]
    found = [(tarstream.TarMember(m.name.rstrip(b"/"), m.kind, m.mode, m.size, m.link), d) for m, d in _read(data)]
    assert found == expected
    assert len(found) == len(infos)


def test_large_sizes() -> None:
    """Beyond eleven octal digits: base 256 of GNU, a record of pax. The bytes themselves need not be there."""
    size = (8 << 30) + 1
    record = b"19 size=%d\n" % size
    for data in (
        _header(size=b"\x80" + size.to_bytes(11, "big")),
        _header(b"x", b"%o" % len(record), b"x") + record.ljust(512, b"\0") + _header(),
    ):
        assert next(tarstream.members(io.BytesIO(data))).size == size


def test_old_ways_to_say_a_folder_and_a_file() -> None:
    data = _header(b"t/", b"", b"\0", b"") + _header(b"t/a", b"0", b"\0", b"") + END
    assert [(m.name, m.kind) for m, _ in _read(data)] == [(b"t/", tarstream.FOLDER), (b"t/a", tarfile.AREGTYPE)]


def test_the_times_of_gnu_are_no_prefix() -> None:
    head = bytearray(_header(b"t/a", b"0", magic=b"ustar  \0"))
    head[345:356] = b"14777777777"
    head[148:156] = b" " * 8
    head[148:155] = b"%06o\0" % sum(head)
    assert [m.name for m, _ in _read(bytes(head) + END)] == [b"t/a"]


def test_a_cut_archive_is_never_a_shorter_one() -> None:
    data = _write(*((_info(name), b"x" * 600) for name in NAMES))
    whole = _read(data)
    end = data.rstrip(b"\0").rfind(b"x") // 512 * 512 + 512
    for cut in {*range(0, end, 512), *range(7, end, 509)}:
        with pytest.raises(tarfile.ReadError, match="ends"):
            _read(data[:cut])
    assert _read(data[: end + 512]) == whole, "one empty block is an end"


def test_a_flipped_bit_in_a_header_is_found() -> None:
    data = _write((_info("t/one"), b"1"), (_info("t/two"), b"2"), form=tarfile.USTAR_FORMAT)
    whole = _read(data)
    for at in (*range(512), *range(1024, 1536)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            try:
                # In the check sum's own field some characters mean the same.
                assert _read(damaged) == whole
                assert 148 <= at % 512 < 156
            except (tarfile.ReadError, ValueError):
                pass


@pytest.mark.parametrize(
    "records",
    [
        b"5 a=\n",
        b"no length\n",
        b"12345678901234567890123 path=a\n",
        b"\xb2 path=a\n",
        b"10 path=a",
        b"99 path=a\n",
        b"0 path=a\n",
        b"1 path=a\n",
        b"9 patha\n\n",
        b"10 size=x\n",
        b"11 size=-1\n",
        b"22 GNU.sparse.major=1\n",
    ],
)
def test_a_hostile_pax_header_is_refused(records: bytes) -> None:
    data = _header(b"x", b"%o" % len(records), b"x") + records.ljust(512, b"\0") + _header() + b"1".ljust(512) + END
    if records == b"5 a=\n":
        assert [m.name for m, _ in _read(data)] == [b"t/a"], "a record that says nothing"
        return
    with pytest.raises((tarfile.ReadError, ValueError)):
        _read(data)


def test_other_hostile_headers_are_refused() -> None:
    record = b"12 path=t/b\n"
    body = b"1".ljust(512, b"\0")
    for data in (
        b"",
        bytes(511),
        b"junk" * 128,
        _header(size=b"8") + body + END,
        _header(size=b"-1") + body + END,
        _header(size=b"\xff" * 12) + END,
        _header(b"g", b"%o" % len(record), b"g") + record.ljust(512, b"\0") + _header() + body + END,
        _header(b"L", b"%o" % (2 << 20), b"L") + b"t/b".ljust(2 << 20, b"\0") + _header() + body + END,
        _header(b"x", b"%o" % len(record), b"x") + record.ljust(512, b"\0") + END,
        _header() + body + END + bytes(2 << 20),
    ):
        with pytest.raises((tarfile.ReadError, ValueError)):
            _read(data)
    comment = b"20 comment=abcdefgh\n"
    data = _header(b"g", b"%o" % len(comment), b"g") + comment.ljust(512, b"\0") + _header() + body + END
    assert [d for _, d in _read(data)] == [b"1"], "git archive names its commit so"


@pytest.mark.parametrize("at", [-1, -5], ids=["length", "check sum"])
def test_the_check_sum_of_gzip_is_compared(at: int, tmp_path: Path) -> None:
    data = bytearray(gzip.compress(_write((_info("t/a"), b"1"))))
    file = tmp_path / "t.tar.gz"
    file.write_bytes(data)
    assert len(list(members(file))) == 1
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(ForkError, match="damaged"):
        list(members(file))


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.tar.gz"
    file.write_bytes(gzip.compress(_header(b"t/sparse", b"0", tarfile.GNUTYPE_SPARSE) + END))
    with pytest.raises(ForkError, match="not an archive of vLLM"):
        list(members(file))
