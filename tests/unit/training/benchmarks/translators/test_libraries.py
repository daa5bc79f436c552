import pytest
import torch

from training.benchmarks.translators import libraries
from training.benchmarks.translators.models import marian_like
from training.benchmarks.translators.work import Work


@pytest.mark.skipif(not libraries.has_ctranslate2(), reason="CTranslate2 is not installed")
def test_ctranslate2_uses_the_cores_both_ways_and_its_map_is_our_shortlist(random_model, tmp_path):
    ours = random_model(vocab_size=30, pad_token_id=29, decoder_start_token_id=29)
    torch.manual_seed(0)
    work = Work.of(ours.config, batches=2, sentences=3, new_tokens=4)
    shortlist = [0, 5, 7, 9]
    contenders = libraries.ctranslate2_contenders(marian_like(ours), work, 2, "cpu", shortlist, 2, tmp_path)
    settings = {(each.name, each.precision, each.setting, each.beams, each.is_cut) for each in contenders}
    plain = {
        ("CTranslate2", kind, setting, beams, False)
        for kind, setting in (("fp32", "2 workers"), ("int8", "2 threads"), ("int8", "2 workers"))
        for beams in (1, 2)
    }
    assert settings == plain | {("CTranslate2, vmap", "int8", "2 workers", beams, True) for beams in (1, 2)}
    assert len(contenders) == len(settings)
    written = []

    def check(translations, sentences):
        written.append({word for words in translations for word in words})
        assert (len(translations), sentences) == (6, 6)

    object.__setattr__(work, "check", check)
    for contender in contenders:
        contender.translate()
    allowed = {"</s>", "w1", "w5", "w7", "w9"}  # "w1" stands for unknown words
    for contender, words in zip(contenders, written, strict=True):
        assert (words <= allowed) == contender.is_cut
    threads = {each.setting: each.translate.args[0] for each in contenders}
    assert threads["2 workers"].num_translators == 2
    assert threads["2 threads"].num_translators == 1
