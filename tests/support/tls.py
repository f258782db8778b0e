"""Certificates for the distribution's server; the wheel's has no TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import distribution_server

NEEDED = pytest.mark.skipif(
    not (distribution_server() and shutil.which("openssl")),
    reason="needs a redis-server that speaks TLS, and openssl",
)


def make_certificate(directory: Path, names: str) -> None:
    """Write `ca.pem`, and `certificate.pem` and `key.pem` of a server of these names.

    Args:
        directory: where to.
        names: as openssl takes them, `DNS:localhost,IP:127.0.0.1`.
    """
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    _openssl(directory, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    _openssl(directory, *new, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=server")
    (directory / "names").write_text(f"subjectAltName={names}")
    _openssl(
        directory, "x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-CAcreateserial", "-out", "certificate.pem", "-extfile", "names",
    )  # fmt: skip


def tls_options(directory: Path, *, clients: str = "no") -> tuple[str, ...]:
    """Options of a server that has that certificate, but for its port.

    With `clients="yes"` each client must show a certificate of the same authority.
    """
    return (
        *("--tls-cert-file", str(directory / "certificate.pem")),
        *("--tls-key-file", str(directory / "key.pem")),
        *("--tls-ca-cert-file", str(directory / "ca.pem")),
        *("--tls-auth-clients", clients),
    )


def _openssl(directory: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=directory, check=True, capture_output=True)
