"""Retries with growing pauses against a service that is down for a while.

A small HTTP server stands for the service: it answers 503 twice, and then 200. An answer that will
never get better (404) is final at once. It prints:

    attempt 1: HTTP Error 503: Service Unavailable
    attempt 2: HTTP Error 503: Service Unavailable
    attempt 3: {"rate": 1.08}
    failed after attempt 1: 404
"""

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError

import bide

queue = bide.Queue("rates")


@queue.task(retry=bide.Retry(5, base="100ms", cap="10s"), timeout="30s")
def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        if error.code == 404:
            raise bide.Fail("404") from error
        raise


answers = [503, 503, 200]


class Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code = answers.pop(0) if self.path == "/rate" else 404
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b'{"rate": 1.08}' if code == 200 else b"")

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    with HTTPServer(("127.0.0.1", 0), Service) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        job, lost = fetch.enqueue(f"{url}/rate"), fetch.enqueue(f"{url}/nothing")
        result = job.wait(timeout=30)
        for bad in job.attempts:
            print(f"attempt {bad.number}: {bad.error and bad.error.message}")
        print(f"attempt {job.attempt}: {result}")
        try:
            lost.wait(timeout=30)
        except bide.JobFailed as failed:
            print(f"failed after attempt {lost.attempt}: {failed.error.message}")
        service.shutdown()
