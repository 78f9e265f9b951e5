# SPDX-License-Identifier: Apache-2.0
"""Every site as an engine reaches it: through upstream's name, bound for a setting of the switches.

`KUNLUN_MATRIX_SETTINGS` (JSON: name -> KUNLUN_* variables; none: nothing is run) and `KUNLUN_MATRIX_BACKENDS` (names
with commas between) say what is run; `kunlunfork matrix` sets them. The backends stand for kinds of machines:

- torch: no Triton kernel launches. The fork's launchers run; a site that is switched off runs the reference.
- reference: kernels launch. Every site runs row by row; one that is switched off runs upstream's code.
- fused: kernels launch. Sites run the fork's kernels (only those are compared here), and upstream's code where off or
  where a batch has none.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import harness
import pytest
import test_ops

SETTINGS: dict[str, dict[str, str]] = json.loads(os.environ.get("KUNLUN_MATRIX_SETTINGS") or "{}")
BACKENDS = (os.environ.get("KUNLUN_MATRIX_BACKENDS") or "torch,reference,fused").split(",")


def _fork(name: str) -> Any:
    return importlib.import_module(f"{harness.kunlun_package()}.{name}")


BY_LAUNCHER = {site.launcher: site for site in test_ops.SITES}
# What the fork declares, by the launcher that implements it.
DECLARED = {f"{site.impl}:{site.name}": site for site in _fork("sites").SITES}


# Said once more: a site that is declared under another switch, or under none, must not go unnoticed.
_HOSTVEC = (
    "block_table:gather_block_tables block_table:compute_slot_mappings buffer_utils:apply_write buffer_utils:apply "
    "cp_utils:prepare_dcp_local_seq_lens input_batch:prepare_prefill_inputs input_batch:prepare_pos_seq_lens "
    "input_batch:combine_sampled_and_draft_tokens input_batch:get_num_sampled_and_rejected "
    "input_batch:post_update_num_computed_tokens input_batch:expand_idx_mapping"
)
SWITCH = {
    **dict.fromkeys(_HOSTVEC.split(), "KUNLUN_HOSTVEC"),
    "input_batch:post_update": "KUNLUN_HOSTVEC_POSTUPDATE",
    "spec_decode_autoregressive:prepare_prefill_inputs": "KUNLUN_DFLASH_VEC",
    "spec_decode_autoregressive:prepare_decode_inputs": "KUNLUN_DFLASH_VEC",
    "spec_decode_autoregressive:update_draft_inputs": "KUNLUN_DFLASH_VEC",
    "spec_decode_dflash:prepare_dflash_inputs": "KUNLUN_DFLASH_VEC",
    "spec_decode_rejection_sampler:_get_logprobs_tensors": "KUNLUN_REJ_XPU",
    "spec_decode_rejection_sampler_utils:rejection_sample": "KUNLUN_REJ_XPU",
}
NEEDS = {"KUNLUN_HOSTVEC_POSTUPDATE": "KUNLUN_HOSTVEC", "KUNLUN_POSTUPD3": "KUNLUN_HOSTVEC_POSTUPDATE"}
# Launcher -> (switch, what runs while that is off) and what runs where every row is greedy.
VARIANTS = {"input_batch:post_update": ("KUNLUN_POSTUPD3", "post_update_compact")}
GREEDY = {
    "sample_gumbel:gumbel_sample": "gumbel_sample_greedy",
    "spec_decode_rejection_sampler_utils:rejection_sample": "rejection_sample_greedy",
}


def _own(launcher: str) -> bool:
    return launcher in BY_LAUNCHER and "fused" in BY_LAUNCHER[launcher].backends


def _has_kernel(launcher: str) -> bool:
    """Whether a kernel of the fork's own runs at this site, for some batches at least."""
    module = launcher.partition(":")[0]
    return _own(launcher) or _own(f"{module}:{GREEDY.get(launcher)}")


def _cells() -> Iterator[Any]:
    # One activation serves all cells of a setting, so that comes first.
    cases = [
        (site, case)
        for site, case, backend in (cell.values for cell in test_ops.CELLS)
        if backend == "torch" and site.launcher in DECLARED
    ]
    for setting in SETTINGS:
        for backend in BACKENDS:
            for site, case in cases:
                if backend == "fused" and not _has_kernel(site.launcher):
                    continue
                name = f"{site.launcher}-{case.name}-{backend}-{setting}"
                yield pytest.param(site, case, backend, setting, id=name)


@pytest.fixture(scope="module")
def oracles(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Any]]:
    """Upstream's runs of all selected cases, taken while nothing is bound: its launchers call one another."""
    runs: dict[tuple[str, str], Any] = {}
    for item in request.session.items:
        if getattr(item, "function", None) is test_bound:
            site, case = item.callspec.params["site"], item.callspec.params["case"]
            key = (site.launcher, case.name)
            if key not in runs:
                try:
                    runs[key] = harness.run_upstream(site, case)
                except Exception as e:  # noqa: BLE001 - shown by every cell of the case
                    runs[key] = e
    yield runs
    _active.release()


class _Active:
    """The plan that is bound now."""

    def __init__(self) -> None:
        self.key: tuple[str, str] | None = None
        self.plan: Any = None

    def bind(self, setting: str, backend: str) -> Any:
        if self.key != (setting, backend):
            self.plan = _plan(setting, backend)
            _fork("activation").BINDER.activate(self.plan.targets)
            self.key = (setting, backend)
        return self.plan

    def release(self) -> None:
        if self.key is not None:
            _fork("activation").BINDER.activate({})
            self.key = None


