from __future__ import annotations

import pytest

from oncurve.data.template import fill, template_columns


def test_columns_are_put_in_and_double_braces_are_braces():
    template = "{question}\nAnswer as {{json}}: {answer}"
    assert template_columns(template) == ("question", "answer")
    assert fill(template, {"question": "2+2?", "answer": 4}) == "2+2?\nAnswer as {json}: 4"


def test_what_a_column_holds_is_not_a_template():
    assert fill("{a}", {"a": "{b}"}) == "{b}"


def test_a_name_is_a_column_never_an_attribute_or_an_item():
    with pytest.raises(KeyError):
        fill("{a.__class__}", {"a": 1})
    with pytest.raises(KeyError):
        fill("{a[0]}", {"a": [1]})
    assert fill("{info.answer}", {"info.answer": 4}) == "4"


@pytest.mark.parametrize("template", ["no column", "{", "}", "{}", "{a!r}", "{a:>10}", '{"question": 1}', "{a"])
def test_what_is_no_template_is_refused(template: str):
    with pytest.raises(ValueError, match=r"column"):
        template_columns(template)
