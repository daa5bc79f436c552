"""The folder that a run publishes: every fact of the card against where it comes from."""

import dataclasses
import resource
from pathlib import Path

import pytest
import yaml
from flat_settings import make_settings
from huggingface_hub import ModelCard
from small_parser import make_parser

from training.publishing.folder import publish
from training.recipe import write_recipe
from training.trainer.run_directory import is_finished
from vaswani import (
    ConvolutionalConfig,
    ConvolutionalForConditionalGeneration,
    RecurrentConfig,
    RecurrentForConditionalGeneration,
)
from vaswani.errors import UserError
from vaswani.tokenization import train_tokenizer


FIELDS = (("channels", 8), ("kernel_sizes", 3))
FOLDER = str(Path(__file__).parent)


@pytest.fixture
def published(random_model, evaluation, tmp_path):
    """Return a function that publishes a tiny run and returns its card: front matter and text."""

    def make(results=None, run=None, model=None, fields=None, repository=None, **given):
        tokenizer = train_tokenizer(["ab ab abc", "cd cd cde"], 260)
        model = model or random_model(vocab_size=260, **fields or {})
        defaults = {"dataset_name": "me/news", "dataset_config_name": "en-de", "output_dir": str(tmp_path / "run")}
        settings = make_settings(**{"source_lang": "en", "target_lang": "de"} | defaults | given)
        (tmp_path / "run").mkdir(exist_ok=True)
        facts = {"torch": "2.0", "hardware": "a CPU", "precision": "bf16", "command": "training/run.py"}
        write_recipe(settings, facts | (run or {}), tmp_path / "run" / "recipe.toml")
        counts = {"kept": 1234, "empty": 5, "too long": 6, "unbalanced": 7}
        results = [evaluation] if results is None else results
        folder = publish(model, tokenizer, settings, counts, results, tmp_path / "run", repository)
        front, text = (folder / "README.md").read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n", 1)
        return folder, yaml.safe_load(front), text

    return make


def test_the_folder_is_that_of_the_run_with_its_recipe(published, tmp_path):
    folder, _, _ = published()
    assert folder == tmp_path / "run" / "model"
    assert (folder / "recipe.toml").read_text() == (tmp_path / "run" / "recipe.toml").read_text()
    assert {"config.json", "model.safetensors", "tokenizer.json", "modeling_vaswani.py"} <= {
        path.name for path in folder.iterdir()
    }
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_a_run_that_is_killed_before_its_new_card_is_whole_does_not_count_as_finished(
    published, tmp_path, monkeypatch
):
    def end(card):
        raise KeyboardInterrupt

    published()
    assert is_finished(tmp_path / "run")
    monkeypatch.setattr(ModelCard, "__str__", end)
    with pytest.raises(KeyboardInterrupt):
        published(run={"date": "later"})
    assert not is_finished(tmp_path / "run")


