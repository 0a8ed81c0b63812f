"""Requests reach the host in the url, and private addresses only if the url names them."""

from __future__ import annotations

import ipaddress
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from dpaudit.errors import InputError
from dpaudit.mechanisms.predictors import transport
from dpaudit.mechanisms.predictors.transport import (
    PRIVATE_ADDRESS,
    HttpService,
    RequestFailure,
    may_connect,
    require_url,
)
from tests import waiting
from tests.http_servers import Does, serving
from tests.loops import Cases


def test_disguised_addresses_are_refused() -> None:
    with Cases() as cases:
        for url in [
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://0177.0.0.1/",
            "http://127.0.0.1./",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://%31%32%37.0.0.1/",
            "http://good@evil.example/",
            "http://good%40evil.example/",
            "http://good\\@evil.example/",
            "http://good .example/",
            "http://good\t.example/",
            "http://gооd.example/",
            "http:///v1",
            "file:///etc/passwd",
            "https://api.example.com/$KEY",
            "https://${HOST}/v1",
        ]:
            with cases.case(url), pytest.raises(InputError, match="url"):
                require_url(url, sends_key=False, plain_http=False)


@pytest.mark.parametrize(
    "url", ["http://localhost:8000/v1", "http://127.0.0.1/", "http://[::1]:80/", "http://10.1.2.3/", "https://a.b/?c=d"]
)
def test_plain_addresses_are_accepted(url: str) -> None:
    require_url(url, sends_key=False, plain_http=False)


def test_private_addresses_must_be_named() -> None:
    with Cases() as cases:
        for host, address, named_by_itself, in_private in [
            ("api.example.com", "93.184.216.34", True, True),
            ("api.example.com", "2606:2800:220:1::1", True, True),
            ("api.example.com", "64:ff9b::5db8:d822", True, True),  # 93.184.216.34 in a network without IPv4
            ("localhost", "127.0.0.1", True, True),
            ("localhost", "::1", True, True),
            ("localhost", "10.0.0.1", False, True),
            ("127.0.0.1", "127.0.0.1", True, True),
            ("169.254.169.254", "169.254.169.254", True, True),
            ("10.1.2.3", "10.1.2.3", True, True),
            ("evil.example", "127.0.0.1", False, False),
            ("evil.example", "169.254.169.254", False, False),
            ("evil.example", "::ffff:169.254.169.254", False, False),
            ("evil.example", "64:ff9b::a9fe:a9fe", False, False),
            ("evil.example", "fe80::1", False, False),
            ("evil.example", "::1", False, False),
            ("evil.example", "0.0.0.0", False, False),
            ("evil.example", "::", False, False),
            ("evil.example", "224.0.0.1", False, False),
            ("llm.internal", "10.1.2.3", False, True),
            ("llm.internal", "fd00::5", False, True),
            ("llm.internal", "100.64.0.9", False, True),
        ]:
            with cases.case(host, address, named_by_itself, in_private):
                parsed = ipaddress.ip_address(address)
                assert may_connect(host, parsed, private_network=False) is named_by_itself
                assert may_connect(host, parsed, private_network=True) is in_private


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Resolve every name under `.example` to `addresses`."""
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *settings: Any, **more: Any) -> Any:
        if host.endswith(".example"):
            return [entry for address in addresses for entry in real(address, port, *settings, **more)]
        return real(host, port, *settings, **more)

    monkeypatch.setattr(transport.socket, "getaddrinfo", resolve)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("93.184.216.34", "127.0.0.1")])
def test_a_name_that_resolves_to_this_machine_gets_no_request(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    resolves_to(monkeypatch, *addresses)
    with serving(lambda body: {}) as server:
        url = server.url.replace("127.0.0.1", "evil.example")
        for private in (False, True):
            reply = HttpService(url=url, timeout_s=5.0, private_network=private).send(url, {}, key="")
            assert reply == RequestFailure(PRIVATE_ADDRESS, retryable=False, fatal=True)
        assert server.bodies == []


def test_the_environments_proxy_is_used_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over http a proxy would read the key, and a written address means this machine's network."""
    with serving(lambda body: {"seen": True}) as server, serving(lambda body: {"proxy": True}) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        assert HttpService(url=server.url, timeout_s=5.0).send(server.url, {}, key="") == {"seen": True}
        assert proxy.bodies == []
    assert transport._proxy("https://api.example.com/v1")
    assert not transport._proxy("https://127.0.0.1/v1")
    assert not transport._proxy("http://api.example.com/v1")


def test_the_time_limit_holds_for_name_lookup_and_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    def dripping(listening: socket.socket) -> None:
        """Send the header of a TLS record, then its 16,384 bytes one by one."""
        with listening.accept()[0] as connection, suppress(OSError):
            connection.sendall(b"\x16\x03\x03\x40\x00")
            while not closed.wait(0.05):
                connection.sendall(b"\x02")

    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=dripping, args=(listening,), daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/v1"
        try:
            assert HttpService(url=url, timeout_s=0.4).send(url, {}, key="") == RequestFailure("timed out after 0.4 s")
            thread.join()  # the connection is closed
            monkeypatch.setattr(transport.socket, "getaddrinfo", lambda *_, **__: closed.wait())
            assert HttpService(url=url, timeout_s=0.2).send(url, {}, key="") == RequestFailure("timed out after 0.2 s")
        finally:
            closed.set()


def test_an_event_stops_an_exchange() -> None:
    stop = threading.Event()

    def stop_once_asked() -> None:
        waiting.until(lambda: server.bodies, "a request")
        stop.set()

    endless = Does(raw=b"HTTP/1.1 200 OK\r\n", drips=b"X: y\r\n")
    with serving(lambda body: {}, endless) as server:
        threading.Thread(target=stop_once_asked).start()
        answer = HttpService(url=server.url, timeout_s=600.0).send(server.url, {}, key="", stop=stop)
    assert answer == RequestFailure("stopped", retryable=False)
