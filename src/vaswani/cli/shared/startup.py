"""What makes a command start sooner."""

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Generator[None, None, None]:
    """Let the garbage collector rest while torch and transformers are imported.

    Their hundreds of thousands of objects stay, yet while they come in it would search all of them again and again,
    for a tenth of the time. Nor does it search them afterwards. Where torch is imported already, nothing changes.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
