"""A server with drafts on a device: `python serve.py --models DIR --out FILE [--hide-views]`, one variant a process.

What tests/engine/test_engine_server.py asks of a server on a CPU, with the permutation model, whose answers are known:
they are what an engine without drafts says at temperature 0. vLLM is found on the path of this process, and
KUNLUN_KERNELS says what it runs. Exit code 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine import prompts

LENGTH, LIMIT = 128, 240
# Seen by every Python of the server, before vLLM: as on a device without a view of host memory.
HIDE = """
import importlib.abc, importlib.util, sys

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "vllm.v1.worker.gpu.buffer_utils":
            return None
        sys.meta_path.remove(self)
        import vllm.utils.torch_utils as torch_utils

        def none(*_):
            raise RuntimeError("hidden: this device has no view of host memory")

        torch_utils.get_accelerator_view_from_cpu_tensor = none
        return importlib.util.find_spec(name)

sys.meta_path.insert(0, Hide())
"""


class Server:
    def __init__(self, models: Path, work: Path, hide: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        draft = {"method": "dspark", "model": str(models / "dspark_acc67"), "num_speculative_tokens": 7}
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "target"),
            "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(self.port), "--skip-tokenizer-init",
            "--max-model-len", "1024", "--max-num-seqs", "64", "--max-num-batched-tokens", "8192",
            "--kv-cache-memory-bytes", str(8 << 30), "--gpu-memory-utilization", "0.3", "--speculative-config",
            json.dumps(draft), "--compilation-config", json.dumps({"cudagraph_capture_sizes": [8, 64, 128, 256, 512]}),
        ]  # fmt: skip
        env = dict(os.environ)
        if hide:
            (work / "sitecustomize.py").write_text(HIDE)
            env["PYTHONPATH"] = f"{work}:{env['PYTHONPATH']}"
        self.log = work / "server.log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command, env=env, cwd=work, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def wait(self) -> None:
        ends = time.monotonic() + LIMIT
        while time.monotonic() < ends and self.process.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.5)
        raise SystemExit(f"the server does not start\n{self.log.read_text(errors='replace')[-4000:]}")

    def ask(self, ids: list[int], length: int, stream: bool) -> http.client.HTTPResponse:
        body = {
            "model": "m", "prompt": ids, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": stream,
            "return_token_ids": True, "detokenize": False,
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.connection = connection  # type: ignore[attr-defined]
        return response

    def tokens(self, ids: list[int], stream: bool) -> list[int]:
        response = self.ask(ids, LENGTH, stream)
        if not stream:
            return list(json.loads(response.read())["choices"][0]["token_ids"])
        said: list[int] = []
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                for choice in json.loads(line[6:])["choices"]:
                    said += choice.get("token_ids") or []
        return said

    def metric(self, name: str) -> float:
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.split()[-1]) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hide-views", action="store_true")
    options = parser.parse_args()
    import torch

    models = options.models.resolve()
    step = torch.load(models / "perm.pt").tolist()

    def right(ids: list[int]) -> list[int]:
        said = [step[ids[-1]]]
        while len(said) < LENGTH:
            said.append(step[said[-1]])
        return said

    began = time.monotonic()
    asked = prompts(48, 128)
    with tempfile.TemporaryDirectory() as work:
        server = Server(models, Path(work), options.hide_views)
        try:
            server.wait()
            found: dict[str, Any] = {"start seconds": round(time.monotonic() - began)}
            _ask(server, asked, [right(ids) for ids in asked], found)
            response = server.ask(asked[0], 800, True)
            response.readline()
            response.close()
            response.connection.close()  # type: ignore[attr-defined]
            os.kill(server.process.pid, signal.SIGTERM)
            found["exit after SIGTERM"] = server.process.wait(timeout=60)
        finally:
            if server.process.poll() is None:
                os.killpg(server.process.pid, signal.SIGKILL)
            log = server.log.read_text(errors="replace")
        found["plan"] = sorted(
            {line.split("kunlunfork", 1)[1][:160] for line in log.splitlines() if "kunlunfork" in line}
        )
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found), flush=True)
    good = found["wrong"] == found["wrong after clients that vanished"] == found["still running"] == 0
    return int(not good or found["accepted drafts"] <= 0 or found["exit after SIGTERM"] not in (0, -signal.SIGTERM))


def _ask(server: Server, asked: list[list[int]], expected: list[list[int]], found: dict[str, Any]) -> None:
    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        jobs = [pool.submit(server.tokens, ids, i % 2 == 0) for i, ids in enumerate(asked)]
        said = [job.result() for job in jobs]
    found["requests"] = len(said)
    found["wrong"] = sum(a != b for a, b in zip(said, expected, strict=True))
    found["accepted drafts"] = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    found["version"] = json.loads(server.get("/version")[1])
    # Clients that vanish: some before the first token, some after it.
    for i in range(24):
        response = server.ask(asked[i], 800, True)
        if i % 3:
            response.readline()
        response.close()
        response.connection.close()  # type: ignore[attr-defined]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        again = list(pool.map(lambda ids: server.tokens(ids, True), asked[:16]))
    found["wrong after clients that vanished"] = sum(a != b for a, b in zip(again, expected[:16], strict=True))
    ends = time.monotonic() + 30
    while server.metric("vllm:num_requests_running") and time.monotonic() < ends:
        time.sleep(0.5)
    found["still running"] = server.metric("vllm:num_requests_running")


if __name__ == "__main__":
    sys.exit(main())
