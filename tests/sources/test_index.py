from __future__ import annotations

import importlib.util
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import pypi_simple
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from kunlunfork.errors import ForkError
from kunlunfork.sources import index

SECRET = "s3cr3t"


def settings(explicit: str | None = None, environ: Mapping[str, str] | None = None, **pip: str) -> index.Settings:
    options = {name.replace("_", "-"): value for name, value in pip.items()}
    return index.settings(explicit, environ=environ or {}, pip_configuration=lambda: options)


def test_default_is_what_pypi_simple_knows() -> None:
    found = settings()
    assert found.urls == (pypi_simple.PYPI_SIMPLE_ENDPOINT,)
    assert found.origin == "the default index"
    assert (found.cert, found.proxy, found.trusted_hosts, found.timeout) == (None, None, frozenset(), 30)


def test_order_of_precedence() -> None:
    pip = {"index_url": "https://file.invalid/simple", "extra_index_url": "https://more.invalid/simple"}
    environ = {index.ENV: "https://ours.invalid/simple", "PIP_INDEX_URL": "https://env.invalid/simple"}
    named = settings("https://named.invalid/simple", environ, **pip)
    assert (named.urls, named.origin) == (("https://named.invalid/simple",), "--index-url")
    ours = settings(None, environ, **pip)
    assert (ours.urls, ours.origin) == (("https://ours.invalid/simple",), index.ENV)
    del environ[index.ENV]
    env = settings(None, environ, **pip)
    assert env.urls == ("https://env.invalid/simple", "https://more.invalid/simple")
    assert env.origin == "pip's configuration"
    assert settings(None, {}, **pip).urls == ("https://file.invalid/simple", "https://more.invalid/simple")


def test_empty_values_name_nothing() -> None:
    environ = {index.ENV: " ", "PIP_INDEX_URL": "", "PIP_CERT": ""}
    found = settings("", environ, index_url="https://file.invalid/simple", cert="ca.pem")
    assert found.urls == ("https://file.invalid/simple",)
    assert found.cert == "ca.pem"


def test_file_indexes_are_not_asked() -> None:
    found = settings(extra_index_url="file:///opt/simple\nhttps://a.invalid/ FILE:///x /opt/y https://a.invalid/")
    assert found.urls == (pypi_simple.PYPI_SIMPLE_ENDPOINT, "https://a.invalid/")
    assert settings(index_url="file:///opt/simple", extra_index_url="https://a.invalid/").urls == (
        "https://a.invalid/",
    )


def test_only_file_indexes_never_mean_the_default() -> None:
    with pytest.raises(ForkError) as caught:
        settings(index_url="file:///opt/simple")
    assert caught.value.found == "file:///opt/simple"
    assert "cache import" in (caught.value.fix or "")


@pytest.mark.parametrize("value", ["1", "true", "Yes", "on"])
def test_no_index(value: str) -> None:
    with pytest.raises(ForkError, match="no index"):
        settings(None, {"PIP_NO_INDEX": value}, index_url="https://a.invalid/")
    assert settings("https://a.invalid/", {"PIP_NO_INDEX": value}).urls == ("https://a.invalid/",)
    assert settings(None, {"PIP_NO_INDEX": "0"}).urls


@pytest.mark.parametrize(
    "url",
    [
        "file:///opt/simple",
        "ftp://a.invalid/",
        "a.invalid/simple",
        "https://",
        f"https://user:{SECRET}@",
        f"https://user:{SECRET}@[::1/simple",
        f"https://user:{SECRET}/x@a.invalid/simple",
        f"https://user:{SECRET}?x@a.invalid/simple",
        f"user:{SECRET}@a.invalid/simple",
        "https://a.invalid:99999/",
    ],
)
def test_url_that_cannot_be_asked(url: str) -> None:
    for explicit, environ in ((url, {}), (None, {index.ENV: url})):
        with pytest.raises(ForkError) as caught:
            settings(explicit, environ)
        assert caught.value.found
        assert SECRET not in str(caught.value.as_json())


