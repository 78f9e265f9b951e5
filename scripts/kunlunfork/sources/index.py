"""Which package index is asked, under whose network settings, and how its failures read.

The settings are pip's, so that a mirror, proxy or certificate that works for pip works here. Slow libraries
are imported where they are needed, never with this module.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from kunlunfork.errors import ForkError
from kunlunfork.paths import show

if TYPE_CHECKING:
    import requests

ENV = "KUNLUNFORK_INDEX_URL"
CLOSED_NETWORK = "in a closed network: kunlunfork cache import FILE"

# Seconds without an answer, and without a byte, where pip's configuration has no `timeout`.
TIMEOUT = 30.0

# pip reads [global], then the section of the command, then its environment; the last one wins.
_SECTIONS = ("global", "install", "download")
_OPTION = re.compile(r"(?P<section>:env:|[\w-]+)\.(?P<key>[\w-]+)=(?P<value>['\"].*)")
_TRUE = ("1", "true", "t", "yes", "y", "on")

# `python -m pip` would import from the current folder, which may be a tree that nobody has vouched for.
_RUN_PIP = """
import sys
del sys.path[0]
import runpy
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Settings:
    """The indexes to ask, in order, and how to reach them.

    `urls` may carry credentials: show them through `shown` only. `origin` says where the first one was named.
    `trusted_hosts` are `host` or `host:port`, whose certificates are not checked. `timeout` is in seconds.
    """

    urls: tuple[str, ...] = field(repr=False)
    origin: str
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)
    trusted_hosts: frozenset[str] = frozenset()
    timeout: float = TIMEOUT


@dataclass(frozen=True)
class Trouble:
    """A failure of the network: what happened, whether another attempt may help, and what would mend it."""

    cause: str
    transient: bool
    fix: str


def shown(url: str) -> str:
    """A URL for messages: no user name, password, query or fragment."""
    scheme = re.match(r"[A-Za-z][\w+.-]*://", url)
    start = scheme[0] if scheme else ""
    # A password may hold an unquoted '/', '?' or '#': everything up to the last '@' is taken for a secret.
    _, at, rest = url[len(start) :].rpartition("@")
    return _printable(start + ("***@" if at else "") + re.split(r"[?#]", rest, maxsplit=1)[0])


def scrub(text: str) -> str:
    """A message of another program or library without the credentials and queries of the URLs in it."""
    return _printable(re.sub(r"(/\S*)\?\S+", r"\1?***", re.sub(r"(?<=://)\S*@", "***@", text)))


def _printable(text: str) -> str:
    return show(text.encode("utf-8", "surrogateescape"))


def read_pip_configuration() -> dict[str, str]:
    """pip's own settings as `pip config list` of this interpreter gives them, keys without their section.

    Empty where this interpreter has no pip.

    Raises:
        ForkError: pip cannot read its configuration.
    """
    if not sys.executable or importlib.util.find_spec("pip") is None:
        return {}
    # A configured `quiet` would silence the list.
    plain = {"PIP_QUIET": "0", "PIP_VERBOSE": "0", "PIP_NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", _RUN_PIP, "config", "list"],
        env={**os.environ, **plain},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        complaint = " ".join(done.stderr.decode(errors="replace").split())
        raise ForkError(
            "pip's configuration cannot be read",
            found=scrub(complaint) or f"exit status {done.returncode}",
            fix=f"mend what `{sys.executable} -m pip config list` complains about",
        )
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.decode(errors="surrogateescape").splitlines():
        match = _OPTION.fullmatch(line)
        if match is None:
            continue
        try:
            value = ast.literal_eval(match["value"])
        except (SyntaxError, ValueError):
            continue  # a line of pip's that is no setting
        found.setdefault(match["section"], {})[match["key"]] = str(value)
    return {key: value for name in _SECTIONS for key, value in found.get(name, {}).items() if value}


def settings(
    explicit: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    pip_configuration: Callable[[], Mapping[str, str]] = read_pip_configuration,
) -> Settings:
    """The indexes to ask: `--index-url`, else `KUNLUNFORK_INDEX_URL`, else pip's, else pypi-simple's default.

    An index named to us is asked alone; pip's extra indexes follow pip's first one, `file:` ones are not
    asked. Proxy, certificates, trusted hosts and timeout are pip's in every case.

    Args:
        explicit: the value of `--index-url`.
        environ: the environment, `os.environ` by default.
        pip_configuration: reads pip's configuration files; starts a child process.

    Raises:
        ForkError: a URL that is none, an index that is no web server, or pip told to use no index.
    """
    environ = os.environ if environ is None else environ
    options = dict(pip_configuration())
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            options[name[4:].lower().replace("_", "-")] = value
    urls, origin = _urls(explicit, environ, options)
    for url in urls:
        _check(url, origin)
    return Settings(
        urls=urls,
        origin=origin,
        cert=options.get("cert"),
        client_cert=options.get("client-cert"),
        proxy=options.get("proxy"),
        trusted_hosts=frozenset(options.get("trusted-host", "").lower().split()),
        timeout=_seconds(options.get("timeout") or options.get("default-timeout")),
    )


