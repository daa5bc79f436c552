import csv
import json
from pathlib import Path

import pytest

from training import table3
from training.settings import ROOT
from training.tables import report
from training.tables.cost import count_parameters
from training.tables.report import orderings, write_report
from training.tables.rows import ROWS, SERIES, choose_rows, scale_config, write_config
from training.tables.sweep import Run, run_all
from vaswani.errors import UserError


# At 40,960 types, with biases in attention: shared/reference/paper-and-peers.md 1.7 works them out by hand.
COUNTS = {
    "base": 65_110_016,
    "B-k16": 58_018_304,
    "B-k32": 60_382_208,
    "C-N2": 35_684_352,
    "C-N4": 50_397_184,
    "C-N8": 79_822_848,
    "C-d256": 27_848_704,
    "C-d1024": 167_944_192,
    "C-ff1024": 52_514_816,
    "C-ff4096": 90_300_416,
}
BIG = 218_300_416

# Of every row, all that its config has other than base's.
CHANGES = {
    **{f"A-h{h}": {"encoder_attention_heads": h, "decoder_attention_heads": h} for h in (1, 4, 16, 32)},
    **{f"B-k{k}": {"head_dim": k, "v_head_dim": 64} for k in (16, 32)},
    **{f"C-N{n}": {"encoder_layers": n, "decoder_layers": n} for n in (2, 4, 8)},
    **{f"C-d{d}": {"d_model": d} for d in (256, 1024)},
    **{f"C-ff{d}": {"encoder_ffn_dim": d, "decoder_ffn_dim": d} for d in (1024, 4096)},
    **{f"D-drop{p}": {"dropout": p} for p in (0.0, 0.2)},
    **{f"D-ls{e}": {} for e in (0.0, 0.2)},
    "E-learned": {"position_embedding_type": "learned", "max_position_embeddings": 1024},
}


def declared(name: str) -> dict:
    return json.loads((ROWS[name].folder / "config.json").read_text())


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_are_the_papers(name, count):
    assert count_parameters(ROWS[name].config, 40_960) == count
    assert round(count / 1e6) == ROWS[name].parameters


@pytest.mark.parametrize(("name", "count"), [("base", 63_045_632), ("big", 214_171_648)])
def test_parameters_without_biases_in_attention_at_the_vocabulary_of_the_text(name, count):
    config = ROWS[name].config
    config.attention_bias = False
    assert count_parameters(config, 37_000) == count


def test_the_printed_count_of_big_is_one_that_no_vocabulary_explains():
    assert count_parameters(ROWS["big"].config, 40_960) == BIG
    assert (round(BIG / 1e6), ROWS["big"].parameters) == (218, 213)
    fitting = [v for v in range(30_000, 42_000, 100) if round((BIG - 1024 * (40_960 - v)) / 1e6) == 213]
    base = [round((COUNTS["base"] - 512 * (40_960 - v)) / 1e6) for v in fitting]
    assert fitting
    assert 65 not in base


def test_every_printed_count_is_tested():
    assert {name for name, row in ROWS.items() if row.parameters} == {*COUNTS, "big"}


def test_every_row_is_base_but_for_what_the_table_says():
    assert {*CHANGES, "base", "big"} == set(ROWS)
    for name, changes in CHANGES.items():
        assert declared(name) == declared("base") | changes
    stacks = {f"{stack}_ffn_dim": 4096 for stack in ("encoder", "decoder")}
    stacks |= {f"{stack}_attention_heads": 16 for stack in ("encoder", "decoder")}
    assert declared("big") == declared("base") | {"d_model": 1024, "dropout": 0.3} | stacks


def test_every_recipe_is_bases_but_for_what_the_table_says():
    base = vars(ROWS["base"].settings())
    for name, row in ROWS.items():
        settings = vars(row.settings())
        changed = {key: value for key, value in settings.items() if value != base[key] and key != "save_steps"}
        expected = {} if name == "base" else {"config_name": row.config_name, "output_dir": f"runs/{row.config_name}"}
        if name.startswith("D-ls"):
            expected["label_smoothing"] = float(name.removeprefix("D-ls"))
        if name == "big":
            expected["max_steps"] = 300_000
        assert changed == expected
        assert settings["average_checkpoints"] == 1


def test_series_hold_every_row():
    assert {name for names in SERIES.values() for name in names} == set(ROWS)