def test_network_settings_of_pip_hold_for_every_index() -> None:
    environ = {"PIP_CERT": "env.pem", "PIP_DEFAULT_TIMEOUT": "90"}
    found = settings(
        "https://a.invalid/",
        environ,
        cert="file.pem",
        client_cert="me.pem",
        proxy="http://p.invalid:3128",
        trusted_host="A.invalid b.invalid:8443",
        timeout="60",
    )
    assert (found.cert, found.client_cert) == ("env.pem", "me.pem")
    assert found.proxy == "http://p.invalid:3128"
    assert found.trusted_hosts == {"a.invalid", "b.invalid:8443"}
    assert found.timeout == 60
    assert settings(None, environ).timeout == 90


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_timeout_that_is_none(value: str) -> None:
    with pytest.raises(ForkError, match="timeout") as caught:
        settings(timeout=value)
    assert caught.value.found == value


def test_settings_do_not_show_credentials() -> None:
    url, proxy = f"https://user:{SECRET}@a.invalid/", f"http://user:{SECRET}@p.invalid"
    assert SECRET not in repr(settings(url, proxy=proxy))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.invalid/simple/", "https://a.invalid/simple/"),
        (f"https://user:{SECRET}@a.invalid:8080/simple/", "https://***@a.invalid:8080/simple/"),
        (f"https://{SECRET}@a.invalid/", "https://***@a.invalid/"),
        (f"https://user:{SECRET}/@x/?y@a.invalid/", "https://***@a.invalid/"),
        (f"https://a.invalid/x?token={SECRET}", "https://a.invalid/x"),
        (f"https://a.invalid/x#{SECRET}", "https://a.invalid/x"),
        (f"user:{SECRET}@a.invalid", "***@a.invalid"),
        ("https://a.invalid/\x1b[31m", "https://a.invalid/\\x1b[31m"),
        ("file:///opt/x", "file:///opt/x"),
    ],
)
def test_shown(url: str, shown: str) -> None:
    assert index.shown(url) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"cannot reach https://user:{SECRET}@a.invalid/simple now",
        f"cannot reach 'https://user:x/{SECRET}@a.invalid/simple'",
        f"Max retries exceeded with url: /files/x?token={SECRET}",
        f"https://a.invalid/x?token={SECRET}",
    ],
)
def test_scrub(text: str) -> None:
    scrubbed = index.scrub(text)
    assert SECRET not in scrubbed
    assert scrubbed.split()[0].startswith(text.split()[0][:6])


def test_scrub_leaves_the_rest() -> None:
    assert (
        index.scrub("status 404 at https://a.invalid/x, user@host?") == "status 404 at https://a.invalid/x, user@host?"
    )


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this interpreter has no pip")


