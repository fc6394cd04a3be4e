"""E-mails as SES makes them from a request, or takes them raw: RFC 5322, within SES's rules."""

from __future__ import annotations

import re
from binascii import b2a_qp
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.generator import BytesGenerator
from email.header import Header, decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import Compat32, compat32
from email.utils import format_datetime, formataddr, getaddresses
from io import BytesIO
from typing import Any

from local.ses.address import Address, parse
from local.ses.shared import bad

MAX_RECIPIENTS = 50
MAX_MESSAGE_BYTES = 40 * 1024 * 1024
_MAX_HEADER_OCTETS = 996  # name and value together (botocore sesv2, MessageHeader)
_MAX_LINE_OCTETS = 998  # RFC 5321, without its CRLF

# SES's developer guide, "Amazon SES header fields": these may stand once in a message.
_ONCE = frozenset(
    """accept-language acceptlanguage archived-at auto-submitted bounces-to comments content-alternative
    content-base content-class content-description content-disposition content-duration content-id
    content-language content-length content-location content-md5 content-transfer-encoding content-type date
    delivered-to disposition-notification-options disposition-notification-to dkim-signature
    domainkey-signature errors-to from importance in-reply-to keywords list-archive list-help list-id
    list-owner list-post list-subscribe list-unsubscribe list-unsubscribe-post message-context message-id
    mime-version organization original-from original-message-id original-recipient original-subject
    precedence priority references reply-to return-path return-receipt-to sender solicitation sensitivity
    subject thread-index thread-topic user-agent vbr-info""".split()  # noqa: SIM905
)
# SES writes these from the other members of a Simple or Template message: a header would be the second.
_FROM_REQUEST = frozenset(
    {"from", "to", "cc", "bcc", "subject", "mime-version", "content-type", "content-transfer-encoding"}
)
# SES puts its own in the place of what the caller gives (same page).
_OVERWRITTEN = frozenset({"date", "message-id"})

_POLICY: Compat32 = compat32.clone(linesep="\r\n", max_line_length=998)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

EICAR = b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


type Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """A piece of content with the charset it was given with (None: 7-bit ASCII)."""

    data: str
    charset: str | None = None


@dataclass(frozen=True)
class Envelope:
    """Who sends and who receives."""

    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...] = ()
    bcc: tuple[Address, ...] = ()
    reply_to: tuple[Address, ...] = ()

    @property
    def recipients(self) -> tuple[Address, ...]:
        """Everyone who gets a copy."""
        return self.to + self.cc + self.bcc


@dataclass(frozen=True)
class Email:
    """A message ready to go: its bytes, the headers that events show, its subject as read, any HTML it has."""

    raw: bytes
    headers: tuple[tuple[str, str], ...]
    subject: str
    html: str | None

    @property
    def holds_virus(self) -> bool:
        """Whether this is the EICAR test file, with which SES's Reject event is tried out."""
        return EICAR in self.raw or EICAR in _decoded_parts(self.raw)


def read_envelope(params: Mapping[str, Any], sender: str) -> Envelope:
    """The envelope of a request whose From is ``sender``.

    Raises:
        AwsError: ``BadRequestException`` for a wrong address, none, or more than 50 recipients.
    """
    destination = params.get("Destination") or {}
    envelope = Envelope(
        parse(sender),
        _parse_all(destination.get("ToAddresses")),
        _parse_all(destination.get("CcAddresses")),
        _parse_all(destination.get("BccAddresses")),
        _parse_all(params.get("ReplyToAddresses")),
    )
    check_count(len(envelope.recipients))
    return envelope


def _parse_all(addresses: Iterable[str] | None) -> tuple[Address, ...]:
    return tuple(parse(address) for address in addresses or ())


def check_count(recipients: int) -> None:
    """Refuse a message to nobody or to more than SES takes in one call."""
    if recipients == 0:
        raise bad("Provide at least one recipient address")
    if recipients > MAX_RECIPIENTS:
        raise bad(f"Recipient count exceeds {MAX_RECIPIENTS}.")


