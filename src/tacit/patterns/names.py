"""Names in patterns: events, other patterns, and the aliases that conditions use.

A pattern's name is replaced by its tree; its aliases stay local. Every mistake is found, not only
the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import count, islice

from tacit.errors import PatternError, nearest
from tacit.patterns.aliases import check_aliases, iterate_given_aliases, rebuild, rename
from tacit.patterns.tree import MAX_DEPTH, Name, Pattern, children, depth, walk

__all__ = ["MAX_NODES", "Names", "check_aliases", "resolve"]

MAX_NODES = 100_000
"""How many parts a pattern may have once the names in it are replaced."""

MAX_COMPARISONS = 100_000
"""How many names are compared to find the nearest known ones to those that are unknown."""


def resolve(patterns: Mapping[str, Pattern], events: Collection[str]) -> dict[str, Pattern]:
    """Replace the names of patterns by their trees until only events are left.

    >>> from tacit.patterns.tree import Seq
    >>> resolve({"stop": Seq("slow", "parked"), "two": Seq("stop", "stop")}, {"slow", "parked"})
    {'stop': SEQ(slow, parked), 'two': SEQ(SEQ(slow, parked), SEQ(slow, parked))}
    """
    names = Names(patterns, events)
    if names.mistakes:
        raise names.mistakes[0]
    return {name: names.patterns[name] for name in patterns}


class Names:
    """The names that a pattern may use: events, and other patterns.

    `mistakes` are those of all named patterns, each with its pattern's name; `patterns` are
    the ones without mistakes, with only events left in them.
    """

    def __init__(self, patterns: Mapping[str, Pattern], events: Collection[str]) -> None:
        self.events = frozenset(events)
        self.written = dict(patterns)
        self.patterns: dict[str, Pattern] = {}
        self.mistakes: list[PatternError] = []
        self._sizes: dict[str, tuple[int, int]] = {}
        self._hints: dict[str, str] = {}
        for name, pattern in self.written.items():
            if name in self.events:
                text = f"'{name}' is an event and a pattern: rename one of them"
                self.mistakes.append(_mistake(name, name, text))
            self.mistakes += self._own_mistakes(name, pattern)
        faulty = {mistake.pattern for mistake in self.mistakes}
        order, circles = _sort_by_use(self.written)
        self.mistakes += circles
        for name in order:
            pattern = self.written[name]
            if name not in faulty and self._usable(pattern):
                size = self._size(pattern)
                too_large = _too_large(name, *size)
                self.mistakes += too_large
                if not too_large:
                    self._sizes[name] = size
                    self.patterns[name] = self._inline(pattern)

    def check(self, pattern: Pattern, name: str | None = None) -> list[PatternError]:
        """Return all mistakes of a pattern, without those of the named patterns it uses."""
        mistakes = self._own_mistakes(name, pattern)
        if not mistakes and self._usable(pattern):
            mistakes += _too_large(name, *self._size(pattern))
        return mistakes

    def resolve(self, pattern: Pattern, name: str | None = None) -> Pattern:
        """Return the pattern with only events left in it, or its first mistake."""
        for mistake in self.check(pattern, name):
            raise mistake
        for used in _references(pattern, self.written):
            if used not in self.patterns:
                raise _mistake(name, used, f"'{used}' has a mistake; correct that first")
        return self._inline(pattern)

    def _own_mistakes(self, name: str | None, pattern: Pattern) -> list[PatternError]:
        """Return the mistakes in the text of a pattern itself."""
        nodes = list(islice(walk(pattern), MAX_NODES + 1))
        deep = 0 if len(nodes) > MAX_NODES else depth(pattern)
        mistakes = _too_large(name, len(nodes), deep)
        if mistakes:
            return mistakes
        for node in dict.fromkeys(node for node in nodes if isinstance(node, Name)):
            mistakes += self._name_mistakes(name, node)
        for mistake in check_aliases(pattern):
            mistakes.append(_mistake(name, mistake.word, mistake.message))
        return mistakes

    def _name_mistakes(self, name: str | None, node: Name) -> Iterator[PatternError]:
        if node.name not in self.events and node.name not in self.written:
            hint = self._nearest(node.name)
            yield _mistake(
                name, node.name, f"'{node.name}' is neither an event nor a pattern.{hint}"
            )
        elif node.alias and node.name in self.written:
            yield _mistake(
                name,
                node.alias,
                f"'{node.alias}' must name a single event, but '{node.name}' is a pattern: "
                f"put the alias on an event, or a comma before '{node.alias}'",
            )
        if node.alias and (node.alias in self.events or node.alias in self.written):
            yield _mistake(
                name,
                node.alias,
                f"'{node.alias}' is a name already: put a comma before it, or choose "
                f"another alias for '{node.name}'",
            )

    def _nearest(self, unknown: str) -> str:
        """Return the nearest known name; only for the first unknown names, since it is slow."""
        known = len(self.written) + len(self.events)
        if unknown not in self._hints and (len(self._hints) + 1) * known <= MAX_COMPARISONS:
            self._hints[unknown] = nearest(unknown, [*self.written, *sorted(self.events)])
        return self._hints.get(unknown) or " Define it under events or patterns."

    def _usable(self, pattern: Pattern) -> bool:
        """Return whether all patterns that it names are free of mistakes."""
        return all(name in self.patterns for name in _references(pattern, self.written))

    def _size(self, pattern: Pattern) -> tuple[int, int]:
        """Return the number of nodes and the depth that a pattern has once names are replaced."""
        if isinstance(pattern, Name):
            return self._sizes.get(pattern.name, (1, 1))
        sizes = [self._size(part) for part in children(pattern)]
        return 1 + sum(nodes for nodes, _ in sizes), 1 + max(deep for _, deep in sizes)

    def _inline(self, pattern: Pattern) -> Pattern:
        taken = set(iterate_given_aliases(pattern))
        numbers: dict[str, Iterator[int]] = {}

        def fresh(alias: str) -> str:
            """Return the alias if it is free, else with the first number that makes it unique."""
            other = alias
            while other in taken or other in self.events or other in self.written:
                other = f"{alias}_{next(numbers.setdefault(alias, count(2)))}"
            taken.add(other)
            return other

        def inlined(node: Name) -> Pattern:
            known = self.patterns.get(node.name)
            if known is None:
                return node
            return rename(known, {a: fresh(a) for a in dict.fromkeys(iterate_given_aliases(known))})

        return rebuild(pattern, inlined)


def _mistake(pattern: str | None, word: str | None, message: str) -> PatternError:
    return PatternError(message, pattern=pattern, word=word)


def _too_large(name: str | None, nodes: int, deep: int) -> list[PatternError]:
    subject = f"'{name}'" if name else "this pattern"
    if nodes > MAX_NODES:
        text = f"has more than {MAX_NODES} parts once its names are replaced: make it smaller"
    elif deep > MAX_DEPTH:
        text = (
            f"is nested more than {MAX_DEPTH} deep once its names are replaced: reduce the nesting"
        )
    else:
        return []
    return [_mistake(name, None, f"{subject} {text}")]


def _sort_by_use(patterns: Mapping[str, Pattern]) -> tuple[list[str], list[PatternError]]:
    """Return the patterns, each after those it names, and the cycles among them.

    A pattern in a cycle, or that leads to one, is still listed, but it is never usable.
    """
    order: list[str] = []
    circles: list[PatternError] = []
    seen: set[str] = set()
    for root in patterns:
        path: dict[str, Iterator[str]] = {}
        following = iter((root,))
        while True:
            name = next(following, None)
            if name is None:
                if not path:
                    break
                order.append(path.popitem()[0])
                following = next(reversed(path.values()), iter(()))
            elif name in path:
                circles.append(_circle([*path][[*path].index(name) :]))
            elif name not in seen:
                seen.add(name)
                following = iter(_references(patterns[name], patterns))
                path[name] = following
    return order, circles


def _circle(names: list[str]) -> PatternError:
    first = names[0]
    text = f"'{first}' refers to itself"
    if len(names) > 1:
        text += ": " + " -> ".join([*names, first])
    return _mistake(
        first, names[1] if len(names) > 1 else first, f"{text}; remove the circular reference"
    )


def _references(pattern: Pattern, patterns: Collection[str]) -> list[str]:
    nodes = islice(walk(pattern), MAX_NODES)
    return list(
        dict.fromkeys(
            node.name for node in nodes if isinstance(node, Name) and node.name in patterns
        )
    )
