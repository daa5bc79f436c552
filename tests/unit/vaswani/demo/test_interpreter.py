import numpy as np
import pytest
from transformers import MarianConfig, MarianMTModel

from vaswani.demo import interpreter as module
from vaswani.demo.interpreter import MOST_LINES, MOST_TOKENS, Interpreter
from vaswani.errors import UserError
from vaswani.interop.ctranslate2 import save_for_ctranslate2
from vaswani.interop.engines import load_engine
from vaswani.interop.onnx import save_for_onnx
from vaswani.pictures.attention import END, join_words, read_attention
from vaswani.translation import translate


def test_alternatives_are_those_of_the_search_that_was_asked_for(interpreter):
    found = interpreter.alternatives(["one two", "", "three"], 3, 0.2)
    expected = translate(
        interpreter.model, interpreter.tokenizer, ["one two", "", "three"], num_beams=3, num_return_sequences=3,
        length_penalty_alpha=0.2, with_scores=True,
    )  # fmt: skip
    assert found == expected
    assert [len(of_line) for of_line in found] == [3, 3, 3]
    assert found != interpreter.alternatives(["one two", "", "three"], 3, 1.9)
    assert len(interpreter.alternatives(["one"], 1, 0.6)[0]) == 1


@pytest.mark.parametrize("engine", ["ctranslate2", "onnxruntime"])
def test_an_engine_translates_as_the_model_does_but_has_no_attention(engine, interpreter, tmp_path):
    pytest.importorskip(engine)
    save = {"ctranslate2": save_for_ctranslate2, "onnxruntime": save_for_onnx}[engine]
    save(interpreter.model, interpreter.tokenizer, tmp_path)
    theirs = Interpreter(*load_engine(engine, str(tmp_path), device="cpu"))
    mine, found = (each.alternatives(["one two", "three"], 2, 0.6) for each in (interpreter, theirs))
    assert [best.text for best, _ in found] == [best.text for best, _ in mine]
    assert interpreter.has_attention
    assert not theirs.has_attention
    assert theirs.align("one two", "eins zwei") is None


def test_it_starts_with_the_model_s_own_search(random_model, interpreter):
    model = random_model(vocab_size=270)
    model.generation_config.num_beams, model.generation_config.length_penalty_alpha = 5, 0.9
    own = Interpreter(model, interpreter.tokenizer)
    assert (own.num_beams, own.alpha) == (5, 0.9)
    model.generation_config.num_beams, model.generation_config.length_penalty_alpha = 16, 3.0
    wide = Interpreter(model, interpreter.tokenizer)
    assert wide.alternatives(["one"], wide.num_beams, wide.alpha)
    model.generation_config.length_penalty_alpha = None
    assert Interpreter(model, interpreter.tokenizer).alpha is None
    del model.generation_config.length_penalty_alpha
    assert Interpreter(model, interpreter.tokenizer).alpha == 0.6


