"""What AWS's services accept and answer, read from botocore's models.

One ``Contract`` a service: validators compiled once per operation (botocore itself checks neither
patterns nor maxima), and the service's own wire form for those that stand in for it over HTTP.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import parse_qs

import botocore.session
import regex  # type: ignore[import-untyped]  # ships no types
from botocore.model import OperationModel, ServiceModel
from botocore.utils import parse_timestamp

from local.ports import AwsError

# botocore's stubs know only the base class of its shapes.
type Shape = Any
type Check = Callable[[Any, str, list[str]], None]
type Answer = tuple[int, dict[str, str], bytes]

# SES v2 models no ValidationException; what its API refuses is a BadRequestException.
_VALIDATION_CODES = {"sesv2": "BadRequestException"}
# Codes that every service answers and no model names, with the status AWS gives them in REST services;
# services of the JSON protocol answer 400 for whatever is not their own fault.
_COMMON_STATUS = {
    "AccessDeniedException": 403,
    "ThrottlingException": 429,
    "UnknownOperationException": 404,
    "InternalFailure": 500,
    "InternalServerException": 500,
    "ServiceUnavailable": 503,
}


@cache
def contract(service: str) -> Contract:
    """The contract of ``service`` (botocore's name, e.g. ``scheduler``), read once per process."""
    return Contract(botocore.session.get_session().get_service_model(service))


class Operation:
    """One operation's rules."""

    def __init__(self, owner: Contract, model: OperationModel) -> None:
        self.name = model.name
        self.model = model
        self._owner = owner
        self._check = owner.check(model.input_shape) if model.input_shape is not None else _no_members

    def validate(self, params: Mapping[str, Any]) -> None:
        """Refuse what AWS refuses: every broken constraint in one error, in AWS's words.

        Values never appear in the message: they may be addresses or tokens, and messages are logged.

        Raises:
            AwsError: the service's validation error, or ``SerializationException`` for a wrong type.
        """
        broken: list[str] = []
        self._check(params, "", broken)
        if broken:
            count = f"{len(broken)} validation error{'s' if len(broken) > 1 else ''} detected: "
            raise self._owner.error(self._owner.validation_code, count + "; ".join(broken))


class Contract:
    """A service's operations, errors and wire form (``rest-json`` or ``json``)."""

    def __init__(self, model: ServiceModel) -> None:
        self.model = model
        self.service = model.service_name
        self.validation_code = _VALIDATION_CODES.get(self.service, "ValidationException")
        self._rest = model.protocol.startswith("rest")
        self._json_version = model.metadata.get("jsonVersion")
        self._checks: dict[str, Check] = {}
        self._operations: dict[str, Operation] = {}
        shapes: list[Shape] = list(model.error_shapes)
        self._errors = {shape.error_code: shape for shape in shapes}
        self._routes: list[tuple[str, re.Pattern[str], str]] | None = None

    def operation(self, name: str) -> Operation:
        """The operation called ``name`` in botocore's spelling.

        Raises:
            AwsError: ``UnknownOperationException``.
        """
        if (found := self._operations.get(name)) is None:
            if name not in self.model.operation_names:
                raise self.error("UnknownOperationException", f"{self.service} has no operation {name}")
            found = self._operations[name] = Operation(self, self.model.operation_model(name))
        return found

    def http_status(self, code: str) -> int:
        """The HTTP status AWS answers with error ``code``."""
        shape = self._errors.get(code)
        if shape is not None and "error" in shape.metadata:
            return int(shape.metadata["error"].get("httpStatusCode", 400))
        status = _COMMON_STATUS.get(code, 400)
        return status if self._rest or status >= 500 else 400

    def error(self, code: str, message: str, **members: Any) -> AwsError:
        """An error of this service, with the status its model gives it."""
        return AwsError(code, message, self.http_status(code), **members)

    # Validation

    def check(self, shape: Shape) -> Check:
        """The compiled check of ``shape``; shapes may contain themselves, so it is looked up by name."""
        if (found := self._checks.get(shape.name)) is None:
            # A reference that is resolved when first called breaks the cycle.
            self._checks[shape.name] = lambda value, path, broken: self._checks[shape.name](value, path, broken)
            found = self._checks[shape.name] = _COMPILERS.get(shape.type_name, _compile_opaque)(self, shape)
        return found

    def mistyped(self, path: str, wanted: str) -> AwsError:
        """What a JSON value of the wrong type is answered with."""
        return self.error("SerializationException", f"Value at '{path}' is not of type {wanted}")

    # The wire

    def parse(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, query: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The operation's name and members of an HTTP request (``path`` decoded, header names lower case,
        ``query`` as lists of strings).

        Raises:
            AwsError: ``UnknownOperationException`` or ``SerializationException``.
        """
        document = self._document(body)
        if not self._rest:
            name = headers.get("x-amz-target", "").rpartition(".")[2]
            return name, self._read_members(self.operation(name).model.input_shape, document)
        name, labels = self._route(method, path, query)
        shape = self.operation(name).model.input_shape
        params: dict[str, Any] = {}
        if shape is None:
            return name, params
        in_body = {}
        for member, member_shape in shape.members.items():
            location = member_shape.serialization.get("location")
            wire = member_shape.serialization.get("name", member)
            if location == "uri":
                params[member] = labels[wire]
            elif location == "querystring":
                if wire in query:
                    params[member] = self._read_query(member_shape, query[wire])
            elif location is None:
                in_body[wire] = member
            else:
                raise NotImplementedError(f"{self.service} {name}: a member in {location}")
        for wire, value in document.items():
            if value is not None:
                # An unknown member keeps its name, for the check to refuse.
                member = in_body.get(wire, wire)
                params[member] = self._read(shape.members[member], value) if member in shape.members else value
        return name, params

    def answer(self, operation: str, output: Mapping[str, Any]) -> Answer:
        """``output`` (members as in botocore's model; datetimes aware, blobs bytes) on the wire."""
        shape = self.operation(operation).model.output_shape
        document = self._write(shape, output) if shape is not None else {}
        return 200, {"Content-Type": self._content_type}, json.dumps(document).encode()

    def refusal(self, error: AwsError) -> Answer:
        """``error`` on the wire."""
        shape = self._errors.get(error.code)
        members = shape.members if shape is not None else {}
        message = next((name for name in members if name.lower() == "message"), "message")
        document: dict[str, Any] = {message: error.message, **error.members}
        headers = {"Content-Type": self._content_type}
        if self._rest:
            headers["x-amzn-errortype"] = error.code
        else:
            document["__type"] = error.code
        return error.status, headers, json.dumps(document).encode()

    @property
    def _content_type(self) -> str:
        return "application/json" if self._rest else f"application/x-amz-json-{self._json_version}"

    def _document(self, body: bytes) -> dict[str, Any]:
        try:
            document = json.loads(body) if body else {}
        except ValueError as reason:
            raise self.error("SerializationException", f"the body is not JSON: {reason}") from reason
        if not isinstance(document, dict):
            raise self.error("SerializationException", "the body is not a JSON object")
        return document

    def _route(self, method: str, path: str, query: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        if self._routes is None:
            # The longest literal first: /schedule-groups/{Name} before anything with more labels.
            operations = [self.model.operation_model(name) for name in self.model.operation_names]
            operations.sort(key=lambda op: len(re.sub(r"{[^}]*}", "", op.http["requestUri"])), reverse=True)
            self._routes = [(op.http["method"], _route_pattern(op.http["requestUri"]), op.name) for op in operations]
        for verb, pattern, name in self._routes:
            if verb == method and (match := pattern.fullmatch(path)):
                required = parse_qs(self.model.operation_model(name).http["requestUri"].partition("?")[2])
                if all(query.get(key) == value for key, value in required.items()):
                    return name, match.groupdict()
        raise self.error("UnknownOperationException", f"{self.service} has no {method} at this path")

    def _read_query(self, shape: Shape, values: list[str] | str) -> Any:
        texts = values if isinstance(values, list) else [values]
        if shape.type_name == "list":
            return [self._read_text(shape.member, text) for text in texts]
        return self._read_text(shape, texts[-1])

    def _read_text(self, shape: Shape, text: str) -> Any:
        try:
            match shape.type_name:
                case "integer" | "long":
                    return int(text)
                case "float" | "double":
                    return float(text)
                case "boolean":
                    return {"true": True, "false": False}[text]
                case "timestamp":
                    return parse_timestamp(text)
        except (ValueError, KeyError) as reason:
            raise self.mistyped(shape.name, shape.type_name) from reason
        return text

    def _read(self, shape: Shape, value: Any) -> Any:
        """A JSON value as Python's; what has the wrong type stays, for the check to refuse."""
        match shape.type_name:
            case "structure" if isinstance(value, dict) and not shape.is_document_type:
                return self._read_members(shape, value)
            case "list" if isinstance(value, list):
                return [self._read(shape.member, item) for item in value]
            case "map" if isinstance(value, dict):
                return {key: self._read(shape.value, item) for key, item in value.items()}
            case "timestamp" if isinstance(value, int | float) and not isinstance(value, bool):
                return datetime.fromtimestamp(value, UTC)
            case "blob" if isinstance(value, str):
                try:
                    return base64.b64decode(value, validate=True)
                except ValueError as reason:
                    raise self.mistyped(shape.name, "blob") from reason
        return value

    def _read_members(self, shape: Shape | None, value: Mapping[str, Any]) -> dict[str, Any]:
        members = {} if shape is None else shape.members
        names = {member.serialization.get("name", name): name for name, member in members.items()}
        read = {}
        for wire, item in value.items():
            if item is not None:
                name = names.get(wire, wire)
                read[name] = self._read(members[name], item) if name in members else item
        return read

    def _write(self, shape: Shape, value: Any) -> Any:
        match shape.type_name:
            case "structure" if not shape.is_document_type:
                return {
                    member.serialization.get("name", name): self._write(member, value[name])
                    for name, member in shape.members.items()
                    if value.get(name) is not None
                }
            case "list":
                return [self._write(shape.member, item) for item in value]
            case "map":
                return {key: self._write(shape.value, item) for key, item in value.items()}
            case "timestamp":
                return value.timestamp() if isinstance(value, datetime) else value
            case "blob":
                return base64.b64encode(value).decode()
        return value


def _route_pattern(request_uri: str) -> re.Pattern[str]:
    """A label may hold slashes only at the end of a path (ARNs, addresses), for the path comes decoded."""
    path = request_uri.partition("?")[0]
    parts = re.split(r"{(\w+)\+?}", path)
    pattern = ""
    for literal, label in zip(parts[::2], [*parts[1::2], None], strict=True):
        pattern += re.escape(literal)
        if label is not None:
            pattern += f"(?P<{label}>{'.+' if path.endswith(('{' + label + '}', '+}')) else '[^/]+'})"
    return re.compile(pattern)


def _no_members(value: Any, path: str, broken: list[str]) -> None:
    for name in value:
        broken.append(_unknown(_join(path, name)))


def _join(path: str, name: str) -> str:
    name = name[:1].lower() + name[1:]
    return f"{path}.{name}" if path else name


def _unknown(path: str) -> str:
    return f"Value at '{path}' failed to satisfy constraint: Member is not known to this operation"


def _failed(path: str, constraint: str) -> str:
    return f"Value at '{path}' failed to satisfy constraint: Member must {constraint}"


def _bounds(shape: Shape, what: str) -> Callable[[float, str, list[str]], None]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")

    def check(size: float, path: str, broken: list[str]) -> None:
        if low is not None and size < low:
            broken.append(_failed(path, f"have {what} greater than or equal to {low}"))
        if high is not None and size > high:
            broken.append(_failed(path, f"have {what} less than or equal to {high}"))

    return check


def _compile_string(owner: Contract, shape: Shape) -> Check:
    bounds = _bounds(shape, "length")
    allowed = frozenset(shape.metadata.get("enum", ()))
    listed = f"satisfy enum value set: [{', '.join(shape.metadata.get('enum', ()))}]"
    pattern = shape.metadata.get("pattern")
    matches = _python_pattern(pattern).fullmatch if pattern else None

    def check(value: Any, path: str, broken: list[str]) -> None:
        if not isinstance(value, str):
            raise owner.mistyped(path, "string")
        bounds(len(value), path, broken)
        if matches is not None and not matches(value):
            broken.append(_failed(path, f"satisfy regular expression pattern: {pattern}"))
        if allowed and value not in allowed:
            broken.append(_failed(path, listed))

    return check


def _python_pattern(pattern: str) -> Any:
    """The models' patterns are Java's: surrogate pairs are spelt out, and classes such as ``\\p{L}`` occur.

    AWS matches the whole value whether or not a pattern is anchored.
    """
    pattern = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF")
    return regex.compile(pattern) if r"\p" in pattern else re.compile(pattern, re.ASCII)


def _compile_number(owner: Contract, shape: Shape) -> Check:
    bounds = _bounds(shape, "value")
    type_name: str = shape.type_name
    whole = shape.type_name in ("integer", "long")
    kinds: Any = int if whole else (int, float)
    reach: int = 2**31 if type_name == "integer" else 2**63

    def check(value: Any, path: str, broken: list[str]) -> None:
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise owner.mistyped(path, type_name)
        if whole and not -reach <= value < reach:
            raise owner.mistyped(path, type_name)
        bounds(value, path, broken)

    return check


def _compile_boolean(owner: Contract, shape: Shape) -> Check:
    def check(value: Any, path: str, broken: list[str]) -> None:
        if not isinstance(value, bool):
            raise owner.mistyped(path, "boolean")

    return check


def _compile_timestamp(owner: Contract, shape: Shape) -> Check:
    def check(value: Any, path: str, broken: list[str]) -> None:
        if isinstance(value, str):
            try:
                parse_timestamp(value)
            except ValueError as reason:
                raise owner.mistyped(path, "timestamp") from reason
        elif not isinstance(value, datetime | int | float) or isinstance(value, bool):
            raise owner.mistyped(path, "timestamp")

    return check


def _compile_blob(owner: Contract, shape: Shape) -> Check:
    bounds = _bounds(shape, "length")

    def check(value: Any, path: str, broken: list[str]) -> None:
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes | bytearray):
            raise owner.mistyped(path, "blob")
        bounds(len(value), path, broken)

    return check


def _compile_list(owner: Contract, shape: Shape) -> Check:
    bounds, item = _bounds(shape, "length"), owner.check(shape.member)

    def check(value: Any, path: str, broken: list[str]) -> None:
        if not isinstance(value, list | tuple):
            raise owner.mistyped(path, "list")
        bounds(len(value), path, broken)
        for number, member in enumerate(value, start=1):
            item(member, f"{path}.{number}.member", broken)

    return check


def _compile_map(owner: Contract, shape: Shape) -> Check:
    bounds = _bounds(shape, "length")
    key_check, value_check = owner.check(shape.key), owner.check(shape.value)

    def check(value: Any, path: str, broken: list[str]) -> None:
        if not isinstance(value, Mapping):
            raise owner.mistyped(path, "map")
        bounds(len(value), path, broken)
        for key, member in value.items():
            key_check(key, f"{path}.key", broken)
            value_check(member, f"{path}.value", broken)

    return check


def _compile_structure(owner: Contract, shape: Shape) -> Check:
    if shape.is_document_type:
        return _compile_opaque(owner, shape)
    members = {name: (_join("", name), owner.check(member)) for name, member in shape.members.items()}
    required = [(name, _join("", name)) for name in shape.required_members]
    union = shape.is_tagged_union

    def check(value: Any, path: str, broken: list[str]) -> None:
        if not isinstance(value, Mapping):
            raise owner.mistyped(path, "structure")
        prefix = f"{path}." if path else ""
        for name, wire in required:
            if value.get(name) is None:
                broken.append(_failed(prefix + wire, "not be null"))
        present = 0
        for name, item in value.items():
            if item is None:
                continue
            present += 1
            if (known := members.get(name)) is None:
                broken.append(_unknown(_join(path, name)))
            else:
                known[1](item, prefix + known[0], broken)
        if union and present != 1:
            broken.append(_failed(path, "have exactly one of its members set"))

    return check


def _compile_opaque(owner: Contract, shape: Shape) -> Check:
    def check(value: Any, path: str, broken: list[str]) -> None:
        """A free document: any value."""

    return check


_COMPILERS: dict[str, Callable[[Contract, Any], Check]] = {
    "string": _compile_string,
    "character": _compile_string,
    "integer": _compile_number,
    "long": _compile_number,
    "float": _compile_number,
    "double": _compile_number,
    "boolean": _compile_boolean,
    "timestamp": _compile_timestamp,
    "blob": _compile_blob,
    "list": _compile_list,
    "map": _compile_map,
    "structure": _compile_structure,
}
