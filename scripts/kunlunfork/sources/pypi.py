"""A release's sdist from the package index: resumed when broken off, used only if its hash is the pin's."""

from __future__ import annotations

import errno
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin
from kunlunfork.progress import Progress
from kunlunfork.sources import index

if TYPE_CHECKING:
    import requests
    from pypi_simple import DistributionPackage

RETRIES = 5
_CHUNK = 1 << 16
# Bytes that must arrive before earlier failures are forgotten, so that no server can keep us for ever.
_WORTHWHILE = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)", re.ASCII)
_OTHER_INDEX = "do not use this index; name another: --index-url URL"


class _Broken(Exception):
    """An attempt that failed in a way that the next one may not."""

    def __init__(self, cause: str, fix: str = "try again later: it goes on from what was downloaded") -> None:
        super().__init__(cause)
        self.cause = cause
        self.fix = fix


class _Lacking(Exception):
    """This index does not have the file; the message says what it has."""


class _Patience:
    """How often a server is asked again, and how long we wait before that."""

    def __init__(self, where: str, progress: Progress, wait: Callable[[float], None]) -> None:
        self._where = where
        self._progress = progress
        self._wait = wait
        self._failures = 0

    def failed(self, broken: _Broken) -> None:
        """Wait before the next attempt; raises `ForkError` where there is none left."""
        if self._failures == RETRIES:
            raise ForkError(f"{self._where} failed {RETRIES + 1} times", found=broken.cause, fix=broken.fix)
        seconds = 0.5 * 2**self._failures
        self._failures += 1
        self._progress.note(f"{self._where}: {broken.cause}; trying again in {seconds:g} s")
        self._wait(seconds)

    def forget(self) -> None:
        self._failures = 0


@dataclass(frozen=True)
class _Server:
    """One index: `url` has no credentials, the session has them; `timeout` in seconds."""

    url: str
    session: requests.Session
    timeout: float
    patience: _Patience


def fetch_sdist(
    pin: Pin,
    downloads: Path,
    *,
    index_url: str | None = None,
    offline: bool = False,
    progress: Progress,
    wait: Callable[[float], None] = time.sleep,
) -> Path:
    """The sdist of `pin`, downloaded unless it is already there.

    Args:
        downloads: the folder of the user's cache to keep it in; made if needed.
        index_url: the index to ask instead of the configured ones.
        offline: never use the network.
        wait: called with the seconds to wait between two attempts.

    Returns:
        downloads/<pin.sdist_name>, whose size and SHA-256 are the pin's.

    Raises:
        ForkError: offline and not there; no index has it; an index has another file of its name; network or
            disk failed. A download broken off leaves <name>.part, from which the next call goes on.
    """
    _check_name(pin)
    final = downloads / pin.sdist_name
    with _disk(final):
        found = _measure(final, pin)
    if found == _expected(pin):
        return final
    if offline:
        raise ForkError(
            f"{final} is not there" if found is None else f"{final} is damaged",
            found=found or "no file, and no download while offline",
            expected=_expected(pin),
            fix=f"kunlunfork cache import FILE; or once online: kunlunfork apply --vllm {pin.version}",
        )
    with _disk(downloads):
        downloads.mkdir(parents=True, exist_ok=True)
    with _alone(final.with_name(final.name + ".lock"), pin, progress), _disk(final):
        found = _measure(final, pin)  # another process may have finished it meanwhile
        if found == _expected(pin):
            return final
        if found is not None:
            progress.warn(f"{final} was damaged and is downloaded again: {found}, expected {_expected(pin)}")
            final.unlink()
        part = final.with_name(final.name + ".part")
        if _measure(part, pin) != _expected(pin):
            _from_indexes(pin, part, index.settings(index_url), progress, wait)
        _keep(part, final)
    return final


def _check_name(pin: Pin) -> None:
    from packaging.utils import InvalidSdistFilename, parse_sdist_filename

    try:
        version = parse_sdist_filename(pin.sdist_name)[1]
        valid = "/" not in pin.sdist_name and str(version) == pin.version
    except InvalidSdistFilename:
        valid = False
    if not valid:
        raise ForkError(
            f"the pin of {pin.version} names no sdist of it",
            found=pin.sdist_name,
            expected=f"NAME-{pin.version}.tar.gz",
            fix="restore its pin.toml from git",
        )


def _expected(pin: Pin) -> str:
    return _describe(pin.sdist_sha256, pin.sdist_size)


def _describe(digest: str, size: int) -> str:
    return f"sha256 {digest}, {size} bytes"


