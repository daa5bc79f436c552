"""The name of a cache: transformers calls it `cache` from 5.24 on, and called it `past_key_values` before."""

import functools
from collections.abc import Callable
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions


# Of an output's field, of an argument of masks, and of what `generate()` hands on.
CACHE = "cache" if "cache" in BaseModelOutputWithPastAndCrossAttentions.__dataclass_fields__ else "past_key_values"


def takes_cache(forward: Callable) -> Callable:
    """Let a `forward` whose argument is `past_key_values` take it as `cache` too, on any release.

    Raises
    ------
    ValueError
        If both are given.
    """

    @functools.wraps(forward)
    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "cache" in kwargs:
            if kwargs.get("past_key_values") is not None:
                raise ValueError("cache and past_key_values are two names of one argument: give one of them")
            kwargs["past_key_values"] = kwargs.pop("cache")
        return forward(self, *args, **kwargs)

    return either


__all__ = ["CACHE", "takes_cache"]
