import pytest
import torch

from training.benchmarks.translators import libraries
from training.benchmarks.translators.work import Setup, Work
from vaswani.interop.marian import to_marian


def setup_of(config, cores):
    torch.manual_seed(0)
    work = Work.of(config, batches=2, sentences=3, new_tokens=4)
    return Setup(config, work, 2, "cpu", cores, [0, 5, 7, 9])


@pytest.mark.skipif(not libraries.has_ctranslate2(), reason="CTranslate2 is not installed")
def test_ctranslate2_uses_the_cores_both_ways_and_its_map_is_our_shortlist(random_model, tmp_path):
    ours = random_model(vocab_size=30, pad_token_id=29, decoder_start_token_id=29)
    setup = setup_of(ours.config, cores=2)
    libraries.convert(to_marian(ours), setup.shortlist, tmp_path)
    contenders = [
        contender
        for precision, setting in (("fp32", "2 workers"), ("int8", "2 threads"), ("int8", "2 workers"))
        for contender in libraries.ctranslate2(precision, setting, setup, tmp_path)
    ]
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

    object.__setattr__(setup.work, "check", check)
    for contender in contenders:
        contender.translate()
    allowed = {"</s>", "w1", "w5", "w7", "w9"}  # "w1" stands for unknown words
    for contender, words in zip(contenders, written, strict=True):
        assert (words <= allowed) == contender.is_cut
    threads = {each.setting: each.translate.args[0] for each in contenders}
    assert threads["2 workers"].num_translators == 2
    assert threads["2 threads"].num_translators == 1


@pytest.mark.skipif(not libraries.has_ctranslate2(), reason="CTranslate2 is not installed")
def test_with_one_core_its_map_is_measured_on_one_thread(random_model, tmp_path):
    ours = random_model(vocab_size=30, pad_token_id=29, decoder_start_token_id=29)
    setup = setup_of(ours.config, cores=1)
    libraries.convert(to_marian(ours), setup.shortlist, tmp_path)
    contenders = libraries.ctranslate2("int8", "1 thread", setup, tmp_path)
    assert [(each.setting, each.is_cut) for each in contenders] == [("1 thread", False), ("1 thread", True)] * 2
