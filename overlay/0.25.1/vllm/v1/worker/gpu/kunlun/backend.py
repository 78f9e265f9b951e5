# SPDX-License-Identifier: Apache-2.0
"""Which implementation of the sites this process runs, decided before a launch."""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .binder import Targets
from .dispatch import WhenGreedy, signature
from .sites import Site
from .switches import KERNELS, Switches

# Folders of this package in which a backend looks for a site, best first.
_LAYERS = {
    "torch": ("launchers",),
    "reference": ("reference",),
    "fused": ("kernels", "launchers"),
    "vendor": ("vendor", "launchers"),
}

Probe = Callable[[], tuple[bool, str]]


class BackendError(RuntimeError):
    """The kernels that were asked for cannot run here."""


@dataclass(frozen=True)
class Plan:
    """`targets` has the fork's function for each site that it takes over.

    `off` is where the sites of a switch that is off went: 'upstream' or
    'reference', or '' where no site is off.
    """

    backend: str
    why: str
    off: str = ""
    changed: tuple[str, ...] = ()
    targets: Targets = field(default_factory=dict, compare=False)

    @property
    def ours(self) -> bool:
        """Whether any site may run the fork's code."""
        return self.backend != "upstream"

    @property
    def decision(self) -> str:
        """What every rank must have decided alike."""
        return " ".join(filter(None, (self.backend, self.off, *self.changed)))

    def __str__(self) -> str:
        text = f"{self.backend} kernels ({self.why})"
        if self.changed:
            text += ", " + " ".join(self.changed)
        if self.off:
            text += f", sites switched off run {self.off}"
        return text


def decide(
    switches: Switches,
    probe: Probe,
    sites: Iterable[Site],
    package: str = __package__,
    load: Callable[[str], ModuleType] = importlib.import_module,
) -> Plan:
    """Choose a backend and find every implementation that it needs.

    Args:
        probe: says whether a Triton kernel launches, and why or why not; called
            only where the answer matters.
        package: where the folders of implementations lie.

    Raises:
        BackendError: an implementation is missing, or does not have upstream's
            signature; all of them are named. Or Triton is, which `fused` needs.
    """
    backend, why = switches.kernels, f"{KERNELS}={switches.kernels}"
    if backend == "auto":
        launches, why = probe()
        backend = "upstream" if launches else "torch"
        why = f"auto: {why}"
    changed = tuple(c for c in switches.changed() if not c.startswith(KERNELS + "="))
    if backend == "upstream":
        return Plan(backend, why, changed=changed)
    if backend == "fused" and not (told := probe())[0]:
        raise BackendError(f"{why} needs Triton, and {told[1]}. Set {KERNELS}=torch, or unset it.")
    sites = tuple(sites)
    switched_off = {s for s in sites if s.switch and not switches.on(s.switch)}
    off = ""
    if switched_off:
        off = "upstream" if probe()[0] else "reference"
    finder = _Finder(package, load)
    # Where kernels launch, upstream's own is what a site without one of the fork's runs: operators of torch in its place
    # took three times as long on an H200. Only they have the fixes.
    upstream_rest = backend == "fused" and not switches.upstream_fixes
    targets: dict[Site, Callable[..., Any] | WhenGreedy] = {}
    for site in sites:
        fn: Callable[..., Any] | WhenGreedy | None = None
        if site not in switched_off:
            name = _variant(site, switches)
            fn = general = finder.find(site, name, _LAYERS[backend], optional=upstream_rest and name == site.name)
            if site.when_greedy and switches.gumbel_greedy:
                greedy = finder.find(site, site.when_greedy, _LAYERS[backend], optional=upstream_rest)
                if greedy and (general or upstream_rest):
                    fn = WhenGreedy(greedy).over(general) if general else WhenGreedy(greedy)
        elif off == "reference":
            fn = finder.find(site, site.name, _LAYERS[off])
        if fn is not None:
            targets[site] = fn
    if missing := finder.missing():
        raise BackendError(
            f"Model Runner V2 cannot run {backend} kernels ({why}): this build of "
            f"kunlunfork lacks {missing}. Set {KERNELS}=upstream where Triton "
            "launches, or VLLM_USE_V2_MODEL_RUNNER=0."
        )
    return Plan(backend, why, off, changed, targets)


def agree(
    attempt: Callable[[], Plan],
    gather: Callable[[tuple[str, str]], Sequence[tuple[str, str]]],
) -> Plan:
    """Decide on every rank, and stop on all of them where they differ.

    Args:
        gather: sends a pair of texts (decision, explanation) to all ranks and
            returns the pairs of all, by rank. It is called even if `attempt`
            fails: the other ranks would wait for it.

    Raises:
        BackendError: another rank decided differently, or could not decide.
        Exception: whatever `attempt` raised on this rank.
    """
    plan = failure = None
    try:
        plan = attempt()
        told = (plan.decision, str(plan))
    except Exception as e:  # noqa: BLE001 - raised below, once the others know
        failure, told = e, ("failed", f"failed: {e}")
    ranks = gather(told)
    if failure is not None:
        raise failure
    assert plan is not None
    if any(decision != told[0] for decision, _ in ranks):
        lines = "; ".join(f"rank {i}: {text}" for i, (_, text) in enumerate(ranks))
        raise BackendError(
            f"the ranks of this engine do not agree on their kernels: {lines}. "
            f"Give every rank the same KUNLUN_* variables, or set {KERNELS}."
        )
    return plan


def _variant(site: Site, switches: Switches) -> str:
    for switch, function in site.variants:
        if not switches.on(switch):
            return function
    return site.name


class _Finder:
    """Finds implementations and remembers what it could not find."""

    def __init__(self, package: str, load: Callable[[str], ModuleType]) -> None:
        self._package = package
        self._load = load
        self._modules: dict[str, ModuleType | None] = {}
        # Module below the package -> what it lacks.
        self._missing: dict[str, list[str]] = {}

    def find(self, site: Site, name: str, layers: tuple[str, ...], optional: bool = False) -> Callable[..., Any] | None:
        """The function of the best layer that has it. optional: of the first layer, and none is no fault."""
        if len(layers) > 1 and self._module(layers[0]) is None:
            self._missing.setdefault(layers[0], ["all"])
        for layer in layers[:1] if optional else layers:
            fn = getattr(self._module(f"{layer}.{site.impl}"), name, None)
            if fn is None:
                continue
            if (found := signature(fn)) != site.signature:
                self._miss(
                    f"{layer}.{site.impl}",
                    f"{name}{site.signature} (it has {name}{found})",
                )
            return fn
        if not optional:
            self._miss(f"{layers[-1]}.{site.impl}", name)
        return None

    def missing(self) -> str:
        """All that is missing, by module; empty where nothing is."""
        return "; ".join(f"{m}: {', '.join(n)}" for m, n in self._missing.items())

    def _miss(self, module: str, what: str) -> None:
        self._missing.setdefault(module, []).append(what)

    def _module(self, name: str) -> ModuleType | None:
        """A module of the package; None where there is no such file."""
        full = f"{self._package}.{name}"
        if name not in self._modules:
            try:
                self._modules[name] = self._load(full)
            except ModuleNotFoundError as e:
                # Only its own absence: what it fails to import itself is an error.
                if e.name is None or not f"{full}.".startswith(f"{e.name}."):
                    raise
                self._modules[name] = None
        return self._modules[name]