def check_headers(headers: Iterable[Mapping[str, str]], reply_to: bool) -> list[tuple[str, str]]:
    """The custom headers of a Simple or Template message, without those that SES overwrites."""
    kept: list[tuple[str, str]] = []
    seen = set(_FROM_REQUEST) | ({"reply-to"} if reply_to else set())
    for header in headers:
        name, value = header["Name"], header["Value"]
        if len(name) + len(value) > _MAX_HEADER_OCTETS:
            raise bad(f"Header '{name}' is longer than {_MAX_HEADER_OCTETS} characters")
        if name.lower() in seen:
            raise bad(f"Duplicate header '{name}'.")
        if name.lower() in _ONCE:
            seen.add(name.lower())
        if name.lower() not in _OVERWRITTEN:
            kept.append((name, value))
    return kept


def compose(
    message_id_header: str,
    at: float,
    envelope: Envelope,
    subject: Text,
    text: Text | None,
    html: Text | None,
    headers: Headers,
) -> Email:
    """A message from its parts.

    Raises:
        AwsError: ``BadRequestException`` for non-ASCII content without a charset, an unknown charset, or
            no body at all.
    """
    parts = [_part(f"text/{kind}", body) for kind, body in (("plain", text), ("html", html)) if body is not None]
    if not parts:
        raise bad("The message must have a body: provide Text or Html")
    content, body = parts[0]
    if len(parts) > 1:
        # "=_" cannot occur in quoted-printable text, nor the message's own id in any: no part holds the boundary.
        boundary = f"=_{message_id_header[1:58]}"
        content = [("Content-Type", f'multipart/alternative; boundary="{boundary}"')]
        delimited = (f"--{boundary}\r\n{_header_block(fields)}\r\n{text}\r\n" for fields, text in parts)
        body = "".join(delimited) + f"--{boundary}--\r\n"
    fields = [
        ("From", envelope.sender.written),
        ("To", _joined(envelope.to)),
        ("Cc", _joined(envelope.cc)),
        ("Reply-To", _joined(envelope.reply_to)),
        ("Subject", _encoded_subject(subject)),
        ("Date", format_datetime(datetime.fromtimestamp(at, UTC))),
        ("Message-ID", message_id_header),
        ("MIME-Version", "1.0"),
        *headers,
        *content,
    ]
    fields = [(name, value) for name, value in fields if value or name == "Subject"]
    raw = f"{_header_block(fields)}\r\n{body}".encode("ascii")
    return Email(raw, _shown(fields), subject.data, html.data if html else None)


@dataclass(frozen=True)
class Raw:
    """A raw message as SES sends it on: ``addresses`` of its From, To, Cc and Bcc headers, and the ``control``
    headers (``x-ses-…``, lower case) that were taken out of it."""

    email: Email
    addresses: Mapping[str, Sequence[str]]
    control: Mapping[str, str]


def read_raw(message_id_header: str, at: float, data: bytes) -> Raw:
    """``data`` with SES's own Date and Message-ID, and without Bcc and SES's control headers.

    Raises:
        AwsError: ``BadRequestException`` for no header block, a line that is too long, a duplicate header.
    """
    if any(len(line) > _MAX_LINE_OCTETS for line in data.splitlines()):
        raise bad(f"A line of the message is longer than {_MAX_LINE_OCTETS} characters")
    message = BytesParser(policy=_POLICY).parsebytes(data)
    if not message.keys() or message.defects:
        raise bad("The raw message is not a valid MIME message with a header and a body")
    seen: set[str] = set()
    for name in list(message):
        if name.lower() in _ONCE and name.lower() in seen:
            raise bad(f"Duplicate header '{name}'.")
        seen.add(name.lower())
    addresses = {
        kind: [formataddr(pair) for pair in getaddresses(message.get_all(kind, []))]
        for kind in ("From", "To", "Cc", "Bcc")
    }
    control = {name.lower(): str(value) for name, value in message.items() if _is_control(name)}
    kept = [
        (name, str(value))
        for name, value in message.items()
        if name.lower() not in (*_OVERWRITTEN, "bcc") and not _is_control(name)
    ]
    date = format_datetime(datetime.fromtimestamp(at, UTC))
    _set_headers(message, [*kept, ("Date", date), ("Message-ID", message_id_header)])
    html = next((part for part in message.walk() if part.get_content_type() == "text/html"), None)
    email = Email(
        _bytes(message),
        _shown(message.items()),
        str(make_header(decode_header(str(message.get("Subject", ""))))),
        None if html is None else _payload(html).decode(html.get_content_charset() or "ascii", "replace"),
    )
    return Raw(email, addresses, control)


