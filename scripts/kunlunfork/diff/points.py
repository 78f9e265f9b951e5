"""DSpark here and in the DeepSpec reference, point by point: what each release's code says, and which changed it.

The reference is deepseek-ai/DeepSpec at afdfa7c, read by hand; upstream's side is checked anew from the source of every
release on the way. A point whose code is found in none of its known forms says so, and needs a person.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kunlunfork.diff.sides import Sides
from kunlunfork.rebase.treestore import TreeStore

_CONFIG = "vllm/config/speculative.py"
_GPU = "vllm/v1/worker/gpu/"
_DSPARK = f"{_GPU}spec_decode/dspark/speculator.py"
_DFLASH = f"{_GPU}spec_decode/dflash/speculator.py"
_MODEL = "vllm/model_executor/models/qwen3_dspark.py"
_BACKBONE = "vllm/model_executor/models/qwen3_dflash.py"
_GUMBEL = f"{_GPU}sample/gumbel.py"
_TABLES = f"{_GPU}block_table.py"
UNKNOWN = "found in none of its known forms"


@dataclass(frozen=True)
class Form:
    """One way in which the code of a point was seen: `path` matches `pattern` (with `also`, another file matches, too).

    `says` may have the groups of the match in it.
    """

    path: str
    pattern: str
    says: str
    also: tuple[str, str] | None = None


@dataclass(frozen=True)
class Point:
    """What the reference does, and the forms of upstream's code; of several that match the first one counts. `ours` are
    forms of the overlay's files, where the fork differs from its pin on purpose."""

    title: str
    reference: str
    forms: tuple[Form, ...]
    ours: tuple[Form, ...] = ()


