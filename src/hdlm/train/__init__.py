"""Training: from a recipe to a model folder, resumable at any moment, on one process or many.

`hdlm.train(recipe, out)` is `loop.train`: the package can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is a function too."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from hdlm.train.loop import train

        return train(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
