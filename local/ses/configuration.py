"""Configuration sets and where the events of their messages go."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from typing import Any

from local.ses.shared import NAME, Members, Operations, Output, bad, not_here, page, refused

_FIREHOSE_ARN = re.compile(r"arn:[\w-]+:firehose:[a-z0-9-]+:\d{12}:deliverystream/[a-zA-Z0-9_.-]{1,64}")
_ROLE_ARN = re.compile(r"arn:[\w-]+:iam::\d{12}:role/[\w+=,.@/-]+")
# Contract sheet, section 3.
_MAX_CONFIGURATION_SETS, _MAX_EVENT_DESTINATIONS = 10_000, 10
_TARGETS = (
    "KinesisFirehoseDestination",
    "CloudWatchDestination",
    "SnsDestination",
    "EventBridgeDestination",
    "PinpointDestination",
)
_OPTIONS = (
    "TrackingOptions",
    "DeliveryOptions",
    "ReputationOptions",
    "SendingOptions",
    "SuppressionOptions",
    "VdmOptions",
)
# These would change what happens to a message.
_REFUSED_OPTIONS = ("ArchivingOptions", "MessageSecurityOptions")


class ConfigurationSets:
    """``store`` has one record a set: its name, tags and options as CreateConfigurationSet gives them, and
    under ``EventDestinations`` each destination's definition by name. Inside the local cloud that is
    MiniStack's own store, into which CloudFormation writes."""

    def __init__(self, event_bus_arn: str | None) -> None:
        """``event_bus_arn`` is the default event bus, when there is one to publish to."""
        self._event_bus_arn = event_bus_arn
        self.store: MutableMapping[str, dict[str, Any]] = {}
        self.operations: Operations = {
            "CreateConfigurationSet": self.create,
            "GetConfigurationSet": self.get,
            "DeleteConfigurationSet": self.delete,
            "ListConfigurationSets": self.list,
            "PutConfigurationSetSendingOptions": self.put_sending_options,
            "PutConfigurationSetSuppressionOptions": self.put_suppression_options,
            "CreateConfigurationSetEventDestination": self.create_destination,
            "GetConfigurationSetEventDestinations": self.get_destinations,
            "UpdateConfigurationSetEventDestination": self.update_destination,
            "DeleteConfigurationSetEventDestination": self.delete_destination,
        }

    def reset(self) -> None:
        """No configuration set."""
        for name in list(self.store):
            del self.store[name]

    def named(self, name: str) -> dict[str, Any]:
        """The record of ``name``.

        Raises:
            AwsError: ``NotFoundException``.
        """
        stored = self.store.get(name)
        if stored is None:
            raise refused("NotFoundException", f"Configuration set <{name}> does not exist.")
        return stored

    def check_sending(self, name: str) -> None:
        """Refuse a message that names a set which is not there or is paused."""
        if not (self.named(name).get("SendingOptions") or {}).get("SendingEnabled", True):
            raise refused("SendingPausedException", f"Email sending is paused for configuration set <{name}>.")

    def suppressed_reasons(self, name: str | None, account: Sequence[str]) -> Sequence[str]:
        """The reasons for which listed addresses get nothing: the set's own, else the ``account``'s."""
        options = (self.store.get(name) or {}).get("SuppressionOptions") if name is not None else None
        return account if options is None else options.get("SuppressedReasons") or ()

    def destinations(self, name: str | None) -> Sequence[Members]:
        """The event destinations of ``name`` as they are now; none when there is no such set."""
        stored = self.store.get(name) if name is not None else None
        return tuple(((stored or {}).get("EventDestinations") or {}).values())

    def check_new(self, name: str, params: Members) -> None:
        """Refuse a new set that SES would refuse, or that asks for what this cloud does not do."""
        if not NAME.fullmatch(name):
            raise bad("A configuration set name holds 1 to 64 ASCII letters, digits, '_' and '-'")
        for option in _REFUSED_OPTIONS:
            if params.get(option):
                raise not_here(option)
        if name in self.store:
            raise refused("AlreadyExistsException", f"Configuration set <{name}> already exists.")
        if len(self.store) >= _MAX_CONFIGURATION_SETS:
            raise refused("LimitExceededException", "Too many configuration sets.")

    def check_definition(self, definition: Members) -> None:
        """Refuse an event destination that SES would refuse, or of a kind that this cloud does not reach."""
        if not definition.get("MatchingEventTypes"):
            raise bad("At least one event type must be specified.")
        targets = [target for target in _TARGETS if definition.get(target)]
        if len(targets) != 1:
            raise bad("An event destination needs exactly one destination.")
        if targets[0] == "EventBridgeDestination" and self._event_bus_arn is not None:
            # "Only the default bus is supported": botocore sesv2, EventBridgeDestination.
            if definition["EventBridgeDestination"]["EventBusArn"] != self._event_bus_arn:
                raise bad("EventBusArn is not the ARN of the account's default event bus.")
            return
        if targets[0] != "KinesisFirehoseDestination":
            raise not_here(f"the event destination {targets[0]}")
        firehose = definition["KinesisFirehoseDestination"]
        if not _FIREHOSE_ARN.fullmatch(str(firehose["DeliveryStreamArn"])):
            raise bad("DeliveryStreamArn is not the ARN of a Firehose stream.")
        if not _ROLE_ARN.fullmatch(str(firehose["IamRoleArn"])):
            raise bad("IamRoleArn is not the ARN of an IAM role.")

    def create(self, params: Members) -> Output:
        """CreateConfigurationSet."""
        name = params["ConfigurationSetName"]
        self.check_new(name, params)
        self.store[name] = {
            "ConfigurationSetName": name,
            "Tags": list(params.get("Tags") or ()),
            "SendingOptions": {"SendingEnabled": True},
            **{option: dict(params[option]) for option in _OPTIONS if params.get(option)},
        }
        return {}

    def get(self, params: Members) -> Output:
        """GetConfigurationSet."""
        stored = self.named(params["ConfigurationSetName"])
        return {key: stored[key] for key in ("ConfigurationSetName", "Tags", *_OPTIONS) if key in stored}

    def delete(self, params: Members) -> Output:
        """DeleteConfigurationSet."""
        self.named(params["ConfigurationSetName"])
        del self.store[params["ConfigurationSetName"]]
        return {}

    def list(self, params: Members) -> Output:
        """ListConfigurationSets."""
        part = (params.get("Filter") or {}).get("CONFIGURATION_SET_NAME_CONTAINS", "")
        names = sorted(name for name in self.store if part in name)
        return page("ConfigurationSets", names, params, 1000, 1000)

    def put_sending_options(self, params: Members) -> Output:
        """PutConfigurationSetSendingOptions; what is left out is off."""
        stored = self.named(params["ConfigurationSetName"])
        stored["SendingOptions"] = {"SendingEnabled": bool(params.get("SendingEnabled"))}
        return {}

    def put_suppression_options(self, params: Members) -> Output:
        """PutConfigurationSetSuppressionOptions."""
        for member in ("SuppressionScope", "ValidationOptions"):
            if params.get(member):
                raise not_here(member)
        stored = self.named(params["ConfigurationSetName"])
        stored["SuppressionOptions"] = {"SuppressedReasons": list(params.get("SuppressedReasons") or ())}
        return {}

    def create_destination(self, params: Members) -> Output:
        """CreateConfigurationSetEventDestination."""
        name, destinations = params["EventDestinationName"], self._destinations_of(params)
        if not NAME.fullmatch(name):
            raise bad("An event destination name holds 1 to 64 ASCII letters, digits, '_' and '-'")
        if name in destinations:
            raise refused("AlreadyExistsException", f"An event destination with name <{name}> already exists.")
        if len(destinations) >= _MAX_EVENT_DESTINATIONS:
            raise refused("LimitExceededException", "Too many event destinations.")
        self._put(destinations, name, params["EventDestination"])
        return {}

    def update_destination(self, params: Members) -> Output:
        """UpdateConfigurationSetEventDestination."""
        name, destinations = self._known(params)
        self._put(destinations, name, params["EventDestination"])
        return {}

    def get_destinations(self, params: Members) -> Output:
        """GetConfigurationSetEventDestinations."""
        destinations = self._destinations_of(params)
        return {"EventDestinations": [{"Name": name, **each} for name, each in destinations.items()]}

    def delete_destination(self, params: Members) -> Output:
        """DeleteConfigurationSetEventDestination."""
        name, destinations = self._known(params)
        del destinations[name]
        return {}

    def _put(self, destinations: dict[str, Any], name: str, definition: Members) -> None:
        self.check_definition(definition)
        destinations[name] = {
            "Enabled": bool(definition.get("Enabled")),
            "MatchingEventTypes": list(definition["MatchingEventTypes"]),
            **{target: dict(definition[target]) for target in _TARGETS if definition.get(target)},
        }

    def _destinations_of(self, params: Members) -> dict[str, Any]:
        stored = self.named(params["ConfigurationSetName"])
        destinations: dict[str, Any] = stored.setdefault("EventDestinations", {})
        return destinations

    def _known(self, params: Members) -> tuple[str, dict[str, Any]]:
        name, destinations = params["EventDestinationName"], self._destinations_of(params)
        if name not in destinations:
            raise refused("NotFoundException", f"An event destination with name <{name}> does not exist.")
        return name, destinations
