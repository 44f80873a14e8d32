from gpufrag.doctor.checks import Result


def text_of(result: Result, kind: type[Result]) -> str:
    assert isinstance(result, kind), result
    return result.text
