import json

import pytest

from training.reports.records import read_runs
from training.tables.cost import flops_per_target_token
from vaswani.errors import UserError


def test_a_run_is_what_its_directory_holds(make_run):
    [run] = read_runs([make_run()])
    assert (run.name, run.step, run.max_steps, run.is_finished) == ("mine", 6, 6, True)
    assert (run.target_tokens, run.seconds) == (1200, 24.0)
    assert [row["step"] for row in run.evaluations] == [2, 6]
    assert (run.languages, run.is_parser, run.unreadable) == (("de", "en"), False, 0)
    assert run.lengths == {"source": [0, 3, 5], "target": [0, 2, 6]}
    assert run.seconds_left is None


def test_the_time_that_is_left_is_that_of_the_updates_so_far(make_run):
    [run] = read_runs([make_run(finished=False, max_steps=15)])
    assert run.seconds_left == 36.0


def test_a_finished_run_that_is_extended_is_under_way(make_run):
    directory = make_run()
    recipe = directory / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("max_steps = 6", "max_steps = 15"))  # as resuming writes it
    [run] = read_runs([directory])
    assert (run.is_finished, run.seconds_left) == (False, 36.0)


def test_outputs_stand_in_the_order_of_training_the_last_at_the_end(make_run):
    [run] = read_runs([make_run()])
    found = run.outputs("validation")
    assert [outputs.step for outputs in found] == [2, 4, None]
    assert [outputs.name for outputs in found] == ["update 2", "update 4", "at the end"]
    assert found[1].outputs == ["a dog", "two", "x", "hello"]
    assert found[1].sources[3] == "שלום עולם"
    assert run.outputs("test") == []


def test_only_a_line_feed_ends_an_output(make_run):
    directory = make_run()
    (directory / "outputs" / "validation.final.txt").write_bytes("a\rdog\ntwo\u2028dogs\r\n\r\r\nhello\n".encode())
    [run] = read_runs([directory])
    assert run.outputs("validation")[-1].outputs == ["a\rdog", "two\u2028dogs\r", "\r\r", "hello"]


def test_its_flops_are_those_of_its_model(make_run, tiny_config):
    directory = make_run()
    [run] = read_runs([directory])
    assert run.flops is None
    tiny_config().save_pretrained(directory / "checkpoints" / "step-2")
    [run] = read_runs([directory])
    assert run.flops == pytest.approx(1200 * flops_per_target_token(tiny_config()))
    tiny_config(d_model=32).save_pretrained(directory / "model")
    [run] = read_runs([directory])
    assert run.flops == pytest.approx(1200 * flops_per_target_token(tiny_config(d_model=32)))
    tiny_config(attention_restriction=2).save_pretrained(directory / "model")
    [run] = read_runs([directory])
    assert run.flops is None  # nobody counts these


def test_a_line_that_is_not_whole_is_left_out_and_counted(make_run):
    directory = make_run()
    with open(directory / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "los\n5\n')
    [run] = read_runs([directory])
    assert (run.step, run.unreadable) == (6, 2)


def test_what_was_evaluated_after_the_run_is_no_result_of_it(make_run):
    directory = make_run()
    with open(directory / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "split": "validation", "test_set": "mini.de", "sacrebleu": 99.0}\n')
    [run] = read_runs([directory])
    assert [row["sacrebleu"] for row in run.evaluations] == [20.5, 33.75]


def test_runs_have_the_shortest_names_that_tell_them_apart(make_run):
    runs = read_runs([make_run("a/run"), make_run("b/run"), make_run("b/other")])
    assert [run.name for run in runs] == ["a/run", "b/run", "b/other"]
    assert [run.name for run in read_runs([run.directory for run in runs[1:]])] == ["run", "other"]


def test_what_is_no_run_is_refused_in_a_sentence(make_run, tmp_path):
    run = make_run()
    with pytest.raises(UserError, match="each run must stand there once"):
        read_runs([run, run / ".." / "mine"])
    with pytest.raises(UserError, match=r"nothing must be the output directory of training/run\.py, which has a m"):
        read_runs([tmp_path / "nothing"])
    (run / "recipe.toml").write_text("max_steps = ")
    with pytest.raises(UserError, match="cannot be read as a run: TOMLDecodeError"):
        read_runs([run])
    (run / "recipe.toml").write_text("[run]\n")
    with pytest.raises(UserError, match="cannot be read as a run: KeyError: 'max_steps'"):
        read_runs([run])
    (run / "recipe.toml").unlink()
    with pytest.raises(UserError, match=r"which has a recipe\.toml: this has none"):
        read_runs([run])


def test_a_parser_is_known_by_its_target(make_run):
    [run] = read_runs([make_run(target_lang="tree")])
    assert run.is_parser
    assert json.loads(json.dumps(run.recipe))["run"]["hardware"] == "a machine"
