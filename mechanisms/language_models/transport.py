"""One request over HTTP: what came back, or what went wrong and whether asking again can help.

Addresses of this machine and of networks around it are reached only where the url itself says so, whatever a name leads
to by the time a request is made.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import math
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from dpaudit.consent import ADDRESS, VARIABLE
from dpaudit.errors import InputError, printable, require, shortened

LONGEST_ASKED_S = 600.0  # More than a server may make everybody wait by its Retry-After
_MAX_BYTES = 8 << 20
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
_SHORTEST = 8
"""Characters from which on a key is looked for in texts: "EMPTY" or "none", as local servers want, are no secrets."""
_LOCAL = ("localhost", "127.0.0.1", "::1")
_PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""Networks of one's own, to which one's own name servers give names."""
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses as networks without IPv4 write them

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_AGAIN = (408, 409, 425, 429)  # Beside all of 500 and above
_USELESS = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)  # Whoever gets one of these gets it for every request


@dataclass(frozen=True)
class Trouble:
    """A request without an answer."""

    what: str  # in words, without secrets: "timed out", "HTTP 429"
    again: bool = True  # whether asking again may help
    useless: bool = False  # whether any other request would end the same
    wait_s: float | None = None  # what the server asked to wait before the next request
    status: int | None = None  # of the response; None where there was none


@dataclass(frozen=True, kw_only=True)
class HttpService:
    """A server that is sent requests.

    Attributes:
        url: Where requests go, written out.
        key_variable: Name of the environment variable with the key; "" sends none.
        timeout_s: Of one request, > 0.
        attempts: Of one request, >= 1.
        first_wait_s: Before the second attempt, > 0; doubled each time, half of it at random.
        longest_wait_s: Where doubling ends, unless the server asks for more.
        plain_http: Whether the key may go over http to another machine.
        private_network: Whether the host's name may lead to an address of a private network (10.x, 192.168.x); to this
            machine or its link it never may: write `localhost` or the address itself.
    """

    url: str = field(metadata=ADDRESS)
    key_variable: str = field(default="", metadata=VARIABLE)
    timeout_s: float = 60.0
    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    plain_http: bool = False
    private_network: bool = False

    def __post_init__(self) -> None:
        # Without showing it: it may be the key itself.
        must = "the name of an environment variable, capitals such as OPENAI_API_KEY, never the key itself"
        fine = not self.key_variable or _VARIABLE.fullmatch(self.key_variable) is not None
        require(fine, f"key_variable must be {must}")
        require_url(self.url, sends_key=bool(self.key_variable), plain_http=self.plain_http)
        require(self.attempts >= 1, "attempts must be >= 1", given=self.attempts)
        for name in ("timeout_s", "first_wait_s", "longest_wait_s"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"{name} must be > 0 and finite", given=value)

    def key(self) -> str:
        """The key, never shown; "" where no variable is named. Refused where it is not set or cannot be sent."""
        if not self.key_variable:
            return ""
        key, variable = os.environ.get(self.key_variable, "").strip(), self.key_variable
        must = f"the environment variable {variable} must hold the key on every machine that asks; it is empty"
        require(bool(key), must)
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"the key in {variable} must be one line of printable ASCII characters")
        return key

    def send(self, url: str, body: Mapping[str, Any], *, key: str) -> Mapping[str, Any] | Trouble:
        """Sends JSON, gives the JSON that came back; redirections are not followed, since the key would go with them.

        The time is for connecting, for each wait for bytes, and for all of them together.
        """
        deadline = time.monotonic() + self.timeout_s
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        if key:
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        try:
            with _opener(self.private_network, _proxy(url)).open(request, timeout=self.timeout_s) as response:
                answer = _read(response, deadline)
        except urllib.error.HTTPError as err:
            with err:
                return _refused(err, key, self.key_variable)
        except (OSError, http.client.HTTPException) as err:
            reason = err.reason if isinstance(err, urllib.error.URLError) else err
            if isinstance(reason, TimeoutError):
                return Trouble(f"timed out after {self.timeout_s:g} s")
            if isinstance(reason, _InsideError):
                return Trouble(INSIDE, again=False, useless=True)
            return Trouble(f"{'connection lost' if reason is err else 'no connection'} ({type(reason).__name__})")
        try:
            found = json.loads(_without_key(answer.decode(), key, self.key_variable))
        except ValueError:
            return Trouble("answer is no JSON")
        return found if isinstance(found, dict) else Trouble("answer is no JSON object")


def _without_key(text: str, key: str, variable: str) -> str:
    """The text with `$VARIABLE` in place of the key, as it is or as a URL, JSON or base64 would write it."""
    if len(key) < _SHORTEST:
        return text
    encoded = base64.b64encode(key.encode()).decode()
    for form in sorted({key, quote(key, safe=""), json.dumps(key)[1:-1], encoded}, key=len, reverse=True):
        text = text.replace(form, f"${variable}")
    return text


