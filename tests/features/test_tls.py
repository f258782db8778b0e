"""Over TLS, on the distribution's server (the wheel's has none): which certificate is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bide import Queue, Worker
from bide.embedded import Server
from bide.errors import ServerUnavailable
from tests.support.nodes import free_port
from tests.support.programs import distribution_server
from tests.support.tls import NEEDED, make_certificate, tls_options

pytestmark = NEEDED


class Secured(NamedTuple):
    """A server whose certificate says `localhost`."""

    port: int
    ca: Path


@pytest.fixture
def secured(tmp_path: Path, tmp_server: Callable[..., Server]) -> Secured:
    make_certificate(tmp_path, "DNS:localhost")
    port = free_port()
    tmp_server(
        binary=distribution_server(),
        extra=(
            *("--tls-port", str(port)),
            *tls_options(tmp_path),
        ),
    )
    return Secured(port, tmp_path / "ca.pem")


def test_jobs_run_over_tls(secured: Secured) -> None:
    url = f"rediss://localhost:{secured.port}?ssl_ca_certs={secured.ca}"
    queue = Queue("mail", url=url)
    job = queue.enqueue("tests.support.jobs:add", 1, 2)
    assert Worker([queue], modules=["tests.support.jobs"]).run(burst=True) == 1
    assert job.refresh().state == "completed"
    queue.close()


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("rediss://127.0.0.1:{port}?ssl_ca_certs={ca}", "as its certificate does"),
        ("rediss://localhost:{port}", "name the authority"),
        ("rediss://localhost:{port}?ssl_check_hostname=false", "name the authority"),
        ("rediss://localhost:{port}?ssl_ca_certs={ca}.gone", "look at the path"),
        ("redis://localhost:{port}", "use rediss://"),
    ],
)
def test_what_is_not_good_enough_says_what_would_be(secured: Secured, url: str, cure: str) -> None:
    queue = Queue("mail", url=url.format(port=secured.port, ca=secured.ca), retry_for=0)
    with pytest.raises(ServerUnavailable, match=cure):
        queue.counts()
    queue.close()


def test_a_client_shows_its_certificate_to_a_server_that_demands_one(
    tmp_path: Path, tmp_server: Callable[..., Server]
) -> None:
    make_certificate(tmp_path, "DNS:localhost")
    port = free_port()
    extra = ("--tls-port", str(port), *tls_options(tmp_path, clients="yes"))
    tmp_server(binary=distribution_server(), extra=extra)
    url = f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'ca.pem'}"
    own = f"&ssl_certfile={tmp_path / 'certificate.pem'}&ssl_keyfile={tmp_path / 'key.pem'}"
    without = Queue("mail", url=url, retry_for=0)
    with pytest.raises(ServerUnavailable, match="own certificate"):
        without.counts()
    without.close()
    queue = Queue("mail", url=url + own)
    job = queue.enqueue("tests.support.jobs:add", 1, 2)
    assert Worker([queue], modules=["tests.support.jobs"]).run(burst=True) == 1
    assert job.refresh().state == "completed"
    queue.close()


def test_a_worker_does_not_wait_for_a_server_that_it_does_not_trust(secured: Secured) -> None:
    with pytest.raises(ServerUnavailable, match="name the authority"):
        Worker("mail", url=f"rediss://localhost:{secured.port}").run()


@pytest.mark.parametrize(
    "query", ["?ssl_ca_certs={ca}&ssl_check_hostname=false", "?ssl_cert_reqs=none"]
)
def test_what_is_not_to_be_checked_is_not(secured: Secured, query: str) -> None:
    queue = Queue("mail", url=f"rediss://127.0.0.1:{secured.port}" + query.format(ca=secured.ca))
    assert queue.counts().waiting == 0
    queue.close()
