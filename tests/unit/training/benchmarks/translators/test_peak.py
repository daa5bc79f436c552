import pytest
import torch

from training.benchmarks.translators import peak


@pytest.mark.parametrize(("is_fast", "precision"), [(True, "bf16"), (False, "fp32")])
def test_peaks_are_those_of_one_core_and_of_all(is_fast, precision, monkeypatch):
    used = []
    monkeypatch.setattr(peak, "multiplies_bfloat16", lambda: is_fast)
    monkeypatch.setattr(peak, "SIZE", 64)
    monkeypatch.setattr(peak, "fastest", lambda product: used.append((product(), torch.get_num_threads())) or 1e-6)
    monkeypatch.setattr(peak, "int8_product", lambda: None)
    before = torch.get_num_threads()
    assert peak.peaks(2) == {(precision, cores): 2 * 64**3 / 1e-6 / 1e9 for cores in (1, 2)}
    assert {product.dtype for product, _ in used} == {torch.bfloat16 if is_fast else torch.float32}
    assert [threads for _, threads in used] == [1, 2]
    assert torch.get_num_threads() == before
    assert set(peak.peaks(1)) == {(precision, 1)}


def test_a_product_in_int8_is_one(monkeypatch):
    monkeypatch.setattr(peak, "SIZE", 64)
    product = peak.int8_product()
    assert product is None or product().shape == (64, 64)


def test_the_fastest_call_counts(monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 25.0])
    monkeypatch.setattr(peak.time, "perf_counter", lambda: next(clock))
    assert peak.fastest(lambda: None, times=3) == 1.0
