"""Unsubscribe: what the links in e-mails lead to. Public; the token in the path is all that it asks for.

GET and HEAD show a page and change nothing, for mail scanners open links; POST acts, by a mailbox provider's one click
(RFC 8058) or by the page's button, without cookies or a redirect.
"""

from __future__ import annotations

import base64
import binascii
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from email.policy import HTTP
from functools import cache
from http import HTTPStatus
from pathlib import PurePath
from traceback import extract_tb
from typing import Any
from urllib.parse import parse_qs

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters import clock
from carillon.adapters.archive import EventArchive
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.adapters.suppressions import SuppressionTable
from carillon.consent import pages
from carillon.consent.unsubscribing import InvalidToken, Unsubscribing
from carillon.environment import Environment, load

logger = Logger()
copy_config_to_registered_loggers(source_logger=logger, include={"carillon"})

MOST_BYTES = 4096
"""Of a body: one click has 26, in multipart perhaps 200."""
ONE_CLICK = ("List-Unsubscribe", "One-Click")
ALLOWED = "GET, HEAD, POST"


class Settings(Environment):
    """What this function is told."""

    suppressions_table: str
    unsubscribe_keys_secret: str
    event_stream: str


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """An HTTP API event (payload 2.0) in, a page out. Neither token nor body reaches the log."""
    headers = {name.lower(): text for name, text in (event.get("headers") or {}).items()}
    lang = pages.language(headers.get("accept-language", ""))
    token = (event.get("pathParameters") or {}).get("token", "")
    try:
        match event["requestContext"]["http"]["method"]:
            case "GET" | "HEAD":
                return _answer(HTTPStatus.OK, pages.ask(lang, _unsubscribing().look(token).topic))
            case "POST":
                return _act(token, lang, event, headers)
            case _:
                return _answer(HTTPStatus.METHOD_NOT_ALLOWED, pages.sorry(lang, "unusable"), {"Allow": ALLOWED})
    except InvalidToken:
        return _answer(HTTPStatus.NOT_FOUND, pages.sorry(lang, "unknown"))
    except Exception as error:
        where = [f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
        logger.error("unexpected error", kind=type(error).__name__, where=where)
        return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, pages.sorry(lang, "failed"))


def _act(token: str, lang: str, event: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    fields = _fields(event, headers.get("content-type", ""))
    if fields is None:
        return _answer(HTTPStatus.CONTENT_TOO_LARGE, pages.sorry(lang, "unusable"))
    everything = pages.EVERYTHING in fields
    one_click = fields.get(ONE_CLICK[0]) == ONE_CLICK[1]
    said = _unsubscribing().act(token, everything=everything, one_click=one_click, now=clock.now())
    return _answer(HTTPStatus.OK, pages.done(lang, said.topic, everything=everything))


def _fields(event: dict[str, Any], content_type: str) -> dict[str, str] | None:
    """The form's fields; none of a body that is no form, for whoever posts to the link wants out; None: too large."""
    body = str(event.get("body") or "")
    if len(body) > 2 * MOST_BYTES:
        return None
    try:
        raw = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
    except binascii.Error:
        return {}
    if len(raw) > MOST_BYTES:
        return None
    if content_type.lower().startswith("multipart/form-data"):
        form = BytesParser(EmailMessage, policy=HTTP).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw)
        return {str(part.get_param("name", header="content-disposition")): _text(part) for part in form.iter_parts()}
    return {name: values[0] for name, values in parse_qs(raw.decode(errors="replace"), keep_blank_values=True).items()}


def _text(part: MIMEPart) -> str:
    content = part.get_payload(decode=True)
    return content.decode(errors="replace") if isinstance(content, bytes) else ""


def _answer(status: HTTPStatus, page: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return {"statusCode": status.value, "headers": {**pages.HEADERS, **(headers or {})}, "body": page}


@cache
def _unsubscribing() -> Unsubscribing:
    settings = load(Settings)
    return Unsubscribing(
        UnsubscribeKeys(settings.unsubscribe_keys_secret),
        SuppressionTable(settings.suppressions_table),
        EventArchive(settings.event_stream),
    )
