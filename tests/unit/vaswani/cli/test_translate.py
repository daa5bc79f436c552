"""`vaswani translate` within this process, by a model of random weights: its flags, resuming, signals and errors.

tests/e2e/test_translate.py has the tests of whole processes, pipes and kills.
"""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from transformers import AutoTokenizer, GenerationConfig

from vaswani import VaswaniForConditionalGeneration, cli, translation, workers
from vaswani.models import fusion_vaswani, generation_vaswani
from vaswani.models.allowed_tokens_vaswani import AllowedTokens
from vaswani.shortlists.shortlist import Shortlist
from vaswani.tokenization import train_tokenizer


SENTENCES = ["one two", "three", "", "four five six", "two one six"]
# Batches of one sentence, so that the same sentence has the same scores however its neighbors are divided.
DECODING = ["--num_beams", "3", "--max_new_tokens", "6", "--max_batch_tokens", "1"]


@pytest.fixture(autouse=True)
def folder(random_model, tiny_config, tmp_path, monkeypatch):
    """Work in a folder with a model in `model` and five lines in `in`."""
    monkeypatch.chdir(tmp_path)
    random_model(tiny_config(vocab_size=265)).save_pretrained("model")
    train_tokenizer(["one two three four five six"], 265).save_pretrained("model")
    write_lines("in", SENTENCES)


@pytest.fixture
def calls(monkeypatch):
    """Return the list of the calls of a `Translator`: their sentences, and what it was made with."""
    recorded = []

    class Recorder(translation.Translator):
        def __init__(self, model, tokenizer, **how):
            super().__init__(model, tokenizer, **how)
            self.how = {"model": model, **how}

        def __call__(self, sentences, *given):
            recorded.append({"sentences": list(sentences), **self.how})
            return super().__call__(sentences, *given)

    monkeypatch.setattr(translation, "Translator", Recorder)
    return recorded


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.fixture
def standard_input():
    """Return a function that puts a file in the place of standard input until the test ends."""
    before = os.dup(0)

    def put(path: str) -> None:
        with open(path, "rb") as file:
            os.dup2(file.fileno(), 0)

    yield put
    os.dup2(before, 0)
    os.close(before)


def write_lines(path: str, lines: list[str]) -> None:
    Path(path).write_text("".join(f"{line}\n" for line in lines))


def translate(*flags: str, source: str | None = "in", output: str = "out", status: int = 0) -> list[str]:
    """Translate, and return the lines that the output holds afterwards."""
    files = ["--output", output] if source is None else ["--input", source, "--output", output]
    assert cli.main(["translate", "--model", "model", *DECODING, "--quiet", *files, *flags]) == status
    if not Path(output).exists():
        return []
    with open(output, encoding="utf-8", newline="\n") as file:  # a random model may well say U+0085
        return list(file)


@pytest.mark.parametrize("num_beams", ["1", "3"])
def test_a_line_in_is_a_line_out_even_if_the_models_settings_ask_for_several(num_beams):
    once = translate("--num_beams", num_beams)
    settings = GenerationConfig.from_pretrained("model")
    settings.update(num_beams=3, num_return_sequences=2)
    settings.save_pretrained("model")
    assert translate("--num_beams", num_beams) == once
    assert len(once) == len(SENTENCES)


