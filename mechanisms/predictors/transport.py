"""JSON requests over HTTP, with retries (extra `endpoint`: httpx and tenacity).

A request reaches this machine or a private network only if the url itself names the address. The name in a url is
resolved once for each request, every address is checked, and the connection goes to a checked address.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import os
import random
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

from dpaudit.consent import ADDRESS, VARIABLE
from dpaudit.errors import InputError, printable, require, shortened
from dpaudit.field_checks import check_fields
from dpaudit.locations import Packages, imported

if TYPE_CHECKING:
    import httpx

_MAX_RETRY_AFTER_S = 600.0  # longer waits that a server asks for are cut to this
_MAX_BYTES = 8 << 20  # of the body of a response; its header may have 100 KB, as h11 limits it
_STOP_CHECK_S = 0.1  # how often an exchange checks whether it is stopped
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
_MIN_SECRET_LENGTH = 8  # shorter keys, such as the "EMPTY" that local servers want, are not secret
_LOCAL = ("localhost", "127.0.0.1", "::1")
_PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses in networks without IPv4 (NAT64)
_RETRYABLE = (408, 409, 425, 429)  # besides every status from 500 on
_FATAL = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)  # every other request would get the same status
PRIVATE_ADDRESS = (
    "its name leads to an address of this machine or of a network around it; write that address in url, or set "
    "private_network: true where it is a server of your own network"
)

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
T = TypeVar("T")


@dataclass(frozen=True)
class RequestFailure:
    """A request that got no usable answer."""

    reason: str  # without secrets: "timed out", "HTTP 429"
    retryable: bool = True
    fatal: bool = False  # every other request would fail in the same way
    retry_after_s: float = 0.0  # the wait that the server asked for
    status: int | None = None  # of the response; None: there was no response


@dataclass(frozen=True, kw_only=True)
class HttpService:
    """A server that answers JSON requests.

    Attributes:
        url: Address of the requests, written out.
        key_variable: Name of the environment variable with the key; "" sends none.
        timeout_s: Time limit of one request, > 0.
        attempts: Most attempts of one request, >= 1.
        first_wait_s: Wait before the second attempt, > 0; it doubles each time, and half of it is random.
        longest_wait_s: Longest wait between attempts, unless the server asks for more.
        plain_http: True if the key may go over http to another machine.
        private_network: True if the host's name may lead to an address of a private network (10.x, 192.168.x). It may
            never lead to this machine or its link: write `localhost` or the address itself.
    """

    packages: ClassVar[Packages] = {"httpx": "endpoint", "tenacity": "endpoint"}
    url: str = field(metadata=ADDRESS)
    key_variable: str = field(default="", metadata=VARIABLE)
    timeout_s: float = 60.0
    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    plain_http: bool = False
    private_network: bool = False

    def __post_init__(self) -> None:
        # The message does not show the value: it may be the key itself.
        require(isinstance(self.key_variable, str), "key_variable must be the name of an environment variable")
        check_fields(self)
        require(
            not self.key_variable or _VARIABLE.fullmatch(self.key_variable) is not None,
            "key_variable must be the name of an environment variable, capitals such as OPENAI_API_KEY, never the key",
        )
        require_url(self.url, sends_key=bool(self.key_variable), plain_http=self.plain_http)
        require(self.attempts >= 1, "attempts must be >= 1", given=self.attempts)
        for name in ("timeout_s", "first_wait_s", "longest_wait_s"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be > 0 and finite", given=value)

    def key(self) -> str:
        """Return the key, or "" if no variable is named.

        Raises: InputError if the variable is not set or its value cannot be sent. The message does not show the value.
        """
        if not self.key_variable:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise InputError(
                f"the environment variable {self.key_variable} is empty; set it to the key on every machine that sends "
                "requests"
            )
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"the key in {self.key_variable} must be one line of printable ASCII characters")
        return key

    def send(
        self, url: str, body: Mapping[str, Any], *, key: str, stop: threading.Event | None = None
    ) -> Mapping[str, Any] | RequestFailure:
        """Return the JSON object that the server answers to a POST of `body`, or the failure.

        Redirects are not followed, since the key would go along. `timeout_s` limits the whole exchange: name lookup,
        connection, header and body. `stop` and signals end it early.
        """
        imported("httpx", "endpoint")
        exchange = _Exchange()
        response = Future[Mapping[str, Any] | RequestFailure]()

        def talk() -> None:
            try:
                response.set_result(self._reply(exchange, url, body, key))
            except BaseException as err:
                response.set_exception(err)

        threading.Thread(target=talk, daemon=True).start()
        deadline = time.monotonic() + self.timeout_s
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    return response.result(min(left_s, _STOP_CHECK_S))
                if stop is not None and stop.is_set():
                    return RequestFailure("stopped", retryable=False)
            return self._timed_out()
        finally:
            exchange.end()

    def _timed_out(self) -> RequestFailure:
        return RequestFailure(f"timed out after {self.timeout_s:g} s")

    def _reply(
        self, exchange: _Exchange, url: str, body: Mapping[str, Any], key: str
    ) -> Mapping[str, Any] | RequestFailure:
        """Return the JSON object of the response, or the failure; its waits are ended by `exchange`."""
        httpx = imported("httpx", "endpoint")
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        target, proxy = httpx.URL(url), _proxy(url)
        try:
            # A proxy resolves the name itself: the user's environment vouches for it.
            addresses = [target.host] if proxy else _addresses(target, private_network=self.private_network)
            if not addresses:
                return RequestFailure(PRIVATE_ADDRESS, retryable=False, fatal=True)
            timeout = httpx.Timeout(self.timeout_s, connect=self.timeout_s / len(addresses))
            with httpx.Client(timeout=timeout, verify=_certificates(), proxy=proxy or None, trust_env=False) as client:
                response = _response(client, exchange, target, addresses, json.dumps(body).encode(), headers)
                try:
                    if not response.is_success:
                        return _refusal(response, key, self.key_variable)
                    content = _content(response)
                finally:
                    response.close()
        except (httpx.TimeoutException, TimeoutError):
            return self._timed_out()
        except (httpx.TransportError, OSError) as err:
            if "buffer too long" in str(err):  # by h11
                return RequestFailure("the header of the answer is larger than 100 KB")
            connected = not isinstance(err, httpx.ConnectError | httpx.ProxyError | OSError)
            return RequestFailure(f"{'connection lost' if connected else 'no connection'} ({type(err).__name__})")
        if len(content) > _MAX_BYTES:
            return RequestFailure(f"answer is larger than {_MAX_BYTES >> 20} MiB")
        try:
            answer = json.loads(_redacted(content.decode(), key, self.key_variable))
        except (ValueError, RecursionError):
            return RequestFailure("answer is no JSON")
        return answer if isinstance(answer, dict) else RequestFailure("answer is no JSON object")

    def retry(
        self, attempt: Callable[[], T | RequestFailure], *, stop: threading.Event | None = None
    ) -> T | RequestFailure:
        """Return the result of the first `attempt` that needs no retry, or of the last one; `stop` ends the waits."""
        tenacity = imported("tenacity", "endpoint")
        stop = stop or threading.Event()
        backoff = tenacity.wait_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)

        def wait_s(retry_state: Any) -> float:
            # With jitter, so that workers do not retry at the same moment. No result depends on it.
            pause: float = backoff(retry_state) * random.uniform(0.5, 1)
            return max(pause, float(retry_state.outcome.result().retry_after_s))

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.attempts) | tenacity.stop_when_event_set(stop),
            wait=wait_s,
            sleep=stop.wait,
            retry=tenacity.retry_if_result(lambda result: isinstance(result, RequestFailure) and result.retryable),
            retry_error_callback=lambda state: state.outcome.result(),
        )
        result: T | RequestFailure = retrying(attempt)
        return result


class _Exchange:
    """The connections of one request, which another thread can end.

    A timeout of httpx limits each wait for bytes, so a server that sends a byte now and then is never given up.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._ended = threading.Event()

    def trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Note each new connection, as the extension `trace` of httpx reports it; TimeoutError after the end."""
        if event == "connection.connect_tcp.complete":
            # A duplicate, because TLS takes the connection over from the socket.
            self._sockets.append(details["return_value"].get_extra_info("socket").dup())
        if self._ended.is_set():
            self.end()
            raise TimeoutError

    def end(self) -> None:
        """Shut the connections down: a thread that waits for their bytes continues with an error."""
        self._ended.set()
        while self._sockets:
            with suppress(OSError, IndexError), self._sockets.pop() as connection:
                connection.shutdown(socket.SHUT_RDWR)


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Certificates of the operating system, not httpx's own list: companies add theirs there."""
    return ssl.create_default_context()


