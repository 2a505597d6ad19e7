"""What an operator sees: nodes as the SuperLink knows them, and the newest run as its folder tells it."""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bouquet.engines.control import Control
from bouquet.errors import BouquetError, DataError, RunFailed
from bouquet.reporting.run_directory import RunDirectory

# What `collect` finds of a run as single numbers.
_PLAIN = {
    "round": "Number of the last round",
    "rounds": "Rounds that the run shall have",
    "asked": "Users who were asked in the last round",
    "users": "Users who answered in the last round",
    "nodes_present": "Nodes that were there in the last round",
    "nodes_absent": "Nodes that were not there in the last round",
    "failures": "Replies that failed, over all rounds",
    "late": "Replies that came too late, over all rounds",
    "refused": "Nodes that were refused",
}


def collect(control: Control, runs: Path) -> dict[str, Any]:
    """Everything about a deployment, as plain values.

    Returns:
        `superlink` ("up" or why not), `nodes` (count by status), and of the newest run `run`, `status`, `round`,
        `users`, `asked`, `nodes_present`, `failures` (over all rounds), `late`, `refused`, `bytes` (wire, over all
        rounds), `seconds` of the last round, `validation` and `test` of the last evaluated one.
    """
    found: dict[str, Any] = {"superlink": "up", "nodes": {}}
    try:
        for node in control.nodes():
            found["nodes"][node["status"]] = found["nodes"].get(node["status"], 0) + 1
    except RunFailed as error:
        found["superlink"] = str(error).strip().splitlines()[-1]
    directory = newest_run(runs)
    if directory is None:
        return found
    rounds, summary = directory.rounds(), _summary(directory)
    found |= {"run": str(directory.path), "status": summary["status"], "round": 0}
    if "error" in summary:
        found["error"] = summary["error"]
    if rounds:
        last, looks = rounds[-1], [line.get("nodes", {}) for line in rounds]
        found |= {
            "round": last["round"],
            "rounds": int(directory.read_config().get("num-server-rounds", 0)),
            "asked": last["asked"],
            "users": last["users"],
            "nodes_present": looks[-1].get("present", 0),
            "nodes_absent": looks[-1].get("absent", 0),
            "failures": sum(len(line["failures"]) for line in rounds),
            "late": sum(look.get("late", 0) for look in looks),
            "refused": sum(len(look.get("refused", [])) for look in looks),
            "bytes": {way: sum(line["bytes"][f"wire_{way}"] for line in rounds) for way in ("down", "up")},
            "seconds": last["seconds"]["total"],
        }
        if last_failures := [failure["reason"] for line in rounds for failure in line["failures"]]:
            found["last_failure"] = last_failures[-1]
        for line in reversed(rounds):
            if "validation" in line:
                found |= {"evaluated_round": line["round"], "validation": line["validation"], "test": line["test"]}
                break
    return found


def newest_run(runs: Path) -> RunDirectory | None:
    """The run that was written to last."""
    folders = [path.parent for path in runs.glob("*/summary.json")] + [
        path.parent for path in runs.glob("summary.json")
    ]
    if not folders:
        return None
    return RunDirectory(max(folders, key=lambda folder: max(p.stat().st_mtime for p in folder.iterdir())))


def lines(found: dict[str, Any]) -> list[str]:
    """For a person."""
    nodes = ", ".join(f"{count} {status}" for status, count in sorted(found["nodes"].items())) or "none registered"
    text = [f"SuperLink  {found['superlink']}", f"Nodes      {nodes}"]
    if "run" not in found:
        return [*text, "Run        none yet: bouquet deploy run"]
    text.append(f"Run        {found['run']} ({found['status']})")
    if "error" in found:
        text.append(f"Error      {found['error']}")
    if found["round"]:
        text += [
            f"Round      {found['round']} of {found['rounds']}, {found['seconds']:.1f} s",
            f"Users      {found['users']} of {found['asked']} answered, on {found['nodes_present']} nodes "
            f"({found['nodes_absent']} absent)",
            f"Failures   {found['failures']} replies, {found['late']} late, {found['refused']} nodes refused"
            + (f"; last: {found['last_failure']}" if "last_failure" in found else ""),
            f"Bytes      {found['bytes']['down']:,} down, {found['bytes']['up']:,} up, over all rounds",
        ]
    if "validation" in found:
        part = found["validation"]["full"]
        text.append(
            f"Validation HR@10 {part['HR@10'] or 0:.3f}, NDCG@10 {part['NDCG@10'] or 0:.3f} "
            f"(round {found['evaluated_round']})"
        )
    return text


def prometheus(found: dict[str, Any]) -> str:
    """In the text format that Prometheus reads."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest  # an operator's alone

    registry = CollectorRegistry()

    def tell(name: str, what: str, values: Mapping[Any, float], *labels: str) -> None:
        gauge = Gauge(f"bouquet_{name}", what, labels, registry=registry)
        for label, value in values.items():
            (gauge.labels(*label) if labels else gauge).set(value)

    tell("superlink_up", "Whether the SuperLink answers", {(): found["superlink"] == "up"})
    tell("nodes", "Nodes by status", {(status,): count for status, count in sorted(found["nodes"].items())}, "status")
    if "run" in found:
        tell("run_completed", "Whether the newest run has completed", {(): found["status"] == "completed"})
        tell("run_failed", "Whether the newest run has failed", {(): found["status"] == "failed"})
    for name, what in _PLAIN.items():
        if name in found:
            tell(name, what, {(): found[name]})
    if "seconds" in found:
        tell("round_seconds", "Time of the last round", {(): found["seconds"]})
        tell("wire_bytes", "Bytes over all rounds", {(way,): n for way, n in found["bytes"].items()}, "direction")
    quality = {
        (part, candidates, name): value
        for part in ("validation", "test")
        for candidates, metrics in found.get(part, {}).items()
        for name, value in metrics.items()
        if value is not None
    }
    if quality:
        tell("quality", "Metrics of the last evaluated round", quality, "part", "candidates", "metric")
    return generate_latest(registry).decode()


def serve(control: Control, runs: Path, address: str) -> ThreadingHTTPServer:
    """An HTTP server whose /metrics is `prometheus`; the caller runs and ends it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                body = prometheus(collect(control, runs)).encode()
            except BouquetError as error:
                self.send_error(500, str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Every scrape in the log helps nobody."""

    host, _, port = address.rpartition(":")
    return ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)


def _summary(directory: RunDirectory) -> dict[str, Any]:
    try:
        return directory.read_summary()
    except DataError as error:
        return {"status": "unknown", "error": str(error)}
