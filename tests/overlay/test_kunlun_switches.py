"""The rules of the KUNLUN_* variables (DESIGN.md, "Switches")."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

ON_OFF = (
    "KUNLUN_HOSTVEC",
    "KUNLUN_HOSTVEC_POSTUPDATE",
    "KUNLUN_POSTUPD3",
    "KUNLUN_GUMBEL_GREEDY",
    "KUNLUN_DFLASH_VEC",
    "KUNLUN_REJ_XPU",
)


def problems(kunlun: SimpleNamespace, **environ: str) -> tuple[str, ...]:
    with pytest.raises(kunlun.switches.SwitchError) as caught:
        kunlun.switches.read(environ)
    return caught.value.problems


def test_an_empty_environment_gives_the_defaults(kunlun):
    got = kunlun.switches.read({"PATH": "/bin"})
    assert all(got.on(name) for name in ON_OFF)
    assert got.kernels == "auto"
    assert got.upstream_fixes is False
    assert got.changed() == ()


@pytest.mark.parametrize("name", ON_OFF)
@pytest.mark.parametrize("text", ["0", "false", "off", "no", "FALSE", "Off", "nO"])
def test_off_words(kunlun, name, text):
    assert kunlun.switches.read({name: text}).on(name) is False


@pytest.mark.parametrize("name", ON_OFF)
@pytest.mark.parametrize("text", ["1", "true", "on", "yes", "TRUE", "oN", "Yes"])
def test_on_words(kunlun, name, text):
    assert kunlun.switches.read({name: text}).on(name) is True


@pytest.mark.parametrize("text", ["", " ", "2", "-1", "y", "enable", "1 ", "none", "０"])
@pytest.mark.parametrize("name", [*ON_OFF, "KUNLUN_UPSTREAM_FIXES"])
def test_any_other_word_is_refused_and_shown(kunlun, name, text):
    (problem,) = problems(kunlun, **{name: text})
    assert name in problem
    assert repr(text) in problem
    assert "0, 1, true, false, on, off, yes or no" in problem


@pytest.mark.parametrize("text", ["auto", "upstream", "torch", "fused", "vendor", "TORCH"])
def test_kernels(kunlun, text):
    assert kunlun.switches.read({"KUNLUN_KERNELS": text}).kernels == text.lower()


@pytest.mark.parametrize("text", ["", "triton", "1", "reference", "torch,fused"])
def test_other_kernels_are_refused(kunlun, text):
    (problem,) = problems(kunlun, KUNLUN_KERNELS=text)
    assert repr(text) in problem
    assert "auto, upstream, torch, fused, vendor" in problem


def test_upstream_fixes(kunlun):
    assert kunlun.switches.read({"KUNLUN_UPSTREAM_FIXES": "yes"}).upstream_fixes is True


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("KUNLUN_HOSTVECT", "KUNLUN_HOSTVEC"),
        ("KUNLUN_HOSTVE", "KUNLUN_HOSTVEC"),
        ("KUNLUN_HSOTVEC", "KUNLUN_HOSTVEC"),
        ("KUNLUN_HOST_VEC", "KUNLUN_HOSTVEC"),
        ("KUNLUN_hostvec", "KUNLUN_HOSTVEC"),
        ("KUNLUN_HOSTVEC_POSTUPDTAE", "KUNLUN_HOSTVEC_POSTUPDATE"),
        ("KUNLUN_POSTUPD2", "KUNLUN_POSTUPD3"),
        ("KUNLUN_POSTUP3", "KUNLUN_POSTUPD3"),
        ("KUNLUN_REJ_GPU", "KUNLUN_REJ_XPU"),
        ("KUNLUN_KERNEL", "KUNLUN_KERNELS"),
        ("KUNLUN_UPSTREAM_FIX", "KUNLUN_UPSTREAM_FIXES"),
    ],
)
def test_a_name_within_two_edits_is_a_typing_error(kunlun, typo, meant):
    (problem,) = problems(kunlun, **{typo: "1"})
    assert typo in problem
    assert meant in problem


@pytest.mark.parametrize(
    "name",
    [
        "KUNLUN_HOSTVEC_GATHER",
        "KUNLUN_HOSTVEC_SLOT",
        "KUNLUN_HOSTVEC_POSSEQ",
        "KUNLUN_HOSTVEC_COMBINE",
        "KUNLUN_DSV4_FUSED",
        "KUNLUN_HOSTVECXXX",
        "KUNLUN_",
        "KUNLUNFORK_INDEX_URL",
        "MY_KUNLUN_HOSTVECT",
    ],
)
def test_the_names_of_others_are_ignored(kunlun, name):
    assert kunlun.switches.read({name: "whatever"}) == kunlun.switches.Switches()


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("abc", "", 3),
        ("abc", "acb", 1),
        ("ca", "abc", 2),
        ("abcd", "badc", 2),
        ("kitten", "sitting", 3),
    ],
)
def test_distance(kunlun, a, b, edits):
    assert kunlun.switches.distance(a, b) == edits
    assert kunlun.switches.distance(b, a) == edits


def test_a_switch_goes_off_with_the_one_it_needs(kunlun):
    got = kunlun.switches.read({"KUNLUN_HOSTVEC": "0"})
    assert (got.hostvec, got.hostvec_postupdate, got.postupd3) == (False, False, False)
    assert (got.gumbel_greedy, got.dflash_vec, got.rej_xpu) == (True, True, True)
    got = kunlun.switches.read({"KUNLUN_HOSTVEC_POSTUPDATE": "0"})
    assert (got.hostvec, got.hostvec_postupdate, got.postupd3) == (True, False, False)
    got = kunlun.switches.read({"KUNLUN_POSTUPD3": "0"})
    assert (got.hostvec, got.hostvec_postupdate, got.postupd3) == (True, True, False)


@pytest.mark.parametrize(
    ("environ", "switch", "needed"),
    [
        ({"KUNLUN_HOSTVEC": "0", "KUNLUN_HOSTVEC_POSTUPDATE": "1"}, "KUNLUN_HOSTVEC_POSTUPDATE", "KUNLUN_HOSTVEC"),
        ({"KUNLUN_HOSTVEC_POSTUPDATE": "0", "KUNLUN_POSTUPD3": "1"}, "KUNLUN_POSTUPD3", "KUNLUN_HOSTVEC_POSTUPDATE"),
        ({"KUNLUN_HOSTVEC": "0", "KUNLUN_POSTUPD3": "1"}, "KUNLUN_POSTUPD3", "KUNLUN_HOSTVEC_POSTUPDATE"),
    ],
)
def test_on_without_the_one_it_needs_is_refused(kunlun, environ, switch, needed):
    (problem,) = problems(kunlun, **environ)
    assert problem.startswith(f"{switch} is on but needs {needed},")


def test_explicitly_off_without_the_one_it_needs_is_fine(kunlun):
    got = kunlun.switches.read({"KUNLUN_HOSTVEC": "0", "KUNLUN_POSTUPD3": "0"})
    assert got.postupd3 is False


def test_all_problems_are_told_at_once(kunlun):
    found = problems(kunlun, KUNLUN_REJ_XPUU="1", KUNLUN_GUMBEL_GREEDY="maybe", KUNLUN_KERNELS="cuda")
    assert [p.split("=")[0].split(" ")[0] for p in found] == [
        "KUNLUN_REJ_XPUU",
        "KUNLUN_GUMBEL_GREEDY",
        "KUNLUN_KERNELS",
    ]


def test_what_is_not_at_its_default_is_listed(kunlun):
    got = kunlun.switches.read({"KUNLUN_REJ_XPU": "off", "KUNLUN_DFLASH_VEC": "on", "KUNLUN_KERNELS": "torch"})
    assert got.changed() == ("KUNLUN_REJ_XPU=off", "KUNLUN_KERNELS=torch")


def test_the_table_names_every_field_and_parses_its_own_defaults(kunlun):
    rows = kunlun.switches.table()
    assert [row.name for row in rows] == [*ON_OFF, "KUNLUN_KERNELS", "KUNLUN_UPSTREAM_FIXES"]
    assert {row.field for row in rows} == set(kunlun.switches.Switches.__dataclass_fields__)
    assert kunlun.switches.read({row.name: row.default for row in rows}) == kunlun.switches.Switches()
    assert all(row.sites and row.off for row in rows)


def test_the_file_loads_alone_and_imports_nothing_heavy(kunlun):
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('lonely', {str(kunlun.gpu / 'kunlun' / 'switches.py')!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "assert module.read({'KUNLUN_HOSTVEC': 'no'}).hostvec is False and len(module.table()) == 8\n"
        "assert not {'torch', 'vllm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


def test_an_unknown_switch_is_a_bug_of_the_caller(kunlun):
    with pytest.raises(KeyError):
        kunlun.switches.Switches().on("KUNLUN_HOSTVEC_GATHER")
