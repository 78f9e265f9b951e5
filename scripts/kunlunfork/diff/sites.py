"""The sites that the overlay declares: which upstream launcher the fork replaces, by what, under which switch."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork

KUNLUN = "vllm/v1/worker/gpu/kunlun/"
MODULE = f"{KUNLUN}sites.py"
# The folders that implement a site, each for some backends: the launchers for `torch` and what builds on it, the
# plain rows that stand in where a switch is off and nothing launches, and what is compiled ahead.
BACKENDS = (("launchers", "torch"), ("reference", "reference"), ("kernels", "fused"))


@dataclass(frozen=True)
class Site:
    """One upstream launcher, `path::qualname`.

    `switch` turns the site off; None: it follows KUNLUN_KERNELS alone. `impl` names the module in each of `BACKENDS`
    that may implement it. `variants` are (switch, function that runs while it is off); `when_greedy` is the function
    for batches without random rows.
    """

    ids: tuple[int, ...]
    path: str
    qualname: str
    switch: str | None
    impl: str
    variants: tuple[tuple[str, str], ...]
    when_greedy: str | None

    @property
    def name(self) -> str:
        """The name of the function that implements it."""
        return self.qualname.rpartition(".")[2]


def load(fork: Fork) -> tuple[Site, ...]:
    """The sites of a pin (raises `ForkError` where the overlay has no `sites.py`, or one that is not valid)."""
    file = fork.overlay.files.get(MODULE.encode())
    if file is None:
        return ()
    try:
        raw: tuple[Any, ...] = _module(file.source).SITES
        return tuple(_site(each) for each in raw)
    except Exception as e:
        raise ForkError(
            f"{file.source} does not say which sites the fork has", found=f"{type(e).__name__}: {e}",
            expected="a tuple SITES", fix="kunlunfork lint",
        ) from e  # fmt: skip


def _site(raw: Any) -> Site:
    path = raw.module.replace(".", "/") + ".py"
    return Site(raw.ids, path, raw.qualname, raw.switch, raw.impl, tuple(raw.variants), raw.when_greedy)


def _module(file: Path) -> ModuleType:
    """The declaration, which imports nothing of vLLM; it is the fork's own, as `switches.py` is."""
    spec = importlib.util.spec_from_file_location("kunlunfork._sites", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module
