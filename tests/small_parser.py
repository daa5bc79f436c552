"""A tiny parser: trees, their tokenizer, and a model of random weights or one that has learned them."""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.tokenization import train_tokenizer


TREES = [
    "(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)) (. .))",
    "(S (NP (DT a) (NN cat)) (VP (VBZ sees) (NP (DT the) (NN dog))) (. .))",
    "(S (NP (NN tea)) (, ,) (NP (PRP we)) (VP (VBP drink) (ADVP (RB often))) (. .))",
    "(NP (NP (DT the) (NN cat) (POS ')) (NN tea))",
]
SYMBOLS = ["(S", "(NP", "(VP", "(ADVP", ")S", ")NP", ")VP", ")ADVP"]
SYMBOLS += ["(DT)", "(NN)", "(VBZ)", "(.)", "(,)", "(PRP)", "(VBP)", "(RB)", "(POS)", "('')"]
SENTENCES = ["the dog sleeps .", "a cat sees the dog .", "tea , we drink often .", "the cat ' tea"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(SENTENCES * 3, 300, symbols=SYMBOLS)


def make_parser(seed: int = 0) -> VaswaniForConditionalGeneration:
    """Return a parser of random weights, sure enough of itself to write something."""
    sizes = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
    sizes = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()}
    config = VaswaniConfig(vocab_size=300, d_model=16, dropout=0.0, source_lang="en", target_lang="tree", **sizes)
    torch.manual_seed(seed)
    model = VaswaniForConditionalGeneration(config).eval()
    torch.nn.init.normal_(model.lm_head.weight)
    with torch.no_grad():
        model.lm_head.weight[-1] = 0  # <pad>
    model.generation_config.update(extra_target_tokens=60, length_penalty_alpha=0.3)
    return model


def save_parser(folder: Path | str) -> None:
    make_parser().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
