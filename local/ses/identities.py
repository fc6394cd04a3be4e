"""Email identities: who may send, and which of them SES has verified."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from local.ses.address import Address, parse
from local.ses.settings import SesSettings
from local.ses.shared import Members, Operations, Output, not_here, page, refused


class Identities:
    """The identities of the account. Whether one is verified is not stored: its domain's DNS decides
    (``SesSettings.verified_domains``), so that identities made by CloudFormation follow the same rule."""

    def __init__(self, settings: SesSettings) -> None:
        self.store: MutableMapping[str, dict[str, Any]] = {}
        self._settings = settings
        self.operations: Operations = {
            "CreateEmailIdentity": self.create,
            "GetEmailIdentity": self.get,
            "DeleteEmailIdentity": self.delete,
            "ListEmailIdentities": self.list,
        }
        self.reset()

    def reset(self) -> None:
        """Only the identities that the settings name."""
        for name in list(self.store):
            del self.store[name]
        for name in self._settings.identities:
            self.create({"EmailIdentity": name})

    def covering(self, address: Address) -> str | None:
        """The verified identity that covers ``address``: itself, its domain, or a domain above that."""
        labels = address.domain.split(".")
        candidates = [f"{address.local}@{address.domain}"]
        candidates += [".".join(labels[start:]) for start in range(len(labels) - 1)]
        return next((name for name in candidates if name in self.store and self._is_verified(name)), None)

    def default_configuration_set(self, name: str) -> str | None:
        """The configuration set of messages from identity ``name`` that name none."""
        return self.store[name].get("ConfigurationSetName") or None

    def create(self, params: Members) -> Output:
        """CreateEmailIdentity; the caller has looked up its configuration set."""
        name = params["EmailIdentity"]
        if params.get("DkimSigningAttributes"):
            raise not_here("DkimSigningAttributes of an identity")
        address = parse(name if "@" in name else f"postmaster@{name}")
        name = f"{address.local}@{address.domain}" if "@" in name else address.domain
        if name in self.store:
            raise refused("AlreadyExistsException", f"Email identity {name} already exist.")
        self.store[name] = {
            "EmailIdentity": name,
            "Tags": list(params.get("Tags") or ()),
            "ConfigurationSetName": params.get("ConfigurationSetName", ""),
        }
        answered = ("IdentityType", "VerifiedForSendingStatus", "DkimAttributes")
        return {key: value for key, value in self._description(name).items() if key in answered}

    def get(self, params: Members) -> Output:
        """GetEmailIdentity."""
        return self._description(params["EmailIdentity"])

    def delete(self, params: Members) -> Output:
        """DeleteEmailIdentity."""
        self._description(params["EmailIdentity"])
        del self.store[params["EmailIdentity"]]
        return {}

    def list(self, params: Members) -> Output:
        """ListEmailIdentities."""
        wanted = params.get("Filter") or {}
        listed = []
        for name in sorted(self.store):
            about = self._description(name)
            if (
                wanted.get("IDENTITY_NAME_CONTAINS", "") in name
                and wanted.get("IDENTITY_TYPE", about["IdentityType"]) == about["IdentityType"]
                and wanted.get("VERIFICATION_STATUS", about["VerificationStatus"]) == about["VerificationStatus"]
            ):
                listed.append(
                    {
                        "IdentityType": about["IdentityType"],
                        "IdentityName": name,
                        "SendingEnabled": about["VerifiedForSendingStatus"],
                        "VerificationStatus": about["VerificationStatus"],
                    }
                )
        return page("EmailIdentities", listed, params, 1000, 1000)

    def _is_verified(self, identity: str) -> bool:
        domain = identity.rpartition("@")[2]
        return any(domain == good or domain.endswith("." + good) for good in self._settings.verified_domains)

    def _description(self, name: str) -> Output:
        stored = self.store.get(name)
        if stored is None:
            raise refused("NotFoundException", f"Email identity {name} does not exist.")
        is_domain = "@" not in name
        status = "SUCCESS" if self._is_verified(name) else "PENDING"
        about: Output = {
            "IdentityType": "DOMAIN" if is_domain else "EMAIL_ADDRESS",
            "FeedbackForwardingStatus": True,
            "VerifiedForSendingStatus": status == "SUCCESS",
            "DkimAttributes": {
                "SigningEnabled": is_domain,
                "Status": status if is_domain else "NOT_STARTED",
                "SigningAttributesOrigin": "AWS_SES",
            },
            "Tags": list(stored.get("Tags") or ()),
            "VerificationStatus": status,
        }
        if default := self.default_configuration_set(name):
            about["ConfigurationSetName"] = default
        return about
