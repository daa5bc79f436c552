"""A model as OPUS-MT's, of random weights: MarianMT with a SentencePiece model for each side and one vocabulary."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel


WORDS = {
    "source": (("one", "two", "three"), ("small", "large"), ("dogs", "houses")),
    "target": (("eins", "zwei", "drei"), ("klein", "groß"), ("Hunde", "Häuser")),
}


def sentences(side: str) -> list[str]:
    """Return all sentences of a side."""
    return [" ".join([*words, "."]) for words in product(*WORDS[side])]


def save_vocabulary(folder: Path) -> int:
    """Write the files of a MarianTokenizer, and return its size."""
    sentencepiece = pytest.importorskip("sentencepiece")
    types = ["</s>", "<unk>"]
    for side in WORDS:
        (folder / "text").write_text("\n".join(sentences(side)), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(folder / side),
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=9,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        pieces = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        types += [piece for row in range(len(pieces)) if (piece := pieces.id_to_piece(row)) not in ("<s>", *types)]
    types.append("<pad>")
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(types)}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"})
    )
    return len(types)


@torch.no_grad()
def random_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Draw all weights but those of positions."""
    for name, weight in model.named_parameters():
        if "embed_positions" not in name:
            weight.normal_(float(name.endswith("norm.weight")), 0.3)
    return model


@torch.no_grad()
def save_opus(folder: Path, **changes) -> MarianMTModel:
    """Write the folder of the model and its tokenizer, and return the model."""
    folder.mkdir()
    size = save_vocabulary(folder)
    sizes = {f"{stack}_{part}": 2 for stack in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "vocab_size": size}
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0, "forced_eos_token_id": 0}
    config = MarianConfig(activation_function="swish", scale_embedding=True, **sizes | ids | changes)
    model = random_weights(MarianMTModel(config).eval())
    model.final_logits_bias.normal_()
    model.model.shared.weight[model.config.pad_token_id] = 0
    model.save_pretrained(folder)
    return model
