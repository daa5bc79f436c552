import re
import tomllib

import pytest
import yaml

from training.settings import ROOT
from vaswani.demo import space
from vaswani.demo.space import GRADIO, write_space
from vaswani.errors import UserError


@pytest.fixture
def model(interpreter, tmp_path):
    interpreter.model.save_pretrained(tmp_path / "mine")
    interpreter.tokenizer.save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_space_has_the_model_the_library_and_what_the_hub_asks_for(model, tmp_path):
    write_space(model, tmp_path / "space")
    assert {path.name for path in (tmp_path / "space").iterdir()} == {
        "README.md", "app.py", "model", "requirements.txt", "vaswani",
    }  # fmt: skip
    assert (tmp_path / "space/model/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    library = ROOT / "src" / "vaswani"
    files = {path.relative_to(library) for path in library.rglob("*") if path.suffix in (".py", ".html", ".js")}
    copied = {path.relative_to(tmp_path / "space/vaswani") for path in (tmp_path / "space/vaswani").rglob("*.*")}
    assert files == copied
    front = yaml.safe_load((tmp_path / "space/README.md").read_text().split("---\n")[1])
    assert front["sdk"] == "gradio"
    assert (front["title"], front["app_file"], front["sdk_version"]) == ("mine", "app.py", GRADIO)


def test_its_requirements_are_those_of_the_library_and_the_demo_pinned_as_they_were_tested(model, tmp_path):
    write_space(model, tmp_path / "space")
    lines = (tmp_path / "space/requirements.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["demo"]
    assert {line.split("==")[0] for line in lines} == {re.match(r"[\w-]+", name)[0] for name in needed}
    assert set(lines) <= set((ROOT / "constraints.txt").read_text().splitlines())


@pytest.mark.parametrize("name", ["2026", "no", "small: en-de #1", 'a "b" \\ü'])
def test_its_title_is_the_name_of_the_folder_whatever_yaml_makes_of_it(name, model, tmp_path):
    write_space(model.rename(tmp_path / name), tmp_path / "space")
    _, front, text = (tmp_path / "space/README.md").read_text(encoding="utf-8").split("---\n")
    assert yaml.safe_load(front)["title"] == name
    assert f"# {name}\n" in text


def test_its_title_is_the_name_on_the_card(model, tmp_path):
    (model / "README.md").write_text("---\nmodel_name: en-de\nlicense: mit\n---\nx")
    write_space(model, tmp_path / "space")
    front = yaml.safe_load((tmp_path / "space/README.md").read_text().split("---\n")[1])
    assert (front["title"], front["license"]) == ("en-de", "mit")


def test_a_folder_that_exists_and_a_model_that_is_none_are_refused(model, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(UserError, match=r"^space='.*full' exists: it must be a new folder"):
        write_space(model, tmp_path / "full")
    with pytest.raises(UserError, match=r"full' must be a published folder, with config.json and tokenizer.json$"):
        write_space(tmp_path / "full", tmp_path / "space")
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"target_lang": "de"', '"target_lang": "tree"'))
    with pytest.raises(UserError, match=r"mine' must be a translation model, but it is a parser$"):
        write_space(model, tmp_path / "space")
    (model / "config.json").write_text(config.replace('"model_type": "vaswani"', '"model_type": "marian"'))
    with pytest.raises(UserError, match=r"mine' must be a model of this package, and is of type 'marian'$"):
        write_space(model, tmp_path / "space")
    (model / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"^space='.*deep/space' must not lie in the model's folder"):
        write_space(model, model / "deep" / "space")
    for broken in ("{", "[]", ""):
        (model / "config.json").write_text(broken)
        with pytest.raises(UserError, match=r"mine' must be a published folder: its config.json is no config$"):
            write_space(model, tmp_path / "space")
    (model / "config.json").write_text(config)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("content", [b"# Sch\xf6n\n", b"---\n{\n---\n"])
def test_a_card_that_cannot_be_read_is_said_in_a_sentence(content, model, tmp_path):
    (model / "README.md").write_bytes(content)
    with pytest.raises(UserError, match=r"^model='.*mine' has a README\.md that is no model card: .+$"):
        write_space(model, tmp_path / "space")
    assert list(tmp_path.iterdir()) == [model]


def test_half_a_space_does_not_stay(model, tmp_path, monkeypatch):
    def end(model):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(space, "_readme", end)
    with pytest.raises(UserError, match=r"space='.*' cannot be written: No space left on device$"):
        write_space(model, tmp_path / "space")
    assert list(tmp_path.iterdir()) == [model]
