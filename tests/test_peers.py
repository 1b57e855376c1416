"""The other model servers of benchmarks/serving.py: installed, asked, checked, ended, drawn.

None is installed here: small servers of our own stand in for them.
"""

# ruff: noqa: E402  the benchmarks are scripts, so their folder is put on the path first

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import closed_loop
import findings
import processes
from peers import contenders, environments
from peers.contenders import PEERS, Contender
from peers.environments import Environment, NotInstalled
from peers.picture import Limits, picture
from tailproof.core.recording import LOST, Recording
from tailproof.reporting import document
from tests.scripts import script

ROW = {"amount": 12.5, "channel": "web", "age": 33}


@pytest.fixture(scope="module")
def serving() -> Any:
    """The script that compares them."""
    return script("serving")


# --- environments ---------------------------------------------------------------------------------


def test_every_peer_has_pinned_requirements_and_a_script() -> None:
    assert environments.all_peers() == sorted(peer.name for peer in PEERS)
    for peer in PEERS:
        own = (environments.REQUIREMENTS / f"{peer.name}.txt").read_text()
        assert f"{peer.package}==" in own.replace("[serve]", "")
        assert all("==" in line for line in own.splitlines())
        for word in peer.command:
            if word.endswith("_service.py"):
                assert Path(word.format(here=contenders.HERE)).is_file()


def test_model_libraries_are_those_of_this_environment_unless_a_peer_says_otherwise() -> None:
    usual = environments.requirements_of("mosec").splitlines()
    special = environments.requirements_of("pytriton").splitlines()

    assert f"numpy=={version('numpy')}" in usual
    assert f"scikit-learn=={version('scikit-learn')}" in special
    assert len([line for line in special if line.startswith("numpy==")]) == 1
    assert f"numpy=={version('numpy')}" not in special


def test_an_environment_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def build(environment: Environment, wanted: str) -> None:
        environment.folder.mkdir(parents=True, exist_ok=True)
        built.append(wanted)

    monkeypatch.setattr(environments, "_build", build)
    for _ in range(2):
        environments.ready("mosec", tmp_path)
    assert len(built) == 1

    (tmp_path / "mosec" / "built.txt").write_text("mosec==0.1.0\n")
    environments.ready("mosec", tmp_path)
    assert len(built) == 2


def test_what_pip_says_last_is_the_reason() -> None:
    script = "import sys; sys.exit('WARNING: x\\nERROR: no such version\\nhint: y')"

    with pytest.raises(NotInstalled, match=r"^ERROR: no such version$"):
        environments._run([sys.executable, "-c", script])


def test_versions_are_read_without_running_anything(tmp_path: Path) -> None:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    facts = tmp_path / "lib" / python / "site-packages" / "Some_Server-1.2.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_Server\nVersion: 1.2\n")

    found = Environment(tmp_path).versions(("some-server", "absent"))

    assert found == {"some-server": "1.2"}


# --- how they are asked ---------------------------------------------------------------------------


class Installed(Environment):
    """Says a version of everything."""

    def versions(self, packages: Any) -> dict[str, str]:
        return dict.fromkeys(packages, "1.0")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_started_with_the_model_and_its_own_programs(peer: Any, tmp_path: Path) -> None:
    environment = Installed(tmp_path / peer.name)

    found = peer.contender(environment, tmp_path, "sqlite:///x.db")

    assert not [word for word in found.command if re.search(r"[{}]", word)]
    assert f"FRAUD_MODEL={tmp_path / 'model.joblib'}" in found.command
    assert found.shown.startswith(str(environment.bin))
    assert json.loads(found.encode(ROW))
    assert found.title == f"{peer.title} 1.0"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("mosec", {"score": 0.25}),
        ("bentoml", [0.25]),
        ("mlserver", {"outputs": [{"name": "predict_proba", "data": [0.75, 0.25]}]}),
        ("pytriton", {"outputs": [{"name": "score", "data": [0.25]}]}),
        ("mlflow", {"predictions": [[0.75, 0.25]]}),
    ],
)
def test_the_score_is_found_in_every_kind_of_answer(name: str, answer: Any) -> None:
    (peer,) = [peer for peer in PEERS if peer.name == name]

    assert peer.score_of(answer) == 0.25


def test_tensors_have_the_types_of_the_columns() -> None:
    inputs = json.loads(contenders.tensors(ROW))["inputs"]

    assert {one["name"]: (one["datatype"], one["data"]) for one in inputs} == {
        "amount": ("FP64", [12.5]),
        "channel": ("BYTES", ["web"]),
        "age": ("INT64", [33]),
    }


# --- a right server, a wrong one, none ------------------------------------------------------------

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    num = 0
    def do_POST(self):
        Handler.num += 1
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503 if Handler.num == 1 else 200)
        self.end_headers()
        self.wfile.write(b'{"score": 0.25}')
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def stand_in(program: str = SERVER) -> Contender:
    return Contender("stand-in", (sys.executable, "-c", program))


def test_a_server_is_ready_with_its_first_good_answer(serving: Any) -> None:
    with serving.running(stand_in(), [serving.Check(ROW, 0.25)]) as (server, ready_seconds):
        assert ready_seconds > server.cold_seconds


def test_a_server_that_says_something_else_than_the_model_is_refused(serving: Any) -> None:
    found = findings.Findings()
    effort = serving.QUICK

    assert serving.attempt(stand_in(), effort, 1, [serving.Check(ROW, 0.26)], found) is None
    assert found.faults == {"stand-in": "answered 0.25 where the model says 0.26"}