def test_a_full_disk_is_a_sentence_that_says_how_to_go_on(published, tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # writing more fails as on a full disk
    try:
        with pytest.raises(
            UserError, match=r"^the model could not be written to .*model: .*; make room, then resume$"
        ):
            published()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not is_finished(tmp_path / "run")


@pytest.mark.parametrize(
    ("output_dir", "hub_model_id", "name"), [(".", None, "here"), ("runs/mine", None, "mine"), (".", "me/it", "me/it")]
)
def test_the_name_is_that_on_the_hub_or_that_of_the_directory(
    published, tmp_path, monkeypatch, output_dir, hub_model_id, name
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _, front, _ = published(output_dir=output_dir, hub_model_id=hub_model_id)
    assert front["model-index"][0]["name"] == name


@pytest.mark.parametrize(
    ("hub_model_id", "repository", "place"),
    [(None, None, None), ("me/it", None, "me/it"), (None, "me/run", "me/run"), ("it", "me/it", "me/it")],
)
def test_the_card_says_how_to_load_the_model_from_where_it_is(published, tmp_path, hub_model_id, repository, place):
    folder, _, text = published(hub_model_id=hub_model_id, repository=repository)
    assert f'.from_pretrained("{place or folder}"' in text
    assert (str(tmp_path) in text) == (place is None)


def test_the_front_matter_names_data_languages_and_every_evaluation(published, evaluation):
    validation = dataclasses.replace(evaluation, split="validation", sacrebleu=30.3)
    _, front, _ = published([validation, evaluation], hub_model_id="me/model")
    assert (front["language"], front["datasets"], front["pipeline_tag"]) == (["en", "de"], ["me/news"], "translation")
    assert not {"base_model", "base_model_relation"} & front.keys()
    (index,) = front["model-index"]
    assert index["name"] == "me/model"
    datasets = [entry["dataset"] for entry in index["results"]]
    assert [(data["type"], data["config"], data["split"]) for data in datasets] == [
        ("me/news", "en-de", "validation"), ("me/news", "en-de", "test")
    ]  # fmt: skip
    assert [entry["metrics"][0]["value"] for entry in index["results"]] == [30.3, 20.1]


def test_the_card_says_what_departs_from_the_paper(published):
    _, _, text = published()
    assert "| vocabulary | 260 byte-level BPE types, shared by both languages |" in text
    assert "- The vocabulary is a byte-level BPE, " in text
    assert "- Layer normalization adds 1e-05 to the variance; " in text
    assert "- Decoding is the Transformer's and follows its original code" in text
    assert "have swish" not in text
    assert "projection has a bias" not in text
    assert "Dropout also falls" not in text
    assert "three matrices" not in text


def test_the_card_says_where_dropout_falls_besides_and_that_embeddings_are_not_tied(published):
    _, _, text = published(fields={"attention_dropout": 0.2, "activation_dropout": 0.3, "tie_word_embeddings": False})
    assert "- Dropout also falls on attention weights (0.2); in translation the paper has none" in text
    assert "- Dropout also falls behind the ReLU\n  (0.3); the paper has none" in text
    assert "- Both embeddings and the pre-softmax projection are three matrices" in text


def test_the_card_says_only_what_is_so_with_learned_positions_and_without_biases(published):
    _, _, text = published()
    assert "2017):\n\n- Positions are sines and cosines interleaved, as the paper's" in text
    assert "- Biases of key projections are not trained" in text
    _, _, text = published(fields={"position_embedding_type": "learned", "attention_bias": False})
    assert "2017):\n\n- Layer normalization adds" in text
    assert "| positions | learned |" in text
    assert "have no biases, as in the paper's equations; that code had them" in text
    assert "Biases of key projections" not in text


def test_the_card_says_what_only_an_imported_model_has(published):
    _, _, text = published(fields={"activation_function": "swish", "lm_head_bias": True, "layer_norm_eps": 1e-6})
    assert "- Layer normalization adds 1e-06 to the variance; " in text
    assert "- The feed-forward networks have swish where the paper has a ReLU." in text
    assert "- The pre-softmax projection has a bias; the paper's has none." in text


def test_restricted_attention_has_a_line_of_its_own(published):
    _, _, text = published(fields={"attention_restriction": 6})
    assert " |\n| self-attention, restricted (section 4) | to r = 6 positions: " in text
    assert " last ones |\n| positions | sinusoidal |\n" in text


def test_unrestricted_attention_has_no_line(published):
    _, _, text = published()
    assert "| their widths d_k, d_v | 8, 8 |\n| positions | sinusoidal |\n" in text


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        ({"head_dim": 16}, "16, 16"),
        ({"head_dim": 16, "v_head_dim": 4}, "16, 4"),
        ({"decoder_attention_heads": 4}, "d_model / h, d_model / h"),
    ],
)
def test_the_card_has_the_sizes_of_both_stacks_and_of_heads(fields, widths, published):
    _, _, text = published(fields=fields | {"decoder_ffn_dim": 24})
    decoder_heads = fields.get("decoder_attention_heads", 2)
    sizes = f"| d_ff (encoder, decoder) | 32, 24 |\n| heads h (encoder, decoder) | 2, {decoder_heads} |\n"
    assert f"| d_model | 16 |\n{sizes}| their widths d_k, d_v | {widths} |\n| positions |" in text


