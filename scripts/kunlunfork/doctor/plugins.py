"""Plugins of vLLM that are installed beside it, and who owns each site that the fork replaces. Metadata only."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork.doctor import source
from kunlunfork.doctor.check import Check, listed
from kunlunfork.sources.distinfo import dist_infos, headers

PLATFORM = "vllm.platform_plugins"
GENERAL = "vllm.general_plugins"
LOGITS = "vllm.logits_processors"
_GROUPS = (PLATFORM, GENERAL, LOGITS)

_KUNLUN = "vllm_kunlun"
SITES = "vllm/v1/worker/gpu/kunlun/sites.py"

# What vllm_kunlun replaces of Model Runner V2, as its pull request 404 was merged: module below `vllm.`, names in it.
_GPU = "v1.worker.gpu."
_REPLACED = {
    f"{_GPU}buffer_utils": ("StagedWriteTensor.apply_write", "FusedStagedWriter.apply"),
    f"{_GPU}block_table": ("BlockTables.gather_block_tables", "BlockTables.compute_slot_mappings"),
    f"{_GPU}input_batch": (
        "prepare_prefill_inputs", "prepare_pos_seq_lens", "combine_sampled_and_draft_tokens",
        "get_num_sampled_and_rejected", "post_update", "post_update_num_computed_tokens", "expand_idx_mapping",
    ),
    f"{_GPU}structured_outputs": ("StructuredOutputsWorker.apply_grammar_bitmask",),
    f"{_GPU}sample.gumbel": ("apply_temperature", "gumbel_sample"),
    f"{_GPU}sample.min_p": ("apply_min_p",),
    f"{_GPU}sample.penalties": ("apply_penalties", "bincount"),
    f"{_GPU}sample.logit_bias": ("apply_logit_bias",),
    f"{_GPU}sample.bad_words": ("apply_bad_words",),
    f"{_GPU}sample.logprob": ("compute_token_logprobs", "compute_topk_logprobs"),
    f"{_GPU}sample.prompt_logprob": ("get_prompt_logprobs_token_ids",),
    f"{_GPU}mm.rope": ("RopeState.prepare_positions",),
    f"{_GPU}model_states.mamba_hybrid": ("MambaHybridModelState.postprocess_state",),
    "v1.worker.mamba_utils": ("batch_memcpy",),
}  # fmt: skip


@dataclass(frozen=True)
class Plugin:
    """One entry point: `value` is `module:function`, of a distribution in `folder`."""

    group: str
    name: str
    value: str
    distribution: str
    version: str
    folder: Path

    @property
    def kunlun(self) -> bool:
        return self.value.partition(":")[0].partition(".")[0] == _KUNLUN


def scan(folders: Sequence[Path]) -> tuple[tuple[Plugin, ...], tuple[str, ...]]:
    """(the entry points of vLLM's groups, files that cannot be understood), read as text."""
    found: list[Plugin] = []
    unread: list[str] = []
    for info in (info for folder in folders for info in dist_infos(folder)):
        file = info / "entry_points.txt"
        try:
            text = file.read_text(encoding="utf-8")
            metadata = (info / "METADATA").read_bytes()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as e:
            unread.append(f"{file}: {e}")
            continue
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            parser.read_string(text)
        except configparser.Error as e:
            unread.append(f"{file}: {e}".splitlines()[0])
            continue
        name, version = headers(metadata)
        for group in _GROUPS:
            if parser.has_section(group):
                found += [
                    Plugin(group, key, value.strip(), name or info.name, version or "?", info.parent)
                    for key, value in parser.items(group)
                ]
    return tuple(found), tuple(unread)


def replaces_v2(plugin: Plugin) -> bool:
    """Whether this vllm_kunlun is one that has replacements for Model Runner V2."""
    return plugin.kunlun and (plugin.folder / _KUNLUN / "v1" / "worker" / "gpu").is_dir()


def is_loaded(plugin: Plugin, environ: Mapping[str, str]) -> bool:
    """Whether vLLM would load it: VLLM_PLUGINS names those that it may."""
    allowed = environ.get("VLLM_PLUGINS")
    return allowed is None or plugin.name in allowed.split(",")


def check_plugins(found: Sequence[Plugin], unread: Sequence[str]) -> Check:
    """All plugins, less those that vLLM brings itself."""
    shown = sorted({f"{p.distribution} {p.version}: {p.group}: {p.name}" for p in found if not _own(p)})
    details = listed((*shown, *(f"not understood: {line}" for line in unread)))
    if unread:
        return Check("plugins", "note", f"{len(shown)}, and {len(unread)} that cannot be read", None, details)
    names = sorted({p.distribution for p in found if not _own(p)})
    if not names:
        return Check("plugins", "ok", "none but vLLM's own")
    return Check("plugins", "note" if any(p.kunlun for p in found) else "ok", ", ".join(names), None, details)


def _own(plugin: Plugin) -> bool:
    return plugin.value.startswith("vllm.")


def sites(file: Path) -> tuple[tuple[str, str], ...]:
    """(module, qualified name) of every site that a `sites.py` of the fork declares."""
    module = source.parse(file.parent, file.name)
    declared = source.assigned(module, "SITES") if module is not None else None
    if not isinstance(declared, ast.Tuple):
        return ()
    prefix = source.texts(source.assigned(module, "_GPU") if module is not None else None)
    found = []
    for item in declared.elts:
        match item:
            case ast.Call(args=[_, where, ast.Constant(value=str() as name), *_]):
                text = "".join(source.texts(where))
                found.append(((prefix[0] if isinstance(where, ast.BinOp) and prefix else "") + text, name))
    return tuple(found)


def owners(declared: Sequence[tuple[str, str]], *, forked: bool, plugin: bool) -> dict[str, str]:
    """Who runs at each site: `fork` (which comes first where it has the site), `vllm_kunlun`, or `upstream`."""
    found = {}
    for module, name in declared:
        by_plugin = plugin and name in _REPLACED.get(module.removeprefix("vllm."), ())
        found[f"{module}:{name}"] = "fork" if forked else _KUNLUN if by_plugin else "upstream"
    return found


def check_sites(owned: dict[str, str], *, forked: bool, plugin: bool) -> Check | None:
    """How many sites each has; of the two that replace the same one, the fork wins."""
    if not owned:
        return None
    counts = {who: list(owned.values()).count(who) for who in ("fork", _KUNLUN, "upstream")}
    text = ", ".join(f"{count} of {who}" for who, count in counts.items() if count)
    if forked and plugin:
        return Check("sites", "ok", f"{text}; {_KUNLUN} replaces some of them too, and the fork takes precedence")
    if plugin:
        return Check(
            "sites", "note", f"{text}; the plugin has none for speculative decoding, and refuses it on V2", None,
            listed((site for site, who in owned.items() if who == _KUNLUN), 40),
        )  # fmt: skip
    return Check("sites", "ok", text)
