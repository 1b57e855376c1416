"""The application in front: the hot routes, probes and metrics as plain RSGI; the rest is FastAPI.

RSGI is the interface that granian offers; `docs/http.md` says why the hot path speaks it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tailproof.core.errors import MethodNotAllowed, NotFound, RequestError
from tailproof.serving import health
from tailproof.serving.admission import BodyReader, ClientLeft
from tailproof.serving.exchange import JSON, Desk, Exchange
from tailproof.serving.paths import PAGES
from tailproof.serving.predict import Predictor
from tailproof.serving.service import ModelService
from tailproof.serving.settings import ServerSettings
from tailproof.telemetry.fault import Fault
from tailproof.telemetry.metrics import UNMATCHED

if TYPE_CHECKING:
    from tailproof.serving.pages import Pages

Handler = Callable[[Exchange, Any, Any], Awaitable[None]]
"""Answers one exchange, given the request's headers and granian's protocol object."""


ANY = "any"
"""The method of a route that looks at it by itself."""

ROUTES = (
    "/health",
    "/health/live",
    "/health/ready",
    "/health/startup",
    "/metrics",
    "/predict",
    *PAGES,
)
"""Route templates that belong to no model (`/predict` does when there is only one)."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the hot table."""

    template: str
    method: str
    handler: Handler
    model: str = ""


class App:
    """Callable by granian. One instance serves the whole process."""

    def __init__(
        self, settings: ServerSettings, services: dict[str, ModelService], desk: Desk
    ) -> None:
        self._services = services
        self._desk = desk
        self._request_timeout = settings.request_timeout
        self._bodies = BodyReader(settings, desk.clock)
        self._predictor = Predictor(self._bodies, settings.request_timeout)
        self._pages: Pages | None = None
        self._routes = self._table()

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        """Handle one HTTP request."""
        route = self._routes.get(scope.path) or self._page(scope)
        exchange = Exchange(self._desk, proto, scope.method, route.template, route.model)
        headers = scope.headers
        exchange.identify(headers)
        try:
            if route.method not in (_asked(scope), ANY):
                raise MethodNotAllowed(f"this route takes {route.method}")
            await route.handler(exchange, headers, proto)
        except RequestError as error:
            exchange.refuse(error, _allow(error, route))
        except (ClientLeft, asyncio.CancelledError):
            exchange.client_left()
        except Exception as error:  # noqa: BLE001  our own bug: told, logged, and not fatal
            self._bug(exchange, error)

    async def sweep(self, interval: float) -> None:
        """Keep the deadlines of bodies and requests, for ever."""
        while True:
            await asyncio.sleep(interval)
            self._bodies.sweep()
            self._predictor.sweep(self._desk.clock())
            for service in self._services.values():
                service.sweep(self._request_timeout)

    async def keep_times(self, interval: float) -> None:
        """Write down what was learned of batch times every `interval` seconds, for ever."""
        while True:
            await asyncio.sleep(interval)
            for service in self._services.values():
                await service.keep_times()

    def build_pages(self) -> None:
        """Import what only the pages need, a quarter of a second: while the workers load."""
        from tailproof.serving.pages import Pages  # noqa: PLC0415

        self._pages = Pages(self._services)

    def abandon(self) -> int:
        """The time to drain is over: tell every open request. Returns how many there were."""
        return self._bodies.abandon() + self._predictor.abandon()

    def _table(self) -> dict[str, Route]:
        routes = {
            "/health": Route("/health", "GET", self._health),
            "/health/live": Route("/health/live", "GET", self._live),
            "/health/ready": Route("/health/ready", "GET", self._ready),
            "/health/startup": Route("/health/startup", "GET", self._startup),
            "/metrics": Route("/metrics", "GET", self._metrics),
        }
        for name, service in self._services.items():
            handler = self._predict(service)
            template = "/models/{name}/predict"
            routes[f"/models/{name}/predict"] = Route(template, "POST", handler, name)
        if len(self._services) == 1:
            (name,) = self._services
            handler = self._predict(self._services[name])
            routes["/predict"] = Route("/predict", "POST", handler, name)
        else:
            routes["/predict"] = Route("/predict", "POST", self._which_model)
        return routes

    def _predict(self, service: ModelService) -> Handler:
        predict = self._predictor.predict

        def handler(exchange: Exchange, headers: Any, proto: Any) -> Awaitable[None]:
            return predict(service, exchange, headers, proto)

        return handler

    async def _which_model(self, exchange: Exchange, _headers: Any, _proto: Any) -> None:
        paths = ", ".join(f"/models/{name}/predict" for name in self._services)
        raise NotFound(f"several models are served: use {paths}")

    async def _health(self, exchange: Exchange, _headers: Any, _proto: Any) -> None:
        _respond(exchange, *health.whole(self._services, draining=self._desk.draining))

    async def _live(self, exchange: Exchange, _headers: Any, _proto: Any) -> None:
        _respond(exchange, *health.live())

    async def _ready(self, exchange: Exchange, _headers: Any, _proto: Any) -> None:
        _respond(exchange, *health.ready(self._services, draining=self._desk.draining))

    async def _startup(self, exchange: Exchange, _headers: Any, _proto: Any) -> None:
        _respond(exchange, *health.startup(self._services))

    async def _metrics(self, exchange: Exchange, headers: Any, _proto: Any) -> None:
        body, content_type = self._desk.metrics.render(headers.get("accept") or "")
        exchange.answer(200, body, [("content-type", content_type)])

    def _page(self, scope: Any) -> Route:
        """Through FastAPI; what it does not know either is counted as `unmatched`."""
        pages = self._pages
        assert pages is not None, "built before any request is read"
        template = pages.template(scope.path)

        async def handler(exchange: Exchange, _headers: Any, _proto: Any) -> None:
            if template == UNMATCHED and scope.path.startswith("/models/"):
                raise NotFound(f"no such model or path; served: {', '.join(self._services)}")
            status, headers, body = await pages.render(scope)
            exchange.answer(status, body, headers, outcome=_outcome(status))

        return Route(template, ANY, handler)

    def _bug(self, exchange: Exchange, error: Exception) -> None:
        self._desk.log.event("server.bug", repr(error), "error", exception=error)
        fault = Fault(type(error).__name__, "bug", repr(error), retryable=False)
        body = b'{"detail":"internal error"}'
        exchange.answer(500, body, [JSON], outcome="failed", fault=fault)


def _asked(scope: Any) -> str:
    """The method; HEAD is a GET whose body the HTTP library keeps to itself."""
    method: str = scope.method
    return "GET" if method == "HEAD" else method


def _respond(exchange: Exchange, status: int, content: dict[str, Any]) -> None:
    headers = [JSON, ("cache-control", "no-store")]
    body = msgspec.json.encode(content)
    exchange.answer(status, body, headers, outcome=_outcome(status))


def _outcome(status: int) -> str:
    if status < 400:
        return "ok"
    return "client_error" if status < 500 else "failed"


def _allow(error: RequestError, route: Route) -> list[tuple[str, str]]:
    return [("allow", route.method)] if isinstance(error, MethodNotAllowed) else []
