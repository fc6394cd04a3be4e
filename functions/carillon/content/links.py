"""Links of an e-mail: what is wrong with them, and the parameters that a web site's analytics ask for."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote, urlsplit

FILTER = "carillon_parameters"
"""The filter that adds parameters where a link is known only when an e-mail is rendered."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_RUNS_CODE = frozenset({"javascript", "vbscript", "data", "file", "blob"})
_WEB = frozenset({"http", "https"})


def is_web(url: str) -> bool:
    """Whether ``url`` is one that a browser fetches over the web."""
    return bool(re.match(r"https?://", url, re.IGNORECASE))


def add_parameters(url: str, parameters: str) -> str:
    """``url`` with those of ``parameters`` (``a=1&b=2``, encoded) whose names it does not have yet; any but web
    addresses are left alone."""
    if not is_web(url):
        return url
    rest, hash_, fragment = url.partition("#")
    path, mark, query = rest.partition("?")
    taken = {pair.partition("=")[0] for pair in query.split("&")}
    added = [pair for pair in parameters.split("&") if pair.partition("=")[0] not in taken]
    query = "&".join([*([query.rstrip("&")] if query.rstrip("&") else []), *added])
    return f"{path}{'?' if query else mark}{query}{hash_}{fragment}"


def encode(pairs: dict[str, str | None]) -> str:
    """``pairs`` as parameters, those without a value left out."""
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items() if value)


def problem(url: str) -> str | None:
    """Why no e-mail may have a link to ``url`` (placeholders as words); None: it may."""
    if not url:
        return "leads nowhere: give it an address, or take the link away"
    if url.startswith("#"):
        return None
    scheme = _SCHEME.match(url)
    if scheme is None or "." in scheme[1] or scheme[1].lower() == "localhost":
        if re.match(r"//|[\w-]+(\.[\w-]+)+([:/?#]|$)|localhost:", url):
            return "has no scheme: write https:// before it"
        return "is relative, and an e-mail has no page to be relative to: write the whole address"
    if scheme[1].lower() in _RUNS_CODE:
        return f"is of the kind {scheme[1].lower()}:, which mail programs remove and filters punish: link to a page"
    if scheme[1].lower() in _WEB:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            return "is no valid address: see to its host and port"
        if not url[scheme.end() :].startswith("//") or not host or re.search(r"[\s<>\"\\^`{|}]", parts.netloc):
            return "is no valid address: it needs a host, https://example.com/…"
    return None


def doubt(url: str) -> str | None:
    """What is odd about a link that may go out; None: nothing is."""
    if url == "#":
        return "leads nowhere"
    if not is_web(url):
        return None
    if re.search(r"[\s<>\"\\^`{|}]", url):
        return "has characters that must be encoded in an address (a space is %20): SES does not track it"
    host = (urlsplit(url).hostname or "").lower()
    if host == "localhost" or host.endswith((".localhost", ".local", ".test", ".invalid")) or _private(host):
        return "leads to a machine that readers cannot reach"
    return None


def _private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False
