"""CampaignApi: the HTTP API. Every refusal is a problem (RFC 9457) that says the cause and what to do."""

from __future__ import annotations

import json
from functools import cache
from http import HTTPStatus
from json import JSONDecodeError
from pathlib import PurePath
from traceback import extract_tb
from typing import Annotated, Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.params import Body, Header, Path, Query
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import StringConstraints

from carillon import wording
from carillon.adapters import clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.executions import Executions
from carillon.adapters.functions import BackgroundFunction
from carillon.adapters.objects import Objects
from carillon.adapters.secrets import Tokens
from carillon.adapters.settings import SettingsTable
from carillon.adapters.suppressions import SuppressionTable
from carillon.adapters.uploads import Uploads
from carillon.consent.suppressions import Changed, Entries, Exit, Lift, Lookup, Suppress, SuppressionList
from carillon.consent.transfers import (
    Import,
    TransferId,
    TransferNotFound,
    Transfers,
    TransferStarted,
    TransferUpload,
    TransferView,
)
from carillon.environment import Environment, load
from carillon.errors import (
    CampaignNotFound,
    CarillonError,
    IdentityNotVerified,
    InvalidCursor,
    TemplateRejected,
)
from carillon.lifecycle.api import (
    PAGE,
    CampaignApi,
    CampaignCreated,
    CampaignPage,
    Counts,
    IdempotencyKeyReused,
    IdentityPace,
    IdentityPaceView,
    InvalidRequest,
    Launch,
    PlanMissing,
    PlanView,
    RejectsMissing,
    RejectsView,
    Sender,
    SenderView,
    Started,
    TaskPage,
    Upload,
    UploadLink,
    authorised,
)
from carillon.shapes import CampaignId, CampaignSpec
from carillon.transitions import CampaignState, TaskStatus

logger = Logger()
app = APIGatewayHttpResolver(enable_validation=True)

PROBLEM = "application/problem+json"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
"""Powertools reads these too: of JSON that came as one (``curl -d``) it would make a field's name, and show it."""
STATUS: dict[type[CarillonError], HTTPStatus] = {
    CampaignNotFound: HTTPStatus.NOT_FOUND,
    PlanMissing: HTTPStatus.NOT_FOUND,
    RejectsMissing: HTTPStatus.NOT_FOUND,
    TransferNotFound: HTTPStatus.NOT_FOUND,
    InvalidCursor: HTTPStatus.BAD_REQUEST,
    IdempotencyKeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    IdentityNotVerified: HTTPStatus.UNPROCESSABLE_ENTITY,
    InvalidRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    TemplateRejected: HTTPStatus.UNPROCESSABLE_ENTITY,
}
"""Of domain errors; all others are conflicts with the campaign as it is."""

Id = Annotated[CampaignId, Path()]
Cursor = Annotated[str | None, Query(max_length=2000)]
Limit = Annotated[int, Query(ge=1, le=500)]
Month = Annotated[str | None, Query(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]
IdempotencyKey = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=255)] | None, Header(alias="Idempotency-Key")
]


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    suppressions_table: str
    transfer_suppressions_arn: str
    settings_table: str
    bucket: str
    launch_campaign_arn: str
    cancel_campaign_arn: str
    api_token_secret: str
    retention_days: int
    sending_domain: str


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """An HTTP API event (payload 2.0) in, its answer out. Nothing is looked at before the token."""
    headers = {name.lower(): text for name, text in (event.get("headers") or {}).items()}
    try:
        known = authorised(headers.get("authorization"), _tokens().valid())
    except Exception as error:
        return _outside(unexpected(error))
    if not known:
        detail = "the request carries no valid token: send the API's token as `Authorization: Bearer …`"
        refusal = problem(HTTPStatus.UNAUTHORIZED, "Unauthorized", detail)
        return _outside(refusal, {"WWW-Authenticate": 'Bearer realm="carillon"'})
    if event.get("body") and headers.get("content-type", "").startswith(FORMS):
        return _outside(not_typed_json())
    return app.resolve(event, context)


