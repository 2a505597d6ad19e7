"""What an operator is told: for people and for Prometheus, from the folder of a real run."""

import re
from contextlib import contextmanager
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from bouquet.deployment.status import collect, lines, newest_run, prometheus, serve
from tests.deployment.fleet import Fleet
from tests.runs.helpers import run_here, small_settings


class Superlink:
    """Two nodes, one of them away."""

    def nodes(self):
        return [{"status": "online"}, {"status": "offline"}]


def run(tmp_path):
    """Six rounds; node 2 is silent from round 3 on."""
    plan = {3: lambda fleet: fleet.silent.add(2)}
    settings = small_settings(tmp_path, round_timeout=0.3)
    return run_here(tmp_path / "runs" / "one", settings, 3, Fleet, plan=plan)


def test_the_status_tells_round_nodes_users_failures_bytes_and_quality(tmp_path):
    directory = run(tmp_path)
    found = collect(Superlink(), tmp_path / "runs")
    last = directory.rounds()[-1]
    assert (found["superlink"], found["nodes"]) == ("up", {"online": 1, "offline": 1})
    assert (found["round"], found["rounds"], found["status"]) == (6, 6, "completed")
    assert (found["users"], found["nodes_present"], found["nodes_absent"]) == (27, 2, 1)
    assert found["failures"] == 1
    assert found["last_failure"] == "no reply came in time"
    assert found["bytes"]["down"] == sum(line["bytes"]["wire_down"] for line in directory.rounds())
    assert found["validation"] == last["validation"]
    text = "\n".join(lines(found))
    assert "Round      6 of 6" in text
    assert "27 of 27 answered, on 2 nodes (1 absent)" in text


def test_the_metrics_are_in_the_format_that_prometheus_reads(tmp_path):
    run(tmp_path)
    text = prometheus(collect(Superlink(), tmp_path / "runs"))
    value = re.compile(r'bouquet_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')
    kinds, seen = set(), []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[2] not in kinds, "a type is told once, before its values"
            kinds.add(line.split()[2])
        elif not line.startswith("# HELP "):
            assert value.fullmatch(line), line
            assert re.match(r"[a-z_]+", line)[0] in kinds
            seen.append(line)
    assert 'bouquet_nodes{status="offline"} 1.0' in seen
    assert "bouquet_round 6.0" in seen
    assert len(seen) == len(set(seen))


@contextmanager
def served(control, runs):
    """The endpoint on a free port; gives its address."""
    with serve(control, runs, "127.0.0.1:0") as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_the_endpoint_serves_what_is_known_at_that_moment(tmp_path):
    with served(Superlink(), tmp_path / "runs") as address:
        before = urlopen(f"{address}/metrics").read().decode()
        run(tmp_path)
        with urlopen(f"{address}/metrics") as reply:
            after = reply.read().decode()
            assert reply.headers["Content-Type"] == "text/plain; version=0.0.4"
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/")
    assert "bouquet_round" not in before
    assert "bouquet_round 6.0\n" in after
    assert after == prometheus(collect(Superlink(), tmp_path / "runs"))


def test_without_a_run_there_is_only_the_superlink(tmp_path):
    found = collect(Superlink(), tmp_path)
    assert newest_run(tmp_path) is None
    assert "Run        none yet" in lines(found)[-1]
    assert "bouquet_round" not in prometheus(found)
