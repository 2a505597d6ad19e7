"""Replies that were tampered with, by the thousand: none ends the run, none leaves a number that is not finite, and
none moves the model further than the bound allows."""

import numpy as np
import pytest
from flwr.app import Message

import strategies.federation.messages
from bouquet.engines.local import LocalGrid
from bouquet.errors import WireError
from bouquet.methods import METHODS
from bouquet.testing import Recording
from bouquet.wire import EVALUATE, ROSTER, TRAIN
from strategies.federation.bounds import LARGEST
from strategies.federation.messages import Messages
from strategies.federation.replies import receive
from strategies.federation.roll_call import agreeing, read_answer
from strategies.federation.roster import combine
from tests.runs.helpers import WITH_PLUG_INS, last_checkpoint, method, run_here, small_settings
from tests.runs.mutations import mutated

ALL = [*sorted(METHODS), *WITH_PLUG_INS]
# Every round has a few reports and left-out users of its own; the second goes on from what the first left.
ROUNDS = 2
BOUND = 25.0


def sizes_of(received, replies):
    """[parts] by array: the norm of every part per unit of weight."""
    found = {}
    for reply in replies:
        for name, packed in reply.sums.items():
            norm = np.linalg.norm(packed.values.astype(np.float64)) * reply.factor / max(reply.weight, 1e-300)
            found.setdefault(name, []).append(norm)
        for name, packed in reply.rows.items():
            indptr = packed.indptr if packed.indptr is not None else np.arange(len(reply.users) + 1)
            squares = (packed.values.reshape(len(packed.values), -1).astype(np.float64) ** 2).sum(axis=1)
            found.setdefault(name, []).extend(np.sqrt(np.add.reduceat(np.append(squares, 0), indptr)[:-1]))
    return {name: np.array(norms) for name, norms in found.items()}


class Fuzz:
    """Tampers with the replies of a real run, decodes them as the server does, and counts what came of it."""

    def __init__(self, monkeypatch, cases, seed):
        self.cases, self.seed = cases, seed
        self.tried = self.refused = self.unchanged = 0
        self.waiting = []
        real_bounded = Messages._bounded

        def fuzzed_receive(sent, messages, keys, decode):
            messages = list(messages)
            kind = sent[0].message.metadata.message_type
            for case in range(self.cases):
                source = np.random.default_rng([self.seed, sum(map(ord, kind)), self.tried, case])
                received = receive(sent, self._tampered(sent, messages, source), keys, decode)
                self.tried += 1
                self.refused += bool(received.failures)
                if kind == TRAIN:
                    self.waiting.append(received)
                else:
                    for reply in received.replies:
                        assert ((reply.metrics >= 0) & (reply.metrics <= 1) | np.isnan(reply.metrics)).all()
                        assert all(np.isfinite(values).all() for values in reply.reports.values())
            return receive(sent, messages, keys, decode)

        def fuzzed_bounded(messages, received, specs):
            honest, replies = real_bounded(messages, received, specs)
            expected = sizes_of(honest, replies)
            for tampered in self.waiting:
                held, left = real_bounded(messages, tampered, specs)
                assert [len(r.users) for r in left] == [len(users) for users in held.users]
                for reply in left:
                    assert all(np.isfinite(values).all() for values in reply.reports.values())
                for name, norms in sizes_of(held, left).items():
                    assert np.isfinite(norms).all()
                    assert (norms <= LARGEST).all()
                    # Where no honest user changes anything there is nothing to measure with.
                    if (most := expected[name].max()) > 0:
                        assert (norms <= 1.001 * BOUND * most).all(), name
                self.unchanged += not held.failures and messages._method.line["bounded"]["users"] == 0
            self.waiting.clear()
            return real_bounded(messages, received, specs)

        monkeypatch.setattr(strategies.federation.messages, "receive", fuzzed_receive)
        monkeypatch.setattr(Messages, "_bounded", fuzzed_bounded)

    def _tampered(self, sent, messages, source):
        place = int(source.integers(len(messages)))
        asked = {item.message.metadata.message_id: item.message for item in sent}
        message = messages[place]
        bad = Message(mutated(message.content, source), reply_to=asked[message.metadata.reply_to_message_id])
        return [*messages[:place], bad, *messages[place + 1 :]]


