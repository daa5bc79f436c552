from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vaswani import VaswaniForConditionalGeneration
from vaswani.interop.onnx import save_for_onnx
from vaswani.tokenization import train_tokenizer


@pytest.fixture(scope="session")
def exported(
    random_model: Callable[..., VaswaniForConditionalGeneration], tmp_path_factory: pytest.TempPathFactory
) -> tuple[VaswaniForConditionalGeneration, Path]:
    """Return a small Transformer, and a folder with its graphs, which take seconds to make and are for reading."""
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    torch.manual_seed(1)
    ours, folder = random_model(vocab_size=265), tmp_path_factory.mktemp("exported")
    save_for_onnx(ours, train_tokenizer(["one two three four five six"] * 3, 265), folder)
    return ours, folder
