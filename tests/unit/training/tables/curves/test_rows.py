import pytest
from datasets import DatasetDict, load_dataset

from training.tables.cost import flops_per_target_token
from training.tables.curves.rows import Row, make_rows, make_run, write_texts
from training.trainer.model import load_config
from vaswani.errors import UserError


def test_the_first_model_gets_the_shares_and_the_others_all_text():
    assert make_rows([0.5, 0.125], ["a", "b/c"]) == [Row(0.125, "a"), Row(0.5, "a"), Row(1.0, "a"), Row(1.0, "b/c")]
    assert [row.folder for row in make_rows([0.125, 1], ["x/a"])] == ["a-12.5", "a-100"]


def test_two_models_of_one_name_are_refused():
    with pytest.raises(UserError, match="configs='a/small,b/small' must be different names"):
        make_rows([0.5], ["a/small", "b/small"])


@pytest.mark.parametrize("shares", [[0.3333333, 0.3333334], [0.9999999]])
def test_two_shares_of_one_name_are_refused(shares):
    with pytest.raises(UserError, match=f"^shares='{','.join(map(str, shares))}' must differ when rounded to six"):
        make_rows(shares, ["demo"])


def test_a_run_is_the_recipes_with_its_text_model_and_folder(settings, tmp_path):
    run = make_run(Row(0.5, "multi30k-en-de"), settings, tmp_path / "out")
    data, model = run.settings.data, run.settings.model
    assert data.train_file == [str(tmp_path / "out" / "texts" / "train-50.parquet")]
    assert data.test_file == [str(tmp_path / "out" / "texts" / "test.parquet")]
    assert (data.dataset_name, data.dataset_config_name) == (None, None)
    assert (model.config_name, model.vocab_size) == ("multi30k-en-de", 300)
    assert run.settings.run.output_dir == str(tmp_path / "out" / "multi30k-en-de-50")
    assert run.settings.optimization == settings.optimization
    larger = make_run(Row(0.5, "base-en-de"), settings, tmp_path / "out")
    assert larger.cost > run.cost > 0
    config = load_config("multi30k-en-de")
    config.vocab_size = 300
    optimization = settings.optimization
    assert run.cost == optimization.max_steps * optimization.max_tokens_per_batch * flops_per_target_token(config)


def test_shares_are_drawn_at_random_and_lie_in_each_other(settings, text, tmp_path):
    write_texts([Row(share, "a") for share in (0.2, 0.5, 1.0)], text, settings, tmp_path)

    def read(name, folder=tmp_path):
        return load_dataset("parquet", data_files=str(folder / f"{name}.parquet"), split="train")

    parts = [read(f"train-{share}") for share in (20, 50, 100)]
    assert [part.column_names for part in parts] == [["en", "de"]] * 3
    sentences = [part["en"][:] for part in parts]
    assert [len(part) for part in sentences] == [2, 4, 8]
    assert set(sentences[0]) < set(sentences[1]) < set(sentences[2]) == set(text["train"]["source"])
    assert sentences[1] != text["train"]["source"][:4]
    assert all(part == sorted(part) for part in sentences)  # in their order
    assert read("validation")["de"][:] == text["validation"]["target"][:]
    write_texts([Row(1.0, "a")], text, settings, tmp_path)  # as when it goes on
    other = DatasetDict(text | {"validation": text["test"]})
    with pytest.raises(UserError, match=r"holds texts of other data \(other validation\): choose another output_dir"):
        write_texts([Row(1.0, "a")], other, settings, tmp_path)
    other = DatasetDict(text | {"train": text["train"].map(lambda row: {"target": row["source"]})})
    with pytest.raises(UserError, match=r"\(other train\)"):
        write_texts([Row(1.0, "a")], other, settings, tmp_path)
    settings.optimization.seed += 1
    with pytest.raises(UserError, match=r"\(other seed\)"):
        write_texts([Row(1.0, "a")], text, settings, tmp_path)
    write_texts([Row(0.5, "a")], text, settings, tmp_path / "of another seed")
    assert read("train-50", tmp_path / "of another seed")["en"][:] != sentences[1]
    with pytest.raises(UserError, match=r"^shares: 0\.05 must leave at least one of 8 training pairs$"):
        write_texts([Row(0.05, "a"), Row(1.0, "a")], text, settings, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="there is no test split"):
        write_texts([], DatasetDict(train=text["train"]), settings, tmp_path)
