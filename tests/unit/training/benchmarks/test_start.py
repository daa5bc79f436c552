import json
import subprocess
import sys

import pytest

from training import benchmark
from training.benchmarks import start
from training.benchmarks.start import NEW_TOKENS, enter, make_tokenizer, save_models, seconds_to_a_line
from vaswani.errors import UserError


@pytest.fixture
def config(tmp_path) -> str:
    """Return a folder with the config of a tiny model."""
    sizes = {"d_model": 16, "vocab_size": 300}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 1, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 16}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps({"model_type": "vaswani", **sizes}))
    return str(tmp_path / "config")


def test_the_clock_stops_at_the_first_line():
    program = "import sys, time; print(len(input()), flush=True); time.sleep(2)"
    assert 0 < seconds_to_a_line([sys.executable, "-c", program], "five words or a few") < 2


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import nowhere", r"^a measurement failed: .*No module named 'nowhere'$"),
        ("print(); import sys; sys.exit('error: too late')", r"^a measurement failed: too late$"),
        ("input()", r"^a measurement failed: exit 0$"),
    ],
)
def test_a_process_that_fails_or_says_nothing_is_no_measurement(program, message):
    with pytest.raises(UserError, match=message):
        seconds_to_a_line([sys.executable, "-c", program], "a sentence")


def test_both_write_as_many_tokens(config, tmp_path):
    sentence = save_models(config, tmp_path)
    commands = {contender.what: contender.command for contender in enter(tmp_path, "cpu")}
    lines = [
        subprocess.run(commands[name], input=f"{sentence}\n", capture_output=True, text=True, check=True).stdout
        for name in ("vaswani translate", "MarianMT")
    ]
    assert [len(line.removesuffix("\n")) for line in lines] == [NEW_TOKENS] * 2  # of a letter each


def test_a_tokenizer_has_as_many_types_as_the_model():
    tokenizer, sentence = make_tokenizer(2000)
    assert len(tokenizer) == 2000
    assert len(sentence.split()) == 10
    assert len(tokenizer(sentence).input_ids) < len(sentence)  # words are known in part


def test_each_is_compared_with_ours_and_the_first_turn_does_not_count(monkeypatch, config):
    started = []

    def seconds_to_a_line(command, sentence):
        started.append(command)
        turn, place = divmod(len(started) - 1, 8)
        return 99.0 if turn == 0 else 10.0 * place + turn

    monkeypatch.setattr(start, "seconds_to_a_line", seconds_to_a_line)
    rows = start.run(benchmark.parse(["start", "--starts=3", f"--start_config={config}", "--device=cpu"]))
    assert started[:8] * 4 == started
    assert [(row["median"], row["lowest"], row["highest"]) for row in rows[:2]] == [
        (2.0, 1.0, 3.0),
        (12.0, 11.0, 13.0),
    ]
    assert [row["times ours"] for row in rows[:4]] == [1.0, 6.0, 1.0, 32 / 22]
    assert all(row["what"] for row in rows)
    assert max(map(len, benchmark.table(rows).splitlines())) <= 100