@pytest.mark.parametrize("held", range(16))
def test_an_n_best_file_is_resumed_after_its_whole_groups(held, calls):
    flags = ["--n_best", "3", "--scores", "--read_ahead", "2"]
    whole = translate(*flags, output="whole")
    groups = {tuple(whole[first : first + 3]) for first in range(0, 15, 3)}
    assert (len(whole), len(groups)) == (15, 5)  # no two alike, so that a wrong one shows
    calls.clear()
    Path("out").write_text("".join(whole[:held]) + "-1.23\thal")
    assert translate(*flags, "--resume") == whole
    again = [sentence for call in calls for sentence in call["sentences"]]
    assert again == SENTENCES[held // 3 :]


def test_an_n_best_file_of_more_groups_than_lines_is_not_the_inputs(capsys):
    write_lines("out", ["six"] * 18)
    assert len(translate("--n_best", "3", "--resume", status=1)) == 18
    assert "out has 6 lines but in has 5: not what became of it" in capsys.readouterr().err


def test_without_resume_the_output_is_written_anew():
    write_lines("out", ["an earlier, much longer translation"] * 9)
    assert translate() == translate("--resume", output="new")
    assert len(translate()) == 5


def test_an_error_after_resuming_names_the_line_of_the_whole_input(standard_input, capsys):
    whole = translate()
    Path("torn").write_bytes(b"one two\nthree\n\nfo\xffur\ntwo one six\n")
    Path("out").write_text("".join(whole[:2]))
    standard_input("torn")
    assert translate("--resume", source=None, status=1) == whole[:3]
    said = capsys.readouterr().err
    assert said.startswith("error: standard input is not UTF-8 in line 4: invalid start byte (--replace_invalid ")


def test_a_signal_waits_until_the_lines_are_whole(monkeypatch, capsys):
    whole = translate(output="whole")
    write, parts = os.write, []

    def write_in_parts(descriptor: int, data: memoryview) -> int:
        written = write(descriptor, data[:3])
        parts.append(written)
        if len(parts) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_in_parts)
        left = translate("--read_ahead", "2", status=128 + signal.SIGTERM)
    assert len(parts) > 1
    assert left == whole[:2]
    assert "Ended (SIGTERM): the output holds whole lines" in capsys.readouterr().err
    assert translate("--resume") == whole


