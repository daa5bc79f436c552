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
import sys
import types
import unittest
from unittest.mock import patch

import pytest
import torch
import transformers
from transformers_suite import folder_of

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel


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
    """A small configuration and a batch for it, as the suite asks for them."""

    batch_size = 13
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4

    def get_config(self) -> VaswaniConfig:
        stack = {"layers": self.num_hidden_layers, "attention_heads": self.num_attention_heads, "ffn_dim": 4}
        return VaswaniConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            attention_dropout=0.1,
            **{f"{name}_{field}": value for name in ("encoder", "decoder") for field, value in stack.items()},
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[VaswaniConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        # Neither </s>, the first id, nor <pad>, the last: some tests count what is generated or left unmasked.
        input_ids, decoder_input_ids = torch.randint(1, self.vocab_size - 1, (2, self.batch_size, self.seq_length))
        masks = {name: torch.ones_like(input_ids) for name in ("attention_mask", "decoder_attention_mask")}
        return config, {"input_ids": input_ids, "decoder_input_ids": decoder_input_ids, **masks}


class TestVaswani(modeling.ModelTesterMixin, unittest.TestCase):
    all_model_classes = (VaswaniModel, VaswaniForConditionalGeneration)
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True  # or it judges our age by a copyright line that we have not

    # Asks for the tests of `generate`, see above.
    test_generation_tester_mixin_inheritance = None

    def setUp(self) -> None:
        self.model_tester = ModelTester()

    def test_config(self) -> None:
        configuration.ConfigTester(self, config_class=VaswaniConfig, d_model=32).run_common_tests()