@pytest.mark.parametrize("scale", [1 / 16, 1 / 8, 3 / 16, 1 / 4, 1 / 2])
def test_scaled_rows_keep_their_ratios(scale, tmp_path):
    base, small_base = ROWS["base"].config, scale_config(ROWS["base"].config, scale)
    for row in ROWS.values():
        config, small = row.config, scale_config(row.config, scale)
        for name in ("d_model", "encoder_ffn_dim", "head_dim", "encoder_layers", "encoder_attention_heads"):
            # a / b = c / d, without division
            assert getattr(small, name) * getattr(base, name) == getattr(config, name) * getattr(small_base, name)
        assert (small.v_head_dim or small.head_dim) == (config.v_head_dim or config.head_dim) * scale
        assert small.decoder_layers * 2 == config.decoder_layers
        assert (small.dropout, small.position_embedding_type) == (config.dropout, config.position_embedding_type)
        write_config(row, scale, tmp_path / row.name)
        written = json.loads((tmp_path / row.name / "config.json").read_text())
        assert written.keys() == declared(row.name).keys()
        assert {name: getattr(small, name) for name in written if hasattr(small, name)} == written


def test_a_row_at_another_scale_is_not_written_over(tmp_path):
    write_config(ROWS["base"], 0.25, tmp_path)
    written = (tmp_path / "config.json").read_text()
    write_config(ROWS["base"], 0.25, tmp_path)
    with pytest.raises(UserError, match=r"holds the row at another scale than 0\.5: choose another output_dir"):
        write_config(ROWS["base"], 0.5, tmp_path)
    assert (tmp_path / "config.json").read_text() == written


def test_at_scale_1_nothing_changes():
    for row in ROWS.values():
        assert scale_config(row.config, 1).to_diff_dict() == row.config.to_diff_dict()


@pytest.mark.parametrize("scale", [0, -0.5, 0.3, 2, 1.5])
def test_other_scales_are_refused(scale):
    with pytest.raises(UserError, match=rf"scale={scale} must be a multiple of 1/16"):
        scale_config(ROWS["base"].config, scale)


