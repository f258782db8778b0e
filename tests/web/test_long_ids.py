"""An id that another program has written may have any length: pages show the beginning of it."""

from __future__ import annotations

import re

import pytest
import redis

from bide import Queue
from bide.protocol.keys import keys_of
from tests.support.serving import Page

LONG = "x" * 900
LONGER = "y" * 50_000
KEYS = keys_of("mail")


@pytest.fixture
def planted(one_url: str, mail: Queue) -> None:
    """Delayed jobs and failed ones, of such ids; the longer of them is followed by another."""
    mail.enqueue("shop:remind", delay=60, job_id="usual")
    with redis.Redis.from_url(one_url) as raw:
        for after, id in enumerate((LONGER, LONG)):
            raw.zadd(KEYS.names["due"][4], {id: 2**51 + after})
            raw.hset(KEYS["jobs"], id, b'{"task":"shop:remind"}')
            raw.zadd(KEYS["failed"], {f"{id}f": 1})
            raw.hset(KEYS["jobs"], f"{id}f", b'{"task":"shop:remind"}')


def read(page: Page, path: str, **asked: str) -> str:
    """What a page shows, without its tags."""
    reply = page.get(path, **asked)
    assert reply.status == 200
    assert len(reply.text) < 50_000
    return re.sub(r"<[^>]*>", " ", reply.text)


@pytest.mark.usefixtures("planted")
def test_pages_show_as_much_of_an_id_as_an_id_may_have(desk: Page) -> None:
    for path, asked in [
        ("/jobs", {}),
        ("/jobs", {"state": "delayed"}),
        ("/queue", {"q": "mail"}),
        ("/range", {"from": "2030-01-01T00:00:00Z", "to": "2060-01-01T00:00:00Z"}),
        ("/job", {"id": LONG}),
    ]:
        shown = read(desk, path, **asked)
        assert "x" * 128 + "…" in shown, path
        assert not re.search(r"(x|y){129}", shown), path
    assert read(desk, "/failures")
    listed = {job["id"] for job in desk.get("/api/jobs").json["jobs"]}
    assert {LONG, LONGER, "usual"} < listed, "the JSON has all of it"
    assert desk.get("/api/job", id=LONG).json["id"] == LONG


@pytest.mark.usefixtures("planted")
def test_a_list_goes_on_behind_one(page: Page) -> None:
    found, after = [], ""
    while True:
        told = page.get("/api/jobs", count=1, after=after).json
        found += [job["id"] for job in told["jobs"]]
        after = told["next"]
        if not after:
            break
        assert len(after) < 1_000
    assert sorted(found) == sorted([LONG, LONGER, f"{LONG}f", f"{LONGER}f", "usual"])