def one_object(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Powertools would take the first of a list of bodies and forget the others."""
    if app.current_event.body and not isinstance(app.current_event.json_body, dict):
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", "the body must be one JSON object")
    return next_middleware(app)


app.use([one_object])


@app.post("/campaigns", status_code=201)
def create(spec: Annotated[CampaignSpec, Body()], idempotency_key: IdempotencyKey = None) -> CampaignCreated:
    """Create a campaign; its list and templates are uploaded next."""
    return _api().create(spec, clock.now(), idempotency_key)


@app.get("/campaigns")
def campaigns(
    state: Annotated[CampaignState | None, Query()] = None,
    month: Month = None,
    cursor: Cursor = None,
    limit: Limit = PAGE,
) -> CampaignPage:
    """Campaigns in a state, or created in a month (this one unless said), newest first."""
    return _api().list(state, month, cursor, limit, clock.now())


@app.get("/campaigns/<campaign_id>")
def campaign(campaign_id: Id) -> dict[str, Any]:
    """One campaign: spec, state, error, summary of its list, live counters."""
    return _api().get(campaign_id)


@app.get("/campaigns/<campaign_id>/rejects")
def rejects(campaign_id: Id) -> RejectsView:
    """A link to everybody of its list who is not written to, with line and reason."""
    return _api().rejects(campaign_id)


@app.get("/campaigns/<campaign_id>/counts")
def counts(campaign_id: Id) -> Counts:
    """Its tasks by status, counted over the rows themselves."""
    return _api().counts(campaign_id)


@app.get("/campaigns/<campaign_id>/tasks")
def tasks(
    campaign_id: Id,
    status: Annotated[TaskStatus | None, Query()] = None,
    address: Annotated[str | None, Query(max_length=1000)] = None,
    cursor: Cursor = None,
    limit: Limit = PAGE,
) -> TaskPage:
    """Its tasks, page by page; or those of one person, by ``address`` alone."""
    if address is not None:
        if status is not None or cursor is not None:
            raise InvalidRequest("ask for the tasks of an address, or for a page of a status, not for both")
        return _api().tasks_of(campaign_id, address)
    return _api().tasks(campaign_id, status, cursor, limit)


@app.post("/campaigns/<campaign_id>/uploads", status_code=201)
def upload_link(campaign_id: Id, upload: Annotated[Upload, Body()]) -> UploadLink:
    """A link by which the list or a template goes to S3, past the API."""
    return _api().upload_link(campaign_id, upload, clock.now())


@app.post("/campaigns/<campaign_id>/plan", status_code=202)
def plan(campaign_id: Id) -> Started:
    """Plan it: all that a launch would do, and nothing of it done."""
    return _api().plan(campaign_id, clock.now())


@app.get("/campaigns/<campaign_id>/plan")
def planned(campaign_id: Id) -> PlanView:
    """The newest plan: who gets it when, who does not and why, what it costs and whether the quotas suffice."""
    return _api().planned(campaign_id)


@app.post("/campaigns/<campaign_id>/launch", status_code=202)
def launch(campaign_id: Id, asked: Annotated[Launch | None, Body()] = None) -> Started:
    """Launch it, perhaps only as it was planned. The campaign's state says how that goes."""
    return _api().launch(campaign_id, clock.now(), plan=asked.plan if asked else None)


@app.post("/campaigns/<campaign_id>/resume", status_code=202)
def resume(campaign_id: Id) -> Started:
    """Plan again what is Pending: after a pause, or after a launch that broke."""
    return _api().launch(campaign_id, clock.now(), resume=True)


@app.post("/campaigns/<campaign_id>/pause")
def pause(campaign_id: Id) -> dict[str, Any]:
    """Stop sending for now; a resume goes on."""
    return _api().pause(campaign_id, clock.now())


@app.post("/campaigns/<campaign_id>/cancel", status_code=202)
def cancel(campaign_id: Id) -> Started:
    """Cancel it: once its state is cancelled, nothing more is sent."""
    return _api().cancel(campaign_id)


@app.post("/campaigns/<campaign_id>/exits")
def leave(campaign_id: Id, asked: Annotated[Exit, Body()]) -> Changed:
    """Let people leave it: they get none of its e-mails any more, and all others."""
    _api().get(campaign_id)
    return _suppressions().leave(campaign_id, asked, clock.now())


@app.post("/suppressions")
def suppress(asked: Annotated[Suppress, Body()]) -> Changed:
    """Suppress addresses, for a topic or for all (`*`); sending to them stops at once."""
    return _suppressions().suppress(asked, clock.now())


@app.delete("/suppressions")
def lift(asked: Annotated[Lift, Body()]) -> Changed:
    """Take suppressions of exactly that topic back."""
    return _suppressions().lift(asked)


@app.post("/suppressions/lookup")
def look_up(asked: Annotated[Lookup, Body()]) -> Entries:
    """What suppresses these addresses. Not a GET, for what stands in a URL stands in logs."""
    return _suppressions().look_up(asked)


@app.get("/settings/pace")
def pace() -> IdentityPaceView:
    """How fast the stack's sending identity may send."""
    return _api().pace()


@app.put("/settings/pace")
def set_pace(asked: Annotated[IdentityPace, Body()]) -> IdentityPaceView:
    """Set it, for all campaigns at once and without a deploy; ``paused`` stops them all."""
    return _api().set_pace(asked)


@app.get("/settings/sender")
def sender() -> SenderView:
    """Who sends, as every e-mail has to say."""
    return _api().sender()


@app.put("/settings/sender")
def set_sender(asked: Annotated[Sender, Body()]) -> SenderView:
    """Set who sends; nothing is launched before that."""
    return _api().set_sender(asked)


@app.post("/suppressions/uploads", status_code=201)
def suppressions_upload() -> TransferUpload:
    """A link by which a list to import goes to S3, past the API: CSV with a header, and addresses or our own hashes."""
    return _transfers().upload_link(clock.now())


@app.post("/suppressions/imports", status_code=202)
def import_suppressions(asked: Annotated[Import, Body()]) -> TransferStarted:
    """Suppress everybody on an uploaded list."""
    return _transfers().start_import(asked, clock.now())


@app.post("/suppressions/exports", status_code=202)
def export_suppressions() -> TransferStarted:
    """Write the whole list to a file. It has hashes: no addresses are kept."""
    return _transfers().start_export(clock.now())


@app.get("/suppressions/transfers/<transfer>")
def transfer(transfer: Annotated[TransferId, Path()]) -> TransferView:
    """How an import or export goes, and a link to what came of it."""
    return _transfers().look(transfer)


@app.get("/openapi.json", include_in_schema=False)
def openapi() -> Response[str]:
    """This API, described."""
    schema = app.get_openapi_json_schema(title="Carillon", version="1", description=__doc__ or "")
    return Response(HTTPStatus.OK.value, "application/json", schema)


@app.exception_handler(RequestValidationError)  # type: ignore[untyped-decorator]  # Powertools' own
def invalid(error: RequestValidationError) -> Response[str]:
    """What is wrong with each field; never what was in it, which may be somebody's address."""
    found = error.errors()
    if any(e["type"] == "json_invalid" for e in found):
        return not_json()
    # A list one of whose items is wrong is said to be too short as well: only the innermost is the cause.
    innermost = [e for e in found if not any(e["loc"] == o["loc"][: len(e["loc"])] != o["loc"] for o in found)]
    errors = [{"field": ".".join(map(str, e["loc"])), "problem": wording.of(e)} for e in innermost]
    detail = "; ".join(f"{e['field']}: {e['problem']}" for e in errors)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", f"mend these and send it again: {detail}", errors)


@app.exception_handler([JSONDecodeError, UnicodeDecodeError, RecursionError])  # type: ignore[untyped-decorator]  # Powertools' own
def malformed(error: Exception) -> Response[str]:
    """No JSON at all: not even text, or nested past reason."""
    return not_json()


def not_json() -> Response[str]:
    """The problem of a body that cannot be parsed."""
    return problem(HTTPStatus.BAD_REQUEST, "MalformedJson", "the body is not JSON: send one JSON object")


@app.exception_handler(NotImplementedError)  # type: ignore[untyped-decorator]  # what Powertools raises for these
def unsupported(error: NotImplementedError) -> Response[str]:
    """A body that says it is something else."""
    return not_typed_json()


def not_typed_json() -> Response[str]:
    """The problem of a body of another type."""
    detail = "the body must be JSON: send it with `Content-Type: application/json`"
    return problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "NotJson", detail)