def raw_envelope(params: Mapping[str, Any], addresses: Mapping[str, Sequence[str]]) -> Envelope:
    """The envelope of a raw message: the request's members win over the message's headers."""
    sender = params.get("FromEmailAddress") or next(iter(addresses["From"]), None)
    if sender is None:
        raise bad("Missing required header 'From'.")
    if any((params.get("Destination") or {}).values()):
        return read_envelope(params, sender)
    destination = {f"{kind}Addresses": addresses[kind] for kind in ("To", "Cc", "Bcc")}
    return read_envelope({**params, "Destination": destination}, sender)


def _shown(fields: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers that events show: the caller's and those of the request, not what SES puts in place."""
    return tuple((name, str(value)) for name, value in fields if name.lower() not in _OVERWRITTEN)


def _is_control(name: str) -> bool:
    return name.lower().startswith("x-ses-")


def check_size(email: Email) -> None:
    """Refuse what is larger than SES takes, counted as sent."""
    if len(email.raw) > MAX_MESSAGE_BYTES:
        raise bad(f"Message length is more than {MAX_MESSAGE_BYTES} bytes long: '{len(email.raw)}'.")


def _set_headers(message: Message, headers: Iterable[tuple[str, str]]) -> None:
    wanted = list(headers)
    for name in set(message.keys()):
        del message[name]
    for name, value in wanted:
        message[name] = value


def _bytes(message: Message) -> bytes:
    out = BytesIO()
    BytesGenerator(out, mangle_from_=False, policy=_POLICY).flatten(message)
    return out.getvalue()


def _part(content_type: str, text: Text) -> tuple[list[tuple[str, str]], str]:
    """The content headers of a body, and the body as it travels."""
    encoded = _encode(text, "body")
    lines = encoded.splitlines() or [b""]
    encoding = "7bit"
    if not encoded.isascii() or max(map(len, lines)) > _MAX_LINE_OCTETS:
        encoding = "quoted-printable"
        lines = b2a_qp(b"\n".join(lines), istext=True).splitlines()
    fields = [
        ("Content-Type", f'{content_type}; charset="{text.charset or "us-ascii"}"'),
        ("Content-Transfer-Encoding", encoding),
    ]
    return fields, b"\r\n".join(lines).decode("ascii")


def _header_block(fields: Iterable[tuple[str, str]]) -> str:
    """Header lines; only one that would be longer than SMTP allows is folded, which is slow."""
    return "".join(
        f"{name}: {value}\r\n" if len(name) + len(value) + 2 <= _MAX_LINE_OCTETS else _POLICY.fold(name, value)
        for name, value in fields
    )


def _encode(text: Text, what: str) -> bytes:
    try:
        if "\n".encode(text.charset or "ascii") != b"\n":
            raise bad(f"The charset of the {what} is not one of MIME's text")
        return text.data.encode(text.charset or "ascii")
    except LookupError as reason:
        raise bad(f"The charset of the {what} is not known") from reason
    except UnicodeEncodeError as reason:
        known = text.charset or "ASCII"
        raise bad(f"The {what} holds characters outside {known}: specify a charset that has them") from reason


def _encoded_subject(subject: Text) -> str:
    if _CONTROL.search(subject.data):
        raise bad("The subject contains control characters")
    _encode(subject, "subject")
    return subject.data if subject.data.isascii() else Header(subject.data, subject.charset).encode()


def _joined(addresses: Sequence[Address]) -> str:
    return ", ".join(address.written for address in addresses)


def _decoded_parts(raw: bytes) -> bytes:
    if b"base64" not in raw:
        return b""
    message = BytesParser(policy=_POLICY).parsebytes(raw)
    return b"".join(_payload(part) for part in message.walk() if not part.is_multipart())


def _payload(part: Message) -> bytes:
    decoded = part.get_payload(decode=True)
    return decoded if isinstance(decoded, bytes) else b""