_active = _Active()


class _Recorded:
    """A module of implementations whose functions note in `_ran` that they were called."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        label = f"{self._module.__name__.split('.')[-2]}:{name}"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            _ran.append(label)
            return function(*args, **kwargs)

        return call


_ran: list[str] = []


def _load(name: str) -> Any:
    module = importlib.import_module(name)
    return module if hasattr(module, "__path__") else _Recorded(module)


def _plan(setting: str, backend: str) -> Any:
    switches = _fork("switches").read({"KUNLUN_KERNELS": "torch", **SETTINGS.get(setting, {})})
    launches = backend != "torch"
    # The reference has one form of everything.
    plain = backend == "reference"
    bare = {dataclasses.replace(s, variants=(), when_greedy=None) if plain else s: s for s in _fork("sites").SITES}
    plan = _fork("backend").decide(
        dataclasses.replace(switches, kernels=backend), lambda: (launches, "as the test says"), bare, load=_load
    )
    return dataclasses.replace(plan, targets={bare[site]: target for site, target in plan.targets.items()})


_greedy: dict[tuple[str, str], bool] = {}


def _all_greedy(site: harness.Site, case: harness.Case) -> bool:
    """What the host of an engine would know of this batch."""
    key = (site.launcher, case.name)
    if key not in _greedy:
        _greedy[key] = _looks_greedy(site, case)
    return _greedy[key]


def _looks_greedy(site: harness.Site, case: harness.Case) -> bool:
    args, kwargs = case.make()
    given = inspect.signature(site.upstream()).bind(*args, **kwargs).arguments
    rows = given["idx_mapping"] if "idx_mapping" in given else given["expanded_idx_mapping"]
    return bool(_fork("launchers.sample_gumbel").all_rows_greedy(given["temperature"].numpy(), rows.numpy()))


def _on(switch: str | None, setting: str) -> bool:
    return switch is None or (switch not in SETTINGS[setting] and _on(NEEDS.get(switch), setting))


def _expected(launcher: str, setting: str, backend: str, greedy: bool) -> list[str]:
    """`folder:function` of the implementation that has to run; empty for upstream's own."""
    module, _, name = launcher.partition(":")
    if not _on(SWITCH.get(launcher), setting):
        return [f"reference:{name}"] if backend == "torch" else []
    if backend == "reference":
        return [f"reference:{name}"]
    switch, variant = VARIANTS.get(launcher, (None, ""))
    runs = name if _on(switch, setting) else variant
    if greedy and _on("KUNLUN_GUMBEL_GREEDY", setting):
        runs = GREEDY[launcher]
    if backend == "fused" and _own(f"{module}:{runs}"):
        return [f"kernels:{runs}"]
    # Upstream's kernel, but for a form that a switch asks for.
    return [] if backend == "fused" and runs != variant else [f"launchers:{runs}"]


@pytest.mark.parametrize(("site", "case", "backend", "setting"), list(_cells()))
def test_bound(
    site: harness.Site,
    case: harness.Case,
    backend: str,
    setting: str,
    oracles: dict[tuple[str, str], Any],
    record_property: Any,
) -> None:
    want = oracles[site.launcher, case.name]
    if isinstance(want, Exception):
        raise want
    declared = DECLARED[site.launcher]
    plan = _active.bind(setting, backend)
    greedy = site.launcher in GREEDY and _all_greedy(site, case)
    expected = _expected(site.launcher, setting, backend, greedy)
    function: Any = importlib.import_module(declared.module)
    for part in declared.qualname.split("."):
        function = getattr(function, part)
    function = getattr(function, "__func__", function)
    binding = _fork("dispatch").binding_of(function)
    target = plan.targets.get(declared)
    assert binding is not None
    assert binding.impl is target or isinstance(target, _fork("dispatch").WhenGreedy)
    allow = None
    if backend == "torch" and expected and expected[0].startswith("launchers:"):
        variant = expected[0].partition(":")[2]
        own_site = site if variant == declared.name else BY_LAUNCHER.get(f"{declared.impl}:{variant}", site)
        allow = own_site.allow
    _ran.clear()
    with _fork("host_facts").batch(all_rows_greedy=greedy):
        report = harness.compare(site, case, f"{backend}, {setting}", want, function, allow)
    # Upstream's own code may call another launcher, which is the fork's.
    own = [label for label in _ran if label.partition(":")[2] == declared.name] if not expected else _ran[:1]
    record_property("ran", own[0] if own else "upstream")
    assert own == expected
    record_property("max_error", report.max_error)
    record_property("upstream_seconds", round(want.seconds, 5))


def test_nobody_keeps_an_unbound_launcher() -> None:
    """Modules take launchers by `from ... import`: once bound, none of vLLM's may hold upstream's own."""
    gpu = importlib.import_module("vllm.v1.worker.gpu")
    for found in pkgutil.walk_packages(gpu.__path__, gpu.__name__ + "."):
        if ".kunlun" not in found.name:
            importlib.import_module(found.name)
    try:
        _active.bind("all-on", "torch")
        originals = {id(harness.original(s.module, s.qualname)): str(s) for s in DECLARED.values()}
        kept = [
            f"{name}.{attribute} is {originals[id(value)]}"
            for name, module in sorted(sys.modules.items())
            if name.startswith("vllm.")
            for attribute, value in vars(module).items()
            if id(value) in originals
        ]
        assert kept == []
        owners = _fork("activation").BINDER.owners()
        assert {site: owner for site, owner in owners.items() if owner == "not loaded"} == {}
    finally:
        _active.release()