def _measure(path: Path, pin: Pin) -> str | None:
    """What the file on the disk is, to compare with `_expected`; None where there is nothing.

    The hash is taken only where the size is the pin's.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != pin.sdist_size:
                return f"{size} bytes"
            digest = sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except FileNotFoundError:
        return None
    return _describe(digest.hexdigest(), size)


def _keep(part: Path, final: Path) -> None:
    """Give the finished file its name, on the disk for good."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Failures of the disk become errors about `path`; those of the network are dealt with further in."""
    try:
        yield
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ForkError(
            f"{e.filename or path} cannot be {'written' if full else 'read or written'}",
            found=e.strerror or str(e),
            fix="make room, then try again: it goes on from what was downloaded" if full else None,
        ) from e


@contextmanager
def _alone(lock_file: Path, pin: Pin, progress: Progress) -> Iterator[None]:
    """Hold the lock of this download; other processes wait and then find the finished file."""
    from filelock import FileLock, Timeout

    lock = FileLock(str(lock_file))
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"waiting for another process that downloads {pin.sdist_name}")
            lock.acquire()
    except (OSError, NotImplementedError) as e:
        raise ForkError(
            f"{lock_file} cannot be locked",
            found=(e.strerror if isinstance(e, OSError) else None) or str(e),
            expected="a folder on a file system with locks, that you may write to",
        ) from e
    try:
        yield
    finally:
        lock.release()


def _from_indexes(
    pin: Pin, part: Path, settings: index.Settings, progress: Progress, wait: Callable[[float], None]
) -> None:
    """Fill `part` from the first index that has the file. It may be any of them: the hash is pinned."""
    lacking = []
    for url in settings.urls:
        where = index.shown(url)
        session, bare = index.session(settings, url)
        server = _Server(bare, session, settings.timeout, _Patience(where, progress, wait))
        with session:
            try:
                package = _find(server, pin)
                if package.is_yanked:
                    reason = index.scrub(package.yanked_reason or "no reason given")
                    progress.warn(f"{where}: {pin.sdist_name} was withdrawn by its authors ({reason})")
                _fetch(server, package.url, part, pin, progress)
                return
            except _Lacking as e:
                lacking.append(f"{where} {e}")
    raise ForkError(
        f"{pin.sdist_name} is on no index of {settings.origin}",
        found="; ".join(lacking),
        expected=_expected(pin),
        fix=f"name an index that has it: --index-url URL; {index.CLOSED_NETWORK}",
    )


def packages(
    project: str, *, index_url: str | None, progress: Progress, wait: Callable[[float], None] = time.sleep
) -> tuple[DistributionPackage, ...]:
    """Every file of a project on the first configured index that knows it; () where none does.

    Raises:
        ForkError: the network or an index failed.
    """
    settings = index.settings(index_url)
    for url in settings.urls:
        session, bare = index.session(settings, url)
        server = _Server(bare, session, settings.timeout, _Patience(index.shown(url), progress, wait))
        with session:
            try:
                return _listed(server, project)
            except _Lacking:
                continue
    return ()


