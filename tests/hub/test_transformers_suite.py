"""transformers' own tests of a model, run on ours.

They come with the source distribution of the installed transformers; ``make hf-suite`` unpacks its tests folder into
``.cache/transformers-<version>/``. Its tests of `generate` are not among them, because source distributions hold only
the files that lie directly in that folder.

Tests that need a GPU, several of them, or a package that is not installed skip by themselves and say so; nothing here
needs the Hub. One skip, `test_sdpa_can_dispatch_composite_models`, says "VaswaniModel does not support SDPA", which is
wrong: the test is for models composed of several, ours is not, and transformers gives this reason for either. The same
test for models like ours, `test_sdpa_can_dispatch_non_composite_models`, runs.
"""

import importlib
import re
import sys
import types
import unittest
from collections.abc import Callable
from typing import ClassVar
from unittest.mock import patch

import pytest
import torch
import transformers
from transformers_suite import folder_of

from vaswani import (
    ConvolutionalConfig,
    ConvolutionalForConditionalGeneration,
    ConvolutionalModel,
    RecurrentConfig,
    RecurrentForConditionalGeneration,
    RecurrentModel,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniModel,
)
from vaswani.models.configuration_vaswani import TranslatorConfig


pytestmark = pytest.mark.smoke
SUITE = folder_of(transformers.__version__)
PACKAGE = "transformers_suite"
COMMON_CONFIG = {"output_attentions": True, "output_hidden_states": True, "architectures": ["Any"], "dtype": "float16"}

if not (SUITE / "test_modeling_common.py").exists():
    pytest.skip(f"no {SUITE}: `make hf-suite` fetches transformers' own tests", allow_module_level=True)


def put_module(name: str, **contents: object) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)


# The files become a package, so that their relative imports work. Three modules that they import lie in subfolders and
# are missing; the suite's marks are not registered, which --strict-markers would forbid if it had its config.
put_module(PACKAGE, __path__=[str(SUITE)])
put_module(f"{PACKAGE}.exporters.test_export", ExportTesterMixin=object)
put_module(f"{PACKAGE}.generation.test_utils", GenerationTesterMixin=object)
put_module(f"{PACKAGE}.utils.test_configuration_utils", config_common_kwargs=COMMON_CONFIG)
with patch.object(pytest.mark, "_config", None), patch("transformers.utils.direct_transformers_import"):
    modeling = importlib.import_module(f"{PACKAGE}.test_modeling_common")
    configuration = importlib.import_module(f"{PACKAGE}.test_configuration_common")


class ModelTester:
    """A small configuration and a batch for it, as the suite asks for them.

    Parameters
    ----------
    make_config : callable
        Returns a configuration, given `vocab_size` and `d_model`.
    """

    batch_size = 13
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4

    def __init__(self, make_config: Callable[..., TranslatorConfig]):
        self.make_config = make_config

    def get_config(self) -> TranslatorConfig:
        return self.make_config(vocab_size=self.vocab_size, d_model=self.hidden_size)

    def prepare_config_and_inputs_for_common(self) -> tuple[TranslatorConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        # Neither </s>, the first id, nor <pad>, the last: some tests count what is generated or left unmasked.
        input_ids, decoder_input_ids = torch.randint(1, self.vocab_size - 1, (2, self.batch_size, self.seq_length))
        masks = {name: torch.ones_like(input_ids) for name in ("attention_mask", "decoder_attention_mask")}
        return config, {"input_ids": input_ids, "decoder_input_ids": decoder_input_ids, **masks}


def vaswani_config(**sizes: int) -> VaswaniConfig:
    stack = {"layers": 2, "attention_heads": 4, "ffn_dim": 4}
    layers = {f"{name}_{field}": value for name in ("encoder", "decoder") for field, value in stack.items()}
    return VaswaniConfig(attention_dropout=0.1, **sizes, **layers)


def convolutional_config(**sizes: int) -> ConvolutionalConfig:
    """Tied, as one test looks decoder ids up in the source embedding."""
    stack = {"channels": [sizes["d_model"]] * 2, "kernel_sizes": [3, 3]}
    layers = {f"{name}_{field}": value for name in ("encoder", "decoder") for field, value in stack.items()}
    return ConvolutionalConfig(tie_word_embeddings=True, **sizes, **layers)


def recurrent_config(**sizes: int) -> RecurrentConfig:
    """Tied, as one test looks decoder ids up in the source embedding."""
    return RecurrentConfig(tie_word_embeddings=True, num_layers=2, bidirectional=True, **sizes)


class OurModel(modeling.ModelTesterMixin):
    """What is the same for all of ours."""

    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True  # or it judges our age by a copyright line that we have not

    # Asks for the tests of `generate`, see above.
    test_generation_tester_mixin_inheritance = None

    make_config: ClassVar[Callable[..., TranslatorConfig]]
    common_properties: ClassVar[list[str] | None] = None  # those of every Transformer

    def setUp(self) -> None:
        self.model_tester = ModelTester(type(self).make_config)

    def test_config(self) -> None:
        kind = type(self.model_tester.get_config())
        tester = configuration.ConfigTester(self, kind, common_properties=self.common_properties, d_model=32)
        tester.run_common_tests()


def skipped(reasons: dict[str, str]) -> Callable[[type], type]:
    """Skip the tests of a class whose names match a pattern, for the reason given."""

    def mark(kind: type) -> type:
        for name in dir(kind):
            for pattern, reason in reasons.items():
                if re.fullmatch(pattern, name):
                    setattr(kind, name, unittest.skip(reason)(getattr(kind, name)))
        return kind

    return mark


# Of a model without self-attention, whose decoder keeps a state.
NOT_FOR_PREDECESSORS = {
    "test_attention_outputs": "asks for self-attention, which this model has not",
    "test_retain_grad_hidden_states_attentions": "asks for self-attention, which this model has not",
    "test_eager_matches_sdpa_inference_.*_pad_left(?!_no_attn_mask).*": "pads the target on the left: refused",
}


class TestVaswani(OurModel, unittest.TestCase):
    all_model_classes = (VaswaniModel, VaswaniForConditionalGeneration)
    make_config = vaswani_config


@skipped(NOT_FOR_PREDECESSORS)
class TestConvolutional(OurModel, unittest.TestCase):
    all_model_classes = (ConvolutionalModel, ConvolutionalForConditionalGeneration)
    make_config = convolutional_config
    common_properties = ["hidden_size"]


@skipped(NOT_FOR_PREDECESSORS)
class TestRecurrent(OurModel, unittest.TestCase):
    all_model_classes = (RecurrentModel, RecurrentForConditionalGeneration)
    make_config = recurrent_config
    common_properties = ["hidden_size", "num_hidden_layers"]
