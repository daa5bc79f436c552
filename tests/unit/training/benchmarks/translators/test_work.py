import pytest
import torch

from training.benchmarks.translators.work import Work, gigaflops_per_token


def test_sentences_are_sorted_and_cut_into_batches_of_as_many(tiny_config):
    torch.manual_seed(0)
    config = tiny_config()
    work = Work.of(config, batches=2, sentences=5, new_tokens=3)
    lengths = [mask.sum(1).tolist() for _, mask in work.batches]
    assert [len(part) for part in lengths] == [5, 5]
    assert lengths[0] + lengths[1] == sorted(lengths[0] + lengths[1], reverse=True)
    assert all(10 <= length <= 40 for part in lengths for length in part)
    assert (work.tokens, work.source_tokens) == (30, sum(map(sum, lengths)))
    for ids, mask in work.batches:
        assert ((ids == config.pad_token_id) == (mask == 0)).all()


def test_a_translation_that_is_too_short_is_no_measurement():
    work = Work([], new_tokens=3)
    work.check(torch.zeros(2, 3), 2)
    for wrong in (torch.zeros(1, 3), torch.zeros(2, 2), [[1, 2, 3], [1, 2]]):
        with pytest.raises(AssertionError):
            work.check(wrong, 2)


def test_what_reads_the_source_is_counted_for_its_tokens_and_all_else_for_every_hypothesis(random_model):
    model = random_model(encoder_layers=1, decoder_layers=1)
    d, ffn, size = model.config.d_model, model.config.decoder_ffn_dim, model.config.vocab_size
    work = Work([(torch.zeros(2, 6), torch.ones(2, 6))], new_tokens=3)  # 2 tokens of the source for one of the target
    of_source = 4 * d * d + 2 * d * model.config.encoder_ffn_dim + 2 * d * d
    of_target = 6 * d * d + 2 * d * ffn + d * size
    assert gigaflops_per_token(model, work, beams=4) == pytest.approx(2e-9 * (2 * of_source + 4 * of_target))
