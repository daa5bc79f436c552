import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from sacrebleu.tokenizers import tokenizer_ja_mecab
from small_parser import SENTENCES, TREES, save_parser

from vaswani import cli, evaluation, workers
from vaswani.errors import UserError
from vaswani.parsing.treebank import read_trees
from vaswani.scoring.protocols import score, tokenize


def evaluate(arguments):
    cli.run("evaluate", *arguments)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write a reference, two systems and a source into the working directory."""
    monkeypatch.chdir(tmp_path)
    references = [f"Satz {number}: Die US-Regierung tagt heute in „Köln“." for number in range(40)]
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in references))
    (tmp_path / "good.de").write_text("".join(f"{line}\n" for line in references).replace("heute", "morgen"))
    (tmp_path / "bad.de").write_text("".join(f"{line}\n" for line in references).replace("tagt heute in", "ist"))
    (tmp_path / "test.en").write_text("one two\n" * 40)
    return references


def test_hypotheses_are_scored_as_text_and_as_json(files, capsys):
    evaluate(["--hypothesis", "good.de", "--reference", "test.de", "--json"])
    row = json.loads(capsys.readouterr().out)
    expected = score([line.replace("heute", "morgen") for line in files], files, "de")
    assert {name: row[name] for name in expected} == expected
    assert (row["sentences"], row["target_lang"], row["test_set"]) == (40, "de", "test.de")
    assert row["paper_bleu"] > row["paper_bleu_without_split"]
    evaluate(["--hypothesis", "good.de", "--reference", "test.de", "--target_lang", "en", "--json", "row.json"])
    said = capsys.readouterr().out
    assert json.loads(Path("row.json").read_text())["target_lang"] == "en"
    for text in (
        "  nrefs:1|case:mixed",
        f"  BLEU, sacreBLEU               {row['sacrebleu']:6.2f}\n",
        "not to be compared",
        "compounds split",
        "Tricks on:",
    ):
        assert text in said
    assert max(map(len, said.splitlines())) <= 110  # a signature must stay whole
    evaluate(["--hypothesis", "good.de", "--reference", "test.de", "--lowercase", "--json"])
    assert "case:lc" in json.loads(capsys.readouterr().out)["sacrebleu_signature"]


def test_text_that_was_tokenized_before_is_scored_by_its_tokens_as_sacrebleus_command_does(files, capsys):
    for name, lines in (("ref", files), ("hyp", [line.replace("heute", "morgen") for line in files])):
        Path(f"{name}.tok").write_text("".join(f"{tokenize(line, 'de')}\n" for line in lines))
    flags = ["--hypothesis", "hyp.tok", "--reference", "ref.tok"]
    evaluate([*flags, "--tokenized", "--baseline_hypothesis", "hyp.tok", "--json", "row.json"])
    row, shown = json.loads(Path("row.json").read_text()), capsys.readouterr()
    theirs = ["--tokenize", "none", "--force", "--smooth-method", "none", "--score-only", "--width", "2"]
    command = [sys.executable, "-m", "sacrebleu", "ref.tok", "-i", "hyp.tok", *theirs]
    assert (
        f"{row['sacrebleu']:.2f}" == subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    )
    assert row["sacrebleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none")
    assert list(row["comparison"]) == ["sacrebleu"]
    assert row["comparison"]["sacrebleu"]["system"] == pytest.approx(row["sacrebleu"], abs=0.01)
    assert row["paper_bleu"] is row["paper_bleu_signature"] is None
    assert "Of tokens as they are" in shown.out
    assert not {"The paper's protocol", "Tricks on"} & {line.split(",")[0] for line in shown.out.splitlines()}
    assert "warning" not in shown.err
    evaluate([*flags, "--json"])
    plain = capsys.readouterr()
    assert "look tokenized or escaped" not in plain.err  # both sides are
    assert "tok:13a" in json.loads(plain.out)["sacrebleu_signature"]


def test_chinese_is_scored_as_sacrebleus_command_scores_it(files, capsys):
    for name, text in (
        ("hyp.zh", "我今天喜欢读书和写字。\n他很忙。\n"),
        ("ref.zh", "我今天喜欢读书和画画。\n他今天很忙。\n"),
    ):
        Path(name).write_text(text, encoding="utf-8")
    flags = ["--hypothesis", "hyp.zh", "--reference", "ref.zh", "--baseline_hypothesis", "hyp.zh", "--json"]
    evaluate([*flags, "--target_lang", "zh_CN"])
    row = json.loads(capsys.readouterr().out)
    command = [sys.executable, "-m", "sacrebleu", "ref.zh", "-i", "hyp.zh", "-l", "en-zh", "--force", "-b", "-w", "2"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert f"{row['sacrebleu']:.2f}" == theirs
    assert row["comparison"]["sacrebleu"]["system"] == pytest.approx(row["sacrebleu"], abs=0.01)


def test_a_language_that_cannot_be_divided_here_is_refused(files, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match="sacreBLEU divides it by MeCab, which is not installed: pip"):
        evaluate(["--hypothesis", "good.de", "--reference", "test.de", "--target_lang", "ja"])


@pytest.mark.parametrize("ending", ["tr", "tr.gz"])
def test_a_language_that_moses_does_not_know_is_scored_without_it(ending, files, capsys):
    shutil.copyfile("test.de", "ref.tr")
    Path("ref.tr.gz").write_bytes(gzip.compress(Path("test.de").read_bytes()))
    evaluate(["--hypothesis", "good.de", "--reference", f"ref.{ending}", "--json"])
    row, said = capsys.readouterr()
    assert (json.loads(row)["target_lang"], json.loads(row)["paper_bleu"]) == ("tr", None)
    assert "warning: Moses' tokenizer does not know target_lang='tr': the paper's BLEU is left out\n" in said
    evaluate(["--hypothesis", "good.de", "--reference", "test.de", "--target_lang", "tr", "--tokenized", "--json"])
    assert "Moses" not in capsys.readouterr().err


def test_so_is_a_model_of_such_a_language(published, capsys):
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps(config | {"target_lang": "tr"}))
    evaluate([*published, "--no_record", "--baseline_model", "model", "--json"])
    row = json.loads(capsys.readouterr().out)
    assert (row["target_lang"], row["paper_bleu"], list(row["comparison"])) == ("tr", None, ["sacrebleu"])


def test_a_compressed_reference_has_the_language_of_its_content(files, capsys):
    Path("ref.fr.gz").write_bytes(gzip.compress(Path("test.de").read_bytes()))
    evaluate(["--hypothesis", "good.de", "--reference", "ref.fr.gz", "--json"])
    assert "moses-fr" in json.loads(capsys.readouterr().out)["paper_bleu_signature"]


def test_a_baseline_is_suspected_as_a_hypothesis_is(files, capsys):
    Path("empty.de").write_text("\n" * 40)
    evaluate(["--hypothesis", "good.de", "--reference", "test.de", "--baseline_hypothesis", "empty.de"])
    assert "warning: of the baseline: 40 of 40" in capsys.readouterr().err


def test_two_systems_are_compared(files, capsys):
    flags = ["--hypothesis", "good.de", "--reference", "test.de"]
    evaluate([*flags, "--baseline_hypothesis", "bad.de", "--json"])
    comparison = json.loads(capsys.readouterr().out)["comparison"]
    for result in comparison.values():
        assert result["difference"] > 0
        assert max(result["bootstrap_p_value"], result["randomization_p_value"]) < 0.01
    Path("loud.de").write_text(Path("good.de").read_text().upper())
    for given, differ in (([], True), (["--lowercase"], False)):
        evaluate([*flags, "--baseline_hypothesis", "loud.de", "--json", *given])
        comparison = json.loads(capsys.readouterr().out)["comparison"]
        assert [result["difference"] > 0 for result in comparison.values()] == [differ] * 2
    evaluate([*flags, "--baseline_hypothesis", "good.de"])
    said = capsys.readouterr().out
    assert said.count("p = 1.0000 by paired bootstrap, 1.0000 by approximate randomization") == 2


def test_a_model_is_scored_and_the_row_goes_to_metrics_and_card(model, tokenizer, files, tmp_path, capsys):
    model.config.source_lang, model.config.target_lang = "en", "de"
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlanguage: [en, de]\n---\n# A model\n")
    flags = ["--model", "model", "--source", "test.en", "--reference", "test.de", "--max_new_tokens", "5"]
    evaluate([*flags, "--num_beams", "2", "--json", "--output", "out.de"])
    row = json.loads(capsys.readouterr().out)
    assert row["decoding"] == "beam 2, alpha 0.6, at most 5 tokens"
    assert row["perplexity"] > 1
    assert row["checkpoint"] == "model"
    assert len((tmp_path / "out.de").read_text().splitlines()) == 40
    assert [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()] == [row]
    [bleu, chrf, *_] = ModelCard.load(tmp_path / "model" / "README.md").data.eval_results
    assert (bleu.dataset_name, bleu.metric_value, chrf.metric_value) == ("test.de", row["sacrebleu"], row["chrf"])
    assert bleu.metric_args["signature"] == row["sacrebleu_signature"]
    evaluate([*flags, "--no_record", "--tokenized", "--lowercase", "--json"])
    signature = json.loads(capsys.readouterr().out)["sacrebleu_signature"]
    assert "case:lc" in signature
    assert "tok:none" in signature
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    evaluate([*flags, "--no_record", "--baseline_model", "other"])
    assert "p = 1.0000" in capsys.readouterr().out
    assert len((tmp_path / "model" / "metrics.jsonl").read_text().splitlines()) == 1


def test_empty_translations_of_a_model_are_warned_of_in_a_sentence(
    model, tokenizer, files, tmp_path, capsys, monkeypatch, recwarn
):
    model.config.source_lang, model.config.target_lang = "en", "de"
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(
        "vaswani.evaluation.translate_all", lambda model, tokenizer, sources, **how: ["", *sources[1:]]
    )
    evaluate(["--model", "model", "--source", "test.en", "--reference", "test.de", "--no_record"])
    assert capsys.readouterr().err.count("warning: 1 of 40 hypotheses are empty: ") == 1
    assert not [warning for warning in recwarn if "empty" in str(warning.message)]


def test_warnings_come_before_the_scores(files, tmp_path, capsys):
    (tmp_path / "tok.de").write_text("".join(f"{line.replace('„', '&quot; ')}\n" for line in files))
    evaluate(["--hypothesis", "tok.de", "--reference", "test.de"])
    assert "warning: 40 of 40 hypotheses hold &quot; or the like" in capsys.readouterr().err


def test_a_test_set_that_is_not_whole_is_warned_of(files, capsys):
    shutil.copy("test.de", "newstest2014.de")
    evaluate(["--hypothesis", "good.de", "--reference", "newstest2014.de"])
    assert "warning: newstest2014 has 3,003 lines, but this has 40" in capsys.readouterr().err


def test_of_tokenized_text_only_empty_hypotheses_are_warned_of(files, tmp_path, capsys):
    (tmp_path / "hyp.tok").write_text("\n" + "gu@@ t .\n" * 39)
    (tmp_path / "old.tok").write_text("gu@@ t .\n" * 40)
    flags = ["--reference", "test.de", "--tokenized", "--baseline_hypothesis", "old.tok"]
    evaluate(["--hypothesis", "hyp.tok", *flags])
    said = capsys.readouterr().err
    assert said.count("warning: ") == said.count("warning: 1 of 40 hypotheses are empty") == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--hypothesis", "good.de"], "exactly one of reference and dataset_name must be given"),
        (["--reference", "test.de"], "exactly one of model and hypothesis must be given"),
        (
            ["--hypothesis", "good.de", "--reference", "test.de", "--shortlist"],
            "shortlist is for a model: a hypothesis",
        ),
        (
            ["--hypothesis", "good.de", "--reference", "test.de", "--target_lang", "xx"],
            "target_lang='xx' must be one of",
        ),
        (["--hypothesis", "no.de", "--reference", "test.de"], "the file no.de does not exist"),
        (
            ["--hypothesis", "empty.de", "--reference", "test.de"],
            "the hypothesis file empty.de is empty: it must hold",
        ),
        (
            ["--hypothesis", "short.de", "--reference", "test.de"],
            "short.de has 1 lines but test.de has 40: the numbers",
        ),
        (["--hypothesis", "good.de", "--reference", "empty.de"], "the reference empty.de is empty"),
        (
            ["--hypothesis", "good.de", "--reference", "test.de", "--output", "no/out.de"],
            "output='no/out.de' cannot be written: its folder does not exist",
        ),
        (["--model", "nowhere", "--reference", "test.de"], "source is missing: a model needs something to translate"),
        (["--hypothesis", "good.de", "--reference", "test.de", "--beams"], "unrecognized arguments: --beams"),
        (
            ["--hypothesis", "good.de", "--reference", "test.de", "--num_beams", "0"],
            "argument --num_beams: '0' must be",
        ),
        (
            ["--hypothesis", "good.de", "--reference", "test.de", "--workers", "1"],
            "workers=1 is for a model: a hypothesis has been written already",
        ),
        (
            ["--hypothesis", "good.de", "--reference", "test.de", "--torch_compile"],
            "torch_compile is for a model: a hypothesis has been written already",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_sentence(flags, sentence, files, tmp_path):
    (tmp_path / "empty.de").write_text("")
    (tmp_path / "short.de").write_text("Satz\n")
    with pytest.raises(UserError) as refused:
        evaluate(flags)
    assert str(refused.value).startswith(sentence)


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(files, tmp_path):
    (tmp_path / "folder").mkdir()
    for flag in ("json", "output"):
        with pytest.raises(UserError, match=rf"^{flag}='folder' cannot be written: Is a directory$"):
            evaluate(["--model", "nowhere", "--source", "test.en", "--reference", "test.de", f"--{flag}", "folder"])


@pytest.fixture
def published(model, tokenizer, files, tmp_path):
    """Write a model folder, and return the flags that have it evaluated, each line with a token."""
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    return ["--model", "model", "--source", "test.en", "--reference", "test.de", "--max_new_tokens", "1"]


def test_a_translation_is_a_line_of_the_output_whatever_is_in_it(published, monkeypatch):
    monkeypatch.setattr("vaswani.evaluation.translate_all", lambda model, tokenizer, text, **how: ["a\nb\x85"] * 40)
    evaluate([*published, "--no_record", "--output", "out.de"])
    assert Path("out.de").read_bytes() == "a b\x85\n".encode() * 40


def test_what_cannot_be_written_after_all_costs_nothing_else(published, tmp_path, capsys):
    assert cli.main(["evaluate", *published, "--output", "/dev/full", "--json", "/dev/full"]) == 1
    said = capsys.readouterr()
    assert "BLEU, sacreBLEU" in said.out
    full = "'/dev/full' cannot be written: No space left on device"
    assert said.err.splitlines()[-1] == f"error: output={full}; json={full}"
    assert len((tmp_path / "model" / "metrics.jsonl").read_text().splitlines()) == 1


def test_scores_that_standard_output_does_not_take_go_to_standard_error(files):
    command = [sys.executable, "-m", "vaswani", "evaluate", "--hypothesis", "good.de", "--reference", "test.de"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[0]) == (1, "test.de, test: 40 sentences, target language de")
    assert lines[-1] == "error: standard output cannot be written: No space left on device"


def test_scores_are_printed_where_they_cannot_be_recorded(published, tmp_path, capsys):
    card = tmp_path / "model" / "README.md"
    card.write_bytes(b"---\nlanguage: [en, de]\n---\n# Sch\xf6n\n")
    assert cli.main(["evaluate", *published]) == 1
    said = capsys.readouterr()
    assert "BLEU, sacreBLEU" in said.out
    assert "error: the evaluation is recorded in model/metrics.jsonl, but cannot" in said.err.splitlines()[-1]


def test_a_baseline_that_is_not_there_is_said_before_anything_is_translated(published, monkeypatch):
    monkeypatch.setattr("vaswani.cli.evaluate.evaluate_model", lambda *given: pytest.fail("it translates"))
    for flags in (["--baseline_hypothesis", "no.de"], ["--baseline_model", "nowhere"]):
        with pytest.raises(UserError, match=r"the file no\.de does not exist|model='nowhere'"):
            evaluate([*published, *flags])


def test_a_baseline_that_fails_costs_the_comparison_alone(published, monkeypatch, capsys):
    def fail(*given, **how):
        raise UserError("a worker was killed")

    monkeypatch.setattr("vaswani.cli.evaluate.translate_all", fail)
    assert cli.main(["evaluate", *published, "--no_record", "--baseline_model", "model"]) == 1
    said = capsys.readouterr()
    assert "BLEU, sacreBLEU" in said.out
    assert said.err.splitlines()[-1] == "error: a worker was killed"


def test_a_baseline_beside_a_hypothesis_has_the_tokenizer_that_is_named(published, tokenizer, capsys):
    tokenizer.save_pretrained("elsewhere")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path("model", name).unlink()
    flags = ["--hypothesis", "good.de", "--baseline_model", *published[1:]]
    with pytest.raises(UserError, match="model='model' has no tokenizer"):
        evaluate(flags)
    evaluate([*flags, "--tokenizer", "elsewhere"])
    assert "Against the baseline" in capsys.readouterr().out


def test_files_of_the_wrong_sides_are_refused(model, published):
    model.config.source_lang, model.config.target_lang = "en", "de"
    model.save_pretrained("model")
    for files in (["test.de", "test.en"], ["test.de", "test.de"], ["test.en", "test.en"]):
        with pytest.raises(UserError, match="must hold 'en' and the second 'de'"):
            evaluate([*published[:2], "--source", files[0], "--reference", files[1]])


def test_a_text_of_empty_lines_is_refused_in_a_sentence(published, tmp_path):
    (tmp_path / "empty").write_text("\n" * 40)
    for flag in ("--source", "--reference"):
        with pytest.raises(UserError, match=r"^the text holds no pair to score: one at least must have text on both"):
            evaluate([*published, flag, "empty"])


def test_flags_reach_both_models_and_the_likelihood(published, monkeypatch):
    asked, batches, translate = [], [], evaluation.translate_all

    def watched(*given, **how):
        asked.append({name: how.get(name) for name in ("max_batch_tokens", "max_new_tokens", "num_beams")})
        return translate(*given, **how)

    def encode(tokenizer, text, max_tokens, *others):
        batches.append(max_tokens)
        return evaluation.encode_in_batches(tokenizer, text, max_tokens, *others)

    for module in ("vaswani.evaluation", "vaswani.cli.evaluate"):
        monkeypatch.setattr(f"{module}.translate_all", watched)
    monkeypatch.setattr("vaswani.cli.evaluate.encode_in_batches", encode)
    flags = ["--max_batch_tokens", "99", "--num_beams", "2", "--baseline_model", "model", "--no_record"]
    evaluate([*published, *flags])
    assert asked == [{"max_batch_tokens": 99, "max_new_tokens": 1, "num_beams": 2}] * 2
    assert batches == [99]


def test_pairs_beyond_a_table_of_positions_are_left_out_of_the_likelihood(random_model, tokenizer, files, capsys):
    tokenizer.save_pretrained("model")
    random_model(vocab_size=265, position_embedding_type="learned", max_position_embeddings=20).save_pretrained(
        "model"
    )
    Path("two.en").write_text("one\n" + "one two three four five six " * 9 + "\n")
    Path("two.de").write_text("one\n" * 2)
    flags = ["--model", "model", "--source", "two.en", "--reference", "two.de", "--max_new_tokens", "1", "--no_record"]
    evaluate(flags)
    assert "warning: 1 of 2 pairs are longer than the model's 20 positions" in capsys.readouterr().err


def test_a_dataset_has_the_columns_of_the_models_languages(model, tokenizer, files, capsys):
    model.config.source_lang, model.config.target_lang = "en", "de"
    for part in (model, tokenizer):
        part.save_pretrained("model")
    Path("data").mkdir()
    Path("data/test.jsonl").write_text('{"en": "one two", "de": "eins zwei", "fr": "un deux"}\n')
    for given, language in (([], "de"), (["--target_lang", "fr"], "fr")):
        evaluate(
            ["--model", "model", "--dataset_name", "data", "--max_new_tokens", "1", "--no_record", "--json", *given]
        )
        row = json.loads(capsys.readouterr().out)
        assert (row["target_lang"], row["test_set"], row["split"]) == (language, "data", "test")


def test_samples_are_the_first_of_all_files(files, capsys):
    Path("first.de").write_text("\n".join(files[:5]))
    for hypothesis in ("good.de", "first.de"):
        flags = ["--hypothesis", hypothesis, "--reference", "test.de", "--max_samples", "5", "--output", "out.de"]
        evaluate([*flags, "--baseline_hypothesis", "bad.de", "--json"])
        assert json.loads(capsys.readouterr().out)["sentences"] == 5
        assert Path("out.de").read_text().splitlines() == Path(hypothesis).read_text().splitlines()[:5]


def test_workers_translate_what_is_scored(model, tokenizer, files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    flags = ["--model", "model", "--source", "test.en", "--reference", "test.de", "--max_new_tokens", "5", "--json"]
    flags += ["--baseline_model", "model", "--no_record"]
    rows, said = [], []
    for number in ("1", "2"):
        evaluate([*flags, "--workers", number])
        captured = capsys.readouterr()
        rows.append(json.loads(captured.out) | {"seconds": None})
        said.append(captured.err)
    assert rows[0] == rows[1]
    assert said[0].count("Translating with 1 worker of ") == 2
    assert said[1].count("Translating with 2 workers of 1 thread each, float32, cpu\n") == 2
    with pytest.raises(UserError, match="workers=3 must be at most 2"):
        evaluate([*flags, "--workers", "3"])


@pytest.fixture
def treebank(tmp_path, monkeypatch):
    """Write gold trees, other trees, a treebank of them and a parser into the working directory."""
    monkeypatch.chdir(tmp_path)
    gold = "".join(f"{tree}\n" for tree in TREES)
    Path("gold.mrg").write_text(gold)
    Path("other.mrg").write_text(gold.replace("(VP (VBZ sleeps))", "(VBZ sleeps)").replace("(RB often)", "(JJ often)"))
    Path("treebank").mkdir()
    for split in ("train", "validation", "test"):
        Path("treebank", f"{split}.mrg").write_text(gold)
    save_parser("model")


def test_trees_of_a_file_are_scored_as_evalb_scores_them(treebank, capsys):
    flags = ["--hypothesis", "other.mrg", "--reference", "gold.mrg", "--target_lang", "tree"]
    evaluate([*flags, "--json"])
    row = json.loads(capsys.readouterr().out)
    # 14 gold brackets, one of them missing; 16 words without punctuation, one with another part of speech
    assert (row["bracketing_recall"], row["bracketing_precision"]) == (92.86, 100.0)
    assert (row["tagging_accuracy"], row["exact_match"], row["sentences"]) == (93.75, 75.0, 4)
    evaluate(flags)
    said = capsys.readouterr().out
    for text in ("gold.mrg, test: 4 trees", "labelled F1                    96.30", "F1 of 1-10 words"):
        assert text in said
    Path("gold.mrg.gz").write_bytes(gzip.compress(Path("gold.mrg").read_bytes()))
    for reference in ("gold.mrg", "gold.mrg.gz"):  # whose ending says what they hold
        evaluate(["--hypothesis", "other.mrg", "--reference", reference, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["target_lang"], found["bracketing_f1"]) == ("tree", row["bracketing_f1"])


def test_samples_of_trees_are_cut_and_counted_as_trees(treebank, capsys):
    flags = ["--hypothesis", "other.mrg", "--reference", "gold.mrg", "--target_lang", "tree", "--json"]
    evaluate([*flags, "--max_samples", "2"])
    assert json.loads(capsys.readouterr().out)["sentences"] == 2
    Path("other.mrg").write_text(f"{TREES[0]}\n")
    with pytest.raises(UserError, match=r"^other\.mrg has 1 trees but gold\.mrg has 4: the numbers must be equal$"):
        evaluate(flags)


def test_a_parser_is_scored_on_a_treebank_or_a_file(treebank, capsys):
    where = ["--dataset_name", "treebank:treebank", "--split", "validation"]
    rows = []
    for given in ([*where], ["--reference", "gold.mrg"], [*where, "--unconstrained"]):
        evaluate(["--model", "model", *given, "--no_record", "--json", "--output", "out.mrg"])
        rows.append(json.loads(capsys.readouterr().out))
        words = [[word for word, _ in tree.leaves()] for tree in read_trees("out.mrg")]
        assert words == [sentence.split() for sentence in SENTENCES]
    of_dataset, of_file, free = rows
    assert of_dataset["bracketing_f1"] == of_file["bracketing_f1"]
    assert (of_dataset["well_formed"], of_dataset["decoding"]) == (100.0, "greedy, trees only")
    assert (free["well_formed"] < 100, free["decoding"]) == (True, "greedy")
    assert (of_dataset["split"], of_dataset["target_lang"]) == ("validation", "tree")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--lowercase"], "lowercase is for translations, but target_lang='tree'"),
        (["--tokenized"], "tokenized is for translations, but target_lang='tree'"),
        (["--baseline_hypothesis", "other.mrg"], "baseline_hypothesis is for translations"),
        (["--source", "gold.mrg"], "source must be left out where the references are trees"),
        (["--unconstrained"], "unconstrained is for a model: a hypothesis has been written already"),
        (["--target_lang", "de", "--unconstrained"], "unconstrained is for parses, but target_lang='de'"),
    ],
)
def test_what_does_not_go_with_trees_is_refused(flags, sentence, treebank):
    with pytest.raises(UserError) as refused:
        evaluate(["--hypothesis", "other.mrg", "--reference", "gold.mrg", "--target_lang", "tree", *flags])
    assert str(refused.value).startswith(sentence)


def test_a_shortlist_is_named_among_the_tricks_and_compared_with_none(model, tokenizer, files, capsys):
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    flags = ["--model", "model", "--source", "test.en", "--reference", "test.de", "--max_new_tokens", "5"]
    with pytest.raises(UserError, match=r"model='model' has no shortlist\.safetensors"):
        evaluate([*flags, "--shortlist"])
    cli.run(
        "shortlist", "--model", "model", "--source", "test.en", "--target", "good.de", "--frequent", "1", "--quiet"
    )
    written = []
    for given in ([], ["--shortlist"]):
        evaluate([*flags, "--num_beams", "1", "--json", "--no_record", "--output", "out.de", *given])
        row = json.loads(capsys.readouterr().out)
        assert row["decoding"] == "greedy, at most 5 tokens" + (", shortlist" if given else "")
        written.append(Path("out.de").read_text())
    assert written[0] != written[1]
    Path("out.de").write_text(written[0])
    results = []
    for baseline in ("--baseline_model=model", "--baseline_hypothesis=out.de"):
        evaluate([*flags, "--num_beams", "1", "--json", "--no_record", "--shortlist", baseline])
        results.append(json.loads(capsys.readouterr().out)["comparison"])
    assert results[0] == results[1]


def test_a_translator_is_not_scored_on_trees(treebank, published):
    with pytest.raises(UserError, match=r"^model='model' must be a parser, whose target language is 'tree'$"):
        evaluate(["--model", "model", "--reference", "gold.mrg", "--target_lang", "tree"])


def test_a_parser_has_no_shortlist(treebank):
    with pytest.raises(UserError, match="shortlist is for translations, but target_lang='tree'"):
        evaluate(["--model", "model", "--reference", "gold.mrg", "--target_lang", "tree", "--shortlist"])


def test_too_little_memory_is_said_before_it_is_needed(model, tokenizer, files, tmp_path, monkeypatch, capsys):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.setattr("vaswani.memory.available_bytes", lambda: 2_000_000)
    flags = ["--model", "model", "--source", "test.en", "--reference", "test.de", "--max_new_tokens", "1"]
    evaluate([*flags, "--num_beams", "1", "--no_record"])
    assert capsys.readouterr().err.count("warning: this may need ") == 1


def test_a_baseline_is_computed_by_torch_and_has_its_own_tokenizer_beside_a_model(published, monkeypatch):
    asked = []

    def load(options):
        asked.append((options.model, options.tokenizer, options.engine))
        if len(asked) == 2:
            raise UserError("both were asked for")

    monkeypatch.setattr("vaswani.cli.evaluate.load_model", load)
    with pytest.raises(UserError, match="both were asked for"):
        evaluate([*published, "--tokenizer", "other", "--engine", "ctranslate2", "--baseline_model", "old"])
    assert asked == [("model", "other", "ctranslate2"), ("old", None, "torch")]


def test_an_ensemble_is_judged_and_stands_in_no_card(published, tmp_path, capsys):
    evaluate([*published, "--ensemble", "model", "model", "--baseline_model", "model", "--workers", "1"])
    said = capsys.readouterr().out
    assert "ensemble of 3" in said
    assert "paired" in said.lower() or "p =" in said
    assert not (tmp_path / "model" / "metrics.jsonl").exists()


def test_a_baseline_is_no_part_of_the_ensemble(published, monkeypatch):
    asked = []

    def load(options):
        asked.append((options.model, options.ensemble))
        if len(asked) == 2:
            raise UserError("both were asked for")

    monkeypatch.setattr("vaswani.cli.evaluate.load_model", load)
    with pytest.raises(UserError, match="both were asked for"):
        evaluate([*published, "--ensemble", "other", "--baseline_model", "old"])
    assert asked == [("model", ["other"]), ("old", None)]
