import json
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch
import transformers
import yaml
from matrix import promised
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_run import ACCELERATE, ENVIRONMENT, PYTHON, launch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import vaswani
from training import evaluation
from training.recipe import parse_settings


SENTENCES = ["one two three", "ten nine", "four seven one"]
TRANSLATIONS = ["drei zwei eins", "neun zehn", "eins sieben vier"]


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.smoke
def test_it_learns_to_translate_and_to_reorder(finished_run):
    result = rows(finished_run)[-1]
    assert (result["split"], result["step"], result["sentences"]) == ("test", 600, 100)
    assert result["exact_match"] > 70  # 93 and 94 with two seeds; kernels round differently elsewhere
    assert "tok:13a" in result["sacrebleu_signature"]


def test_metrics_have_their_keys_and_evaluations_their_steps(finished_run):
    training = [row for row in rows(finished_run) if "split" not in row]
    assert [row["step"] for row in training] == [100, 200, 300, 400, 500, 600]
    keys = {"step", "loss", "nll", "gradient_norm", "learning_rate", "target_tokens", "target_tokens_per_second"}
    keys |= {"density", "skipped_updates", "epoch"}
    assert all(set(row) == keys for row in training)
    assert training[-1]["nll"] < training[-1]["loss"] < training[0]["loss"]
    evaluations = [(row["step"], row["split"]) for row in rows(finished_run) if "split" in row]
    assert evaluations == [(300, "validation"), (600, "validation"), (600, "test")]


def test_it_leaves_a_report_with_its_scores_and_the_lengths_of_its_text(finished_run):
    page = (finished_run / "report.html").read_text(encoding="utf-8")
    for row in rows(finished_run)[-2:]:
        assert f"<td>{row['sacrebleu']}</td>" in page
    for part in (
        "numbers is finished after 600 updates",
        "Training sentences by their length",
        "The worst sentences of test",
    ):
        assert part in page
    lengths = json.loads((finished_run / "lengths.json").read_text())
    assert [sum(counts) for counts in lengths.values()] == [5000, 5000]
    assert "report.html" in (finished_run / "stdout").read_text(encoding="utf-8")


def test_its_outputs_are_scored_by_sacrebleus_command_line_as_it_scored_them(finished_run):
    outputs = finished_run / "outputs"
    kept = {f"{split}.{kind}.txt" for split in ("validation", "test") for kind in ("source", "reference", "final")}
    assert {path.name for path in outputs.iterdir()} == kept | {"validation.step-0000300.txt"}
    for name, row in (("validation.step-0000300", 0), ("validation.final", 1), ("test.final", 2)):
        files = [f"{name.split('.')[0]}.reference.txt", "-i", f"{name}.txt"]
        command = [sys.executable, "-m", "sacrebleu", *files, "-m", "bleu", "-b", "-w", "2"]
        score = subprocess.run(command, cwd=outputs, capture_output=True, text=True, check=True).stdout
        assert float(score) == [row["sacrebleu"] for row in rows(finished_run) if "split" in row][row]


def test_it_shows_samples_progress_and_how_to_use_the_model(finished_run):
    shown = (finished_run / "stdout").read_text(encoding="utf-8")
    for text in ("train: 5,000 kept, 0 empty", "  reference  ", "tokens_per_second", "step/s", "Published to"):
        assert text in shown
    for text in ("Learns to translate from en to de: vaswani model", "by the median time of updates 2 to 21"):
        assert shown.count(text) == 1


