"""A server that reads histories out of updates finds as much as guessing does under masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bouquet.experiments.probes.reading import TABLE, chance, guess_by_signs, guess_by_sum, precision, watch
from bouquet.testing.runs import Recording, run_here, small_settings, write_data
from bouquet.wire import TRAIN

USERS, ROUNDS = 14, 2


def test_what_a_node_sends_tells_nothing_of_its_user(tmp_path):
    """One user a node, the hardest case: .9 of the items are found without masks, chance with them."""
    write_data(tmp_path / "data.csv", USERS)
    settings = small_settings(tmp_path, num_server_rounds=ROUNDS, evaluate_every=ROUNDS)
    plain = watch(settings, tmp_path / "state", ROUNDS)
    blind = chance(plain)
    assert max(precision(plain, guess_by_signs(plain)), precision(plain, guess_by_sum(plain))) > 0.9 > 3 * blind

    log = []
    run_here(tmp_path / "run", {**settings, "secure-sums": True}, USERS, Recording, log=log)
    sent = {int(user): [] for user in plain.host.identities}
    table = plain.host.shared_specs[TABLE].shape
    for message, reply in log:
        if message.metadata.message_type == TRAIN:
            numbers = reply.content["secure"]["values"].numpy().view(np.int32).astype(np.float64)
            user = int(message.content["users"]["user"].numpy()[0])
            sent[user].append((np.arange(table[0]), numbers[: table[0] * table[1]].reshape(table)))
    assert {len(rounds) for rounds in sent.values()} == {ROUNDS}
    masked = replace(plain, sent=[sent[int(user)] for user in plain.host.identities])
    # The standard deviation of a share of so many guesses is .03.
    for guesses in (guess_by_signs(masked), guess_by_signs(masked, popular=True), guess_by_sum(masked)):
        assert precision(masked, guesses) < blind + 0.1
