"""A web application that answers at once, and lets its page ask how far the work is.

`POST /may` enqueues a report and answers 202; `GET /may` says how it stands. Python's own HTTP
server is enough; a framework changes how routes are written, and nothing else. It prints:

    POST /may: 202 {"created": true}
    POST /may: 202 {"created": false}
    GET /may: 200 {"state": "completed", "result": "report-may.pdf"}
    GET /june: 404 {}
"""

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import bide

queue = bide.Queue("reports")


@queue.task
def report(month: str) -> str:
    return f"report-{month}.pdf"


class Application(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        # The id comes from what is asked for: a second click finds the first job.
        job = report.options(job_id=self.path).enqueue(self.path[1:])
        self.answer(202, created=job.created)

    def do_GET(self) -> None:
        try:
            job = queue.fetch(self.path)
        except bide.JobNotFound:
            self.answer(404)
        else:
            self.answer(200, state=job.state, result=job.result)

    def answer(self, code: int, **content: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Application) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for method, path in [("POST", "/may"), ("POST", "/may"), ("GET", "/may"), ("GET", "/june")]:
            if (method, path) == ("GET", "/may"):
                queue.fetch("/may").wait(timeout=30)
            line = HTTPConnection("127.0.0.1", server.server_port)
            line.request(method, path)
            answer = line.getresponse()
            print(f"{method} {path}: {answer.status} {answer.read().decode()}")
        server.shutdown()
