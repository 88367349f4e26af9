"""Write the same three services with small models on the CPU, for a machine without a GPU.

    python examples/one-gpu/on_the_cpu.py /tmp/one-gpu
    GPU_MANAGER_SERVICES=/tmp/one-gpu/services.json GPU_MANAGER_DEVICES='[{"memory_gb": 1.25}]' treadle up --detach

It needs the packages of `treadle demo --gpu`, and names those that are missing. PyTorch must be its build for the CPU,
because the build for CUDA takes more memory than the entries declare. The models say little about answers:
the judge is Gemma 3 270M, and the reward models are a sentence encoder with two random heads.
"""

import argparse
import json
from pathlib import Path

from treadle.model_demo.models import ModelsMissing, check_packages, encoder_folder, write_models, write_reward_model


def main() -> None:
    parser = argparse.ArgumentParser(description="Write three small model services for a machine without a GPU.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    try:
        check_packages()
    except ModelsMissing as missing:
        parser.exit(2, f"{missing}\n")
    folder.mkdir(parents=True)
    models = write_models(folder)
    write_reward_model(folder / "reward-b", encoder_folder(), seed=8)
    judge, reward_a = models.command("judge"), models.command("reward")
    reward_b = [str(folder / "reward-b") if part == str(folder / "reward") else part for part in reward_a]
    torch = {"backend": "torch", "api": "treadle", "memory_gb": {"awake": 0.56, "asleep": 0.46}, "concurrency": 4}
    services = {
        "judge": {
            "backend": "vllm",
            "model": "gemma",
            "command": judge,
            "env": {"VLLM_SERVER_DEV_MODE": "1"},
            "memory_gb": {"awake": 0.55, "asleep": 0.1},
            "canary": {"prompt": "2+2=", "expect": "4"},
        },
        "reward-a": {**torch, "model": str(folder / "reward"), "command": reward_a},
        "reward-b": {**torch, "model": str(folder / "reward-b"), "command": reward_b},
    }
    (folder / "services.json").write_text(json.dumps(services, indent=2))
    print(folder / "services.json")  # noqa: T201


if __name__ == "__main__":
    main()
