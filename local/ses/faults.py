"""Faults that a test can order: documented errors, and connections that end without an answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from local.ses.shared import refused

# What SES says with each error that SendEmail documents (contract sheet, section 3), and with its own failure.
MESSAGES = {
    "TooManyRequestsException": "Maximum sending rate exceeded.",
    "LimitExceededException": "The limit of the resource was exceeded.",
    "MessageRejected": "The message was rejected because of its content.",
    "AccountSuspendedException": "The account's ability to send email has been permanently restricted.",
    "SendingPausedException": "Email sending is paused for this account.",
    "BadRequestException": "The input is not valid.",
    "NotFoundException": "The resource does not exist.",
    "MailFromDomainNotVerifiedException": "The MAIL FROM domain is not verified.",
    "InternalServiceErrorException": "Internal failure.",
}


class ConnectionDropped(BaseException):
    """The connection ends without an answer; only the caller's own records can tell what happened.

    Not an ``Exception``: no handler on the way may turn it into an answer.
    """


@dataclass(eq=False)
class Fault:
    """One fault for the next ``times`` sends (None: every one), or only for those to an address that
    ``address`` (a regular expression) finds.

    ``code`` is the error to answer. Without a code the connection is dropped ``when`` the message has been
    accepted (``after``) or has not (``before``), having hung for ``hang_seconds`` of real time.
    """

    code: str | None = None
    times: int | None = 1
    address: str | None = None
    when: Literal["before", "after"] = "before"
    hang_seconds: float = 0.0
    message: str | None = None
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.code is not None and (self.code not in MESSAGES or self.when == "after"):
            raise ValueError(f"an error is one of {', '.join(MESSAGES)} and comes instead of acceptance")

    def matches(self, addresses: Iterable[str]) -> bool:
        """Whether this fault is for a message to ``addresses``."""
        pattern = self.address
        return pattern is None or any(re.search(pattern, address) for address in addresses)


class Faults:
    """The faults that are still to happen, in the order in which they were ordered."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._released = threading.Event()

    def add(self, fault: Fault) -> Fault:
        """Order ``fault``; its ``hits`` count how often it has struck."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Withdraw all faults, and let go of calls that hang."""
        with self._lock:
            self._faults.clear()
            self._released.set()
            self._released = threading.Event()

    def strike(self, when: Literal["before", "after"], addresses: Iterable[str]) -> None:
        """Let the first fault that matches happen.

        Raises:
            AwsError: the error that was ordered.
            ConnectionDropped: the connection is to be closed.
        """
        fault = self._next(when, list(addresses))
        if fault is None:
            return
        if fault.hang_seconds:
            self._released.wait(fault.hang_seconds)
        if fault.code is None:
            raise ConnectionDropped
        raise refused(fault.code, fault.message or MESSAGES[fault.code])

    def listing(self) -> list[Mapping[str, Any]]:
        """The faults still to happen."""
        with self._lock:
            return [vars(fault) for fault in self._faults]

    def _next(self, when: str, addresses: list[str]) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.when == when and fault.matches(addresses):
                    fault.hits += 1
                    if fault.times is not None and fault.hits >= fault.times:
                        self._faults.remove(fault)
                    return fault
        return None