def _redacted(text: str, key: str, variable: str) -> str:
    """Replace the key by `$VARIABLE`: as it is, and as a URL, JSON or base64 would write it."""
    if len(key) < _MIN_SECRET_LENGTH:
        return text
    encoded = base64.b64encode(key.encode()).decode()
    for form in sorted({key, quote(key, safe=""), json.dumps(key)[1:-1], encoded}, key=len, reverse=True):
        text = text.replace(form, f"${variable}")
    return text


def require_url(url: str, *, sends_key: bool, plain_http: bool) -> None:
    """Refuse a url that hides its host, holds a password, or would expose the key; messages do not show the url."""
    require("$" not in url, "url must be written out: `$NAME` is looked up in paths only, never in an address")
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_http = False
    plain = url.isascii() and url.isprintable() and not {" ", "\\"} & set(url)
    require(is_http and plain, "url must be an address that begins with https:// or http://")
    require("@" not in parts.netloc, "url must hold no user and password; name a variable in key_variable")
    host = parts.hostname or ""
    is_name = ":" not in host and not re.fullmatch(r"\d+|0x[0-9a-f]*", host.rstrip(".").rpartition(".")[2])
    address = _literal(host)  # None for addresses in disguise, such as 2130706433 or 0x7f.1
    usual = is_name or (address is not None and _as_ipv4(address) == address)
    require(
        "%" not in parts.netloc and usual,
        "the host in url must be a name, or a number in its usual form such as 127.0.0.1 or [::1]",
    )
    exposed = sends_key and parts.scheme == "http" and parts.hostname not in _LOCAL
    if exposed and not plain_http:
        raise InputError("a key is sent over https only; set plain_http: true where the network is your own")


