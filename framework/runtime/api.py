"""The HTTP API of a worker: the paths of Iggy's connector runtime, and the verbs of Kafka Connect beside them."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from framework.errors import EXIT_CONFIGURATION, EXIT_PERSON, ConfigError
from framework.model.local_hosts import is_this_machine
from framework.runtime import api_documents
from framework.runtime.commands import MAX_COMMANDS, CommandError
from framework.runtime.configuration import shown
from framework.runtime.metrics import registry_of
from framework.runtime.server import KEY_SHOWN
from framework.runtime.state import PAUSED, RUNNING, STOPPED
from framework.runtime.supervisor import (
    MAX_VERSIONS,
    BusyError,
    NotStoppedError,
    UnknownSourceError,
    UnknownVersionError,
)
from framework.runtime.system_usage import SystemProbe

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from framework.config.http_sections import HttpSection
    from framework.runtime.worker import Worker

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
DRAINED_BYTES = 256 * MAX_BODY_BYTES
"""Of a longer body so much is read and dropped, so that its sender reads the answer instead of a broken connection."""

BODY_SECONDS = 30.0
PUBLIC_PATHS = ("/", "/health")
READING_METHODS = ("GET", "HEAD")
GREETING = "Connector Runtime API"

_Form = Literal["json", "yaml", "toml", "text"]
ERRORS = {
    400: "The configuration or the request is wrong, or the source whose offsets it changes is not stopped.",
    401: "The header `api-key` is missing or wrong.",
    403: "Without a key, only requests that read are answered, and none of other web pages or for other host names.",
    404: "There is no such source, version or path.",
    405: "The path has no such method.",
    408: "The body did not arrive in time.",
    409: "It does not fit the state of the source, or a person must act first: the answer says what.",
    413: f"The body exceeds {MAX_BODY_BYTES:,} bytes.",
    422: "A field is unknown, missing or of another type.",
    500: "The state folder cannot be used.",
    503: f"Iggy cannot be reached, the source runs elsewhere, or {MAX_COMMANDS} commands on offsets run: try again.",
}
_OWN_SITES = (b"same-origin", b"none")
_CONNECT_PATHS = ("/connectors", "/connector-plugins")

_NO_CONTENT: dict[str, Any] = {"status_code": 204, "response_class": Response, "response_model": None}


def make_api(worker: Worker, http: HttpSection) -> ASGIApp:
    """Return the application of a worker, with its guard."""
    return Guard(make_app(worker, http), http.api_key)


def make_app(worker: Worker, http: HttpSection) -> FastAPI:
    """Return the application of a worker. It lets everyone in."""
    app = FastAPI(
        title="Sources for Apache Iggy",
        version=worker.version,
        description="The paths of Iggy's connector runtime, and verbs of Kafka Connect beside them.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # most programs follow no redirect, and would take it for done
    )
    _add_runtime_paths(app, worker, http)
    _add_source_paths(app, worker)
    _add_config_paths(app, worker)
    _add_connect_paths(app, worker)
    _add_offset_paths(app, worker)
    _add_error_answers(app)
    return app


class Guard:
    """Refuses requests without the key, requests that a web page of elsewhere may have sent, and long bodies.

    Where there is no key it refuses every request that changes something: each user of the machine may send it, and who
    gives a source its configuration runs code as the source's user.

    Args:
        app: the application behind it.
        api_key: the key; None for none.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = api_key.encode() if api_key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        with_key = self._key is not None and hmac.compare_digest(headers.get(b"api-key", b""), self._key)
        refused = None if with_key else self._refused(scope["method"], scope["path"], headers)
        body: bytes | None = b""  # without the key none is read: whoever never sends it would hold a place
        if with_key:
            scope["state"][KEY_SHOWN] = True
            try:
                with anyio.fail_after(BODY_SECONDS):
                    body = await _body(receive)
            except TimeoutError:
                refused = 408, "request_timeout", f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
            else:
                if body is None:
                    refused = 413, "body_too_large", f"the body exceeds {MAX_BODY_BYTES:,} bytes"
        if refused is not None:
            status, code, reason = refused
            await _error(scope["path"], status, code, reason)(scope, receive, send)
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)

    def _refused(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        """Return the status, code and reason with which a request without the key is refused; None to answer it."""
        if self._key is not None:
            refusal = 401, "unauthorized", "the header api-key is missing or wrong"
            return None if path in PUBLIC_PATHS else refusal
        host = headers.get(b"host", b"localhost").decode(errors="replace").rpartition(":")
        name = host[0] if host[1] and host[2].isdecimal() else "".join(host)
        # a name that resolves to this machine, or a script of a page: the browser of a person here may send it
        if not is_this_machine(name.removeprefix("[").removesuffix("]")):
            return 403, "forbidden", f"the host {name} is not this machine; set [http] api_key"
        # an image or a link of a page has no origin; `none` is an address that a person typed
        if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") not in _OWN_SITES:
            return 403, "forbidden", "requests of web pages need [http] api_key"
        if method not in READING_METHODS:
            return 403, "forbidden", f"{method} needs a key: set [http] api_key, and send it in the header api-key"
        return None


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request; None for one that is too long."""
    parts: list[bytes] = []
    size, more = 0, True
    while more and size < DRAINED_BYTES:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size <= MAX_BODY_BYTES:
            parts.append(part)
        more = message.get("more_body", False)  # a client that has left sends none
    return b"".join(parts) if size <= MAX_BODY_BYTES else None


def _add_runtime_paths(app: FastAPI, worker: Worker, http: HttpSection) -> None:
    supervisor = worker.supervisor
    probe = SystemProbe()

    @app.get("/", response_class=PlainTextResponse, responses=_some(403))
    async def root() -> str:  # on the loop, as `health` is: it answers while all threads of the pool wait for commands
        """Return a greeting; needs no key."""
        return GREETING

    @app.get("/health", responses=_some(403))
    async def health() -> api_documents.Health:
        """Return whether the worker answers; needs no key."""
        return api_documents.Health()

    @app.get("/stats", response_model_exclude_none=True, responses=_some())
    def stats() -> api_documents.RuntimeStats:
        """Return figures of the worker and of each source."""
        usage = probe.read()  # it looks at all processes of the machine
        with supervisor.locked() as sources:
            return api_documents.stats_of(sources, usage, version=worker.version)

    if http.metrics.enabled:
        registry = registry_of(supervisor)

        @app.get(http.metrics.endpoint, response_class=PlainTextResponse, responses=_some())
        def metrics() -> Response:
            """Return the metrics in the text format of Prometheus."""
            return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_source_paths(app: FastAPI, worker: Worker) -> None:
    supervisor = worker.supervisor

    @app.get("/sinks", responses=_some())
    def sinks() -> list[api_documents.SourceInfo]:
        """Return no sinks: this worker has sources only."""
        return []

    @app.get("/sources", response_model_exclude_none=True, responses=_some())
    def sources() -> list[api_documents.SourceInfo]:
        """Return all sources."""
        with supervisor.locked() as found:
            return [api_documents.info_of(source) for source in found]

    @app.get("/sources/{key}", response_model_exclude_none=True, responses=_some(404))
    def source(key: str) -> api_documents.SourceDetails:
        """Return a source and the topic that it writes."""
        with supervisor.source(key) as found:
            streams = api_documents.streams_of(shown(found.described))
            return api_documents.SourceDetails(**dict(api_documents.info_of(found)), streams=streams)

    @app.post("/sources/{key}/restart", **_NO_CONTENT, responses=_some(404, 409))
    def restart(key: str) -> None:
        """Stop a source in order and start it again, also after an error."""
        supervisor.restart(key)

    @app.get("/sources/{key}/transforms", responses=_some(404))
    def transforms(key: str) -> list[api_documents.Transform]:
        """Return the transforms of the active configuration that Iggy knows too; `plugin_config` has all."""
        with supervisor.source(key) as found:
            return api_documents.transforms_of(shown(found.active))


def _add_config_paths(app: FastAPI, worker: Worker) -> None:
    supervisor = worker.supervisor

    @app.get("/sources/{key}/configs", responses=_some(404))
    def configs(key: str) -> list[api_documents.SourceConfig]:
        """Return all configuration versions, secrets masked."""
        with supervisor.source(key) as found:
            active = found.active.version
            versions = supervisor.versions(key).values()
            return [api_documents.config_of(made, active=made.version == active) for made in versions]

    @app.post(
        "/sources/{key}/configs",
        responses=_some(404, 409, 500),
        description="Store a configuration as the next version. It has no effect before it is activated. "
        f"{MAX_VERSIONS} are kept.",
    )
    def create(key: str, new: api_documents.NewConfig) -> api_documents.SourceConfig:
        return api_documents.config_of(worker.create(key, new), active=False)

    @app.delete("/sources/{key}/configs", **_NO_CONTENT, responses=_some(404, 409, 500))
    def delete(key: str, version: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None) -> None:
        """Delete a version, by default the active one; the version of the file is then active."""
        supervisor.remove_version(key, version)

    @app.get("/sources/{key}/configs/active", responses=_some(404))
    def active_config(key: str) -> api_documents.SourceConfig:
        """Return the active configuration, secrets masked."""
        with supervisor.source(key) as found:
            return api_documents.config_of(found.active, active=True)

    @app.put("/sources/{key}/configs/active", **_NO_CONTENT, responses=_some(404, 409, 500))
    def activate(key: str, active: api_documents.ActiveVersion) -> None:
        """Activate a version: the source is stopped in order and started with it."""
        supervisor.activate(key, active.version)

    @app.get(
        "/sources/{key}/configs/plugin",
        response_class=Response,
        responses={
            **_some(404),
            200: {
                "content": {
                    **{kind: {"schema": {"type": "object"}} for kind in ("application/json", "application/yaml")},
                    **{kind: {"schema": {"type": "string"}} for kind in ("application/toml", "text/plain")},
                }
            },
        },
    )
    def plugin(key: str, format: Annotated[_Form | None, Query()] = None) -> Response:  # noqa: A002 - Iggy's name
        """Return the sections of the active configuration, secrets masked."""
        media_type, text = worker.plugin_config(key, format)
        return Response(text, media_type=media_type)

    @app.get("/sources/{key}/configs/{version}", responses=_some(404))
    def config(key: str, version: int) -> api_documents.SourceConfig:
        """Return a configuration version, secrets masked."""
        with supervisor.source(key) as found:
            made = supervisor.version(key, version)
            return api_documents.config_of(made, active=version == found.active.version)


def _add_connect_paths(app: FastAPI, worker: Worker) -> None:
    supervisor = worker.supervisor

    @app.get("/connectors", responses=_some(connect=True))
    def connectors() -> list[str]:
        """Return the keys of all sources."""
        with supervisor.locked() as found:
            return [source.key for source in found]

    @app.get("/connectors/{name}/status", response_model_exclude_none=True, responses=_some(404, connect=True))
    def status(name: str) -> api_documents.ConnectorStatus:
        """Return the state of a source in the words of Kafka Connect."""
        with supervisor.source(name) as found:
            return api_documents.connector_status(found, worker.id)

    @app.put(
        "/connectors/{name}/pause", status_code=202, response_class=Response, responses=_some(404, 500, connect=True)
    )
    def pause(name: str) -> None:
        """Stop the source's process in order until it is resumed; kept over restarts."""
        supervisor.set_state(name, PAUSED)

    @app.put(
        "/connectors/{name}/resume", status_code=202, response_class=Response, responses=_some(404, 500, connect=True)
    )
    def resume(name: str) -> None:
        """Run a paused or stopped source again."""
        supervisor.set_state(name, RUNNING)

    @app.put("/connectors/{name}/stop", **_NO_CONTENT, responses=_some(404, 500, connect=True))
    def stop(name: str) -> None:
        """Stop the source; kept over restarts. Its offsets can then be changed."""
        supervisor.set_state(name, STOPPED)

    @app.post("/connectors/{name}/restart", **_NO_CONTENT, responses=_some(404, 409, connect=True))
    def restart(name: str) -> None:
        """Stop a source in order and start it again, also after an error."""
        supervisor.restart(name)


def _add_offset_paths(app: FastAPI, worker: Worker) -> None:
    offset_errors = _some(404, 409, 500, 503, connect=True)

    @app.get("/connectors/{name}/offsets", responses=offset_errors)
    def offsets(name: str) -> api_documents.ConnectorOffsets:
        """Return the first 1,000 positions."""
        return api_documents.ConnectorOffsets.model_validate({"offsets": worker.offsets(name)})

    @app.patch("/connectors/{name}/offsets", responses=offset_errors)
    def alter(name: str, changes: api_documents.OffsetChanges) -> api_documents.Message:
        """Set or reset the positions of some objects of a stopped source, one after the other."""
        return api_documents.Message(message=worker.change_offsets(name, changes.offsets))

    @app.delete("/connectors/{name}/offsets", responses=offset_errors)
    def reset(name: str) -> api_documents.Message:
        """Reset all positions of a stopped source: everything is sent again."""
        return api_documents.Message(message=worker.change_offsets(name, None))

    @app.put("/connector-plugins/{kind}/config/validate", responses=_some(404, connect=True))
    def validate(kind: str, content: dict[str, Any]) -> api_documents.Validation:
        """Check the sections of a configuration without storing it. The kind is `s3` or `gcs`."""
        found = worker.kinds.named(kind)
        if found is None:
            raise HTTPException(
                404, f"there is no kind of source {kind}: name the section of its store, such as s3 or gcs"
            )
        return worker.validate(found, content)


def _some(*statuses: int, connect: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return the documented errors of a path: those of every path, and these."""
    model = api_documents.ConnectError if connect else api_documents.ErrorAnswer
    every = sorted({400, 401, 403, 408, 413, 422, *statuses})
    return {status: {"model": model, "description": ERRORS[status]} for status in every}


def _error(path: str, status: int, code: str, reason: str) -> JSONResponse:
    """Return an error in the form of the path: Kafka Connect's or that of Iggy's runtime."""
    if path.startswith(_CONNECT_PATHS):
        return JSONResponse({"error_code": status, "message": reason}, status)
    return JSONResponse({"code": code, "reason": reason}, status)


_ANSWERS: Mapping[type[Exception], tuple[int, str, Callable[[Any], str]]] = {
    UnknownSourceError: (404, "source_not_found", lambda error: f"Source not found with key: {error.args[0]}"),
    UnknownVersionError: (
        404,
        "source_config_not_found",
        lambda error: "Source config not found with key: {}, version: {}".format(*error.args),
    ),
    NotStoppedError: (400, "bad_request", str),
    BusyError: (409, "conflict", str),
    ConfigError: (
        400,
        "invalid_configuration",
        lambda error: f"Invalid configuration: {'; '.join(error.mistakes)}",
    ),
    RecursionError: (400, "invalid_request", lambda _: "the body is nested too deeply"),
}
"""Error -> status, code, and what gives the reason."""


def _add_error_answers(app: FastAPI) -> None:
    def known(request: Request, error: Exception) -> JSONResponse:
        status, code, reason = next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)
        return _error(request.url.path, status, code, reason(error))

    for kind in _ANSWERS:
        app.add_exception_handler(kind, known)

    @app.exception_handler(CommandError)
    def failed(request: Request, error: CommandError) -> JSONResponse:
        log.error("%s: %s", request.url.path, error.message)
        status = {EXIT_CONFIGURATION: 400, EXIT_PERSON: 409}.get(error.exit_code, 503)
        return _error(request.url.path, status, "error", error.message)

    @app.exception_handler(OSError)
    def unwritable(request: Request, error: OSError) -> JSONResponse:
        place = f"{error.filename}: " if isinstance(error.filename, str) else ""
        reason = f"the state folder cannot be used: {place}{error.strerror or error}"
        log.error("%s: %s", request.url.path, reason)
        return _error(request.url.path, 500, "error", reason)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        form = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        mistakes = [_sentence(mistake, form) for mistake in error.errors()]
        return _error(request.url.path, 422, "invalid_request", "; ".join(mistakes))

    @app.exception_handler(HTTPException)
    def other(request: Request, error: HTTPException) -> JSONResponse:
        allowed = (error.headers or {}).get("Allow")
        reasons = {
            "There was an error parsing the body": "the body cannot be read: it must be JSON in UTF-8, and not nested deeply",
            "Not Found": f"there is no path {request.url.path}: GET /openapi.json lists all",
            "Method Not Allowed": f"{request.url.path} has no method {request.method}, only {allowed}",
        }
        made = _error(request.url.path, error.status_code, "error", reasons.get(error.detail, error.detail))
        made.headers.update(error.headers or {})
        return made


def _sentence(mistake: dict[str, Any], form: str) -> str:
    """Return a mistake of a request: the field's name, and what is wrong; never the value. `form`: its content type."""
    kind, (where, *path) = mistake["type"], mistake["loc"]
    if kind == "json_invalid":
        return f"the body is not JSON (at character {path[0]})"
    if where == "body" and not path:
        if kind == "missing":
            return "the body is missing: a JSON object, with the header content-type: application/json"
        if not form.endswith("json"):
            return f"the header content-type must be application/json, it is {form or 'missing'}"
        return "the body must be a JSON object"
    place = ".".join(str(part) for part in path) or str(where)
    texts = {"extra_forbidden": "unknown field", "missing": "missing"}
    return f"{place}: {texts.get(kind, mistake['msg'])}"
