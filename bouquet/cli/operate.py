"""What an operator does with a deployment beside training on it: keys, registration, status, the end.

Nothing here needs a model or data, so nothing heavy is imported.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bouquet.cli.public_keys import named
from bouquet.config import Scalar
from bouquet.deployment.keys import certify, make_keys
from bouquet.deployment.local import SUPERLINK, LocalDeployment
from bouquet.deployment.status import collect, lines, prometheus, serve
from bouquet.deployment.tunnel import Tunnel
from bouquet.engines.control import Control
from bouquet.engines.ports import Answering
from bouquet.engines.release import secure_connection
from bouquet.errors import ConfigError


@dataclass(frozen=True)
class Target:
    """A running deployment, here or elsewhere.

    Attributes:
        control: its SuperLink as an operator sees it.
        is_alive: whether the SuperLink is there.
        runs: where results go; the ServerApp writes there.
        nodes: how many nodes a run waits for; 0: as the settings say.
        settings: of the data.
    """

    control: Control
    is_alive: Callable[[], bool]
    runs: Path
    nodes: int = 0
    settings: Mapping[str, Scalar] = field(default_factory=dict)


def target_of(folder: Path, superlink: str, keys: Path, runs: Path) -> Target:
    """The deployment in a folder of this machine, or the one behind an address.

    Raises:
        ConfigError: there is none.
    """
    if superlink:
        # They live as long as this process.
        home, tunnel = private_folder(), Tunnel(superlink, keys, "operator")
        authority = (keys / "ca.crt").absolute()
        control = Control(home, secure_connection(superlink, authority), tunnel.environment)
        return Target(control, Answering(superlink, authority, tunnel.proxy), runs.absolute())
    here = LocalDeployment(folder)
    plan = here.plan
    return Target(
        here.control, lambda: bool(here.processes(SUPERLINK)), here.folder / "runs", len(plan.nodes), plan.settings
    )


def private_folder() -> Path:
    """A new folder that nobody else reads, gone with this process.

    Its name is drawn: one that could be foreseen could be made by somebody else before.
    """
    folder = Path(tempfile.mkdtemp(prefix="bouquet-operator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def keys_command(
    folder: Path, hosts: Sequence[str], nodes: int, names: Sequence[str], public: Sequence[Path] = ()
) -> None:
    """Make certificates and keys, and certificates for the keys that nodes have made themselves."""
    made = make_keys(folder, hosts, [*names, *(f"node-{number}" for number in range(1, nodes + 1))])
    print(f"{folder}: " + (", ".join(made) if made else "everything was there already") + ".")
    for key in public:
        path = certify(folder, key)
        print(f"{path} is for the node: bouquet node --certificate {path.name}, or node.crt in its folder of keys.")


def status_command(target: Target, format_: str, listen: str) -> None:
    """Say how a deployment is doing.

    Raises:
        ConfigError: there is no such format.
        KeyboardInterrupt: the endpoint was ended.
    """
    if listen:
        with serve(target.control, target.runs, listen) as server:
            print(f"http://{listen}/metrics", flush=True)
            server.serve_forever()
    if format_ not in ("text", "json", "prometheus"):
        raise ConfigError(f"There is no format '{format_}'. Known: text, json, prometheus.")
    found = collect(target.control, target.runs)
    if format_ == "json":
        print(json.dumps(found, indent=2))
    elif format_ == "prometheus":
        print(prometheus(found), end="")
    else:
        print("\n".join(lines(found)))


def register_command(target: Target, public: Sequence[Path], keys: Path) -> None:
    """Register the given public keys, or every one in the operator's folder.

    Raises:
        ConfigError: there is no key.
        RunFailed: the SuperLink refused one.
    """
    public = public or sorted(keys.glob("*.pub"))
    if not public:
        raise ConfigError(f"There is no NAME.pub in {keys}. Make keys with: bouquet deploy keys")
    for key in public:
        node = target.control.register(key.absolute())
        print(f"{named(key)}: " + (f"let in, as node {node}." if node else "was let in before."), flush=True)


def down_command(folder: Path, purge: bool) -> None:
    """End every process; with `purge` remove the folder too."""
    deployment = LocalDeployment(folder)
    count = deployment.down()
    if purge and deployment.exists():
        shutil.rmtree(deployment.folder)
    print(f"{count} processes ended." + (f" {deployment.folder} is gone." if purge else ""))
