"""SendEmail, from the request to the moment from which it is accepted."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local.clock import Clock
from local.contract import contract
from local.ports import AwsError
from local.ses import message as messages
from local.ses import templates
from local.ses.address import Address, parse
from local.ses.configuration import ConfigurationSets
from local.ses.events import Accepted, Happening
from local.ses.faults import Faults
from local.ses.identities import Identities
from local.ses.mailbox import Mailbox
from local.ses.outcomes import happenings, message_id, tracking
from local.ses.publisher import Publisher
from local.ses.quota import RateLimit, RollingCount
from local.ses.settings import SesSettings
from local.ses.shared import Members, Operations, Output, bad, not_here, refused
from local.ses.suppression import SuppressionList

_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")  # botocore sesv2, MessageTag
_MAX_TAGS = 50
_REFUSED_MEMBERS = (
    "EndpointId",
    "TenantName",
    "ListManagementOptions",
    "FromEmailAddressIdentityArn",
    "FeedbackForwardingEmailAddressIdentityArn",
)
_BULK_STATUS = {
    "MessageRejected": "MESSAGE_REJECTED",
    "MailFromDomainNotVerifiedException": "MAIL_FROM_DOMAIN_NOT_VERIFIED",
    "AccountSuspendedException": "ACCOUNT_SUSPENDED",
    "SendingPausedException": "ACCOUNT_SENDING_PAUSED",
    "BadRequestException": "INVALID_PARAMETER",
    "InternalServiceErrorException": "TRANSIENT_FAILURE",
}


@dataclass(frozen=True)
class _Request:
    """A request that has been read: what to send, to whom, under which names."""

    message_id: str
    at: float
    envelope: messages.Envelope
    content: messages.Email | templates.NotRendered
    tags: Mapping[str, str]
    configuration_set: str | None
    tracking: dict[str, Any]


class Sending:
    """The operations that send, and the account's state that decides whether they may."""

    def __init__(
        self,
        clock: Clock,
        settings: SesSettings,
        account_id: str,
        region: str,
        identities: Identities,
        configuration_sets: ConfigurationSets,
        stored_templates: templates.Templates,
        suppression: SuppressionList,
        faults: Faults,
        mailbox: Mailbox,
        publisher: Publisher,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._account_id = account_id
        self._region = region
        self._identities = identities
        self._configuration_sets = configuration_sets
        self._templates = stored_templates
        self._suppression = suppression
        self._faults = faults
        self._mailbox = mailbox
        self._publisher = publisher
        self._quotas = threading.Lock()
        self.operations: Operations = {
            "SendEmail": self.send_email,
            "SendBulkEmail": self.send_bulk_email,
            "GetAccount": self.get_account,
            "PutAccountSendingAttributes": self.put_account_sending_attributes,
        }
        self.reset()

    def reset(self) -> None:
        """Nothing sent yet, and sending enabled."""
        self._enabled = True
        self._rate = RateLimit(self._settings.max_send_rate, self._settings.burst_seconds)
        self._day = RollingCount()

    def get_account(self, params: Members) -> Output:
        """GetAccount."""
        with self._quotas:
            sent = self._day.at(self._clock.time())
        return {
            "DedicatedIpAutoWarmupEnabled": False,
            "EnforcementStatus": "HEALTHY",
            "ProductionAccessEnabled": self._settings.production_access,
            "SendQuota": {
                "Max24HourSend": float(self._settings.max_24_hour_send),
                "MaxSendRate": float(self._settings.max_send_rate),
                "SentLast24Hours": float(sent),
            },
            "SendingEnabled": self._enabled,
            "SuppressionAttributes": {"SuppressedReasons": list(self._suppression.reasons)},
            # What accounts made since 2026-07-21 have (contract sheet, section 7).
            "PricingAttributes": {"CurrentPlan": "ESSENTIALS"},
        }

    def put_account_sending_attributes(self, params: Members) -> Output:
        """PutAccountSendingAttributes; what is left out is off."""
        self._enabled = bool(params.get("SendingEnabled"))
        return {}

    def send_email(self, params: Members) -> Output:
        """SendEmail. Once this returns, or drops the connection ``after``, the message is in the mailbox.

        Raises:
            AwsError: nothing was accepted and nothing counted.
            ConnectionDropped: as a fault ordered.
        """
        destination = params.get("Destination") or {}
        everyone = [address for addresses in destination.values() for address in addresses]
        self._faults.strike("before", everyone)
        _refuse_members(params)
        request = self._read(params)
        identity = self._check_senders(request.envelope, params)
        configuration_set = request.configuration_set or self._identities.default_configuration_set(identity)
        self._check_enabled(configuration_set)
        self._reserve(request.envelope.recipients)
        self._accept(request, identity, configuration_set)
        self._faults.strike("after", everyone)
        return {"MessageId": request.message_id}

    def send_bulk_email(self, params: Members) -> Output:
        """SendBulkEmail: an answer for each entry, as SendEmail would have answered it."""
        _refuse_members(params)
        chosen = params["DefaultContent"].get("Template")
        entries = params["BulkEmailEntries"]
        if not chosen:
            raise bad("DefaultContent needs a Template")
        messages.check_count(sum(len(some) for entry in entries for some in entry["Destination"].values()))
        self._templates.check_chosen(chosen)
        self._check_enabled(params.get("ConfigurationSetName"))
        results = []
        for entry in entries:
            single = _single(params, chosen, entry)
            try:
                contract("sesv2").operation("SendEmail").validate(single)
                results.append({"Status": "SUCCESS", "MessageId": self.send_email(single)["MessageId"]})
            except AwsError as error:
                results.append({"Status": _bulk_status(error), "Error": error.message})
        return {"BulkEmailEntryResults": results}

    def _read(self, params: Members) -> _Request:
        at = self._clock.time()
        new_id = message_id(at, os.urandom(16))
        header = f"<{new_id}@{'email' if self._region == 'us-east-1' else self._region}.amazonses.com>"
        content, tags = params["Content"], params.get("EmailTags") or ()
        configuration_set = params.get("ConfigurationSetName")
        if sum(kind in content for kind in ("Simple", "Raw", "Template")) != 1:
            raise bad("Content needs exactly one of Simple, Raw and Template")
        email: messages.Email | templates.NotRendered
        if "Raw" in content:
            data = content["Raw"]["Data"]
            raw = messages.read_raw(header, at, data.encode() if isinstance(data, str) else bytes(data))
            envelope = messages.raw_envelope(params, raw.addresses)
            configuration_set = configuration_set or raw.control.get("x-ses-configuration-set")
            tags = tags or _header_tags(raw.control.get("x-ses-message-tags", ""))
            email = raw.email
        else:
            if not params.get("FromEmailAddress"):
                raise bad("FromEmailAddress is missing")
            envelope = messages.read_envelope(params, params["FromEmailAddress"])
            email = self._compose(content, header, at, envelope)
        if isinstance(email, messages.Email):
            messages.check_size(email)
        overrides = (params.get("ConfigurationOverrides") or {}).get("Tracking") or {}
        return _Request(new_id, at, envelope, email, _checked_tags(tags), configuration_set, overrides)

    def _compose(
        self, content: Members, header: str, at: float, envelope: messages.Envelope
    ) -> messages.Email | templates.NotRendered:
        part = content.get("Simple") or content.get("Template") or {}
        if part.get("Attachments"):
            raise not_here("attachments outside Raw messages")
        headers = messages.check_headers(part.get("Headers") or (), bool(envelope.reply_to))
        if "Template" in content:
            filled = self._templates.fill(part)
            if isinstance(filled, templates.NotRendered):
                return filled
            return templates.compose(header, at, envelope, filled, headers)
        subject, text, html = (
            None if given is None else messages.Text(given["Data"], given.get("Charset"))
            for given in (part["Subject"], part["Body"].get("Text"), part["Body"].get("Html"))
        )
        return messages.compose(header, at, envelope, subject or messages.Text(""), text, html, headers)

    def _check_senders(self, envelope: messages.Envelope, params: Members) -> str:
        """The identity that covers the sender; in the sandbox the recipients must be verified too."""
        to_check = [envelope.sender]
        if params.get("FeedbackForwardingEmailAddress"):
            to_check.append(parse(params["FeedbackForwardingEmailAddress"]))
        if not self._settings.production_access:
            to_check += [recipient for recipient in envelope.recipients if recipient.simulator is None]
        covering = [self._identities.covering(address) for address in to_check]
        failed = [address.written for address, found in zip(to_check, covering, strict=True) if found is None]
        if failed or covering[0] is None:
            raise refused(
                "MessageRejected",
                "Email address is not verified. The following identities failed the check in region "
                f"{self._region.upper()}: {', '.join(failed)}",
            )
        return covering[0]

    def _check_enabled(self, configuration_set: str | None) -> None:
        if not self._enabled:
            raise refused("SendingPausedException", "Email sending is paused for this account.")
        if configuration_set is not None:
            self._configuration_sets.check_sending(configuration_set)

    def _reserve(self, recipients: Sequence[Address]) -> None:
        """Count the recipients against both quotas, or refuse and count nothing. The simulator's count for
        the rate only."""
        counted = sum(recipient.simulator is None for recipient in recipients)
        with self._quotas:
            now = self._clock.time()
            limit = self._settings.max_24_hour_send
            if limit >= 0 and counted and self._day.at(now) + counted > limit:
                raise refused("TooManyRequestsException", "Daily message quota exceeded.")
            if not self._rate.permits(len(recipients), now):
                raise refused("TooManyRequestsException", "Maximum sending rate exceeded.")
            self._rate.take(len(recipients))
            self._day.add(counted, now)

    def _accept(self, request: _Request, identity: str, name: str | None) -> None:
        """Keep the message and queue what will happen to it; ``name`` is its configuration set's."""
        envelope, content, at = request.envelope, request.content, request.at
        email = content if isinstance(content, messages.Email) else None
        reasons = self._configuration_sets.suppressed_reasons(name, self._suppression.reasons)
        recipients = [
            (recipient, self._suppression.reason_for(recipient.spec, reasons)) for recipient in envelope.recipients
        ]
        accepted = Accepted(
            message_id=request.message_id,
            at=at,
            source=envelope.sender.written,
            source_arn=f"arn:aws:ses:{self._region}:{self._account_id}:identity/{identity}",
            account_id=self._account_id,
            destination=tuple(recipient.spec for recipient in envelope.recipients),
            tags=_event_tags(envelope.sender.domain, name, request.tags),
            configuration_set=name,
            headers=email.headers if email else None,
            common=_common_headers(envelope, email.subject, request.message_id) if email else None,
        )
        line = {
            "from": envelope.sender.spec,
            "destination": list(accepted.destination),
            "suppressed": [recipient.spec for recipient, reason in recipients if reason is not None],
            "tags": dict(request.tags),
            "configuration_set": name,
        }
        self._mailbox.keep(request.message_id, at, email.raw if email else None, line)
        if isinstance(content, templates.NotRendered):
            failure = {"templateName": content.template, "errorMessage": content.reason}
            self._publisher.add([Happening(at + 1.0, "Rendering Failure", accepted, failure)])
        elif content.holds_virus:
            self._publisher.add([Happening(at + 1.0, "Reject", accepted, {"reason": "Bad content"})])
        else:
            watched = tracking(content.html, request.tracking)
            self._publisher.add(happenings(accepted, recipients, watched, self._settings))


def _refuse_members(params: Members) -> None:
    for member in _REFUSED_MEMBERS:
        if params.get(member):
            raise not_here(member)


def _checked_tags(tags: Sequence[Members]) -> dict[str, str]:
    if len(tags) > _MAX_TAGS:
        raise bad(f"A message can have no more than {_MAX_TAGS} tags")
    checked: dict[str, str] = {}
    for tag in tags:
        for what in ("Name", "Value"):
            if not _TAG.fullmatch(tag[what]):
                raise bad(f"A tag {what.lower()} holds 1 to 256 ASCII letters, digits, '_' and '-'")
        if tag["Name"] in checked:
            raise bad(f"Duplicate tag <{tag['Name']}>")
        checked[tag["Name"]] = tag["Value"]
    return checked


def _header_tags(text: str) -> list[dict[str, str]]:
    """The tags of an ``X-SES-MESSAGE-TAGS: name=value, name=value`` header."""
    pairs = (pair.strip().partition("=") for pair in text.split(",") if pair.strip())
    return [{"Name": name, "Value": value} for name, _, value in pairs]


def _event_tags(domain: str, configuration_set: str | None, tags: Mapping[str, str]) -> dict[str, list[str]]:
    named = {
        "ses:operation": ["SendEmail"],
        "ses:source-ip": ["127.0.0.1"],
        "ses:from-domain": [domain],
        "ses:caller-identity": ["local"],
    }
    if configuration_set is not None:
        named["ses:configuration-set"] = [configuration_set]
    return named | {name: [value] for name, value in tags.items()}


def _common_headers(envelope: messages.Envelope, subject: str, new_id: str) -> Output:
    common: Output = {"from": [envelope.sender.written]}
    for name, addresses in (("replyTo", envelope.reply_to), ("to", envelope.to), ("cc", envelope.cc)):
        if addresses:
            common[name] = [address.written for address in addresses]
    return common | {"messageId": new_id, "subject": subject}


def _single(params: Members, default: Members, entry: Members) -> Output:
    """One entry of SendBulkEmail as the SendEmail it stands for; its own headers and tags win by name."""
    template = dict(default)
    replacement = (entry.get("ReplacementEmailContent") or {}).get("ReplacementTemplate") or {}
    if "ReplacementTemplateData" in replacement:
        template["TemplateData"] = replacement["ReplacementTemplateData"]
    headers = {header["Name"].lower(): header for header in default.get("Headers") or ()}
    headers |= {header["Name"].lower(): header for header in entry.get("ReplacementHeaders") or ()}
    if headers:
        template["Headers"] = list(headers.values())
    tags = {tag["Name"]: tag for tag in params.get("DefaultEmailTags") or ()}
    tags |= {tag["Name"]: tag for tag in entry.get("ReplacementTags") or ()}
    taken = ("FromEmailAddress", "ReplyToAddresses", "ConfigurationSetName", "ConfigurationOverrides")
    return {
        **{key: params[key] for key in taken if key in params},
        "Destination": entry["Destination"],
        "Content": {"Template": template},
        "EmailTags": list(tags.values()),
    }


def _bulk_status(error: AwsError) -> str:
    """The status of a bulk entry that SendEmail would have answered with ``error``."""
    if error.code == "TooManyRequestsException":
        return "ACCOUNT_DAILY_QUOTA_EXCEEDED" if error.message.startswith("Daily") else "ACCOUNT_THROTTLED"
    return _BULK_STATUS.get(error.code, "FAILED")