def _literal(host: str) -> Address | None:
    """Return the address that `host` writes out, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _as_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else None
    return address.ipv4_mapped or address.sixtofour or translated or address


def may_connect(host: str, address: Address, *, private_network: bool) -> bool:
    """True if a request to `host`, as a url writes it, may go to `address`, to which it resolves."""
    target = _as_ipv4(address)
    public = target.is_global and not target.is_multicast and not target.is_reserved
    if public or _literal(host) == address or (host == "localhost" and address.is_loopback):
        return True
    return private_network and any(target in network for network in _PRIVATE)


def _addresses(url: httpx.URL, *, private_network: bool) -> list[str]:
    """Return the addresses of the host, looked up once; empty if any of them is one it may not lead to."""
    host = url.raw_host.decode()
    port = url.port or (443 if url.scheme == "https" else 80)
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    checked = (may_connect(host, ipaddress.ip_address(text), private_network=private_network) for text in addresses)
    return addresses if all(checked) else []


def _response(
    client: httpx.Client,
    exchange: _Exchange,
    url: httpx.URL,
    addresses: list[str],
    content: bytes,
    headers: Mapping[str, str],
) -> httpx.Response:
    """Return the response, its body unread, of the first address that accepts a connection."""
    httpx = imported("httpx", "endpoint")
    host = url.raw_host.decode()
    for address in addresses:
        request = client.build_request(
            "POST",
            url.copy_with(host=address),
            content=content,
            headers={**headers, "Host": url.netloc.decode()},
            extensions={"sni_hostname": host, "trace": exchange.trace},  # the certificate must state this name
        )
        try:
            return client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if address == addresses[-1]:
                raise
    raise AssertionError


def _proxy(url: str) -> str:
    """Return the environment's proxy for a url, or "".

    Over http a proxy would read the key, and an address written out in the url means that network as seen from here.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" or host in _LOCAL or _literal(host) is not None or urllib.request.proxy_bypass(host):
        return ""
    proxy = urllib.request.getproxies().get("https", "")
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _content(response: httpx.Response) -> bytes:
    """Return the body, cut soon after `_MAX_BYTES`."""
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > _MAX_BYTES:
            break
    return bytes(content)


def _refusal(response: httpx.Response, key: str, variable: str) -> RequestFailure:
    """Return the failure that a status other than 2xx stands for."""
    status = response.status_code
    words = _error_text(response)
    quota_spent = "insufficient_quota" in words
    # On an unknown key a server may repeat half of it.
    detail = "" if status in (401, 403) or not words else f": {shortened(printable(_redacted(words, key, variable)))}"
    return RequestFailure(
        f"HTTP {status}{detail}",
        retryable=(status in _RETRYABLE or status >= 500) and not quota_spent,
        fatal=status in _FATAL or quota_spent,
        retry_after_s=min(retry_after(response.headers.get("Retry-After")), _MAX_RETRY_AFTER_S),
        status=status,
    )


def _error_text(response: httpx.Response) -> str:
    """Return code and message of OpenAI's error object, or "" if the body holds none."""
    transport_error: type[Exception] = imported("httpx", "endpoint").TransportError
    try:
        error = json.loads(_content(response))["error"]
        return " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError, transport_error):
        return ""


def retry_after(header: str | None) -> float:
    """Return the seconds to wait by a Retry-After header, in seconds or a date; 0 if it states neither."""
    try:
        return max(0.0, float(header or ""))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header or "")
    except ValueError:
        return 0.0
    moment = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
