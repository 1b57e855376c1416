"""The server's own account of what it did: its metrics, as Prometheus would read them."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from .http_client import ask
from .server import Server


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of `/metrics`: (name, labels, value) of each sample."""

    samples: tuple[tuple[str, dict[str, str], float], ...]

    def find(self, name: str, **labels: str) -> float | None:
        """Sum over the samples of that name that carry these labels; None when there is none."""
        values = [
            value
            for sample, found, value in self.samples
            if sample == name and labels.items() <= found.items()
        ]
        return sum(values) if values else None

    def value(self, name: str, **labels: str) -> float:
        """The same, where a counter that was never touched may be absent: then 0."""
        return self.find(name, **labels) or 0.0

    def by(self, name: str, *keys: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Sums of a counter, grouped by the values of some labels. Zeros are left out."""
        groups: dict[tuple[str, ...], float] = {}
        for sample, found, value in self.samples:
            if sample == name and labels.items() <= found.items() and value:
                group = tuple(found.get(key, "") for key in keys)
                groups[group] = groups.get(group, 0.0) + value
        return groups


async def scrape(port: int) -> Scrape:
    """Read `/metrics` once. Raises AssertionError when the answer is not 200."""
    answer = await ask(port, "GET", "/metrics")
    assert answer.status == 200, f"/metrics answered {answer.status}"
    return Scrape(
        tuple(
            (sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
        )
    )


async def until_gauge(
    server: Server, name: str, value: float, within: float = 10.0, **labels: str
) -> Scrape:
    """Wait until a gauge or counter of the model has exactly this value; returns that reading.

    Raises AssertionError naming the gauge and what it stayed at.
    """
    last: list[float | None] = [None]

    async def reached() -> Scrape | None:
        reading = await scrape(server.port)
        last[0] = reading.find(name, model=server.name, **labels)
        return reading if last[0] == value else None

    try:
        reading: Scrape = await server.until(reached, name, within)
    except AssertionError as error:
        raise AssertionError(f"{name} stayed at {last[0]}, expected {value}: {error}") from None
    return reading


async def until_inflight(server: Server, count: int, within: float = 10.0) -> Scrape:
    """Wait until exactly `count` requests are in flight."""
    return await until_gauge(server, "tailproof_inflight_requests", count, within)


async def until_waiting(server: Server, rows: int, within: float = 10.0) -> Scrape:
    """Wait until exactly `rows` rows wait for a batch."""
    return await until_gauge(server, "tailproof_queue_rows", rows, within)


async def until_computing(server: Server) -> None:
    """Wait until one request is with a worker, and nobody waits behind it."""
    await until_inflight(server, 1)
    await until_waiting(server, 0)


async def until_received(server: Server, count: int, within: float = 10.0) -> None:
    """Wait until the server has seen `count` predictions since it started."""

    async def reached() -> bool:
        reading = await scrape(server.port)
        return reading.value("tailproof_requests_received_total", route="/predict") >= count

    await server.until(reached, f"{count} predictions received", within)