@app.exception_handler(CarillonError)  # type: ignore[untyped-decorator]  # Powertools' own
def refused(error: CarillonError) -> Response[str]:
    """A refusal of the domain, in its own words."""
    return problem(STATUS.get(type(error), HTTPStatus.CONFLICT), error.code, str(error))


@app.not_found
def unknown(error: NotFoundError) -> Response[str]:
    """No such route, or not by this method."""
    return problem(HTTPStatus.NOT_FOUND, "NoSuchRoute", "there is no such route: GET /openapi.json lists them")


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]  # Powertools' own
def unexpected(error: Exception) -> Response[str]:
    """Our fault. The log gets where and what kind, not the message: it could quote an address."""
    where = [f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
    logger.error("unexpected error", kind=type(error).__name__, where=where)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "Unexpected",
        "the API failed and its log says where: try again, and report it if it stays",
    )


def problem(status: HTTPStatus, code: str, detail: str, errors: list[dict[str, str]] | None = None) -> Response[str]:
    """A problem of RFC 9457; ``code`` is what a program acts on, ``errors`` name fields."""
    body: dict[str, Any] = {
        "type": f"urn:carillon:problem:{code}",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "code": code,
    }
    if errors:
        body["errors"] = errors
    return Response(status.value, PROBLEM, json.dumps(body, ensure_ascii=False))


def _outside(answer: Response[str], headers: dict[str, str] | None = None) -> dict[str, Any]:
    """An answer given before the resolver is asked, in the form of payload 2.0."""
    return {
        "statusCode": answer.status_code,
        "headers": {"Content-Type": PROBLEM, **(headers or {})},
        "body": answer.body,
    }


@cache
def _tokens() -> Tokens:
    return Tokens(load(Settings).api_token_secret)


@cache
def _api() -> CampaignApi:
    settings = load(Settings)
    return CampaignApi(
        CampaignStore(settings.campaigns_table),
        CampaignRows(settings.tasks_table),
        Uploads(settings.bucket),
        Executions(),
        SettingsTable(settings.settings_table),
        launch_machine=settings.launch_campaign_arn,
        cancel_machine=settings.cancel_campaign_arn,
        retention_days=settings.retention_days,
        sending_domain=settings.sending_domain,
    )


@cache
def _suppressions() -> SuppressionList:
    return SuppressionList(SuppressionTable(load(Settings).suppressions_table))


@cache
def _transfers() -> Transfers:
    settings = load(Settings)
    function = BackgroundFunction(settings.transfer_suppressions_arn)
    return Transfers(Objects(settings.bucket), Uploads(settings.bucket), function)
