"""Entry points read as text, and who owns which site."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import REPO, VERSION

from kunlunfork.doctor import plugins

SITES = REPO / "overlay" / VERSION / plugins.SITES


def distribution(folder: Path, name: str, text: str | bytes, version: str = "1.0") -> Path:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return info


KUNLUN = """
[console_scripts]
x = a:b
[vllm.platform_plugins]
kunlun = vllm_kunlun:register
[vllm.general_plugins]
kunlun_model = vllm_kunlun:register_model
"""


def test_the_kunlun_plugin(tmp_path: Path) -> None:
    distribution(tmp_path, "vllm-kunlun", KUNLUN, "0.25.1")
    distribution(tmp_path, "vllm", "[vllm.general_plugins]\nlora = vllm.plugins.lora:register\n")
    found, unread = plugins.scan([tmp_path])
    assert unread == ()
    assert {(p.group, p.name, p.kunlun) for p in found} == {
        (plugins.PLATFORM, "kunlun", True),
        (plugins.GENERAL, "kunlun_model", True),
        (plugins.GENERAL, "lora", False),
    }
    line = plugins.check_plugins(found, unread)
    assert (line.state, line.found) == ("note", "vllm-kunlun")
    assert line.details[0] == "vllm-kunlun 0.25.1: vllm.general_plugins: kunlun_model"
    assert not any(plugins.replaces_v2(p) for p in found)
    (tmp_path / "vllm_kunlun" / "v1" / "worker" / "gpu").mkdir(parents=True)
    assert any(plugins.replaces_v2(p) for p in found)


@pytest.mark.parametrize("text", ["no section = 1", "[a\nb", "[vllm.general_plugins\n", b"[x]\n\xff\xfe = 1", b"\0\0"])
def test_what_cannot_be_understood_is_said(tmp_path: Path, text: str | bytes) -> None:
    distribution(tmp_path, "odd", text)
    found, unread = plugins.scan([tmp_path])
    assert found == ()
    assert len(unread) == 1
    assert plugins.check_plugins(found, unread).state == "note"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "[vllm.general_plugins]\n",
        "[DEFAULT]\nx = 1\n",
        "[vllm.general_plugins]\n%(x)s = a.b:c %(y)s\n",
    ],
)
def test_odd_files_are_no_error(tmp_path: Path, text: str) -> None:
    distribution(tmp_path, "odd", text)
    assert plugins.scan([tmp_path])[1] == ()


def test_none_but_its_own(tmp_path: Path) -> None:
    assert plugins.check_plugins(*plugins.scan([tmp_path])).found == "none but vLLM's own"


def test_the_declared_sites_are_those_of_the_overlay() -> None:
    names: dict[str, object] = {"__name__": "sites"}
    exec(compile(SITES.read_text(), "sites.py", "exec", dont_inherit=True), _with_module(names))
    assert plugins.sites(SITES) == tuple((s.module, s.qualname) for s in names["SITES"])


def _with_module(names: dict[str, object]) -> dict[str, object]:
    import sys
    import types

    sys.modules.setdefault("sites", types.ModuleType("sites"))
    return names


def test_every_site_of_the_plugin_but_kernel_objects_is_one_of_the_forks() -> None:
    ours = set(plugins.sites(SITES))
    theirs = {(f"vllm.{m}", n) for m, names in plugins._REPLACED.items() for n in names}
    assert theirs <= ours
    assert len(theirs) == 25


@pytest.mark.parametrize("file", ["missing.py", "other.py"])
def test_no_declaration(tmp_path: Path, file: str) -> None:
    (tmp_path / "other.py").write_text("SITES = make()\n")
    assert plugins.sites(tmp_path / file) == ()
    assert plugins.check_sites({}, forked=True, plugin=True) is None


@pytest.mark.parametrize(
    ("forked", "plugin", "owner", "text"),
    [
        (True, True, "fork", "39 of fork; vllm_kunlun replaces some of them too, and the fork takes precedence"),
        (True, False, "fork", "39 of fork"),
        (False, True, "vllm_kunlun", "25 of vllm_kunlun, 14 of upstream"),
        (False, False, "upstream", "39 of upstream"),
    ],
)
def test_who_owns_what(forked: bool, plugin: bool, owner: str, text: str) -> None:
    owned = plugins.owners(plugins.sites(SITES), forked=forked, plugin=plugin)
    assert owned["vllm.v1.worker.gpu.input_batch:post_update"] == owner
    if not forked:
        assert owned["vllm.v1.worker.gpu.spec_decode.dflash.speculator:prepare_dflash_inputs"] == "upstream"
    line = plugins.check_sites(owned, forked=forked, plugin=plugin)
    assert line is not None
    assert line.found.startswith(text)
