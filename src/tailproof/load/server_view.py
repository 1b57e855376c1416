"""What can be seen of the server while it is tested: CPU time, memory, its own counters.

From /proc when it runs on this machine, else from its `/metrics`. A view and no measurement: what
cannot be read (another host, another user, no such page) is None and never an error.
"""

import http.client
import math
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Literal

from tailproof.core.clock import monotonic
from tailproof.load import pages
from tailproof.load.target import Target
from tailproof.reporting.document import ServerView

LARGEST_PAGE = 4 << 20
"""Bytes: a larger `/metrics` is not read."""
LONGEST_LINE = 1 << 16
"""Characters: a longer line holds no sample."""
LARGEST = 1e15
"""No process holds more bytes, or has used more seconds, whatever its page says."""
PATIENCE = 2.0
"""Seconds that the page may take, all of it."""

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FORWARDERS = {"docker-proxy", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "kubectl"}
"""They listen in the place of a server that runs elsewhere: their CPU says nothing of it."""
_LISTEN = "0A"


# --- which process --------------------------------------------------------------------------------


def is_local(host: str) -> bool:
    """Is `host` this machine: do all its addresses belong to it? False when it has none."""
    addresses = _addresses(host)
    return bool(addresses) and all(map(_is_own, addresses))


def find(host: str, port: int) -> int | None:
    """The process that listens on this address of this machine; of several that share the socket
    (a master and its workers) the one above the others. None: not here, or not to be seen."""
    if not is_local(host):
        return None
    inodes = set(_listening(_addresses(host), port))
    pids = [pid for pid in _pids() if inodes & _sockets(pid)]
    found = [process for process in map(_process, pids) if process is not None]
    tops = [process for process in found if process.parent not in pids]
    if not tops or any(process.name in _FORWARDERS for process in tops):
        return None
    return min(process.pid for process in tops)


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(entry[4][0]) for entry in found}


def _is_own(address: str) -> bool:
    """Only an address of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return not ip_address(address.partition("%")[0]).is_multicast


def _listening(addresses: set[str], port: int) -> Iterator[str]:
    """Inodes of the sockets that take connections to one of `addresses` at `port`."""
    wanted = {_unmapped(ip_address(address.partition("%")[0])) for address in addresses}
    for name in ("tcp", "tcp6"):
        for line in _lines(f"/proc/net/{name}")[1:]:
            fields = line.split()
            local, _, hex_port = fields[1].partition(":")
            if fields[3] == _LISTEN and int(hex_port, 16) == port:
                address = _unmapped(_decoded(local))
                if address.is_unspecified or address in wanted:
                    yield fields[9]


def _decoded(text: str) -> IPv4Address | IPv6Address:
    """The kernel prints addresses as words of 32 bits in the order of this machine."""
    words = [text[at : at + 8] for at in range(0, len(text), 8)]
    return ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


# --- process trees --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc. `cpu`: seconds, with those of its ended and awaited children."""

    pid: int
    parent: int
    name: str
    cpu: float
    resident_bytes: int


def tree(pid: int) -> tuple[Process, ...]:
    """The process and all that descend from it, itself first. Empty when it is gone."""
    found = {process.pid: process for process in map(_process, _pids()) if process is not None}
    if pid not in found:
        return ()
    members, parents = [found[pid]], {pid}
    while parents:
        children = [process for process in found.values() if process.parent in parents]
        members += children
        parents = {process.pid for process in children}
    return tuple(members)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208


def _process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it ended while we looked
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    cpu = sum(map(int, fields[11:15])) * _TICK
    return Process(pid, int(fields[1]), name, cpu, int(fields[21]) * _PAGE)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


# --- its own page ---------------------------------------------------------------------------------

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)"
    r'(?:\{[^"}]*+(?:"(?:[^"\\]|\\.)*+"[^"}]*+)*+\})?+'
    r"[ \t]++(?P<value>\S++)"
)
"""Every part is possessive, so that no line takes longer than reading it once."""

_WORK = {"request", "requests", "tokens", "prediction", "predictions", "inference", "inferences"}
_WORK_PAIRS = {("tokens", "generated"), ("inference", "count"), ("request", "success")}
"""What servers call their counts of work: `http_requests_total`, `bentoml_service_request_total`,
`vllm:generation_tokens_total`, `nv_inference_request_success`, `tokens_generated`."""
_OTHER_UNITS = {"seconds", "bytes", "created", "ratio"}

