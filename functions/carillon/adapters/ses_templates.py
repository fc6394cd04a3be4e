"""The templates that SES keeps for direct campaigns. It takes one such call a second: few, not in loops over people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_sesv2 import SESV2Client
    from mypy_boto3_sesv2.type_defs import EmailTemplateContentTypeDef

    from carillon.content.typesetting import SesTemplate


class SesTemplates:
    """`carillon.launch.direct.Templates` on SES."""

    def __init__(self, client: SESV2Client | None = None) -> None:
        self._client = client or aws.ses()

    def put_template(self, name: str, template: SesTemplate) -> None:
        """Create it, or give the one that is there this content."""
        content: EmailTemplateContentTypeDef = {
            "Subject": template.subject,
            "Html": template.html,
            "Text": template.text,
        }
        try:
            self._client.create_email_template(TemplateName=name, TemplateContent=content)
        except self._client.exceptions.AlreadyExistsException:
            self._client.update_email_template(TemplateName=name, TemplateContent=content)

    def delete_template(self, name: str) -> None:
        """Delete it; one that is gone is fine."""
        try:
            self._client.delete_email_template(TemplateName=name)
        except self._client.exceptions.NotFoundException:
            return
