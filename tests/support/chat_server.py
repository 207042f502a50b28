"""A local HTTP server that speaks the chat-completions protocol."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Answers each request by `reply(body, number)`: a text, or (status, headers)."""

    def __init__(self, reply):
        self.requests, self.lock = [], threading.Lock()
        self.now = self.most = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers), body, time.monotonic()))
                    number = len(outer.requests)
                    outer.now += 1
                    outer.most = max(outer.most, outer.now)
                answer = reply(body, number)
                with outer.lock:
                    outer.now -= 1
                status, headers, content = 200, {}, b""
                if isinstance(answer, str):
                    content = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
                elif isinstance(answer, bytes):
                    content = answer
                else:
                    status, headers, *rest = answer
                    content = rest[0] if rest else b"{}"
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def asked_word(body):
    return re.search(r"Word to replace: (.*)", body["messages"][0]["content"])[1]


def asked_caption(body):
    return re.search(r"Caption: (.*)", body["messages"][0]["content"])[1]


def change(body, number=0, word="cat"):
    return asked_caption(body).replace(asked_word(body), word)
