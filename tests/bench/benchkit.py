"""A release of a few files, so that a whole benchmark takes seconds."""

from __future__ import annotations

import re
import tarfile
from hashlib import sha256
from pathlib import Path

from support import VERSION, Upstream

from kunlunfork.bench.contenders import Field
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.fork import load

SDIST = f"vllm-{VERSION}.tar.gz"


def small_cache(content: Content, upstream: Upstream, root: Path) -> Cache:
    """A cache that has the sdist of the few files; the pin of `content` is made to fit."""
    folder = upstream.write(root / f"vllm-{VERSION}")
    cache = Cache(root / "user-cache")
    cache.downloads.mkdir(parents=True)
    with tarfile.open(cache.downloads / SDIST, "w:gz") as tar:
        tar.add(folder, folder.name)
    data = (cache.downloads / SDIST).read_bytes()
    pin = content.patches / VERSION / "pin.toml"
    text = re.sub(r"[0-9a-f]{64}", sha256(data).hexdigest(), pin.read_text())
    pin.write_text(re.sub(r"(?m)^size *=.*$", f"size = {len(data)}", text))
    return cache


def small_field(content: Content, cache: Cache, scratch: Path) -> Field:
    scratch.mkdir()
    return Field(content, load(content, VERSION), cache.downloads / SDIST, scratch)