def test_a_model_that_was_adapted_names_its_base(published):
    _, front, _ = published(run={"base_model": "me/base"})
    assert (front["base_model"], front["base_model_relation"]) == ("me/base", "finetune")


@pytest.mark.parametrize(
    ("given", "datasets", "said"),
    [
        (
            {"dataset_name": "grammar", "dataset_config_name": None},
            None,
            "the generated English-German grammar corpus",
        ),
        ({}, ["me/news"], "`me/news` (en-de)"),
        ({"dataset_name": FOLDER}, None, f"`{Path(FOLDER).name}` (en-de)"),
        (
            {"dataset_name": None, "dataset_config_name": None, "train_file": ["/home/me/a.en", "/home/me/a.de"]},
            None,
            "`a.en, a.de`",
        ),
    ],
)
def test_the_training_text_is_named_without_the_paths_of_a_machine(published, given, datasets, said):
    _, front, text = published(**given)
    assert front.get("datasets") == datasets
    assert f"from `en` to `de` on {said}." in " ".join(text.split())
    everything = yaml.safe_dump(front) + text
    assert "/home/me" not in everything
    assert FOLDER not in everything


def test_results_on_files_name_these_and_not_the_training_text(published, evaluation):
    files = {"train_file": ["/home/me/a.en", "/home/me/a.de"], "validation_file": ["/home/me/dev.tsv"]}
    files |= {"test_file": ["/home/me/t.en", "/home/me/t.de"]}
    results = [dataclasses.replace(evaluation, split=split) for split in ("validation", "test")]
    _, front, text = published(results=results, dataset_name=None, dataset_config_name=None, **files)
    named = {(result["dataset"]["split"], result["dataset"]["name"]) for result in front["model-index"][0]["results"]}
    assert named == {("validation", "dev.tsv"), ("test", "t.en, t.de")}
    assert "Measured on `dev.tsv` and `t.en, t.de` at the end of the run" in " ".join(text.split())


def test_the_text_has_the_runs_settings_counts_and_results(published, evaluation):
    given = {"max_steps": 77, "max_tokens_per_batch": 2222, "adam_beta1": 0.81, "adam_beta2": 0.92, "warmup_steps": 33}
    _, _, text = published(**given, adam_epsilon=1e-7, label_smoothing=0.15, learning_rate_factor=0.7, max_grad_norm=4)
    for line in (
        "| updates | 77 |",
        "at most 2222 |",
        "| optimizer | Adam, beta1 0.81, beta2 0.92, epsilon 1e-07; gradients of at most norm 4 |",
        "| learning rate | 0.7 x Eq. 3, 33 warm-up updates |",
        "| label smoothing | 0.15 |",
        "1,234 kept, 5 empty, 6 too long, 7 unbalanced",
        "| test | 1,234 | beam 4, alpha 0.6; average of the last 4 checkpoints | 20.1 |",
        evaluation.paper_bleu_signature,
    ):
        assert line in text, line
    assert "{{" not in text


def test_the_card_of_a_predecessor_says_what_it_is(published):
    config = RecurrentConfig(vocab_size=260, d_model=16, num_layers=3, bidirectional=True, attention="additive")
    folder, front, text = published(model=RecurrentForConditionalGeneration(config))
    assert "with attention (Bahdanau et al. 2015, Luong et al. 2015), which the Transformer replaced" in text
    assert "| layers of each stack, width | 3, 16 |" in text
    assert "| recurrence | lstm, the encoder in both directions |" in text
    assert "no input feeding" in text
    assert "Positions are sines" not in text
    assert front["tags"] == ["vaswani", "recurrent"]
    names = {path.name for path in folder.iterdir()}
    assert "modeling_recurrent.py" in names
    assert "modeling_vaswani.py" not in names


