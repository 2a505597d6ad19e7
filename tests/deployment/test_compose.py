"""The Compose file and the image: who gets which key, what is published, and that every package is pinned."""

import re
import shlex
import tomllib
from itertools import pairwise

import pytest
from packaging.requirements import Requirement

from bouquet.masking.identity import Members, Registered
from bouquet.masking.key_messages import KeysRequest
from bouquet.masking.participant import Participant
from tests.conftest import REPOSITORY
from tests.runs.helpers import bouquet

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Flower")
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
MERGED = ("x-bouquet", "x-device", "x-once", "x-node", "x-shard-node")


def volumes_of(service):
    return {entry.split(":")[0]: entry.split(":")[1:] for entry in SERVICES[service].get("volumes", [])}


def test_every_service_is_one_of_two_images_without_rights():
    for name, service in SERVICES.items():
        image, arguments = service["image"], service["build"]["args"]
        assert (image == SERVICES["device-1"]["image"]) == name.startswith("device-"), name
        assert name.startswith("device-") or image == SERVICES["superlink"]["image"], name
        assert ("REQUIREMENTS=requirements-device.txt" in arguments) == name.startswith("device-"), name
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service, name
    dockerfile = (REPOSITORY / "deployment" / "Dockerfile").read_text()
    assert dockerfile.rindex("USER bouquet") > dockerfile.rindex("FROM ")


def test_no_mapping_merges_several_others():
    """Of two merged mappings with the same key YAML's merge takes the first, PyYAML 6.0.4 the last."""
    merged = re.findall(r"<<: *(.*)", (REPOSITORY / "docker-compose.yml").read_text())
    assert [mapping for mapping in merged if not re.fullmatch(r"\*[a-z-]+", mapping)] == []


def test_nobody_but_its_owner_mounts_a_private_key():
    for name in SERVICES:
        keys = {volume for volume in volumes_of(name) if volume.startswith("keys-")}
        if name == "keys":
            assert keys == {volume for volume in COMPOSE["volumes"] if volume.startswith("keys-")}
            continue
        owner = {"register": "operator", "superlink": "server"}.get(name, name)
        assert keys == (set() if name == "divide" else {f"keys-{owner}"}), name
        assert all(volumes_of(name)[volume][-1] == "ro" for volume in keys), name


def test_every_node_gets_a_certificate_for_secure_sums_and_the_server_knows_its_authority(tmp_path):
    """What the keys service makes, looked at as each container sees it: the volumes that it mounts, where it does."""
    command = SERVICES["keys"]["command"].replace("--out /keys", f"--out {tmp_path}")
    done = bouquet(*shlex.split(command.replace("${BOUQUET_HOST:-localhost}", "localhost")))
    assert done.returncode == 0, done.stderr
    places = {volume: tmp_path / place.removeprefix("/keys/") for volume, (place, *_) in volumes_of("keys").items()}
    # Of the ServerApp, which the executor runs: `secure-sums-authority`.
    assert volumes_of("executor")["keys-executor"][0] == "/keys/executor"
    members = Members((places["keys-executor"] / "ca.crt").read_bytes())
    nodes = [name for name in SERVICES if name.startswith(("node-", "device-"))]
    assert len(nodes) == 5
    for name in nodes:
        assert volumes_of(name)[f"keys-{name}"][0] == "/keys/node", name
        assert " --keys /keys/node " in SERVICES[name]["command"], name
        identity = Registered.at(places[f"keys-{name}"])
        keys = Participant.begin(KeysRequest("series", 1), identity)[1]
        members.refuse_stranger(keys, "series", 1)


def test_only_the_port_for_nodes_is_published_and_the_control_network_is_internal():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"superlink": ["${BOUQUET_FLEET_PORT:-9092}:9092"]}
    assert COMPOSE["networks"]["control"]["internal"]
    for name, service in SERVICES.items():
        if name.startswith(("node-", "device-")):
            assert service["networks"] == ["fleet"], name
            assert service["mem_limit"], name


def test_every_node_has_state_of_its_own():
    states = [
        volume
        for name in SERVICES
        if name.startswith(("node-", "device-"))
        for volume in volumes_of(name)
        if volume.endswith("-state")
    ]
    assert len(states) == len(set(states)) == 5
    assert set(states) <= set(COMPOSE["volumes"])


