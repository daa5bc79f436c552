"""Registration with transformers: by names alone, so that nothing is imported before somebody asks for it.

transformers' own models stand in its registries by the names of their classes, which it looks up in the module
``transformers.models.<model type>`` when they are first asked for. Ours stand beside them, and that module is this
package. A registry that is not imported yet gets the names right after its import.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any


# Config, base model and model of each kind.
MODELS = {
    "vaswani": ("VaswaniConfig", "VaswaniModel", "VaswaniForConditionalGeneration"),
    "convolutional": ("ConvolutionalConfig", "ConvolutionalModel", "ConvolutionalForConditionalGeneration"),
    "recurrent": ("RecurrentConfig", "RecurrentModel", "RecurrentForConditionalGeneration"),
}
PIPELINES = {"translation": "TranslationPipeline", "parse": "ParsingPipeline"}
PACKAGE = __name__.rpartition(".")[0]


class _Watcher:
    """A finder of modules that leaves finding to the others, and calls back after an import."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]):
        self.actions = actions

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.actions:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.actions[fullname](module)

            spec.loader.exec_module = exec_module
        return spec


class _LazyTask(dict):
    """A task of transformers' registry of pipelines; its class is imported when it is asked for."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return getattr(import_module(PACKAGE), value.removeprefix(f"{PACKAGE}.")) if key == "impl" else value


class _TranslationAliases(dict):
    """Task aliases of transformers, in which every "translation_XX_to_YY" stands for "translation"."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or (isinstance(task, str) and task.startswith("translation_"))

    def __missing__(self, task: str) -> str:
        return "translation"


def register() -> None:
    """Make the Auto classes and `pipeline` of transformers know the models here, now or once they are imported."""
    auto = "transformers.models.auto"
    actions = {f"{auto}.modeling_auto": _name_models, "transformers.pipelines": _name_pipelines}
    if f"{auto}.modeling_auto" in sys.modules:
        _register_classes(sys.modules[f"{auto}.modeling_auto"])
    else:
        actions[f"{auto}.configuration_auto"] = _name_configs
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Watcher(actions))


def _register_classes(modeling_auto: Any) -> None:
    """Register the classes themselves: the mappings from configs to models were made without our names."""
    configuration_auto = import_module("transformers.models.auto.configuration_auto")
    for model_type, names in MODELS.items():
        config, base, model = (getattr(sys.modules[PACKAGE], name) for name in names)
        configuration_auto.AutoConfig.register(model_type, config, exist_ok=True)
        modeling_auto.AutoModel.register(config, base, exist_ok=True)
        modeling_auto.AutoModelForSeq2SeqLM.register(config, model, exist_ok=True)


def _name_configs(configuration_auto: Any) -> None:
    for model_type, (config, *_) in MODELS.items():
        configuration_auto.CONFIG_MAPPING_NAMES[model_type] = config
        sys.modules[f"transformers.models.{model_type}"] = sys.modules[PACKAGE]


def _name_models(modeling_auto: Any) -> None:
    for model_type, (_, base, model) in MODELS.items():
        # Trainer, model cards and transformers' own tests also tell by these names what a model is for.
        modeling_auto.MODEL_MAPPING_NAMES[model_type] = base
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[model_type] = model


def _name_pipelines(pipelines: Any) -> None:
    registry = pipelines.PIPELINE_REGISTRY
    # Newer releases refuse the name before they look into the registry.
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    models = import_module("transformers").AutoModelForSeq2SeqLM
    for task, name in PIPELINES.items():
        registry.supported_tasks.setdefault(task, _LazyTask(impl=f"{PACKAGE}.{name}", pt=(models,), type="text"))
    registry.task_aliases = _TranslationAliases(registry.task_aliases)
