"""What stays in a model as long as a context lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self


class Hooked(ABC):
    """Context manager of hooks, and of what else is put into a model; all of it leaves at the end, also where entering fails."""

    _stack: ExitStack

    @abstractmethod
    def _enter(self, stack: ExitStack) -> None:
        """Puts it in; `stack` gets what takes it out."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