_CPU = ("process_cpu_seconds_total", "tailproof_batch_cpu_seconds_total")
"""Of the process that answers the page, and (ours) of its workers."""


def samples(metrics_text: str) -> dict[str, float]:
    """Sample name -> its value in Prometheus or OpenMetrics text, summed over labels. Lines that
    are none are left out, and so are sums that are no finite number."""
    found: dict[str, float] = {}
    for line in metrics_text.splitlines():
        match = _SAMPLE.match(line) if len(line) <= LONGEST_LINE else None
        with suppress(ValueError):
            if match is not None:
                name = match["name"]
                found[name] = found.get(name, 0.0) + float(match["value"])
    return {name: value for name, value in found.items() if math.isfinite(value)}


def counters(metrics_text: str) -> dict[str, float]:
    """The counts of requests, predictions and tokens among the samples of a `/metrics` page."""
    found = samples(metrics_text)
    return {name: value for name, value in found.items() if _counts_work(name)}


def _counts_work(name: str) -> bool:
    """`..._UNIT_total` with words between at most, or `..._PAIR`; the unit may follow a colon."""
    words = name.rpartition(":")[2].split("_")
    if words.pop() != "total":
        return tuple(name.rpartition(":")[2].split("_")[-2:]) in _WORK_PAIRS
    if words and words[-1] in _OTHER_UNITS:
        return False
    for word in reversed(words):
        if word in _WORK:
            return True
        if not (word.isalpha() and word.islower()):
            return False
    return False


def metrics_page(target: Target) -> str | None:
    """The text of `/metrics` at the origin of a target; None when there is none, or it cannot be
    read in time."""
    origin = target.scheme, target.host, target.port
    with suppress(OSError, http.client.HTTPException, ValueError):
        status, body = pages.get(
            origin, "/metrics", seconds=PATIENCE, most=LARGEST_PAGE, context=_unchecked()
        )
        if status == 200:
            return body.decode(errors="replace")
    return None


def _unchecked() -> ssl.SSLContext:
    """Whether the certificate is good is the target's question; this only reads counters."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# --- before and after -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """The server at one moment. `at` and `cpu` in seconds; None: could not be read."""

    at: float
    source: Literal["metrics", "proc"] | None = None
    cpu: float | None = None
    resident_bytes: int | None = None


class Observer:
    """Looks at the server of `target`: at its processes where they can be seen, else at its page.

    `pid`: the process to look at, for a server behind something that listens in its place. None:
    the one that `find` finds, if any.
    """

    def __init__(self, target: Target, pid: int | None = None) -> None:
        self._target = target
        self._has_page = True
        self.pid = find(target.host, target.port) if pid is None else pid

    def read(self) -> Look:
        """How it is now. A page that is not there is asked for once and never again."""
        return self._processes() or self._page() or Look(monotonic())

    def since(self, before: Look, requests: int) -> ServerView:
        """What it did since `before`, when it got `requests`.

        A process that was replaced in between has a clock of its own: its CPU time is then None.
        """
        after = self.read()
        seconds = after.at - before.at
        cpu = _increase(before.cpu, after.cpu) if before.source == after.source else None
        return ServerView(
            source=after.source,
            cpu_seconds=cpu,
            busy_cores=cpu / seconds if cpu is not None and seconds > 0 else None,
            cpu_seconds_per_request=cpu / requests if cpu is not None and requests > 0 else None,
            resident_bytes=after.resident_bytes,
        )

    def _processes(self) -> Look | None:
        found = () if self.pid is None else tree(self.pid)
        if not found:
            return None
        cpu = sum(process.cpu for process in found)
        return Look(monotonic(), "proc", cpu, sum(process.resident_bytes for process in found))

    def _page(self) -> Look | None:
        text = metrics_page(self._target) if self._has_page else None
        if text is None:
            self._has_page = False
            return None
        found = samples(text)
        cpu = [found[name] for name in _CPU if 0.0 <= found.get(name, -1.0) <= LARGEST]
        resident = found.get("process_resident_memory_bytes", -1.0)
        return Look(
            monotonic(),
            "metrics",
            sum(cpu) if cpu else None,
            int(resident) if 0.0 <= resident <= LARGEST else None,
        )


def _increase(before: float | None, after: float | None) -> float | None:
    if before is None or after is None or after < before:
        return None
    return after - before
