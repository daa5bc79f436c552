"""Whatever is imported first, transformers knows the models here, and `import vaswani` imports nothing for that."""

import importlib
import subprocess
import sys

import pytest
import torch
import transformers
from small_convolutional import small_model
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines
from transformers.models.auto import configuration_auto, modeling_auto

import vaswani
from vaswani import RecurrentConfig, RecurrentForConditionalGeneration, registration
from vaswani.tokenization import train_tokenizer


def run_fresh(program: str, *arguments: str) -> str:
    """Run a program in an interpreter that has imported nothing yet, and return what it prints."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


PACKAGES = """
print(*sorted({name.split(".")[0] for name in sys.modules} - before - {*sys.stdlib_module_names}))
"""


@pytest.mark.parametrize(
    ("line", "packages"),
    [
        ("import vaswani; dir(vaswani)", set()),
        ("from vaswani import MODEL_TYPES, __version__", set()),
        ("from vaswani.cli import main; main(['--help'])", set()),
        ("from vaswani.cli import main; main(['translate', '--help'])", {"tqdm"}),
        ("from vaswani.cli import main; main(['parse', '--help'])", {"tqdm", "backports"}),
        ("from vaswani.cli import main; main(['translate', '--model', 'x', '--resume'])", {"tqdm"}),
    ],
)
def test_nothing_is_imported_that_is_not_needed(line, packages):
    program = f"import sys\nbefore = {{*sys.modules}}\ntry:\n  {line}\nexcept SystemExit: pass\n{PACKAGES}"
    assert {*run_fresh(program).splitlines()[-1].split()} <= {"vaswani", *packages}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[str]:
    """Save a model of each kind, with a tokenizer, and return their folders."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 262, "d_model": 16, "source_lang": "en", "target_lang": "de"}
    stacks = {f"{stack}_{part}": 1 for stack in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    kinds = {
        "vaswani": vaswani.VaswaniForConditionalGeneration(vaswani.VaswaniConfig(**sizes, **stacks)),
        "convolutional": small_model(vocab_size=262),
        "recurrent": RecurrentForConditionalGeneration(RecurrentConfig(**sizes, num_layers=1)),
    }
    tokenizer = train_tokenizer(["one two three four"], 262)
    root = tmp_path_factory.mktemp("kinds")
    for kind, model in kinds.items():
        model.save_pretrained(root / kind)
        tokenizer.save_pretrained(root / kind)
    return [str(root / kind) for kind in registration.MODELS]


ORDERS = {
    "ours first": "import vaswani",
    "transformers first": "import transformers; import vaswani",
    "Auto classes first": "from transformers import AutoModel, pipeline; import vaswani",
    "a model first": "from transformers import MarianMTModel; import vaswani",
    "a config by its file": "from vaswani.models.configuration_vaswani import VaswaniConfig",
    "a model by its file": "from vaswani.models.modeling_recurrent import RecurrentModel",
    "a pipeline by its file": "from vaswani.models.parsing_vaswani import ParsingPipeline",
}
USE = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipeline, pipelines
import vaswani

for folder in sys.argv[1:]:
    config = AutoConfig.from_pretrained(folder)
    names = vaswani.registration.MODELS[config.model_type]
    classes = [config, AutoModel.from_config(config), AutoModelForSeq2SeqLM.from_pretrained(folder)]
    assert [type(each) for each in classes] == [getattr(vaswani, name) for name in names], classes
    for task in ("translation", "translation_en_to_de"):
        translator = pipeline(task, model=folder, max_new_tokens=2)
        assert type(translator) is vaswani.TranslationPipeline and translator.task == task
        assert isinstance(translator("one two")[0]["translation_text"], str)
assert pipelines.PIPELINE_REGISTRY.check_task("parse")[1]["impl"] is vaswani.ParsingPipeline
"""


@pytest.mark.smoke
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_transformers_knows_the_models_whatever_was_imported_first(order, folders):
    run_fresh(f"{order}\n{USE}", *folders)


@pytest.mark.smoke
def test_a_pickled_model_brings_its_registration(random_model, tmp_path):
    torch.save(random_model(), tmp_path / "model.pt")
    run_fresh(
        "import sys, torch; model = torch.load(sys.argv[1], weights_only=False)\n"
        "from transformers import AutoModel; assert type(AutoModel.from_config(model.config)) is type(model.model)",
        str(tmp_path / "model.pt"),
    )


def test_the_names_are_those_of_the_classes():
    for model_type, names in registration.MODELS.items():
        config, base, model = (getattr(vaswani, name) for name in names)
        assert (config.model_type, base.config_class, model.config_class) == (model_type, config, config)
        assert AutoConfig.for_model(model_type).__class__ is config
        assert config in AutoModel._model_mapping
        assert AutoModelForSeq2SeqLM._model_mapping[config] is model
        assert modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[model_type] == model.__name__
        assert modeling_auto.MODEL_MAPPING_NAMES[model_type] == base.__name__
    for task, name in registration.PIPELINES.items():
        assert pipelines.PIPELINE_REGISTRY.supported_tasks[task]["impl"] is getattr(vaswani, name)


def test_every_public_name_is_there_and_no_other():
    assert {*vaswani.__all__} <= {*dir(vaswani)}
    assert all(hasattr(vaswani, name) for name in vaswani.__all__)
    for name in ("VaswaniConfigs", "Vaswani", "torch"):
        assert not hasattr(vaswani, name)
    with pytest.raises(ImportError, match="cannot import name 'Translator'"):
        exec("from vaswani import Translator")


def test_a_registry_that_is_imported_again_gets_the_names_again(monkeypatch):
    for module in (configuration_auto, modeling_auto):
        monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setattr(transformers.models.auto, "modeling_auto", modeling_auto)
    monkeypatch.setattr(transformers.models.auto, "configuration_auto", configuration_auto)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    registration.register()
    again = importlib.import_module(modeling_auto.__name__)
    assert again is not modeling_auto
    assert again.AutoModel._model_mapping[vaswani.VaswaniConfig] is vaswani.VaswaniModel
    assert again.__spec__.loader.get_source(again.__name__) == modeling_auto.__spec__.loader.get_source(again.__name__)


def test_other_tasks_are_left_alone():
    tasks = pipelines.PIPELINE_REGISTRY
    assert tasks.check_task("ner")[0] == "token-classification"
    assert tasks.check_task("translation_XX_to_YY")[0] == "translation"
    with pytest.raises(KeyError, match="Unknown task transl"):
        tasks.check_task("transl")
