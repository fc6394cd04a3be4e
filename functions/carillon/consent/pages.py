"""The pages behind an unsubscribe link: one HTML file each, in the reader's language, that loads nothing from anywhere.

They work without scripts, cookies and images, in any browser and with a screen reader.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from types import MappingProxyType

_STYLE = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:12vh auto;padding:0 1rem;color:#1a1a1a;"
    "background:#fff}h1{font-size:1.5rem}button{font:inherit;padding:.6rem 1.2rem;margin:.3rem .5rem .3rem 0;"
    "border:2px solid #1a1a1a;border-radius:.4rem;background:#fff;color:inherit;cursor:pointer}"
    "button:first-of-type{background:#1a1a1a;color:#fff}button:focus-visible{outline:3px solid #06c;outline-offset:2px}"
)

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": (
            "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-"
            + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
            + "'"
        ),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Robots-Tag": "noindex, nofollow",
        "Vary": "Accept-Language",
    }
)
"""Of every page. The referrer would hand the link on; nobody may frame the button."""

EVERYTHING = "everything"
"""Name of the form's button that unsubscribes from all topics."""

TEXTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "en": {
            "ask_title": "Unsubscribe",
            "ask": "Do you want no more e-mails about “{topic}”?",
            "ask_topic": "Unsubscribe",
            "ask_everything": "Unsubscribe from everything we send",
            "done_title": "You are unsubscribed",
            "done": "You will get no more e-mails about “{topic}”. You can close this page.",
            "done_everything": "You will get no more e-mails from us. You can close this page.",
            "unknown_title": "This link does not work",
            "unknown": (
                "It may have been cut off when it was copied. Open the e-mail again and click its unsubscribe link, or "
                "reply to the e-mail and ask to be taken off the list."
            ),
            "failed_title": "That did not work",
            "failed": "You are not unsubscribed yet. Please try again in a minute.",
            "unusable_title": "This request cannot be read",
            "unusable": "Open the e-mail again and click its unsubscribe link.",
        },
        "de": {
            "ask_title": "Abmelden",
            "ask": "Möchten Sie keine E-Mails zum Thema „{topic}“ mehr bekommen?",
            "ask_topic": "Abmelden",
            "ask_everything": "Von allen unseren E-Mails abmelden",
            "done_title": "Sie sind abgemeldet",
            "done": "Sie bekommen keine E-Mails zum Thema „{topic}“ mehr. Sie können diese Seite schließen.",
            "done_everything": "Sie bekommen keine E-Mails mehr von uns. Sie können diese Seite schließen.",
            "unknown_title": "Dieser Link funktioniert nicht",
            "unknown": (
                "Vielleicht wurde er beim Kopieren abgeschnitten. Öffnen Sie die E-Mail noch einmal und klicken Sie "
                "auf ihren Abmeldelink, oder bitten Sie in einer Antwort darauf, von der Liste genommen zu werden."
            ),
            "failed_title": "Das hat nicht geklappt",
            "failed": "Sie sind noch nicht abgemeldet. Bitte versuchen Sie es in einer Minute noch einmal.",
            "unusable_title": "Diese Anfrage ist nicht lesbar",
            "unusable": "Öffnen Sie die E-Mail noch einmal und klicken Sie auf ihren Abmeldelink.",
        },
    }
)
"""A further language is a further entry here, with the same names."""

_FALLBACK = "en"


def language(accepted: str) -> str:
    """The best of our languages for an ``Accept-Language`` header (RFC 9110, 12.5.4), whatever is in it."""
    best, weight = _FALLBACK, 0.0
    for part in accepted[:1000].split(","):
        tag, _, parameters = part.partition(";")
        primary = tag.strip().lower().partition("-")[0]
        name, _, quality = parameters.strip().partition("=")
        try:
            q = float(quality) if name.strip() == "q" else 1.0
        except ValueError:
            q = 0.0
        if primary in TEXTS and weight < q <= 1:
            best, weight = primary, q
    return best


def ask(lang: str, topic: str) -> str:
    """The question. Its form posts to the page's own address, so the link is not in it."""
    texts = TEXTS[lang]
    form = (
        f'<form method="post"><button>{texts["ask_topic"]}</button> '
        f'<button name="{EVERYTHING}" value="1">{texts["ask_everything"]}</button></form>'
    )
    return _page(lang, texts["ask_title"], texts["ask"].format(topic=topic), form)


def done(lang: str, topic: str, *, everything: bool) -> str:
    """What has happened."""
    texts = TEXTS[lang]
    return _page(lang, texts["done_title"], texts["done_everything" if everything else "done"].format(topic=topic))


def sorry(lang: str, what: str) -> str:
    """``unknown``, ``failed`` or ``unusable``: what to do instead."""
    return _page(lang, TEXTS[lang][f"{what}_title"], TEXTS[lang][what])


def _page(lang: str, title: str, text: str, form: str = "") -> str:
    return (
        f'<!doctype html>\n<html lang="{lang}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="robots" content="noindex, nofollow">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>\n{form}\n"
        "</main>\n</body>\n</html>\n"
    )