POINTS = (
    Point(
        "draft sampling", "samples drafts at the request's temperature, and verifies with p/q",
        (Form(_CONFIG, r'^    draft_sample_method: DraftSampleMethod = "(\w+)"', "{0}, unless it is set otherwise"),),
    ),
    Point(
        "noise keys", "draws drafts and residuals independently",
        (
            Form(_GUMBEL, r"pos = pos \+ _DRAFT_NOISE_SALT", "drafts draw at a salted position"),
            Form(_GUMBEL, r"^def gumbel_block_argmax\(", "drafts and the residual draw share the key (seed, position)"),
        ),
    ),
    Point(
        "random numbers", "torch.multinomial",
        (
            Form(_GUMBEL, r"^def _murmur3_mix\(", "a murmur3 hash of seed, position and token"),
            Form(_GUMBEL, r"tl\.(randint4x|randint|philox)", "Philox, as Triton has it"),
        ),
    ),
    Point(
        "precision", "divides and normalises in the type of the logits",
        (Form(_GUMBEL, r"logits = logits\.to\(tl\.float32\)", "float32 logits"),),
    ),
    Point(
        "Markov variants", "vanilla, gated, rnn, none",
        (
            Form(_MODEL, r"markov_head_type", "reads markov_head_type"),
            Form(_MODEL, r"^class DSparkMarkovHead", "vanilla alone; markov_head_type is not read"),
        ),
    ),
    Point(
        "Markov weights", "replicated",
        (
            Form(_MODEL, r"self\.markov_w1 = nn\.Embedding\(", "markov_w1 is replicated"),
            Form(_MODEL, r"self\.markov_w1 = VocabParallelEmbedding\(", "markov_w1 is sharded over the vocabulary"),
        ),
    ),
    Point(
        "confidence head", "cuts the proposal at the first position below a threshold",
        (
            Form(_MODEL, r'skip_substrs = \[[^\]]*"confidence_head"', "its weights are skipped"),
            Form(_MODEL, r"^class DSparkConfidenceHead", "wired into inference"),
        ),
    ),
    Point(
        "block size", "always runs the trained block, and cuts afterwards",
        (
            Form(_CONFIG, r"self\.num_speculative_tokens = block_size", "the trained block is the default"),
            Form(_CONFIG, r"self\.num_speculative_tokens < dspark_block_size", "fewer tokens are refused"),
            Form(_CONFIG, r"if num_speculative_tokens != block_size", "has to match for Qwen3-Omni alone"),
            Form(_CONFIG, r"num_speculative_tokens", "not read: num_speculative_tokens decides"),
        ),
    ),
    Point(
        "anchor layout", "the last sampled token predicts, N slots",
        (
            Form(_DSPARK, r'"sample_from_anchor", True', "the anchor predicts, unless sample_from_anchor is false"),
            Form(_DSPARK, r'"dspark_bonus_anchor", False', "the anchor predicts, unless dspark_bonus_anchor is true"),
        ),
    ),
    Point(
        "rejected context", "keeps the accepted hidden states alone, and crops the draft's cache",
        (Form(_DFLASH, r"is_ctx = ", "K/V of all scheduled tokens; the query overwrites rejected ones"),),
    ),
    Point(
        "slots", "one block size",
        (
            Form(_DFLASH, r"self\.block_tables\.kernel_block_sizes\[gid\]", "the block size of the kernel's tables"),
            Form(_DFLASH, r"self\.block_tables\.block_sizes\[gid\]", "the manager's, for tables of the kernel's",
                 (_TABLES, r"self\.kernel_block_sizes = ")),
            Form(_DFLASH, r"self\.block_tables\.block_sizes\[gid\]", "the block size of the tables, which have one"),
        ),
        (Form(f"{_GPU}kunlun/fixes.py", r"^def use_kernel_block_sizes", "the block size of the kernel's tables"),),
    ),
    Point(
        "width of fc", "one hidden state for each target layer",
        (
            Form(_BACKBONE, r"len\(aux_layers\) if aux_layers", "one for each target layer that is configured"),
            Form(_BACKBONE, r"num_features_to_use = self\.config\.num_hidden_layers",
                 "one for each layer of the draft, unless dflash_config or eagle_config names target layers"),
        ),
    ),
    Point(
        "target layers", "counts from the embedding, so layer i is i + 1",
        (Form(f"{_GPU}spec_decode/eagle/eagle3_utils.py", r"\[i \+ 1 for i in dspark_layer_ids\]", "the same"),),
    ),
    Point(
        "verification", "u < p/q, and p where nothing is left over",
        (Form(_CONFIG, r"^RejectionSampleMethod = Literal\[([^\]]*)\]", "{0}"),),
    ),
    Point(
        "rank 0 of the Markov head", "is the model without it",
        (
            Form(_MODEL, r"markov_rank\s*(?:[=!]=|>)\s*0|if (?:not )?(?:self|config)\.markov_rank", "is told apart"),
            Form(_MODEL, r"config\.markov_rank", "is not told apart"),
        ),
    ),
    Point(
        "batches and graphs", "one request, no graph",
        (
            Form(_DFLASH, r"PIECEWISE cudagraphs are not supported", "batches; full graphs for uniform decode alone"),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What a release's code says: in words, and the line that says it (None where nothing was found)."""

    version: str
    says: str
    path: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.path is not None else ""


@dataclass(frozen=True)
class Checked:
    """A point in the pin's release (`now`), the releases that changed it since, and the fork where it differs."""

    point: Point
    now: Finding
    changes: tuple[Finding, ...]
    ours: Finding | None

    def as_json(self) -> dict[str, Any]:
        def one(found: Finding) -> dict[str, Any]:
            return {"version": found.version, "says": found.says, "path": found.path, "line": found.line}

        return {
            "point": self.point.title, "reference": self.point.reference, "now": one(self.now),
            "changes": [one(each) for each in self.changes], "fork": None if self.ours is None else one(self.ours),
        }  # fmt: skip


def check(sides: Sides) -> tuple[Checked, ...]:
    """Every point in the pin's release and in those up to the newer one (raises `ForkError`: an object is missing)."""
    trees = [(sides.fork.pin.version, sides.base), *((rung.version, rung.tree) for rung in sides.rungs)]
    overlay = {path.decode(errors="replace"): file.data for path, file in sides.fork.overlay.files.items()}
    found = []
    for point in POINTS:
        seen = [_look(sides.store, tree, version, point.forms) for version, tree in trees]
        changes = tuple(after for before, after in pairwise(seen) if before.says != after.says)
        ours = next(
            (
                Finding("fork", form.says, form.path, _line(overlay[form.path], match.start()))
                for form in point.ours
                if form.path in overlay and (match := _search(form.pattern, overlay[form.path])) is not None
            ),
            None,
        )
        found.append(Checked(point, seen[0], changes, ours))
    return tuple(found)


def _look(store: TreeStore, tree: str, version: str, forms: Sequence[Form]) -> Finding:
    for form in forms:
        data = store.data(store.get(tree, form.path.encode()))
        match = None if data is None else _search(form.pattern, data)
        if data is None or match is None:
            continue
        if form.also is not None:
            other = store.data(store.get(tree, form.also[0].encode()))
            if other is None or _search(form.also[1], other) is None:
                continue
        groups = [" ".join(group.decode(errors="replace").replace('"', "").split()) for group in match.groups()]
        return Finding(version, form.says.format(*groups), form.path, _line(data, match.start()))
    return Finding(version, UNKNOWN)


def _search(pattern: str, data: bytes) -> re.Match[bytes] | None:
    return re.search(pattern.encode(), data, re.MULTILINE)


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1