def test_a_signal_while_translating_does_not_wait(monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.getsignal(signal.SIGTERM)  # Python's handler runs before this is over
        pytest.fail("went past the signal")

    monkeypatch.setattr(translation.Translator, "__call__", interrupted)
    assert translate(status=128 + signal.SIGTERM) == []


@pytest.mark.parametrize(("flags", "sizes"), [((), [5]), (("--read_ahead", "2"), [2, 2, 1])])
def test_lines_are_read_ahead_as_many_as_asked(flags, sizes, calls):
    translate(*flags)
    assert [len(call["sentences"]) for call in calls] == sizes
    assert [sentence for call in calls for sentence in call["sentences"]] == SENTENCES


def test_flags_reach_the_translation_and_what_is_not_given_is_left_to_the_model(calls, two_cores):
    flags = ["--num_beams", "2", "--length_penalty_alpha", "0", "--max_new_tokens", "4", "--max_batch_tokens", "9"]
    flags += ["--min_new_tokens", "2"]
    translate(*flags, "--n_best", "2", "--scores", "--dtype", "bfloat16", "--device", "cpu", "--workers", "1")
    assert cli.main(["translate", "--model", "model", "--input", "in", "--output", "out", "--quiet"]) == 0
    given, default = calls
    assert (given.pop("model").dtype, default.pop("model").dtype) == (torch.bfloat16, torch.float32)
    decoding = {"num_beams": 2, "length_penalty_alpha": 0.0, "max_new_tokens": 4, "min_new_tokens": 2}
    decoding["num_return_sequences"] = 2
    assert given == {"sentences": SENTENCES, "max_batch_tokens": 9, "with_scores": True, "workers": 1, **decoding}
    left = {"with_scores": False, "workers": 2, "num_return_sequences": 1}
    assert default == {"sentences": SENTENCES, "max_batch_tokens": 4096, **left}


def test_processes_live_for_all_windows(two_cores, monkeypatch):
    pools = []
    start = workers._started
    monkeypatch.setattr(workers, "_started", lambda *given: pools.append(given) or start(*given))
    write_lines("in", SENTENCES * 3)
    flags = ["--read_ahead", "5", "--max_batch_tokens", "1"]
    assert translate(*flags, "--workers", "2") == translate(*flags, "--workers", "1", output="alone")
    assert len(pools) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_compiled_it_translates_alike_with_workers_too(two_cores, capsys):
    flags = ["--read_ahead", "2", "--max_batch_tokens", "1", "--dtype", "float32"]
    expected = translate(*flags)
    write_lines("out", [])
    files = ["--model", "model", "--input", "in", "--output", "out", *DECODING]
    assert cli.main(["translate", *files, *flags, "--torch_compile"]) == 0
    assert Path("out").read_text() == "".join(expected)
    assert "Translating with 2 workers of 1 thread each, float32, cpu, compiled" in capsys.readouterr().err


def test_without_a_compiler_it_translates_all_the_same(caplog):
    expected = translate()
    fusion_vaswani.compiled.cache_clear()
    with fresh_cache(), config.patch({"cpp.cxx": (None, "/absent/g++")}):
        assert translate("--torch_compile", output="new") == expected
    fusion_vaswani.compiled.cache_clear()
    assert "No working C++ compiler found" in caplog.text
    assert "; nothing is compiled instead" in caplog.text


def test_only_torch_on_a_cpu_or_by_cuda_compiles(capsys, monkeypatch):
    assert translate("--torch_compile", "--engine", "onnxruntime", status=1) == []
    assert "error: torch_compile is for engine 'torch', not for 'onnxruntime'" in capsys.readouterr().err
    monkeypatch.setattr(VaswaniForConditionalGeneration, "fused", lambda self, config: None)
    assert translate("--torch_compile", status=1) == []
    assert (
        "torch_compile is for Transformers of this library on a CPU or a GPU by CUDA, and model='model' is"
        in capsys.readouterr().err
    )


def test_a_tokenizer_may_lie_elsewhere():
    expected = translate()
    Path("words").mkdir()
    for path in Path("model").glob("token*"):
        path.rename(Path("words") / path.name)
    assert translate("--tokenizer", "words", output="new") == expected


def test_scores_stand_before_their_translations():
    plain = translate("--n_best", "2")
    scored = [line.split("\t", 1) for line in translate("--n_best", "2", "--scores")]
    assert [text for _, text in scored] == plain
    assert [score for score, _ in scored[4:6]] == ["0.0000"] * 2  # the empty line's
    for first in (0, 2, 6, 8):
        best, second = (float(score) for score, _ in scored[first : first + 2])
        assert second <= best < 0


@pytest.mark.parametrize("source", ["torn", None], ids=["file", "standard input"])
def test_invalid_bytes_are_replaced_where_asked_and_otherwise_not_translated(source, standard_input, calls):
    Path("torn").write_bytes(b"on\xffe two\nthree\n")
    standard_input("torn")
    translate("--replace_invalid", source=source)
    assert [call["sentences"] for call in calls] == [["on\ufffde two", "three"]]
    calls.clear()
    standard_input("torn")
    write_lines("earlier", ["an earlier translation"])
    left = translate(source=source, output="earlier", status=1)
    assert left == (["an earlier translation\n"] if source else [])  # a file is checked before anything is written
    assert calls == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--num_beams", "2", "--n_best", "3"], "--n_best=3 must be at most --num_beams=2"),
        (["--num_beams", "1", "--n_best", "2"], "--n_best=2 must be at most --num_beams=1"),
        (["--n_best", "0"], "argument --n_best: '0' must be a whole number of at least 1"),
        (["--read_ahead", "0"], "argument --read_ahead: '0' must be a whole number of at least 1"),
        (["--output", "no/where"], "no/where cannot be opened: No such file or directory"),
        (["--input", "nowhere"], "nowhere cannot be read: No such file or directory"),
        (["--output", "/dev/full"], "/dev/full cannot be written: No space left on device"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence_and_before_the_output_is_touched(flags, sentence, capsys):
    write_lines("out", ["an earlier translation"])
    assert translate(*flags, status=1) == ["an earlier translation\n"]
    assert capsys.readouterr() == ("", f"error: {sentence}\n")


def test_a_parser_does_not_translate(capsys):
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps(config | {"source_lang": "en", "target_lang": "tree"}))
    translate(status=1, output="none")
    assert capsys.readouterr().err == "error: model='model' is a parser: vaswani parse is for it\n"


def test_the_models_own_beams_count_where_none_are_given(capsys):
    GenerationConfig.from_pretrained("model", num_beams=4).save_pretrained("model")
    arguments = ["translate", "--model", "model", "--input", "in", "--output", "out", "--quiet", "--n_best"]
    assert cli.main([*arguments, "5"]) == 1
    assert capsys.readouterr().err == "error: --n_best=5 must be at most --num_beams=4\n"
    assert cli.main([*arguments, "4"]) == 0
    assert Path("out").read_text().count("\n") == 20


def test_resuming_needs_a_file(capsys):
    assert cli.main(["translate", "--model", "model", "--input", "in", "--resume"]) == 1
    assert capsys.readouterr().err.startswith("error: --resume needs --output: ")


def test_progress_counts_the_lines_that_are_there_already(capsys):
    files = ["--input", "in", "--output", "out"]
    write_lines("out", ["six", "six"])
    assert cli.main(["translate", "--model", "model", *DECODING, *files, "--resume"]) == 0
    said = capsys.readouterr().err
    assert "Translating:  40% 2/5 [" in said
    assert "Translating: 100% 5/5 [" in said
    translate()
    assert capsys.readouterr().err == ""


def test_workers_write_the_same_and_it_is_said_who_they_are(two_cores, capsys):
    write_lines("in", SENTENCES * 8)
    alone = translate("--workers", "1", "--n_best", "2")
    flags = [*DECODING, "--max_batch_tokens", "50", "--n_best", "2", "--output", "out"]
    assert cli.main(["translate", "--model", "model", "--input", "in", *flags]) == 0
    assert Path("out").read_text() == "".join(alone)
    said = capsys.readouterr().err
    assert said.startswith("Translating with 2 workers of 1 thread each, float32, cpu\n")
    assert "100% 40/40 [" in said


def test_more_workers_than_cores_are_refused(two_cores, capsys):
    translate("--workers", "3", status=1)
    assert capsys.readouterr().err == "error: workers=3 must be at most 2, the number of cores that can be used\n"


def test_an_error_in_a_worker_is_the_same_sentence(two_cores, monkeypatch, capsys):
    def generate(*_, **given):
        if given["max_new_tokens"] > 1:  # not the call that is made before there are workers
            raise ValueError("this cannot be")
        return torch.zeros(1, 1, dtype=torch.long)

    monkeypatch.setattr(VaswaniForConditionalGeneration, "generate", generate)
    for number in ("1", "2"):
        assert translate("--workers", number, status=1) == []
        assert capsys.readouterr().err == "error: this cannot be\n"


def test_a_killed_worker_is_named_and_the_output_resumes(two_cores, monkeypatch, capsys):
    write_lines("in", SENTENCES * 2)
    whole = translate("--workers", "1", output="whole")
    generate, parent = translation._generate, os.getpid()

    def kill(*given):
        if os.getpid() != parent and Path("out").stat().st_size:
            os.kill(os.getpid(), signal.SIGKILL)
        return generate(*given)

    with monkeypatch.context() as patch:
        patch.setattr(translation, "_generate", kill)
        assert translate("--workers", "2", "--read_ahead", "5", status=1) == whole[:5]
    again = "the output holds whole lines; the same command with --resume does the others"
    assert re.fullmatch(f"error: worker [12] of 2 was ended by SIGKILL: {again}\n", capsys.readouterr().err)
    assert translate("--workers", "2", "--resume") == whole


def make_shortlist(*flags: str) -> Shortlist:
    """Make the shortlist of a text that says "five" alone, and return it."""
    write_lines("five", ["five"] * len(SENTENCES))
    assert cli.main(["shortlist", "--model", "model", "--source", "in", "--target", "five", "--quiet", *flags]) == 0
    return Shortlist.load("model", AutoTokenizer.from_pretrained("model"))


def test_with_a_shortlist_a_batch_is_written_with_its_tokens_alone(calls):
    free = translate("--dtype", "float32")
    made, tokenizer = make_shortlist(), AutoTokenizer.from_pretrained("model")
    lines = translate("--shortlist", "--dtype", "float32")
    assert lines != free
    assert calls[-1]["shortlist"]([[5]]).tolist() == made.allowed([[5]]).tolist()
    for sentence, line in zip(SENTENCES, lines, strict=True):
        processors = [AllowedTokens(made.allowed([tokenizer(sentence).input_ids]))]
        given = {"num_beams": 3, "max_new_tokens": 6, "logits_processor": processors}
        [[alone]] = translation.translate(calls[-1]["model"], tokenizer, [sentence], **given)
        assert f"{alone.text}\n" == line
    assert [line.split("\t")[1] for line in translate("--shortlist", "--dtype", "float32", "--scores")] == lines
    assert translate("--dtype", "float32") == free  # the file alone changes nothing


def test_a_shortlist_is_not_said_to_be_left_to_transformers(monkeypatch):
    said = []
    monkeypatch.setattr(generation_vaswani.logger, "warning_once", said.append)
    make_shortlist()
    translate("--shortlist", "--scores")
    assert said == []


def test_a_shortlist_that_is_missing_or_of_another_vocabulary_is_refused(capsys):
    write_lines("out", ["an earlier translation"])
    assert translate("--shortlist", status=1) == ["an earlier translation\n"]
    assert (
        "error: model='model' has no shortlist.safetensors, which --shortlist needs: vaswani shortlist --model model "
        in (capsys.readouterr().err)
    )
    make_shortlist()
    train_tokenizer(["seven eight nine ten"], 265).save_pretrained("model")
    capsys.readouterr()
    assert translate("--shortlist", status=1) == ["an earlier translation\n"]
    assert "shortlist.safetensors was made for another vocabulary, of 265 types, " in capsys.readouterr().err


def test_too_little_memory_is_said_before_it_is_needed(monkeypatch, capsys):
    whole = translate()
    assert "memory" not in capsys.readouterr().err
    monkeypatch.setattr("vaswani.memory.available_bytes", lambda: 2_000_000)
    assert translate("--read_ahead", "2", output="again") == whole
    said = capsys.readouterr().err
    assert said.count("warning: this may need 0.39 GB of memory, but 0.002 GB are available") == 1
    translate("--scores", "--max_batch_tokens", "64", output="scored")
    assert "--num_beams=3" in capsys.readouterr().err


def test_empty_translations_are_counted(monkeypatch, capsys):
    class Silent(translation.Translator):
        """Has no words for sentences with a six, nor for a second best."""

        def __call__(self, sentences, *given):
            words = ["" if "six" in sentence or not sentence else "words" for sentence in sentences]
            return [[translation.Hypothesis(best, None), translation.Hypothesis("", None)] for best in words]

    monkeypatch.setattr(translation, "Translator", Silent)
    translate("--read_ahead", "2")
    said = capsys.readouterr().err
    assert said.count("warning: 2 of 4 translations are empty: ") == said.count("are empty") == 1
    write_lines("in", SENTENCES[:3])
    translate()
    assert "empty" not in capsys.readouterr().err


def test_cudnn_plans_no_attention(monkeypatch):
    said = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", said.append)
    assert cli.main(["translate", "--model", "model", "--input", "in", "--output", "out", "--quiet"]) == 0
    assert said == [False]
