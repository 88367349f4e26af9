"""vllm-router: consistent hash by the session header."""

from treadle.lab.bench.peers.model_router import serve


def _arguments(engine: str, port: int, metrics: int) -> list[str]:
    return [
        *("--worker-urls", engine, "--policy", "consistent_hash"),
        *("--port", str(port), "--prometheus-port", str(metrics), "--log-level", "error"),
    ]


def main() -> None:
    serve("vllm-router", _arguments)


if __name__ == "__main__":
    main()
