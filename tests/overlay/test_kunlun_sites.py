"""The table of sites is complete and speaks the language of the switches."""

from __future__ import annotations

import inspect


def test_every_kernel_of_the_runner_is_there_once(kunlun):
    ids = [i for site in kunlun.sites.SITES for i in site.ids]
    assert sorted(ids) == list(range(45))


def test_no_launcher_and_no_implementation_is_there_twice(kunlun):
    sites = kunlun.sites.SITES
    assert len(sites) == 39
    assert len({str(s) for s in sites}) == len(sites)
    assert len({(s.impl, s.name) for s in sites}) == len(sites)
    # One module of implementations for one upstream module.
    assert len({s.impl for s in sites}) == len({s.module for s in sites}) == len({(s.impl, s.module) for s in sites})


def test_signatures_are_written_as_they_are_compared(kunlun):
    for site in kunlun.sites.SITES:
        namespace: dict[str, object] = {}
        exec(f"inf = float('inf')\ndef f{site.signature}: pass", namespace)
        fn = namespace["f"]
        assert kunlun.dispatch.signature(fn) == site.signature
        assert ("." in site.qualname) == (next(iter(inspect.signature(fn).parameters)) == "self")


def test_switches_are_ours_and_every_site_of_a_switch_is_listed(kunlun):
    by_switch: dict[str | None, set[int]] = {}
    for site in kunlun.sites.SITES:
        by_switch.setdefault(site.switch, set()).update(site.ids)
        for switch, _ in site.variants:
            assert switch in {row.name for row in kunlun.switches.table()}
    assert by_switch.pop(None) == {*range(12, 27), *range(38, 45)}
    assert by_switch == {
        "KUNLUN_HOSTVEC": {*range(9), 10, 11},
        "KUNLUN_HOSTVEC_POSTUPDATE": {9},
        "KUNLUN_DFLASH_VEC": {27, 28, 29, 30},
        "KUNLUN_REJ_XPU": {*range(31, 38)},
    }


def test_rebinders_touch_modules_that_have_sites(kunlun):
    modules = {site.module for site in kunlun.sites.SITES}
    for touched in kunlun.sites.REBINDERS.values():
        assert set(touched) <= modules