def _urls(explicit: str | None, environ: Mapping[str, str], options: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The indexes in order, and where the first one was named."""
    for value, origin in ((explicit, "--index-url"), (environ.get(ENV), ENV)):
        if value and value.strip():
            return (value.strip(),), origin
    origin = "pip's configuration"
    if options.get("no-index", "").lower() in _TRUE:
        raise ForkError(
            "pip is told to use no index",
            found="no-index in pip's configuration",
            fix=f"name one: --index-url URL; {CLOSED_NETWORK}",
        )
    configured = [*options.get("index-url", "").split(), *options.get("extra-index-url", "").split()]
    urls = [url for url in dict.fromkeys(configured) if _scheme(url) in ("http", "https")]
    if not options.get("index-url"):
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        if not urls:
            origin = "the default index"
        urls.insert(0, PYPI_SIMPLE_ENDPOINT)
    if not urls:
        raise ForkError(
            "pip's configuration names no index that can be asked",
            found=", ".join(shown(url) for url in configured),
            expected="an http or https URL",
            fix=f"name one: --index-url URL; {CLOSED_NETWORK}",
        )
    return tuple(urls), origin


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _check(url: str, origin: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise ForkError(
            f"the index of {origin} cannot be asked",
            found=shown(url),
            expected="an http or https URL",
            fix=f"name another: --index-url URL; {CLOSED_NETWORK}",
        )


def _seconds(text: str | None) -> float:
    try:
        value = float(text or TIMEOUT)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ForkError("pip's timeout is not a time", found=str(text), expected="seconds")
    return value


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    """What credentials belong to: scheme, host and port."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").lower(), port


def session(settings: Settings, url: str) -> tuple[requests.Session, str]:
    """A session for the index at `url`, and the URL without its credentials, which the session holds.

    Credentials go to the index's own scheme, host and port only: files often lie on another server.
    """
    import requests
    from requests.adapters import HTTPAdapter
    from requests.auth import HTTPBasicAuth
    from urllib3.exceptions import InsecureRequestWarning

    class Adapter(HTTPAdapter):
        # Not settings of the session: redirects need them too, and *_PROXY and REQUESTS_CA_BUNDLE beat those.
        def send(
            self,
            request: requests.PreparedRequest,
            stream: bool = False,
            timeout: Any = None,
            verify: Any = True,
            cert: Any = None,
            proxies: Any = None,
        ) -> requests.Response:
            _, host, port = _origin(urlsplit(request.url or ""))
            verify = settings.cert or verify
            cert = settings.client_cert or cert
            if settings.proxy:
                proxies = {"http": settings.proxy, "https": settings.proxy}
            with warnings.catch_warnings():
                if settings.trusted_hosts.intersection((host, f"{host}:{port}")):
                    verify = False
                    warnings.simplefilter("ignore", InsecureRequestWarning)
                return super().send(request, stream, timeout, verify, cert, proxies)

    parts = urlsplit(url)
    made = requests.Session()
    made.mount("https://", Adapter())
    made.mount("http://", Adapter())
    made.headers["User-Agent"] = "kunlunfork"
    if parts.username is not None:
        basic = HTTPBasicAuth(unquote(parts.username).encode(), unquote(parts.password or "").encode())

        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            if _origin(urlsplit(request.url or "")) == _origin(parts):
                basic(request)
            return request

        made.auth = authorize
    return made, urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def explain(error: BaseException) -> Trouble:
    """What an exception of requests or urllib3 comes down to, in words without credentials."""
    import requests
    import urllib3

    chain = list(_chain(error))
    root = chain[-1]
    for known in chain:
        if isinstance(known, ssl.SSLCertVerificationError):
            return Trouble(
                f"the server's certificate was refused: {scrub(getattr(known, 'verify_message', str(known)))}",
                transient=False,
                fix="give the certificates of your network: PIP_CERT=FILE, or pip's `cert`",
            )
        if isinstance(known, socket.gaierror):
            return Trouble(
                f"the name of the host cannot be resolved: {known.strerror}",
                transient=known.errno == socket.EAI_AGAIN,
                fix=f"check the network and the name of the index; {CLOSED_NETWORK}",
            )
    passing = (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        urllib3.exceptions.ProtocolError,
        urllib3.exceptions.TimeoutError,
        urllib3.exceptions.SSLError,
        ConnectionError,
        TimeoutError,
    )
    text = root.strerror if isinstance(root, OSError) and root.strerror else str(root)
    return Trouble(
        scrub(" ".join(text.split())) or type(root).__name__,
        transient=isinstance(error, passing),
        fix=f"check the network, or name another index: --index-url URL; {CLOSED_NETWORK}",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors that it wraps; the libraries keep them in `reason`, `args` or as the cause."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        inner = [getattr(current, "reason", None), *current.args, current.__cause__]
        if isinstance(current.__context__, OSError) and not current.__suppress_context__:
            inner.append(current.__context__)  # urllib3 1 raises its own error while it handles the socket's
        current = next((e for e in inner if isinstance(e, BaseException)), None)
