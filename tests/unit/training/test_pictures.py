import pytest
from PIL import Image

from training import pictures
from vaswani.errors import UserError


def test_every_picture_is_written_as_svg_and_png(tmp_path, capsys):
    pictures.main(["--output_dir", str(tmp_path / "new" / "folder")])
    written = {path.name: path for path in (tmp_path / "new" / "folder").iterdir()}
    assert set(written) == {f"{name}.{kind}" for name in pictures.PICTURES for kind in ("svg", "png")}
    assert capsys.readouterr().out.count("Written: ") == len(pictures.PICTURES)
    for name in pictures.PICTURES:
        svg = written[f"{name}.svg"].read_text(encoding="utf-8")
        assert svg.startswith("<svg")
        assert "prefers-color-scheme:dark" in svg
        assert "(section 5." in svg or "(section 3.5)" in svg  # text is text
        assert Image.open(written[f"{name}.png"]).width >= 800
        assert written[f"{name}.png"].stat().st_size < 150_000


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_the_same_each_time(name, tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        pictures.draw(name, tmp_path / folder)
    for kind in ("svg", "png"):
        first, second = (tmp_path / folder / f"{name}.{kind}" for folder in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output_dir='.*file' cannot be written: "):
        pictures.main(["--output_dir", str(tmp_path / "file")])
    with pytest.raises(UserError, match="unrecognized"):
        pictures.main(["--output", "x"])
