"""Annotations of arrays, as numpy writes them before 2.5 and from then on."""

from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from tokentape.policies import kernels

T = TypeVar("T", bound=np.generic)
ALIAS = TypeAliasType("NDArray", np.ndarray[tuple[Any, ...], np.dtype[T]], type_params=(T,))


@pytest.mark.parametrize("form", [NDArray, ALIAS])
def test_the_scalar_of_an_array_whichever_form_it_is_written_in(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "NDArray", form)
    assert kernels.scalar_of(form[np.float64]) is np.float64
    assert [kernels.scalar_of(hint) for hint in (int, str | None, list[int], np.ndarray)] == [None] * 4
