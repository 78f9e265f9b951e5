"""Numbers of engines on a device: `python benches.py e2e|host|numbers|memory --pay DIR --models DIR --out FILE`.

DIR of --pay holds the payload's folders `site` (upstream), `fork` and `deps`. The engines are those of `kunlunfork
bench` (scripts/kunlunfork/bench); `numbers` is e2e and host with the same engines; `memory` asks each variant for the
peak of its allocated memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from kunlunfork.bench import e2e, engines, host

TOKENS, VOCABULARY = 7, 151000
# So that a fork without fused kernels is no failure here.
KERNELS = ("torch", "fused")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("e2e", "host", "numbers", "memory"))
    parser.add_argument("--pay", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drafts", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--views", action="store_true", help="the fork sees memory of the host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", default="8,32,128")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--only", default="", help="names of variants, such as 'upstream V2,fork fused'")
    options = parser.parse_args()
    rows = run_memory(options) if options.what == "memory" else run_numbers(options)
    return int(any("error" in row for row in rows))


def write(options: argparse.Namespace, what: str, rows: list[dict[str, Any]]) -> None:
    """Into a file a kind, at once: the time may be up before the next kind."""
    said = {"what": what, "arguments": sys.argv[1:], "rows": rows}
    options.out.with_name(f"{options.out.stem}-{what}.json").write_text(json.dumps(said, indent=0))


def places(options: argparse.Namespace) -> engines.Places:
    pay = options.pay
    return engines.Places(
        python=Path(sys.executable),
        upstream=(pay / "site", pay / "deps"),
        fork=(pay / "fork", pay / "deps"),
        model=options.models / "target",
        draft=options.models / "dspark_acc67",
        permutation=options.models / "perm.pt",
    )


def variants(options: argparse.Namespace, names: tuple[str, ...]) -> list[engines.Variant]:
    drafts = {"no": [False], "yes": [True], "both": [False, True]}[options.drafts]
    return engines.variants(names, drafts, places(options), hide_views=not options.views)


def names(options: argparse.Namespace) -> tuple[str, ...]:
    fused = (options.pay / "fork/vllm/v1/worker/gpu/kunlun/kernels").is_dir()
    ours = tuple(engines.FORK[k] for k in KERNELS if fused or k != "fused")
    found = (engines.UPSTREAM_V1, engines.UPSTREAM_V2, *ours)
    return tuple(n for n in found if n in options.only.split(",")) if options.only else found


def llm(drafts: bool) -> Mapping[str, Any]:
    return {
        "max_model_len": 1024, "max_num_seqs": 128, "max_num_batched_tokens": 8192, "kv_cache_memory_bytes": 7 << 30,
        # All engines live at once.
        "gpu_memory_utilization": 0.04, "enable_prefix_caching": False, "seed": 0,
        "compilation_config": {"cudagraph_capture_sizes": engines.graph_sizes(128, TOKENS if drafts else 0)},
    }  # fmt: skip


def sitting(options: argparse.Namespace, work: Path, together: int, arguments: Any = llm) -> engines.Sitting:
    return engines.Sitting(
        places(options), work, arguments, TOKENS, VOCABULARY, together=together, cache=Path.home() / "cache"
    )


def note(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def show(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def run_numbers(options: argparse.Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        started = engines.start_all(sitting(options, Path(folder), 8), variants(options, names(options)), note)
        loads = [int(n) for n in options.loads.split(",")]
        if options.what != "host":
            rows = e2e.measure(started, loads, options.rounds, 128, 256, note, options.temperature)
            write(options, "e2e", rows)
            show(e2e.HEADER, e2e.table(rows))
            found += rows
        if options.what != "e2e":
            rows = host.measure(started, loads, turns=3, steps=15, profiled=10, note=note)
            write(options, "host", rows)
            for header, lines in host.tables(rows):
                show(header, lines)
            found += rows
        for engine in started:
            engine.end()
    return found


def run_memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Peak of allocated memory of the start (profile pass, warm-up), and of a batch of as many requests."""
    rows = []
    wanted = variants(options, (engines.UPSTREAM_V2, engines.FORK["torch"]))
    for requests in (1024, 64):

        def arguments(drafts: bool, requests: int = requests) -> Mapping[str, Any]:
            return {
                "max_model_len": 1024, "max_num_seqs": requests, "max_num_batched_tokens": 8192,
                "kv_cache_memory_bytes": 8 << 30, "gpu_memory_utilization": 0.04, "enforce_eager": True,
                "enable_prefix_caching": False, "seed": 0,
            }  # fmt: skip

        with tempfile.TemporaryDirectory() as folder:
            for engine in engines.start_all(sitting(options, Path(folder), 4, arguments), wanted, note):
                started = dict(engine.about)
                ran = engine.ask({"do": "rate", "requests": requests, "input": 32, "output": 24, "seed": 1})
                row = {
                    "variant": engine.variant.name,
                    "drafts": engine.variant.drafts,
                    "requests": requests,
                    "start peak MiB": started.get("peak bytes", 0) / 2**20,
                    "run peak MiB": (engine.ask({"do": "about"}) or {}).get("peak bytes", 0) / 2**20,
                    "wrong": (ran or {}).get("wrong"),
                }
                rows.append(row if engine.error is None else {**row, "error": engine.error})
                engine.end()
        write(options, "memory", rows)
        show_memory(rows)
    return rows


def show_memory(rows: list[dict[str, Any]]) -> None:
    base = {(r["drafts"], r["requests"]): r for r in rows if r["variant"] == engines.UPSTREAM_V2}
    lines = []
    for row in rows:
        upstream = base[row["drafts"], row["requests"]]
        cells = [row["variant"], "dspark" if row["drafts"] else "-", str(row["requests"])]
        for key in ("start peak MiB", "run peak MiB"):
            cells += [f"{row[key]:.0f}", f"{row[key] - upstream[key]:+.0f}"]
        lines.append((*cells, str(row["wrong"]), str(row.get("error", ""))[:200]))
    show(("", "drafts", "requests", "start peak MiB", "more", "run peak MiB", "more", "wrong", "error"), lines)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
