"""SES v2's operations, for one account in one Region."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any

from local.clock import Clock
from local.contract import contract
from local.ports import AwsError, Caller
from local.ses import message as messages
from local.ses import rendering
from local.ses.address import Address, parse
from local.ses.events import Accepted, Happening
from local.ses.faults import Fault, Faults
from local.ses.mailbox import Mailbox
from local.ses.outcomes import happenings, message_id, tracking
from local.ses.publisher import Publisher
from local.ses.quota import RateLimit, RollingCount
from local.ses.settings import SesSettings

type Members = Mapping[str, Any]
type Output = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
_FIREHOSE_ARN = re.compile(r"arn:[\w-]+:firehose:[a-z0-9-]+:\d{12}:deliverystream/[a-zA-Z0-9_.-]{1,64}")
_ROLE_ARN = re.compile(r"arn:[\w-]+:iam::\d{12}:role/[\w+=,.@/-]+")
_MAX_TEMPLATE_BYTES = 500 * 1024
_MAX_TAGS = 50
_MAX_CONFIGURATION_SETS = 10_000
_MAX_EVENT_DESTINATIONS = 10
_TARGETS = (
    "KinesisFirehoseDestination",
    "CloudWatchDestination",
    "SnsDestination",
    "EventBridgeDestination",
    "PinpointDestination",
)
# Configuration set options that change what happens to a message in ways that this cloud does not show.
_REFUSED_OPTIONS = ("ArchivingOptions", "MessageSecurityOptions")
_OPTIONS = (
    "TrackingOptions",
    "DeliveryOptions",
    "ReputationOptions",
    "SendingOptions",
    "SuppressionOptions",
    "VdmOptions",
)
_REFUSED_MEMBERS = ("EndpointId", "TenantName", "ListManagementOptions", "FromEmailAddressIdentityArn")


class SimpleEmail:
    """SES v2: ``handle`` answers one operation; events follow on ``clock`` once ``start`` was called, or when a
    test calls ``publish_due``.

    ``mailbox`` is the folder for accepted e-mails; ``caller`` reaches Firehose as the role of an event
    destination.
    """

    name = "sesv2"

    def __init__(
        self,
        clock: Clock,
        caller: Caller,
        mailbox: Path,
        account_id: str,
        region: str,
        settings: SesSettings,
    ) -> None:
        self.settings = settings
        self.account_id = account_id
        self.region = region
        self.faults = Faults()
        self.identities: MutableMapping[str, dict[str, Any]] = {}
        self.configuration_sets: MutableMapping[str, dict[str, Any]] = {}
        self._clock = clock
        self._contract = contract("sesv2")
        self._mailbox = Mailbox(mailbox)
        self._templates: dict[str, dict[str, Any]] = {}
        self._suppressed: dict[str, dict[str, Any]] = {}
        self._suppressed_reasons = ["BOUNCE", "COMPLAINT"]
        self._sending_enabled = True
        self._rate = RateLimit(settings.max_send_rate, settings.burst_seconds)
        self._day = RollingCount()
        self._lock = threading.Lock()
        self._publisher = Publisher(clock, caller, self._destinations, self._record_feedback)
        self._operations: dict[str, Callable[[Members], Output]] = {
            name: getattr(self, "_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()) for name in OPERATIONS
        }
        for identity in settings.identities:
            self._create_email_identity({"EmailIdentity": identity})

    # Running

    def start(self) -> None:
        """Let events happen in the background."""
        self._publisher.start()

    def stop(self) -> None:
        """End the background work and release calls that hang."""
        self.faults.clear()
        self._publisher.stop()
        self._mailbox.close()

    def publish_due(self) -> int:
        """Publish the events that are due by now; how many."""
        return self._publisher.publish_due()

    def reset(self) -> None:
        """An account as new, with the same settings; the mailbox folder keeps what it has."""
        self.faults.clear()
        self._publisher.clear()
        with self._lock:
            self._templates.clear()
            self._suppressed.clear()
            self._suppressed_reasons = ["BOUNCE", "COMPLAINT"]
            self._sending_enabled = True
            self._rate = RateLimit(self.settings.max_send_rate, self.settings.burst_seconds)
            self._day = RollingCount()
        self.identities.clear()
        self.configuration_sets.clear()
        for identity in self.settings.identities:
            self._create_email_identity({"EmailIdentity": identity})

    def control(self, request: Members) -> Output:
        """What the host's control endpoint passes on: ``{"fault": {…}}`` orders one (members of ``Fault``),
        ``{"clear_faults": true}`` withdraws all, ``{"publish": true}`` publishes what is due. Answers with the
        faults still to happen.

        Raises:
            ValueError: a fault that cannot be.
        """
        if request.get("clear_faults"):
            self.faults.clear()
        if (fault := request.get("fault")) is not None:
            try:
                self.faults.add(Fault(**fault))
            except TypeError as reason:
                raise ValueError(f"not a fault: {reason}") from reason
        published = self.publish_due() if request.get("publish") else 0
        return {"faults": self.faults.listing(), "published": published}

    def handle(self, operation: str, params: Members) -> Output:
        """Answer ``operation`` (botocore's spelling) with the members of its output.

        Raises:
            AwsError: what SES refuses, and by name what it would take but this cloud does not do.
            ConnectionDropped: a fault that a test ordered.
        """
        self._contract.operation(operation).validate(params)
        answer = self._operations.get(operation)
        if answer is None:
            raise self._bad(f"the local cloud does not have the SES operation {operation}")
        return answer(params)

    # Sending

    def _send_email(self, params: Members) -> Output:
        destination = params.get("Destination") or {}
        everyone = [address for addresses in destination.values() for address in addresses]
        self.faults.strike("before", everyone)
        self._refuse_members(params)
        sent = self._send(params)
        self.faults.strike("after", everyone)
        return {"MessageId": sent}

    def _send_bulk_email(self, params: Members) -> Output:
        self._refuse_members(params)
        default = params["DefaultContent"].get("Template")
        if not default:
            raise self._bad("DefaultContent needs a Template")
        if not params["BulkEmailEntries"]:
            raise self._bad("BulkEmailEntries is empty")
        messages.check_count(
            sum(len(some) for entry in params["BulkEmailEntries"] for some in entry["Destination"].values())
        )
        self._template_sources(default)
        self._check_account(params.get("ConfigurationSetName"))
        results = []
        for entry in params["BulkEmailEntries"]:
            single = _single(params, default, entry)
            try:
                self._contract.operation("SendEmail").validate(single)
                answer = self._send_email(single)
                results.append({"Status": "SUCCESS", "MessageId": answer["MessageId"]})
            except AwsError as error:
                results.append({"Status": _bulk_status(error), "Error": error.message})
        return {"BulkEmailEntryResults": results}

    def _send(self, params: Members) -> str:
        at = self._clock.time()
        new_id = message_id(at, int.from_bytes(os.urandom(16)))
        tags = list(params.get("EmailTags") or ())
        configuration_set = params.get("ConfigurationSetName")
        content = params["Content"]
        if sum(kind in content for kind in ("Simple", "Raw", "Template")) != 1:
            raise self._bad("Content needs exactly one of Simple, Raw and Template")
        header_id = f"<{new_id}@{'email' if self.region == 'us-east-1' else self.region}.amazonses.com>"
        failure: Output | None = None
        email: messages.Email | None = None
        if "Raw" in content:
            raw, params, control = self._read_raw(params, header_id, at)
            configuration_set = configuration_set or control.get("x-ses-configuration-set")
            tags = tags or _header_tags(control.get("x-ses-message-tags", ""))
            envelope = messages.read_envelope(params, params["FromEmailAddress"])
            email = messages.finish_raw(raw)
        else:
            if not params.get("FromEmailAddress"):
                raise self._bad("FromEmailAddress is missing")
            envelope = messages.read_envelope(params, params["FromEmailAddress"])
            email, failure = self._compose(content, header_id, at, envelope)
        tag_map = self._check_tags(tags)
        identity = self._check_sender(envelope, params)
        self._check_account(configuration_set)
        if email is not None:
            messages.check_size(email)
        self._reserve(envelope.recipients)
        self._accept(new_id, at, envelope, identity, tag_map, configuration_set, email, failure, params)
        return new_id

    def _read_raw(self, params: Members, header_id: str, at: float) -> tuple[Message, Output, dict[str, str]]:
        """The raw message, and ``params`` with sender and destination taken from its headers where absent."""
        data = params["Content"]["Raw"]["Data"]
        raw, addresses, control = messages.read_raw(
            header_id, at, data.encode() if isinstance(data, str) else bytes(data)
        )
        filled = dict(params)
        if not filled.get("FromEmailAddress"):
            if not addresses["From"]:
                raise self._bad("Missing required header 'From'.")
            filled["FromEmailAddress"] = addresses["From"][0]
        if not any((filled.get("Destination") or {}).values()):
            filled["Destination"] = {f"{kind}Addresses": addresses[kind] for kind in ("To", "Cc", "Bcc")}
        return raw, filled, control

    def _compose(
        self, content: Members, header_id: str, at: float, envelope: messages.Envelope
    ) -> tuple[messages.Email | None, Output | None]:
        """The e-mail, or what its Rendering Failure event says when the data do not fill the template."""
        part = content.get("Simple") or content.get("Template") or {}
        if part.get("Attachments"):
            raise self._bad("the local cloud takes attachments in Raw messages only")
        headers = messages.check_headers(part.get("Headers") or (), bool(envelope.reply_to))
        if "Simple" in content:
            body = part["Body"]
            return (
                messages.compose(
                    header_id,
                    at,
                    envelope,
                    (part["Subject"]["Data"], part["Subject"].get("Charset")),
                    _body(body.get("Text")),
                    _body(body.get("Html")),
                    headers,
                ),
                None,
            )
        name, sources = self._template_sources(part)
        data = self._template_data(part.get("TemplateData"))
        try:
            rendered = {key: rendering.render(source, data) for key, source in sources.items() if source}
        except rendering.RenderingError as reason:
            return None, {"templateName": name, "errorMessage": str(reason)}
        text, html = rendered.get("Text"), rendered.get("Html")
        return (
            messages.compose(
                header_id,
                at,
                envelope,
                (rendered.get("Subject", ""), "UTF-8"),
                None if text is None else (text, "UTF-8"),
                None if html is None else (html, "UTF-8"),
                headers,
            ),
            None,
        )

    def _template_sources(self, part: Members) -> tuple[str, Mapping[str, str]]:
        named = [part[key] for key in ("TemplateName", "TemplateArn", "TemplateContent") if part.get(key)]
        if len(named) != 1:
            raise self._bad("Template needs exactly one of TemplateName, TemplateArn and TemplateContent")
        if (inline := part.get("TemplateContent")) is not None:
            self._check_template(inline)
            if not all(rendering.is_simple(source) for source in inline.values()):
                raise self._bad("TemplateContent supports simple substitutions only")
            return "", inline
        name = part.get("TemplateName") or part["TemplateArn"].partition(":template/")[2]
        return name, self._template(name)["TemplateContent"]

    def _template_data(self, text: str | None) -> Mapping[str, Any]:
        try:
            data = json.loads(text or "{}")
        except ValueError as reason:
            raise self._bad("TemplateData is not valid JSON") from reason
        if not isinstance(data, dict):
            raise self._bad("TemplateData is not a JSON object")
        return data

    def _check_tags(self, tags: Sequence[Members]) -> dict[str, str]:
        if len(tags) > _MAX_TAGS:
            raise self._bad(f"A message can have no more than {_MAX_TAGS} tags")
        checked: dict[str, str] = {}
        for tag in tags:
            for what in ("Name", "Value"):
                if not _TAG.fullmatch(tag[what]):
                    raise self._bad(
                        f"A tag {what.lower()} holds 1 to 256 ASCII letters, digits, '_' and '-' and nothing else"
                    )
            if tag["Name"] in checked:
                raise self._bad(f"Duplicate tag <{tag['Name']}>")
            checked[tag["Name"]] = tag["Value"]
        return checked

    def _check_sender(self, envelope: messages.Envelope, params: Members) -> str:
        """The identity that covers the sender; in the sandbox the recipients must be verified too."""
        must_be_verified = [envelope.sender]
        if params.get("FeedbackForwardingEmailAddress"):
            must_be_verified.append(parse(params["FeedbackForwardingEmailAddress"]))
        if not self.settings.production_access:
            must_be_verified += [some for some in envelope.recipients if some.simulator is None]
        failed = [some.written for some in must_be_verified if self._identity_of(some) is None]
        if failed:
            raise self._contract.error(
                "MessageRejected",
                "Email address is not verified. The following identities failed the check in region "
                f"{self.region.upper()}: {', '.join(failed)}",
            )
        return self._identity_of(envelope.sender) or ""

    def _identity_of(self, address: Address) -> str | None:
        """The verified identity that covers ``address``: itself, its domain, or a domain above that."""
        labels = address.domain.split(".")
        candidates = [f"{address.local}@{address.domain}"]
        candidates += [".".join(labels[start:]) for start in range(len(labels) - 1)]
        return next((name for name in candidates if name in self.identities and self._is_verified(name)), None)

    def _is_verified(self, identity: str) -> bool:
        domain = identity.rpartition("@")[2]
        return any(domain == good or domain.endswith("." + good) for good in self.settings.verified_domains)

    def _check_account(self, configuration_set: str | None) -> None:
        if not self._sending_enabled:
            raise self._contract.error("SendingPausedException", "Email sending is paused for this account.")
        if configuration_set is None:
            return
        found = self._configuration_set(configuration_set)
        if not (found.get("SendingOptions") or {}).get("SendingEnabled", True):
            raise self._contract.error(
                "SendingPausedException",
                f"Email sending is paused for configuration set <{configuration_set}>.",
            )

    def _reserve(self, recipients: Sequence[Address]) -> None:
        """Count the recipients against both quotas, or refuse and count nothing."""
        counted = sum(recipient.simulator is None for recipient in recipients)
        with self._lock:
            now = self._clock.time()
            limit = self.settings.max_24_hour_send
            if limit >= 0 and counted and self._day.at(now) + counted > limit:
                raise self._contract.error("TooManyRequestsException", "Daily message quota exceeded.")
            if not self._rate.permits(len(recipients), now):
                raise self._contract.error("TooManyRequestsException", "Maximum sending rate exceeded.")
            self._rate.take(len(recipients))
            self._day.add(counted, now)

    def _accept(
        self,
        new_id: str,
        at: float,
        envelope: messages.Envelope,
        identity: str,
        tags: Mapping[str, str],
        configuration_set: str | None,
        email: messages.Email | None,
        failure: Output | None,
        params: Members,
    ) -> None:
        """Keep the message and queue what will happen to it: from here on it is accepted."""
        reasons = self._effective_reasons(configuration_set)
        listed = {
            recipient: entry["Reason"]
            for recipient in envelope.recipients
            if (entry := self._suppressed.get(recipient.spec.lower())) is not None and entry["Reason"] in reasons
        }
        accepted = Accepted(
            new_id,
            at,
            envelope.sender.written,
            f"arn:aws:ses:{self.region}:{self.account_id}:identity/{identity}",
            self.account_id,
            tuple(recipient.spec for recipient in envelope.recipients),
            _event_tags(envelope.sender.domain, configuration_set, tags),
            configuration_set,
            email.headers if email is not None else None,
            _common_headers(envelope, email.subject, new_id) if email is not None else None,
        )
        self._mailbox.keep(
            new_id,
            at,
            email.raw if email is not None else None,
            {
                "from": envelope.sender.spec,
                "destination": list(accepted.destination),
                "suppressed": [recipient.spec for recipient in listed],
                "tags": dict(tags),
                "configuration_set": configuration_set,
            },
        )
        if email is None:
            self._publisher.add([Happening(at + 1.0, "Rendering Failure", accepted, failure or {})])
        elif email.holds_virus:
            self._publisher.add([Happening(at + 1.0, "Reject", accepted, {"reason": "Bad content"})])
        else:
            overrides = (params.get("ConfigurationOverrides") or {}).get("Tracking") or {}
            recipients = [(recipient, listed.get(recipient)) for recipient in envelope.recipients]
            watched = tracking(email.html, overrides)
            self._publisher.add(happenings(accepted, recipients, watched, self.settings))

    def _effective_reasons(self, configuration_set: str | None) -> Sequence[str]:
        if configuration_set is not None:
            options = self.configuration_sets[configuration_set].get("SuppressionOptions") or {}
            if "SuppressedReasons" in options:
                return list(options["SuppressedReasons"])
        return self._suppressed_reasons

    def _record_feedback(self, happening: Happening) -> None:
        """A hard bounce or a complaint puts the address on the account's list, as its settings say."""
        details = happening.details
        if happening.event_type == "Bounce" and details["bounceType"] == "Permanent":
            reason, recipients = "BOUNCE", details["bouncedRecipients"]
        elif happening.event_type == "Complaint":
            reason, recipients = "COMPLAINT", details["complainedRecipients"]
        else:
            return
        if reason not in self._suppressed_reasons:
            return
        for recipient in recipients:
            address = recipient["emailAddress"]
            # The simulator's addresses never get onto a list, and a listed one stays as it is.
            if parse(address).simulator is None and address.lower() not in self._suppressed:
                attributes = {
                    "MessageId": happening.message.message_id,
                    "FeedbackId": details["feedbackId"],
                }
                self._suppress(address, reason, attributes)

    def _destinations(self, configuration_set: str | None) -> Iterable[Members]:
        if configuration_set is None:
            return ()
        found = self.configuration_sets.get(configuration_set) or {}
        return tuple((found.get("EventDestinations") or {}).values())

    def _refuse_members(self, params: Members) -> None:
        for member in _REFUSED_MEMBERS:
            if params.get(member):
                raise self._bad(f"the local cloud does not have {member}")

    # Account

    def _get_account(self, params: Members) -> Output:
        with self._lock:
            sent = self._day.at(self._clock.time())
        return {
            "DedicatedIpAutoWarmupEnabled": False,
            "EnforcementStatus": "HEALTHY",
            "ProductionAccessEnabled": self.settings.production_access,
            "SendQuota": {
                "Max24HourSend": float(self.settings.max_24_hour_send),
                "MaxSendRate": float(self.settings.max_send_rate),
                "SentLast24Hours": float(sent),
            },
            "SendingEnabled": self._sending_enabled,
            "SuppressionAttributes": {"SuppressedReasons": list(self._suppressed_reasons)},
            "PricingAttributes": {"CurrentPlan": "ESSENTIALS"},
        }

    def _put_account_sending_attributes(self, params: Members) -> Output:
        self._sending_enabled = bool(params.get("SendingEnabled", False))
        return {}

    def _put_account_suppression_attributes(self, params: Members) -> Output:
        if params.get("ValidationAttributes"):
            raise self._bad("the local cloud does not have ValidationAttributes")
        self._suppressed_reasons = list(params.get("SuppressedReasons") or ())
        return {}

    # Identities

    def _create_email_identity(self, params: Members) -> Output:
        name = params["EmailIdentity"]
        if "@" in name:
            address = parse(name)
            name = f"{address.local}@{address.domain}"
        else:
            name = parse(f"postmaster@{name}").domain
        if params.get("DkimSigningAttributes"):
            raise self._bad("the local cloud does not have DkimSigningAttributes")
        if params.get("ConfigurationSetName"):
            self._configuration_set(params["ConfigurationSetName"])
        if name in self.identities:
            raise self._contract.error("AlreadyExistsException", f"Email identity {name} already exist.")
        self.identities[name] = {
            "EmailIdentity": name,
            "IdentityType": "EMAIL_ADDRESS" if "@" in name else "DOMAIN",
            "Tags": list(params.get("Tags") or ()),
            "ConfigurationSetName": params.get("ConfigurationSetName", ""),
        }
        return {
            key: value
            for key, value in self._identity(name).items()
            if key in ("IdentityType", "VerifiedForSendingStatus", "DkimAttributes")
        }

    def _get_email_identity(self, params: Members) -> Output:
        return self._identity(params["EmailIdentity"])

    def _delete_email_identity(self, params: Members) -> Output:
        self._identity(params["EmailIdentity"])
        del self.identities[params["EmailIdentity"]]
        return {}

    def _list_email_identities(self, params: Members) -> Output:
        wanted = params.get("Filter") or {}
        listed = [self._identity(name) | {"IdentityName": name} for name in sorted(self.identities)]
        kept = [
            {
                "IdentityType": each["IdentityType"],
                "IdentityName": each["IdentityName"],
                "SendingEnabled": each["VerifiedForSendingStatus"],
                "VerificationStatus": each["VerificationStatus"],
            }
            for each in listed
            if wanted.get("IDENTITY_NAME_CONTAINS", "") in each["IdentityName"]
            and wanted.get("IDENTITY_TYPE", each["IdentityType"]) == each["IdentityType"]
            and wanted.get("VERIFICATION_STATUS", each["VerificationStatus"]) == each["VerificationStatus"]
        ]
        return self._page("EmailIdentities", kept, params, 1000, 1000)

    def _identity(self, name: str) -> Output:
        stored = self.identities.get(name)
        if stored is None:
            raise self._contract.error("NotFoundException", f"Email identity {name} does not exist.")
        verified = self._is_verified(name)
        is_domain = "@" not in name
        status = "SUCCESS" if verified else "PENDING"
        dkim = {
            "SigningEnabled": is_domain,
            "Status": status if is_domain else "NOT_STARTED",
            "SigningAttributesOrigin": "AWS_SES",
        }
        identity: Output = {
            "IdentityType": "DOMAIN" if is_domain else "EMAIL_ADDRESS",
            "FeedbackForwardingStatus": True,
            "VerifiedForSendingStatus": verified,
            "DkimAttributes": dkim,
            "Tags": list(stored.get("Tags") or ()),
            "VerificationStatus": status,
        }
        if stored.get("ConfigurationSetName"):
            identity["ConfigurationSetName"] = stored["ConfigurationSetName"]
        return identity

    # Configuration sets and event destinations

    def check_configuration_set(self, name: str, params: Members) -> None:
        """Refuse a new configuration set that SES would refuse, or that asks for what this cloud does not do.

        Raises:
            AwsError
        """
        if not _NAME.fullmatch(name):
            raise self._bad("A configuration set name holds 1 to 64 ASCII letters, digits, '_' and '-'")
        for option in _REFUSED_OPTIONS:
            if params.get(option):
                raise self._bad(f"the local cloud does not have {option}")
        if name in self.configuration_sets:
            raise self._contract.error("AlreadyExistsException", f"Configuration set <{name}> already exists.")
        if len(self.configuration_sets) >= _MAX_CONFIGURATION_SETS:
            raise self._contract.error("LimitExceededException", "Too many configuration sets.")

    def _create_configuration_set(self, params: Members) -> Output:
        name = params["ConfigurationSetName"]
        self.check_configuration_set(name, params)
        self.configuration_sets[name] = {
            "ConfigurationSetName": name,
            "Tags": list(params.get("Tags") or ()),
            "SendingOptions": {"SendingEnabled": True},
            **{option: dict(params[option]) for option in _OPTIONS if params.get(option)},
        }
        return {}

    def _get_configuration_set(self, params: Members) -> Output:
        stored = self._configuration_set(params["ConfigurationSetName"])
        return {key: stored[key] for key in ("ConfigurationSetName", "Tags", *_OPTIONS) if key in stored}

    def _delete_configuration_set(self, params: Members) -> Output:
        self._configuration_set(params["ConfigurationSetName"])
        del self.configuration_sets[params["ConfigurationSetName"]]
        return {}

    def _list_configuration_sets(self, params: Members) -> Output:
        part = (params.get("Filter") or {}).get("CONFIGURATION_SET_NAME_CONTAINS", "")
        names = sorted(name for name in self.configuration_sets if part in name)
        return self._page("ConfigurationSets", names, params, 1000, 1000)

    def _put_configuration_set_sending_options(self, params: Members) -> Output:
        stored = self._configuration_set(params["ConfigurationSetName"])
        stored["SendingOptions"] = {"SendingEnabled": bool(params.get("SendingEnabled", False))}
        return {}

    def _put_configuration_set_suppression_options(self, params: Members) -> Output:
        stored = self._configuration_set(params["ConfigurationSetName"])
        if params.get("SuppressionScope") or params.get("ValidationOptions"):
            raise self._bad("the local cloud has SuppressedReasons only")
        stored["SuppressionOptions"] = {"SuppressedReasons": list(params.get("SuppressedReasons") or ())}
        return {}

    def check_event_destination(self, definition: Members) -> None:
        """Refuse a definition that SES would refuse, or a kind of destination that this cloud does not reach.

        Raises:
            AwsError
        """
        if not definition.get("MatchingEventTypes"):
            raise self._bad("At least one event type must be specified.")
        targets = [target for target in _TARGETS if definition.get(target)]
        if len(targets) != 1:
            raise self._bad("An event destination needs exactly one destination.")
        if targets[0] != "KinesisFirehoseDestination":
            raise self._bad(f"the local cloud does not have the event destination {targets[0]}")
        firehose = definition["KinesisFirehoseDestination"]
        if not _FIREHOSE_ARN.fullmatch(str(firehose["DeliveryStreamArn"])):
            raise self._bad("DeliveryStreamArn is not the ARN of a Firehose stream.")
        if not _ROLE_ARN.fullmatch(str(firehose["IamRoleArn"])):
            raise self._bad("IamRoleArn is not the ARN of an IAM role.")

    def _create_configuration_set_event_destination(self, params: Members) -> Output:
        name = params["EventDestinationName"]
        destinations = self._event_destinations(params)
        if not _NAME.fullmatch(name):
            raise self._bad("An event destination name holds 1 to 64 ASCII letters, digits, '_' and '-'")
        if name in destinations:
            raise self._contract.error(
                "AlreadyExistsException", f"An event destination with name <{name}> already exists."
            )
        if len(destinations) >= _MAX_EVENT_DESTINATIONS:
            raise self._contract.error("LimitExceededException", "Too many event destinations.")
        self._put_event_destination(destinations, name, params["EventDestination"])
        return {}

    def _update_configuration_set_event_destination(self, params: Members) -> Output:
        name = params["EventDestinationName"]
        destinations = self._event_destinations(params)
        self._known_destination(destinations, name)
        self._put_event_destination(destinations, name, params["EventDestination"])
        return {}

    def _get_configuration_set_event_destinations(self, params: Members) -> Output:
        destinations = self._event_destinations(params)
        return {"EventDestinations": [{"Name": name, **each} for name, each in destinations.items()]}

    def _delete_configuration_set_event_destination(self, params: Members) -> Output:
        destinations = self._event_destinations(params)
        self._known_destination(destinations, params["EventDestinationName"])
        del destinations[params["EventDestinationName"]]
        return {}

    def _put_event_destination(self, destinations: dict[str, Any], name: str, definition: Members) -> None:
        self.check_event_destination(definition)
        destinations[name] = {
            "Enabled": bool(definition.get("Enabled")),
            "MatchingEventTypes": list(definition["MatchingEventTypes"]),
            "KinesisFirehoseDestination": dict(definition["KinesisFirehoseDestination"]),
        }

    def _event_destinations(self, params: Members) -> dict[str, Any]:
        stored = self._configuration_set(params["ConfigurationSetName"])
        destinations: dict[str, Any] = stored.setdefault("EventDestinations", {})
        return destinations

    def _known_destination(self, destinations: Members, name: str) -> None:
        if name not in destinations:
            raise self._contract.error("NotFoundException", f"An event destination with name <{name}> does not exist.")

    def _configuration_set(self, name: str) -> dict[str, Any]:
        stored = self.configuration_sets.get(name)
        if stored is None:
            raise self._contract.error("NotFoundException", f"Configuration set <{name}> does not exist.")
        return stored

    # Templates

    def _create_email_template(self, params: Members) -> Output:
        name = params["TemplateName"]
        if not _NAME.fullmatch(name):
            raise self._bad("A template name holds 1 to 64 ASCII letters, digits, '_' and '-'")
        self._check_template(params["TemplateContent"])
        if name in self._templates:
            raise self._contract.error("AlreadyExistsException", f"Template {name} already exists.")
        self._templates[name] = {
            "TemplateName": name,
            "TemplateContent": dict(params["TemplateContent"]),
            "Tags": list(params.get("Tags") or ()),
            "CreatedTimestamp": self._clock.now(),
        }
        return {}

    def _get_email_template(self, params: Members) -> Output:
        stored = self._template(params["TemplateName"])
        return {key: stored[key] for key in ("TemplateName", "TemplateContent", "Tags")}

    def _update_email_template(self, params: Members) -> Output:
        stored = self._template(params["TemplateName"])
        self._check_template(params["TemplateContent"])
        stored["TemplateContent"] = dict(params["TemplateContent"])
        return {}

    def _delete_email_template(self, params: Members) -> Output:
        self._template(params["TemplateName"])
        del self._templates[params["TemplateName"]]
        return {}

    def _list_email_templates(self, params: Members) -> Output:
        listed = [
            {"TemplateName": each["TemplateName"], "CreatedTimestamp": each["CreatedTimestamp"]}
            for each in self._templates.values()
        ]
        return self._page("TemplatesMetadata", listed, params, 10, 100)

    def _test_render_email_template(self, params: Members) -> Output:
        content = self._template(params["TemplateName"])["TemplateContent"]
        data = self._template_data(params["TemplateData"])
        try:
            rendered = {key: rendering.render(source, data) for key, source in content.items() if source}
        except rendering.RenderingError as reason:
            raise self._bad(str(reason)) from reason
        nobody = parse("nobody@example.com")
        at = self._clock.time()
        text, html = rendered.get("Text"), rendered.get("Html")
        email = messages.compose(
            f"<{message_id(at, int.from_bytes(os.urandom(16)))}@email.amazonses.com>",
            at,
            messages.Envelope(nobody, ()),
            (rendered.get("Subject", ""), "UTF-8"),
            None if text is None else (text, "UTF-8"),
            None if html is None else (html, "UTF-8"),
            (),
        )
        return {"RenderedTemplate": email.raw.decode("ascii")}

    def _template(self, name: str) -> dict[str, Any]:
        stored = self._templates.get(name)
        if stored is None:
            raise self._contract.error("NotFoundException", f"Template {name} does not exist.")
        return stored

    def _check_template(self, content: Members) -> None:
        if not content.get("Subject"):
            raise self._bad("The subject must be specified.")
        if not (content.get("Text") or content.get("Html")):
            raise self._bad("The template needs Text or Html.")
        if sum(len(source.encode()) for source in content.values()) > _MAX_TEMPLATE_BYTES:
            raise self._bad(f"The template is larger than {_MAX_TEMPLATE_BYTES} bytes.")
        for source in content.values():
            try:
                rendering.compiled(source)
            except rendering.TemplateError as reason:
                raise self._bad(f"Template is invalid: {reason}") from reason

    # Suppression list

    def _put_suppressed_destination(self, params: Members) -> Output:
        self._refuse_members(params)
        self._suppress(parse(params["EmailAddress"]).spec, params["Reason"], None)
        return {}

    def _get_suppressed_destination(self, params: Members) -> Output:
        self._refuse_members(params)
        return {"SuppressedDestination": dict(self._suppressed_entry(params["EmailAddress"]))}

    def _delete_suppressed_destination(self, params: Members) -> Output:
        self._refuse_members(params)
        self._suppressed_entry(params["EmailAddress"])
        del self._suppressed[params["EmailAddress"].lower()]
        return {}

    def _list_suppressed_destinations(self, params: Members) -> Output:
        self._refuse_members(params)
        reasons = params.get("Reasons") or ("BOUNCE", "COMPLAINT")
        since = _instant(params.get("StartDate"), datetime.min.replace(tzinfo=UTC))
        until = _instant(params.get("EndDate"), datetime.max.replace(tzinfo=UTC))
        listed = [
            {key: entry[key] for key in ("EmailAddress", "Reason", "LastUpdateTime")}
            for entry in self._suppressed.values()
            if entry["Reason"] in reasons and since <= entry["LastUpdateTime"] <= until
        ]
        return self._page("SuppressedDestinationSummaries", listed, params, 100, 1000, "InvalidNextTokenException")

    def _suppress(self, address: str, reason: str, attributes: Members | None) -> None:
        entry: dict[str, Any] = {
            "EmailAddress": address,
            "Reason": reason,
            "LastUpdateTime": self._clock.now(),
        }
        if attributes is not None:
            entry["Attributes"] = dict(attributes)
        self._suppressed[address.lower()] = entry

    def _suppressed_entry(self, address: str) -> dict[str, Any]:
        entry = self._suppressed.get(address.lower())
        if entry is None:
            raise self._contract.error(
                "NotFoundException", "The email address does not exist on your suppression list."
            )
        return entry

    def _page(
        self,
        member: str,
        items: Sequence[Any],
        params: Members,
        usual: int,
        most: int,
        if_wrong: str = "BadRequestException",
    ) -> Output:
        size = params.get("PageSize") or usual
        if not 1 <= size <= most:
            raise self._bad(f"PageSize must be between 1 and {most}")
        start = 0
        if (token := params.get("NextToken")) is not None:
            try:
                start = int(base64.urlsafe_b64decode(token))
            except ValueError as reason:
                raise self._contract.error(if_wrong, "The NextToken is not valid.") from reason
        page: Output = {member: list(items[start : start + size])}
        if start + size < len(items):
            page["NextToken"] = base64.urlsafe_b64encode(str(start + size).encode()).decode()
        return page

    def _bad(self, reason: str) -> AwsError:
        return self._contract.error("BadRequestException", reason)


OPERATIONS = (
    "SendEmail",
    "SendBulkEmail",
    "GetAccount",
    "PutAccountSendingAttributes",
    "PutAccountSuppressionAttributes",
    "CreateEmailIdentity",
    "GetEmailIdentity",
    "DeleteEmailIdentity",
    "ListEmailIdentities",
    "CreateConfigurationSet",
    "GetConfigurationSet",
    "DeleteConfigurationSet",
    "ListConfigurationSets",
    "PutConfigurationSetSendingOptions",
    "PutConfigurationSetSuppressionOptions",
    "CreateConfigurationSetEventDestination",
    "GetConfigurationSetEventDestinations",
    "UpdateConfigurationSetEventDestination",
    "DeleteConfigurationSetEventDestination",
    "CreateEmailTemplate",
    "GetEmailTemplate",
    "UpdateEmailTemplate",
    "DeleteEmailTemplate",
    "ListEmailTemplates",
    "TestRenderEmailTemplate",
    "PutSuppressedDestination",
    "GetSuppressedDestination",
    "ListSuppressedDestinations",
    "DeleteSuppressedDestination",
)


def _body(content: Members | None) -> tuple[str, str | None] | None:
    return None if content is None else (content["Data"], content.get("Charset"))


def _instant(value: Any, otherwise: datetime) -> datetime:
    if value is None:
        return otherwise
    return value if isinstance(value, datetime) else datetime.fromtimestamp(float(value), UTC)


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
    if envelope.reply_to:
        common["replyTo"] = [address.written for address in envelope.reply_to]
    for name, addresses in (("to", envelope.to), ("cc", envelope.cc)):
        if addresses:
            common[name] = [address.written for address in addresses]
    return common | {"messageId": new_id, "subject": subject}


def _single(params: Members, default: Members, entry: Members) -> Output:
    """One entry of SendBulkEmail as the SendEmail it stands for."""
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
    return {
        "MessageRejected": "MESSAGE_REJECTED",
        "MailFromDomainNotVerifiedException": "MAIL_FROM_DOMAIN_NOT_VERIFIED",
        "AccountSuspendedException": "ACCOUNT_SUSPENDED",
        "SendingPausedException": "ACCOUNT_SENDING_PAUSED",
        "BadRequestException": "INVALID_PARAMETER",
        "InternalServiceErrorException": "TRANSIENT_FAILURE",
    }.get(error.code, "FAILED")