def test_a_node_sees_its_own_users_alone():
    """The whole data set is mounted where it is divided, without a network, and where catalogues are published."""
    whole = {name for name in SERVICES if "${BOUQUET_DATA" in str(SERVICES[name].get("volumes"))}
    assert whole == {"divide", "executor"}
    assert SERVICES["divide"]["network_mode"] == "none"
    for number in (1, 2, 3):
        assert volumes_of(f"node-{number}")[f"node-{number}-data"] == ["/data", "ro"]
        assert f"node-{number}-data" in COMPOSE["volumes"]
        assert volumes_of("divide")[f"node-{number}-data"] == [f"/shards/{number}"]


def test_nothing_of_a_deployment_is_ever_insecure():
    """The simulation alone, whose messages stay on the machine, goes without TLS."""
    folders = ("bouquet", "client_app", "server_app", "strategies", "deployment")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", "")]
    assert len(files) > 50
    found = {path.name for path in files if path.is_file() and "--insecure" in path.read_text()}
    assert found == {"flower.py"}
    assert "insecure" not in (REPOSITORY / "docker-compose.yml").read_text()


def test_every_package_of_the_image_is_pinned_by_hash_and_fits_the_project():
    text = (REPOSITORY / "deployment" / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line[0]) for line in lines)
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", part) for line in lines for part in line[1:])
    assert all(len(line) > 1 for line in lines)
    versions = dict(line[0].split("==") for line in lines)
    dockerfile = (REPOSITORY / "deployment" / "Dockerfile").read_text()
    assert "--no-deps --require-hashes -r requirements.txt" in dockerfile
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # The simulation, plots and the reference solver: a container does without, and says so when asked.
    in_image = [line for name in ("torch", "numba", "data", "clustering") for line in extras[name]]
    for needed in [*project["dependencies"], *in_image]:
        requirement = Requirement(needed)
        assert requirement.specifier.contains(versions[requirement.name]), needed


def test_devices_have_the_same_packages_but_for_those_of_extras():
    full, small = (
        {line for line in (REPOSITORY / "deployment" / name).read_text().splitlines() if not line.startswith("#")}
        for name in ("requirements.txt", "requirements-device.txt")
    )
    assert small < full
    there = {line.split("==")[0] for line in small if "==" in line}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {Requirement(line).name for line in project["dependencies"]} <= there
    heavy = {
        Requirement(line).name
        for extra in ("torch", "numba", "data")
        for line in project["optional-dependencies"][extra]
    }
    assert there & heavy == {"charset-normalizer"}, "small, and what Flower asks for asks for it"


def networks_of(service):
    """The networks of a service, by its name; `network_mode: none` is none."""
    given = SERVICES[service].get("networks", [] if "network_mode" in SERVICES[service] else ["default"])
    return set(given)


def test_nodes_reach_one_port_of_the_superlink_and_no_operators_keys():
    """Both networks meet in the SuperLink alone; there the gate stands on one address, and Flower's port on none."""
    both = {name for name in SERVICES if networks_of(name) == {"fleet", "control"}}
    assert both == {"superlink"}
    assert {name for name in SERVICES if networks_of(name) == {"control"}} == {"executor", "register", "operator"}
    superlink = SERVICES["superlink"]
    # The name stands for the address on `control`, because no other network knows it.
    assert superlink["networks"] == {"fleet": {}, "control": {"aliases": ["control"]}}
    words = superlink["command"].split()
    given = dict(pairwise(words))
    assert (given["--host"], given["--port"], given["--fleet"]) == ("control", "8000", "0.0.0.0:9092")
    assert given["--health"].startswith("127.0.0.1:")
    for name in ("executor", "register"):
        assert "--superlink control:8000" in SERVICES[name]["command"]
    assert SERVICES["operator"]["environment"]["BOUQUET_SUPERLINK"] == "control:8000"
    assert "--host control" in SERVICES["keys"]["command"], "its certificate has the name"
    for name in SERVICES:
        if name.startswith(("node-", "device-")):
            assert not set(volumes_of(name)) & {"keys-operator", "keys-executor", "keys-server", "keys-authority"}


def test_every_container_has_limits():
    for name, service in SERVICES.items():
        assert service["mem_limit"], name
        assert service["pids_limit"] == 512, name


def test_the_compose_file_is_one_for_both_versions():
    """No version line, which 2.x warns of and 1.29 does without, and no key that only 2.x knows."""
    assert set(COMPOSE) == {*MERGED, "services", "networks", "volumes"}
    known = {
        "image", "build", "restart", "init", "read_only", "tmpfs", "cap_drop", "security_opt", "mem_limit",
        "pids_limit", "cpus", "networks", "network_mode", "depends_on", "healthcheck", "profiles", "command",
        "entrypoint", "volumes", "ports", "environment",
    }  # fmt: skip
    for name, service in SERVICES.items():
        assert set(service) <= known, name
