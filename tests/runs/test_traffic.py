"""Bytes: what is counted is what is in the messages, of training and of evaluation, down and up, apart and in sum."""

import pytest

from bouquet.methods import METHODS
from bouquet.records import message_bytes
from bouquet.testing import Recording
from bouquet.wire import EVALUATE, TRAIN
from tests.runs.helpers import WITH_PLUG_INS, method, run_here, small_settings


def values(content, *records):
    """Bytes of the values of some records' arrays, of every array once."""
    found = [content.array_records[record] for record in records if record in content.array_records]
    return sum(array.numpy().nbytes for record in found for array in record.values())


@pytest.mark.parametrize("strategy", [*sorted(METHODS), *WITH_PLUG_INS])
def test_a_user_costs_what_its_own_messages_hold(tmp_path, strategy):
    """40 nodes of one user: means over users of what each node's messages carry, and all bytes of all messages."""
    log = []
    settings = small_settings(
        tmp_path, **method(strategy), num_server_rounds=2, evaluate_every=1, fraction_train=0.8, **NOISELESS
    )
    directory = run_here(tmp_path / "run", settings, 40, Recording, log=log)
    for line in directory.rounds():
        for kind, size, asked in ((TRAIN, line["bytes"], 32), (EVALUATE, line["bytes"]["evaluation"], 40)):
            mine = [(m.content, r.content) for m, r in log if where(m) == (kind, line["round"])]
            assert len(mine) == asked
            down = sum(values(sent, "shared", "personal") for sent, _ in mine)
            assert size["down_per_user"] == pytest.approx(down / asked)
            assert size["wire_down"] == sum(message_bytes(sent) for sent, _ in mine)
            assert size["wire_up"] == sum(message_bytes(came) for _, came in mine)
            up = sum(values(came, "update", "reports") for _, came in mine)
            up += sum(came["users"]["metrics"].numpy().nbytes for _, came in mine if kind == EVALUATE)
            if kind == TRAIN:  # row pointers and the time that a group took are the node's, not the user's
                up -= sum(array.numpy().nbytes for _, c in mine for n, array in c["update"].items() if "indptr" in n)
                up -= 4 * asked * (strategy == "hetefedrec")
            assert size["up_per_user"] == pytest.approx(up / asked)


NOISELESS = {"update_noise": 0.0, "decoy_rows": 0}


def where(message):
    return message.metadata.message_type, int(message.metadata.group_id or 0)


def test_totals_are_sums_over_rounds_up_to_the_best(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, num_server_rounds=6, evaluate_every=2), 3)
    summary, total = directory.read_summary(), {"training": 0.0, "evaluation": 0.0}
    for line in directory.rounds():
        if line["round"] > summary["best_round"]:
            break
        size = line["bytes"]
        total["training"] += 40 * (size["down_per_user"] + size["up_per_user"])
        if "evaluation" in size:
            total["evaluation"] += 40 * (size["evaluation"]["down_per_user"] + size["evaluation"]["up_per_user"])
    for part, expected in total.items():
        assert summary["bytes"][f"{part}_to_best_round"] == pytest.approx(expected)
    assert summary["bytes"]["to_best_round"] == pytest.approx(sum(total.values()))
    assert summary["bytes"]["evaluation"]["up_per_user_evaluation"] == 4 * 2 * 2 * 10


def test_interests_travel_only_where_rounds_choose_by_them(tmp_path):
    """With all users in every round there is nothing to choose; with a share of them everybody's are asked for."""
    for fraction, told in ((1.0, set()), (0.5, {"representation"})):
        log = []
        settings = small_settings(tmp_path, strategy="cf-fedsr", fraction_train=fraction, num_server_rounds=2)
        run_here(tmp_path / str(fraction), settings, 2, Recording, log=log)
        for message, reply in log:
            reports = set(reply.content.array_records.get("reports", {}))
            expected = {TRAIN: told | {"performance"}, EVALUATE: told}.get(message.metadata.message_type, set())
            assert reports == expected
