"""One request over HTTP: what came back, or what went wrong and whether asking again can help."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from dpaudit.errors import InputError, printable, require, shortened
from dpaudit.mechanisms.language_models.secret import without_key

MOST_BYTES = 8 << 20
LOCAL = ("localhost", "127.0.0.1", "::1")
AGAIN = (408, 409, 425, 429)
"""Beside all of 500 and above."""
USELESS = (301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
"""Whoever gets one of these gets it for every request."""


@dataclass(frozen=True)
class Trouble:
    """A request without an answer.

    Attributes:
        what: In words, without secrets: "timed out", "HTTP 429".
        again: Whether asking again may help.
        useless: Whether any other request would end the same.
        wait_s: What the server asked to wait before the next request, in seconds; None where it did not.
        status: Of the response; None where there was none.
    """

    what: str
    again: bool = True
    useless: bool = False
    wait_s: float | None = None
    status: int | None = None


def require_url(url: str, *, sends_key: bool, plain_http: bool) -> None:
    """Refuses an address with a password in it, and one that a key would be sent to in the open.

    Raises: InputError, which does not show the address.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    require(known, "url must be an address that begins with https:// or http://")
    require("@" not in parts.netloc, "url must hold no user and password; name a variable in key_variable")
    open_to_all = sends_key and parts.scheme == "http" and parts.hostname not in LOCAL
    if open_to_all and not plain_http:
        raise InputError("a key is sent over https only; set plain_http: true where the network is your own")


def post(
    url: str, body: Mapping[str, Any], *, key: str, variable: str, timeout_s: float
) -> Mapping[str, Any] | Trouble:
    """Sends JSON, gives the JSON that came back; redirections are not followed, since the key would go with them.

    Args:
        url: Where to.
        body: What to send.
        key: For the header `Authorization: Bearer`; "" sends none.
        variable: The environment variable that stands for the key in whatever is given back.
        timeout_s: For connecting, for each wait for bytes, and for all of them together.
    """
    started = time.monotonic()
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            answer = _read(response, started + timeout_s)
    except urllib.error.HTTPError as err:
        with err:
            return _refused(err, key, variable)
    except TimeoutError:
        return Trouble(f"timed out after {timeout_s:g} s")
    except urllib.error.URLError as err:
        if isinstance(err.reason, TimeoutError):
            return Trouble(f"timed out after {timeout_s:g} s")
        return Trouble(f"no connection ({type(err.reason).__name__})")
    except (OSError, http.client.HTTPException) as err:
        return Trouble(f"connection lost ({type(err).__name__})")
    try:
        found = json.loads(without_key(answer.decode(), key, variable))
    except ValueError:
        return Trouble("answer is no JSON")
    return found if isinstance(found, dict) else Trouble("answer is no JSON object")


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirection)


def _read(response: Any, deadline: float) -> bytes:
    pieces, held = [], 0
    while piece := response.read1(1 << 16):
        pieces.append(piece)
        held += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
        if held > MOST_BYTES:
            raise http.client.HTTPException
    if response.length:  # fewer bytes than were promised
        raise http.client.IncompleteRead(b"")
    return b"".join(pieces)


def _refused(err: urllib.error.HTTPError, key: str, variable: str) -> Trouble:
    said = _said(err)
    spent = "insufficient_quota" in said
    useless = err.code in USELESS or spent
    # What a server says of a key it does not know may hold half of that key.
    shown = "" if err.code in (401, 403) or not said else f": {shortened(printable(without_key(said, key, variable)))}"
    again = (err.code in AGAIN or err.code >= 500) and not spent
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
