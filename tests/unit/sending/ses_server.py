"""SES v2 on the loopback: real HTTP for a real botocore client, with the answers that a test wants."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SesServer:
    """Counts requests and connections. ``script`` holds the next answers; when it is empty, all is accepted.

    An answer is ``(status, error code, text)``, or ``"hang"`` (no answer), or ``"close"`` (the connection is cut
    after the request was read).
    """

    def __init__(self) -> None:
        self.requests: list[dict] = []
        self.connections = 0
        self.script: deque = deque()
        self.accepted: list[dict] = []
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                answer = outer.script.popleft() if outer.script else None
                if answer == "hang":
                    outer._over.wait(10)
                    self.close_connection = True
                elif answer == "close":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif answer is None:
                    outer.accepted.append(body)
                    self._reply(200, {"MessageId": f"ses-{len(outer.accepted)}"})
                else:
                    status, code, text = answer
                    self._reply(status, {"message": text}, code)

            def _reply(self, status: int, content: dict, code: str | None = None) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if code:
                    self.send_header("x-amzn-ErrorType", code)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


def wait_for(condition, seconds: float = 2) -> bool:
    """Whether ``condition`` came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