@needs_pip
def test_configuration_files_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Relative, as is PIP_CONFIG_FILE here; the modules are bait, of pip's and the library's name.
    monkeypatch.chdir(tmp_path)
    for name in ("pip", "runpy", "configparser"):
        Path(f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    Path("pip.conf").write_text(
        f"[global]\nquiet = 2\nindex-url = https://user:{SECRET}%40@a.invalid/simple\n"
        "extra-index-url =\n    https://b.invalid/'x'\n    https://c.invalid/\n"
        "trusted-host = global.invalid\ntimeout = 7\n"
        "[install]\ntrusted_host = install.invalid\n"
        "[list]\nindex-url = https://list.invalid/\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "pip.conf")
    monkeypatch.setenv("PIP_QUIET", "1")
    found = index.settings()
    assert found.urls == (
        f"https://user:{SECRET}%40@a.invalid/simple",
        "https://b.invalid/'x'",
        "https://c.invalid/",
    )
    assert found.trusted_hosts == {"install.invalid"}
    assert found.timeout == 7
    monkeypatch.setenv("PIP_INDEX_URL", "https://env.invalid/")
    assert index.settings().urls[0] == "https://env.invalid/"


@needs_pip
def test_broken_configuration_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "pip.conf"
    broken.write_text(f"index-url = https://user:{SECRET}@a.invalid/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(broken))
    with pytest.raises(ForkError, match="pip's configuration cannot be read") as caught:
        index.settings()
    assert str(broken) in (caught.value.found or "")
    assert SECRET not in str(caught.value.as_json())


def test_interpreter_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(index.subprocess, "run", lambda *args, **kwargs: pytest.fail("pip was started"))
    assert index.read_pip_configuration() == {}


class Sent(Exception):
    """What an adapter would have sent."""

    def __init__(self, verify: object, cert: object, proxies: object) -> None:
        self.verify, self.cert, self.proxies = verify, cert, proxies


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(
        self: HTTPAdapter,
        request: object,
        stream: object,
        timeout: object,
        verify: object,
        cert: object,
        proxies: object,
    ) -> None:
        raise Sent(verify, cert, proxies)

    monkeypatch.setattr(HTTPAdapter, "send", send)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://env.invalid")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "env.pem")


def sent(made: index.Settings, url: str) -> Sent:
    session, _ = index.session(made, "https://a.invalid/")
    with session, pytest.raises(Sent) as caught:
        session.get(url)
    return caught.value


@pytest.mark.usefixtures("caught")
def test_environment_holds_without_settings_of_pip() -> None:
    found = sent(settings(), "https://a.invalid/x")
    assert (found.verify, found.cert) == ("env.pem", None)
    assert isinstance(found.proxies, Mapping) and found.proxies["https"] == "http://env.invalid"


@pytest.mark.usefixtures("caught")
def test_settings_of_pip_beat_the_environment() -> None:
    made = settings(cert="ca.pem", client_cert="me.pem", proxy="http://p.invalid")
    found = sent(made, "https://a.invalid/x")
    assert (found.verify, found.cert) == ("ca.pem", "me.pem")
    assert found.proxies == {"http": "http://p.invalid", "https": "http://p.invalid"}


@pytest.mark.usefixtures("caught")
@pytest.mark.parametrize(
    ("url", "verify"),
    [
        ("https://a.invalid/x", False),
        ("https://A.invalid:8443/x", False),
        ("https://b.invalid:8443/x", False),
        ("https://b.invalid/x", "ca.pem"),
        ("https://a.invalid.evil.invalid/x", "ca.pem"),
        ("https://a.invalid:x@evil.invalid/x", "ca.pem"),
    ],
)
def test_trusted_hosts(url: str, verify: object) -> None:
    assert sent(settings(cert="ca.pem", trusted_host="a.invalid b.invalid:8443"), url).verify == verify


def test_missing_certificate_file(tmp_path: Path) -> None:
    session, _ = index.session(settings(cert=str(tmp_path / "none.pem")), "https://127.0.0.1:9/")
    with session, pytest.raises(OSError) as caught:
        session.get("https://127.0.0.1:9/")
    trouble = index.explain(caught.value)
    assert str(tmp_path / "none.pem") in trouble.cause
    assert not trouble.transient


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("https://a.invalid/simple", "https://a.invalid/simple"),
        (f"https://user:{SECRET}@a.invalid:8080/simple/", "https://a.invalid:8080/simple/"),
        (f"https://{SECRET}@[::1]:8080/", "https://[::1]:8080/"),
    ],
)
def test_session_takes_the_credentials(url: str, bare: str) -> None:
    made, found = index.session(settings(url), url)
    with made:
        assert found == bare
        assert (made.auth is not None) == ("@" in url)


def wrapped(error: BaseException) -> requests.ConnectionError:
    """`error` as requests gives it on."""
    pool = urllib3.HTTPSConnectionPool("a.invalid")
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(pool, f"/x?token={SECRET}", error))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "cause", "transient"),
    [
        (wrapped(ConnectionResetError(104, "Connection reset by peer")), "Connection reset by peer", True),
        (
            wrapped(urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "certificate verify failed"))),
            "certificate was refused",
            False,
        ),
        (wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), "Name or service", False),
        (wrapped(socket.gaierror(socket.EAI_AGAIN, "Temporary failure")), "Temporary failure", True),
        (requests.ReadTimeout("Read timed out."), "Read timed out.", True),
        (urllib3.exceptions.ProtocolError("Connection broken", TimeoutError()), "TimeoutError", True),
        (requests.TooManyRedirects("Exceeded 30 redirects."), "Exceeded 30 redirects.", False),
        (requests.exceptions.InvalidURL(f"bad https://u:{SECRET}@x"), "bad https://***@x", False),
        (ValueError(), "ValueError", False),
    ],
)
def test_explain(error: BaseException, cause: str, transient: bool) -> None:
    trouble = index.explain(error)
    assert cause in trouble.cause
    assert trouble.transient == transient
    assert trouble.fix
    assert SECRET not in trouble.cause


def test_explain_ends_on_a_circle() -> None:
    error = ValueError("outer")
    error.__cause__ = ValueError("inner")
    error.__cause__.__cause__ = error
    assert index.explain(error).cause == "inner"
