"""Fixtures that tests of all folders share: a seed, small models and batches, a finished run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_parser import TREES
from tiny_run import corpus, finished_run  # noqa: F401  fixtures for every folder
from transformers import PreTrainedModel

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.models.trees_vaswani import Tree
from vaswani.parsing.treebank import read_trees
from vaswani.results import Evaluation, TranslationEvaluation


def pytest_configure() -> None:
    """Share the cores between the processes of `pytest --numprocesses`."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., VaswaniConfig]:
    """Return a factory of small configurations without dropout."""

    def make(**overrides) -> VaswaniConfig:
        sizes = {"vocab_size": 23, "d_model": 16, "dropout": 0.0}
        for stack in ("encoder", "decoder"):
            sizes |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 32}
        return VaswaniConfig(**sizes | overrides)

    return make


@torch.no_grad()
def randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Give gains and biases values that show a lost or swapped one: they begin as ones and zeros."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.normal_(float(name.endswith("norm.weight")), 0.3)
    return model


@pytest.fixture(scope="session")
def random_model(tiny_config: Callable[..., VaswaniConfig]) -> Callable[..., VaswaniForConditionalGeneration]:
    """Return a factory of small models with random weights, gains and biases; <pad>'s embedding is zero."""

    def make(config: VaswaniConfig | None = None, **overrides) -> VaswaniForConditionalGeneration:
        return randomize(VaswaniForConditionalGeneration(config or tiny_config(**overrides)).eval())

    return make


@pytest.fixture
def batch() -> Callable[..., dict[str, torch.Tensor]]:
    """Return a factory of batches of four: sources padded left, right, both and not; targets padded right."""

    def make(config: VaswaniConfig, source_length: int = 7, target_length: int = 6) -> dict[str, torch.Tensor]:
        input_ids = torch.randint(1, config.vocab_size - 1, (4, source_length))
        attention_mask = torch.ones_like(input_ids)
        attention_mask[0, :3] = attention_mask[1, -2:] = attention_mask[2, :1] = attention_mask[2, -1:] = 0
        labels = torch.randint(1, config.vocab_size - 1, (4, target_length))
        for row, padding in enumerate((0, 3, 1, 2)):
            labels[row, target_length - padding :] = -100
        input_ids = input_ids.masked_fill(attention_mask == 0, config.pad_token_id)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    return make


@pytest.fixture
def trees(tmp_path: Path) -> list[Tree]:
    """Return the trees of `small_parser`."""
    (tmp_path / "trees").write_text("".join(f"{tree}\n" for tree in TREES))
    return list(read_trees(tmp_path / "trees"))


@pytest.fixture
def evaluation() -> Evaluation:
    """Return an evaluation of which no two values are equal, so that a swapped one shows."""
    return TranslationEvaluation(
        step=500,
        averaged_checkpoints=4,
        checkpoint="step 500",
        split="test",
        test_set="news.de",
        target_lang="de",
        nll=1.25,
        perplexity=3.49,
        sacrebleu=20.1,
        sacrebleu_lowercased=21.2,
        chrf=52.3,
        paper_bleu=23.4,
        paper_bleu_without_split=22.5,
        exact_match=6.6,
        sacrebleu_signature="nrefs:1|case:mixed",
        chrf_signature="chrF2",
        paper_bleu_signature="quotes:straight",
        sentences=1234,
        decoding="beam 4, alpha 0.6",
    )
