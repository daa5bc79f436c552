"""Settings from names and values, whoever owns them."""

import dataclasses
from typing import Any

from training.settings import TrainingSettings


def make_settings(**values: Any) -> TrainingSettings:
    """Return settings of which these have these values, and the others their defaults."""
    parts = {}
    for part in dataclasses.fields(TrainingSettings):
        names = {field.name for field in dataclasses.fields(part.default_factory)} & values.keys()
        parts[part.name] = part.default_factory(**{name: values.pop(name) for name in names})
    assert not values, f"no settings: {', '.join(values)}"
    return TrainingSettings(**parts)
