"""The server's limits, its refusals, and starts that fail."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.gpu_manager.torch_server.errors import InvalidModel
from services.gpu_manager.torch_server.options import read_options
from tests.services.gpu_manager.torch_server.models import DECODER, ENCODER, write_encoder, write_tokenizer
from tests.services.gpu_manager.torch_server.server import RunningServer, failed_start, running_server


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/score", {"inputs": ["w1 " * 2000]}, 413, "too_large"),
        ("/v1/score", {"inputs": []}, 422, "invalid_body"),
        ("/v1/score", {"inputs": [["w1", "w2", "w3"]]}, 422, "invalid_body"),
        ("/v1/score", {"inputs": ["w1"], "label": 1}, 422, "invalid_body"),
        ("/v1/score", {"inputs": ["w1"], "model": "x"}, 422, "invalid_body"),
        ("/v1/score", {"inputs": ["w1 " * 47]}, 422, "too_long"),
        ("/v1/score", {"inputs": [7]}, 422, "invalid_body"),
        ("/v1/embed", {"inputs": ["w1"]}, 404, "wrong_task"),
        ("/v1/logprobs", {"tokens": [[1, 2]]}, 404, "wrong_task"),
        ("/v1/chat", {}, 404, "no_route"),
        ("/state", {}, 405, "no_route"),
    ],
)
def test_refusals_have_a_status_and_a_code(
    scorer: RunningServer, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = scorer.post(path, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json()["message"]
    assert scorer.result("/v1/score", {"inputs": ["w1"]})


@pytest.mark.parametrize("body", [b"", b"{", b'{"inputs": ["\\ud800"]}', b'{"inputs": ["\xff"]}', b"[" * 2000])
def test_bodies_that_are_no_json_are_refused(scorer: RunningServer, body: bytes) -> None:
    answer = scorer.client.post("/v1/score", content=body)
    assert answer.status_code in (400, 422), answer.text
    assert scorer.result("/v1/score", {"inputs": ["w1"]})


def test_the_body_is_bounded_also_without_a_length(scorer: RunningServer) -> None:
    answer = scorer.client.post("/v1/score", content=(b" " * 512 for _ in range(64)))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_too_many_requests_are_sent_away_with_a_time(scorer: RunningServer) -> None:
    """Four requests whose bodies do not come take all places until they are closed."""
    host, port = scorer.client.base_url.host, scorer.client.base_url.port
    head = b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    held = [socket.create_connection((host, port or 0)) for _ in range(4)]
    try:
        for each in held:
            each.sendall(head)
            assert each.recv(100).startswith(b"HTTP/1.1 100 ")
        answer = scorer.post("/v1/score", {"inputs": ["w1"]})
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert scorer.state()["running"] == 0
        assert scorer.result("/evict", None)["residency"] == "asleep1"
        assert scorer.result("/restore", None)["residency"] == "resident"
    finally:
        for each in held:
            each.close()
    while scorer.post("/v1/score", {"inputs": ["w1"]}).status_code == 503:
        time.sleep(0.01)


def broken_config(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps({**ENCODER, **changes}))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def other_tokenizer(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(ENCODER))
    words = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"x{number}" for number in range(100)))
    write_tokenizer(folder, words)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json; name the folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), "name the folder that has the model's files"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is no tokenizer"),
        (cut_weights, "is truncated"),
        (other_tokenizer, "they belong to different models"),
        (
            broken_config(architectures=["T5Model"]),
            "supported is one of BertForSequenceClassification, BertModel, Llama",
        ),
        (broken_config(hidden_size=64), "with this config.json it should be [40, 64]"),
        (broken_config(num_hidden_layers=3), "have no tensor bert.encoder.layer.2"),
        (broken_config(hidden_act="swish"), "is not supported"),
        (broken_config(quantization_config={"bits": 4}), "quantised weights are not supported"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    torch_installed: None, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    write_encoder(tmp_path)
    spoil(tmp_path)
    with pytest.raises(InvalidModel, match=re.escape(message)):
        load_model(tmp_path, "cpu")


def load_model(folder: Path, device: str) -> None:
    from services.gpu_manager.torch_server.serving import load

    load(read_options(["--model", str(folder), "--port", "0", "--device", device]))


def test_such_a_start_ends_with_one_sentence(torch_installed: None, tmp_path: Path) -> None:
    cut_weights(write_encoder(tmp_path))
    status, error = failed_start(tmp_path, "--device", "cpu")
    assert (status, error.count("\n")) == (2, 1), error
    assert "is truncated" in error


@pytest.mark.parametrize(
    ("device", "message"),
    [("tpu:0", "write auto, cpu or cuda:N"), ("mps", "write auto, cpu or cuda:N"), ("cuda:63", "is not there")],
)
def test_a_device_that_is_not_there_is_refused(
    torch_installed: None, tmp_path: Path, device: str, message: str
) -> None:
    with pytest.raises(InvalidModel, match=message):
        load_model(write_encoder(tmp_path), device)


def test_an_address_that_is_not_this_machines_ends_the_start(torch_installed: None, tmp_path: Path) -> None:
    status, error = failed_start(write_encoder(tmp_path), "--host", "192.0.2.1")
    assert (status, "cannot be listened on" in error) == (2, True), error


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--port", "65536", "a whole number from 0 to 65535"),
        ("--max-tokens", "1", "a whole number from 2"),
        ("--timeout-s", "nan", "more than 0"),
        ("--timeout-s", "0", "more than 0"),
    ],
)
def test_wrong_options_are_explained(capsys: pytest.CaptureFixture[str], option: str, value: str, message: str) -> None:
    with pytest.raises(SystemExit):
        read_options(["--model", "m", "--port", "1", option, value])
    assert message in capsys.readouterr().err


def test_a_small_memory_is_reported_as_such(torch_installed: None, tmp_path: Path) -> None:
    """The manager recognises the text, and evicts another model instead of calling the engine broken."""
    from services.gpu_manager.backends.protocol import means_out_of_memory

    big = {**DECODER, "architectures": ["LlamaForCausalLM"], "vocab_size": 1 << 20, "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(big | {"num_hidden_layers": 1, "intermediate_size": 1}))
    sparse_weights(tmp_path / "model.safetensors", big)
    limited = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30));"
        "runpy.run_module('services.gpu_manager.torch_server', run_name='__main__')"
    )
    ended = subprocess.run(
        (sys.executable, "-c", limited, "--model", str(tmp_path), "--port", "0", "--device", "cpu"),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert means_out_of_memory(ended.stderr)


def sparse_weights(path: Path, config: dict[str, Any]) -> None:
    """Write a file with a hole of 32 GiB in place of data."""
    hidden, head = config["hidden_size"], config["head_dim"]
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "lm_head.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "model.layers.0.self_attn.q_proj.weight": (config["num_attention_heads"] * head, hidden),
        "model.layers.0.self_attn.k_proj.weight": (config["num_key_value_heads"] * head, hidden),
        "model.layers.0.self_attn.v_proj.weight": (config["num_key_value_heads"] * head, hidden),
        "model.layers.0.self_attn.o_proj.weight": (hidden, config["num_attention_heads"] * head),
        "model.layers.0.mlp.gate_proj.weight": (1, hidden),
        "model.layers.0.mlp.up_proj.weight": (1, hidden),
        "model.layers.0.mlp.down_proj.weight": (hidden, 1),
        "model.layers.0.input_layernorm.weight": (hidden,),
        "model.layers.0.post_attention_layernorm.weight": (hidden,),
    }
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def test_without_torch_the_start_says_what_to_install(tmp_path: Path) -> None:
    without = (
        "import importlib.util, runpy, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "runpy.run_module('services.gpu_manager.torch_server', run_name='__main__')"
    )
    ended = subprocess.run(
        (sys.executable, "-c", without, "--model", str(tmp_path), "--port", "0"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "pip install 'treadle[torch]'" in ended.stderr


def test_the_state_describes_the_server(scorer: RunningServer) -> None:
    state = scorer.state()
    assert {name: state[name] for name in ("architecture", "task", "dtype", "device", "labels", "max_tokens")} == {
        "architecture": "BertForSequenceClassification", "task": "score", "dtype": "F32", "device": "cpu", "labels": 1,
        "max_tokens": 48,
    }  # fmt: skip
    assert (state["pid"], state["failure"], state["reserved_bytes"]) == (scorer.process.pid, "", None)


def test_a_signal_ends_the_server_with_status_0(torch_installed: None, tmp_path: Path) -> None:
    with running_server(write_encoder(tmp_path), "--device", "cpu") as server:
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
