"""Who is named in private patterns and missing in the registry, and who looks like them."""

from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.errors import SpecificationError
from tacit.privacy.named_subjects import check_names
from tacit.spec.lookalikes import find_lookalikes
from tacit.spec.specification import Specification


def spec(*named: tuple[str, ...] | None) -> Specification:
    """A specification with a private pattern for each of these groups of subjects."""
    return Specification.model_validate(
        {
            "streams": {"s": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min"},
            "events": {name: {"stream": "s", "where": "kind = 1"} for name in "abc"},
            "private": [
                {"pattern": "abc"[number], "epsilon": 1, "subjects": names}
                for number, names in enumerate(named)
            ],
        }
    )


def names(*given: str) -> pa.Array:
    return pa.array(given, pa.large_string())


def test_everybody_who_is_named_must_be_registered() -> None:
    assert check_names(spec(("x", "y"), None), names("y", "z", "x")) == []
    assert check_names(spec(None), names("y")) == []
    with pytest.raises(SpecificationError) as error:
        check_names(spec(("x", "007"), ("q",)), names("x", "7", " 7", "other"))
    told = str(error.value)
    assert "2 subjects that the registry does not have" in told
    assert "'007' (did you mean '7' or ' 7', which it has?), 'q'" in told
    assert "other" not in told


def test_a_long_list_of_missing_names_is_cut() -> None:
    with pytest.raises(SpecificationError, match=r"25 subjects.* and 15 more\."):
        check_names(spec(tuple(f"x{number}" for number in range(25))), names("y"))


def test_an_empty_registry_lacks_everybody() -> None:
    with pytest.raises(SpecificationError, match="1 subject that"):
        check_names(spec(("x",)), names())
    assert check_names(spec(), names()) == []


def test_names_that_look_like_a_protected_one_are_told() -> None:
    (told,) = check_names(spec(("007",)), names("007", "7", "8"))
    assert "1 name in the registry looks like a protected subject but has other" in told
    assert "'7' looks like '007'" in told
    (told,) = check_names(spec(("Zürich",)), names("Zu\u0308rich", "Zürich", "zürich\u200b"))
    assert "2 names" in told
    assert "'Zu\\u0308rich' looks like 'Z\\xfcrich'" in told
    assert "'z\\xfcrich\\u200b' looks like" in told


def test_those_that_are_protected_alike_are_not_confused() -> None:
    assert check_names(spec(("007", "7")), names("007", "7")) == []
    assert check_names(spec(None), names("007", "7")) == []
    (told,) = check_names(spec(("007",), ("7",)), names("007", "7"))
    assert "2 names" in told


INVISIBLE = ["\u200b", "\u200d", "\ufeff", "\u00ad", "\u2060", "\t", "\n", " ", "\u00a0", "\0"]


@given(st.text(min_size=1, max_size=12), st.integers(0, 12), st.sampled_from(INVISIBLE))
def test_blanks_and_invisible_characters_make_a_lookalike(name: str, at: int, more: str) -> None:
    other = name[:at] + more + name[at:]
    assert find_lookalikes([name], [other]) == {name: [other]}


@given(st.text(min_size=1, max_size=12), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
@example("A\u00b4", "NFKC")
def test_unicode_forms_of_a_name_look_alike(name: str, form: str) -> None:
    other = unicodedata.normalize(form, name)  # type: ignore[arg-type]
    found = find_lookalikes([name], [other])
    assert found == ({} if other == name else {name: [other]})


@given(st.integers(0, 10**12), st.integers(1, 5), st.sampled_from(["", "taxi", "t-", "-"]))
def test_leading_zeros_make_a_lookalike(number: int, zeros: int, lead: str) -> None:
    name, other = f"{lead}{number}", f"{lead}{'0' * zeros}{number}"
    assert find_lookalikes([name], [other]) == {name: [other]}
    assert find_lookalikes([other], [name]) == {other: [name]}
    assert find_lookalikes([name], [f"{lead}{number}5", f"{lead}1{number}"]) == {}


@pytest.mark.parametrize("other", ["8", "7a", "70", "77", "7.0", "-7", "seven"])
def test_names_that_differ_otherwise_do_not_look_alike(other: str) -> None:
    assert find_lookalikes(["7"], [other]) == {}
