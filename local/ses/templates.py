"""Stored email templates, and filling them or inline ones with a message's data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.clock import Clock
from local.ses import message as messages
from local.ses import rendering
from local.ses.address import parse
from local.ses.outcomes import message_id
from local.ses.shared import NAME, Members, Operations, Output, bad, page, refused

_MAX_TEMPLATE_BYTES = 500 * 1024  # contract sheet, section 3


@dataclass(frozen=True)
class Rendered:
    """A filled template: parts that it has not are None."""

    subject: str
    text: str | None
    html: str | None


@dataclass(frozen=True)
class NotRendered:
    """Why a template could not be filled, as the Rendering Failure event tells it."""

    template: str
    reason: str


class Templates:
    """The account's templates."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._store: dict[str, dict[str, Any]] = {}
        self.operations: Operations = {
            "CreateEmailTemplate": self.create,
            "GetEmailTemplate": self.get,
            "UpdateEmailTemplate": self.update,
            "DeleteEmailTemplate": self.delete,
            "ListEmailTemplates": self.list,
            "TestRenderEmailTemplate": self.test_render,
        }

    def reset(self) -> None:
        """No template."""
        self._store.clear()

    def check_chosen(self, chosen: Members) -> tuple[str, Mapping[str, str]]:
        """Name (empty when inline) and content of the template that ``Content.Template`` chooses.

        Raises:
            AwsError: ``NotFoundException``, or ``BadRequestException`` for none, several, or more than
                simple substitutions inline.
        """
        named = [key for key in ("TemplateName", "TemplateArn", "TemplateContent") if chosen.get(key)]
        if len(named) != 1:
            raise bad("Template needs exactly one of TemplateName, TemplateArn and TemplateContent")
        if named[0] == "TemplateContent":
            inline: Mapping[str, str] = chosen["TemplateContent"]
            _check_content(inline)
            if not all(rendering.is_simple(source) for source in inline.values()):
                raise bad("TemplateContent supports simple substitutions only")
            return "", inline
        name = chosen.get("TemplateName") or chosen["TemplateArn"].partition(":template/")[2]
        return name, self._named(name)["TemplateContent"]

    def fill(self, chosen: Members) -> Rendered | NotRendered:
        """The template that ``Content.Template`` chooses, filled with its TemplateData."""
        name, content = self.check_chosen(chosen)
        data = _parse_data(chosen.get("TemplateData"))
        try:
            return _fill(content, data)
        except rendering.RenderingError as reason:
            return NotRendered(name, str(reason))

    def create(self, params: Members) -> Output:
        """CreateEmailTemplate."""
        name = params["TemplateName"]
        if not NAME.fullmatch(name):
            raise bad("A template name holds 1 to 64 ASCII letters, digits, '_' and '-'")
        _check_content(params["TemplateContent"])
        if name in self._store:
            raise refused("AlreadyExistsException", f"Template {name} already exists.")
        self._store[name] = {
            "TemplateName": name,
            "TemplateContent": dict(params["TemplateContent"]),
            "Tags": list(params.get("Tags") or ()),
            "CreatedTimestamp": self._clock.now(),
        }
        return {}

    def get(self, params: Members) -> Output:
        """GetEmailTemplate."""
        stored = self._named(params["TemplateName"])
        return {key: stored[key] for key in ("TemplateName", "TemplateContent", "Tags")}

    def update(self, params: Members) -> Output:
        """UpdateEmailTemplate."""
        stored = self._named(params["TemplateName"])
        _check_content(params["TemplateContent"])
        stored["TemplateContent"] = dict(params["TemplateContent"])
        return {}

    def delete(self, params: Members) -> Output:
        """DeleteEmailTemplate."""
        self._named(params["TemplateName"])
        del self._store[params["TemplateName"]]
        return {}

    def list(self, params: Members) -> Output:
        """ListEmailTemplates."""
        shown = ("TemplateName", "CreatedTimestamp")
        listed = [{key: each[key] for key in shown} for each in self._store.values()]
        return page("TemplatesMetadata", listed, params, 10, 100)

    def test_render(self, params: Members) -> Output:
        """TestRenderEmailTemplate: the whole MIME message; data that do not fill it are refused at once."""
        content = self._named(params["TemplateName"])["TemplateContent"]
        try:
            rendered = _fill(content, _parse_data(params["TemplateData"]))
        except rendering.RenderingError as reason:
            raise bad(str(reason)) from reason
        at = self._clock.time()
        envelope = messages.Envelope(parse("nobody@example.com"), ())
        email = compose(f"<{message_id(at, os.urandom(16))}@email.amazonses.com>", at, envelope, rendered, ())
        return {"RenderedTemplate": email.raw.decode("ascii")}

    def _named(self, name: str) -> dict[str, Any]:
        stored = self._store.get(name)
        if stored is None:
            raise refused("NotFoundException", f"Template {name} does not exist.")
        return stored


def compose(
    message_id_header: str,
    at: float,
    envelope: messages.Envelope,
    rendered: Rendered,
    headers: messages.Headers,
) -> messages.Email:
    """The e-mail of a filled template; templates are UTF-8."""
    return messages.compose(
        message_id_header,
        at,
        envelope,
        messages.Text(rendered.subject, "UTF-8"),
        None if rendered.text is None else messages.Text(rendered.text, "UTF-8"),
        None if rendered.html is None else messages.Text(rendered.html, "UTF-8"),
        headers,
    )


def _fill(content: Mapping[str, str], data: Mapping[str, Any]) -> Rendered:
    parts = {key: rendering.render(source, data) for key, source in content.items() if source}
    return Rendered(parts["Subject"], parts.get("Text"), parts.get("Html"))


def _parse_data(text: str | None) -> Mapping[str, Any]:
    try:
        data = json.loads(text or "{}")
    except ValueError as reason:
        raise bad("TemplateData is not valid JSON") from reason
    if not isinstance(data, dict):
        raise bad("TemplateData is not a JSON object")
    return data


def _check_content(content: Members) -> None:
    if not content.get("Subject"):
        raise bad("The subject must be specified.")
    if not (content.get("Text") or content.get("Html")):
        raise bad("The template needs Text or Html.")
    if sum(len(source.encode()) for source in content.values()) > _MAX_TEMPLATE_BYTES:
        raise bad(f"The template is larger than {_MAX_TEMPLATE_BYTES} bytes.")
    for source in content.values():
        try:
            rendering.compiled(source)
        except rendering.TemplateError as reason:
            raise bad(f"Template is invalid: {reason}") from reason