def test_the_card_of_a_predecessor_without_attention_says_where_the_last_state_goes(published):
    config = RecurrentConfig(vocab_size=260, d_model=16, num_layers=1, attention="none")
    _, _, text = published(model=RecurrentForConditionalGeneration(config))
    assert "- The encoder's last state goes to the decoder's first step alone" in text
    assert "no input feeding" not in text


def test_the_card_names_what_was_added_to_the_papers_training_and_a_search_that_is_not_the_papers(
    published, random_model
):
    model = random_model(vocab_size=260)
    model.generation_config.length_penalty_alpha = None
    _, _, text = published(model=model, weight_decay=0.25, rdrop_alpha=4.5, bpe_dropout=0.15, tokenized=True)
    for part in (
        "; decoupled weight decay 0.25 (AdamW), of matrices alone |",
        "| R-Drop | alpha 4.5: each batch was computed twice",
        "| BPE-dropout | 0.15: each epoch divided words anew",
        "It reads and writes text that was tokenized before",
        "), of tokenized text.",
        "find what transformers' beam search finds",
    ):
        assert part in text
    assert "decode as the paper did" not in text
    assert "Decoding is the Transformer's and follows its original code" not in text


def test_the_card_of_a_faithful_run_names_none_of_it(published):
    _, _, text = published()
    assert not [
        part
        for part in ("weight decay", "R-Drop", "BPE-dropout", "tokenized before", "), of tokenized text")
        if part in text
    ]
    assert "decode as the paper did" in text


def test_the_card_of_a_convolutional_model_names_its_layers(published):
    layers = {f"{stack}_{field}": [n] * 2 for stack in ("encoder", "decoder") for field, n in FIELDS}
    config = ConvolutionalConfig(vocab_size=260, d_model=16, **layers)
    _, front, text = published(model=ConvolutionalForConditionalGeneration(config))
    assert "| channels (encoder; decoder) | 8, 8; 8, 8 |" in text
    assert "| kernel sizes (encoder; decoder) | 3, 3; 3, 3 |" in text
    assert "ConvS2S (Gehring et al. 2017)" in text
    assert front["tags"] == ["vaswani", "convolutional", "convs2s"]


def test_the_card_of_a_parser_is_about_trees(published, parses):
    parser = make_parser()
    parser.config.attention_dropout = 0.2  # section 6.3 has it, too
    treebank = {"dataset_name": "treebank:/home/me/wsj", "dataset_config_name": None, "target_lang": "tree"}
    given = {"treebank_parts": 11, "treebank_made": 222, "curriculum_epochs": 3, "curriculum_length": 44}
    _, front, text = published([parses], model=parser, **treebank, **given)
    assert "/home/me" not in yaml.safe_dump(front) + text
    assert (front["language"], front["pipeline_tag"]) == (["en"], "token-classification")
    assert "constituency-parsing" in front["tags"]
    [result] = front["model-index"][0]["results"]
    assert result["task"]["name"] == "Constituency parsing"
    assert {metric["name"]: metric["value"] for metric in result["metrics"]}["labelled bracketing F1 (EVALB)"] == 73.3
    for part in (
        "trained to parse `en` into constituents (section 6.3) on `wsj`.",
        'pipeline("parse", model=',
        "| test | 237 | beam 4, alpha 0.3, trees only; average of the last 4 checkpoints | "
        "73.3 | 71.1 | 72.2 | 94.4 | 99.1 | 8.8% | 1.25 (3.49) |",
        "constituents of 2 to 11 words; 222 trees with constituents exchanged",
        "| first 3 epochs | only pairs of at most 44 tokens a side |",
        "Brackets and parts of speech stand in the vocabulary of the words",
    ):
        assert part in text
    for part in ("BLEU", "translate", "Dropout also falls"):
        assert part not in text
