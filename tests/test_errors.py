"""One tree of errors, and its drawing in the module's docstring is true."""

from __future__ import annotations

import inspect
import re

import pytest

import bpr
from bpr import errors

TREE = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", TREE)
def test_every_error_is_a_bpr_error_with_a_docstring_and_exported(error: type[Exception]) -> None:
    assert issubclass(error, bpr.BprError)
    assert not issubclass(error, (OSError, ValueError, TypeError, KeyError))
    assert inspect.getdoc(error)
    assert error.__name__ in bpr.__all__
    assert getattr(bpr, error.__name__) is error
    assert str(error("what to do")) == "what to do"


def test_the_drawing_names_every_error_with_its_docstring() -> None:
    drawn = dict(re.findall(r"^[├└]── (\w+) +(.+)$", errors.__doc__ or "", re.MULTILINE))
    assert set(drawn) == {each.__name__ for each in TREE} - {"BprError"}


def test_no_error_is_below_another() -> None:
    """missing ≠ corrupt ≠ too new ≠ wrong model ≠ empty ≠ locked ≠ no space: nobody catches one for another."""
    assert all(each.__bases__ == (bpr.BprError,) for each in TREE if each is not bpr.BprError)
