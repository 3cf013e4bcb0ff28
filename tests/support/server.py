"""A server in a thread of this process, on a port of its own, and plain requests to it."""

import asyncio
import http.client
import json
import socket
import threading
from contextlib import contextmanager

from hdlm.serve.app import Server
from hdlm.serve.guard import Access
from hdlm.serve.limits import Limits
from hdlm.serve.run import prepare


@contextmanager
def serving(models, *, access=None, backend=None, **limits):
    """A `Client` of a server with these models, by name."""
    server = Server(models, limits=Limits(**limits), access=access or Access(), backend=backend, quiet=True)
    listening = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()
    running = prepare(server, drain=5, ready=ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listening])), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield Client(server, listening.getsockname()[1])
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class Client:
    """Requests to a server, one connection each."""

    def __init__(self, server, port):
        self.server, self.port, self.url = server, port, f"http://127.0.0.1:{port}"

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def send(self, method, path, body=None, headers=None):
        """Status, headers and body, the last as JSON where it is."""
        connection = self.connect()
        sent = {"Content-Type": "application/json"} if body is not None else {}
        content = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, content, sent | (headers or {}))
        answer = connection.getresponse()
        found, kind = answer.read(), answer.getheader("content-type", "")
        connection.close()
        return answer.status, answer.headers, json.loads(found) if kind.startswith("application/json") else found

    def get(self, path, headers=None):
        return self.send("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        """The answer to a body that is accepted."""
        status, _, found = self.send("POST", path, body, headers)
        assert status == 200, found
        return found

    def refused(self, path, body, headers=None):
        """Status and error of the answer to a body that is not."""
        status, _, found = self.send("POST", path, body, headers)
        assert 400 <= status < 500, (status, found)
        return status, found["error"]

    def events(self, path, body, headers=None):
        """The events of a stream, which ends as it should."""
        status, headers, found = self.send("POST", path, body, headers)
        assert status == 200, found
        assert headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in found.decode().split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]