def require_url(url: str, *, sends_key: bool, plain_http: bool) -> None:
    """Refuses, without showing it, an address that is not what it seems, or that a key or password would be open in."""
    require("$" not in url, "url must be written out: `$NAME` is looked up in paths only, never in an address")
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    plain = url.isascii() and url.isprintable() and not {" ", "\\"} & set(url)
    require(known and plain, "url must be an address that begins with https:// or http://")
    require("@" not in parts.netloc, "url must hold no user and password; name a variable in key_variable")
    usual = "%" not in parts.netloc and _usual(parts.hostname or "")
    require(usual, "the host in url must be a name, or a number in its usual form such as 127.0.0.1 or [::1]")
    open_to_all = sends_key and parts.scheme == "http" and parts.hostname not in _LOCAL
    if open_to_all and not plain_http:
        raise InputError("a key is sent over https only; set plain_http: true where the network is your own")


def _usual(host: str) -> bool:
    """Whether a host is a name, or an address that reads as what it is: not 2130706433, 0x7f.1 or ::ffff:7f00:1."""
    if ":" not in host and not re.fullmatch(r"\d+|0x[0-9a-f]*", host.rstrip(".").rpartition(".")[2]):
        return True
    address = _literal(host)
    return address is not None and _meant(address) == address


def _literal(host: str) -> Address | None:
    """The address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _meant(address: Address) -> Address:
    """The IPv4 address in one of IPv6, where it holds one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else None
    return address.ipv4_mapped or address.sixtofour or translated or address


def _outside(address: Address) -> bool:
    """Whether it is one machine's address in the internet: not of this machine, its link or a network of one's own."""
    meant = _meant(address)
    return meant.is_global and not meant.is_multicast and not meant.is_reserved


def named(host: str, address: Address, *, private_network: bool) -> bool:
    """Whether a request to a host in a url may go to an address that it leads to."""
    if _outside(address) or _literal(host) == address or (host == "localhost" and address.is_loopback):
        return True
    return private_network and any(_meant(address) in network for network in _PRIVATE)


INSIDE = (
    "its name leads to an address of this machine or of a network around it; write that address in url, or set "
    "private_network: true where it is a server of your own network"
)


class _InsideError(OSError):
    """A name leads to an address that was not named."""


def _connected(host: str, private_network: bool, place: tuple[str, int], *settings: Any) -> socket.socket:
    """A connection to one of the addresses that a host leads to, looked up once; as `socket.create_connection`."""
    trouble: OSError = OSError("no address")
    found = [entry[4][0] for entry in socket.getaddrinfo(*place, type=socket.SOCK_STREAM)]
    if not all(named(host, ipaddress.ip_address(address), private_network=private_network) for address in found):
        raise _InsideError
    for address in found:
        try:
            return socket.create_connection((str(address), place[1]), *settings)
        except OSError as err:
            trouble = err
    raise trouble


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, *, private_network: bool, **settings: Any) -> None:
        super().__init__(host, **settings)
        self._create_connection = partial(_connected, self.host, private_network)


class _SecureConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, *, private_network: bool, proxy: str, **settings: Any) -> None:
        super().__init__(host, **settings)
        if not proxy:  # else the user's own environment says where to, and the proxy looks the name up
            self._create_connection = partial(_connected, self.host, private_network)


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, private_network: bool, proxy: str) -> None:
        super().__init__()
        self._plain: Any = partial(_Connection, private_network=private_network)
        self._secure: Any = partial(_SecureConnection, private_network=private_network, proxy=proxy)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._plain, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._secure, req)


def _proxy(url: str) -> str:
    """The environment's proxy for a url, or "": over http it would read the key, an address is meant from here."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" or host in _LOCAL or _literal(host) is not None or urllib.request.proxy_bypass(host):
        return ""
    return urllib.request.getproxies().get("https", "")


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


@lru_cache
def _opener(private_network: bool, proxy: str) -> urllib.request.OpenerDirector:
    """What sends requests; over https, and only there, through a proxy."""
    proxies = urllib.request.ProxyHandler({"https": proxy} if proxy else {})
    return urllib.request.build_opener(_NoRedirection, proxies, _Handler(private_network, proxy))


def _read(response: Any, deadline: float) -> bytes:
    pieces, held = [], 0
    while piece := response.read1(1 << 16):
        pieces.append(piece)
        held += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
        if held > _MAX_BYTES:
            raise http.client.HTTPException
    if response.length:  # fewer bytes than were promised
        raise http.client.IncompleteRead(b"")
    return b"".join(pieces)


def _refused(err: urllib.error.HTTPError, key: str, variable: str) -> Trouble:
    said = _said(err)
    spent = "insufficient_quota" in said
    useless = err.code in _USELESS or spent
    # What a server says of a key it does not know may hold half of that key.
    shown = "" if err.code in (401, 403) or not said else f": {shortened(printable(_without_key(said, key, variable)))}"
    again = (err.code in _AGAIN or err.code >= 500) and not spent
    wait_s = retry_after(err.headers.get("Retry-After"))
    return Trouble(f"HTTP {err.code}{shown}", again, useless, wait_s, err.code)


def _said(err: urllib.error.HTTPError) -> str:
    """The server's own words, from a body of any kind."""
    try:
        error = json.loads(err.read(1 << 16))["error"]
        return " ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return ""


def retry_after(header: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, given as seconds or as a date; None where it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    moment = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
