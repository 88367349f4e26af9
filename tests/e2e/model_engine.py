"""An inference engine for tests: a real process that speaks OpenAI's chat completions.

It answers `<model> counts <words of the last message>`, after the seconds in `--answer-s`. A completion of `2+2=` is 4.
With `--serves-once FILE`, each start but the first listens and never answers, not even its health check. With
`--memory-mb`, it has so much memory. With `--fails FILE`, each chat is answered by 500 while the file exists, and its
time is a line there.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--start-s", type=float, default=0.1)
    parser.add_argument("--answer-s", type=float, default=0.02)
    parser.add_argument("--serves-once", type=Path)
    parser.add_argument("--memory-mb", type=int, default=0)
    parser.add_argument("--fails", type=Path)
    options = parser.parse_args()
    memory = b"\1" * (options.memory_mb << 20)
    if options.serves_once is not None:
        if options.serves_once.exists():
            with socket.create_server(("127.0.0.1", options.port)):
                time.sleep(600)
        options.serves_once.touch()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _send(self, document: Any, status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:  # the base class's name
            self._send({"status": "ok"})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "prompt" in asked:
                self._send({"choices": [{"index": 0, "text": "4", "finish_reason": "stop"}]})
                return
            if options.fails is not None and options.fails.exists():
                with options.fails.open("a") as file:
                    file.write(f"{time.monotonic()}\n")
                self._send({"error": {"message": "its kernel failed"}}, 500)
                return
            time.sleep(options.answer_s)
            words = len(asked["messages"][-1]["content"].split())
            message = {"role": "assistant", "content": f"{options.model} counts {words}"}
            self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    time.sleep(options.start_s)
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
    del memory  # it is kept until here


if __name__ == "__main__":
    main()
