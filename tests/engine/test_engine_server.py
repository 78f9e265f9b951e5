"""A server on loopback, with drafts: concurrent clients, some that vanish, and an orderly end."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from typing import Any

import jobs
import pytest
from e2e import chain

LENGTH = 48
LIMIT = 400


class Server:
    """`vllm serve` on a free port of this machine."""

    def __init__(self, engines: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        models = engines.models
        draft = {"method": "dspark", "model": str(models / "draft-half"), "num_speculative_tokens": jobs.STEPS}
        arguments = {
            "--model": models / "chain", "--served-model-name": "chain", "--host": "127.0.0.1", "--port": self.port,
            "--dtype": "float32", "--max-model-len": 256, "--max-num-seqs": 8, "--max-num-batched-tokens": 256,
            "--kv-cache-memory-bytes": 64 << 20, "--speculative-config": json.dumps(draft),
        }  # fmt: skip
        command = [engines.python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        for name, value in arguments.items():
            command += [name, str(value)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("KUNLUN_", "VLLM_", "PYTHON"))}
        env = {
            **clean, "PYTHONPATH": str(engines.tree), "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }  # fmt: skip
        self.log = engines.work / "server.log"
        with self.log.open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                command, env=env, cwd=engines.work, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> None:
        ends = time.monotonic() + LIMIT
        while time.monotonic() < ends and self.process.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.5)
        pytest.fail(f"the server does not start\n{self.log.read_text(encoding='utf-8', errors='replace')[-4000:]}")

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = self.connection()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

    def ask(self, prompt: list[int], *, stream: bool, length: int = LENGTH) -> http.client.HTTPResponse:
        body = {
            "model": "chain", "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True,
            "stream": stream, "return_token_ids": True,
        }  # fmt: skip
        connection = self.connection()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.connection = connection  # type: ignore[attr-defined]  (kept open, and closed by whoever leaves)
        return response

    def tokens(self, prompt: list[int], *, stream: bool) -> list[int]:
        response = self.ask(prompt, stream=stream)
        if not stream:
            return list(json.loads(response.read())["choices"][0]["token_ids"])
        said: list[int] = []
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                for choice in json.loads(line[6:])["choices"]:
                    said += choice.get("token_ids") or []
        return said

    def end(self, number: int, limit: float) -> int | None:
        """Send a signal to the server alone, as a process manager does; its exit status, None where it goes on."""
        os.kill(self.process.pid, number)
        try:
            return self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None


@pytest.fixture(scope="module")
def server(engines):
    server = Server(engines)
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()


def test_concurrent_clients_get_what_the_model_says(server):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(server.tokens, prompt, stream=i % 2 == 0) for i, prompt in enumerate(jobs.SIXTEEN)]
        said = [one.result() for one in asked]
    assert said == [chain.continuation(prompt, LENGTH) for prompt in jobs.SIXTEEN]


def test_drafts_were_accepted(server):
    _, metrics = server.get("/metrics")
    accepted = [
        line for line in metrics.decode().splitlines() if line.startswith("vllm:spec_decode_num_accepted_tokens_total")
    ]
    assert accepted and float(accepted[0].split()[-1]) > 0


def test_the_server_says_which_fork_it_is(server, engines):
    status, body = server.get("/version")
    assert status == 200
    assert json.loads(body)["kunlunfork"]["pin"] == engines.version


def test_clients_that_vanish_disturb_nobody(server):
    for i in range(12):
        response = server.ask(jobs.SIXTEEN[i], stream=True, length=200)
        if i % 3:
            response.readline()
        response.connection.sock.close() if response.connection.sock else response.close()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda prompt: server.tokens(prompt, stream=True), jobs.EIGHT))
    assert said == [chain.continuation(prompt, LENGTH) for prompt in jobs.EIGHT]
    ends = time.monotonic() + 60
    running = "vllm:num_requests_running"
    while time.monotonic() < ends:
        lines = [line for line in server.get("/metrics")[1].decode().splitlines() if line.startswith(running)]
        if lines and all(float(line.split()[-1]) == 0 for line in lines):
            return
        time.sleep(0.5)
    pytest.fail(f"requests of clients that are gone still run: {lines}")


def test_sigterm_ends_it_in_order(server):
    """The last test of this module. The client of a running request vanishes: one that stays is waited for."""
    response = server.ask(jobs.EIGHT[0], stream=True, length=200)
    response.readline()
    response.close()
    response.connection.close()
    assert server.end(signal.SIGTERM, LIMIT) in (0, -signal.SIGTERM)
