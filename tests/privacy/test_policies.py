"""Policies: who has which private patterns."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from tacit.events.subjects import Subjects
from tacit.privacy.policies import Policies
from tacit.spec.yaml_reader import loads

HEAD = """
version: 1
streams: {s: {subject: who, time: at}}
windows: {size: 10 min}
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
  c: {stream: s, where: "kind = 2"}
queries: [{name: q, consumer: x, pattern: a}]
"""


def policies(*private: str) -> Policies:
    lines = "".join(f"  - {{{text}}}\n" for text in private)
    return Policies(loads(HEAD + ("private:\n" + lines if private else "")))


def registry(*names: str | int) -> Subjects:
    subjects = Subjects()
    subjects.add(list(names))
    return subjects


def kept(found: Policies, subjects: Subjects) -> list[list[str]]:
    """The names of each subject's private patterns."""
    return [[p.name for p in found.policies[n].patterns] for n in found.assign(subjects)]


def test_what_names_no_subjects_is_everyones() -> None:
    found = policies("pattern: a, epsilon: 0.1", "pattern: 'SEQ(b, NOT c)', epsilon: 2")
    assert len(found) == 1
    assert kept(found, registry("me", "you")) == [["a", "SEQ(b, NOT c)"]] * 2
    (policy,) = found.policies
    assert [p.epsilon for p in policy.patterns] == [Fraction(1, 10), Fraction(2)]
    assert policy.private == {"a", "b", "c"}


def test_without_private_patterns_there_is_one_empty_policy() -> None:
    found = policies()
    assert [policy.private for policy in found.policies] == [frozenset()]
    assert kept(found, registry(1, 2)) == [[], []]


def test_lists_that_overlap_give_each_subject_all_of_its_patterns() -> None:
    found = policies(
        "pattern: a, epsilon: 1, subjects: [one, both]",
        "pattern: b, epsilon: 1, subjects: [both, two]",
        "pattern: c, epsilon: 1",
    )
    assert kept(found, registry("two", "neither", "both", "one")) == [
        ["b", "c"],
        ["c"],
        ["a", "b", "c"],
        ["a", "c"],
    ]
    assert len(found) == 4


def test_subjects_of_the_same_patterns_share_a_policy() -> None:
    found = policies("pattern: a, epsilon: 1, subjects: [1, 2, 3]")
    assert len(found) == 2
    assert found.assign(registry(3, 4, 1)).tolist() == [1, 0, 1]


def test_numbers_are_found_in_a_registry_of_names() -> None:
    found = policies("pattern: a, epsilon: 1, subjects: [7, 12]")
    assert kept(found, registry("12", "8", "7", "07")) == [["a"], [], ["a"], []]


def test_subjects_that_are_not_registered_change_nothing() -> None:
    found = policies("pattern: a, epsilon: 1, subjects: [nobody]", "pattern: b, epsilon: 1")
    assert kept(found, registry("me")) == [["b"]]
    assert found.assign(Subjects()).tolist() == []


def test_who_is_named_twice_in_different_lists_has_both() -> None:
    rng = Random(1)
    for _ in range(20):
        lists = [rng.sample(range(10), rng.randint(1, 6)) for _ in range(3)]
        found = policies(
            *(f"pattern: {p}, epsilon: 1, subjects: {n}" for p, n in zip("abc", lists, strict=True))
        )
        expected = [[p for p, n in zip("abc", lists, strict=True) if who in n] for who in range(10)]
        assert kept(found, registry(*range(10))) == expected


@pytest.mark.parametrize("factor", [Fraction(1, 3), Fraction(2)])
def test_a_scaled_policy_has_so_many_times_the_epsilon(factor: Fraction) -> None:
    (policy,) = policies("pattern: a, epsilon: 0.3").policies
    assert policy.scale(factor).patterns[0].epsilon == Fraction(3, 10) * factor
    assert policy.scale(factor).private == policy.private


def test_a_number_names_its_digits_and_nothing_else() -> None:
    found = policies("pattern: a, epsilon: 1, subjects: [7, '07', 008]")
    assert kept(found, registry(7, "7 ", "07", "007", 8, "008")) == [
        ["a"], [], ["a"], [], [], ["a"],
    ]  # fmt: skip


def test_a_number_here_and_its_digits_there_are_one_subject_with_both_patterns() -> None:
    found = policies(
        "pattern: a, epsilon: 1, subjects: ['7']", "pattern: b, epsilon: 1, subjects: [7]"
    )
    assert kept(found, registry("7", "8")) == [["a", "b"], []]