def test_a_tracker_gets_every_figure_of_the_metrics_at_its_step(corpus, tmp_path):
    flags = ["--max_steps=20", "--logging_steps=5", "--eval_steps=10", "--max_tokens_per_batch=300"]
    done = launch(PYTHON, corpus, *flags, "--report_to=tensorboard", f"--output_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stdout + done.stderr
    events = EventAccumulator(str(tmp_path / "run" / "vaswani"), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    sent = {(tag, event.step): event.value for tag in tags for event in events.Scalars(tag)}
    logged = rows(tmp_path / "run")
    assert {row.get("split") for row in logged} == {None, "validation", "test"}
    assert sent == {
        (f"{row.get('split', 'train')}/{name}", row["step"]): pytest.approx(value, rel=1e-6)  # sent in float32
        for row in logged
        for name, value in row.items()
        if isinstance(value, int | float)
    }
    assert len(sent) == sum(len(events.Scalars(tag)) for tag in tags)


def test_the_resolved_recipe_can_be_run_again_and_names_versions_seed_and_hardware(finished_run):
    settings = parse_settings([str(finished_run / "recipe.toml")])
    assert (settings.optimization.max_steps, settings.optimization.seed) == (600, 2017)
    run = tomllib.loads((finished_run / "recipe.toml").read_text(encoding="utf-8"))["run"]
    assert run["torch"] == torch.__version__
    assert run["processes"] == 1
    assert run["hardware"]


@pytest.mark.smoke
def test_the_published_folder_is_complete(finished_run):
    names = {path.name for path in (finished_run / "model").iterdir()}
    parts = ["configuration", "modeling", "attention", "translator", "cache", "generation", "decoding", "search"]
    parts += ["incremental", "encoding", "packing", "int8", "cpu", "pipeline", "parsing", "trees", "legal_trees"]
    parts += ["allowed_tokens", "scorer", "largest", "fusion", "graphs"]
    code = {f"{name}_vaswani.py" for name in parts}
    assert names == code | {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "recipe.toml", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_it_leaves_a_space_of_its_model(finished_run):
    published, copied = ((finished_run / place / "model.safetensors") for place in ("model", "space/model"))
    assert published.read_bytes() == copied.read_bytes()
    assert (finished_run / "space" / "app.py").exists()


def test_the_card_says_what_was_measured(finished_run):
    card = (finished_run / "model" / "README.md").read_text(encoding="utf-8")
    result = rows(finished_run)[-1]
    front_matter = card.split("---")[1]
    for text in (
        "pipeline_tag: translation",
        "library_name: transformers",
        "type: bleu",
        f"value: {result['sacrebleu']}",
    ):
        assert text in front_matter
    for text in (result["sacrebleu_signature"], f"{result['exact_match']}%", "5,000 kept", "from `en` to `de`"):
        assert text in card
    entries = yaml.safe_load(front_matter)["model-index"][0]["results"]
    assert [entry["dataset"]["split"] for entry in entries] == ["validation", "test"]
    measured = {metric["name"]: (metric["value"], metric["args"]) for metric in entries[1]["metrics"]}
    assert measured["chrF (sacreBLEU)"][0] == result["chrf"]
    value, how = measured["BLEU (the paper's protocol: tokenized, compounds split)"]
    assert (value, how["signature"]) == (result["paper_bleu"], result["paper_bleu_signature"])
    assert (how["decoding"], how["checkpoint"], how["averaged_checkpoints"]) == (result["decoding"], "step 600", 4)
    assert "{{" not in card


@pytest.mark.smoke
def test_a_later_evaluation_joins_metrics_card_and_model_index(finished_run, corpus, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    pairs = [line.split("\t") for line in (corpus / "test.tsv").read_text(encoding="utf-8").splitlines()]
    for column, name in enumerate(("later.en", "later.de")):
        (tmp_path / name).write_text("".join(f"{pair[column]}\n" for pair in pairs), encoding="utf-8")
    files = ["--source", str(tmp_path / "later.en"), "--reference", str(tmp_path / "later.de")]
    evaluation.main(["--model", str(run / "model"), *files, "--num_beams", "2"])
    row = rows(run)[-1]
    before = rows(finished_run)[-1]
    assert (row["step"], row["averaged_checkpoints"], row["test_set"]) == (600, 4, "later.de")
    assert row["decoding"] == "beam 2, alpha 0.6"
    assert row["nll"] == pytest.approx(before["nll"], abs=1e-3)  # the same text
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    entry = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"][-1]
    assert (entry["dataset"]["name"], entry["metrics"][1]["value"]) == ("later.de", row["chrf"])
    table = [line for line in card.splitlines() if line.startswith("| later.de, test | 100 | beam 2")]
    assert len(table) == 1
    assert f"{row['nll']} ({row['perplexity']})" in table[0]
    evaluation.main(["--model", str(run / "checkpoints" / "step-0000500"), "--tokenizer", str(run / "model"), *files])
    assert (rows(run)[-1]["step"], rows(run)[-1]["checkpoint"]) == (500, "step-0000500")


@pytest.mark.smoke
def test_the_zero_vector_stays_zero(finished_run):
    model = AutoModelForSeq2SeqLM.from_pretrained(finished_run / "model")
    assert model.model.shared.weight[model.config.pad_token_id].abs().max() == 0


@pytest.mark.smoke
def test_with_the_package_the_three_uses_just_work(finished_run):
    folder = finished_run / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert isinstance(model, vaswani.VaswaniForConditionalGeneration)
    assert isinstance(AutoModel.from_pretrained(folder), vaswani.VaswaniModel)
    output = model.generate(**tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    assert tokenizer.batch_decode(output, skip_special_tokens=True) == TRANSLATIONS
    for task in ("translation", "translation_en_to_de"):
        translator = pipeline(task, model=str(folder))
        assert isinstance(translator, vaswani.TranslationPipeline)
        assert translator(SENTENCES[0]) == [{"translation_text": TRANSLATIONS[0]}]


@pytest.mark.smoke
def test_the_pipeline_takes_what_version_4_took(finished_run):
    translator = pipeline("translation", model=str(finished_run / "model"))
    expected = [{"translation_text": text} for text in TRANSLATIONS]
    assert translator(SENTENCES) == translator(SENTENCES, batch_size=2) == expected
    assert translator([]) == []
    assert [result[0] for result in translator(sentence for sentence in SENTENCES)] == expected
    assert [len(result) for result in translator(SENTENCES, num_beams=3, num_return_sequences=2)] == [2, 2, 2]
    assert len(translator("one two three", max_new_tokens=1, return_tensors=True)[0]["translation_token_ids"]) == 2
    with pytest.raises(ValueError, match='task="translation_de_to_en" does not fit this model'):
        pipeline("translation_de_to_en", model=str(finished_run / "model"))
    with pytest.raises(ValueError, match="a sentence must be a string, not int: 3"):
        translator([3])


WITHOUT_THE_PACKAGE = """
import sys
sys.modules["vaswani"] = sys.modules["training"] = None  # as if it were not installed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folder, copy, *sentences = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules")
ids = model.generate(**tokenizer(sentences, padding=True, return_tensors="pt"))
print(*tokenizer.batch_decode(ids, skip_special_tokens=True), sep="|")
for task in ("translation", "translation_en_to_de"):
    results = pipeline(task, model=folder, trust_remote_code=True)(sentences)
    print(*(result["translation_text"] for result in results), sep="|")
model.save_pretrained(copy)
tokenizer.save_pretrained(copy)
"""


def run_without_the_package(tmp_path, *arguments):
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, *map(str, arguments), *SENTENCES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.smoke
def test_without_the_package_the_folder_alone_does_the_same_and_so_does_its_copy(finished_run, tmp_path):
    expected = ["|".join(TRANSLATIONS)] * 3
    assert run_without_the_package(tmp_path, finished_run / "model", tmp_path / "copy") == expected
    assert run_without_the_package(tmp_path, tmp_path / "copy", tmp_path / "copy of the copy") == expected
    assert (
        pipeline("translation", model=str(tmp_path / "copy"))(SENTENCES[0])[0]["translation_text"] == TRANSLATIONS[0]
    )


@pytest.mark.smoke
def test_checkpoints_load_like_models_and_their_average_is_published(finished_run):
    checkpoints = sorted((finished_run / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == [f"step-{step:07}" for step in (450, 500, 550, 600)]
    saved = [dict(AutoModelForSeq2SeqLM.from_pretrained(path).named_parameters()) for path in checkpoints]
    published = AutoModelForSeq2SeqLM.from_pretrained(finished_run / "model")
    for name, parameter in published.named_parameters():
        assert torch.allclose(parameter, torch.stack([weights[name] for weights in saved]).mean(0), atol=1e-6), name


def test_with_a_c_compiler_and_without_a_run_learns_the_same(corpus, tmp_path):
    flags = ["--max_steps=60", "--max_tokens_per_batch=600", "--warmup_steps=100", "--learning_rate_factor=0.3"]
    flags += ["--max_source_length=40", "--max_target_length=40", "--logging_steps=20", "--eval_steps=0"]
    flags += ["--save_steps=0", "--average_checkpoints=1", "--max_eval_samples=4", "--mixed_precision=bf16"]
    losses = []
    for compiler, said in (
        ("cc", "kernels in C"),
        ("false", "PyTorch, not kernels in C: they cannot be compiled by false"),
    ):
        directory = tmp_path / compiler
        done = launch(PYTHON, corpus, *flags, f"--output_dir={directory}", environment=ENVIRONMENT | {"CC": compiler})
        assert done.returncode == 0, done.stderr
        assert f"Between the matrix products: {said}" in done.stdout
        losses.append([row["nll"] for row in rows(directory) if "learning_rate" in row])
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    assert losses[0] != losses[1]
    assert losses[0][-1] < 0.8 * losses[0][0]


def test_a_run_is_not_overwritten_unless_asked_to(finished_run, corpus):
    done = launch(ACCELERATE, corpus, "--max_steps", "7", "--output_dir", str(finished_run))
    assert done.returncode != 0
    assert "already holds a run of another recipe" in done.stderr
    assert "max_steps is 600 there, 7 here" in done.stderr
    assert (finished_run / "model" / "model.safetensors").exists()


def test_an_output_directory_that_cannot_be_is_refused_at_once(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    done = launch(ACCELERATE, corpus, "--output_dir", str(tmp_path / "file" / "run"))
    assert "cannot be written to" in done.stderr
    assert "Traceback" not in done.stderr.split("error:")[0]


@pytest.mark.smoke
def test_transformers_is_a_release_that_we_promise():
    assert promised("transformers").contains(transformers.__version__)