def test_a_server_that_does_not_start_is_reported_with_its_reason(serving: Any) -> None:
    found = findings.Findings()
    broken = stand_in("import sys; sys.exit('needs an older uvloop')")

    assert serving.attempt(broken, serving.QUICK, 1, [], found) is None
    assert found.faults == {"stand-in": "the server ended with 1: needs an older uvloop"}


def test_a_peer_that_cannot_be_installed_is_reported_with_its_reason(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, folder: Path) -> Environment:
        raise NotInstalled("ERROR: no such version")

    monkeypatch.setattr(serving, "ready", refuse)
    found = findings.Findings()

    services = serving.theirs(serving.Wish(("mosec",)), serving.Model(tmp_path, ()), found)

    assert services == []
    assert findings.side_by_side(found)[-1] == "mosec: not measured: ERROR: no such version"
    assert "not measured" in findings.drawn(found)


def test_peers_are_asked_for_by_name(serving: Any) -> None:
    assert serving.peer_names("all") == tuple(peer.name for peer in PEERS)
    assert serving.peer_names("ray,mosec") == ("ray", "mosec")
    with pytest.raises(argparse.ArgumentTypeError, match="nobody is none of mosec, "):
        serving.peer_names("mosec,nobody")


# --- what is left behind --------------------------------------------------------------------------

LEAVE_ONE = f"""
import subprocess, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from contextlib import nullcontext
from peers.leftovers import adopt_orphans, nothing_left
adopt_orphans()
with nothing_left() if sys.argv[1] == "end" else nullcontext():
    daemon = ["setsid", "sh", "-c", "sleep 60 >/dev/null & echo $!"]
    print(subprocess.run(daemon, stdout=subprocess.PIPE, check=True, text=True).stdout)
"""


def left_by(what: str) -> int:
    """The pid of an orphan in a session of its own, after the program that saw it has ended."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVE_ONE, what], stdout=subprocess.PIPE, check=True, text=True
    )
    return int(done.stdout)


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_an_orphan_in_its_own_session_is_ended() -> None:
    assert not is_running(left_by("end"))

    kept = left_by("keep")
    assert is_running(kept)
    os.kill(kept, signal.SIGKILL)


# --- what is made of it ---------------------------------------------------------------------------


def round_with(rate: float, overload: findings.Overload | None = None) -> findings.Round:
    limit = document.Limit(rate=rate, low=rate, high=1.1 * rate, at_least=False)
    proof = document.Document(
        tool="tailproof",
        target="http://127.0.0.1/predict",
        slo=["p95 < 50ms"],
        verdict="PASS",
        reason="",
        mode="search",
        limit=limit,
        generator=document.Generator(ok=True),
        command="",
        seconds=1.0,
    )
    busy = closed_loop.Busy(1.0, 100, 0, "own")
    cost = findings.Cost(0.02, 0.05, busy, processes.Foreign())
    return findings.Round(proof, cost, {}, processes.Foreign(), 2.5, overload)


def test_a_round_that_failed_is_in_no_figure_and_breaks_no_pair() -> None:
    found = findings.Findings(
        {
            "tailproof": [round_with(400.0), round_with(300.0), round_with(200.0)],
            "mosec": [round_with(100.0), None, round_with(200.0)],
        },
        faults={"mosec": "it fell over"},
    )

    assert found.median("mosec", findings.limit_of) == [150.0, 100.0, 200.0]
    assert found.ratios("tailproof", "mosec", findings.limit_of) == [2.5, 1.0, 4.0]
    table = findings.side_by_side(found)
    assert table[-1] == "mosec: failed in 1 of 3 rounds: it fell over"
    assert [line.split()[0] for line in table[1:3]] == ["tailproof", "mosec"]
    written = json.loads(json.dumps(findings.document(found, {}, {})))
    assert written["rounds"]["mosec"][1] is None
    assert written["tailproof_over"]["mosec"] == [2.5, 1.0, 4.0]


def test_goodput_of_an_overload_is_what_came_in_time() -> None:
    recording = Recording.empty(np.arange(10, dtype=np.float64))
    recording.sent[:] = recording.intended
    recording.last[:] = recording.intended + np.array([0.01] * 4 + [0.2] * 2 + [0.01] * 4)
    recording.status[:] = [200] * 6 + [429] * 3 + [LOST]

    found = findings.Overload.of(recording, 10.0, client_ok=True)

    assert found == findings.Overload(1.0, 0.4, 0.3, 0.1, pytest.approx(0.2), client_ok=True)


def test_an_overload_has_a_line_of_its_own() -> None:
    overload = findings.Overload(200.0, 80.0, 0.5, 0.1, 0.045, client_ok=False)
    found = findings.Findings({"mosec": [round_with(100.0, overload)]})

    line = findings.side_by_side(found)[-1]

    expected = "mosec 200 [200 .. 200] 80 [80 .. 80] 45 [45 .. 45] 50 [50 .. 50] 10 [10 .. 10]"
    assert " ".join(line.split()) == f"{expected} the client was late"


def test_the_picture_has_every_contender_and_its_median() -> None:
    svg = picture(
        [
            Limits("Tailproof 1.0", (4000.0, 5000.0, 4600.0), ours=True),
            Limits("A & B", (120.0, 150.0)),
            Limits("C", (), note="not measured"),
            Limits("D", (20_000.0,), at_least=True),
        ],
        "Limits",
    )

    assert svg.startswith("<svg")
    for text in ("Tailproof 1.0", "4,600", "A &amp; B", ">135<", "not measured", "≥ 20,000"):
        assert text in svg


def test_a_larger_limit_is_drawn_further_right() -> None:
    svg = picture([Limits("A", (100.0,)), Limits("B", (1000.0,))], "Limits")

    first, second = re.findall(r'class="marker " d="M([\d.]+)', svg)
    assert float(first) < float(second)
