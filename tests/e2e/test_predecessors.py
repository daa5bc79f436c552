"""The Transformer's predecessors go the whole way that it goes: trained, resumed, averaged, published, used."""

import json

import pytest
from tiny_run import PYTHON, launch, rows
from transformers import AutoModelForSeq2SeqLM, pipeline


WIDTHS = {"encoder_channels": [16, 32], "decoder_channels": [16], "encoder_kernel_sizes": [3, 3]}
CONFIGS = {
    "recurrent": {"d_model": 16, "num_layers": 2, "bidirectional": True, "attention": "additive"},
    "convolutional": {"d_model": 16, "decoder_kernel_sizes": [3], **WIDTHS},
}
FLAGS = ["--max_tokens_per_batch=600", "--max_source_length=40", "--max_target_length=40", "--warmup_steps=20"]
FLAGS += ["--max_eval_samples=5", "--mixed_precision=no", "--save_steps=10", "--average_checkpoints=2"]
FLAGS += ["--save_total_limit=2", "--logging_steps=5", "--eval_steps=0", "--max_grad_norm=1"]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_predecessor_goes_the_whole_way(kind, corpus, tmp_path):
    config = {"model_type": kind, "dropout": 0.1, "tie_word_embeddings": True, **CONFIGS[kind]}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps(config))
    given = [*FLAGS, f"--config_name={tmp_path / 'config'}"]

    def train(name: str, *flags: str) -> None:
        done = launch(PYTHON, corpus, *given, f"--output_dir={tmp_path / name}", *flags)
        assert done.returncode == 0, done.stdout + done.stderr

    train("whole", "--max_steps=20")
    train("halves", "--max_steps=10", "--average_checkpoints=1")
    train("halves", "--max_steps=20", "--resume_from_checkpoint=latest")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "halves")]
    assert weights[0] == weights[1]
    logged = [[row for row in rows(tmp_path / name) if row["step"] > 10] for name in ("whole", "halves")]
    assert logged[0] == logged[1]
    final = logged[0][-1]
    assert (final["averaged_checkpoints"], final["decoding"]) == (2, "beam 4, alpha 0.6")

    folder = str(tmp_path / "whole" / "model")
    translator = pipeline("translation_en_to_de", model=folder)
    sentences = ["one two three", "four"]
    together = translator(sentences, batch_size=2)
    assert together == [translator(sentence)[0] for sentence in sentences]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.model_type == kind
