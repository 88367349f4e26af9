"""sglang-router: manual placement by the routing key, its sticky policy."""

from treadle.lab.bench.peers.model_router import serve


def _arguments(engine: str, port: int, metrics: int) -> list[str]:
    return [
        *("launch", "--worker-urls", engine, "--policy", "manual"),
        *("--port", str(port), "--prometheus-port", str(metrics), "--log-level", "error"),
    ]


def main() -> None:
    serve("sglang-router", _arguments)


if __name__ == "__main__":
    main()
