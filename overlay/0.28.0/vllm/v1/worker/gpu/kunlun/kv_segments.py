# SPDX-License-Identifier: Apache-2.0
"""The memory behind the raw addresses that upstream's KVBlockZeroer keeps.

`keep_kv_caches`, called once behind upstream's `__init__`, finds the caches that they point into; without it there is
nothing that torch could write to.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .unsupported import UnsupportedOnKunlun

# On the zeroer: for each address a weak reference to its cache, the place in its storage, the blocks from there to the
# end, how far one lies from the next and how much of it is zeroed, in int32. Weak, since upstream frees the caches at shutdown while the zeroer lives on.
_ATTRIBUTE = "kunlun_segments"
_FEATURE = "zeroing new KV cache blocks"


def keep_kv_caches(zeroer: Any, kv_caches: Iterable[object]) -> None:
    """Find every address of the zeroer in a cache.

    kv_caches: what the layers hold as `kv_cache`; what is no tensor is passed over. Reads the addresses on the host:
    for start-up, not for a step. Raises UnsupportedOnKunlun where an address lies in no cache.
    """
    found: list[tuple[weakref.ref[torch.Tensor], int, int, int, int]] = []
    if zeroer._meta is not None:
        addresses, strides, page_sizes = zeroer._meta[:3]
        caches = [cache for cache in kv_caches if isinstance(cache, torch.Tensor)]
        on_host = (addresses.tolist(), strides.tolist(), page_sizes.tolist())  # sync-ok: once, when the engine starts
        for address, stride, page in zip(*on_host, strict=True):
            for cache in caches:
                storage = cache.untyped_storage()
                offset = address - storage.data_ptr()
                if offset % 4 == 0 and 0 <= offset < storage.nbytes():
                    # The last block may end where the cache does, however far apart they lie.
                    blocks = max(0, (storage.nbytes() - offset) // 4 - page) // stride + 1
                    found.append((weakref.ref(cache), offset // 4, blocks, stride, page))
                    break
            else:
                raise UnsupportedOnKunlun(f"{_FEATURE} of a cache that is no tensor")
    setattr(zeroer, _ATTRIBUTE, found)


def segments(zeroer: Any) -> list[torch.Tensor]:
    """One int32 view [blocks, page] a segment. Raises UnsupportedOnKunlun where keep_kv_caches was not called."""
    found = getattr(zeroer, _ATTRIBUTE, None)
    if found is None:
        raise UnsupportedOnKunlun(_FEATURE)
    views = []
    for reference, offset, blocks, stride, page in found:
        cache = reference()
        if cache is None:
            raise RuntimeError("a KV cache was freed, but its blocks are still being zeroed")
        view = torch.empty(0, dtype=torch.int32, device=cache.device)
        views.append(view.set_(cache.untyped_storage(), offset, (blocks, page), (stride, 1)))
    return views
