"""What stays in a model as long as a context lasts."""

from contextlib import ExitStack
from typing import Self


class Hooked:
    """Context manager of hooks, and of what else is put into a model; all of it leaves at the end, also where entering fails."""

    _stack: ExitStack

    def _enter(self, stack: ExitStack) -> None:
        """Puts in what is to be in the model, nothing where a class has none of its own; `stack` gets what takes it out."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()
