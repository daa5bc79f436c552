"""Loss and gradients as one function, against autograd's of the objective itself."""

import copy

import numpy as np
import packed_operations
import pytest
import torch

from training.data.batch_plan import Side
from training.data.packing import pack
from training.gpu import graphs
from training.gpu.objective import PackedObjective
from training.gpu.recorded import RecordedObjective
from training.trainer.minimization import freeze_what_learns_nothing


WIDTHS = {"d_model": 48, "encoder_ffn_dim": 64, "decoder_ffn_dim": 80, "head_dim": 16, "v_head_dim": 32}


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Return a list that grows with what is recorded; PyTorch stands in for the kernels."""
    recorded = []
    packed_operations.stand_in(monkeypatch)
    monkeypatch.setattr(graphs, "record", lambda operations, pool: recorded.append(pool) or operations)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (1, len(recorded)))
    return recorded


def batches(pad, device="cpu"):
    """Return batches of two sizes, in some order."""
    generator = np.random.default_rng(1)
    found = []
    for count in (40, 40, 10, 40, 10, 10, 40, 10):
        lengths = generator.integers(4, 6, (2, count))
        sides = (Side(generator.integers(1, 20, each.sum()), each) for each in lengths)
        found.append([tensor.to(device) for tensor in pack(*sides, pad)])
    assert len({len(batch[0]) for batch in found}) == 2
    return found


def train(objective, all_batches, dtype=None):
    """Update the weights after every second batch; return all sums, and gradients that two batches have added up."""
    found, device = [], all_batches[0][0].device.type
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
    for number, batch in enumerate(all_batches):
        torch.manual_seed(number)
        with torch.autocast(device, dtype, enabled=dtype is not None):
            sums = objective(*batch)
        (sums.loss / sums.tokens).backward()
        found += sums
        if number % 2:
            found += [weight.grad for weight in objective.parameters() if weight.grad is not None]
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.mark.smoke
@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": False}, {"lm_head_bias": True}, {"dropout": 0.3}])
def test_it_trains_as_the_objective_does(random_model, on_a_cpu, settings):
    model = random_model(**(WIDTHS | settings)).double().train()
    freeze_what_learns_nothing(model)
    given = batches(model.config.pad_token_id)
    wanted = train(PackedObjective(copy.deepcopy(model), 0.2), given)
    found = train(RecordedObjective(PackedObjective(model, 0.2), pytest.fail), given)
    assert len(on_a_cpu) == 2
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_what_is_recorded_is_for_one_place_of_the_weights_and_for_training_or_evaluation(random_model, on_a_cpu):
    model = random_model(**WIDTHS, dropout=0.3).train()
    objective = RecordedObjective(PackedObjective(model, 0.2), pytest.fail)
    batch = batches(model.config.pad_token_id)[0]

    def compute():
        for _ in range(3):
            found = objective(*batch)
        return found.loss.item()

    compute()
    objective.eval()
    evaluated = compute()
    assert evaluated == compute()
    model.lm_head.weight.data = 2 * model.lm_head.weight.data
    assert compute() != evaluated
    assert len(on_a_cpu) == 3


def test_the_sums_are_not_overwritten_by_the_next_batch(random_model, on_a_cpu):
    objective = RecordedObjective(PackedObjective(random_model(**WIDTHS), 0.2), pytest.fail)
    one, other = batches(22)[:2]
    found = [objective(*batch) for batch in (one, one, other)]
    assert found[0].loss == found[1].loss != found[2].loss
    assert not found[0].nll.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_a_graph_gives_what_its_operations_give(random_model, dtype):
    model = random_model(**WIDTHS, dropout=0.3, activation_dropout=0.2).to("cuda").train()
    given = batches(model.config.pad_token_id, "cuda")
    graphed, plain = (RecordedObjective(PackedObjective(copy.deepcopy(model), 0.2), pytest.fail) for _ in range(2))
    plain.recorder.records = False
    found, wanted = train(graphed, given, dtype), train(plain, given, dtype)
    assert sum(each is not None for each in graphed.recorder.recordings.values()) == 2
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