GIVEN = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows", "base,B-k15"], "unknown row of Table 3 'B-k15': the nearest known one is 'B-k16'; --list has all"),
        (["--rows", ","], "rows must name at least one row"),
        (["--budget", "24999"], "budget=24999 target tokens do not suffice for one update .*=25,000"),
        (["--budget", "0"], "budget=0 target tokens do not suffice"),
        (["--config_name", "base-en-de"], "--config_name is no flag of the whole table: each row has its own"),
        (["--model_name_or_path=x"], "--model_name_or_path is no flag of the whole table: its rows begin with new"),
        (["--label_smoothing=0.3"], "--label_smoothing is no flag of the whole table"),
        (["--max_steps", "10"], "--max_steps is no flag of the whole table: --budget sets it"),
        (["--max_tokens", "10"], "unknown flag '--max_tokens': the nearest known one is 'max_tokens_per_"),
        (["--row", "base"], "unknown flag '--row': the nearest known one is 'rows'"),
        (["--jobs", "0"], "jobs=0 must be at least 1"),
        (["--json"], "--json says how --list prints the rows: give both"),
        (["--scale", "0.3"], "scale=0.3 must be a multiple"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        table3.main(["--rows", "base", "--output_dir", str(tmp_path / "out"), *GIVEN, *flags])
    assert not (tmp_path / "out").exists()


def test_a_list_needs_no_training(capsys):
    table3.main(["--list", "--json", "--rows", "big,base", "--budget", "5000000"])
    base, big = json.loads(capsys.readouterr().out)
    assert (base["row"], base["parameters"], base["parameters_with_40960_types"]) == ("base", 63_082_496, 65_110_016)
    assert (base["max_steps"], big["max_steps"]) == (200, 600)
    assert (base["paper_perplexity"], big["paper_bleu"]) == (4.92, 26.4)
    assert base["training_flops"] == base["flops_per_target_token"] * 5_000_000


def test_the_list_fits_a_terminal_and_names_no_two_columns_alike(capsys):
    table3.main(["--list"])
    first, second = (text.splitlines() for text in capsys.readouterr().out.split("\n\n"))
    for table in (first, second):
        assert [line.split()[0] for line in table[2:]] == list(ROWS)
        assert max(map(len, table)) <= 120
    for columns in (report.ARCHITECTURE, report.COST_AND_RESULTS):
        titles = [title for title, _ in columns.values()]
        assert len(set(titles)) == len(titles)
    assert first[2].split()[-3:] == ["63,082,496", "65,110,016", "65,000,000"]
    assert second[2].split() == ["base", "0.1", "100,000", "3.81e+08", "9.5e+17", "3.3e+18", "4.92", "25.8"]


def fake_run(folder: Path, name: str, perplexity: float, bleu: float) -> Run:
    """Make the directory of a run that has finished with these figures."""
    flags = [*GIVEN, f"--output_dir={folder / name}", "--max_steps=10", "--save_steps=5"]
    run = Run(name, [], ROWS[name].settings(*flags), cost=1.0)
    (run.directory / "model").mkdir(parents=True)
    (run.directory / "model" / "README.md").touch()
    training = {"step": 10, "target_tokens": 100, "target_tokens_per_second": 50.0}
    final = {"step": 10, "split": "validation", "perplexity": perplexity, "paper_bleu": bleu, "sacrebleu": bleu - 1}
    final |= {"paper_bleu_signature": "x", "sacrebleu_signature": "y", "decoding": "beam 4", "sentences": 5}
    rows = [training, {**final, "perplexity": 999.0}, final]
    (run.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"torn')
    (run.directory / "recipe.toml").write_text(
        'dataset_name = "grammar"\nsource_lang = "en"\ntarget_lang = "de"\nvocab_size = 9\nseed = 1\n'
        '[run]\nhardware = "a machine"\nprecision = "bf16"\ntorch = "2"\ndate = "today"\n'
    )
    return run


def test_the_table_fills_itself_with_what_is_finished(tmp_path):
    runs = [fake_run(tmp_path, "base", 5.0, 20.0), fake_run(tmp_path, "A-h1", 5.5, 18.5)]
    runs.append(Run("A-h4", [], ROWS["A-h4"].settings(*GIVEN, f"--output_dir={tmp_path / 'A-h4'}"), cost=1.0))
    described = [table3.describe(ROWS[run.name], 1.0, run) for run in runs]
    write_report(described, runs, tmp_path / "table", "the command")
    with (tmp_path / "table" / "table3.csv").open() as file:
        base, one, four = csv.DictReader(file)
    assert (one["perplexity"], one["perplexity_minus_base"], one["paper_perplexity_minus_base"]) == (
        "5.5",
        "0.5",
        "0.37",
    )
    assert (one["bleu_minus_base"], one["paper_bleu_minus_base"], one["tokens_per_second"]) == ("-1.5", "-0.9", "50.0")
    assert (base["perplexity_minus_base"], four["perplexity"], four["perplexity_minus_base"]) == ("0.0", "", "")
    text = (tmp_path / "table" / "table3.md").read_text()
    assert "2 of 3 rows are finished" in text
    assert "`the command`" in text
    assert "| +0.50 | +0.37 |" in text
    assert (tmp_path / "table" / "table3.png").read_bytes().startswith(b"\x89PNG")


def test_orderings_are_held_against_the_papers():
    def answers(one: float, four: float) -> dict:
        rows = [{"row": "base", "perplexity": 5.0, "bleu": 20.0}, {"row": "A-h1", "perplexity": one, "bleu": 19.0}]
        rows += [{"row": "A-h4", "perplexity": four, "bleu": 19.5}, {"row": "A-h16"}]
        found = {(row["series"], row["by"]): row for row in orderings(rows)}
        return found["heads (A)", "perplexity"]

    as_paper = answers(one=5.4, four=5.2)
    assert (as_paper["pairs ordered as in the paper"], as_paper["paper's order, not here"]) == (
        "3 of 3",
        "",
    )
    swapped = answers(one=5.2, four=5.4)
    assert swapped["pairs ordered as in the paper"] == "2 of 3"
    assert swapped["paper's order, not here"] == "A-h4 before A-h1"
    assert answers(one=5.0, four=5.4)["pairs ordered as in the paper"] == "1 of 3"  # equal is not ordered


def test_a_directory_of_another_recipe_is_refused(tmp_path):
    run = fake_run(tmp_path, "base", 5.0, 20.0)
    with pytest.raises(UserError, match=r"holds a run of another recipe .*vocab_size is 9 there, 37000 here"):
        run.check()


def test_finished_runs_are_not_started_again(tmp_path):
    runs = [fake_run(tmp_path, "base", 5.0, 20.0)]
    run_all(runs, 1, when_done=lambda run: pytest.fail("it was run"))
    assert runs[0].process is None


def test_a_run_that_fails_is_named_with_its_last_words_and_the_others_go_on(tmp_path):
    runs = []
    for name in ("base", "A-h1"):
        flags = [*GIVEN, f"--output_dir={tmp_path / name}", "--config_name=/nowhere"]
        runs.append(Run(name, [*ROWS[name].arguments(), *flags], ROWS[name].settings(*flags), cost=1.0))
    done = []
    with pytest.raises(UserError, match=r"(?s)2 of 2 failed.*base: error: config_name='/nowhere' must be"):
        run_all(runs, 2, lambda run: done.append(run.name))
    assert sorted(done) == ["A-h1", "base"]
    assert "config_name" in (tmp_path / "base.log").read_text()


def test_an_output_dir_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output_dir='.*file/out' cannot be written to"):
        table3.main(["--rows", "base", *GIVEN, "--output_dir", str(tmp_path / "file" / "out")])


def test_rows_stand_in_the_order_of_the_table():
    assert [row.name for row in choose_rows(" big, base")] == ["base", "big"]
    assert len(choose_rows("all")) == len(ROWS) == 20
    assert all((ROOT / "training" / "recipes" / f"{row.config_name}.toml").exists() for row in choose_rows("all"))
