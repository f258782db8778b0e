"""A web application that answers at once, and lets its page ask how far the work is.

`POST /reports/may` enqueues and answers 202; `GET /reports/may` says how it stands. Python's own
HTTP server is enough; a framework changes how routes are written, and nothing else. It prints:

    POST, 1st: 202 {"new": true}
    POST, 2nd: 202 {"new": false}
    GET, may:  200 {"status": "completed", "result": "report-may.pdf"}
    GET, june: 404 {}
"""

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError

import bide

queue = bide.Queue("reports")


@queue.task
def report(month: str) -> str:
    return f"report-{month}.pdf"


class Application(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        month = self.path.rpartition("/")[2]
        # The id comes from what is asked for: a second click finds the first job.
        job = report.options(job_id=f"report-{month}").enqueue(month)
        self.answer(202, new=job.new)

    def do_GET(self) -> None:
        try:
            job = queue.fetch(f"report-{self.path.rpartition('/')[2]}")
        except bide.JobNotFound:
            return self.answer(404)
        self.answer(200, status=job.status, result=job.result)

    def answer(self, code: int, **content: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None: ...


def ask(method: str, url: str) -> str:
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, method=method))
    except HTTPError as error:
        answer = error
    with answer:
        return f"{answer.status} {answer.read().decode()}"


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Application) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        print("POST, 1st:", ask("POST", f"{root}/reports/may"))
        print("POST, 2nd:", ask("POST", f"{root}/reports/may"))
        queue.fetch("report-may").wait(timeout=30)
        print("GET, may: ", ask("GET", f"{root}/reports/may"))
        print("GET, june:", ask("GET", f"{root}/reports/june"))
        server.shutdown()