def test_a_penalty_of_the_models_own_is_left_to_it(interpreter):
    model = interpreter.model
    model.generation_config.num_beams, model.generation_config.length_penalty_alpha = 3, None
    model.generation_config.length_penalty = 2.0
    own = Interpreter(model, interpreter.tokenizer)
    lines = ["one two three", "four"]
    found = own.alternatives(lines, own.num_beams, own.alpha)
    expected = translate(model, own.tokenizer, lines, num_return_sequences=3, with_scores=True)
    assert [[each.text for each in line] for line in found] == [[each.text for each in line] for line in expected]
    assert [each.score for each in found[0]] == pytest.approx([each.score for each in expected[0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n\n", "There is nothing to translate: type a sentence."),
        (
            "a\n" * (MOST_LINES + 1),
            f"These are {MOST_LINES + 1} lines, and {MOST_LINES} fit here: translate them as a",
        ),
        (7, "text=7 must be a string"),
        ("a \ud800", r"text='a \\ud800' must be Unicode, in UTF-8: its character 3 is a surrogate by itself"),
        ("one\n" + "one two " * MOST_TOKENS, rf"Line 2 has [\d,]+ word pieces, and {MOST_TOKENS} fit: break it into"),
    ],
)
def test_what_cannot_be_typed_is_told_in_a_sentence(interpreter, text, message):
    with pytest.raises(UserError, match=f"^{message}"):
        interpreter.lines(text)


def test_the_lines_of_a_text_stay_where_they_are(interpreter):
    expected = ["one", "", "two\u2028three"]
    assert interpreter.lines("\none\n\ntwo\u2028three\n") == expected
    assert interpreter.lines("\r\none\r\n\r\ntwo\u2028three\r\n") == expected


def test_a_model_with_a_table_of_positions_takes_no_more_than_these(random_model, interpreter):
    model = random_model(vocab_size=270, position_embedding_type="learned", max_position_embeddings=16)
    with pytest.raises(UserError, match="and 16 fit"):
        Interpreter(model, interpreter.tokenizer).lines("one two " * 20)


@pytest.mark.parametrize(
    ("beams", "alpha", "message"),
    [
        (0, 0.6, "num_beams=0 must be a whole number from 1 to 12"),
        ("x", 0.6, "num_beams='x' must be a whole number from 1 to 12"),
        (2.5, 0.6, "num_beams=2.5 must be a whole number from 1 to 12"),
        (None, 0.6, "num_beams=None must be a whole number from 1 to 12"),
        (4, float("nan"), "alpha=nan must be a number from 0 to 2"),
        (4, "0.6", "alpha='0.6' must be a number from 0 to 2"),
    ],
)
def test_a_program_s_search_is_checked_too(interpreter, beams, alpha, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        interpreter.alternatives(["one"], beams, alpha)


def test_a_file_has_a_line_for_each_line_and_tells_how_far_it_is(interpreter, tmp_path):
    (tmp_path / "in.txt").write_bytes("one two\r\n\nthree\u2028four".encode())
    told = []
    interpreter.translate_file(tmp_path / "in.txt", 2, 0.6, tmp_path / "out.txt", lambda *now: told.append(now))
    lines = ["one two", "", "three\u2028four"]
    expected = [best[0].text for best in translate(interpreter.model, interpreter.tokenizer, lines, num_beams=2)]
    assert (tmp_path / "out.txt").read_bytes().decode() == "".join(f"{text}\n" for text in expected)
    assert told[0] == (1, 3)
    assert told[-1] == (3, 3)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_file_gets_a_line_for_a_line_whatever_the_models_settings_ask_for(num_beams, interpreter, tmp_path):
    (tmp_path / "in.txt").write_text("one two\nthree\n")
    paths = [tmp_path / name for name in ("plain.txt", "several.txt")]
    for path in paths:
        interpreter.translate_file(tmp_path / "in.txt", num_beams, 0.6, path, lambda *now: None)
        interpreter.model.generation_config.update(num_beams=4, num_return_sequences=3)
    plain, several = (path.read_text() for path in paths)
    assert plain == several


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe", "in.txt is not UTF-8 in line 1: invalid start byte"),
        (b"", "in.txt has no text in it."),
        (b"PK\x03\x04\x00\x00", "in.txt is no text file: it must hold a sentence a line."),
        (b"one\n" + b"one two " * 600, r"Line 2 has [\d,]+ word pieces, and 512 fit: break it into sentences"),
    ],
)
def test_what_is_no_text_file_is_told_in_a_sentence(interpreter, tmp_path, data, message):
    (tmp_path / "in.txt").write_bytes(data)
    with pytest.raises(UserError, match=f"^{message}"):
        interpreter.translate_file(tmp_path / "in.txt", 1, 0.6, tmp_path / "out.txt", print)
    assert not (tmp_path / "out.txt").exists()


def test_the_alignment_is_the_mean_of_encoder_decoder_attention_over_words(interpreter):
    found = interpreter.align("one two", "eins drei")
    words = join_words(read_attention(interpreter.model, interpreter.tokenizer, "one two", "eins drei"))
    assert (found.source, found.target) == (["one", "two", "</s>"], ["eins", "drei"])
    assert words.target[-1] == END
    np.testing.assert_array_equal(found.weights, words.alignment[:-1])
    np.testing.assert_allclose(np.sum(found.weights, axis=1), 1, atol=1e-5)


def test_an_empty_line_and_a_model_without_attention_have_no_alignment(interpreter):
    assert interpreter.align(" ", "") is interpreter.align("one", " ") is None
    interpreter.model.config.attention = "none"
    assert interpreter.align("one", "eins") is None


def test_a_parser_and_a_stranger_s_model_are_refused(interpreter):
    message = "must be a translation model of this package"
    interpreter.model.config.target_lang = "tree"
    with pytest.raises(UserError, match=message):
        module.Interpreter(interpreter.model, interpreter.tokenizer)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270, "pad_token_id": 0}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 0}
    marian = MarianMTModel(MarianConfig(**sizes))
    with pytest.raises(UserError, match=message):
        module.Interpreter(marian, interpreter.tokenizer)
