"""JSON for other programs."""

import json
import math

import pytest

from gpufrag.wire.codec import dumps


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("indent", [None, 2])
def test_numbers_that_json_lacks_are_null(number: float, indent: int | None) -> None:
    text = dumps({"ratio": number, "moments": [(1.5, number)], "name": "NaN"}, indent)
    assert json.loads(text) == {"ratio": None, "moments": [[1.5, None]], "name": "NaN"}
