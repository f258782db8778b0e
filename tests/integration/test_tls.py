"""Over TLS, on the distribution's server (the wheel's has none): which certificate is accepted."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bide import Queue, Worker
from bide.embedded import Server
from bide.errors import ServerUnavailable

pytestmark = pytest.mark.skipif(
    not (shutil.which("redis-server") and shutil.which("openssl")),
    reason="needs a redis-server that speaks TLS, and openssl",
)


class Secured(NamedTuple):
    """A server whose certificate says `localhost`."""

    port: int
    ca: Path


def openssl(directory: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=directory, check=True, capture_output=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def secured(tmp_path: Path, tmp_server: Callable[..., Server]) -> Secured:
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(tmp_path, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl(tmp_path, *new, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=localhost")
    (tmp_path / "names").write_text("subjectAltName=DNS:localhost")
    openssl(
        tmp_path, "x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-CAcreateserial", "-out", "certificate.pem", "-extfile", "names",
    )  # fmt: skip
    port = free_port()
    tmp_server(
        binary="redis-server",
        extra=(
            *("--tls-port", str(port)),
            *("--tls-cert-file", str(tmp_path / "certificate.pem")),
            *("--tls-key-file", str(tmp_path / "key.pem")),
            *("--tls-ca-cert-file", str(tmp_path / "ca.pem")),
            *("--tls-auth-clients", "no"),
        ),
    )
    return Secured(port, tmp_path / "ca.pem")


def test_jobs_run_over_tls(secured: Secured) -> None:
    url = f"rediss://localhost:{secured.port}?ssl_ca_certs={secured.ca}"
    queue = Queue("mail", url=url)
    job = queue.enqueue("tests.integration.jobs:add", 1, 2)
    assert Worker([queue], modules=["tests.integration.jobs"]).work(burst=True) == 1
    assert job.refresh().status == "completed"
    queue.close()


@pytest.mark.parametrize(
    ("host", "query"),
    [
        ("127.0.0.1", "?ssl_ca_certs={ca}"),  # a good certificate, of another host
        ("localhost", ""),  # signed by nobody we know
        ("localhost", "?ssl_check_hostname=false"),
        ("localhost", "?ssl_ca_certs={ca}.gone"),
    ],
)
def test_a_certificate_that_is_not_good_enough(secured: Secured, host: str, query: str) -> None:
    queue = Queue("mail", url=f"rediss://{host}:{secured.port}" + query.format(ca=secured.ca))
    with pytest.raises(ServerUnavailable):
        queue.counts()
    queue.close()


@pytest.mark.parametrize(
    "query", ["?ssl_ca_certs={ca}&ssl_check_hostname=false", "?ssl_cert_reqs=none"]
)
def test_what_is_not_to_be_checked_is_not(secured: Secured, query: str) -> None:
    queue = Queue("mail", url=f"rediss://127.0.0.1:{secured.port}" + query.format(ca=secured.ca))
    assert queue.counts().waiting == 0
    queue.close()
