"""Generate the people in the homes: their habits, and their days."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Truths = NDArray[np.bool_]

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Habits:
    """The habits of each home's person."""

    works: Truths
    rises: Floats
    """Hours of the day."""
    rests: Floats
    regular: Floats
    """The variation between days, in hours."""
    takes: Truths
    """Medicine in the morning."""
    takes_late: Truths
    """Medicine also in the evening."""
    faithful: Floats
    """The probability of taking a dose."""
    wakeful: Floats
    """Visits to the bathroom per night."""
    teas: Floats
    """Per day."""

    @classmethod
    def draw(cls, homes: int, random: np.random.Generator) -> Habits:
        """Draw one person for each home."""
        takes = random.random(homes) < 0.7
        return cls(
            works=random.random(homes) < 0.25,
            rises=random.normal(7.2, 0.7, homes),
            rests=random.normal(22.6, 0.6, homes),
            regular=random.uniform(0.1, 0.6, homes),
            takes=takes,
            takes_late=takes & (random.random(homes) < 0.5),
            faithful=random.uniform(0.85, 0.99, homes),
            wakeful=random.gamma(2.0, 0.5, homes),
            teas=random.uniform(0.5, 4.0, homes),
        )


@dataclass(frozen=True, slots=True)
class Days:
    """Every day of every home; times are seconds since the epoch."""

    home: Numbers
    rises: Floats
    rests: Floats
    leaves: Floats
    """The time of leaving; infinite on a day at home."""
    returns: Floats
    away: Truths
    ill: Truths
    people: Habits
    """The habits of the day's person."""

    @classmethod
    def simulate(cls, people: Habits, days: int, begin: float, random: np.random.Generator) -> Days:
        """Simulate days of each person, from the midnight `begin` on."""
        homes = len(people.works)
        home = np.repeat(np.arange(homes), days)
        day = np.tile(np.arange(days), homes)
        person = Habits(*(getattr(people, field.name)[home] for field in fields(people)))
        midnight = begin + day * DAY
        weekend = (midnight // DAY + 3) % 7 >= 5
        works = person.works & ~weekend
        rises = person.rises - 0.7 * works + 0.6 * weekend
        rises = midnight + HOUR * (rises + person.regular * random.normal(size=len(home)))
        rests = person.rests + 0.5 * weekend + person.regular * random.normal(size=len(home))
        away, ill = random.random((2, len(home))) < [[0.02], [0.015]]
        errand = random.random(len(home)) < np.where(weekend, 0.45, 0.6)
        leaves = np.where(
            works,
            rises + HOUR * random.uniform(1.0, 1.4, len(home)),
            midnight + HOUR * random.uniform(9.5, 16.0, len(home)),
        )
        leaves = np.where((works | errand) & ~ill, np.maximum(leaves, rises + HOUR), np.inf)
        length = np.where(
            works, random.normal(8.8, 0.6, len(home)), random.uniform(0.7, 2.8, len(home))
        )
        returns = leaves + HOUR * np.maximum(length, 0.5)
        return cls(home, rises, midnight + HOUR * rests, leaves, returns, away, ill, person)

    def at_home(self, days: Numbers, times: Floats) -> Truths:
        """Return whether the person is at home and awake at these times of these days."""
        out = (times >= self.leaves[days]) & (times < self.returns[days])
        up = (times >= self.rises[days]) & (times < self.rests[days])
        return up & ~out & ~self.away[days] & ~self.ill[days]
