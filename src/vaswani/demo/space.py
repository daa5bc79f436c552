"""A Space of the Hugging Face Hub for a model: a folder that serves the demo with nothing but its requirements."""

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path

from huggingface_hub import ModelCard

from vaswani.errors import UserError, first_line
from vaswani.files import new_folder
from vaswani.models.trees_vaswani import TREES
from vaswani.registration import MODELS


LIBRARY = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "tqdm")  # as they are installed here
GRADIO = "6.31.0"  # the release that the demo's tests were run with
APP = '''"""Serves the model beside this file: python app.py."""

from pathlib import Path

from vaswani.demo.app import launch


launch(Path(__file__).parent / "model")
'''
README = """---
title: {quoted}
emoji: 🌐
colorFrom: blue
colorTo: green
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
license: {license}
---

# {title}

Translates text and files in the browser, with alternatives, their scores, and the model's attention. The model is in
`model/`, with its card; `vaswani/` is the library that runs it.

To serve it anywhere:

```bash
pip install -r requirements.txt
python app.py
```

To send it to the Hub:

```bash
hf repos create me/my-space --type space --space-sdk gradio
hf upload me/my-space . --repo-type space
```
"""


def write_space(model: Path, folder: Path) -> None:
    """Write the Space of a published model.

    Parameters
    ----------
    model : Path
        A published folder.
    folder : Path
        Where the Space is written, whole or not at all; must be new.

    Raises
    ------
    UserError
        If `model` is no published folder or a parser, its card cannot be read, or `folder` exists or cannot be
        written.
    """
    if not (model / "config.json").is_file() or not (model / "tokenizer.json").is_file():
        raise UserError(f"model={str(model)!r} must be a published folder, with config.json and tokenizer.json")
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        model_type, target_lang = config.get("model_type"), config.get("target_lang")
    except (ValueError, AttributeError) as error:
        raise UserError(f"model={str(model)!r} must be a published folder: its config.json is no config") from error
    if model_type not in MODELS:
        raise UserError(f"model={str(model)!r} must be a model of this package, and is of type {model_type!r}")
    if target_lang == TREES:
        raise UserError(f"model={str(model)!r} must be a translation model, but it is a parser")
    if model.resolve() in folder.resolve().parents:
        raise UserError(f"space={str(folder)!r} must not lie in the model's folder, which it gets a copy of")
    versions = {name: metadata.version(name).partition("+")[0] for name in PACKAGES} | {"gradio": GRADIO}
    with new_folder(folder, "space") as unfinished:
        shutil.copytree(model, unfinished / "model")
        shutil.copytree(LIBRARY, unfinished / "vaswani", ignore=shutil.ignore_patterns("__pycache__"))
        (unfinished / "app.py").write_text(APP, encoding="utf-8")
        requirements = "".join(f"{name}=={version}\n" for name, version in versions.items())
        (unfinished / "requirements.txt").write_text(requirements, encoding="utf-8")
        (unfinished / "README.md").write_text(_readme(model), encoding="utf-8")


def _readme(model: Path) -> str:
    try:
        card = ModelCard.load(model / "README.md").data if (model / "README.md").is_file() else None
    except Exception as error:  # depending on what stands in a card, the libraries raise half a dozen kinds
        raise UserError(f"model={str(model)!r} has a README.md that is no model card: {first_line(error)}") from error
    name = getattr(card, "model_name", None) or model.resolve().name
    return README.format(
        title=name,
        quoted=json.dumps(str(name), ensure_ascii=False),  # YAML would read "a: b", "1" or "no" as something else
        gradio=GRADIO,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        license=getattr(card, "license", None) or "apache-2.0",
    )