def _listed(server: _Server, project: str) -> tuple[DistributionPackage, ...]:
    from pypi_simple import NoSuchProjectError, PyPISimple

    where = index.shown(server.url)
    client = PyPISimple(server.url, session=server.session)
    while True:
        try:
            with _network(f"{where} gave no usable page of {project}"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the parsers' remarks on odd pages
                page = client.get_project_page(project, timeout=server.timeout)
            break
        except NoSuchProjectError:
            raise _Lacking(f"knows no project {project}") from None
        except _Broken as e:
            server.patience.failed(e)
    server.patience.forget()
    return tuple(page.packages)


def _find(server: _Server, pin: Pin) -> DistributionPackage:
    """The index's entry of the pin's sdist; refused where all of them announce another hash or size."""
    from packaging.utils import parse_sdist_filename

    found = _listed(server, parse_sdist_filename(pin.sdist_name)[0])
    where = index.shown(server.url)
    entries = [p for p in found if p.filename == pin.sdist_name]
    if not entries:
        others = sum(p.version == pin.version for p in found)
        raise _Lacking(f"has {others} other files of {pin.version}" if others else f"has no {pin.version}")
    announced = []
    for entry in entries:
        digest = entry.digests.get("sha256", pin.sdist_sha256).lower()
        size = pin.sdist_size if entry.size is None else entry.size
        if (digest, size) == (pin.sdist_sha256, pin.sdist_size):
            return entry
        announced.append(_describe(digest, size))
    raise ForkError(
        f"{where} announces another {pin.sdist_name} than the pinned one",
        found=index.scrub("; ".join(announced)),
        expected=_expected(pin),
        fix=_OTHER_INDEX,
    )


@contextmanager
def _network(what: str) -> Iterator[None]:
    """Failures of the network become `_Broken` where another attempt may help, else `ForkError(what)`."""
    import requests
    import urllib3
    from bs4.builder import ParserRejectedMarkup
    from pypi_simple import UnsupportedRepoVersionError

    try:
        yield
    except requests.HTTPError as e:
        if e.response is None:
            raise
        _refuse_status(e.response, what)
    # Bare OSError: a certificate file that is missing. ValueError and the last two: a page that is none.
    except (
        OSError,
        ValueError,
        urllib3.exceptions.HTTPError,
        ParserRejectedMarkup,
        UnsupportedRepoVersionError,
    ) as e:
        trouble = index.explain(e)
        if trouble.transient:
            raise _Broken(trouble.cause, trouble.fix) from None
        raise ForkError(what, found=trouble.cause, fix=trouble.fix) from None


def _refuse_status(response: requests.Response, what: str) -> NoReturn:
    status = index.scrub(f"HTTP status {response.status_code} {response.reason or ''}".strip())
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        raise _Broken(status) from None
    fix = f"name another index: --index-url URL; {index.CLOSED_NETWORK}"
    if response.status_code in (401, 403, 407):
        fix = f"check the user name and password of the index and of the proxy; or {fix}"
    raise ForkError(what, found=status, fix=fix) from None


def _fetch(server: _Server, url: str, part: Path, pin: Pin, progress: Progress) -> None:
    """Bring `part` to the pinned bytes; one put together from several connections gets a second chance."""
    with progress.task(f"downloading {pin.sdist_name}", pin.sdist_size) as update:
        for last in (False, True):
            resumed = _fill(server, url, part, pin, update)
            found = _measure(part, pin)
            if found == _expected(pin):
                return
            part.unlink()
            if last or not resumed:
                raise _wrong_file(url, found, pin)
            progress.warn(f"{part} had wrong bytes after it was resumed and is downloaded from the beginning")


def _wrong_file(url: str, found: str | None, pin: Pin) -> ForkError:
    what = f"{index.shown(url)} is not the pinned {pin.sdist_name}"
    return ForkError(what, found=found, expected=_expected(pin), fix=_OTHER_INDEX)


def _fill(server: _Server, url: str, part: Path, pin: Pin, update: Callable[[int], None]) -> bool:
    """Download behind what is in `part` up to the pinned size; True if that took more than one connection."""
    size = pin.sdist_size
    with part.open("ab") as file:
        offset = file.tell()
        best, ranges, resumed = offset, True, offset > 0
        while offset < size:
            offset = offset if ranges else 0
            update(offset)
            try:
                with _ask(server, url, offset) as response:
                    start = _start(response, offset, url, pin)
                    if start is None:  # the server cannot do ranges: one request for all of it
                        ranges = False
                        continue
                    if start == 0:
                        offset, resumed = 0, False
                    if file.tell() != offset:
                        file.truncate(offset)
                    for chunk in _chunks(response, url):
                        if offset + len(chunk) > size:
                            part.unlink()
                            raise _wrong_file(url, f"more than {size} bytes", pin)
                        file.write(chunk)
                        file.flush()  # a killed process loses no more than a chunk
                        offset += len(chunk)
                        update(offset)
                        if offset > best + _WORTHWHILE:
                            best = offset
                            server.patience.forget()
                if offset < size:
                    raise _Broken(f"the connection ended after {offset} of {size} bytes")
            except _Broken as e:
                if offset < size:
                    server.patience.failed(e)
                    resumed = True
    return resumed


def _ask(server: _Server, url: str, offset: int) -> requests.Response:
    # The bytes as they lie on the server: compressed for the way they would have other offsets.
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with _network(f"{index.shown(url)} cannot be downloaded"):
        return server.session.get(url, headers=headers, stream=True, timeout=server.timeout)


def _start(response: requests.Response, offset: int, url: str, pin: Pin) -> int | None:
    """The offset at which the body begins; None where a range was asked for and something else came."""
    status, size = response.status_code, str(pin.sdist_size)
    if status == 200:
        length = response.headers.get("Content-Length", size)
        if length != size:
            raise _wrong_file(url, index.scrub(f"{length} bytes"), pin)
        return 0
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match and match[2] not in ("*", size):
            raise _wrong_file(url, f"{match[2]} bytes", pin)
        if match and match[1] == str(offset):
            return offset
    if offset and status in (206, 416):
        return None
    if status in (404, 410):
        raise _Lacking(f"lists {index.shown(url)}, which is gone (HTTP status {status})")
    _refuse_status(response, f"{index.shown(url)} cannot be downloaded")


def _chunks(response: requests.Response, url: str) -> Iterator[bytes]:
    stream = response.raw.stream(_CHUNK, decode_content=False)
    while True:
        with _network(f"{index.shown(url)} cannot be downloaded"):
            chunk = next(stream, None)
        if chunk is None:
            return
        yield chunk
