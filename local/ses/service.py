"""SES v2 for one account in one Region: its operations, its events, and its place inside MiniStack."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parseaddr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.clock import Clock
from local.contract import contract
from local.ports import Caller
from local.ses.configuration import ConfigurationSets
from local.ses.faults import Fault, Faults
from local.ses.identities import Identities
from local.ses.mailbox import Mailbox
from local.ses.publisher import Emit, Publisher
from local.ses.quota import RateLimit
from local.ses.sending import Sending
from local.ses.settings import SesSettings
from local.ses.shared import Operations, not_here, refused
from local.ses.suppression import SuppressionList
from local.ses.templates import Templates

if TYPE_CHECKING:
    from local.ses.facade import SimpleEmailFacade

_SENDING = frozenset({"SendEmail", "SendBulkEmail"})


class SimpleEmail:
    """SES v2: ``handle`` answers one operation; events follow on ``clock`` once ``start`` was called, or when a
    test calls ``publish_due``.

    ``mailbox`` is the folder for accepted e-mails (see ``local.ses.mailbox``); ``caller`` reaches Firehose as
    the role of an event destination; ``emit`` puts an event {source, detail-type, detail, time, resources} on
    the default event bus. Without it EventBridge is refused as a destination.
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
        emit: Emit | None = None,
    ) -> None:
        bus = None if emit is None else f"arn:aws:events:{region}:{account_id}:event-bus/default"
        self.faults = Faults()
        self.identities = Identities(settings)
        self.configuration_sets = ConfigurationSets(bus)
        self._clock = clock
        self._settings = settings
        self._account_id = account_id
        self._region = region
        self._templates = Templates(clock)
        self._suppression = SuppressionList(clock)
        self._mailbox = Mailbox(mailbox)
        self._publisher = Publisher(clock, caller, self.configuration_sets.destinations, self._suppression.learn, emit)
        self._sending = Sending(
            clock,
            settings,
            account_id,
            region,
            self.identities,
            self.configuration_sets,
            self._templates,
            self._suppression,
            self.faults,
            self._mailbox,
            self._publisher,
        )
        self.operations: Operations = {
            **self.identities.operations,
            **self.configuration_sets.operations,
            **self._templates.operations,
            **self._suppression.operations,
            **self._sending.operations,
        }
        self._call_rates: dict[str, RateLimit] = {}

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
        self._call_rates.clear()
        for part in (
            self.configuration_sets,
            self.identities,
            self._templates,
            self._suppression,
            self._sending,
        ):
            part.reset()

    def control(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the host's control endpoint passes on: ``{"fault": {…}}`` orders one (members of ``Fault``),
        ``{"clear_faults": true}`` withdraws all, ``{"publish": true}`` publishes what is due. Answers with the
        faults still to happen and how many events were published.

        Raises:
            ValueError, TypeError: a fault that cannot be.
        """
        if request.get("clear_faults"):
            self.faults.clear()
        if (fault := request.get("fault")) is not None:
            self.faults.add(Fault(**fault))
        published = self.publish_due() if request.get("publish") else 0
        return {"faults": self.faults.listing(), "published": published}

    def facade(self, original_module: Any) -> SimpleEmailFacade:
        """What stands for MiniStack's ``ses_v2`` module in ``app._loaded_modules``; from here on configuration
        sets and identities are those that CloudFormation makes too."""
        from local.ses.facade import SimpleEmailFacade

        return SimpleEmailFacade(original_module, self, self._account_id, self._region)

    def handle(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``operation`` (botocore's spelling) with the members of its output.

        Raises:
            AwsError: what SES refuses, and by name what it would take but this cloud does not do.
            ConnectionDropped: a fault that a test ordered.
        """
        contract(self.name).operation(operation).validate(params)
        if operation not in self.operations:
            raise not_here(f"the SES operation {operation}")
        if operation not in _SENDING:
            self._check_call_rate(operation)
        if operation == "CreateEmailIdentity" and params.get("ConfigurationSetName"):
            self.configuration_sets.named(params["ConfigurationSetName"])
        return self.operations[operation](params)

    def resource_of(self, operation: str, params: Mapping[str, Any]) -> str:
        """The ARN that IAM is asked about: the resource that the operation names, else the account's ``*``."""
        prefix = f"arn:aws:ses:{self._region}:{self._account_id}"
        if operation in _SENDING and params.get("FromEmailAddress"):
            domain = params["FromEmailAddress"].rpartition("@")[2].rstrip("> ").lower()
            return f"{prefix}:identity/{domain}"
        for member, kind in (
            ("EmailIdentity", "identity"),
            ("ConfigurationSetName", "configuration-set"),
            ("TemplateName", "template"),
        ):
            if params.get(member):
                return f"{prefix}:{kind}/{params[member]}"
        return "*"

    def also_asked(self, operation: str, params: Mapping[str, Any]) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """What else IAM is asked about an e-mail, and what it is told of it.

        The configuration set and the template are resources of SendEmail too (Service Authorization Reference, SES v2);
        and what is sent by a template is also SendTemplatedEmail, on the identity and the template
        (aws/serverless-application-model#2844: SES refuses who has it on the identity alone).
        """
        if operation != "SendEmail" or not (sender := params.get("FromEmailAddress")):
            return [], {}
        prefix = f"arn:aws:ses:{self._region}:{self._account_id}"
        further = []
        if name := params.get("ConfigurationSetName"):
            further.append(("ses:SendEmail", f"{prefix}:configuration-set/{name}"))
        if name := (params.get("Content") or {}).get("Template", {}).get("TemplateName"):
            for resource in (self.resource_of(operation, params), f"{prefix}:template/{name}"):
                further.append(("ses:SendTemplatedEmail", resource))
        return further, {"ses:FromAddress": parseaddr(sender)[1]}

    def _check_call_rate(self, operation: str) -> None:
        rate = self._call_rates.setdefault(operation, RateLimit(self._settings.calls_per_second, 1.0))
        if not rate.permits(1, self._clock.time()):
            raise refused("TooManyRequestsException", "Too many requests have been made to the operation.")
        rate.take(1)
