"""Both halves of the comparison, of which the second trains on the processor too, by torch."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import gpu
from benchmarks.combinations import combinations


def test_two_ways_of_training_are_rounding_apart(capsys):
    further = json.dumps({"embedding-size": 4, "local-epochs": 1})
    gpu.main(
        ["--device", "cpu", "--method", "fedavg", "--backbone", "mf", "--rounds", "1", "--settings", further, "--json"]
    )
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["strategy"], line["plug-in"]) == ("fedavg", "none")
    assert line["ratio"] > 0
    assert 0 < line["shared arrays apart"] < 1e-3  # at 0 the same run would have been compared with itself
    assert 0 <= line["NDCG@10 apart"] < 0.01


def test_plug_ins_stand_before_one_method():
    assert combinations(["fcf", "local"], ["mf"]) == [
        ("fcf", "mf", "none"),
        ("fcf", "mf", "ace"),
        ("fcf", "mf", "plgc"),
        ("local", "mf", "none"),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "torch sees no GPU here, so there is nothing to measure.\n")