def fuzz(tmp_path, monkeypatch, strategy, cases, seed):
    settings = small_settings(
        tmp_path,
        **method(strategy),
        num_server_rounds=ROUNDS,
        evaluate_every=1,
        fraction_train=0.9,
        update_bound=BOUND,
    )
    fuzzed = Fuzz(monkeypatch, cases, seed)
    run_here(tmp_path / "run", settings, 8)
    assert fuzzed.tried == 2 * ROUNDS * cases
    assert fuzzed.refused > fuzzed.tried / 3, "most of what is changed should be noticed"


@pytest.mark.parametrize("strategy", ALL)
def test_tampered_replies(tmp_path, monkeypatch, strategy):
    fuzz(tmp_path, monkeypatch, strategy, 8, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("strategy", ALL)
def test_thousands_of_tampered_replies(tmp_path, monkeypatch, strategy, seed):
    fuzz(tmp_path, monkeypatch, strategy, 80, seed)


def rosters(tmp_path, strategy, cases, seed):
    log = []
    run_here(tmp_path / "run", small_settings(tmp_path, **method(strategy), num_server_rounds=1), 4, Recording, log=log)
    messages = [reply for message, reply in log if message.metadata.message_type == ROSTER]
    answers = {node: read_answer(message, False) for node, message in enumerate(messages)}
    for case in range(cases):
        source = np.random.default_rng([seed, case])
        node = int(source.integers(len(messages)))
        bad = Message(mutated(messages[node].content, source), reply_to=log[node][0])
        try:
            answer = read_answer(bad, False)
        except WireError:
            continue
        good, refused = agreeing({node: answer} | {other: a for other, a in answers.items() if other != node}, {})
        assert good.keys() | refused.keys() == answers.keys()
        # Who lies first may keep a user from the one whose it is, and nobody else from the run.
        assert len(good) >= 2
        roster = combine(good)
        assert roster.specs == answers[0].specs
        assert roster.sizes.max() <= roster.num_items == answers[0].num_items


def test_tampered_rosters(tmp_path):
    rosters(tmp_path, "fedavg", 150, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "hetefedrec"])
def test_thousands_of_tampered_rosters(tmp_path, strategy):
    rosters(tmp_path, strategy, 1000, seed=1)


class Tampering(LocalGrid):
    """A node that tampers with everything that it says once the roster is there."""

    def __init__(self, *arguments, seed):
        super().__init__(*arguments)
        self.seed, self.said = seed, 0

    def _answer(self, message):
        reply = super()._answer(message)
        if message.metadata.dst_node_id != 1001 or message.metadata.message_type not in (TRAIN, EVALUATE):
            return reply
        if reply.has_error():
            return reply
        self.said += 1
        return Message(mutated(reply.content, np.random.default_rng([self.seed, self.said])), reply_to=message)


def whole_run(tmp_path, strategy, seed):
    settings = small_settings(tmp_path, **method(strategy), num_server_rounds=5, evaluate_every=1, checkpoint_every=5)
    directory = run_here(tmp_path / "run", settings, 8, Tampering, seed=seed)
    assert directory.read_summary()["status"] == "completed"
    checkpoint = last_checkpoint(directory)
    for values in (*checkpoint.shared.values(), *checkpoint.extra.values()):
        assert values.dtype.kind != "f" or np.isfinite(values).all()


@pytest.mark.parametrize("strategy", ["fedavg", "fedca", "cf-fedsr"])
def test_whole_runs_with_a_node_that_tampers(tmp_path, strategy):
    whole_run(tmp_path, strategy, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("strategy", ALL)
def test_many_whole_runs_with_a_node_that_tampers(tmp_path, strategy, seed):
    whole_run(tmp_path, strategy, seed)
