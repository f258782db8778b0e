"""Who may look, who may change, and what another site's page cannot make a browser do."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
import redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from bide import Queue
from bide.client import blocking
from bide.client.acl import SCRIPTS, rules
from bide.errors import UsageError
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.queues import RunningTask, WorkerReport
from bide.protocol.commands.worker import claim
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load
from bide.web import app
from bide.web.access import HEADERS
from tests.support.serving import Page, serve

LOOK, CHANGE = "look-look-look-look", "change-change-change"


def basic(token: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"ada:{token}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", ["/", "/queues", "/nothing", "/api/queues", "/static/x/page.css"])
def test_every_response_says_what_a_browser_may_do_with_it(path: str, page: Page) -> None:
    reply = page.get(path)
    for name, value in HEADERS.items():
        assert reply.headers[name] == value
    policy = reply.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "set-cookie" not in reply.headers
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("root", ["", "/static/x"])
def test_what_stands_beside_a_page_is_kept_for_as_long_as_it_is_of_its_version(
    root: str, one_url: str
) -> None:
    inner = app(url=one_url, local_role="viewer")
    host = Starlette(routes=[Mount(root or "/", inner)], lifespan=inner.router.lifespan_context)
    with serve(host, root=root) as page:
        reply = page.get("/")
        assert reply.headers["cache-control"] == "no-store"
        (at,) = re.findall(rf'src="{root}(/static/[0-9a-f]{{12}}/)live.js"', reply.text)
        asked = re.findall(r'from "\./([\w.]+)"', page.get(f"{at}live.js").text)
        assert asked == ["times.js"]
        for name in ("live.js", "page.css", *asked):
            kept = page.get(at + name).headers["cache-control"]
            assert kept == "public, max-age=31536000, immutable"
        assert page.get("/static/older/live.js").headers["cache-control"] == "no-store"
        gone = page.get(f"{at}gone.js")
        assert (gone.status, gone.headers["cache-control"]) == (404, "no-store")


def test_no_page_has_scripts_or_styles_in_it(page: Page, mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=60)
    for path in ("/", "/queues", "/queue?q=mail", "/jobs", f"/job?id={job.id}", "/failures"):
        text = page.get(path).text
        assert "style=" not in text
        assert "<style" not in text
        assert " on" not in {part[:3] for part in text.split("<")}
        assert text.count("<script") == text.count('<script type="module" src="/static/')
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def test_it_is_read_only_unless_told_otherwise(page: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    assert page.post(verb="pause", q="mail").status == 403
    assert not mail.counts().paused
    assert 'method="post"' not in page.get("/queue", q="mail").text


def test_without_credentials_only_this_machine_is_served(page: Page) -> None:
    assert page.get("/").status == 200
    for host in ("evil.example", "evil.example:80", "10.0.0.7", "127.0.0.1.evil.example", "", "["):
        reply = page.get("/api/queues", {"host": host})
        assert reply.status in (400, 403), host
        assert "queues" not in reply.text
    for host in ("localhost:8484", "127.0.0.1", "[::1]:1"):
        assert page.get("/", {"host": host}).status == 200


@pytest.mark.parametrize("client", [("10.1.2.3", 5), None])
def test_nor_is_another_machine_that_says_it_is_this_one(client: Any, one_url: str) -> None:
    page = app(url=one_url, local_role="viewer")

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        await page(scope | {"client": client} if scope["type"] == "http" else scope, receive, send)

    with serve(elsewhere) as asked:
        assert asked.get("/").status == 403


@pytest.mark.slow
@pytest.mark.parametrize(
    "header",
    [
        *("forwarded", "forwarded-for", "via", "x-real-ip", "x-client-ip", "client-ip"),
        *("x-forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
        *("x-forwarded-server", "x-forwarded-port", "x-cluster-client-ip", "true-client-ip"),
        *("CF-Connecting-IP", "cf-ray", "cf-visitor", "fly-client-ip", "fastly-client-ip"),
        *("x-envoy-external-address", "x-azure-clientip", "x-original-url", "cdn-loop"),
        *("x-vercel-forwarded-for", "x-nf-client-connection-ip", "do-connecting-ip", "x-scheme"),
        *("incap-client-ip", "x-sucuri-clientip", "x-remote-ip", "x-remote-addr", "x-real-port"),
        *("x-originating-ip", "x-varnish", "x-amzn-trace-id", "x-arr-log-id", "x-proxyuser-ip"),
        *("akamai-origin-hop", "tailscale-user-login", "x-appengine-user-ip", "wl-proxy-client-ip"),
        *("x-azure-socketip", "x-original-host", "x-rewrite-url", "x-host", "proxy-client-ip"),
        *("x-another-client-ip", "another-connecting-ip", "x-other-forwarded-for", "x-any-userip"),
    ],
)
def test_nor_is_another_machine_whose_request_a_proxy_of_this_one_passes_on(
    page: Page, header: str
) -> None:
    assert page.get("/", {header: "127.0.0.1"}).status == 403


def test_no_header_of_a_browser_is_taken_for_one_of_a_proxy(page: Page) -> None:
    names = (
        *("accept", "accept-encoding", "accept-language", "cache-control", "connection", "cookie"),
        *("dnt", "downlink", "if-modified-since", "if-none-match", "keep-alive", "origin-agent"),
        *("pragma", "priority", "range", "referer", "save-data", "sec-ch-ua", "sec-ch-ua-platform"),
        *("sec-fetch-mode", "sec-fetch-user", "sec-gpc", "te", "upgrade-insecure-requests"),
        *("user-agent", "viewport-width", "x-requested-with"),
    )
    sent = dict.fromkeys(names, "1") | {"connection": "close"}
    assert page.get("/", sent).status == 200


def test_who_may_look_must_be_said() -> None:
    with pytest.raises(
        UsageError, match=r"^No role is given: give app\(\) an authorize= or tokens"
    ):
        app()


def test_tokens_part_viewers_from_operators(one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    with serve(app(url=one_url, viewer_token=LOOK, operator_token=CHANGE)) as page:
        nobody = page.get("/")
        assert nobody.status == 401
        assert nobody.headers["www-authenticate"].startswith("Basic ")
        assert "mail" not in nobody.text
        assert page.get("/", {"host": "page.example"} | basic(LOOK)).status == 200
        for auth in (basic, bearer):
            assert page.get("/api/queues", auth(LOOK)).status == 200
            assert page.get("/api/queues", auth(CHANGE)).status == 200
            assert page.get("/api/queues", auth("x" * 20)).status == 401
            own = {"sec-fetch-site": "same-origin"}
            assert page.post(own | auth(LOOK), verb="pause", q="mail").status == 403
            assert not mail.counts().paused
            assert page.post(own | auth(CHANGE), verb="pause", q="mail").status == 303
            assert mail.counts().paused
            mail.resume()
        for odd in ("Basic", "Basic !!!", "Basic " + "A" * 5, "Digest x", "Bearer", "Basic é"):
            sent = {"authorization": odd.encode("latin-1").decode("latin-1")}
            assert page.get("/", sent).status == 401


@pytest.mark.parametrize("token", ["schlüssel-zum-garten", "chiave-di-città à", "\udcff" * 16])
def test_a_token_is_the_bytes_that_it_is_made_of(token: str, one_url: str) -> None:
    sent = token.encode("utf-8", "surrogateescape")
    with serve(app(url=one_url, viewer_token=token)) as page:
        for header in (b"Bearer " + sent, b"Basic " + base64.b64encode(b"ada:" + sent)):
            assert page.get("/", {"authorization": header.decode("latin-1")}).status == 200


def test_tokens_may_come_from_the_environment(
    one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIDE_WEB_VIEWER_TOKEN", LOOK)
    with serve(app(url=one_url)) as page:
        assert page.get("/").status == 401
        assert page.get("/", basic(LOOK)).status == 200


@pytest.mark.parametrize("token", ["", "short", "x" * 15])
def test_a_token_that_can_be_guessed_is_refused(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="can be guessed"):
        app(viewer_token=token)
    monkeypatch.setenv("BIDE_WEB_OPERATOR_TOKEN", token)
    with pytest.raises(UsageError, match="can be guessed"):
        app()


def test_one_token_cannot_be_both_nor_stand_beside_a_hook() -> None:
    with pytest.raises(UsageError, match="the same token"):
        app(viewer_token=LOOK, operator_token=LOOK)
    with pytest.raises(UsageError, match="decides alone"):
        app(viewer_token=LOOK, authorize=lambda request: None)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_host_application_may_decide(is_awaited: bool, one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)

    def who(request: Request) -> str | None:
        return {"ada": "operator", "bob": "viewer"}.get(request.headers.get("x-user", ""))

    async def awaited(request: Request) -> str | None:
        return who(request)

    with serve(app(url=one_url, authorize=awaited if is_awaited else who)) as page:
        assert page.get("/").status == 403
        assert page.get("/", {"x-user": "bob"}).status == 200
        own = {"sec-fetch-site": "same-origin"}
        assert page.post(own | {"x-user": "bob"}, verb="pause", q="mail").status == 403
        assert page.post(own | {"x-user": "ada"}, verb="pause", q="mail").status == 303


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"x-a-program": "curl"}, 303),
    ],
)
def test_what_another_sites_page_sends_changes_nothing(
    headers: dict[str, str], status: int, desk: Page, mail: Queue
) -> None:
    mail.enqueue("shop:remind", delay=60)
    assert desk.post(headers, verb="pause", q="mail").status == status
    assert mail.counts().paused == (status == 303)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "is_served", "is_told"),
    [
        ({}, True, True),
        ({"sec-fetch-site": "same-origin", "sec-fetch-dest": "empty"}, True, True),
        ({"sec-fetch-site": "none", "sec-fetch-dest": "document"}, True, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, True, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "empty"}, False, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, False, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe"}, False, False),
        ({"sec-fetch-site": "same-site", "sec-fetch-dest": "empty"}, False, False),
        ({"origin": "https://evil.example"}, False, False),
        ({"origin": "null"}, False, False),
    ],
)
def test_another_sites_page_may_link_here_and_read_nothing(
    headers: dict[str, str], is_served: bool, is_told: bool, page: Page, mail: Queue
) -> None:
    mail.enqueue("shop:remind", delay=60)
    for path in ("/", "/queues", "/api/queues"):
        reply = page.get(path, headers)
        assert reply.status == (200 if is_served else 403), path
        assert ("mail" in reply.text) == is_served
    assert page.head("/api/live", headers).status == (200 if is_told else 403)


LOCATION = re.compile(r"(?!//)/[^:]*")
"""An address on the same host."""


@pytest.mark.parametrize("root", ["", "/admin/jobs"])
def test_a_slash_at_the_end_leads_on_only_who_may_look_and_stays_on_this_host(
    root: str, one_url: str
) -> None:
    inner = app(url=one_url, viewer_token=LOOK)
    host = Starlette(routes=[Mount(root or "/", inner)], lifespan=inner.router.lifespan_context)
    paths = ("/queues/", "/api/queues/", "/queues//", "/do/", "/static/x/", "//evil.example/")
    with serve(host, root=root) as page:
        for path in paths:
            for sent in ({}, {"host": "evil.example"}, {"host": "evil.example"} | basic(LOOK)):
                reply = page.get(path, sent)
                at = reply.headers.get("location", "/")
                assert LOCATION.fullmatch(at), (path, at)
                assert "evil.example" not in at
                assert reply.status in ((307, 404) if "authorization" in sent else (401, 404))
        assert page.get("/queues/").status == 401
        assert page.get("/nothing/here").status == 401
        for path in ("/queues", "/api/queues"):
            reply = page.get(f"{path}/", basic(LOOK), q="a b")
            assert (reply.status, reply.headers["location"]) == (307, f"{root}{path}?q=a+b")
        assert page.get("/nothing/", basic(LOOK)).status == 404


def test_nothing_is_changed_by_looking(desk: Page, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    assert desk.get("/do", verb="pause", q="mail").status == 404
    assert not mail.counts().paused


def test_only_the_queues_that_were_named_are_there(one_url: str, mail: Queue) -> None:
    hidden = Queue("backroom", url=one_url)
    job = hidden.enqueue("shop:remind", "whisper", delay=60)
    hidden.enqueue("shop:whisper", job_id="whisper-2")
    about = WorkerReport(
        "host", 1, ["mail", "backroom"], doing=[RunningTask("backroom", job.id, "whisper", 1)]
    )
    client = blocking.Client(one_url)
    client.run(queue_commands.heartbeat(keys_of(None), "w1", about))
    assert len(client.run(claim(hidden.keys, "w1", 1, 1, 100_000_000, 0)).jobs) == 1
    client.close()
    mail.enqueue("shop:remind", delay=60)
    with serve(app(url=one_url, queues=["mail"], local_role="operator")) as page:
        for path in ("/", "/queues", "/jobs", "/failures", "/workers", "/api/timeline"):
            text = page.get(path).text
            assert "backroom" not in text
            assert "whisper" not in text
        for path in ("/queue", "/jobs", "/job", "/api/range", "/api/timeline"):
            asked = {"from": "1" + "0" * 15, "to": "4" + "0" * 15, "id": job.id}
            reply = page.get(path, q="backroom", **asked)
            assert reply.status == 404
            assert "whisper" not in reply.text
        assert page.get("/api/job", id=job.id).status == 404
        assert page.post(verb="pause", q="backroom").status == 404
        assert page.post(verb="cancel", q="backroom", id=job.id).status == 404
    assert not hidden.counts().paused
    assert hidden.counts().delayed == 1
    hidden.close()


def test_it_can_be_mounted_in_another_application(one_url: str, mail: Queue) -> None:
    job = mail.enqueue("shop:remind", delay=60)
    inner = app(url=one_url, local_role="operator")
    host = Starlette(routes=[Mount("/admin/jobs", inner)], lifespan=inner.router.lifespan_context)
    with serve(host, root="/admin/jobs") as page:
        text = page.get("/").text
        assert 'href="/admin/jobs/queues"' in text
        assert 'src="/admin/jobs/static/' in text
        assert 'data-live="/admin/jobs/api/live"' in text
        assert page.get("/static/x/live.js").status == 200
        assert 'action="/admin/jobs/do"' in page.get("/job", id=job.id).text
        reply = page.post(verb="promote", q="mail", id=job.id)
        assert reply.headers["location"] == f"/admin/jobs/job?q=mail&id={job.id}"


def test_a_user_who_may_only_look_on_the_server_is_enough_to_look(
    one_url: str, mail: Queue, direct: redis.Redis
) -> None:
    job = mail.enqueue("shop:remind", delay=60)
    direct.execute_command(  # type: ignore[no-untyped-call]
        *("ACL", "SETUSER", "onlooker", *rules("viewer", [], "bide"), ">look-look")
    )
    for script in SCRIPTS["viewer"]:  # as each worker does
        direct.script_load(load(script).text)
    mark = "&" if "?" in one_url else "?"
    seeing = f"{one_url}{mark}username=onlooker&password=look-look"
    try:
        with serve(app(url=seeing, local_role="operator")) as page:
            for path in (
                "/",
                "/lateness",
                "/schedules",
                "/queues",
                "/queue?q=mail",
                "/jobs",
                "/workers",
            ):
                assert page.get(path).status == 200, path
            assert page.get("/job", id=job.id).status == 200
            span = {"from": "1" + "0" * 15, "to": "4" + "0" * 15}
            assert page.get("/api/range", **span).json["total"] == 1
            assert "look-look" not in page.get("/").text
            assert page.post(verb="pause", q="mail").status == 502
            assert not mail.counts().paused
    finally:
        direct.acl_deluser("onlooker")
