"""One engine, asked by lines of JSON: `engine.py SPEC`; vLLM is found on the path of this process.

SPEC is {"llm": arguments of LLM, "vocabulary": highest token id + 1, "hide_views": bool, "permutation": file of the
target's next token by token, or nothing}. Questions, a line each on stdin, and their answers, a line each on stdout:

{"do": "about"}   what runs, how long it took to start, the peak of the device's memory
{"do": "rate", "requests", "input", "output", "seed", "temperature"}   all requests at once: seconds, of each request
                  the time to its first token and the time a token after it, a digest of all tokens; greedy, the tokens
                  that are not the permutation's; else each request has a seed of its own
{"do": "host", "requests", "steps", "profiled"}   what a decode step of so many requests consists of (phases.py)
{"do": "end"}
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

WARM_STEPS = 5


def main(spec: dict[str, Any]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What vLLM prints is no answer.
    os.dup2(2, 1)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    asked = Asked(spec)
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "end":
            break
        answers.write(json.dumps(getattr(asked, question.pop("do"))(**question)) + "\n")
        answers.flush()
    # Engines differ in how long they take to leave; nothing is to be saved.
    os._exit(0)


def hide_views() -> None:
    """As on a device that cannot see memory of the host."""
    torch_utils: Any = importlib.import_module("vllm.utils.torch_utils")
    buffer_utils: Any = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")

    def none(*_: Any) -> Any:
        raise RuntimeError("hidden: this device has no view of host memory")

    torch_utils.get_accelerator_view_from_cpu_tensor = none
    buffer_utils.get_accelerator_view_from_cpu_tensor = none


class Asked:
    def __init__(self, spec: dict[str, Any]) -> None:
        # The file beside this one.
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        self.phases: Any = importlib.import_module("phases")
        self.torch: Any = importlib.import_module("torch")
        self.vllm: Any = importlib.import_module("vllm")
        if spec.get("hide_views"):
            hide_views()
        self.cuda = bool(self.torch.cuda.is_available())
        self.vocabulary = int(spec["vocabulary"])
        table = spec.get("permutation")
        self.permutation = self.torch.load(table).tolist() if table else None
        began = time.perf_counter()
        self.llm = self.vllm.LLM(**spec["llm"])
        self.start = time.perf_counter() - began
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self.serial = 0

    def about(self) -> dict[str, Any]:
        runner = self.runner
        return {
            "runner": f"{type(runner).__module__}.{type(runner).__qualname__}",
            "plan": str(getattr(runner, "kunlun_plan", "")),
            "start seconds": round(self.start, 1),
            "peak bytes": self.torch.cuda.max_memory_allocated() if self.cuda else None,
            "now bytes": self.torch.cuda.memory_allocated() if self.cuda else None,
            "device": self.torch.cuda.get_device_name() if self.cuda else "cpu",
            "torch": self.torch.__version__,
            "vllm": self.vllm.__version__,
        }

    def _add(self, count: int, length: int, output: int, seed: int, temperature: float = 0.0) -> dict[str, list[int]]:
        """Requests of random tokens; their prompts by id."""
        rng = random.Random(seed)
        delta = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
        prompts = {}
        for _ in range(count):
            self.serial += 1
            ids = [rng.randrange(self.vocabulary) for _ in range(length)]
            params = self.vllm.SamplingParams(
                temperature=temperature, max_tokens=output, ignore_eos=True, detokenize=False, output_kind=delta,
                seed=rng.randrange(2**31) if temperature else None,
            )  # fmt: skip
            name = f"r{self.serial}"
            self.engine.add_request(name, {"prompt_token_ids": ids}, params)
            prompts[name] = ids
        return prompts

    def rate(self, requests: int, input: int, output: int, seed: int, temperature: float = 0.0) -> dict[str, Any]:
        began = time.perf_counter()
        prompts = self._add(requests, input, output, seed, temperature)
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        tokens: dict[str, list[int]] = {name: [] for name in prompts}
        while self.engine.has_unfinished_requests():
            told = self.engine.step()
            now = time.perf_counter() - began
            for request in told:
                new = list(request.outputs[0].token_ids)
                if new:
                    first.setdefault(request.request_id, now)
                    last[request.request_id] = now
                    tokens[request.request_id] += new
        seconds = time.perf_counter() - began
        counted = [len(ids) for ids in tokens.values()]
        assert counted == [output] * requests, counted
        return {
            "seconds": round(seconds, 5),
            "tokens": sum(counted),
            "ttft": [round(first[name], 5) for name in prompts],
            "tpot": [round((last[n] - first[n]) / max(output - 1, 1), 7) for n in prompts],
            "said": hashlib.sha256(json.dumps(list(tokens.values())).encode()).hexdigest()[:16],
            "wrong": None if temperature else self._wrong(prompts, tokens),
        }

    def _wrong(self, prompts: dict[str, list[int]], tokens: dict[str, list[int]]) -> int | None:
        if self.permutation is None:
            return None
        bad = 0
        for name, ids in prompts.items():
            at = ids[-1]
            for token in tokens[name]:
                bad += self.permutation[at] != token
                at = token
        return bad

    def host(self, requests: int, steps: int, profiled: int) -> dict[str, Any]:
        scheduler = self.core.scheduler
        seen = self.phases.Phases(self.core, self.runner)
        try:
            # As many tokens as steps with every draft accepted would take.
            most = 1 + getattr(self.runner, "num_speculative_steps", 0)
            self._add(requests, 32, (WARM_STEPS + steps + profiled + 8) * most + 16, 11)
            warm = 0
            while warm < WARM_STEPS:
                self.engine.step()
                warm += len(scheduler.running) == requests and not scheduler.waiting
            seen.timing = True
            timed = []
            for _ in range(steps):
                seen.times.clear()
                seen.measured(self.phases.STEP, self.engine.step, (), {})
                timed.append(dict(seen.times))
            assert len(scheduler.running) == requests, "requests ended while their steps were timed"
            seen.timing = False
            result = {"requests": requests, "us": self.phases.summary(timed)}
            if profiled:
                result["a step"] = self._profiled(seen, profiled)
                assert len(scheduler.running) == requests, "requests ended while their steps were profiled"
        finally:
            seen.remove()
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return result

    def _profiled(self, seen: Any, steps: int) -> dict[str, Any]:
        kinds = self.torch.profiler.ProfilerActivity
        kinds = [kinds.CPU, kinds.CUDA] if self.cuda else [kinds.CPU]
        seen.marking = True
        with self.torch.profiler.profile(activities=kinds) as profile:
            for _ in range(steps):
                seen.measured(self.phases.STEP, self.engine.step, (), {})
        seen.marking = False
        counted: dict[str, Any] = self.phases.counts(profile.events(), steps)
        return counted


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
